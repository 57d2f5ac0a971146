/* attention_decode: one row's query heads over one range of its KV head's rows.
 *
 * A row of K or V is LANES pieces of 8 elements, one of each lane of a group, of 64 two of each lane of a warp.  A warp
 * has 4 * 32 / LANES rows at once, K and V both asked for before any score, and each of its groups keeps a partial of
 * its own.  The partials of a block's groups are added in their order.  So an output depends on the row's length alone,
 * not on what else is computed.  Bound by memory: K and V are read once for HEADS query heads, as they lie. */
#pragma once

#include "device/cuda/attention_rows.h"
#include "device/cuda/kv_places.h"
#include "device/cuda/rows.h"

/* EACH pieces of a lane, GROUP pieces apart; STEPS rows of a group at once, whose K and V are in registers. */
template <int LANES> struct row_split {
    enum { EACH = LANES > 32 ? LANES / 32 : 1, GROUP = LANES / EACH, STEPS = 4 / EACH };
};

/* What a cache has: halves in K and V; either in 8 bits; halves, with chunks in 4 bits among them. */
enum cache_form { CACHE_F16, CACHE_ANY, CACHE_Q4 };

/* Eight elements of a row: halves; or, in the low words, int8, and their scale in z. */
DEVICE struct u32x4 eight_load(bool is_q8, const char *row, const char *scales, uint32_t l) {
    if (!is_q8) return load16_written(row + l * 16);
    const struct u32x2 codes = load8_written(row + l * 8);
    return {codes.x, codes.y, load2_written(scales + l / 4 * 2), 0};
}
DEVICE void eight_values(bool is_q8, struct u32x4 raw, float v[8]) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    if (!is_q8) {
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            v[2 * i] = half_value(words[i] & 0xffff);
            v[2 * i + 1] = half_value(words[i] >> 16);
        }
        return;
    }
    const float scale = half_value(raw.z);
    UNROLL
    for (uint32_t i = 0; i < 8; i++) v[i] = scale * (float)(int8_t)(words[i / 4] >> i % 4 * 8 & 255);
}

/* Halves of codes, as the codec decodes them. */
DEVICE uint32_t q4_level(uint32_t code, float low, float high) {
    const float step = (high - low) * 0x1.111114p-4f, x = multiply_add((float)code, step, low);
    return half_of(x < high ? x : high);
}

/* Bytes of a chunk in 4 bits, a multiple of 32 (kv_q4_chunk_bytes). */
DEVICE uint32_t q4_chunk_bytes(const struct kv_shape &shape) {
    enum { V_GROUP = 32, RANGE = 2 * 2 /* bytes of the least and the largest */ };
    return shape.k_dimension * RANGE + KV_CHUNK_TOKENS * ((shape.v_dimension + V_GROUP - 1) / V_GROUP) * RANGE +
           KV_CHUNK_TOKENS / 2 * (shape.k_dimension + shape.v_dimension);
}

/* Eight elements of K and of V of a token, into halves, from a chunk in 4 bits (kernels/codec, q4_parts). */
DEVICE void q4_load(const struct kv_shape &shape, uint64_t entry, uint32_t token_in_unit, uint32_t l, bool has_k,
                    bool has_v, struct u32x4 *k, struct u32x4 *v) {
    enum { V_GROUP = 32 };
    const char *chunk = at<char>(entry & ~(uint64_t)Q4_MARKS);
    const uint32_t token = (uint32_t)(entry & (Q4_UNIT - 1)) * UNIT_TOKENS + token_in_unit, shift = token % 2 * 4;
    const uint32_t groups = (shape.v_dimension + V_GROUP - 1) / V_GROUP, v_low = shape.k_dimension * 4,
                   v_high = v_low + KV_CHUNK_TOKENS * groups * 2, k_codes = v_high + KV_CHUNK_TOKENS * groups * 2,
                   v_codes = k_codes + KV_CHUNK_TOKENS / 2 * shape.k_dimension;
    uint32_t halves[4];
    if (has_k) {
        const struct u32x2 codes = load8_written(chunk + k_codes + token / 2 * shape.k_dimension + l * 8);
        const struct u32x4 low = load16_written(chunk + l * 16),
                           high = load16_written(chunk + shape.k_dimension * 2 + l * 16);
        const uint32_t lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t pair = (i < 2 ? codes.x : codes.y) >> i % 2 * 16 >> shift;
            halves[i] = q4_level(pair & 15, half_value(lows[i] & 0xffffu), half_value(highs[i] & 0xffffu)) |
                        q4_level(pair >> 8 & 15, half_value(lows[i] >> 16), half_value(highs[i] >> 16)) << 16;
        }
        *k = {halves[0], halves[1], halves[2], halves[3]};
    }
    if (has_v) {
        const struct u32x2 codes = load8_written(chunk + v_codes + token / 2 * shape.v_dimension + l * 8);
        const uint32_t group = (token * groups + l * 8 / V_GROUP) * 2;
        const float low = half_value(load2_written(chunk + v_low + group)),
                    high = half_value(load2_written(chunk + v_high + group));
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t pair = (i < 2 ? codes.x : codes.y) >> i % 2 * 16 >> shift;
            halves[i] = q4_level(pair & 15, low, high) | q4_level(pair >> 8 & 15, low, high) << 16;
        }
        *v = {halves[0], halves[1], halves[2], halves[3]};
    }
}

template <int HEADS, int EACH> struct partial { float m[HEADS], s[HEADS], o[HEADS][EACH * 8]; };

/* What a thread is: which heads, which rows, which columns. */
struct decode_place {
    uint32_t kv_head, head_first, head_count; /* of the group's */
    uint32_t l;                               /* of the group's lanes */
    uint32_t group;                           /* of lanes, in the block */
};

template <int HEADS> DEVICE void heads_of(const struct cuda_attention_args &args, struct decode_place *place) {
    const uint32_t passes = (args.group + HEADS - 1) / HEADS, y = block_y_again();
    place->kv_head = y / passes;
    place->head_first = y % passes * HEADS;
    place->head_count = smaller(args.group - place->head_first, HEADS);
}

/* Rows of a tile, whose chunks or units a table has: those before `begin` and from `end` on do not count. */
struct tile_rows {
    const uint64_t *table;
    uint32_t first, begin, end; /* first: of the tile */
};

/* The STEPS * ROWS rows from `row` on.  Those behind the tile are its last one once more.  A step's rows lie in one
 * unit, so that its address is the same for all lanes. */
template <int LANES, int HEADS, int FORM, bool LIST>
DEVICE void rows_attend(const struct cuda_attention_args &args, const struct tile_rows &tile, uint32_t row, uint32_t l,
                        const float q[HEADS][row_split<LANES>::EACH * 8],
                        struct partial<HEADS, row_split<LANES>::EACH> *sum) {
    enum { EACH = row_split<LANES>::EACH, GROUP = row_split<LANES>::GROUP, STEPS = row_split<LANES>::STEPS };
    enum { ROWS = 32 / GROUP, UNIT = KV_BLOCK_TOKENS };
    const struct kv_shape &shape = args.shape;
    const bool k_q8 = FORM == CACHE_ANY && shape.k_type == KV_Q8, v_q8 = FORM == CACHE_ANY && shape.v_type == KV_Q8;
    struct u32x4 k[STEPS][EACH], v[STEPS][EACH];
    bool takes[STEPS];
    UNROLL
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint32_t r = row + i * ROWS + lane_index() / GROUP, token = smaller(r, tile.end - 1) % UNIT,
                       unit = (smaller(row + i * ROWS / UNIT * UNIT, tile.end - 1) - tile.first) / UNIT;
        const char *block = LIST ? at<char>(tile.table[unit])
                                 : at<char>(tile.table[unit / KV_CHUNK_BLOCKS]) +
                                       unit % KV_CHUNK_BLOCKS * shape.block_bytes;
        takes[i] = r >= tile.begin && r < tile.end;
        UNROLL
        for (uint32_t e = 0; e < EACH; e++) {
            const uint32_t piece = l + e * GROUP;
            const bool has_k = piece * 8 < shape.k_dimension, has_v = piece * 8 < shape.v_dimension;
            k[i][e] = v[i][e] = {0, 0, 0, 0};
            if (FORM == CACHE_Q4 && ((uint64_t)(uintptr_t)block & Q4_UNIT) != 0) {
                q4_load(shape, (uint64_t)(uintptr_t)block, token, piece, has_k, has_v, &k[i][e], &v[i][e]);
                continue;
            }
            if (has_k)
                k[i][e] = eight_load(k_q8, block + token * shape.k_row_bytes,
                                     block + shape.k_scales_offset + token * (shape.k_dimension / 32) * 2, piece);
            if (has_v)
                v[i][e] = eight_load(v_q8, block + shape.v_offset + token * shape.v_row_bytes,
                                     block + shape.v_scales_offset + token * (shape.v_dimension / 32) * 2, piece);
        }
    }
    float score[STEPS][HEADS];
    UNROLL
    for (uint32_t i = 0; i < STEPS; i++) {
        float key[EACH * 8];
        UNROLL
        for (uint32_t e = 0; e < EACH; e++) eight_values(k_q8, k[i][e], key + e * 8);
        UNROLL
        for (uint32_t h = 0; h < HEADS; h++) {
            float product = 0;
            UNROLL
            for (uint32_t d = 0; d < EACH * 8; d++) product = multiply_add(key[d], q[h][d], product);
            score[i][h] = warp_sum<GROUP>(product);
        }
    }
    if (args.softcap != 0) UNROLL
        for (uint32_t i = 0; i < STEPS; i++) UNROLL
        for (uint32_t h = 0; h < HEADS; h++) score[i][h] = score_of(score[i][h], args.scale, args.softcap);
    UNROLL
    for (uint32_t h = 0; h < HEADS; h++) {
        float m = sum->m[h];
        UNROLL
        for (uint32_t i = 0; i < STEPS; i++) m = takes[i] ? larger(m, score[i][h]) : m;
        const float shrink = exp2_near(sum->m[h] - m);
        sum->m[h] = m;
        sum->s[h] *= shrink;
        UNROLL
        for (uint32_t d = 0; d < EACH * 8; d++) sum->o[h][d] *= shrink;
        UNROLL
        for (uint32_t i = 0; i < STEPS; i++) {
            score[i][h] = takes[i] ? exp2_near(score[i][h] - m) : 0;
            sum->s[h] += score[i][h];
        }
    }
    UNROLL
    for (uint32_t i = 0; i < STEPS; i++) {
        float value[EACH * 8];
        UNROLL
        for (uint32_t e = 0; e < EACH; e++) eight_values(v_q8, v[i][e], value + e * 8);
        UNROLL
        for (uint32_t h = 0; h < HEADS; h++) UNROLL
        for (uint32_t d = 0; d < EACH * 8; d++) sum->o[h][d] = multiply_add(score[i][h], value[d], sum->o[h][d]);
    }
}

/* The block's partials, as floats behind the table: [part][head] m, s, and [part][head][LANES * 8]. */
template <int LANES, int HEADS>
DEVICE void partials_store(const struct cuda_attention_args &args, float *shared, const struct decode_place &place,
                           const struct partial<HEADS, row_split<LANES>::EACH> &sum, uint64_t row, uint32_t range) {
    enum { EACH = row_split<LANES>::EACH, GROUP = row_split<LANES>::GROUP };
    enum { PARTS = 128 / GROUP, WIDTH = LANES * 8 };
    float *numbers = shared, *outputs = shared + PARTS * HEADS * 2;
    UNROLL
    for (uint32_t h = 0; h < HEADS; h++) {
        UNROLL
        for (uint32_t d = 0; d < EACH * 8; d++)
            outputs[(place.group * HEADS + h) * WIDTH + (place.l + d / 8 * GROUP) * 8 + d % 8] = sum.o[h][d];
        if (place.l == 0) {
            numbers[(place.group * HEADS + h) * 2] = sum.m[h];
            numbers[(place.group * HEADS + h) * 2 + 1] = sum.s[h];
        }
    }
    block_barrier();
    const uint32_t head_count = args.kv_head_count * args.group;
    for (uint32_t h = 0; h < place.head_count; h++) {
        float m = SCORE_NONE, weight[PARTS], s = 0;
        UNROLL
        for (uint32_t i = 0; i < PARTS; i++) m = larger(m, numbers[(i * HEADS + h) * 2]);
        UNROLL
        for (uint32_t i = 0; i < PARTS; i++) {
            weight[i] = exp2_near(numbers[(i * HEADS + h) * 2] - m);
            s = multiply_add(weight[i], numbers[(i * HEADS + h) * 2 + 1], s);
        }
        const uint32_t head = place.kv_head * args.group + place.head_first + h;
        float *to =
            at<float>(args.partials) + ((row * head_count + head) * ATTENTION_RANGES_MAX + range) * args.partial_stride;
        if (thread_index() == 0) to[0] = m, to[1] = s;
        for (uint32_t d = thread_index(); d < args.shape.v_dimension; d += 128) {
            float o = 0;
            UNROLL
            for (uint32_t i = 0; i < PARTS; i++) o = multiply_add(weight[i], outputs[(i * HEADS + h) * WIDTH + d], o);
            to[4 + d] = o;
        }
    }
}

/* The units that a KV head of a row attends to. */
struct unit_list {
    const uint32_t *rows;
    const uint64_t *addresses; /* or 0 */
    const uint32_t *q4_places; /* of its KV head's chunks in 4 bits, or 0 */
};

/* What a listed unit's address says. */
DEVICE bool slot_is_unfilled(uint64_t address) { return (address & Q4_MARKS) == SLOT_UNFILLED; }
DEVICE bool chunk_is_unfilled(uint64_t address) {
    return (address & (Q4_UNIT | Q4_UNFILLED)) == (Q4_UNIT | Q4_UNFILLED);
}

DEVICE uint32_t listed_unit(const struct unit_list &list, uint32_t n) {
    return list.rows[n * UNIT_TOKENS] / UNIT_TOKENS;
}

/* Units of a chunk follow each other: it is filled by the block that has the first of them.  Whether those before unit
 * `first` have the chunk. */
DEVICE bool chunk_is_begun(const struct unit_list &list, uint32_t first, uint32_t chunk) {
    return first > 0 && listed_unit(list, first - 1) / KV_CHUNK_BLOCKS == chunk;
}

DEVICE uint64_t unit_home(const struct cuda_attention_args &args, const uint32_t *places, uint32_t unit) {
    return (uint64_t)(uintptr_t)chunk_at(at<struct cuda_pools>(args.pools), places[unit / KV_CHUNK_BLOCKS]) +
           unit % KV_CHUNK_BLOCKS * args.shape.block_bytes;
}

/* A part of a slot that a warp fills. */
struct slot_part {
    char *to;
    const char *from;
    uint32_t bytes;
};

/* A quarter of a chunk in 4 bits, which lies in a pool. */
DEVICE struct slot_part q4_quarter(const struct cuda_attention_args &args, const struct unit_list &list,
                                   uint64_t address, uint32_t unit, uint32_t warp) {
    const uint32_t bytes = q4_chunk_bytes(args.shape), quarter = (bytes / 16 + 3) / 4 * 16, first = warp * quarter;
    const char *home = chunk_at(at<struct cuda_pools>(args.pools), list.q4_places[unit / KV_CHUNK_BLOCKS]);
    return {at<char>(address & ~(uint64_t)(Q4_MARKS | Q4_UNFILLED)) + first, home + first,
            smaller(quarter, bytes - first)};
}

/* The slots of listed units [first, end) that are not filled, while blocks that lack none attend: a warp has a unit, or
 * a quarter of a chunk in 4 bits.  Barriers follow before they are read. */
template <int FORM>
DEVICE void slots_fill(const struct cuda_attention_args &args, const uint32_t *places, const struct unit_list &list,
                       uint32_t first, uint32_t end, uint32_t warp) {
    ROLLED
    for (uint32_t those = first; those < end; those += 32) {
        const uint32_t mine = those + lane_index();
        const uint64_t own = mine < end ? list.addresses[mine] : 0;
        const bool leads = FORM == CACHE_Q4 && chunk_is_unfilled(own) &&
                           !chunk_is_begun(list, mine, listed_unit(list, mine) / KV_CHUNK_BLOCKS);
        ROLLED
        for (uint32_t left = warp_ballot(leads || (slot_is_unfilled(own) && mine % 4 == warp)); left != 0;
             left &= left - 1) {
            const uint32_t n = those + bits_count(~left & (left - 1)), unit = listed_unit(list, n);
            const uint64_t address = list.addresses[n];
            struct slot_part part;
            if (FORM == CACHE_Q4 && chunk_is_unfilled(address))
                part = q4_quarter(args, list, address, unit, warp);
            else
                part = {at<char>(address - SLOT_UNFILLED), at<char>(unit_home(args, places, unit)),
                        args.shape.block_bytes};
            unit_copy(part.to, part.from, part.bytes);
        }
    }
}

/* Addresses of the chunks of rows [tile, tile_end), or of the listed units, of one KV head.  fills: slots that were
 * not filled are now, of chunks in 4 bits those whose units begin from `begin` on; else another block fills them, and
 * the units are read from their chunks. */
template <bool LIST, int FORM>
DEVICE void table_fill(const struct cuda_attention_args &args, uint64_t *table, const uint32_t *places,
                       const struct unit_list &list, bool fills, uint32_t begin, uint32_t tile, uint32_t tile_end) {
    const struct cuda_pools *pools = at<struct cuda_pools>(args.pools);
    const uint32_t each = LIST ? UNIT_TOKENS : ATTENTION_CHUNK, first = tile / each, end = (tile_end - 1) / each + 1;
    block_barrier();
    for (uint32_t n = first + thread_index(); n < end; n += 128) {
        const uint64_t address = LIST && list.addresses != 0 ? list.addresses[n] : 0;
        const uint32_t unit = LIST ? listed_unit(list, n) : 0, chunk = LIST ? unit / KV_CHUNK_BLOCKS : n;
        const bool is_row = slot_is_unfilled(address), is_chunk = FORM == CACHE_Q4 && chunk_is_unfilled(address);
        const bool is_filled = is_chunk ? fills && !chunk_is_begun(list, begin, chunk) : fills || !is_row;
        if (LIST && list.addresses != 0 && is_filled) {
            table[n - first] = address - is_row - (is_chunk ? Q4_UNFILLED : 0);
            if (address == 0) kernel_fault();
            continue;
        }
        const uint32_t q4_place = FORM == CACHE_Q4 && list.q4_places != 0 && !is_row ? list.q4_places[chunk] : 0;
        if (q4_place != 0) {
            table[n - first] = (uint64_t)(uintptr_t)chunk_at(pools, q4_place) | Q4_UNIT | unit % KV_CHUNK_BLOCKS;
            continue;
        }
        table[n - first] =
            LIST ? unit_home(args, places, unit) : (uint64_t)(uintptr_t)chunk_at(pools, places[chunk]);
    }
    block_barrier();
}

template <int LANES, int HEADS, int FORM, bool LIST>
DEVICE void attention_run(const struct cuda_attention_args &args, uint64_t lists, uint64_t limits, uint64_t addresses,
                          uint32_t list_stride) {
    enum { EACH = row_split<LANES>::EACH, GROUP = row_split<LANES>::GROUP, STEPS = row_split<LANES>::STEPS };
    enum { BATCH = STEPS * 32 / GROUP }; /* rows of a warp at once */
    uint64_t *table = SHARED_ARRAY(uint64_t);
    const uint32_t lane = lane_index(), warp = warp_index();
    struct decode_place place;
    heads_of<HEADS>(args, &place);
    place.l = lane % GROUP;
    place.group = thread_index() / GROUP;
    dependents_start();
    dependency_wait();
    if (block_z() >= step_rows(args.step, args.row_count)) return;
    const struct step_row step_row = at<struct step_row>(args.rows)[block_z()];
    const uint64_t list_index = (uint64_t)block_z() * args.kv_head_count + place.kv_head;
    struct unit_list list = {};
    struct seen_rows seen;
    if (LIST) {
        const struct cuda_list own = list_at(lists, limits, list_index);
        list.rows = at<uint32_t>(own.rows);
        list.addresses = addresses == 0 ? 0 : at<uint64_t>(addresses) + list_index * list_stride;
        seen = listed_rows_of(own);
    } else {
        seen = seen_rows_of(step_row.position, args.window);
    }
    const uint32_t range = block_x();
    if (range >= seen.range_count) return;
    const struct step_item *item = at<struct step_item>(args.items) + step_row.item;
    const bool is_own = range >= item->range_first && range < item->range_end;
    if (args.ranges != RANGES_ALL && is_own != (args.ranges == RANGES_OF_ITEM)) return;
    const uint32_t *places = head_places(item, args.layer_pages, place.kv_head);
    if (FORM == CACHE_Q4 && item->q4_pages != 0)
        list.q4_places = at<uint32_t>(item->q4_pages) + (uint64_t)place.kv_head * item->chunk_stride;
    const uint32_t begin = seen.first + range * seen.range_rows, end = smaller(begin + seen.range_rows, seen.end);
    const bool fills = place.head_first == 0;
    if (LIST && list.addresses != 0 && fills)
        slots_fill<FORM>(args, places, list, begin / UNIT_TOKENS, (end - 1) / UNIT_TOKENS + 1, warp);
    float q[HEADS][EACH * 8];
    struct partial<HEADS, EACH> sum;
    const float factor = args.softcap == 0 ? args.scale * 1.44269504f : 1.0f;
    UNROLL
    for (uint32_t h = 0; h < HEADS; h++) {
        const float *head = at<float>(args.q) + (uint64_t)block_z() * args.q_stride +
                            (place.kv_head * args.group + place.head_first + h) * args.shape.k_dimension;
        sum.m[h] = SCORE_NONE, sum.s[h] = 0;
        UNROLL
        for (uint32_t e = 0; e < EACH; e++) {
            const uint32_t first = (place.l + e * GROUP) * 8;
            const bool has = h < place.head_count && first < args.shape.k_dimension;
            UNROLL
            for (uint32_t d = 0; d < 8; d++) q[h][e * 8 + d] = has ? head[first + d] * factor : 0;
        }
        UNROLL
        for (uint32_t d = 0; d < EACH * 8; d++) sum.o[h][d] = 0;
    }
    const uint32_t each = LIST ? UNIT_TOKENS : ATTENTION_CHUNK;
    for (uint32_t tile = begin; tile < end; tile += ATTENTION_TABLE * each) {
        const uint32_t tile_end = smaller(tile + ATTENTION_TABLE * each, end);
        table_fill<LIST, FORM>(args, table, places, list, fills, begin / UNIT_TOKENS, tile, tile_end);
        ROLLED
        for (uint32_t row = tile + warp * BATCH; row < tile_end; row += 4 * BATCH)
            rows_attend<LANES, HEADS, FORM, LIST>(args, {table, tile, seen.begin, tile_end}, row, place.l, q, &sum);
    }
    heads_of<HEADS>(args, &place);
    partials_store<LANES, HEADS>(args, (float *)(void *)(table + ATTENTION_TABLE), place, sum, block_z(), range);
}

/* blocks: of 128 threads on a multiprocessor. */
#define ATTENTION_LIST(lanes, heads, types, form, blocks)                                                \
    KERNEL(attention_list_##lanes##_##heads##_##types, cuda_attention_list_args, 128, blocks) {          \
        attention_run<lanes, heads, form, true>(args.attention, args.lists, args.limits, args.addresses, \
                                                args.list_stride);                                       \
    }
#define ATTENTION_KERNEL(lanes, heads, types, form, blocks)                                  \
    KERNEL(attention_decode_##lanes##_##heads##_##types, cuda_attention_args, 128, blocks) { \
        attention_run<lanes, heads, form, false>(args, 0, 0, 0, 0);                          \
    }                                                                                        \
    ATTENTION_LIST(lanes, heads, types, form, (heads) == 4 && (blocks) == 4 ? 3 : (blocks)) /* 4 spill */
/* what: ATTENTION_KERNEL, or ATTENTION_LIST for lists alone. */
#define ATTENTION_KERNELS_OF(what, lanes, types, form, four_blocks) \
    what(lanes, 1, types, form, 4) what(lanes, 4, types, form, four_blocks) what(lanes, 8, types, form, 2)
#define ATTENTION_KERNELS(what, types, form, four_blocks)    \
    ATTENTION_KERNELS_OF(what, 8, types, form, four_blocks)  \
    ATTENTION_KERNELS_OF(what, 16, types, form, four_blocks) \
    ATTENTION_KERNELS_OF(what, 32, types, form, 3)           \
    what(64, 1, types, form, 4) what(64, 4, types, form, 2)

/* attention_prefill: causal attention of many rows of a sequence, by matrix_multiply (mma.sync).
 *
 * A block has 128 queries of one head, 32 of each warp.  K and V come a chunk of 64 at a time, as they lie in
 * their slots, while the last one is attended to, 32 keys at once, which the registers hold; K and V in 8 bits
 * are turned into halves on the way.  Of heads above 128 registers hold 16 queries of a warp, and of outputs 256
 * columns: two warps share queries of 512.  There is room for one tile of keys and one of values, which come while the
 * other is multiplied with.  Scores, running maxima and sums are floats; weights are halves for the
 * second product.  Rows of a tile lie as in matmul.h: eighths at (number ^ row % 8).  What a query's bits are
 * follows from its position alone: a chunk of which it sees nothing adds nothing. */
#pragma once

#include "device/cuda/attention_rows.h"
#include "device/cuda/kv_places.h"
#include "device/cuda/rows.h"

/* What a block has of heads of WIDTH elements at most. */
template <int WIDTH> struct prefill_form {
    enum {
        IS_WIDE = WIDTH > 128,
        ROW_TILES = IS_WIDE ? 1 : 2,             /* of a warp, of 16 queries each */
        SHARERS = WIDTH > 256 ? WIDTH / 256 : 1, /* warps of the same queries */
        COLUMNS = WIDTH / SHARERS,               /* of outputs, of a warp */
        WARP_QUERIES = ROW_TILES * 16,
        QUERIES = 4 / SHARERS * WARP_QUERIES,  /* prefill_queries */
        KEYS = IS_WIDE ? 32 : ATTENTION_CHUNK, /* of a tile */
        TILE = KEYS * WIDTH * 2                /* bytes */
    };
};

template <int WIDTH> DEVICE uint32_t wide_place(uint32_t row, uint32_t eighth) {
    return row * WIDTH * 2 + ((eighth ^ (row & 7)) << 4);
}

/* Where a kernel has queries, or K or V of a chunk: how it copies and stores 16 bytes of a row. */
template <int WIDTH> struct wide_tile {
    char *tile;
    DEVICE_MEMBER void copy(uint32_t row, uint32_t eighth, const char *from, bool takes) const {
        copy_async16_if(shared_of(tile) + wide_place<WIDTH>(row, eighth), from, takes);
    }
    DEVICE_MEMBER void store(uint32_t row, uint32_t eighth, struct u32x4 v) const {
        *(struct u32x4 *)(void *)(tile + wide_place<WIDTH>(row, eighth)) = v;
    }
};

/* The queries of a block. */
struct query_block {
    uint32_t count;
    uint32_t position; /* of the first */
    uint32_t row;      /* of q and y, of the first */
    uint32_t chunk_first, chunk_end;
    const uint32_t *places;
};

/* count 0: there is nothing. */
template <int WIDTH> DEVICE struct query_block query_block_of(const struct cuda_prefill_args &args) {
    enum { QUERIES = prefill_form<WIDTH>::QUERIES };
    struct query_block block = {};
    if (block_z() >= smaller(at<struct step_head>(args.step)->item_count, args.item_count)) return block;
    const struct step_item *item = at<struct step_item>(args.items) + block_z();
    const uint32_t rows = item->row_count, blocks = (rows + QUERIES - 1) / QUERIES;
    if (block_y() >= blocks) return block;
    const uint32_t first = (blocks - 1 - block_y()) * QUERIES; /* the longest of all heads begin first */
    block.count = smaller(rows - first, QUERIES);
    block.position = (uint32_t)item->position_first + first;
    block.row = item->row_first + first;
    const bool is_whole = args.window == 0 || block.position + 1 <= args.window;
    block.chunk_first = (is_whole ? 0 : block.position + 1 - args.window) / ATTENTION_CHUNK;
    block.chunk_end = (block.position + block.count - 1) / ATTENTION_CHUNK + 1;
    block.places = head_places(item, args.layer_pages, block_x() / args.group);
    return block;
}

/* The queries as halves, times what makes scores powers of two; zeros where there is none. */
template <int WIDTH, uint32_t THREADS, typename TILE>
DEVICE void queries_store(const struct cuda_prefill_args &args, const struct query_block &block, const TILE &tile) {
    const uint32_t dimension = args.shape.k_dimension;
    const float factor = args.softcap == 0 ? args.scale * 1.44269504f : 1.0f;
    for (uint32_t i = thread_index(); i < prefill_form<WIDTH>::QUERIES * WIDTH / 8; i += THREADS) {
        const uint32_t row = i / (WIDTH / 8), eighth = i % (WIDTH / 8);
        float v[8];
        const bool is_there = row < block.count && eighth * 8 < dimension;
        const float *q = at<float>(args.q) + (uint64_t)(block.row + row) * args.q_stride + block_x() * dimension;
        UNROLL
        for (uint32_t k = 0; k < 8; k++) v[k] = is_there ? q[eighth * 8 + k] * factor : 0;
        tile.store(row, eighth,
                   {halves_of(v[0], v[1]), halves_of(v[2], v[3]), halves_of(v[4], v[5]), halves_of(v[6], v[7])});
    }
}

/* Eight codes of 8 bits times their scale, which both halves of a word have: 1024 + 128 + code, and back. */
DEVICE struct u32x4 halves_of_codes(struct u32x2 codes, uint32_t scale) {
    const auto halves = [scale](uint32_t four, uint32_t pick) {
        const uint32_t raised = bytes_pick(four ^ 0x80808080u, 0x64646464u, pick);
        return halves_multiply(halves_subtract(raised, 0x64806480u), scale);
    };
    return {halves(codes.x, 0x4140), halves(codes.x, 0x4342), halves(codes.y, 0x4140), halves(codes.y, 0x4342)};
}

/* K or V of chunk `number` into a tile, by 128 threads, 16 bytes of a row at a time; zeros beyond the last row and the
 * last element, and of a chunk that nobody sees. */
template <int WIDTH, bool ANY, typename TILE>
DEVICE void chunk_load(const struct cuda_prefill_args &args, const struct query_block &queries, uint32_t number,
                       bool is_v, const TILE &tile) {
    const bool is_seen = number >= queries.chunk_first && number < queries.chunk_end;
    const char *chunk =
        chunk_at(at<struct cuda_pools>(args.pools), queries.places[is_seen ? number : queries.chunk_first]);
    uint32_t row_count = queries.position + queries.count - number * ATTENTION_CHUNK; /* that exist, or more */
    const struct kv_shape &shape = args.shape;
    const uint32_t dimension = is_v ? shape.v_dimension : shape.k_dimension;
    const uint32_t row_bytes = is_v ? shape.v_row_bytes : shape.k_row_bytes;
    const uint32_t rows_at = is_v ? shape.v_offset : 0,
                   scales_at = is_v ? shape.v_scales_offset : shape.k_scales_offset;
    const bool is_q8 = ANY && (is_v ? shape.v_type : shape.k_type) == KV_Q8;
    /* Row first + i * STEP: the same place in its block of 8, STEP / 8 blocks on. */
    enum { STEP = 128 / (WIDTH / 8), ROUNDS = ATTENTION_CHUNK / STEP };
    const uint32_t thread = thread_index() % 128, first = thread / (WIDTH / 8), eighth = thread % (WIDTH / 8),
                   in_block = first % 8;
    const uint32_t step_bytes = STEP / KV_BLOCK_TOKENS * shape.block_bytes;
    const char *block = chunk + first / KV_BLOCK_TOKENS * shape.block_bytes;
    const uint32_t source = rows_at + in_block * row_bytes + eighth * (is_q8 ? 8 : 16);
    if (!is_seen || eighth * 8 >= dimension) row_count = 0;
    if (!is_q8) {
        UNROLL
        for (uint32_t i = 0; i < ROUNDS; i++, block += step_bytes)
            tile.copy(first + i * STEP, eighth, block + source, first + i * STEP < row_count);
        return;
    }
    const uint32_t scale_at = scales_at + (in_block * (dimension / 32) + eighth / 4) * 2;
    UNROLL
    for (uint32_t i = 0; i < ROUNDS; i++, block += step_bytes) {
        struct u32x2 codes = {0, 0};
        uint32_t scale = 0;
        if (first + i * STEP < row_count) {
            codes = load8_written(block + source);
            scale = load2_written(block + scale_at) * 0x10001u;
        }
        tile.store(first + i * STEP, eighth, halves_of_codes(codes, scale));
    }
}

/* 16 queries by 8 KEYS keys, as matrix_multiply and wgmma have them: score[j][e] of query lane / 4 + 8 (e / 2), key
 * 8 j + 2 (lane % 4) + e % 2.  What a query does not see has no score. */
template <uint32_t KEYS>
DEVICE void scores_mask(const struct cuda_prefill_args &args, uint32_t key_first, uint32_t query_first,
                        float (*score)[4]) {
    const uint32_t lane = lane_index();
    /* Of the lane's first query and key: how far the query is ahead, and the window's last that it does not see. */
    const int32_t ahead = (int32_t)(query_first + lane / 4 - key_first - lane % 4 * 2),
                  gone = args.window == 0 ? -(1 << 30) : ahead - (int32_t)smaller(args.window, 1u << 30);
    UNROLL
    for (int32_t i = 0; i < (int32_t)KEYS * 4; i++) {
        const int32_t key = i / 4 * 8 + i % 2 - i % 4 / 2 * 8;
        if (key > ahead || key <= gone) score[i / 4][i % 4] = SCORE_NONE;
    }
}

/* Scores of 8 of the queries, half h, become weights; maximum and sum go on.  By what sums so far shrink. */
template <uint32_t KEYS> DEVICE float weights_make(float (*score)[4], uint32_t h, float *m, float *s) {
    float largest = SCORE_NONE, sum = 0;
    UNROLL
    for (uint32_t j = 0; j < KEYS; j++) largest = larger(larger(largest, score[j][h * 2]), score[j][h * 2 + 1]);
    largest = larger(largest, lane_xor(largest, 1));
    largest = larger(largest, lane_xor(largest, 2));
    largest = larger(largest, *m);
    const float shrink = exp2_near(*m - largest);
    *m = largest;
    UNROLL
    for (uint32_t j = 0; j < KEYS; j++) UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        /* of a query that has seen nothing yet this is 1; its first score makes shrink 0 */
        const float weight = exp2_near(score[j][h * 2 + e] - largest);
        score[j][h * 2 + e] = weight;
        sum += weight;
    }
    *s = multiply_add(*s, shrink, sum);
    return shrink;
}

/* Of 16 queries from row `row` of the block on, COLUMNS columns from `first` on. */
template <int COLUMNS>
DEVICE void outputs_write(const struct cuda_prefill_args &args, const struct query_block &block, uint32_t row,
                          uint32_t first, const float (*o)[4], const float (&m)[2], const float (&sums)[2]) {
    const uint32_t dimension = args.shape.v_dimension, lane = lane_index();
    const float sink = args.sinks != 0 ? at<float>(args.sinks)[block_x()] * 1.44269504f : 0;
    row += lane / 4;
    UNROLL
    for (uint32_t h = 0; h < 2; h++, row += 8) {
        float s = sums[h];
        s += lane_xor(s, 1);
        s += lane_xor(s, 2);
        /* far above all scores it is infinite, and the output 0, as it would be but for the last bits of a float */
        if (args.sinks != 0) s += exp2_near(sink - m[h]);
        const float inverse = s == 0 ? 0 : 1.0f / s;
        float *y = at<float>(args.y) + (uint64_t)(block.row + row) * args.y_stride + block_x() * dimension;
        if (row >= block.count) continue;
        UNROLL
        for (uint32_t j = 0; j < COLUMNS / 8; j++) {
            const uint32_t column = first + j * 8 + lane % 4 * 2;
            if (column >= dimension) continue;
            *(struct f32x2 *)(void *)(y + column) = {o[j][h * 2] * inverse, o[j][h * 2 + 1] * inverse};
        }
    }
}

/* ---- by mma.sync */

/* chunk_load for heads above 128: of half a chunk, keys [number * KEYS, ... + KEYS), that somebody sees. */
template <int WIDTH, bool ANY>
DEVICE void tile_load(const struct cuda_prefill_args &args, const struct query_block &queries, uint32_t number,
                      bool is_v, char *tile) {
    enum { KEYS = prefill_form<WIDTH>::KEYS };
    const uint32_t key = number * KEYS;
    const char *chunk = chunk_at(at<struct cuda_pools>(args.pools), queries.places[key / ATTENTION_CHUNK]);
    uint32_t row_count = queries.position + queries.count - key; /* that exist, or more */
    const struct kv_shape &shape = args.shape;
    const uint32_t dimension = is_v ? shape.v_dimension : shape.k_dimension;
    const uint32_t row_bytes = is_v ? shape.v_row_bytes : shape.k_row_bytes;
    const uint32_t rows_at = is_v ? shape.v_offset : 0,
                   scales_at = is_v ? shape.v_scales_offset : shape.k_scales_offset;
    const bool is_q8 = ANY && (is_v ? shape.v_type : shape.k_type) == KV_Q8;
    /* Row first + i * STEP: of another block of 8 in each round, or in some. */
    enum { STEP = 128 / (WIDTH / 8), ROUNDS = KEYS / STEP, BLOCKS = STEP < 8 ? 1 : STEP / 8 };
    const uint32_t first = thread_index() / (WIDTH / 8), eighth = thread_index() % (WIDTH / 8);
    const char *block = chunk + (key % ATTENTION_CHUNK + first) / KV_BLOCK_TOKENS * shape.block_bytes;
    const uint32_t source = rows_at + eighth * (is_q8 ? 8 : 16);
    if (eighth * 8 >= dimension) row_count = 0;
    enum { AT_ONCE = WIDTH > 256 ? 1 : 2 }; /* whose addresses are in registers */
    UNROLL_BY(AT_ONCE)
    for (uint32_t i = 0; i < ROUNDS; i++) {
        if (i > 0 && i * STEP % 8 == 0) block += BLOCKS * shape.block_bytes;
        const bool is_there = first + i * STEP < row_count;
        const uint32_t in_block = first % 8 + i * STEP % 8;
        char *to = tile + wide_place<WIDTH>(first + i * STEP, eighth);
        if (!is_q8) {
            copy_async16_if(shared_of(to), is_there ? block + source + in_block * row_bytes : chunk, is_there);
            continue;
        }
        struct u32x2 codes = {0, 0};
        uint32_t scale = 0;
        if (is_there) {
            codes = load8_written(block + source + in_block * row_bytes);
            scale = load2_written(block + scales_at + (in_block * (dimension / 32) + eighth / 4) * 2) * 0x10001u;
        }
        *(struct u32x4 *)(void *)to = halves_of_codes(codes, scale);
    }
}

/* A warp's queries: o[i] 16 of them, the warp's columns; as in matrix_multiply, a lane has two rows of each 16. */
template <int ROW_TILES, int COLUMNS> struct query_sums {
    float o[ROW_TILES][COLUMNS / 8][4], m[ROW_TILES][2], s[ROW_TILES][2];
};

/* Of 32 keys. */
template <int WIDTH, int ROW_TILES>
DEVICE void scores_make(shared_address queries, shared_address keys, uint32_t lane, float score[ROW_TILES][4][4]) {
    enum { STEPS = WIDTH > 256 ? 2 : 4 }; /* whose tiles are in registers */
    UNROLL
    for (uint32_t i = 0; i < ROW_TILES * 16; i++) score[i / 16][i / 4 % 4][i % 4] = 0;
    UNROLL_BY(STEPS)
    for (uint32_t step = 0; step < WIDTH / 16; step++) {
        uint32_t a[ROW_TILES][4];
        UNROLL
        for (uint32_t i = 0; i < ROW_TILES; i++)
            matrix_load4(a[i], queries + wide_place<WIDTH>(i * 16 + lane % 16, step * 2 + lane / 16));
        UNROLL
        for (uint32_t j = 0; j < 2; j++) {
            uint32_t b[4];
            matrix_load4(b, keys + wide_place<WIDTH>(j * 16 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
            UNROLL
            for (uint32_t i = 0; i < ROW_TILES; i++) {
                matrix_multiply(score[i][2 * j], a[i], b[0], b[1]);
                matrix_multiply(score[i][2 * j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* Of 32 keys; values: from the warp's columns on. */
template <int WIDTH, int ROW_TILES, int COLUMNS>
DEVICE void values_add(const float weight[ROW_TILES][4][4], shared_address values, uint32_t lane,
                       struct query_sums<ROW_TILES, COLUMNS> *sums) {
    const uint32_t row = lane % 8 + lane / 8 % 2 * 8;
    UNROLL
    for (uint32_t step = 0; step < 2; step++) {
        uint32_t a[ROW_TILES][4];
        UNROLL
        for (uint32_t i = 0; i < ROW_TILES; i++) UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            const float *w = weight[i][2 * step + k / 2];
            a[i][k] = halves_of(w[k % 2 * 2], w[k % 2 * 2 + 1]);
        }
        UNROLL
        for (uint32_t j = 0; j < COLUMNS / 16; j++) {
            uint32_t b[4];
            matrix_load4_turned(b, values + wide_place<WIDTH>(step * 16 + row, j * 2 + lane / 16));
            UNROLL
            for (uint32_t i = 0; i < ROW_TILES; i++) {
                matrix_multiply(sums->o[i][2 * j], a[i], b[0], b[1]);
                matrix_multiply(sums->o[i][2 * j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* Keys from `key` on: scores become what query and key of a cache with a soft cap, or not seen, have. */
template <int ROW_TILES, bool ANY>
DEVICE void scores_finish(const struct cuda_prefill_args &args, bool masks, uint32_t key, uint32_t position,
                          float score[ROW_TILES][4][4]) {
    if (ANY && args.softcap != 0) {
        UNROLL
        for (uint32_t i = 0; i < ROW_TILES * 16; i++)
            score[i / 16][i / 4 % 4][i % 4] = score_of(score[i / 16][i / 4 % 4][i % 4], args.scale, args.softcap);
    }
    if (!masks) return;
    UNROLL
    for (uint32_t i = 0; i < ROW_TILES; i++) scores_mask<4>(args, key, position + i * 16, score[i]);
}

/* Scores of 32 keys become weights; what was summed shrinks where a maximum has grown. */
template <int ROW_TILES, int COLUMNS>
DEVICE void scores_weigh(float score[ROW_TILES][4][4], struct query_sums<ROW_TILES, COLUMNS> *sums) {
    UNROLL
    for (uint32_t i = 0; i < ROW_TILES; i++) UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const float shrink = weights_make<4>(score[i], h, &sums->m[i][h], &sums->s[i][h]);
        if (shrink == 1) continue;
        UNROLL
        for (uint32_t k = 0; k < COLUMNS / 4; k++) sums->o[i][k / 2][h * 2 + k % 2] *= shrink;
    }
}

/* The next chunk of keys and values comes while one is attended to. */
template <int WIDTH, bool ANY>
DEVICE void chunks_attend(const struct cuda_prefill_args &args, const struct query_block &block, char *queries,
                          uint32_t warp, uint32_t lane, struct query_sums<2, WIDTH> *sums) {
    enum { TILE = prefill_form<WIDTH>::TILE };
    char *keys = queries + PREFILL_QUERIES * WIDTH * 2, *values = keys + 2 * TILE;
    chunk_load<WIDTH, ANY>(args, block, block.chunk_first, false, wide_tile<WIDTH>{keys});
    chunk_load<WIDTH, ANY>(args, block, block.chunk_first, true, wide_tile<WIDTH>{values});
    copy_async_commit();
    queries_store<WIDTH, 128>(args, block, wide_tile<WIDTH>{queries});
    uint32_t tile = 0;
    ROLLED
    for (uint32_t c = block.chunk_first; c < block.chunk_end; c++, tile ^= 1) {
        copy_async_wait<0>();
        block_barrier(); /* this chunk is there, and nobody reads the last one any more */
        if (c + 1 < block.chunk_end) {
            chunk_load<WIDTH, ANY>(args, block, c + 1, false, wide_tile<WIDTH>{keys + (tile ^ 1) * TILE});
            chunk_load<WIDTH, ANY>(args, block, c + 1, true, wide_tile<WIDTH>{values + (tile ^ 1) * TILE});
        }
        copy_async_commit();
        const bool masks = args.window != 0 || (c + 1) * ATTENTION_CHUNK - 1 > block.position;
        ROLLED
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t offset = tile * TILE + half * (TILE / 2);
            float score[2][4][4];
            scores_make<WIDTH, 2>(shared_of(queries) + warp * 32 * WIDTH * 2, shared_of(keys) + offset, lane, score);
            scores_finish<2, ANY>(args, masks, c * ATTENTION_CHUNK + half * 32, block.position + warp * 32, score);
            scores_weigh<2>(score, sums);
            values_add<WIDTH>(score, shared_of(values) + offset, lane, sums);
        }
    }
}

/* Keys come while values are added, and values while scores are made. */
template <int WIDTH, bool ANY>
DEVICE void tiles_attend(const struct cuda_prefill_args &args, const struct query_block &block, char *queries,
                         uint32_t first, uint32_t column, uint32_t lane,
                         struct query_sums<1, prefill_form<WIDTH>::COLUMNS> *sums) {
    enum { KEYS = prefill_form<WIDTH>::KEYS };
    const uint32_t first_tile = block.chunk_first * (ATTENTION_CHUNK / KEYS),
                   end = (block.position + block.count - 1) / KEYS + 1;
    char *keys = queries + prefill_form<WIDTH>::QUERIES * WIDTH * 2, *values = keys + prefill_form<WIDTH>::TILE;
    tile_load<WIDTH, ANY>(args, block, first_tile, false, keys);
    copy_async_commit();
    queries_store<WIDTH, 128>(args, block, wide_tile<WIDTH>{queries});
    ROLLED
    for (uint32_t c = first_tile; c < end; c++) {
        copy_async_wait<0>();
        block_barrier(); /* the keys are there, and nobody reads the last values any more */
        tile_load<WIDTH, ANY>(args, block, c, true, values);
        copy_async_commit();
        const bool masks = args.window != 0 || (c + 1) * KEYS - 1 > block.position;
        float score[1][4][4];
        scores_make<WIDTH, 1>(shared_of(queries) + first * WIDTH * 2, shared_of(keys), lane, score);
        scores_finish<1, ANY>(args, masks, c * KEYS, block.position + first, score);
        copy_async_wait<0>();
        block_barrier(); /* and the values, and nobody reads the keys any more */
        if (c + 1 < end) tile_load<WIDTH, ANY>(args, block, c + 1, false, keys);
        copy_async_commit();
        scores_weigh<1>(score, sums);
        values_add<WIDTH>(score, shared_of(values) + column * 2, lane, sums); /* a multiple of 8 eighths */
    }
}

template <int WIDTH, bool ANY> DEVICE void prefill_run(const struct cuda_prefill_args &args) {
    enum { ROW_TILES = prefill_form<WIDTH>::ROW_TILES, COLUMNS = prefill_form<WIDTH>::COLUMNS };
    char *queries = SHARED_ARRAY(char);
    const uint32_t lane = lane_index(), warp = warp_index();
    dependents_start();
    dependency_wait();
    const struct query_block block = query_block_of<WIDTH>(args);
    if (block.count == 0) return;
    struct query_sums<ROW_TILES, COLUMNS> sums;
    UNROLL
    for (uint32_t i = 0; i < ROW_TILES; i++) {
        sums.m[i][0] = sums.m[i][1] = SCORE_NONE, sums.s[i][0] = sums.s[i][1] = 0;
        UNROLL
        for (uint32_t j = 0; j < COLUMNS / 2; j++) sums.o[i][j / 4][j % 4] = 0;
    }
    const uint32_t first = warp / prefill_form<WIDTH>::SHARERS * prefill_form<WIDTH>::WARP_QUERIES,
                   column = warp % prefill_form<WIDTH>::SHARERS * COLUMNS;
    if constexpr (prefill_form<WIDTH>::IS_WIDE)
        tiles_attend<WIDTH, ANY>(args, block, queries, first, column, lane, &sums);
    else
        chunks_attend<WIDTH, ANY>(args, block, queries, warp, lane, &sums);
    copy_async_wait<0>();
    UNROLL
    for (uint32_t i = 0; i < ROW_TILES; i++)
        outputs_write<COLUMNS>(args, block, first + i * 16, column, sums.o[i], sums.m[i], sums.s[i]);
}

#define PREFILL_KERNEL(width, types, any) \
    KERNEL(attention_prefill_##width##_##types, cuda_prefill_args, 128, 2) { prefill_run<width, any>(args); }
#define PREFILL_KERNELS(types, any) \
    PREFILL_KERNEL(64, types, any)  \
    PREFILL_KERNEL(128, types, any) PREFILL_KERNEL(256, types, any) PREFILL_KERNEL(512, types, any)

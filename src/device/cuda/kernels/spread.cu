/* spread: means and deviations of the keys of pages, in the layouts of kernels/abstract and kernels/tree, and scores of
 * pages by them.
 *
 * spread_build: a thread has a coordinate of a page and reads its tokens twice; neighbours read neighbours.  In a step
 * that is one page, of the row's own chunk.  tree_build: the same, and the boxes above.
 * spread_score: a warp has 8 pages, a lane 8 neighbouring coordinates of each, four heads at once; 4 * dimension bytes
 * a page are read once for them, and the 32 sums of a lane become one of all lanes each in 31 shuffles.  Bound by
 * memory. */
#include "device/cuda/attention_rows.h"
#include "device/cuda/kv_keys.h"
#include "device/cuda/rows.h"

/* ---- building */

/* Of coordinate i of tokens [begin, end) of a chunk, rounded to halves. */
struct spread {
    uint32_t mean, deviation;
};
DEVICE struct spread spread_of(const struct kv_shape &shape, const char *chunk, uint32_t begin, uint32_t end,
                               uint32_t i) {
    double sum = 0, squares = 0;
    for (uint32_t t = begin; t < end; t++)
        sum += (double)key_element(shape, chunk + t / KV_BLOCK_TOKENS * shape.block_bytes,
                                   t % KV_BLOCK_TOKENS, i);
    const double mean = sum / (double)(end - begin);
    for (uint32_t t = begin; t < end; t++) {
        const float k =
            key_element(shape, chunk + t / KV_BLOCK_TOKENS * shape.block_bytes, t % KV_BLOCK_TOKENS, i);
        const double off = (double)k - mean;
        squares += off * off;
    }
    return {half_of((float)mean), half_of((float)__builtin_sqrt(squares / (double)(end - begin)))};
}

/* A step's rows of an item, and what of them is in a chunk. */
struct new_rows {
    uint32_t begin, end;
};
DEVICE struct new_rows new_rows_of(const struct step_item *item, uint64_t rows) {
    const uint64_t position =
        rows == 0 ? item->position_first : at<struct step_row>(rows)[block_z()].position;
    return {(uint32_t)position, (uint32_t)position + item->row_count};
}
DEVICE struct new_rows rows_within(const struct new_rows &rows, uint32_t chunk) {
    const uint32_t first = chunk * KV_CHUNK_TOKENS;
    return {rows.begin > first ? rows.begin - first : 0, smaller(rows.end - first, KV_CHUNK_TOKENS)};
}

KERNEL(spread_build, cuda_spread_build_args, 256, 4) {
    dependents_start();
    dependency_wait();
    if (block_z() >= smaller(at<struct step_head>(args.step)->item_count, args.item_count)) return;
    const uint32_t kv_head = block_y(), dimension = args.shape.k_dimension, tokens = args.page_tokens;
    const struct step_item *item = at<struct step_item>(args.items) + block_z();
    const struct new_rows rows = new_rows_of(item, args.rows);
    const uint32_t chunk = rows.begin / KV_CHUNK_TOKENS + block_x();
    if (chunk * KV_CHUNK_TOKENS >= rows.end) return;
    const struct new_rows own = rows_within(rows, chunk);
    const uint32_t page_first = own.begin / tokens, page_end = (own.end + tokens - 1) / tokens;
    const struct cuda_pools *pools = at<struct cuda_pools>(args.pools);
    const char *keys = chunk_at(pools, head_places(item, args.layer_pages, kv_head)[chunk]);
    char *pages = (char *)chunk_at(pools, index_places(item, kv_head)[chunk]) + args.offset;
    for (uint32_t n = thread_index(); n < (page_end - page_first) * dimension; n += 256) {
        const uint32_t page = page_first + n / dimension, i = n % dimension;
        const struct spread spread =
            spread_of(args.shape, keys, page * tokens, smaller(page * tokens + tokens, own.end), i);
        uint16_t *pair = (uint16_t *)(void *)pages + page * 2 * dimension;
        pair[i] = (uint16_t)spread.mean;
        pair[dimension + i] = (uint16_t)spread.deviation;
    }
}

/* ---- trees */

/* Where coordinate i of a box is. */
DEVICE uint16_t *box_at(const struct cuda_tree_build_args &args, char *block, uint32_t level, uint32_t node,
                        uint32_t i) {
    return (uint16_t *)(void *)(block + args.offset[level]) + node * 2 * args.shape.k_dimension + i;
}

/* An integer in the order of halves; what is no number is the greatest. */
DEVICE int32_t half_rank(uint16_t half) {
    if ((half & 0x7fffu) > 0x7c00u) return 0x7fff;
    return (int32_t)(int16_t)(half ^ (half >> 15 ? 0x7fffu : 0));
}

/* The box grows around another one: of coordinate i. */
DEVICE void box_grow(uint16_t *box, const uint16_t *other, uint32_t dimension) {
    if (half_rank(other[0]) < half_rank(box[0])) box[0] = other[0];
    if (half_rank(other[dimension]) > half_rank(box[dimension])) box[dimension] = other[dimension];
}

/* Coordinate i of a chunk's boxes that have new rows. */
DEVICE void chunk_boxes(const struct cuda_tree_build_args &args, const char *keys, char *block,
                        const struct new_rows &own, uint32_t i) {
    const uint32_t dimension = args.shape.k_dimension;
    uint32_t tokens = 8u << args.leaf;
    for (uint32_t leaf = own.begin / tokens; leaf * tokens < own.end; leaf++) {
        const struct spread spread =
            spread_of(args.shape, keys, leaf * tokens, smaller(leaf * tokens + tokens, own.end), i);
        const float mean = half_value(spread.mean), deviation = half_value(spread.deviation);
        uint16_t *box = box_at(args, block, args.leaf, leaf, i);
        box[0] = (uint16_t)half_of(mean - deviation);
        box[dimension] = (uint16_t)half_of(mean + deviation);
    }
    for (uint32_t level = args.leaf; level < TREE_CHUNK_LEVEL; level++, tokens *= 2)
        for (uint32_t node = own.begin / (2 * tokens); 2 * node * tokens < own.end; node++) {
            const uint16_t *child = box_at(args, block, level, 2 * node, i);
            uint16_t *box = box_at(args, block, level + 1, node, i);
            box[0] = child[0], box[dimension] = child[dimension];
            if ((2 * node + 1) * tokens < own.end)
                box_grow(box, box_at(args, block, level, 2 * node + 1, i), dimension);
        }
}

/* A thread has a coordinate in all boxes, chunk by chunk, so that none waits for another: what a run is around, and
 * was there before, an earlier launch has written. */
KERNEL(tree_build, cuda_tree_build_args, 128, 4) {
    dependents_start();
    dependency_wait();
    if (block_z() >= smaller(at<struct step_head>(args.step)->item_count, args.item_count)) return;
    const uint32_t kv_head = block_y(), dimension = args.shape.k_dimension;
    const struct step_item *item = at<struct step_item>(args.items) + block_z();
    const struct cuda_pools *pools = at<struct cuda_pools>(args.pools);
    const uint32_t *places = head_places(item, args.layer_pages, kv_head),
                   *blocks = index_places(item, kv_head);
    const struct new_rows rows = new_rows_of(item, args.rows);
    const uint32_t run = (rows.begin / (TREE_RUN_LENGTH * KV_CHUNK_TOKENS) + block_x()) * TREE_RUN_LENGTH;
    for (uint32_t i = thread_index(); i < dimension; i += 128) {
        for (uint32_t chunk = run; chunk < run + TREE_RUN_LENGTH; chunk++) {
            if (chunk * KV_CHUNK_TOKENS >= rows.end || (chunk + 1) * KV_CHUNK_TOKENS <= rows.begin) continue;
            chunk_boxes(args, chunk_at(pools, places[chunk]), (char *)chunk_at(pools, blocks[chunk]),
                        rows_within(rows, chunk), i);
        }
        const uint32_t end = (run + TREE_RUN_LENGTH) * KV_CHUNK_TOKENS;
        if (args.has_runs == 0 || end > rows.end) continue;
        uint16_t *box = box_at(args, (char *)chunk_at(pools, blocks[run + TREE_RUN_LENGTH - 1]),
                               TREE_CHUNK_LEVEL + 1, 0, i);
        for (uint32_t n = 0; n < TREE_RUN_LENGTH; n++) {
            const uint16_t *child =
                box_at(args, (char *)chunk_at(pools, blocks[run + n]), TREE_CHUNK_LEVEL, 0, i);
            if (n == 0) box[0] = child[0], box[dimension] = child[dimension];
            if (n > 0) box_grow(box, child, dimension);
        }
    }
}

/* ---- scores */

enum { LANE_PAGES = 8, LANE_SUMS = SPREAD_HEADS * LANE_PAGES };

/* What the two numbers of a coordinate are multiplied by: with a mean and a deviation the query's and its magnitude;
 * with a box its part below 0 and the one above. */
struct pair {
    float first, second;
};
DEVICE struct pair pair_of(float q, bool is_box) {
    if (!is_box) return {q, magnitude(q)};
    return {q > 0 ? 0 : q, q > 0 ? q : 0}; /* what is no number stays in one of them */
}

/* Of each head, or the sum of the group's. */
DEVICE void pairs_make(const struct cuda_spread_score_args &args, const float *q, float *pairs) {
    const uint32_t dimension = args.dimension,
                   padded = (args.group + SPREAD_HEADS - 1) / SPREAD_HEADS * SPREAD_HEADS;
    const bool adds = args.aggregate == SPREAD_TOGETHER;
    for (uint32_t n = thread_index(); n < padded * dimension; n += 256) {
        const uint32_t head = n / dimension, i = n % dimension;
        struct pair own = pair_of(head < args.group ? q[n] : 0, args.is_box);
        for (uint32_t h = 1; adds && head == 0 && h < args.group; h++) {
            const struct pair other = pair_of(q[h * dimension + i], args.is_box);
            own.first += other.first, own.second += other.second;
        }
        pairs[head * 2 * dimension + i] = own.first;
        pairs[head * 2 * dimension + dimension + i] = own.second;
    }
    block_barrier();
}

/* Products of 8 coordinates of up to 8 pages, from page `first` on, with four heads. */
DEVICE void pages_add(const struct cuda_spread_score_args &args, const struct cuda_pools *pools,
                      const uint32_t *places, uint32_t first, uint32_t end, uint32_t column,
                      const float *pairs, float sums[LANE_SUMS]) {
    const uint32_t columns = 2 * args.dimension, chunk_pages = KV_CHUNK_TOKENS / args.page_tokens;
    float x[SPREAD_HEADS][8];
    UNROLL
    for (uint32_t h = 0; h < SPREAD_HEADS; h++) {
        const struct f32x4 *from = (const struct f32x4 *)(const void *)(pairs + h * columns + column);
        const struct f32x4 a = from[0], b = from[1];
        x[h][0] = a.x, x[h][1] = a.y, x[h][2] = a.z, x[h][3] = a.w;
        x[h][4] = b.x, x[h][5] = b.y, x[h][6] = b.z, x[h][7] = b.w;
    }
    UNROLL
    for (uint32_t p = 0; p < LANE_PAGES; p++) {
        const uint32_t page = first + p;
        if (page >= end) continue;
        const char *block = chunk_at(pools, places[page / chunk_pages]) + args.offset;
        const struct u32x4 bits = load16_written(block + (page % chunk_pages * columns + column) * 2);
        const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            const float element = half_value(i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16);
            UNROLL
            for (uint32_t h = 0; h < SPREAD_HEADS; h++)
                sums[h * LANE_PAGES + p] = multiply_add(x[h][i], element, sums[h * LANE_PAGES + p]);
        }
    }
}

/* Lane n has the sum of sums[n] over all lanes. */
DEVICE float lanes_add(float sums[LANE_SUMS]) {
    UNROLL
    for (uint32_t by = LANE_SUMS / 2; by > 0; by >>= 1) {
        const bool is_upper = (lane_index() & by) != 0;
        UNROLL
        for (uint32_t i = 0; i < by; i++) {
            /* of values: choosing between two places keeps all sums in memory */
            const float low = sums[i], high = sums[by + i];
            const float kept = is_upper ? high : low, given = is_upper ? low : high;
            sums[i] = kept + lane_xor(given, by);
        }
    }
    return sums[0];
}

/* What is no number is the greatest. */
DEVICE float greatest(float a, float b) { return a > b || a != a ? a : b; }

KERNEL(spread_score, cuda_spread_score_args, 256, 2) {
    float *pairs = SHARED_ARRAY(float);
    const uint32_t kv_head = block_y(), row = block_z(), lane = lane_index(), dimension = args.dimension;
    dependents_start();
    dependency_wait();
    if (row >= step_rows(args.step, args.row_count)) return;
    const struct step_item *item =
        at<struct step_item>(args.items) + at<struct step_row>(args.rows)[row].item;
    const struct cuda_list list = list_at(args.lists, args.limits, row * args.kv_head_count + kv_head);
    const uint32_t end = list.end / args.page_tokens, parts = args.unit_tokens / args.page_tokens;
    if (block_x() * SPREAD_PAGES >= end || list.picks == 0) return;
    const uint64_t kv_row = (uint64_t)row * args.kv_head_count + kv_head;
    pairs_make(args, at<float>(args.q) + (uint64_t)row * args.q_stride + kv_head * args.group * dimension,
               pairs);
    const uint32_t first = block_x() * SPREAD_PAGES + thread_index() / 32 * LANE_PAGES;
    const uint32_t page = first + lane % LANE_PAGES, unit = page / parts;
    if (first >= end) return;
    const bool is_unit = page % parts == 0 && page < end && page * args.page_tokens >= list.begin;
    const uint32_t heads = args.aggregate == SPREAD_TOGETHER ? 1 : args.group;
    float best = -__builtin_inff();
    for (uint32_t h = 0; h < heads; h += SPREAD_HEADS) {
        float sums[LANE_SUMS];
        UNROLL
        for (uint32_t i = 0; i < LANE_SUMS; i++) sums[i] = 0;
        for (uint32_t column = lane * 8; column < 2 * dimension; column += 256)
            pages_add(args, at<struct cuda_pools>(args.pools), index_places(item, kv_head), first, end,
                      column, pairs + h * 2 * dimension, sums);
        const uint32_t head = h + lane / LANE_PAGES;
        float score = lanes_add(sums) * args.factor;
        for (uint32_t by = 1; by < parts; by <<= 1) score = greatest(score, lane_xor(score, by));
        if (args.aggregate == SPREAD_APART) {
            if (is_unit && head < heads)
                at<float>(args.scores)[(kv_row * args.group + head) * args.unit_stride + unit] = score;
            continue;
        }
        if (head < heads) best = greatest(best, score);
    }
    if (args.aggregate == SPREAD_APART) return;
    for (uint32_t by = LANE_PAGES; by < 32; by <<= 1) best = greatest(best, lane_xor(best, by));
    if (is_unit && lane < LANE_PAGES) at<float>(args.scores)[kv_row * args.unit_stride + unit] = best;
}

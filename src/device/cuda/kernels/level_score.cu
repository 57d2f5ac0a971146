/* level_score: the scores of units of 8 to 64 tokens, their best tokens', by the codes of their keys.  A warp has a
 * chunk, a lane two of its tokens; codes are read once for all heads of a group.  Bound by memory at up to
 * four heads: some 50 instructions a token and head against dimension / 8 + 2 bytes. */
#include "device/cuda/attention_rows.h"
#include "device/cuda/kv_places.h"
#include "device/cuda/rows.h"
#include "kernels/attention/kv_layout.h"

struct level_query_head { /* struct level_query of kernels/level: behind it floats and bytes */
    float step, offset;
};

/* ---- queries */

KERNEL(level_query, cuda_level_query_args, 128, 4) {
    float *x = SHARED_ARRAY(float);
    dependents_start();
    dependency_wait();
    const uint32_t head = block_x(), row = block_y(), dimension = args.k_dimension, lane = lane_index();
    if (row >= step_rows(args.step, args.row_count)) return;
    const float *q = at<float>(args.q) + (uint64_t)row * args.q_stride + head * dimension;
    const uint16_t *rotation =
        at<uint16_t>(args.rotation) + (uint64_t)(head / args.group) * dimension * dimension;
    char *query = at<char>(args.queries) + ((uint64_t)row * args.head_count + head) * args.query_bytes;
    float *floats = (float *)(void *)(query + sizeof(struct level_query_head));
    int8_t *integers = (int8_t *)(floats + dimension);
    for (uint32_t j = thread_index(); j < dimension; j += 128) {
        float sum = 0;
        for (uint32_t i = 0; i < dimension; i++)
            sum = multiply_add(q[i], half_value(rotation[i * dimension + j]), sum);
        x[j] = sum;
        floats[j] = sum;
    }
    block_barrier();
    if (thread_index() >= 32) return;
    uint32_t largest = 0;
    for (uint32_t j = lane; j < dimension; j += 32) {
        const uint32_t bits = float_bits(x[j]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    largest = warp_largest(largest);
    const float greatest = bits_float(largest);
    const float inverse = largest > 0 && largest < FLOAT_INFINITE ? 127 / greatest : 0;
    float sum = 0; /* exact: integers below 2^24 */
    for (uint32_t j = lane; j < dimension; j += 32) {
        const float code = inverse > 0 ? __builtin_rintf(x[j] * inverse) : 0;
        integers[j] = (int8_t)code;
        sum += code;
    }
    sum = warp_sum(sum);
    if (lane != 0) return;
    const float step = greatest / 127;
    *(struct level_query_head *)(void *)query = {step, step * ((float)((1 << args.planes) - 1) * sum)};
}

/* ---- scores */

/* The sums of numbers times the query's bytes, of two tokens and HEADS heads. */
template <int PLANES, int HEADS>
DEVICE void numbers_sum(const uint32_t *codes, const char *queries, uint32_t query_bytes, uint32_t dimension,
                        int32_t sums[HEADS][2]) {
    enum { FIELDS = 8 / PLANES };
    const uint32_t mask = ((1u << PLANES) - 1) * 0x01010101u;
    UNROLL
    for (uint32_t h = 0; h < HEADS; h++) sums[h][0] = sums[h][1] = 0;
    for (uint32_t w = 0; w < dimension * PLANES / 32; w++) {
        const uint32_t first = codes[w * KV_CHUNK_TOKENS + lane_index()],
                       second = codes[w * KV_CHUNK_TOKENS + 32 + lane_index()];
        UNROLL
        for (uint32_t i = 0; i < FIELDS; i++) {
            const uint32_t a = first >> i * PLANES & mask, b = second >> i * PLANES & mask;
            UNROLL
            for (uint32_t h = 0; h < HEADS; h++) {
                const uint32_t x =
                    ((const uint32_t *)(const void *)(queries + h * query_bytes))[w * FIELDS + i];
                sums[h][0] = dot4(a, x, sums[h][0]);
                sums[h][1] = dot4(b, x, sums[h][1]);
            }
        }
    }
}

/* The best of so many neighbour lanes, or of all. */
DEVICE float lanes_best(float score, uint32_t count) {
    for (uint32_t by = 1; by < count && by < 32; by <<= 1) score = larger(score, lane_xor(score, by));
    return score;
}

template <int PLANES, int HEADS>
DEVICE void chunk_score(const struct cuda_level_score_args &args, const char *index, const char *queries,
                        uint32_t chunk, uint32_t head_count, const struct cuda_list &list, float *scores) {
    const uint32_t lane = lane_index(), tail = (uint32_t)sizeof(struct level_query_head) + args.dimension * 4;
    const uint16_t *factors = (const uint16_t *)(const void *)(index + args.factors_offset),
                   *center = (const uint16_t *)(const void *)(index + args.center_offset);
    const float factor = args.scale * 1.44269504f,
                f[2] = {half_value(factors[lane]), half_value(factors[lane + 32])};
    int32_t sums[HEADS][2];
    numbers_sum<PLANES, HEADS>((const uint32_t *)(const void *)index, queries + tail, args.query_bytes,
                               args.dimension, sums);
    UNROLL
    for (uint32_t h = 0; h < HEADS; h++) {
        const char *query = queries + h * args.query_bytes;
        const struct level_query_head *numbers = (const struct level_query_head *)(const void *)query;
        const float *floats = (const float *)(const void *)(query + sizeof *numbers);
        float common = 0;
        for (uint32_t j = lane; j < args.dimension; j += 32)
            common = multiply_add(floats[j], half_value(center[j]), common);
        common = warp_sum(common);
        float best[2];
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const float own = 2 * numbers->step * (float)sums[h][i] - numbers->offset;
            best[i] = lanes_best(factor * multiply_add(f[i], own, common), args.unit_tokens);
        }
        if (args.unit_tokens == KV_CHUNK_TOKENS) best[0] = larger(best[0], best[1]);
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t token = chunk * KV_CHUNK_TOKENS + i * 32 + lane;
            if (h >= head_count || token % args.unit_tokens != 0) continue;
            scores[(uint64_t)h * args.unit_stride + token / args.unit_tokens] =
                token >= list.begin && token < list.end ? best[i] : SCORE_NONE;
        }
    }
}

template <int PLANES> DEVICE void level_score_run(const struct cuda_level_score_args &args) {
    enum { HEADS = 4 };
    char *queries = SHARED_ARRAY(char);
    const uint32_t kv_head = block_y(), row = block_z();
    dependents_start();
    dependency_wait();
    if (row >= step_rows(args.step, args.row_count)) return;
    const struct step_row step_row = at<struct step_row>(args.rows)[row];
    const struct step_item *item = at<struct step_item>(args.items) + step_row.item;
    const struct cuda_list list = list_at(args.lists, args.limits, row * args.kv_head_count + kv_head);
    const uint32_t chunk = block_x() * 8 + thread_index() / 32;
    if (block_x() * 8 * KV_CHUNK_TOKENS >= list.end || list.picks == 0) return;
    const uint64_t head_first = (uint64_t)row * args.kv_head_count * args.group + kv_head * args.group;
    const uint32_t *from = (const uint32_t *)(at<char>(args.queries) + head_first * args.query_bytes);
    const uint32_t padded = (args.group + HEADS - 1) / HEADS * HEADS;
    for (uint32_t i = thread_index(); i < padded * args.query_bytes / 4; i += 256)
        ((uint32_t *)(void *)queries)[i] = i < args.group * args.query_bytes / 4 ? from[i] : 0;
    block_barrier();
    if (chunk * KV_CHUNK_TOKENS >= list.end) return;
    const char *index = chunk_at(at<struct cuda_pools>(args.pools), index_places(item, kv_head)[chunk]);
    for (uint32_t h = 0; h < args.group; h += HEADS)
        chunk_score<PLANES, HEADS>(args, index, queries + h * args.query_bytes, chunk,
                                   smaller(args.group - h, HEADS), list,
                                   at<float>(args.scores) + (head_first + h) * args.unit_stride);
}

KERNEL(level_score_1, cuda_level_score_args, 256, 2) { level_score_run<1>(args); }
KERNEL(level_score_2, cuda_level_score_args, 256, 2) { level_score_run<2>(args); }
KERNEL(level_score_4, cuda_level_score_args, 256, 2) { level_score_run<4>(args); }

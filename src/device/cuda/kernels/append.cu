/* append: K and V of a step's rows into their chunks, in the type of the cache; and the same behind the norm
 * of heads and the rotation, as one node of a decode step. */
#include "device/cuda/kv_store.h"

KERNEL(append, cuda_append_args, 128, 8) {
    dependents_start();
    dependency_wait();
    const uint32_t row = block_x(), kv_head = block_y();
    if (row >= step_rows(args.step, args.row_count)) return;
    const struct step_row step_row = at<struct step_row>(args.rows)[row];
    const struct row_bytes to = row_bytes_of(args.shape, at<struct cuda_pools>(args.pools),
                                             at<struct step_item>(args.items) + step_row.item,
                                             args.layer_pages, kv_head, step_row.position);
    row_store(args.shape, to,
              at<float>(args.k) + (uint64_t)row * args.k_stride + kv_head * args.shape.k_dimension,
              at<float>(args.v) + (uint64_t)row * args.v_stride + kv_head * args.shape.v_dimension);
}

/* ---- the node of a decode step */

/* A head's elements, normed if w is not 0, into shared memory; in the order of norm_heads. */
DEVICE void head_load(const float *x, const float *w, float epsilon, uint32_t count, float *head) {
    const uint32_t lane = lane_index();
    float inverse = 1;
    if (w != 0) { /* each warp for itself */
        float sum = 0;
        for (uint32_t i = lane; i < count; i += 32) sum = multiply_add(x[i], x[i], sum);
        inverse = 1.0f / __builtin_sqrtf(warp_sum(sum) / (float)count + epsilon);
    }
    for (uint32_t i = thread_index(); i < count; i += 128) head[i] = w != 0 ? x[i] * inverse * w[i] : x[i];
}

/* Pairs of the head, rotated in place; the rest stays. */
DEVICE void head_turn(const struct cuda_rope_append_args &args, uint32_t row, float *head) {
    const struct f32x2 *turns = at<struct f32x2>(args.cosine_sine) + (uint64_t)row * args.pair_count;
    for (uint32_t j = thread_index(); j < args.pair_count; j += 128) {
        const uint32_t first = args.split ? j : 2 * j, second = args.split ? j + args.pair_count : 2 * j + 1;
        const float a = head[first], b = head[second];
        head[first] = a * turns[j].x - b * turns[j].y;
        head[second] = a * turns[j].y + b * turns[j].x;
    }
}

KERNEL(rope_append, cuda_rope_append_args, 128, 8) {
    struct rope_append_shared &shared = SHARED(struct rope_append_shared);
    dependents_start();
    dependency_wait();
    const uint32_t row = block_x(), dimension = args.shape.k_dimension;
    if (row >= step_rows(args.step, args.row_count)) return;
    const bool is_query = block_y() < args.head_count;
    const uint32_t head = is_query ? block_y() : block_y() - args.head_count;
    float *q = at<float>(args.q) + (uint64_t)row * args.q_stride + head * dimension;
    const float *k = at<float>(args.k) + (uint64_t)row * args.k_stride + head * dimension;
    head_load(is_query ? q : k, at<float>(is_query ? args.q_norm : args.k_norm), args.epsilon, dimension,
              shared.head);
    block_barrier();
    head_turn(args, row, shared.head);
    block_barrier();
    if (is_query) {
        for (uint32_t i = thread_index(); i < dimension; i += 128) q[i] = shared.head[i];
        return;
    }
    const struct step_row step_row = at<struct step_row>(args.rows)[row];
    const struct row_bytes to = row_bytes_of(args.shape, at<struct cuda_pools>(args.pools),
                                             at<struct step_item>(args.items) + step_row.item,
                                             args.layer_pages, head, step_row.position);
    row_store(args.shape, to, shared.head,
              at<float>(args.v) + (uint64_t)row * args.v_stride + head * args.shape.v_dimension);
}

/* append: K and V of a step's rows into their chunks, in the type of the cache.  Four warps take groups of 32
 * elements in turn. */
#include "device/cuda/kv_places.h"
#include "device/cuda/rows.h"

/* 32 elements of a row (fewer at the end of a row of halves), a lane each. */
DEVICE void group_store(uint32_t type, char *row, char *scales, uint32_t group, uint32_t dimension,
                        const float *x) {
    const uint32_t i = group * KV_SCALE_GROUP + lane_index();
    const float v = i < dimension ? x[i] : 0;
    if (type == KV_F16) {
        if (i < dimension) ((uint16_t *)(void *)row)[i] = (uint16_t)half_of(v);
        return;
    }
    const uint32_t largest = warp_largest(float_bits(v) & 0x7fffffffu);
    /* What is not finite has no code and makes the scale NaN. */
    const float step = largest >= FLOAT_INFINITE ? bits_float(0x7fffffffu) : bits_float(largest) / 127.0f;
    const uint32_t stored = half_of(step);
    const float scale = half_value(stored),
                inverse = scale > 0 ? 1.0f / scale : 0.0f; /* by the scale as stored */
    const float code = __builtin_rintf(v * inverse);
    ((int8_t *)row)[i] = (int8_t)(code > 127 ? 127 : code < -127 ? -127 : code == code ? code : 0);
    if (lane_index() == 0) ((uint16_t *)(void *)scales)[group] = (uint16_t)stored;
}

DEVICE void row_append(const struct cuda_append_args &args, uint32_t row, uint32_t kv_head) {
    const struct kv_shape &shape = args.shape;
    const struct step_row at_row = at<struct step_row>(args.rows)[row];
    const struct step_item *item = at<struct step_item>(args.items) + at_row.item;
    const uint32_t chunk = (uint32_t)(at_row.position / KV_CHUNK_TOKENS),
                   token = at_row.position % KV_CHUNK_TOKENS;
    char *block = (char *)chunk_at(at<struct kv_pools>(args.pools),
                                   head_places(item, args.layer_pages, kv_head)[chunk]) +
                  token / KV_BLOCK_TOKENS * shape.block_bytes;
    const uint32_t in_block = token % KV_BLOCK_TOKENS;
    const uint32_t k_groups = (shape.k_dimension + 31) / 32, v_groups = (shape.v_dimension + 31) / 32;
    const float *k = at<float>(args.k) + (uint64_t)row * args.k_stride + kv_head * shape.k_dimension;
    const float *v = at<float>(args.v) + (uint64_t)row * args.v_stride + kv_head * shape.v_dimension;
    for (uint32_t group = thread_index() / 32; group < k_groups + v_groups; group += 4) {
        if (group < k_groups)
            group_store(shape.k_type, block + in_block * shape.k_row_bytes,
                        block + shape.k_scales_offset + in_block * (shape.k_dimension / 32) * 2, group,
                        shape.k_dimension, k);
        else
            group_store(shape.v_type, block + shape.v_offset + in_block * shape.v_row_bytes,
                        block + shape.v_scales_offset + in_block * (shape.v_dimension / 32) * 2,
                        group - k_groups, shape.v_dimension, v);
    }
}

KERNEL(append, cuda_append_args, 128, 8) {
    dependents_start();
    dependency_wait();
    if (block_x() >= step_rows(args.step, args.row_count)) return;
    row_append(args, block_x(), block_y());
}

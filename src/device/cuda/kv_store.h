/* kv_store: elements of a row of K or V into a chunk, in the type of the cache. */
#pragma once

#include "device/cuda/kv_places.h"
#include "device/cuda/rows.h"

/* 32 elements of a row (fewer at the end of a row of halves), a lane each. */
DEVICE void group_store(uint32_t type, char *row, char *scales, uint32_t group, uint32_t dimension, const float *x) {
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
    const float scale = half_value(stored), inverse = scale > 0 ? 1.0f / scale : 0.0f; /* by the scale as stored */
    const float code = __builtin_rintf(v * inverse);
    ((int8_t *)row)[i] = (int8_t)(code > 127 ? 127 : code < -127 ? -127 : code == code ? code : 0);
    if (lane_index() == 0) ((uint16_t *)(void *)scales)[group] = (uint16_t)stored;
}

/* Where a row's K and V go. */
struct row_bytes {
    char *k, *k_scales, *v, *v_scales;
};
DEVICE struct row_bytes row_bytes_of(const struct kv_shape &shape, const struct cuda_pools *pools,
                                     const struct step_item *item, uint64_t layer_pages, uint32_t kv_head,
                                     uint64_t position) {
    const uint32_t token = position % KV_CHUNK_TOKENS, in_block = token % KV_BLOCK_TOKENS;
    const uint32_t place = head_places(item, layer_pages, kv_head)[position / KV_CHUNK_TOKENS];
    char *block = (char *)chunk_at(pools, place) + token / KV_BLOCK_TOKENS * shape.block_bytes;
    return {block + in_block * shape.k_row_bytes,
            block + shape.k_scales_offset + in_block * (shape.k_dimension / 32) * 2,
            block + shape.v_offset + in_block * shape.v_row_bytes,
            block + shape.v_scales_offset + in_block * (shape.v_dimension / 32) * 2};
}

/* By four warps, which take groups of 32 elements in turn. */
DEVICE void row_store(const struct kv_shape &shape, const struct row_bytes &to, const float *k, const float *v) {
    const uint32_t k_groups = (shape.k_dimension + 31) / 32, v_groups = (shape.v_dimension + 31) / 32;
    for (uint32_t group = thread_index() / 32; group < k_groups + v_groups; group += 4) {
        if (group < k_groups)
            group_store(shape.k_type, to.k, to.k_scales, group, shape.k_dimension, k);
        else
            group_store(shape.v_type, to.v, to.v_scales, group - k_groups, shape.v_dimension, v);
    }
}

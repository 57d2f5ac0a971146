/* attention_internal: what the variants of attention share. */
#pragma once

#include "kernels/attention/attention.h"

/* The fallback of faster stores, for rows that are not halves. */
void attention_store_ref(const struct kv_layout *layout, void *chunk, size_t token, const float *k, const float *v);

KERNEL_VARIANTS(attention, attention_decode);
KERNEL_VARIANTS(attention, attention_gather);
KERNEL_VARIANTS(attention, attention_gather_q4);
KERNEL_VARIANTS(attention, attention_prefill);
KERNEL_VARIANTS(attention, attention_store);
void attention_prefill_amx_install(struct attention_kernels *kernels);

/* The scales of a Q8 row: dimension / KV_SCALE_GROUP halves. */
static inline const uint16_t *kv_k_scales(const struct kv_layout *layout, const void *chunk, size_t token) {
    const void *scales = kv_block(layout, chunk, token) + layout->k_scales_offset;
    return (const uint16_t *)scales + token % KV_BLOCK_TOKENS * (layout->k_dimension / KV_SCALE_GROUP);
}
static inline const uint16_t *kv_v_scales(const struct kv_layout *layout, const void *chunk, size_t token) {
    const void *scales = kv_block(layout, chunk, token) + layout->v_scales_offset;
    return (const uint16_t *)scales + token % KV_BLOCK_TOKENS * (layout->v_dimension / KV_SCALE_GROUP);
}

/* The first row that the query at `position` sees. */
static inline uint64_t prefill_row_begin(uint64_t position, uint64_t window) {
    return window == 0 || window > position ? 0 : position + 1 - window;
}

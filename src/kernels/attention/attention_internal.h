/* attention_internal: what the variants of attention share. */
#pragma once

#include "kernels/attention/attention.h"

/* Each overwrites the entries that it improves. */
void attention_ref_install(struct attention_kernels *kernels);
void attention_decode_avx2_install(struct attention_kernels *kernels);
void attention_prefill_avx2_install(struct attention_kernels *kernels);
void attention_decode_avx512_install(struct attention_kernels *kernels);
void attention_prefill_avx512_install(struct attention_kernels *kernels);
void attention_prefill_amx_install(struct attention_kernels *kernels);
void attention_store_avx2_install(struct attention_kernels *kernels);
void attention_store_neon_install(struct attention_kernels *kernels);
void attention_decode_neon_install(struct attention_kernels *kernels);
void attention_prefill_neon_install(struct attention_kernels *kernels);
void attention_gather_neon_install(struct attention_kernels *kernels);
void attention_gather_avx2_install(struct attention_kernels *kernels);
void attention_gather_avx512_install(struct attention_kernels *kernels);
void attention_gather_q4_avx2_install(struct attention_kernels *kernels);
void attention_gather_q4_avx512_install(struct attention_kernels *kernels);
void attention_gather_q4_neon_install(struct attention_kernels *kernels);

/* The fallback of faster stores, for rows that are not halves. */
void attention_store_ref(const struct kv_layout *layout, void *chunk, size_t token, const float *k, const float *v);

/* The fallback of wider decode, prefill and gather, for rows that are not multiples of their registers. */
void attention_prefill_avx2(const struct attention_prefill_args *args);
size_t attention_prefill_avx2_scratch_bytes(size_t group, const struct kv_layout *layout);
void attention_decode_avx2(const struct attention_decode_args *args);
void attention_gather_avx2(const struct attention_gather_args *args);
void attention_gather_q4_avx2(const struct attention_gather_args *args);

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

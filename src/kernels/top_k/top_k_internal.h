/* top_k_internal: what the variants of top_k share. */
#pragma once

#include "kernels/top_k/top_k.h"
#include "tensor/half.h"

/* Exact for all inputs, digit by digit: the fallback of the others.  Needs TOP_K_REF_SCRATCH_BYTES of scratch. */
enum { TOP_K_REF_SCRATCH_BYTES = 256 * sizeof(size_t) };
void top_k_ref(const struct top_k_args *args);

/* Maps scores to unsigned integers of the same order. */
static inline uint32_t top_k_key(float score) {
    uint32_t bits = float_to_bits(score + 0.0f); /* -0 becomes +0 */
    if ((bits & 0x7fffffffu) > 0x7f800000u) return UINT32_MAX;
    return bits ^ ((bits >> 31) != 0 ? UINT32_MAX : 0x80000000u);
}

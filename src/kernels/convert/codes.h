/* codes: the bit fields inside quantised blocks that more than one kernel must read.
 * Source: the GGUF format documentation; the layouts of the blocks are in tensor/block.h. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tensor/block.h"
#include "tensor/half.h"

/* The 16 levels of IQ4_NL and IQ4_XS, by code. */
static const int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* The 16 levels of MXFP4 and NVFP4, twice E2M1's values; the second 0 is -0 there. */
static const int8_t fp4_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* MXFP4: half of the power of two that E8M0 says; below 2^-126 a subnormal. */
static inline float mxfp4_scale_get(uint8_t e) {
    return bits_to_float(e < 2 ? (uint32_t)0x00200000 << e : (uint32_t)(e - 1) << 23);
}

/* NVFP4: half of what E4M3 without a sign says; 0x7f is no number there and 0 here, as in ggml. */
static inline float nvfp4_scale_get(uint8_t scale) {
    const uint32_t exponent = scale >> 3 & 15, mantissa = scale & 7;
    if (scale == 0x7f) return 0;
    if (exponent == 0) return (float)mantissa * 0x1p-10f;
    return bits_to_float((exponent + 127 - 8) << 23 | mantissa << 20);
}

/* Q4_K and Q5_K: the 6-bit scale and minimum of group j (0..7) from the 12 packed bytes. */
static inline void q4_k_scale_get(const uint8_t scales[12], size_t j, uint8_t *scale, uint8_t *minimum) {
    if (j < 4) {
        *scale = scales[j] & 63;
        *minimum = scales[j + 4] & 63;
    } else {
        *scale = (uint8_t)((scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4);
        *minimum = (uint8_t)(scales[j + 4] >> 4 | (scales[j] >> 6) << 4);
    }
}

/* Q3_K: the scale of group j (0..15), -32..31, from the 12 packed bytes. */
static inline int q3_k_scale_get(const uint8_t scales[12], size_t j) {
    int low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4;
    int high = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
    return (low | high << 4) - 32;
}

/* IQ4_XS: the scale of group j (0..7), -32..31. */
static inline int iq4_xs_scale_get(const struct block_iq4_xs *block, size_t j) {
    int low = block->scales_l[j / 2] >> (4 * (j % 2)) & 15;
    int high = block->scales_h >> (2 * j) & 3;
    return (low | high << 4) - 32;
}

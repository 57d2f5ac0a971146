/* codes: the bit fields inside quantised blocks that more than one kernel must read.
 * Source: the GGUF format documentation; the layouts of the blocks are in tensor/block.h. */
#ifndef LOAM_KERNELS_CONVERT_CODES_H
#define LOAM_KERNELS_CONVERT_CODES_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/block.h"

/* The 16 levels of IQ4_NL and IQ4_XS, by code. */
static const int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

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

#endif

/* grid: the types whose codes number points of a grid (IQ1, IQ2, IQ3), as signed bytes with whole scales.
 *
 *     value i of a block = d · scales[i / 16] · codes[i]
 *
 * A point is 8 elements (of IQ3 4), each one of a few levels.  The tables say which level an element has (2 bits each;
 * of IQ3 3); the levels and all factors that are powers of two are in codes, scales and d, so that whole numbers are
 * exact: |codes| <= 62, scales odd and below 32, |scales · codes| < 2^11. */
#pragma once

#include <stdint.h>

#include "tensor/block.h"
#include "tensor/type.h"

extern const uint16_t grid_iq2_xxs[256], grid_iq2_xs[512], grid_iq2_s[1024], grid_iq1[2048];
extern const uint16_t grid_iq3_xxs[256], grid_iq3_s[512];

/* X(name, NAME of its enum tensor_type) of each type; a block of it is a struct block_name. */
#define GRID_TYPES(X) \
    X(iq1_s, IQ1_S)   \
    X(iq1_m, IQ1_M) X(iq2_xxs, IQ2_XXS) X(iq2_xs, IQ2_XS) X(iq2_s, IQ2_S) X(iq3_xxs, IQ3_XXS) X(iq3_s, IQ3_S)

struct grid_block {
    _Alignas(32) int8_t codes[BLOCK_256];
    int16_t scales[BLOCK_256 / 16];
    float d;
};

/* A block of the file, of any alignment. */
typedef void grid_unpack(const uint8_t *block, struct grid_block *target);

/* NULL: no such type. */
grid_unpack *grid_unpack_find(enum tensor_type type);

/* The same blocks on AVX2 (with BMI2). */
grid_unpack iq1_s_unpack_avx2, iq1_m_unpack_avx2, iq2_xxs_unpack_avx2, iq2_xs_unpack_avx2, iq2_s_unpack_avx2,
    iq3_xxs_unpack_avx2, iq3_s_unpack_avx2;

/* --- what both share: the numbers around the points --------------------------------------- */

/* Four times 7 signs with their parities: bit i of byte j is the sign of element 8j + i. */
static inline uint32_t grid_signs_get(uint32_t word) {
    const uint32_t seven = (word & 0x7f) | (word & 0x3f80) << 1 | (word & 0x1fc000) << 2 | (word & 0xfe00000) << 3;
    uint32_t odd = seven ^ (seven >> 4 & 0x0f0f0f0f);
    odd ^= odd >> 2 & 0x3f3f3f3f;
    odd ^= odd >> 1 & 0x7f7f7f7f;
    return seven | (odd & 0x01010101) << 7;
}

/* IQ1_M: d from the four quarters. */
static inline uint16_t iq1_m_half_get(const uint16_t scales[4]) {
    return (uint16_t)(scales[0] >> 12 | (scales[1] >> 8 & 0x00f0) | (scales[2] >> 4 & 0x0f00) | (scales[3] & 0xf000));
}

/* kv_pack: rows of a chunk as registers of eight floats, and their transposition. */
#ifndef LOAM_KERNELS_ATTENTION_KV_PACK_H
#define LOAM_KERNELS_ATTENTION_KV_PACK_H

#include "kernels/attention/kv_layout.h"
#include "kernels/floats.h"
#include "tensor/half.h"

/* Elements d .. d + 7 of a row. */
FLOATS_INLINE __m256 element_load8(enum kv_type type, const uint8_t *row, const uint16_t *scales, size_t d) {
    if (type == KV_F16) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(row + 2 * d)));
    __m256i codes = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(row + d)));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(codes),
                         _mm256_set1_ps(half_to_float(scales[d / KV_SCALE_GROUP])));
}

FLOATS_INLINE void transpose8(__m256 x[8]) {
    __m256 a[8], b[8];
    FLOATS_UNROLL
    for (size_t i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    FLOATS_UNROLL
    for (size_t i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    FLOATS_UNROLL
    for (size_t i = 0; i < 4; i++) {
        x[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

#endif

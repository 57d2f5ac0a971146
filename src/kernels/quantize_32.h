/* quantize_32: 32 activations to 8 bits and a scale, the same for matvec and matmul. */
#pragma once

/* Below this the inverse of a scale would not be finite: such inputs count as zeros. */
#define INPUT_TINY 1e-30f

#if defined(__AVX2__)
#include <immintrin.h>
#include <math.h>

#include "tensor/half.h"

/* *q = round(x / scale), with magnitudes up to 127.  Returns the scale, with a half's precision.  A value that is not
 * finite makes the scale NaN and the codes zero. */
static inline __attribute__((always_inline)) float quantize_32(const float *x, __m256i *q) {
    __m256 v[4];
    /* Magnitudes as integers have the order of floats, with NaN above all. */
    __m256i largest_bits = _mm256_setzero_si256();
    for (int j = 0; j < 4; j++) {
        v[j] = _mm256_loadu_ps(x + 8 * j);
        largest_bits =
            _mm256_max_epi32(largest_bits, _mm256_and_si256(_mm256_castps_si256(v[j]), _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(largest_bits), _mm256_extracti128_si256(largest_bits, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    const float largest = _mm_cvtss_f32(_mm_castsi128_ps(m));
    *q = _mm256_setzero_si256();
    if (_mm_cvtsi128_si32(m) >= 0x7f800000) return NAN;
    if (largest < INPUT_TINY) return 0;
    const __m256 inverse = _mm256_set1_ps(127 / largest);
    __m256i part[4];
    for (int j = 0; j < 4; j++) part[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], inverse));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(part[0], part[1]), _mm256_packs_epi32(part[2], part[3]));
    *q = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    return round_to_half_precision(largest / 127);
}
#endif

/* rows_avx2: the accumulators and loads of the AVX2 variants of matvec, with the loop over rows. */
#ifndef LOAM_KERNELS_MATVEC_ROWS_AVX2_H
#define LOAM_KERNELS_MATVEC_ROWS_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_inline.h"

INLINE __m128i load_128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE __m256i load_256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

INLINE float sum_lanes(__m256 v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    half = _mm_add_ss(half, _mm_movehdup_ps(half));
    return _mm_cvtss_f32(half);
}

/* In each half of the registers, four rows of four 32-bit numbers become columns. */
INLINE void turn_4(__m256i r[4]) {
    __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    __m256i c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    r[0] = _mm256_unpacklo_epi64(a, c), r[1] = _mm256_unpackhi_epi64(a, c);
    r[2] = _mm256_unpacklo_epi64(b, d), r[3] = _mm256_unpackhi_epi64(b, d);
}

typedef __m256 row_vector;
INLINE row_vector row_zero(void) { return _mm256_setzero_ps(); }
INLINE float row_sum(row_vector a, row_vector b) { return sum_lanes(_mm256_add_ps(a, b)); }

#include "kernels/matvec/rows_loop.h"

#endif

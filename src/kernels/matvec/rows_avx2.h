/* rows_avx2: the accumulators and loads of the AVX2 variants of matvec, with the loop over rows. */
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/floats.h"
#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_inline.h"

INLINE __m128i load_128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE __m256i load_256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* In each half of the registers, four rows of four 32-bit numbers become columns. */
INLINE void turn_4(__m256i r[4]) {
    __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    __m256i c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    r[0] = _mm256_unpacklo_epi64(a, c), r[1] = _mm256_unpackhi_epi64(a, c);
    r[2] = _mm256_unpacklo_epi64(b, d), r[3] = _mm256_unpackhi_epi64(b, d);
}

/* Two registers that have two sums of each of four blocks, in both halves: [0 2 4 6 | 0 2 4 6] of the even ones and
 * the same of the odd ones, to the sums of the 8 in the order of input_block_place. */
INLINE __m256i join_halves(__m256i even, __m256i odd) {
    return _mm256_add_epi32(_mm256_permute2x128_si256(even, odd, 0x20), _mm256_permute2x128_si256(even, odd, 0x31));
}

/* In each half the sums of the four registers' halves: lane p is that of sum[p]. */
INLINE __m256i fold_4(__m256i a, __m256i b, __m256i c, __m256i d) {
    __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}

/* The sums of 8 blocks, each of which has a register of products, in the order of input_block_place. */
INLINE __m256i fold_blocks(const __m256i sum[8]) {
    return join_halves(fold_4(sum[0], sum[2], sum[4], sum[6]), fold_4(sum[1], sum[3], sum[5], sum[7]));
}

typedef __m256 row_vector;
INLINE row_vector row_zero(void) { return _mm256_setzero_ps(); }
/* The lanes have the order of input_block_place. */
INLINE void row_sums_add(const row_vector four[4], float *totals) {
    __m128 sums = floats8_sum4(four[0], four[1], four[2], four[3]);
    _mm_storeu_ps(totals, _mm_add_ps(_mm_loadu_ps(totals), sums));
}

#include "kernels/matvec/rows_loop.h"

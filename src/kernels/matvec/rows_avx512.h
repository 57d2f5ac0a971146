/* rows_avx512: the accumulators and loads of the AVX-512 variants of matvec, with the loop over rows. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/floats.h"
#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_inline.h"
#include "kernels/vector.h"

INLINE __m128i load_128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE __m256i load_256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE __m512i load_512(const void *p) { return _mm512_loadu_si512(p); }

INLINE __m512i join_256(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }
INLINE __m256i low_256(__m512i v) { return _mm512_castsi512_si256(v); }
INLINE __m256i high_256(__m512i v) { return _mm512_extracti64x4_epi64(v, 1); }

/* Groups are folded to 8 lanes before they are scaled, so accumulators are half as wide as the products. */
typedef __m256 row_vector;
INLINE row_vector row_zero(void) { return _mm256_setzero_ps(); }
/* The lanes have the order of input_block_place. */
INLINE void row_sums_add(const row_vector four[4], float *totals) {
    __m128 sums = floats8_sum4(four[0], four[1], four[2], four[3]);
    _mm_storeu_ps(totals, _mm_add_ps(_mm_loadu_ps(totals), sums));
}

#include "kernels/matvec/rows_loop.h"

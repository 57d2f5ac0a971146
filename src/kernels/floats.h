/* floats: one register of floats, 8 wide (AVX2, NEON) or 16 wide (AVX-512).
 *
 * Kernels whose algorithm is the same at both widths are written once over these functions in a
 * header and instantiated by foo_avx2.c, by foo_neon.c and by foo_avx512.c, which defines FLOATS_512 first.
 * floats8 is 8 wide in all of them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(LOAM_SIMDE) /* emulated instructions take long to compile: once, not at every place */
#define FLOATS_INLINE static inline
#else
#define FLOATS_INLINE static inline __attribute__((always_inline))
#endif

/* Before a loop with a count that is constant once inlined: unrolls it early enough that an array of registers stays
 * in registers.  _MAYBE: the count is constant in some callers only, about which clang complains. */
#if defined(__clang__)
#define FLOATS_UNROLL _Pragma("unroll")
#define FLOATS_UNROLL_MAYBE
#else
#define FLOATS_UNROLL       _Pragma("GCC unroll 16")
#define FLOATS_UNROLL_MAYBE FLOATS_UNROLL
#endif

/* Defines PART_avx2_install, PART_avx512_install or PART_neon_install of an operation (variants.h). */
#if defined(__aarch64__)
#define FLOATS_INSTALL(operation, part) void part##_neon_install(struct operation##_kernels *kernels)
#elif defined(FLOATS_512)
#define FLOATS_INSTALL(operation, part) void part##_avx512_install(struct operation##_kernels *kernels)
#else
#define FLOATS_INSTALL(operation, part) void part##_avx2_install(struct operation##_kernels *kernels)
#endif

/* An entry of AVX-512's table begins so: rows that fill no register of 16 floats go to the entry of AVX2. */
#if defined(FLOATS_512)
#define FLOATS_FILL(fills, operation, part, entry, ...) \
    if (!(fills)) {                                     \
        struct operation##_kernels narrower;            \
        part##_avx2_install(&narrower);                 \
        narrower.entry(__VA_ARGS__);                    \
        return;                                         \
    }
#else
#define FLOATS_FILL(fills, operation, part, entry, ...)
#endif

/* Into all caches; any address. */
FLOATS_INLINE void floats_prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }

/* The same for data that is read once: past L2 if the processor can. */
FLOATS_INLINE void floats_prefetch_once(const void *p) { __builtin_prefetch(p, 0, 0); }

#if defined(__aarch64__)
#include "kernels/floats_neon.h"
#else
#include "kernels/vector.h"

typedef __m256 floats8;

FLOATS_INLINE floats8 floats8_zero(void) { return _mm256_setzero_ps(); }
FLOATS_INLINE floats8 floats8_load(const float *p) { return _mm256_loadu_ps(p); }
FLOATS_INLINE floats8 floats8_load_half(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
FLOATS_INLINE floats8 floats8_load_int8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
FLOATS_INLINE floats8 floats8_scale(floats8 x, float by) { return _mm256_mul_ps(x, _mm256_set1_ps(by)); }
FLOATS_INLINE void floats8_store(float *p, floats8 x) { _mm256_storeu_ps(p, x); }
FLOATS_INLINE void floats4_from_halves(float *p, const void *halves) {
    _mm_storeu_ps(p, _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)halves)));
}
/* The larger; NaN where either is. */
FLOATS_INLINE floats8 floats8_max_or_nan(floats8 x, floats8 y) {
    __m256 largest = _mm256_max_ps(y, x);
    return _mm256_blendv_ps(largest, y, _mm256_cmp_ps(y, y, _CMP_UNORD_Q));
}

FLOATS_INLINE void floats8_transpose(floats8 x[8]) {
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

FLOATS_INLINE float floats8_sum(__m256 x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The larger one.  A NaN in y stays; one in x gives y. */
FLOATS_INLINE float floats8_largest(__m256 x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* {sum of a, sum of b, sum of c, sum of d} */
FLOATS_INLINE __m128 floats8_sum4(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)); /* a b a b */
    __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    __m256 abcd = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    return _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1));
}

#if defined(FLOATS_512)

enum { FLOATS = 16 };
typedef __m512 floats;

FLOATS_INLINE floats floats_set(float x) { return _mm512_set1_ps(x); }
FLOATS_INLINE floats floats_load(const float *p) { return _mm512_loadu_ps(p); }
FLOATS_INLINE void floats_store(float *p, floats x) { _mm512_storeu_ps(p, x); }
FLOATS_INLINE floats floats_load_half(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
FLOATS_INLINE floats floats_load_int8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
FLOATS_INLINE void floats_store_half(void *p, floats x) { /* to the nearest */
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, 0));
}
/* Bit i of FLOATS / 8 bytes: float i is above zero. */
FLOATS_INLINE void floats_store_signs(uint8_t *p, floats x) {
    uint16_t bits = (uint16_t)_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
    __builtin_memcpy(p, &bits, sizeof bits);
}
FLOATS_INLINE floats floats_add(floats x, floats y) { return _mm512_add_ps(x, y); }
FLOATS_INLINE floats floats_subtract(floats x, floats y) { return _mm512_sub_ps(x, y); }
FLOATS_INLINE floats floats_multiply(floats x, floats y) { return _mm512_mul_ps(x, y); }
FLOATS_INLINE floats floats_divide(floats x, floats y) { return _mm512_div_ps(x, y); }
FLOATS_INLINE floats floats_fma(floats x, floats y, floats z) { return _mm512_fmadd_ps(x, y, z); }   /* xy + z */
FLOATS_INLINE floats floats_fnma(floats x, floats y, floats z) { return _mm512_fnmadd_ps(x, y, z); } /* z - xy */
/* min and max give y where either is NaN. */
FLOATS_INLINE floats floats_min(floats x, floats y) { return _mm512_min_ps(x, y); }
FLOATS_INLINE floats floats_max(floats x, floats y) { return _mm512_max_ps(x, y); }
FLOATS_INLINE int floats_any_greater(floats x, floats y) { return _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ) != 0; }
/* where x < y: a, elsewhere (and where x or y is NaN): b */
FLOATS_INLINE floats floats_if_less(floats x, floats y, floats a, floats b) {
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), a);
}
FLOATS_INLINE floats floats_index(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
FLOATS_INLINE floats floats_round(floats x) { return _mm512_roundscale_ps(x, 0); }
/* 2^n for integral n in [-126, 128]; 1 for NaN; 2^128 is infinity */
FLOATS_INLINE floats floats_power2(floats n) {
    __m512i bits = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 23));
}
FLOATS_INLINE __m256 floats_fold(floats x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
FLOATS_INLINE float floats_first(floats x) { return _mm512_cvtss_f32(x); }
FLOATS_INLINE float floats_sum(floats x) { return floats8_sum(floats_fold(x)); }
FLOATS_INLINE float floats_largest(floats x) {
    return floats8_largest(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}
/* In the order of floats_sum16. */
FLOATS_INLINE __m128 floats_sum4(floats a, floats b, floats c, floats d) {
    floats ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); /* each 128 bits: a b a b */
    floats cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m256 half = floats_fold(_mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee)));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* Two rows in a register, 8 floats of each.  Of a query: the same 8 for both. */
FLOATS_INLINE floats floats_load_twice(const float *p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }
/* 16 elements of two rows: the first 8 of both, then the others. */
FLOATS_INLINE void floats_load_halves_of_two(const void *row, const void *other, floats x[2]) {
    const __m256i a = _mm256_loadu_si256((const __m256i *)row), b = _mm256_loadu_si256((const __m256i *)other);
    x[0] = _mm512_cvtph_ps(_mm256_permute2x128_si256(a, b, 0x20));
    x[1] = _mm512_cvtph_ps(_mm256_permute2x128_si256(a, b, 0x31));
}
FLOATS_INLINE void floats_load_int8_of_two(const void *row, const void *other, floats x[2]) {
    const __m128i a = _mm_loadu_si128((const __m128i *)row), b = _mm_loadu_si128((const __m128i *)other);
    x[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi64(a, b)));
    x[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpackhi_epi64(a, b)));
}
FLOATS_INLINE floats floats_set_two(float row, float other) {
    return _mm512_insertf32x8(_mm512_set1_ps(row), _mm256_set1_ps(other), 1);
}
/* Of the four x, then of the four y: the sums of the first row of each, then of the other rows, in the order of
 * floats8_sum4. */
FLOATS_INLINE floats floats_sums_of_two(const floats x[4], const floats y[4]) {
    const floats x01 = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const floats x23 = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const floats y01 = _mm512_add_ps(_mm512_unpacklo_ps(y[0], y[1]), _mm512_unpackhi_ps(y[0], y[1]));
    const floats y23 = _mm512_add_ps(_mm512_unpacklo_ps(y[2], y[3]), _mm512_unpackhi_ps(y[2], y[3]));
    const floats fours_x = _mm512_add_ps(_mm512_shuffle_ps(x01, x23, 0x44), _mm512_shuffle_ps(x01, x23, 0xee));
    const floats fours_y = _mm512_add_ps(_mm512_shuffle_ps(y01, y23, 0x44), _mm512_shuffle_ps(y01, y23, 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(fours_x, fours_y, 0x88), _mm512_shuffle_f32x4(fours_x, fours_y, 0xdd));
}

/* Lane i: the sum of x[i]. */
FLOATS_INLINE floats floats_sum16(const floats x[16]) {
    floats pair[8], four[4], half[2];
    FLOATS_UNROLL
    for (size_t i = 0; i < 8; i++) /* each 128 bits: a b a b */
        pair[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    FLOATS_UNROLL
    for (size_t i = 0; i < 4; i++) /* a b c d */
        four[i] = _mm512_add_ps(_mm512_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0x44),
                                _mm512_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0xee));
    FLOATS_UNROLL
    for (size_t i = 0; i < 2; i++)
        half[i] = _mm512_add_ps(_mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0x44),
                                _mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(half[0], half[1], 0x88), _mm512_shuffle_f32x4(half[0], half[1], 0xdd));
}

#else

enum { FLOATS = 8 };
typedef __m256 floats;

FLOATS_INLINE floats floats_set(float x) { return _mm256_set1_ps(x); }
FLOATS_INLINE floats floats_load(const float *p) { return _mm256_loadu_ps(p); }
FLOATS_INLINE void floats_store(float *p, floats x) { _mm256_storeu_ps(p, x); }
FLOATS_INLINE floats floats_load_half(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
FLOATS_INLINE floats floats_load_int8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
FLOATS_INLINE void floats_store_half(void *p, floats x) { /* to the nearest */
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, 0));
}
/* Bit i of FLOATS / 8 bytes: float i is above zero. */
FLOATS_INLINE void floats_store_signs(uint8_t *p, floats x) {
    *p = (uint8_t)_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ));
}
FLOATS_INLINE floats floats_add(floats x, floats y) { return _mm256_add_ps(x, y); }
FLOATS_INLINE floats floats_subtract(floats x, floats y) { return _mm256_sub_ps(x, y); }
FLOATS_INLINE floats floats_multiply(floats x, floats y) { return _mm256_mul_ps(x, y); }
FLOATS_INLINE floats floats_divide(floats x, floats y) { return _mm256_div_ps(x, y); }
FLOATS_INLINE floats floats_fma(floats x, floats y, floats z) { return _mm256_fmadd_ps(x, y, z); }   /* xy + z */
FLOATS_INLINE floats floats_fnma(floats x, floats y, floats z) { return _mm256_fnmadd_ps(x, y, z); } /* z - xy */
/* min and max give y where either is NaN. */
FLOATS_INLINE floats floats_min(floats x, floats y) { return _mm256_min_ps(x, y); }
FLOATS_INLINE floats floats_max(floats x, floats y) { return _mm256_max_ps(x, y); }
FLOATS_INLINE int floats_any_greater(floats x, floats y) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GT_OQ)) != 0;
}
/* where x < y: a, elsewhere (and where x or y is NaN): b */
FLOATS_INLINE floats floats_if_less(floats x, floats y, floats a, floats b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_LT_OQ));
}
FLOATS_INLINE floats floats_index(void) { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
FLOATS_INLINE floats floats_round(floats x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* 2^n for integral n in [-126, 128]; 1 for NaN; 2^128 is infinity */
FLOATS_INLINE floats floats_power2(floats n) {
    __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}
/* The float whose exponent are the low bits of x. */
FLOATS_INLINE floats floats_exponent(floats x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23));
}
/* where x < y: 0, elsewhere (and where x or y is NaN): a */
FLOATS_INLINE floats floats_unless_less(floats x, floats y, floats a) {
    return _mm256_and_ps(a, _mm256_cmp_ps(x, y, _CMP_NLT_UQ));
}
FLOATS_INLINE float floats_first(floats x) { return _mm256_cvtss_f32(x); }
FLOATS_INLINE float floats_sum(floats x) { return floats8_sum(x); }
FLOATS_INLINE float floats_largest(floats x) { return floats8_largest(x); }
FLOATS_INLINE __m128 floats_sum4(floats a, floats b, floats c, floats d) { return floats8_sum4(a, b, c, d); }

#endif

/* {sum of a, sum of b, sum of c, sum of d} to first[0..1], second[0..1] */
FLOATS_INLINE void floats_sum4_store(floats a, floats b, floats c, floats d, float *first, float *second) {
    __m128 four = floats_sum4(a, b, c, d);
    _mm_storel_pi((__m64 *)first, four);
    _mm_storeh_pi((__m64 *)second, four);
}

/* x, in a register.  For values that are used more than once: else the load is folded into each use (Zen loads two
 * registers a cycle, as many as it multiplies). */
FLOATS_INLINE floats floats_keep(floats x) {
#if !defined(LOAM_SIMDE)
    __asm__("" : "+v"(x));
#endif
    return x;
}
#endif

/* The sums of `count` registers, a multiple of 4, row_count (2 or a multiple of 4) to a line: sum[i] goes to
 * scores[i / row_count * stride + i % row_count]. */
FLOATS_INLINE void floats_sums_store(const floats *sum, const size_t count, const size_t row_count, float *scores,
                                     const size_t stride) {
#if defined(FLOATS_512)
    if (count % 16 == 0 && row_count % 4 == 0) {
        FLOATS_UNROLL
        for (size_t i = 0; i < count; i += 16) {
            floats all = floats_sum16(sum + i);
#define FOUR_STORE(n)                                                                      \
    _mm_storeu_ps(scores + (i + 4 * (n)) / row_count * stride + (i + 4 * (n)) % row_count, \
                  _mm512_extractf32x4_ps(all, n))
            FOUR_STORE(0), FOUR_STORE(1), FOUR_STORE(2), FOUR_STORE(3);
#undef FOUR_STORE
        }
        return;
    }
#endif
    FLOATS_UNROLL
    for (size_t i = 0; i < count; i += 4) {
        float *first = scores + i / row_count * stride + i % row_count;
        float *second = row_count == 2 ? first + stride : first + 2;
        floats_sum4_store(sum[i], sum[i + 1], sum[i + 2], sum[i + 3], first, second);
    }
}

/* exp(x), at most 2 units in the last place off (tests/kernels/test_activation.c holds it to
 * that); below -86.6 it is zero, so that no denormal is made; NaN stays NaN.
 *
 * x = n ln 2 + r, |r| <= ln(2) / 2; exp(r) = 1 + r + r^2 p(r), p the Chebyshev fit of degree 4, whose
 * own error is 7.8e-9 (0.13 units).  2^n is applied as 2^(n-1) * 2, so that n = 128 works. */
FLOATS_INLINE floats floats_exp_rest(floats x, floats n) {  /* exp(x) / 2^n */
    floats r = floats_fnma(n, floats_set(0x1.62e4p-1f), x); /* ln 2 in two parts: n * first is exact */
    r = floats_fnma(n, floats_set(0x1.7f7d1cp-20f), r);
    floats p = floats_fma(floats_set(0x1.6d113cp-10f), r, floats_set(0x1.120ba2p-7f));
    p = floats_fma(p, r, floats_set(0x1.55551ap-5f));
    p = floats_fma(p, r, floats_set(0x1.5554dcp-3f));
    p = floats_fma(p, r, floats_set(0.5f));
    p = floats_fma(floats_multiply(p, r), r, r);
    return floats_add(p, floats_set(1.0f));
}
FLOATS_INLINE floats floats_exp(floats x) {
    const floats lowest = floats_set(-86.6f);
    floats clamped = floats_max(lowest, floats_min(floats_set(89.0f), x)); /* in this order NaN passes */
    floats n = floats_round(floats_multiply(clamped, floats_set(0x1.715476p0f)));
    floats p = floats_exp_rest(clamped, n);
    floats scale = floats_power2(floats_subtract(n, floats_set(1.0f)));
    p = floats_multiply(floats_add(p, p), scale);
    return floats_if_less(x, lowest, floats_set(0.0f), p);
}

/* exp(x) of x <= 0, as exact as floats_exp, but zero below `smallest`, -86.6 or more.  Results below it are discarded,
 * so nothing is clamped first.  NaN stays. */
FLOATS_INLINE floats floats_exp_below(floats x, float smallest) {
#if defined(FLOATS_512)
    floats n = floats_round(floats_multiply(x, floats_set(0x1.715476p0f)));
    __mmask16 kept = _mm512_cmp_ps_mask(x, floats_set(smallest), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(kept, floats_exp_rest(x, n), n);
#else
    const floats shift = floats_set(0x1.8p23f + 127); /* the sum's low bits are the exponent of 2^n */
    floats biased = floats_fma(x, floats_set(0x1.715476p0f), shift);
    floats p = floats_exp_rest(x, floats_subtract(biased, shift));
    return floats_unless_less(x, floats_set(smallest), floats_multiply(p, floats_exponent(biased)));
#endif
}

/* softcap * tanh(x / softcap), with tanh(u) = 1 - 2 / (exp(2u) + 1): off by at most 4e-7 softcap. */
FLOATS_INLINE floats floats_softcap(floats x, float softcap) {
    floats e = floats_exp(floats_multiply(x, floats_set(2.0f / softcap)));
    floats ratio = floats_divide(floats_set(2.0f), floats_add(e, floats_set(1.0f)));
    return floats_fnma(ratio, floats_set(softcap), floats_set(softcap));
}

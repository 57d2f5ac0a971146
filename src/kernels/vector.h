/* vector: the x86 intrinsics, native or emulated.
 *
 * Kernels include this instead of <immintrin.h>.  With LOAM_SIMDE the 512-bit intrinsics come from
 * SIMDe in plain C and AVX2, so that the tests run the AVX-512 sources on machines without it.
 * What SIMDe 0.7.4 (Debian 12) lacks is defined here from what it has.
 */
#pragma once

#if !defined(LOAM_SIMDE)
#include <immintrin.h>
#define VECTOR_TEXT(text)    _Pragma(#text)
#define VECTOR_UNROLL(count) VECTOR_TEXT(GCC unroll count)
#else
#define VECTOR_UNROLL(count) /* emulated instructions unrolled take minutes to compile */
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <string.h>

static inline simde__m512 vector_pair(__m256 low, __m256 high) {
    return simde_mm512_insertf32x8(simde_mm512_castps256_ps512(low), high, 1);
}
static inline __m256 vector_part(simde__m512 x, int part) {
    __m256 parts[2];
    memcpy(parts, &x, sizeof parts);
    return parts[part];
}
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(x, part) vector_part(x, part)
#undef _mm512_cvtss_f32
#define _mm512_cvtss_f32(x) _mm256_cvtss_f32(vector_part(x, 0))

static inline simde__m512 vector_from_halves(__m256i x) {
    return vector_pair(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(x) vector_from_halves(x)
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(x, rounding) \
    _mm256_set_m128i(_mm256_cvtps_ph(vector_part(x, 1), rounding), _mm256_cvtps_ph(vector_part(x, 0), rounding))

#undef _mm512_shuffle_f32x4 /* no alias */
#define _mm512_shuffle_f32x4(a, b, lanes) simde_mm512_shuffle_f32x4(a, b, lanes)

static inline __m256i vector_integers(simde__m512i x, int part) {
    __m256i parts[2];
    memcpy(parts, &x, sizeof parts);
    return parts[part];
}
static inline simde__m512i vector_integer_pair(__m256i low, __m256i high) {
    return simde_mm512_inserti64x4(simde_mm512_castsi256_si512(low), high, 1);
}
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(x) \
    vector_pair(_mm256_cvtepi32_ps(vector_integers(x, 0)), _mm256_cvtepi32_ps(vector_integers(x, 1)))
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(x) \
    vector_integer_pair(_mm256_cvtps_epi32(vector_part(x, 0)), _mm256_cvtps_epi32(vector_part(x, 1)))
#undef _mm512_madd_epi16 /* an alias with the arguments of another */
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32(x) vector_integer_pair(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32(x)                                          \
    vector_integer_pair(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), \
                        _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)))
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32(x) vector_integer_pair(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))
static inline __m128i vector_bytes(simde__m512i x) {
    int32_t integers[16];
    uint8_t bytes[16];
    memcpy(integers, &x, sizeof integers);
    for (int i = 0; i < 16; i++) bytes[i] = (uint8_t)integers[i];
    return _mm_loadu_si128((const __m128i *)bytes);
}
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8(x) vector_bytes(x)

#endif

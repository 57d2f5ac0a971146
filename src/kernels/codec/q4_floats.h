/* q4_floats: registers of 4-bit codes, next to those of floats.h: for encoding, and for attention to codes as they are.
 * `codes` holds two codes per place, those of an even token and of the odd one after it, as a byte does. */
#pragma once

#include "kernels/floats.h"

#if defined(__aarch64__)
typedef struct {
    uint32x4_t low, high;
} codes;
FLOATS_INLINE floats halves_set(const uint16_t *p) {
    float32x4_t four = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(*p)));
    return (floats){four, four};
}
FLOATS_INLINE floats floats_nan_where(floats broken, floats x) { /* broken: 0 or NaN */
    const float32x4_t nan = vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000));
    return (floats){vbslq_f32(vceqq_f32(broken.low, broken.low), x.low, nan),
                    vbslq_f32(vceqq_f32(broken.high, broken.high), x.high, nan)};
}
FLOATS_INLINE floats floats_min_all(floats x) { return floats_set(vminvq_f32(vminq_f32(x.low, x.high))); }
FLOATS_INLINE codes codes_load(const uint8_t *p) {
    uint16x8_t wide = vmovl_u8(vld1_u8(p));
    return (codes){vmovl_u16(vget_low_u16(wide)), vmovl_high_u16(wide)};
}
FLOATS_INLINE floats codes_even(codes x) {
    return (floats){vcvtq_f32_u32(vandq_u32(x.low, vdupq_n_u32(15))),
                    vcvtq_f32_u32(vandq_u32(x.high, vdupq_n_u32(15)))};
}
FLOATS_INLINE floats codes_odd(codes x) {
    return (floats){vcvtq_f32_u32(vshrq_n_u32(x.low, 4)), vcvtq_f32_u32(vshrq_n_u32(x.high, 4))};
}
FLOATS_INLINE uint32x4_t codes4_round(float32x4_t x) {
    return vandq_u32(vcvtnq_u32_f32(x), vcltq_f32(x, vdupq_n_f32(16)));
}
FLOATS_INLINE codes codes_round(floats x) { /* NaN and infinity become 0 */
    return (codes){codes4_round(x.low), codes4_round(x.high)};
}
FLOATS_INLINE void codes_store(uint8_t *p, codes even, codes odd) {
    uint16x4_t low = vmovn_u32(vorrq_u32(even.low, vshlq_n_u32(odd.low, 4)));
    uint16x4_t high = vmovn_u32(vorrq_u32(even.high, vshlq_n_u32(odd.high, 4)));
    vst1_u8(p, vmovn_u16(vcombine_u16(low, high)));
}
#elif defined(FLOATS_512)
typedef __m512i codes;
FLOATS_INLINE floats halves_set(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_set1_epi16((short)*p)); }
FLOATS_INLINE floats floats_nan_where(floats broken, floats x) { /* broken: 0 or NaN */
    const floats nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(broken, broken, _CMP_UNORD_Q), nan);
}
FLOATS_INLINE floats floats_min_all(floats x) {
    __m256 eight = _mm256_min_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_min_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return floats_set(_mm_cvtss_f32(_mm_min_ss(four, _mm_movehdup_ps(four))));
}
FLOATS_INLINE codes codes_load(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
FLOATS_INLINE floats codes_even(codes x) { return _mm512_cvtepi32_ps(_mm512_and_si512(x, _mm512_set1_epi32(15))); }
FLOATS_INLINE floats codes_odd(codes x) { return _mm512_cvtepi32_ps(_mm512_srli_epi32(x, 4)); }
FLOATS_INLINE codes codes_round(floats x) { /* NaN and infinity become 0 */
    return _mm512_max_epi32(_mm512_cvtps_epi32(x), _mm512_setzero_si512());
}
FLOATS_INLINE void codes_store(uint8_t *p, codes even, codes odd) {
    __m512i both = _mm512_or_si512(even, _mm512_slli_epi32(odd, 4));
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(both));
}
#else
typedef __m256i codes;
FLOATS_INLINE floats halves_set(const uint16_t *p) { return _mm256_cvtph_ps(_mm_set1_epi16((short)*p)); }
FLOATS_INLINE floats floats_nan_where(floats broken, floats x) { /* broken: 0 or NaN */
    const floats nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(broken, broken, _CMP_UNORD_Q));
}
FLOATS_INLINE floats floats_min_all(floats x) {
    __m128 four = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return floats_set(_mm_cvtss_f32(_mm_min_ss(four, _mm_movehdup_ps(four))));
}
FLOATS_INLINE codes codes_load(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
FLOATS_INLINE floats codes_even(codes x) { return _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(15))); }
FLOATS_INLINE floats codes_odd(codes x) { return _mm256_cvtepi32_ps(_mm256_srli_epi32(x, 4)); }
FLOATS_INLINE codes codes_round(floats x) { /* NaN and infinity become 0 */
    return _mm256_max_epi32(_mm256_cvtps_epi32(x), _mm256_setzero_si256());
}
FLOATS_INLINE void codes_store(uint8_t *p, codes even, codes odd) {
    __m256i both = _mm256_or_si256(even, _mm256_slli_epi32(odd, 4));
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
}
#endif

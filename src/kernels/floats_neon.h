/* floats_neon: the registers of floats.h on 64-bit ARM: 8 floats in a pair of its registers, of which it has
 * 32, so that tiles made for 16 registers of 8 fit. */
#pragma once

#include <arm_neon.h>

enum { FLOATS = 8 };
typedef struct {
    float32x4_t low, high;
} floats;
typedef floats floats8;

FLOATS_INLINE floats floats_set(float x) { return (floats){vdupq_n_f32(x), vdupq_n_f32(x)}; }
FLOATS_INLINE floats floats_load(const float *p) { return (floats){vld1q_f32(p), vld1q_f32(p + 4)}; }
FLOATS_INLINE void floats_store(float *p, floats x) {
    vst1q_f32(p, x.low);
    vst1q_f32(p + 4, x.high);
}
FLOATS_INLINE floats floats_load_half(const void *p) {
    float16x8_t half = vreinterpretq_f16_u8(vld1q_u8(p));
    return (floats){vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half)};
}
FLOATS_INLINE floats floats_load_int8(const void *p) {
    int16x8_t wide = vmovl_s8(vld1_s8(p));
    return (floats){vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
}
FLOATS_INLINE void floats_store_half(void *p, floats x) { /* to the nearest */
    vst1q_u8(p, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.low), x.high)));
}
/* Bit i of the byte: float i is above zero. */
FLOATS_INLINE void floats_store_signs(uint8_t *p, floats x) {
    static const uint32_t bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    uint32x4_t low = vandq_u32(vcgtzq_f32(x.low), vld1q_u32(bits));
    uint32x4_t high = vandq_u32(vcgtzq_f32(x.high), vld1q_u32(bits + 4));
    *p = (uint8_t)vaddvq_u32(vorrq_u32(low, high));
}
#define FLOATS_BOTH(function, x, y) ((floats){function((x).low, (y).low), function((x).high, (y).high)})
FLOATS_INLINE floats floats_add(floats x, floats y) { return FLOATS_BOTH(vaddq_f32, x, y); }
FLOATS_INLINE floats floats_subtract(floats x, floats y) { return FLOATS_BOTH(vsubq_f32, x, y); }
FLOATS_INLINE floats floats_multiply(floats x, floats y) { return FLOATS_BOTH(vmulq_f32, x, y); }
FLOATS_INLINE floats floats_divide(floats x, floats y) { return FLOATS_BOTH(vdivq_f32, x, y); }
FLOATS_INLINE floats floats_fma(floats x, floats y, floats z) { /* xy + z */
    return (floats){vfmaq_f32(z.low, x.low, y.low), vfmaq_f32(z.high, x.high, y.high)};
}
FLOATS_INLINE floats floats_fnma(floats x, floats y, floats z) { /* z - xy */
    return (floats){vfmsq_f32(z.low, x.low, y.low), vfmsq_f32(z.high, x.high, y.high)};
}
FLOATS_INLINE float32x4_t floats4_min(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
FLOATS_INLINE float32x4_t floats4_max(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
/* min and max give y where either is NaN. */
FLOATS_INLINE floats floats_min(floats x, floats y) { return FLOATS_BOTH(floats4_min, x, y); }
FLOATS_INLINE floats floats_max(floats x, floats y) { return FLOATS_BOTH(floats4_max, x, y); }
FLOATS_INLINE int floats_any_greater(floats x, floats y) {
    return vmaxvq_u32(vorrq_u32(vcgtq_f32(x.low, y.low), vcgtq_f32(x.high, y.high))) != 0;
}
/* where x < y: a, elsewhere (and where x or y is NaN): b */
FLOATS_INLINE floats floats_if_less(floats x, floats y, floats a, floats b) {
    return (floats){vbslq_f32(vcltq_f32(x.low, y.low), a.low, b.low),
                    vbslq_f32(vcltq_f32(x.high, y.high), a.high, b.high)};
}
FLOATS_INLINE floats floats_index(void) { return (floats){{0, 1, 2, 3}, {4, 5, 6, 7}}; }
FLOATS_INLINE floats floats_round(floats x) { return (floats){vrndnq_f32(x.low), vrndnq_f32(x.high)}; }
FLOATS_INLINE float32x4_t floats4_power2(float32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
}
/* 2^n for integral n in [-126, 128]; 1 for NaN; 2^128 is infinity */
FLOATS_INLINE floats floats_power2(floats n) { return (floats){floats4_power2(n.low), floats4_power2(n.high)}; }
FLOATS_INLINE float32x4_t floats4_exponent(float32x4_t x) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(x), 23));
}
/* The float whose exponent are the low bits of x. */
FLOATS_INLINE floats floats_exponent(floats x) { return (floats){floats4_exponent(x.low), floats4_exponent(x.high)}; }
FLOATS_INLINE float32x4_t floats4_unless_less(float32x4_t x, float32x4_t y, float32x4_t a) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a), vcltq_f32(x, y)));
}
/* where x < y: 0, elsewhere (and where x or y is NaN): a */
FLOATS_INLINE floats floats_unless_less(floats x, floats y, floats a) {
    return (floats){floats4_unless_less(x.low, y.low, a.low), floats4_unless_less(x.high, y.high, a.high)};
}
FLOATS_INLINE float floats_first(floats x) { return vgetq_lane_f32(x.low, 0); }
FLOATS_INLINE float floats_sum(floats x) { return vaddvq_f32(vaddq_f32(x.low, x.high)); }
/* The larger; where one of a pair is NaN, the later. */
FLOATS_INLINE float floats_largest(floats x) {
    float32x4_t four = floats4_max(x.low, x.high);
    four = floats4_max(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(floats4_max(four, vextq_f32(four, four, 1)), 0);
}

/* {sum of a, sum of b, sum of c, sum of d} to first[0..1], second[0..1] */
FLOATS_INLINE void floats_sum4_store(floats a, floats b, floats c, floats d, float *first, float *second) {
    float32x4_t ab = vpaddq_f32(vaddq_f32(a.low, a.high), vaddq_f32(b.low, b.high));
    float32x4_t cd = vpaddq_f32(vaddq_f32(c.low, c.high), vaddq_f32(d.low, d.high));
    float32x4_t four = vpaddq_f32(ab, cd);
    vst1_f32(first, vget_low_f32(four));
    vst1_f32(second, vget_high_f32(four));
}

FLOATS_INLINE floats8 floats8_zero(void) { return floats_set(0); }
FLOATS_INLINE floats8 floats8_load(const float *p) { return floats_load(p); }
FLOATS_INLINE floats8 floats8_load_half(const void *p) { return floats_load_half(p); }
FLOATS_INLINE floats8 floats8_load_int8(const void *p) { return floats_load_int8(p); }
FLOATS_INLINE floats8 floats8_scale(floats8 x, float by) { return floats_multiply(x, floats_set(by)); }
FLOATS_INLINE void floats8_store(float *p, floats8 x) { floats_store(p, x); }
FLOATS_INLINE void floats4_from_halves(float *p, const void *halves) {
    vst1q_f32(p, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(halves))));
}
/* The larger; NaN where either is. */
FLOATS_INLINE floats8 floats8_max_or_nan(floats8 x, floats8 y) { return FLOATS_BOTH(vmaxq_f32, x, y); }

FLOATS_INLINE void floats4_transpose(float32x4_t x[4]) {
    float32x4_t a = vtrn1q_f32(x[0], x[1]), b = vtrn2q_f32(x[0], x[1]);
    float32x4_t c = vtrn1q_f32(x[2], x[3]), d = vtrn2q_f32(x[2], x[3]);
    x[0] = vcombine_f32(vget_low_f32(a), vget_low_f32(c));
    x[1] = vcombine_f32(vget_low_f32(b), vget_low_f32(d));
    x[2] = vcombine_f32(vget_high_f32(a), vget_high_f32(c));
    x[3] = vcombine_f32(vget_high_f32(b), vget_high_f32(d));
}

FLOATS_INLINE void floats8_transpose(floats8 x[8]) {
    float32x4_t part[4][4]; /* rows 0..3 and 4..7 of the low, then of the high columns */
    FLOATS_UNROLL
    for (size_t i = 0; i < 4; i++) {
        part[0][i] = x[i].low, part[1][i] = x[i + 4].low;
        part[2][i] = x[i].high, part[3][i] = x[i + 4].high;
    }
    FLOATS_UNROLL
    for (size_t p = 0; p < 4; p++) floats4_transpose(part[p]);
    FLOATS_UNROLL
    for (size_t i = 0; i < 4; i++) {
        x[i] = (floats8){part[0][i], part[1][i]};
        x[i + 4] = (floats8){part[2][i], part[3][i]};
    }
}

/* See floats.h. */
FLOATS_INLINE floats floats_keep(floats x) {
    __asm__("" : "+w"(x.low), "+w"(x.high));
    return x;
}

/* half: 16-bit floats, one at a time (kernels have their own vector forms).
 * Rounding is to nearest even; NaN stays NaN, overflow becomes infinity. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline float bits_to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#if defined(__F16C__)
#include <immintrin.h>
static inline float half_to_float(uint16_t half) { return _cvtsh_ss(half); }
static inline uint16_t float_to_half(float value) { return (uint16_t)_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
#else
/* Without branches, so that a compiler can take several at once. */
static inline float half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = (uint32_t)(half & 0x7fffu) << 13;
    const float subnormal = (float)(int32_t)(half & 0x3ffu) * 0x1.0p-24f; /* exact in float */
    uint32_t magnitude = rest + (112u << 23);
    magnitude = rest >= 0x1fu << 23 ? rest | 0x7f800000u : magnitude; /* infinite, NaN */
    magnitude = rest < 1u << 23 ? float_to_bits(subnormal) : magnitude;
    return bits_to_float(sign | magnitude);
}

static inline uint16_t float_to_half(float value) {
    uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) { /* normal: round the 13 lost bits to even */
        uint32_t rounded = magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u);
        return (uint16_t)(sign | rounded >> 13);
    }
    /* Adding 0.5 puts the half's subnormal bits at the bottom of the float's mantissa. */
    float shifted = bits_to_float(magnitude) + 0.5f;
    return (uint16_t)(sign | (float_to_bits(shifted) - 0x3f000000u));
}
#endif

/* To the 11 significant bits of a half, ties to even, with a float's range.  The scale of 32 activations in 8 bits is
 * kept so: it is what llama.cpp stores, in a half, and products with its files then differ from ours by the order of
 * sums alone. */
static inline float round_to_half_precision(float value) {
    uint32_t bits = float_to_bits(value);
    return bits_to_float((bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu);
}

static inline float bfloat_to_float(uint16_t value) { return bits_to_float((uint32_t)value << 16); }

static inline uint16_t float_to_bfloat(float value) {
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

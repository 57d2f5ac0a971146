/* weight_types: the quantised weight types, for kernels: 32 columns of a row at a time (weight_layout.h).
 *
 * A type loads its bits, and expands them: eight words of four codes, one per byte, in the order of the
 * columns, and what turns codes into values: value = scale * (code - OFFSET) + minimum, with a scale and a
 * minimum for each 16. Of a type that IS_SIGNED the codes are int8, and OFFSET is 0; of others they are at
 * most 63. */
#pragma once

#include "device/cuda/dialect.h"
#include "device/cuda/kernels.h"

struct unit {
    uint32_t codes[8];
    float scale[2], minimum[2];
};

/* ---- pieces */

DEVICE void nibbles_expand(struct u32x4 v, uint32_t codes[8]) {
    const uint32_t m = 0x0f0f0f0fu;
    codes[0] = v.x & m, codes[1] = v.y & m, codes[2] = v.z & m, codes[3] = v.w & m;
    codes[4] = v.x >> 4 & m, codes[5] = v.y >> 4 & m, codes[6] = v.z >> 4 & m, codes[7] = v.w >> 4 & m;
}
/* Adds a bit of each column at `place`. */
DEVICE void bits_expand(uint32_t high, uint32_t place, uint32_t codes[8]) {
    UNROLL
    for (uint32_t j = 0; j < 8; j++) codes[j] |= (high >> j & 0x01010101u) << place;
}
DEVICE void pairs_expand(struct u32x2 v, uint32_t place, uint32_t codes[8]) {
    UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        codes[j] |= (v.x >> 2 * j & 0x03030303u) << place;
        codes[j + 4] |= (v.y >> 2 * j & 0x03030303u) << place;
    }
}
/* The levels of eight 4-bit codes of a word: of the low nibbles, of the high ones. */
DEVICE void levels_of(uint32_t v, uint32_t *low, uint32_t *high) {
    /* -127 -104 -83 -65 | -49 -35 -22 -10 | 1 13 25 38 | 53 69 89 113 */
    const uint32_t t0 = 0xbfad9881u, t1 = 0xf6eaddcfu, t2 = 0x26190d01u, t3 = 0x71594535u;
    uint32_t part[2];
    UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t q = v >> 16 * i;
        const uint32_t negative = bytes_pick(t0, t1, q & 0x7777), positive = bytes_pick(t2, t3, q & 0x7777);
        part[i] = bytes_pick(negative, positive, 0x3210u | (q & 0x8888) >> 1);
    }
    *low = bytes_pick(part[0], part[1], 0x6420);
    *high = bytes_pick(part[0], part[1], 0x7531);
}
DEVICE void levels_expand(struct u32x4 v, uint32_t codes[8]) {
    levels_of(v.x, &codes[0], &codes[4]);
    levels_of(v.y, &codes[1], &codes[5]);
    levels_of(v.z, &codes[2], &codes[6]);
    levels_of(v.w, &codes[3], &codes[7]);
}
DEVICE void scale_all(struct unit *u, float scale, float minimum) {
    u->scale[0] = u->scale[1] = scale;
    u->minimum[0] = u->minimum[1] = minimum;
}
DEVICE float signed_byte(uint32_t v, uint32_t shift) { return (float)(int8_t)(v >> shift & 255); }

/* ---- types: `at` counts units of 32 columns from the beginning of the planes */

/* WIDE: 8-bit codes; HIGH: bytes of the plane high; MINIMUM: two halves, not one; LEVELS: IQ4_NL */
template <bool HIGH, bool MINIMUM, bool LEVELS, int OFFSET_> struct type_32 {
    static constexpr int OFFSET = OFFSET_;
    static constexpr bool IS_SIGNED = LEVELS, HAS_MINIMUM = MINIMUM, HALVES_DIFFER = false;
    struct u32x4 v;
    uint32_t high, numbers;
    DEVICE_MEMBER void load(const struct weight_planes &w, uint64_t index) {
        v = load16_once(at<char>(w.codes) + index * 16);
        if (HIGH) high = load4_once(at<char>(w.high) + index * 4);
        if (MINIMUM)
            numbers = load4_weight(at<char>(w.scales) + index * 4);
        else
            numbers = load2_weight(at<char>(w.scales) + index * 2);
    }
    DEVICE_MEMBER void clear() { v = {0, 0, 0, 0}, high = numbers = 0; }
    DEVICE_MEMBER void expand(struct unit *u, uint32_t) const {
        if (LEVELS)
            levels_expand(v, u->codes);
        else
            nibbles_expand(v, u->codes);
        if (HIGH) bits_expand(high, 4, u->codes);
        scale_all(u, half_value(numbers & 0xffff), MINIMUM ? half_value(numbers >> 16) : 0);
    }
};
using type_q4_0 = type_32<false, false, false, 8>;
using type_q4_1 = type_32<false, true, false, 0>;
using type_q5_0 = type_32<true, false, false, 16>;
using type_q5_1 = type_32<true, true, false, 0>;
using type_iq4_nl = type_32<false, false, true, 0>;

struct type_q8_0 {
    static constexpr int OFFSET = 0;
    static constexpr bool IS_SIGNED = true, HAS_MINIMUM = false, HALVES_DIFFER = false;
    struct u32x4 v[2];
    uint32_t numbers;
    DEVICE_MEMBER void load(const struct weight_planes &w, uint64_t index) {
        v[0] = load16_once(at<char>(w.codes) + index * 32);
        v[1] = load16_once(at<char>(w.codes) + index * 32 + 16);
        numbers = load2_weight(at<char>(w.scales) + index * 2);
    }
    DEVICE_MEMBER void clear() { v[0] = v[1] = {0, 0, 0, 0}, numbers = 0; }
    DEVICE_MEMBER void expand(struct unit *u, uint32_t) const {
        u->codes[0] = v[0].x, u->codes[1] = v[0].y, u->codes[2] = v[0].z, u->codes[3] = v[0].w;
        u->codes[4] = v[1].x, u->codes[5] = v[1].y, u->codes[6] = v[1].z, u->codes[7] = v[1].w;
        scale_all(u, half_value(numbers), 0);
    }
};

/* Q4_K and Q5_K: the 16 first bytes of a block of 256 are d, dmin, and 8 scales and minima of 6 bits. */
template <bool HIGH> struct type_45_k {
    static constexpr int OFFSET = 0;
    static constexpr bool IS_SIGNED = false, HAS_MINIMUM = true, HALVES_DIFFER = false;
    struct u32x4 v, numbers;
    uint32_t high;
    DEVICE_MEMBER void load(const struct weight_planes &w, uint64_t index) {
        v = load16_once(at<char>(w.codes) + index * 16);
        if (HIGH) high = load4_once(at<char>(w.high) + index * 4);
        numbers = load16_weight(at<char>(w.scales) + index / 8 * 16);
    }
    DEVICE_MEMBER void clear() { v = numbers = {0, 0, 0, 0}, high = 0; }
    DEVICE_MEMBER void expand(struct unit *u, uint32_t index) const {
        const uint32_t shift = index % 4 * 8;
        const uint32_t a = numbers.y >> shift, b = numbers.z >> shift, c = numbers.w >> shift;
        const bool is_first = index % 8 < 4;
        const uint32_t scale = is_first ? a & 63 : (c & 15) | (a >> 2 & 0x30);
        const uint32_t minimum = is_first ? b & 63 : (c >> 4 & 15) | (b >> 2 & 0x30);
        nibbles_expand(v, u->codes);
        if (HIGH) bits_expand(high, 4, u->codes);
        scale_all(u, half_value(numbers.x & 0xffff) * (float)scale, -half_value(numbers.x >> 16) * (float)minimum);
    }
};
using type_q4_k = type_45_k<false>;
using type_q5_k = type_45_k<true>;

struct type_q6_k {
    static constexpr int OFFSET = 32;
    static constexpr bool IS_SIGNED = false, HAS_MINIMUM = false, HALVES_DIFFER = true;
    struct u32x4 v;
    struct u32x2 high;
    uint32_t scales, super;
    DEVICE_MEMBER void load(const struct weight_planes &w, uint64_t index) {
        v = load16_once(at<char>(w.codes) + index * 16);
        high = load8_once(at<char>(w.high) + index * 8);
        scales = load2_weight(at<char>(w.scales) + index * 2);
        super = load2_weight(at<char>(w.supers) + index / 8 * 2);
    }
    DEVICE_MEMBER void clear() { v = {0, 0, 0, 0}, high = {0, 0}, scales = super = 0; }
    DEVICE_MEMBER void expand(struct unit *u, uint32_t) const {
        const float d = half_value(super);
        nibbles_expand(v, u->codes);
        pairs_expand(high, 4, u->codes);
        scale_all(u, 0, 0);
        u->scale[0] = d * signed_byte(scales, 0);
        u->scale[1] = d * signed_byte(scales, 8);
    }
};

struct type_q3_k {
    static constexpr int OFFSET = 4;
    static constexpr bool IS_SIGNED = false, HAS_MINIMUM = false, HALVES_DIFFER = true;
    struct u32x2 v;
    uint32_t high, scales, super;
    DEVICE_MEMBER void load(const struct weight_planes &w, uint64_t index) {
        v = load8_once(at<char>(w.codes) + index * 8);
        high = load4_once(at<char>(w.high) + index * 4);
        scales = load2_weight(at<char>(w.scales) + index * 2);
        super = load2_weight(at<char>(w.supers) + index / 8 * 2);
    }
    DEVICE_MEMBER void clear() { v = {0, 0}, high = scales = super = 0; }
    DEVICE_MEMBER void expand(struct unit *u, uint32_t) const {
        const float d = half_value(super);
        UNROLL
        for (uint32_t j = 0; j < 8; j++) u->codes[j] = 0;
        pairs_expand(v, 0, u->codes);
        bits_expand(high, 2, u->codes);
        scale_all(u, 0, 0);
        u->scale[0] = d * signed_byte(scales, 0);
        u->scale[1] = d * signed_byte(scales, 8);
    }
};

struct type_q2_k {
    static constexpr int OFFSET = 0;
    static constexpr bool IS_SIGNED = false, HAS_MINIMUM = true, HALVES_DIFFER = true;
    struct u32x2 v;
    uint32_t scales, super;
    DEVICE_MEMBER void load(const struct weight_planes &w, uint64_t index) {
        v = load8_once(at<char>(w.codes) + index * 8);
        scales = load2_weight(at<char>(w.scales) + index * 2);
        super = load4_weight(at<char>(w.supers) + index / 8 * 4);
    }
    DEVICE_MEMBER void clear() { v = {0, 0}, scales = super = 0; }
    DEVICE_MEMBER void expand(struct unit *u, uint32_t) const {
        const float d = half_value(super & 0xffff), minimum = -half_value(super >> 16);
        UNROLL
        for (uint32_t j = 0; j < 8; j++) u->codes[j] = 0;
        pairs_expand(v, 0, u->codes);
        u->scale[0] = d * (float)(scales & 15), u->minimum[0] = minimum * (float)(scales >> 4 & 15);
        u->scale[1] = d * (float)(scales >> 8 & 15), u->minimum[1] = minimum * (float)(scales >> 12 & 15);
    }
};

struct type_iq4_xs {
    static constexpr int OFFSET = 0;
    static constexpr bool IS_SIGNED = true, HAS_MINIMUM = false, HALVES_DIFFER = false;
    struct u32x4 v;
    struct u32x2 numbers; /* d, 2 bits of each scale, 4 bits of each scale */
    DEVICE_MEMBER void load(const struct weight_planes &w, uint64_t index) {
        v = load16_once(at<char>(w.codes) + index * 16);
        numbers = load8_weight(at<char>(w.scales) + index / 8 * 8);
    }
    DEVICE_MEMBER void clear() { v = {0, 0, 0, 0}, numbers = {0, 0}; }
    DEVICE_MEMBER void expand(struct unit *u, uint32_t index) const {
        const uint32_t j = index % 8;
        const uint32_t scale = (numbers.y >> 4 * j & 15) | (numbers.x >> 16 >> 2 * j & 3) << 4;
        levels_expand(v, u->codes);
        scale_all(u, half_value(numbers.x & 0xffff) * (float)((int32_t)scale - 32), 0);
    }
};

/* codec_floats: codec over registers of floats; instantiated by codec_avx2.c, by codec_neon.c and, for dimensions that
 * are multiples of 16, by codec_avx512.c, which defines FLOATS_512 first.
 *
 * Mapping: 32 channels (a cache line of halves, a group of V) of two tokens at a time, whose codes share their bytes;
 * K keeps the ranges of its 32 channels for the chunk's 32 lines.
 * Bytes: 0.297 read and 1 written of each f16 byte decoded; 5 instructions per register of them (convert, fma, min,
 * convert, store) and half of three that take codes apart.
 * Reached, one core of an AMD EPYC (Zen 3), AVX2, 2026-11-21, GB/s of f16: decode 6.4 to 6.8 from memory to memory
 * (plain reads 22 to 23; 1.9 to 2.0 of 4-bit bytes, some four times a disk's 0.5), 14 to 15 in the
 * caches; encode 3.7 to 4.2 and 5.3 to 5.6.  The plain C: 0.3 and 0.2. */
#pragma once

#include <math.h>

#include "kernels/codec/codec_internal.h"
#include "kernels/codec/q4_floats.h"
#include "kernels/floats.h"

enum { SPAN = Q4_V_GROUP, STRIPS = SPAN / FLOATS };

/* ---- ranges ---- */

struct extent {
    floats low, high, broken; /* broken: 0, or NaN where an element was not finite */
};

FLOATS_INLINE struct extent extent_none(void) {
    return (struct extent){floats_set(INFINITY), floats_set(-INFINITY), floats_set(0)};
}

FLOATS_INLINE void extent_add(struct extent *extent, floats x) {
    extent->low = floats_min(x, extent->low);
    extent->high = floats_max(x, extent->high);
    extent->broken = floats_fma(x, floats_set(0), extent->broken);
}

/* -0 becomes +0. */
FLOATS_INLINE floats extent_low(const struct extent *extent) {
    return floats_nan_where(extent->broken, floats_add(extent->low, floats_set(0)));
}
FLOATS_INLINE floats extent_high(const struct extent *extent) {
    return floats_nan_where(extent->broken, floats_add(extent->high, floats_set(0)));
}

/* ---- two tokens' strips ---- */

struct encoder {
    floats low, per_step;
};

FLOATS_INLINE struct encoder encoder_of(floats low, floats high) {
    floats range = floats_subtract(high, low), zero = floats_set(0);
    floats per_step = floats_divide(floats_set(15.0f), range);
    return (struct encoder){low, floats_if_less(zero, range, per_step, zero)}; /* 0 where constant or NaN */
}

FLOATS_INLINE codes encode(const struct encoder *by, const uint16_t *from) {
    floats x = floats_subtract(floats_load_half(from), by->low);
    return codes_round(floats_multiply(x, by->per_step));
}

struct decoder {
    floats low, step, high;
};

FLOATS_INLINE struct decoder decoder_of(floats low, floats high) {
    floats step = floats_multiply(floats_subtract(high, low), floats_set(Q4_FIFTEENTH));
    return (struct decoder){low, step, high};
}

FLOATS_INLINE void decode(const struct decoder *by, floats code, uint16_t *to) {
    floats_store_half(to, floats_min(floats_fma(code, by->step, by->low), by->high)); /* high where NaN */
}

/* ---- K: channels [d, d + count FLOATS) of the chunk ---- */

FLOATS_INLINE void k_encode_span(const struct kv_layout *layout, const void *chunk, const struct q4_parts *parts,
                                 uint8_t *q4, size_t d, const size_t count) {
    struct encoder encoders[STRIPS];
    for (size_t i = 0; i < count; i++) {
        struct extent extent = extent_none();
        for (size_t t = 0; t < KV_CHUNK_TOKENS; t++)
            extent_add(&extent, floats_load_half(q4_k_row(layout, chunk, t) + d + i * FLOATS));
        floats low = extent_low(&extent), high = extent_high(&extent);
        floats_store_half((uint16_t *)(void *)(q4 + parts->k_low) + d + i * FLOATS, low);
        floats_store_half((uint16_t *)(void *)(q4 + parts->k_high) + d + i * FLOATS, high);
        encoders[i] = encoder_of(low, high);
    }
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t += 2) {
        const uint16_t *even = q4_k_row(layout, chunk, t) + d, *odd = q4_k_row(layout, chunk, t + 1) + d;
        uint8_t *line = q4 + parts->k_codes + t / 2 * parts->k_dimension + d;
        for (size_t i = 0; i < count; i++)
            codes_store(line + i * FLOATS, encode(&encoders[i], even + i * FLOATS),
                        encode(&encoders[i], odd + i * FLOATS));
    }
}

FLOATS_INLINE void k_decode_span(const struct kv_layout *layout, void *chunk, const struct q4_parts *parts,
                                 const uint8_t *q4, size_t d, const size_t count) {
    struct decoder decoders[STRIPS];
    for (size_t i = 0; i < count; i++)
        decoders[i] = decoder_of(floats_load_half(q4 + parts->k_low + (d + i * FLOATS) * sizeof(uint16_t)),
                                 floats_load_half(q4 + parts->k_high + (d + i * FLOATS) * sizeof(uint16_t)));
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t += 2) {
        uint16_t *even = (uint16_t *)(uintptr_t)q4_k_row(layout, chunk, t) + d,
                 *odd = (uint16_t *)(uintptr_t)q4_k_row(layout, chunk, t + 1) + d;
        const uint8_t *line = q4 + parts->k_codes + t / 2 * parts->k_dimension + d;
        for (size_t i = 0; i < count; i++) {
            codes both = codes_load(line + i * FLOATS);
            decode(&decoders[i], codes_even(both), even + i * FLOATS);
            decode(&decoders[i], codes_odd(both), odd + i * FLOATS);
        }
    }
}

/* ---- V: a group of count FLOATS channels from d on, of two tokens from t on ---- */

FLOATS_INLINE struct encoder v_range(const uint16_t *row, const size_t count, uint16_t *low, uint16_t *high) {
    struct extent extent = extent_none();
    for (size_t i = 0; i < count; i++) extent_add(&extent, floats_load_half(row + i * FLOATS));
    const floats minus = floats_set(-1.0f); /* the largest is the smallest of the negated */
    floats broken = floats_set(floats_sum(extent.broken));
    struct extent all = {floats_min_all(extent.low),
                         floats_multiply(floats_min_all(floats_multiply(extent.high, minus)), minus), broken};
    floats smallest = extent_low(&all), largest = extent_high(&all);
    uint16_t halves[FLOATS];
    floats_store_half(halves, smallest);
    *low = halves[0];
    floats_store_half(halves, largest);
    *high = halves[0];
    return encoder_of(smallest, largest);
}

FLOATS_INLINE void v_encode_group(const struct kv_layout *layout, const void *chunk, const struct q4_parts *parts,
                                  uint8_t *q4, size_t t, size_t d, const size_t count) {
    const uint16_t *even = q4_v_row(layout, chunk, t) + d, *odd = q4_v_row(layout, chunk, t + 1) + d;
    const size_t g = t * parts->groups + d / Q4_V_GROUP;
    uint16_t *low = (uint16_t *)(void *)(q4 + parts->v_low) + g, *high = (uint16_t *)(void *)(q4 + parts->v_high) + g;
    const struct encoder first = v_range(even, count, low, high),
                         second = v_range(odd, count, low + parts->groups, high + parts->groups);
    uint8_t *line = q4 + parts->v_codes + t / 2 * parts->v_dimension + d;
    for (size_t i = 0; i < count; i++)
        codes_store(line + i * FLOATS, encode(&first, even + i * FLOATS), encode(&second, odd + i * FLOATS));
}

FLOATS_INLINE void v_decode_group(const struct kv_layout *layout, void *chunk, const struct q4_parts *parts,
                                  const uint8_t *q4, size_t t, size_t d, const size_t count) {
    uint16_t *even = (uint16_t *)(uintptr_t)q4_v_row(layout, chunk, t) + d,
             *odd = (uint16_t *)(uintptr_t)q4_v_row(layout, chunk, t + 1) + d;
    const size_t g = t * parts->groups + d / Q4_V_GROUP;
    const uint16_t *low = (const uint16_t *)(const void *)(q4 + parts->v_low) + g,
                   *high = (const uint16_t *)(const void *)(q4 + parts->v_high) + g;
    const struct decoder first = decoder_of(halves_set(low), halves_set(high)),
                         second = decoder_of(halves_set(low + parts->groups), halves_set(high + parts->groups));
    const uint8_t *line = q4 + parts->v_codes + t / 2 * parts->v_dimension + d;
    for (size_t i = 0; i < count; i++) {
        codes both = codes_load(line + i * FLOATS);
        decode(&first, codes_even(both), even + i * FLOATS);
        decode(&second, codes_odd(both), odd + i * FLOATS);
    }
}

/* ---- chunks; dimensions are multiples of FLOATS ---- */

static void q4_encode(const struct kv_layout *layout, const void *chunk, void *q4) {
    FLOATS_FILL(kv_rows_fill(layout, FLOATS), codec, codec, q4_encode, layout, chunk, q4)
    ASSERT(layout->k_type == KV_F16 && layout->v_type == KV_F16);
    const struct q4_parts parts = q4_parts_of(layout);
    ASSERT(parts.k_dimension % FLOATS == 0 && parts.v_dimension % FLOATS == 0);
    const size_t k_whole = parts.k_dimension / SPAN * SPAN, v_whole = parts.v_dimension / SPAN * SPAN;
    for (size_t d = 0; d < k_whole; d += SPAN) k_encode_span(layout, chunk, &parts, q4, d, STRIPS);
    if (k_whole < parts.k_dimension)
        k_encode_span(layout, chunk, &parts, q4, k_whole, (parts.k_dimension - k_whole) / FLOATS);
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t += 2) {
        for (size_t d = 0; d < v_whole; d += SPAN) v_encode_group(layout, chunk, &parts, q4, t, d, STRIPS);
        if (v_whole < parts.v_dimension)
            v_encode_group(layout, chunk, &parts, q4, t, v_whole, (parts.v_dimension - v_whole) / FLOATS);
    }
}

static void q4_decode(const struct kv_layout *layout, const void *q4, void *chunk) {
    FLOATS_FILL(kv_rows_fill(layout, FLOATS), codec, codec, q4_decode, layout, q4, chunk)
    ASSERT(layout->k_type == KV_F16 && layout->v_type == KV_F16);
    const struct q4_parts parts = q4_parts_of(layout);
    ASSERT(parts.k_dimension % FLOATS == 0 && parts.v_dimension % FLOATS == 0);
    const size_t k_whole = parts.k_dimension / SPAN * SPAN, v_whole = parts.v_dimension / SPAN * SPAN;
    for (size_t d = 0; d < k_whole; d += SPAN) k_decode_span(layout, chunk, &parts, q4, d, STRIPS);
    if (k_whole < parts.k_dimension)
        k_decode_span(layout, chunk, &parts, q4, k_whole, (parts.k_dimension - k_whole) / FLOATS);
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t += 2) {
        for (size_t d = 0; d < v_whole; d += SPAN) v_decode_group(layout, chunk, &parts, q4, t, d, STRIPS);
        if (v_whole < parts.v_dimension)
            v_decode_group(layout, chunk, &parts, q4, t, v_whole, (parts.v_dimension - v_whole) / FLOATS);
    }
}

FLOATS_INSTALL(codec, codec) { *kernels = (struct codec_kernels){.q4_encode = q4_encode, .q4_decode = q4_decode}; }

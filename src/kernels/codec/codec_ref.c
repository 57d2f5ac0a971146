/* The definition. */
#include <math.h>
#include <stdbool.h>

#include "kernels/codec/codec_internal.h"
#include "tensor/half.h"

size_t kv_q4_chunk_bytes(const struct kv_layout *layout) { return q4_parts_of(layout).bytes; }

static float level(int code, float low, float high) {
    float step = (high - low) * Q4_FIFTEENTH;
    float x = fmaf((float)code, step, low);
    return x < high ? x : high;
}

static int code_of(float x, float low, float high) {
    float range = high - low;
    if (!(range > 0)) return 0; /* constant, or NaN */
    float per_step = 15.0f / range;
    return (int)rintf((x - low) * per_step);
}

struct range {
    float low, high;
    bool broken;
};

static void range_add(struct range *range, float x) {
    if (x < range->low) range->low = x;
    if (x > range->high) range->high = x;
    if (!isfinite(x)) range->broken = true;
}

static void range_store(const struct range *range, uint16_t *low, uint16_t *high) {
    *low = range->broken ? Q4_NAN : float_to_half(range->low + 0.0f); /* +0 for -0 */
    *high = range->broken ? Q4_NAN : float_to_half(range->high + 0.0f);
}

static void code_store(uint8_t *codes, size_t dimension, size_t token, size_t d, int code) {
    uint8_t *byte = codes + token / 2 * dimension + d;
    *byte = (uint8_t)(token % 2 == 0 ? code : *byte | code << 4);
}

static int code_load(const uint8_t *codes, size_t dimension, size_t token, size_t d) {
    return codes[token / 2 * dimension + d] >> token % 2 * 4 & 15;
}

static void q4_encode(const struct kv_layout *layout, const void *chunk, void *q4) {
    ASSERT(layout->k_type == KV_F16 && layout->v_type == KV_F16);
    const struct q4_parts parts = q4_parts_of(layout);
    uint8_t *to = q4;
    uint16_t *k_low = (uint16_t *)(void *)to, *k_high = (uint16_t *)(void *)(to + parts.k_high);
    for (size_t d = 0; d < parts.k_dimension; d++) {
        struct range range = {INFINITY, -INFINITY, false};
        for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) range_add(&range, half_to_float(q4_k_row(layout, chunk, t)[d]));
        range_store(&range, &k_low[d], &k_high[d]);
        for (size_t t = 0; t < KV_CHUNK_TOKENS; t++)
            code_store(to + parts.k_codes, parts.k_dimension, t, d,
                       code_of(half_to_float(q4_k_row(layout, chunk, t)[d]), half_to_float(k_low[d]),
                               half_to_float(k_high[d])));
    }
    uint16_t *v_low = (uint16_t *)(void *)(to + parts.v_low), *v_high = (uint16_t *)(void *)(to + parts.v_high);
    for (size_t g = 0; g < KV_CHUNK_TOKENS * parts.groups; g++) {
        const size_t t = g / parts.groups, begin = g % parts.groups * Q4_V_GROUP,
                     end = begin + Q4_V_GROUP < parts.v_dimension ? begin + Q4_V_GROUP : parts.v_dimension;
        const uint16_t *row = q4_v_row(layout, chunk, t);
        struct range range = {INFINITY, -INFINITY, false};
        for (size_t d = begin; d < end; d++) range_add(&range, half_to_float(row[d]));
        range_store(&range, &v_low[g], &v_high[g]);
        for (size_t d = begin; d < end; d++)
            code_store(to + parts.v_codes, parts.v_dimension, t, d,
                       code_of(half_to_float(row[d]), half_to_float(v_low[g]), half_to_float(v_high[g])));
    }
}

static void q4_decode(const struct kv_layout *layout, const void *q4, void *chunk) {
    ASSERT(layout->k_type == KV_F16 && layout->v_type == KV_F16);
    const struct q4_parts parts = q4_parts_of(layout);
    const uint8_t *from = q4;
    const uint16_t *k_low = (const uint16_t *)q4, *k_high = k_low + parts.k_dimension;
    const uint16_t *v_low = k_high + parts.k_dimension, *v_high = v_low + KV_CHUNK_TOKENS * parts.groups;
    for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) {
        uint16_t *k = (uint16_t *)(uintptr_t)q4_k_row(layout, chunk, t);
        uint16_t *v = (uint16_t *)(uintptr_t)q4_v_row(layout, chunk, t);
        for (size_t d = 0; d < parts.k_dimension; d++)
            k[d] = float_to_half(level(code_load(from + parts.k_codes, parts.k_dimension, t, d),
                                       half_to_float(k_low[d]), half_to_float(k_high[d])));
        for (size_t d = 0; d < parts.v_dimension; d++) {
            const size_t g = t * parts.groups + d / Q4_V_GROUP;
            v[d] = float_to_half(level(code_load(from + parts.v_codes, parts.v_dimension, t, d),
                                       half_to_float(v_low[g]), half_to_float(v_high[g])));
        }
    }
}

void codec_ref_install(struct codec_kernels *kernels) {
    kernels->q4_encode = q4_encode;
    kernels->q4_decode = q4_decode;
}

/* weights: random and extreme matrices of every weight type, for the tests and benchmarks that multiply by them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/random.h"
#include "lab/quantize/quantizers.h"
#include "tensor/half.h"
#include "tensor/type.h"

/* What says how large a block's values are. */
enum scale_kind {
    SCALE_HALVES,
    SCALE_QUARTERS, /* IQ1_M: a half, in the high nibbles of four words at `d` */
    SCALE_E8M0,     /* MXFP4: a byte at `d` */
    SCALE_E4M3,     /* NVFP4: four bytes at `d` */
};

/* Where a block keeps its halves (d, then dmin or m: -1 if none) and its codes.  Of `exact` types kernels multiply
 * whole numbers without an offset, so that a sum is bounded by its own terms. */
struct block_layout {
    enum tensor_type type;
    int d, m;
    int codes_begin, codes_end;
    enum scale_kind scale;
    bool exact;
};

static const struct block_layout block_layouts[] = {
    {TENSOR_Q4_0, 0, -1, 2, 18, SCALE_HALVES, false},    {TENSOR_Q4_1, 0, 2, 4, 20, SCALE_HALVES, false},
    {TENSOR_Q5_0, 0, -1, 2, 22, SCALE_HALVES, false},    {TENSOR_Q5_1, 0, 2, 4, 24, SCALE_HALVES, false},
    {TENSOR_Q8_0, 0, -1, 2, 34, SCALE_HALVES, false},    {TENSOR_IQ4_NL, 0, -1, 2, 18, SCALE_HALVES, false},
    {TENSOR_Q2_K, 80, 82, 16, 80, SCALE_HALVES, false},  {TENSOR_Q3_K, 108, -1, 0, 96, SCALE_HALVES, false},
    {TENSOR_Q4_K, 0, 2, 16, 144, SCALE_HALVES, false},   {TENSOR_Q5_K, 0, 2, 16, 176, SCALE_HALVES, false},
    {TENSOR_Q6_K, 208, -1, 0, 192, SCALE_HALVES, false}, {TENSOR_IQ4_XS, 0, -1, 8, 136, SCALE_HALVES, false},
    {TENSOR_MXFP4, 0, -1, 1, 17, SCALE_E8M0, true},      {TENSOR_NVFP4, 0, -1, 4, 36, SCALE_E4M3, true},
    {TENSOR_IQ3_S, 0, -1, 2, 106, SCALE_HALVES, true},   {TENSOR_IQ3_XXS, 0, -1, 2, 98, SCALE_HALVES, true},
    {TENSOR_IQ2_S, 0, -1, 2, 74, SCALE_HALVES, true},    {TENSOR_IQ2_XS, 0, -1, 2, 66, SCALE_HALVES, true},
    {TENSOR_IQ2_XXS, 0, -1, 2, 66, SCALE_HALVES, true},  {TENSOR_IQ1_S, 0, -1, 2, 34, SCALE_HALVES, true},
    {TENSOR_IQ1_M, 48, -1, 0, 32, SCALE_QUARTERS, true},
};

static inline const struct block_layout *block_layout_find(enum tensor_type type) {
    for (size_t i = 0; i < sizeof block_layouts / sizeof block_layouts[0]; i++)
        if (block_layouts[i].type == type) return &block_layouts[i];
    return NULL;
}

enum weight_kind {
    WEIGHT_RANDOM,    /* any codes, scales of ordinary size and both signs */
    WEIGHT_LARGEST,   /* the largest finite scales; codes all 0x00, 0xff, 0x80 or 0x7f by block */
    WEIGHT_SUBNORMAL, /* subnormal scales */
    WEIGHT_ZERO,      /* every byte zero in every other block */
    WEIGHT_KINDS
};

static inline void half_put(uint8_t *at, float value) {
    uint16_t half = float_to_half(value);
    memcpy(at, &half, sizeof half);
}

static inline float weight_scale(struct random *random, enum weight_kind kind) {
    float sign = random_next(random) & 1 ? 1 : -1;
    if (kind == WEIGHT_LARGEST) return sign * 65504;
    if (kind == WEIGHT_SUBNORMAL) return sign * (float)random_below(random, 1024) * 0x1.0p-24f;
    return sign * (float)(0.001 + 0.02 * random_double(random));
}

/* The scale at the block's `d` (or `m`), as the type writes it; its sign where it has one. */
static inline void scale_put(const struct block_layout *layout, uint8_t *block, int at, float value) {
    const uint16_t half = float_to_half(value);
    switch (layout->scale) {
    case SCALE_HALVES: half_put(block + at, value); break;
    case SCALE_QUARTERS:
        for (int i = 0; i < 4; i++) {
            uint8_t *byte = block + at + 2 * i + 1;
            *byte = (uint8_t)((*byte & 15) | (half >> 4 * i & 15) << 4);
        }
        break;
    case SCALE_E8M0: block[at] = (uint8_t)((half >> 10 & 31) * 2 + 96); break; /* 2^-32 to 2^30 */
    case SCALE_E4M3:
        for (int i = 0; i < 4; i++) block[at + i] = (uint8_t)(half >> (i + 1));
        break;
    }
}

/* Types whose scales cannot say infinity or NaN. */
static inline bool weight_is_finite(enum tensor_type type) {
    return type == TENSOR_MXFP4 || type == TENSOR_NVFP4;
}

static inline void weight_fill_plain(struct random *random, enum tensor_type type, enum weight_kind kind,
                                     void *data, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float value =
            weight_scale(random, kind) * (kind == WEIGHT_LARGEST ? 1 : (float)random_normal(random));
        if (kind == WEIGHT_ZERO && i / 8 % 2) value = 0;
        uint16_t half = type == TENSOR_F16 ? float_to_half(value) : float_to_bfloat(value);
        if (type == TENSOR_F32)
            memcpy((char *)data + i * 4, &value, 4);
        else
            memcpy((char *)data + i * 2, &half, 2);
    }
}

/* The scale (or, as a file might have it, the minimum) of a row's first block, or its first weight. */
static inline void weight_spoil(enum tensor_type type, void *row, float value, bool minimum) {
    const struct block_layout *layout = block_layout_find(type);
    if (layout != NULL)
        scale_put(layout, row, minimum && layout->m >= 0 ? layout->m : layout->d, value);
    else if (type == TENSOR_F32)
        memcpy(row, &value, sizeof value);
    else if (type == TENSOR_F16)
        half_put(row, value);
    else
        memcpy(row, &(uint16_t){float_to_bfloat(value)}, sizeof(uint16_t));
}

/* `elements` of the type, a whole number of blocks. */
static inline void weight_fill(struct random *random, enum tensor_type type, enum weight_kind kind,
                               void *data, size_t elements) {
    const struct tensor_type_info *info = tensor_type_info(type);
    const struct block_layout *layout = block_layout_find(type);
    if (layout == NULL) {
        weight_fill_plain(random, type, kind, data, elements);
        return;
    }
    static const uint8_t extremes[4] = {0x00, 0xff, 0x80, 0x7f};
    for (size_t b = 0; b < elements / info->block_elements; b++) {
        uint8_t *block = (uint8_t *)data + b * info->block_bytes;
        for (size_t i = 0; i < info->block_bytes; i++) block[i] = (uint8_t)random_next(random);
        scale_put(layout, block, layout->d, weight_scale(random, kind));
        if (layout->m >= 0) half_put(block + layout->m, weight_scale(random, kind));
        if (kind == WEIGHT_LARGEST) { /* scales of groups too: they are what surrounds the codes */
            uint8_t code = extremes[random_below(random, 4)], scale = extremes[random_below(random, 4)];
            for (int i = 0; i < (int)info->block_bytes; i++) {
                bool is_half = i == layout->d || i == layout->d + 1;
                if (layout->m >= 0) is_half = is_half || i == layout->m || i == layout->m + 1;
                if (layout->scale == SCALE_E8M0) is_half = i == 0;
                if (layout->scale == SCALE_E4M3) is_half = i < 4;
                if (!is_half) block[i] = i >= layout->codes_begin && i < layout->codes_end ? code : scale;
            }
            if (layout->scale == SCALE_QUARTERS)
                scale_put(layout, block, layout->d, weight_scale(random, kind));
        }
        if (kind == WEIGHT_ZERO && b % 2) memset(block, 0, info->block_bytes);
    }
}

/* The row in the type; random blocks of one that is only read. */
static inline void weight_store(struct random *random, enum tensor_type type, const float *row, void *target,
                                size_t count) {
    row_quantizer *quantize = row_quantizer_of(type);
    if (quantize != NULL)
        quantize(row, target, count);
    else
        weight_fill(random, type, WEIGHT_RANDOM, target, count);
}

/* Quantisers of the plain types and of the types with blocks of 32 values. */
#include <math.h>
#include <string.h>

#include "kernels/convert/codes.h"
#include "lab/quantize/quantizers.h"
#include "lab/quantize/search.h"
#include "tensor/half.h"

static void quantize_f32(const float *source, void *target, size_t count) {
    memcpy(target, source, count * sizeof *source);
}

static void quantize_f16(const float *x, void *target, size_t count) {
    uint16_t *y = target;
    for (size_t i = 0; i < count; i++) y[i] = float_to_half(x[i]);
}

static void quantize_bf16(const float *x, void *target, size_t count) {
    uint16_t *y = target;
    for (size_t i = 0; i < count; i++) y[i] = float_to_bfloat(x[i]);
}

/* No search: at 8 bits the largest value decides.  The same bytes as other GGUF writers make. */
static void quantize_q8_0(const float *x, void *target, size_t count) {
    struct block_q8_0 *block = target;
    for (size_t b = 0; b < count / BLOCK_32; b++, x += BLOCK_32) {
        float largest = 0;
        for (size_t i = 0; i < BLOCK_32; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
        float d = largest / 127, inverse = d >= QUANTIZE_TINY ? 1 / d : 0;
        block[b].d = half_finite(d);
        for (size_t i = 0; i < BLOCK_32; i++) block[b].qs[i] = (int8_t)roundf(x[i] * inverse);
    }
}

/* The step as the block stores it, and the levels nearest for exactly that step. */
static uint16_t grid_encode(const struct grid *grid, const float *x, int8_t level[BLOCK_32]) {
    uint16_t d = half_finite(grid_step_find(grid, x, BLOCK_32));
    grid_error(grid, x, BLOCK_32, half_to_float(d), level);
    return d;
}

static void quantize_q4_0(const float *x, void *target, size_t count) {
    static const struct grid grid = {.lowest = -8, .highest = 7};
    struct block_q4_0 *block = target;
    for (size_t b = 0; b < count / BLOCK_32; b++, x += BLOCK_32) {
        int8_t level[BLOCK_32];
        block[b].d = grid_encode(&grid, x, level);
        for (size_t i = 0; i < 16; i++) block[b].qs[i] = (uint8_t)((level[i] + 8) | (level[i + 16] + 8) << 4);
    }
}

static void quantize_q5_0(const float *x, void *target, size_t count) {
    static const struct grid grid = {.lowest = -16, .highest = 15};
    struct block_q5_0 *block = target;
    for (size_t b = 0; b < count / BLOCK_32; b++, x += BLOCK_32) {
        int8_t level[BLOCK_32];
        block[b].d = grid_encode(&grid, x, level);
        memset(block[b].qh, 0, sizeof block[b].qh);
        for (size_t i = 0; i < BLOCK_32; i++) block[b].qh[i / 8] |= (uint8_t)(((level[i] + 16) >> 4) << (i % 8));
        for (size_t i = 0; i < 16; i++)
            block[b].qs[i] = (uint8_t)(((level[i] + 16) & 15) | ((level[i + 16] + 16) & 15) << 4);
    }
}

static void quantize_iq4_nl(const float *x, void *target, size_t count) {
    static const struct grid grid = {.iq4 = true};
    struct block_iq4_nl *block = target;
    for (size_t b = 0; b < count / BLOCK_32; b++, x += BLOCK_32) {
        int8_t level[BLOCK_32];
        block[b].d = grid_encode(&grid, x, level);
        for (size_t i = 0; i < 16; i++) block[b].qs[i] = (uint8_t)(iq4_code(level[i]) | iq4_code(level[i + 16]) << 4);
    }
}

/* Step and minimum as the block stores them, and the codes nearest for exactly those. */
static void affine_encode(const float *x, int highest, uint16_t *d, uint16_t *m, uint8_t code[BLOCK_32]) {
    struct affine found = affine_find(x, BLOCK_32, highest, false);
    *d = half_finite(found.step);
    *m = half_finite(found.minimum);
    struct affine stored = {half_to_float(*d), half_to_float(*m)};
    affine_error(stored, x, BLOCK_32, highest, code);
}

static void quantize_q4_1(const float *x, void *target, size_t count) {
    struct block_q4_1 *block = target;
    for (size_t b = 0; b < count / BLOCK_32; b++, x += BLOCK_32) {
        uint8_t code[BLOCK_32];
        affine_encode(x, 15, &block[b].d, &block[b].m, code);
        for (size_t i = 0; i < 16; i++) block[b].qs[i] = (uint8_t)(code[i] | code[i + 16] << 4);
    }
}

static void quantize_q5_1(const float *x, void *target, size_t count) {
    struct block_q5_1 *block = target;
    for (size_t b = 0; b < count / BLOCK_32; b++, x += BLOCK_32) {
        uint8_t code[BLOCK_32];
        affine_encode(x, 31, &block[b].d, &block[b].m, code);
        memset(block[b].qh, 0, sizeof block[b].qh);
        for (size_t i = 0; i < BLOCK_32; i++) block[b].qh[i / 8] |= (uint8_t)((code[i] >> 4) << (i % 8));
        for (size_t i = 0; i < 16; i++) block[b].qs[i] = (uint8_t)((code[i] & 15) | (code[i + 16] & 15) << 4);
    }
}

row_quantizer *row_quantizer_of(enum tensor_type type) {
    switch (type) {
    case TENSOR_F32: return quantize_f32;
    case TENSOR_F16: return quantize_f16;
    case TENSOR_BF16: return quantize_bf16;
    case TENSOR_Q4_0: return quantize_q4_0;
    case TENSOR_Q4_1: return quantize_q4_1;
    case TENSOR_Q5_0: return quantize_q5_0;
    case TENSOR_Q5_1: return quantize_q5_1;
    case TENSOR_Q8_0: return quantize_q8_0;
    case TENSOR_IQ4_NL: return quantize_iq4_nl;
    default: return row_quantizer_of_256(type);
    }
}

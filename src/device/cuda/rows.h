/* rows: what kernels that work on rows of floats share: whether a row is there, sums over a block, norms, and
 * inputs of 8 bits. */
#pragma once

#include "device/cuda/dialect.h"
#include "device/cuda/kernels.h"

/* Rows of this step; `capacity` where there is no step block. */
DEVICE uint32_t step_rows(uint64_t step, uint32_t capacity) {
    return step == 0 ? capacity : smaller(at<struct step_head>(step)->row_count, capacity);
}

/* Over 256 threads, in an order of its own whatever the values; `sums` is used once. */
DEVICE float block_sum(float value, float sums[8]) {
    value = warp_sum(value);
    if (lane_index() == 0) sums[thread_index() / 32] = value;
    block_barrier();
    float sum = 0;
    UNROLL
    for (uint32_t i = 0; i < 8; i++) sum += sums[i];
    return sum;
}

/* ---- 16 columns of a row at a time: half h of a block of 32 */

DEVICE void half_load(const float *x, uint32_t h, float v[16]) {
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const struct f32x4 a = *(const struct f32x4 *)(x + h * 16 + i * 4);
        v[i * 4] = a.x, v[i * 4 + 1] = a.y, v[i * 4 + 2] = a.z, v[i * 4 + 3] = a.w;
    }
}

struct norm_factors {
    float mean, inverse;
};

/* Of a row of `columns`, multiples of 16, by 256 threads.  b tells LayerNorm. */
DEVICE struct norm_factors norm_factors_of(const float *x, uint32_t columns, bool is_layer, float epsilon,
                                           struct norm_shared *shared) {
    struct norm_factors f = {0, 0};
    float v[16], sum = 0;
    if (is_layer) {
        for (uint32_t h = thread_index(); h < columns / 16; h += 256) {
            half_load(x, h, v);
            UNROLL
            for (uint32_t i = 0; i < 16; i++) sum += v[i];
        }
        f.mean = block_sum(sum, shared->sums[0]) / (float)columns;
        sum = 0;
    }
    for (uint32_t h = thread_index(); h < columns / 16; h += 256) {
        half_load(x, h, v);
        UNROLL
        for (uint32_t i = 0; i < 16; i++) sum = multiply_add(v[i] - f.mean, v[i] - f.mean, sum);
    }
    f.inverse = 1.0f / __builtin_sqrtf(block_sum(sum, shared->sums[1]) / (float)columns + epsilon);
    return f;
}

DEVICE void half_norm(float v[16], uint32_t h, struct norm_factors f, const float *w, const float *b) {
    float g[16];
    half_load(w, h, g);
    UNROLL
    for (uint32_t i = 0; i < 16; i++) v[i] = (v[i] - f.mean) * f.inverse * g[i];
    if (b == 0) return;
    half_load(b, h, g);
    UNROLL
    for (uint32_t i = 0; i < 16; i++) v[i] += g[i];
}

/* ---- inputs of 8 bits (kernels.h) */

enum : uint32_t { FLOAT_INFINITE = 0x7f800000u };

/* The scale of a block whose largest magnitude has these bits, and what its values are multiplied with: both 0
 * where all are about 0; NaN and 0 where one is not finite, so that the outputs show it. */
DEVICE float input_scale(uint32_t largest_bits, float *inverse) {
    const float largest = bits_float(largest_bits);
    *inverse = 0;
    if (largest_bits >= FLOAT_INFINITE) return bits_float(0x7fffffffu);
    if (largest < 1e-30f) return 0;
    *inverse = 127 / largest;
    const uint32_t bits = float_bits(largest / 127); /* to a half's precision, ties to even */
    return bits_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

/* 0 where the scale is NaN, for which there is no code. */
DEVICE int32_t input_code(float x, float inverse) { return inverse == 0 ? 0 : (int32_t)__builtin_rintf(x * inverse); }

/* A row's planes. */
struct input_row {
    struct u32x4 *low, *high;
    struct input_numbers *numbers;
};
DEVICE struct input_row input_row_of(char *row, uint32_t columns) {
    const uint32_t blocks = columns / 32;
    return {(struct u32x4 *)(void *)row, (struct u32x4 *)(void *)(row + blocks * 16),
            (struct input_numbers *)(void *)(row + blocks * 32)};
}

/* Two neighbour lanes have a block's halves. */
DEVICE void half_quantize(const float v[16], uint32_t h, bool takes, const struct input_row &to) {
    uint32_t largest = 0, words[4];
    UNROLL
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t bits = float_bits(v[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    const uint32_t other = lane_xor(largest, 1);
    float inverse;
    const float scale = input_scale(other > largest ? other : largest, &inverse);
    int32_t sum = 0;
    UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        words[j] = 0;
        UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            const int32_t code = input_code(v[j * 4 + k], inverse);
            sum += code;
            words[j] |= ((uint32_t)code & 255) << 8 * k;
        }
    }
    const int32_t sum_other = (int32_t)lane_xor((uint32_t)sum, 1);
    if (!takes) return;
    (h % 2 == 0 ? to.low : to.high)[h / 2] = {words[0], words[1], words[2], words[3]};
    if (h % 2 == 0) to.numbers[h / 2] = {scale, {(int16_t)sum, (int16_t)sum_other}};
}

/* A row of `columns`, multiples of 32, normed if w is not 0, by 256 threads.  A barrier follows before it is read. */
DEVICE void row_quantize(const float *x, uint32_t columns, const float *w, const float *b, bool is_layer, float epsilon,
                         struct norm_shared *shared, const struct input_row &to) {
    struct norm_factors f = {0, 1};
    if (w != 0) f = norm_factors_of(x, columns, is_layer, epsilon, shared);
    const uint32_t halves = columns / 16;
    for (uint32_t first = 0; first < halves; first += 256) {
        const uint32_t h = first + thread_index();
        float v[16];
        UNROLL
        for (uint32_t i = 0; i < 16; i++) v[i] = 0;
        if (h < halves) {
            half_load(x, h, v);
            if (w != 0) half_norm(v, h, f, w, b);
        }
        half_quantize(v, h, h < halves, to);
    }
}

/* A block of 32 by one warp, a value a lane. */
DEVICE void warp_quantize(float value, uint32_t block, const struct input_row &to) {
    const uint32_t lane = lane_index();
    float inverse;
    const float scale = input_scale(warp_largest(float_bits(value) & 0x7fffffffu), &inverse);
    const int32_t code = input_code(value, inverse);
    int32_t sum = code;
    UNROLL
    for (uint32_t by = 8; by > 0; by >>= 1) sum += (int32_t)lane_xor((uint32_t)sum, by);
    const int32_t sum_high = (int32_t)lane_xor((uint32_t)sum, 16);
    ((int8_t *)((lane < 16 ? to.low : to.high) + block))[lane % 16] = (int8_t)code;
    if (lane == 0) to.numbers[block] = {scale, {(int16_t)sum, (int16_t)sum_high}};
}

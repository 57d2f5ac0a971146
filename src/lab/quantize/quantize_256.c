/* Quantisers of the types with blocks of 256 values in groups with small integer scales.
 *
 * Three passes: the best step (and minimum) of each group alone; the block's scale from the largest of
 * them, and for each group the integer scale, of the nearest and its neighbours, with the least error;
 * then the block's scale again, by least squares, for the codes that this chose. */
#include <math.h>
#include <string.h>

#include "kernels/convert/codes.h"
#include "lab/quantize/quantizers.h"
#include "lab/quantize/search.h"
#include "tensor/half.h"

static int clamp_int(int value, int low, int high) { return value < low ? low : value > high ? high : value; }

static float inverse_of(float value) { return fabsf(value) < QUANTIZE_TINY ? 0 : 1 / value; }

/* Types with value = d · scale · level: Q3_K, Q6_K, IQ4_XS. */
struct scaled_kind {
    struct grid grid;
    size_t group; /* values per group */
    int scale_lowest, scale_highest;
};

struct scaled_block {
    uint16_t d;
    int scale[16];
    int8_t level[BLOCK_256];
};

static float scaled_levels(const struct scaled_kind *kind, const float *x, float d, struct scaled_block *block) {
    float error = 0;
    for (size_t j = 0; j < BLOCK_256 / kind->group; j++)
        error += grid_error(&kind->grid, x + j * kind->group, kind->group, d * (float)block->scale[j],
                            block->level + j * kind->group);
    return error;
}

static void scaled_scale_choose(const struct scaled_kind *kind, const float *x, float d, float step, int *scale) {
    int8_t level[GROUP_MAX];
    int nearest = round_near(fmaxf(fminf(step * inverse_of(d), 200), -200));
    float best = INFINITY;
    for (int candidate = nearest - 1; candidate <= nearest + 1; candidate++) {
        int clamped = clamp_int(candidate, kind->scale_lowest, kind->scale_highest);
        float error = grid_error(&kind->grid, x, kind->group, d * (float)clamped, level);
        if (error < best) best = error, *scale = clamped;
    }
}

static void scaled_encode(const struct scaled_kind *kind, const float *x, struct scaled_block *block) {
    size_t groups = BLOCK_256 / kind->group;
    float step[16], extreme = 0;
    memset(block, 0, sizeof *block);
    for (size_t j = 0; j < groups; j++) {
        step[j] = grid_step_find(&kind->grid, x + j * kind->group, kind->group);
        if (fabsf(step[j]) > fabsf(extreme)) extreme = step[j];
    }
    block->d = half_finite(extreme / (float)kind->scale_lowest);
    float d = half_to_float(block->d);
    for (size_t j = 0; j < groups; j++) scaled_scale_choose(kind, x + j * kind->group, d, step[j], &block->scale[j]);
    float error = scaled_levels(kind, x, d, block);

    double xl = 0, ll = 0;
    for (size_t i = 0; i < BLOCK_256; i++) {
        double l = (double)block->scale[i / kind->group] * block->level[i];
        xl += x[i] * l, ll += l * l;
    }
    if (!(ll > 0)) return;
    struct scaled_block refit = *block;
    refit.d = half_finite((float)(xl / ll));
    if (scaled_levels(kind, x, half_to_float(refit.d), &refit) < error) *block = refit;
}

/* Types with value = d · scale · code − dmin · minimum: Q2_K, Q4_K, Q5_K. */
struct affine_kind {
    size_t group;
    int code_highest, scale_highest;
};

struct affine_block {
    uint16_t d, dmin;
    int scale[16], minimum[16];
    uint8_t code[BLOCK_256];
};

static float affine_codes(const struct affine_kind *kind, const float *x, struct affine_block *block) {
    float d = half_to_float(block->d), dmin = half_to_float(block->dmin), error = 0;
    for (size_t j = 0; j < BLOCK_256 / kind->group; j++) {
        struct affine stored = {d * (float)block->scale[j], -dmin * (float)block->minimum[j]};
        error +=
            affine_error(stored, x + j * kind->group, kind->group, kind->code_highest, block->code + j * kind->group);
    }
    return error;
}

static void affine_scales_choose(const struct affine_kind *kind, const float *x, struct affine wanted,
                                 struct affine_block *block, size_t j) {
    float d = half_to_float(block->d), dmin = half_to_float(block->dmin), best = INFINITY;
    int scale = clamp_int(round_near(fminf(wanted.step * inverse_of(d), 100)), 0, kind->scale_highest);
    int minimum = clamp_int(round_near(fminf(-wanted.minimum * inverse_of(dmin), 100)), 0, kind->scale_highest);
    uint8_t code[GROUP_MAX];
    for (int a = -1; a <= 1; a++)
        for (int b = -1; b <= 1; b++) {
            int s = clamp_int(scale + a, 0, kind->scale_highest), m = clamp_int(minimum + b, 0, kind->scale_highest);
            struct affine stored = {d * (float)s, -dmin * (float)m};
            float error = affine_error(stored, x, kind->group, kind->code_highest, code);
            if (error < best) best = error, block->scale[j] = s, block->minimum[j] = m;
        }
}

/* d and dmin by least squares for the chosen scales, minima and codes. */
static void affine_refit(const struct affine_kind *kind, const float *x, struct affine_block *block) {
    double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    for (size_t i = 0; i < BLOCK_256; i++) {
        double a = (double)block->scale[i / kind->group] * block->code[i];
        double b = -(double)block->minimum[i / kind->group];
        aa += a * a, ab += a * b, bb += b * b, xa += x[i] * a, xb += x[i] * b;
    }
    double determinant = aa * bb - ab * ab;
    if (!(determinant > 1e-9 * aa * bb)) return;
    float d = (float)((xa * bb - xb * ab) / determinant), dmin = (float)((aa * xb - ab * xa) / determinant);
    if (d > 0 && dmin >= 0) {
        block->d = half_finite(d);
        block->dmin = half_finite(dmin);
    }
}

static void affine_encode(const struct affine_kind *kind, const float *x, struct affine_block *block) {
    size_t groups = BLOCK_256 / kind->group;
    struct affine found[16];
    float step_max = 0, minimum_max = 0;
    memset(block, 0, sizeof *block);
    for (size_t j = 0; j < groups; j++) {
        found[j] = affine_find(x + j * kind->group, kind->group, kind->code_highest, true);
        step_max = fmaxf(step_max, found[j].step);
        minimum_max = fmaxf(minimum_max, -found[j].minimum);
    }
    block->d = half_finite(step_max / (float)kind->scale_highest);
    block->dmin = half_finite(minimum_max / (float)kind->scale_highest);
    for (size_t j = 0; j < groups; j++) affine_scales_choose(kind, x + j * kind->group, found[j], block, j);
    float error = affine_codes(kind, x, block);
    struct affine_block refit = *block;
    affine_refit(kind, x, &refit);
    for (size_t j = 0; j < groups; j++) affine_scales_choose(kind, x + j * kind->group, found[j], &refit, j);
    if (affine_codes(kind, x, &refit) < error) *block = refit;
}

static void put_2bit(uint8_t qs[64], size_t i, int code) {
    qs[i / 128 * 32 + i % 32] |= (uint8_t)(code << (i % 128 / 32 * 2));
}

static void quantize_q2_k(const float *x, void *target, size_t count) {
    static const struct affine_kind kind = {16, 3, 15};
    struct block_q2_k *block = target;
    for (size_t b = 0; b < count / BLOCK_256; b++, x += BLOCK_256) {
        struct affine_block found;
        affine_encode(&kind, x, &found);
        memset(&block[b], 0, sizeof block[b]);
        block[b].d = found.d, block[b].dmin = found.dmin;
        for (size_t j = 0; j < 16; j++) block[b].scales[j] = (uint8_t)(found.scale[j] | found.minimum[j] << 4);
        for (size_t i = 0; i < BLOCK_256; i++) put_2bit(block[b].qs, i, found.code[i]);
    }
}

static void quantize_q3_k(const float *x, void *target, size_t count) {
    static const struct scaled_kind kind = {{.lowest = -4, .highest = 3}, 16, -32, 31};
    struct block_q3_k *block = target;
    for (size_t b = 0; b < count / BLOCK_256; b++, x += BLOCK_256) {
        struct scaled_block found;
        scaled_encode(&kind, x, &found);
        memset(&block[b], 0, sizeof block[b]);
        block[b].d = found.d;
        for (size_t j = 0; j < 16; j++) {
            int scale = found.scale[j] + 32;
            block[b].scales[j % 8] |= (uint8_t)((scale & 15) << (j / 8 * 4));
            block[b].scales[8 + j % 4] |= (uint8_t)((scale >> 4) << (j / 4 * 2));
        }
        for (size_t i = 0; i < BLOCK_256; i++) {
            int code = found.level[i] + 4;
            put_2bit(block[b].qs, i, code & 3);
            block[b].hmask[i % 32] |= (uint8_t)((code >> 2) << (i / 32));
        }
    }
}

/* The 12 bytes of 6-bit scales and minima of Q4_K and Q5_K. */
static void q4_k_scales_put(const struct affine_block *found, uint8_t scales[12]) {
    memset(scales, 0, 12);
    for (size_t j = 0; j < 4; j++) {
        scales[j] = (uint8_t)(found->scale[j] | (found->scale[j + 4] >> 4) << 6);
        scales[j + 4] = (uint8_t)(found->minimum[j] | (found->minimum[j + 4] >> 4) << 6);
        scales[j + 8] = (uint8_t)((found->scale[j + 4] & 15) | (found->minimum[j + 4] & 15) << 4);
    }
}

static void put_nibble(uint8_t *qs, size_t i, int code) {
    qs[i / 64 * 32 + i % 32] |= (uint8_t)((code & 15) << (i % 64 / 32 * 4));
}

static void quantize_q4_k(const float *x, void *target, size_t count) {
    static const struct affine_kind kind = {32, 15, 63};
    struct block_q4_k *block = target;
    for (size_t b = 0; b < count / BLOCK_256; b++, x += BLOCK_256) {
        struct affine_block found;
        affine_encode(&kind, x, &found);
        memset(&block[b], 0, sizeof block[b]);
        block[b].d = found.d, block[b].dmin = found.dmin;
        q4_k_scales_put(&found, block[b].scales);
        for (size_t i = 0; i < BLOCK_256; i++) put_nibble(block[b].qs, i, found.code[i]);
    }
}

static void quantize_q5_k(const float *x, void *target, size_t count) {
    static const struct affine_kind kind = {32, 31, 63};
    struct block_q5_k *block = target;
    for (size_t b = 0; b < count / BLOCK_256; b++, x += BLOCK_256) {
        struct affine_block found;
        affine_encode(&kind, x, &found);
        memset(&block[b], 0, sizeof block[b]);
        block[b].d = found.d, block[b].dmin = found.dmin;
        q4_k_scales_put(&found, block[b].scales);
        for (size_t i = 0; i < BLOCK_256; i++) {
            put_nibble(block[b].qs, i, found.code[i]);
            block[b].qh[i % 32] |= (uint8_t)((found.code[i] >> 4) << (i / 32));
        }
    }
}

static void quantize_q6_k(const float *x, void *target, size_t count) {
    static const struct scaled_kind kind = {{.lowest = -32, .highest = 31}, 16, -128, 127};
    struct block_q6_k *block = target;
    for (size_t b = 0; b < count / BLOCK_256; b++, x += BLOCK_256) {
        struct scaled_block found;
        scaled_encode(&kind, x, &found);
        memset(&block[b], 0, sizeof block[b]);
        block[b].d = found.d;
        for (size_t j = 0; j < 16; j++) block[b].scales[j] = (int8_t)found.scale[j];
        for (size_t i = 0; i < BLOCK_256; i++) {
            size_t half = i / 128, k = i % 128;
            int code = found.level[i] + 32;
            block[b].ql[half * 64 + k % 64] |= (uint8_t)((code & 15) << (k / 64 * 4));
            block[b].qh[half * 32 + k % 32] |= (uint8_t)((code >> 4) << (k / 32 * 2));
        }
    }
}

static void quantize_iq4_xs(const float *x, void *target, size_t count) {
    static const struct scaled_kind kind = {{.iq4 = true}, 32, -32, 31};
    struct block_iq4_xs *block = target;
    for (size_t b = 0; b < count / BLOCK_256; b++, x += BLOCK_256) {
        struct scaled_block found;
        scaled_encode(&kind, x, &found);
        memset(&block[b], 0, sizeof block[b]);
        block[b].d = found.d;
        for (size_t j = 0; j < 8; j++) {
            int scale = found.scale[j] + 32;
            block[b].scales_l[j / 2] |= (uint8_t)((scale & 15) << (j % 2 * 4));
            block[b].scales_h |= (uint16_t)((scale >> 4) << (2 * j));
            for (size_t i = 0; i < 16; i++) {
                uint8_t low = iq4_code(found.level[j * 32 + i]), high = iq4_code(found.level[j * 32 + i + 16]);
                block[b].qs[j * 16 + i] = (uint8_t)(low | high << 4);
            }
        }
    }
}

row_quantizer *row_quantizer_of_256(enum tensor_type type) {
    switch (type) {
    case TENSOR_Q2_K: return quantize_q2_k;
    case TENSOR_Q3_K: return quantize_q3_k;
    case TENSOR_Q4_K: return quantize_q4_k;
    case TENSOR_Q5_K: return quantize_q5_k;
    case TENSOR_Q6_K: return quantize_q6_k;
    case TENSOR_IQ4_XS: return quantize_iq4_xs;
    default: return NULL;
    }
}

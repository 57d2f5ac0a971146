/* The definition of every element type: the value of element i, in the order of float
 * operations that the GGUF reference has, so that results are equal bit for bit
 * (tests/kernels/golden_blocks.h holds rows decoded by another implementation). */
#include <string.h>

#include "kernels/convert/codes.h"
#include "kernels/convert/convert.h"
#include "kernels/convert/grid.h"
#include "tensor/half.h"

static void dequantize_f32(const void *source, float *target, size_t count) {
    memcpy(target, source, count * sizeof *target);
}

static void dequantize_f16(const void *source, float *target, size_t count) {
    const uint16_t *x = source;
    for (size_t i = 0; i < count; i++) target[i] = half_to_float(x[i]);
}

static void dequantize_bf16(const void *source, float *target, size_t count) {
    const uint16_t *x = source;
    for (size_t i = 0; i < count; i++) target[i] = bfloat_to_float(x[i]);
}

static void dequantize_q4_0(const void *source, float *y, size_t count) {
    const struct block_q4_0 *block = source;
    for (size_t b = 0; b < count / BLOCK_32; b++, y += BLOCK_32) {
        float d = half_to_float(block[b].d);
        for (size_t i = 0; i < 16; i++) {
            y[i] = (float)((block[b].qs[i] & 15) - 8) * d;
            y[i + 16] = (float)((block[b].qs[i] >> 4) - 8) * d;
        }
    }
}

static void dequantize_q4_1(const void *source, float *y, size_t count) {
    const struct block_q4_1 *block = source;
    for (size_t b = 0; b < count / BLOCK_32; b++, y += BLOCK_32) {
        float d = half_to_float(block[b].d), m = half_to_float(block[b].m);
        for (size_t i = 0; i < 16; i++) {
            y[i] = (float)(block[b].qs[i] & 15) * d + m;
            y[i + 16] = (float)(block[b].qs[i] >> 4) * d + m;
        }
    }
}

/* The fifth bit of element i of a block of Q5_0 or Q5_1, in its place. */
static int fifth_bit(const uint8_t qh[4], size_t i) { return (qh[i / 8] >> (i % 8) & 1) << 4; }

static void dequantize_q5_0(const void *source, float *y, size_t count) {
    const struct block_q5_0 *block = source;
    for (size_t b = 0; b < count / BLOCK_32; b++, y += BLOCK_32) {
        float d = half_to_float(block[b].d);
        for (size_t i = 0; i < 16; i++) {
            y[i] = (float)(((block[b].qs[i] & 15) | fifth_bit(block[b].qh, i)) - 16) * d;
            y[i + 16] = (float)((block[b].qs[i] >> 4 | fifth_bit(block[b].qh, i + 16)) - 16) * d;
        }
    }
}

static void dequantize_q5_1(const void *source, float *y, size_t count) {
    const struct block_q5_1 *block = source;
    for (size_t b = 0; b < count / BLOCK_32; b++, y += BLOCK_32) {
        float d = half_to_float(block[b].d), m = half_to_float(block[b].m);
        for (size_t i = 0; i < 16; i++) {
            y[i] = (float)((block[b].qs[i] & 15) | fifth_bit(block[b].qh, i)) * d + m;
            y[i + 16] = (float)(block[b].qs[i] >> 4 | fifth_bit(block[b].qh, i + 16)) * d + m;
        }
    }
}

static void dequantize_q8_0(const void *source, float *y, size_t count) {
    const struct block_q8_0 *block = source;
    for (size_t b = 0; b < count / BLOCK_32; b++, y += BLOCK_32) {
        float d = half_to_float(block[b].d);
        for (size_t i = 0; i < BLOCK_32; i++) y[i] = (float)block[b].qs[i] * d;
    }
}

static void dequantize_iq4_nl(const void *source, float *y, size_t count) {
    const struct block_iq4_nl *block = source;
    for (size_t b = 0; b < count / BLOCK_32; b++, y += BLOCK_32) {
        float d = half_to_float(block[b].d);
        for (size_t i = 0; i < 16; i++) {
            y[i] = d * (float)iq4_levels[block[b].qs[i] & 15];
            y[i + 16] = d * (float)iq4_levels[block[b].qs[i] >> 4];
        }
    }
}

/* Q2_K and Q3_K keep 2-bit codes alike: element i of a half of 128 is in byte i % 32, bits 2·(i / 32). */
static int code_2bit(const uint8_t qs[64], size_t i) { return qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3; }

static void dequantize_q2_k(const void *source, float *y, size_t count) {
    const struct block_q2_k *block = source;
    for (size_t b = 0; b < count / BLOCK_256; b++, y += BLOCK_256) {
        float d = half_to_float(block[b].d), dmin = half_to_float(block[b].dmin);
        for (size_t i = 0; i < BLOCK_256; i++) {
            uint8_t scale = block[b].scales[i / 16];
            float step = d * (float)(scale & 15), minimum = dmin * (float)(scale >> 4);
            y[i] = step * (float)code_2bit(block[b].qs, i) - minimum;
        }
    }
}

static void dequantize_q3_k(const void *source, float *y, size_t count) {
    const struct block_q3_k *block = source;
    for (size_t b = 0; b < count / BLOCK_256; b++, y += BLOCK_256) {
        float d = half_to_float(block[b].d);
        for (size_t i = 0; i < BLOCK_256; i++) {
            float step = d * (float)q3_k_scale_get(block[b].scales, i / 16);
            int high = block[b].hmask[i % 32] >> (i / 32) & 1;
            y[i] = step * (float)(code_2bit(block[b].qs, i) - (high ? 0 : 4));
        }
    }
}

/* 256 values of Q4_K or, with fifth bits, of Q5_K. */
static void dequantize_q45_k(uint16_t d_half, uint16_t dmin_half, const uint8_t scales[12], const uint8_t *qs,
                             const uint8_t *qh, float *y) {
    const float d = half_to_float(d_half), dmin = half_to_float(dmin_half);
    for (size_t j = 0; j < 8; j++) {
        uint8_t scale, minimum;
        q4_k_scale_get(scales, j, &scale, &minimum);
        const float step = d * (float)scale, offset = dmin * (float)minimum;
        for (size_t i = 0; i < 32; i++) {
            const int fifth = qh != NULL ? (qh[i] >> j & 1) << 4 : 0;
            y[j * 32 + i] = step * (float)((qs[j / 2 * 32 + i] >> (j % 2 * 4) & 15) | fifth) - offset;
        }
    }
}

static void dequantize_q4_k(const void *source, float *y, size_t count) {
    const struct block_q4_k *block = source;
    for (; count > 0; count -= BLOCK_256, block++, y += BLOCK_256)
        dequantize_q45_k(block->d, block->dmin, block->scales, block->qs, NULL, y);
}

static void dequantize_q5_k(const void *source, float *y, size_t count) {
    const struct block_q5_k *block = source;
    for (; count > 0; count -= BLOCK_256, block++, y += BLOCK_256)
        dequantize_q45_k(block->d, block->dmin, block->scales, block->qs, block->qh, y);
}

/* Element i of a half of 128: low nibbles of ql for i < 64, high ones after; two bits of qh[i % 32]. */
static void dequantize_q6_k(const void *source, float *y, size_t count) {
    const struct block_q6_k *block = source;
    for (size_t b = 0; b < count / BLOCK_256; b++, y += BLOCK_256) {
        float d = half_to_float(block[b].d);
        for (size_t i = 0; i < BLOCK_256; i++) {
            size_t half = i / 128, k = i % 128;
            int low = block[b].ql[half * 64 + k % 64] >> (k / 64 * 4) & 15;
            int high = block[b].qh[half * 32 + k % 32] >> (k / 32 * 2) & 3;
            y[i] = d * (float)block[b].scales[i / 16] * (float)((low | high << 4) - 32);
        }
    }
}

static void dequantize_iq4_xs(const void *source, float *y, size_t count) {
    const struct block_iq4_xs *block = source;
    for (size_t b = 0; b < count / BLOCK_256; b++, y += BLOCK_256) {
        float d = half_to_float(block[b].d);
        for (size_t j = 0; j < 8; j++) {
            float step = d * (float)iq4_xs_scale_get(&block[b], j);
            for (size_t i = 0; i < 16; i++) {
                uint8_t codes = block[b].qs[j * 16 + i];
                y[j * 32 + i] = step * (float)iq4_levels[codes & 15];
                y[j * 32 + i + 16] = step * (float)iq4_levels[codes >> 4];
            }
        }
    }
}

static void dequantize_mxfp4(const void *source, float *y, size_t count) {
    const struct block_mxfp4 *block = source;
    for (size_t b = 0; b < count / BLOCK_32; b++, y += BLOCK_32) {
        const float d = mxfp4_scale_get(block[b].e);
        for (size_t i = 0; i < 16; i++) {
            y[i] = d * (float)fp4_levels[block[b].qs[i] & 15];
            y[i + 16] = d * (float)fp4_levels[block[b].qs[i] >> 4];
        }
    }
}

static void dequantize_nvfp4(const void *source, float *y, size_t count) {
    const struct block_nvfp4 *block = source;
    for (size_t g = 0; g < count / 16; g++, y += 16) {
        const float d = nvfp4_scale_get(block[g / 4].scales[g % 4]);
        for (size_t i = 0; i < 8; i++) {
            y[i] = d * (float)fp4_levels[block[g / 4].qs[g % 4][i] & 15];
            y[i + 8] = d * (float)fp4_levels[block[g / 4].qs[g % 4][i] >> 4];
        }
    }
}

/* Exact, so the order of the factors is free. */
static void dequantize_grid(enum tensor_type type, const void *source, float *y, size_t count) {
    grid_unpack *unpack = grid_unpack_find(type);
    const uint8_t *block = source;
    const size_t bytes = tensor_type_info(type)->block_bytes;
    for (size_t b = 0; b < count / BLOCK_256; b++, y += BLOCK_256, block += bytes) {
        struct grid_block values;
        unpack(block, &values);
        for (size_t i = 0; i < BLOCK_256; i++) y[i] = values.d * (float)(values.scales[i / 16] * values.codes[i]);
    }
}

#define GRID(name, NAME)                                                        \
    static void dequantize_##name(const void *source, float *y, size_t count) { \
        dequantize_grid(TENSOR_##NAME, source, y, count);                       \
    }
GRID_TYPES(GRID)
#undef GRID

void convert_ref_install(struct convert_kernels *kernels) {
    memset(kernels, 0, sizeof *kernels);
    kernels->dequantize[TENSOR_F32] = dequantize_f32;
    kernels->dequantize[TENSOR_F16] = dequantize_f16;
    kernels->dequantize[TENSOR_BF16] = dequantize_bf16;
    kernels->dequantize[TENSOR_Q4_0] = dequantize_q4_0;
    kernels->dequantize[TENSOR_Q4_1] = dequantize_q4_1;
    kernels->dequantize[TENSOR_Q5_0] = dequantize_q5_0;
    kernels->dequantize[TENSOR_Q5_1] = dequantize_q5_1;
    kernels->dequantize[TENSOR_Q8_0] = dequantize_q8_0;
    kernels->dequantize[TENSOR_Q2_K] = dequantize_q2_k;
    kernels->dequantize[TENSOR_Q3_K] = dequantize_q3_k;
    kernels->dequantize[TENSOR_Q4_K] = dequantize_q4_k;
    kernels->dequantize[TENSOR_Q5_K] = dequantize_q5_k;
    kernels->dequantize[TENSOR_Q6_K] = dequantize_q6_k;
    kernels->dequantize[TENSOR_IQ4_NL] = dequantize_iq4_nl;
    kernels->dequantize[TENSOR_IQ4_XS] = dequantize_iq4_xs;
    kernels->dequantize[TENSOR_MXFP4] = dequantize_mxfp4;
    kernels->dequantize[TENSOR_NVFP4] = dequantize_nvfp4;
#define GRID(name, NAME) kernels->dequantize[TENSOR_##NAME] = dequantize_##name;
    GRID_TYPES(GRID)
#undef GRID
}

#include "device/cuda/weight_layout.h"

#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "kernels/convert/codes.h"
#include "kernels/convert/convert.h"
#include "tensor/block.h"
#include "tensor/half.h"

enum tensor_type weight_plane_type(enum tensor_type type) {
    const bool is_grid = type == TENSOR_IQ1_S || type == TENSOR_IQ1_M || type == TENSOR_IQ2_XXS ||
                         type == TENSOR_IQ2_XS || type == TENSOR_IQ2_S || type == TENSOR_IQ3_XXS ||
                         type == TENSOR_IQ3_S;
    return is_grid || type == TENSOR_MXFP4 || type == TENSOR_NVFP4 ? TENSOR_F16 : type;
}

struct weight_plane_bytes weight_plane_row(enum tensor_type type, size_t columns) {
    const size_t n = columns / 32, supers = columns / 256;
    switch (type) {
    case TENSOR_F32: return (struct weight_plane_bytes){.codes = columns * 4};
    case TENSOR_F16:
    case TENSOR_BF16: return (struct weight_plane_bytes){.codes = columns * 2};
    case TENSOR_Q4_0:
    case TENSOR_IQ4_NL: return (struct weight_plane_bytes){n * 16, 0, n * 2, 0};
    case TENSOR_Q4_1: return (struct weight_plane_bytes){n * 16, 0, n * 4, 0};
    case TENSOR_Q5_0: return (struct weight_plane_bytes){n * 16, n * 4, n * 2, 0};
    case TENSOR_Q5_1: return (struct weight_plane_bytes){n * 16, n * 4, n * 4, 0};
    case TENSOR_Q8_0: return (struct weight_plane_bytes){n * 32, 0, n * 2, 0};
    case TENSOR_Q2_K: return (struct weight_plane_bytes){n * 8, 0, n * 2, supers * 4};
    case TENSOR_Q3_K: return (struct weight_plane_bytes){n * 8, n * 4, n * 2, supers * 2};
    case TENSOR_Q4_K: return (struct weight_plane_bytes){n * 16, 0, supers * 16, 0};
    case TENSOR_Q5_K: return (struct weight_plane_bytes){n * 16, n * 4, supers * 16, 0};
    case TENSOR_Q6_K: return (struct weight_plane_bytes){n * 16, n * 8, n * 2, supers * 2};
    case TENSOR_IQ4_XS: return (struct weight_plane_bytes){n * 16, 0, supers * 8, 0};
    case TENSOR_IQ1_S:
    case TENSOR_IQ1_M:
    case TENSOR_IQ2_XXS:
    case TENSOR_IQ2_XS:
    case TENSOR_IQ2_S:
    case TENSOR_IQ3_XXS:
    case TENSOR_IQ3_S:
    case TENSOR_MXFP4:
    case TENSOR_NVFP4: return (struct weight_plane_bytes){.codes = columns * 2};
    case TENSOR_Q8_K:
    case TENSOR_I8:
    case TENSOR_I16:
    case TENSOR_I32:
    case TENSOR_I64:
    case TENSOR_F64: break;
    }
    return (struct weight_plane_bytes){0};
}

/* Fields of 32 columns: 4 bits, 2 bits in two words, 1 bit in one. */
static void put_4(uint8_t *codes, size_t e, unsigned value) {
    codes[e % 16] = (uint8_t)(codes[e % 16] | (value & 15) << (e / 16 * 4));
}
static void put_2(uint8_t *words, size_t e, unsigned value) {
    uint8_t *byte = words + e / 16 * 4 + e % 4;
    *byte = (uint8_t)(*byte | (value & 3) << (e % 16 / 4 * 2));
}
static void put_1(uint8_t *word, size_t e, unsigned value) {
    word[e % 4] = (uint8_t)(word[e % 4] | (value & 1) << (e / 4));
}

static void repack_5(const uint8_t qh[4], uint8_t *high) {
    memset(high, 0, 4);
    for (size_t e = 0; e < 32; e++) put_1(high, e, (unsigned)(qh[e / 8] >> (e % 8)));
}

/* Block b (32 columns) of a row of one of the types of 32. */
static void repack_32(enum tensor_type type, const uint8_t *row, size_t b, const struct weight_planes_host *to) {
    const struct tensor_type_info *info = tensor_type_info(type);
    const uint8_t *block = row + b * info->block_bytes;
    const size_t numbers = type == TENSOR_Q4_1 || type == TENSOR_Q5_1 ? 4 : 2;
    const size_t high = type == TENSOR_Q5_0 || type == TENSOR_Q5_1 ? 4 : 0;
    const size_t codes = type == TENSOR_Q8_0 ? 32 : 16;
    memcpy(to->scales + b * numbers, block, numbers);
    if (high > 0) repack_5(block + numbers, to->high + b * 4);
    memcpy(to->codes + b * codes, block + numbers + high, codes);
}

/* The nibbles of Q4_K and Q5_K: those of two blocks of 32 share their bytes. */
static void repack_nibbles_k(const uint8_t *qs, uint8_t *codes) {
    memset(codes, 0, 128);
    for (size_t e = 0; e < 256; e++)
        put_4(codes + e / 32 * 16, e % 32, (unsigned)(qs[e / 64 * 32 + e % 32] >> (e / 32 % 2 * 4)));
}

static unsigned code_2(const uint8_t *qs, size_t e) {
    return (unsigned)(qs[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2)) & 3;
}

static void repack_q6(const struct block_q6_k *block, uint8_t *codes, uint8_t *high) {
    memset(codes, 0, 128);
    memset(high, 0, 64);
    for (size_t e = 0; e < 256; e++) {
        const size_t half = e / 128, k = e % 128;
        put_4(codes + e / 32 * 16, e % 32, (unsigned)(block->ql[half * 64 + k % 64] >> (k / 64 * 4)));
        put_2(high + e / 32 * 8, e % 32, (unsigned)(block->qh[half * 32 + k % 32] >> (k / 32 * 2)));
    }
}

static void repack_q3(const struct block_q3_k *block, uint8_t *codes, uint8_t *high, int8_t *scales) {
    memset(codes, 0, 64);
    memset(high, 0, 32);
    for (size_t e = 0; e < 256; e++) {
        put_2(codes + e / 32 * 8, e % 32, code_2(block->qs, e));
        put_1(high + e / 32 * 4, e % 32, (unsigned)(block->hmask[e % 32] >> (e / 32)));
    }
    for (size_t j = 0; j < 16; j++) scales[j] = (int8_t)q3_k_scale_get(block->scales, j);
}

/* Block s (256 columns). */
static void repack_256(enum tensor_type type, const uint8_t *row, size_t s, const struct weight_planes_host *to) {
    const uint8_t *at = row + s * tensor_type_info(type)->block_bytes;
    if (type == TENSOR_Q4_K || type == TENSOR_Q5_K) {
        memcpy(to->scales + s * 16, at, 16);
        repack_nibbles_k(type == TENSOR_Q4_K ? at + 16 : at + 48, to->codes + s * 128);
        for (size_t e = 0; type == TENSOR_Q5_K && e < 256; e++) {
            if (e % 32 == 0) memset(to->high + s * 32 + e / 8, 0, 4);
            put_1(to->high + s * 32 + e / 32 * 4, e % 32, (unsigned)(at[16 + e % 32] >> (e / 32)));
        }
    } else if (type == TENSOR_Q6_K) {
        struct block_q6_k block;
        memcpy(&block, at, sizeof block);
        repack_q6(&block, to->codes + s * 128, to->high + s * 64);
        memcpy(to->scales + s * 16, block.scales, 16);
        memcpy(to->supers + s * 2, &block.d, 2);
    } else if (type == TENSOR_Q3_K) {
        struct block_q3_k block;
        memcpy(&block, at, sizeof block);
        repack_q3(&block, to->codes + s * 64, to->high + s * 32, (int8_t *)to->scales + s * 16);
        memcpy(to->supers + s * 2, &block.d, 2);
    } else if (type == TENSOR_Q2_K) {
        memset(to->codes + s * 64, 0, 64);
        for (size_t e = 0; e < 256; e++) put_2(to->codes + s * 64 + e / 32 * 8, e % 32, code_2(at + 16, e));
        memcpy(to->scales + s * 16, at, 16);
        memcpy(to->supers + s * 4, at + 80, 4);
    } else { /* IQ4_XS: the blocks of 32 lie one after the other */
        memcpy(to->scales + s * 8, at, 8);
        memcpy(to->codes + s * 128, at + 8, 128);
    }
}

/* A row of a type that kernels have as halves, in parts that are whole blocks. */
static void repack_halves(const struct matrix *matrix, float scale, const uint8_t *from, uint8_t *codes) {
    enum { PART = 256 };
    const struct tensor_type_info *info = tensor_type_info(matrix->type);
    struct convert_kernels convert;
    float values[PART];
    convert_kernels_init(&convert, cpu_features());
    for (size_t first = 0; first < matrix->columns; first += PART) {
        const size_t count = min_size(PART, matrix->columns - first);
        convert.dequantize[matrix->type](from + first / info->block_elements * info->block_bytes, values, count);
        for (size_t i = 0; i < count; i++) {
            const uint16_t half = float_to_half(values[i] * scale);
            memcpy(codes + (first + i) * sizeof half, &half, sizeof half);
        }
    }
}

void weight_repack(const struct matrix *matrix, float scale, size_t row_begin, size_t row_end,
                   const struct weight_planes_host *planes) {
    const struct weight_plane_bytes bytes = weight_plane_row(matrix->type, matrix->columns);
    const size_t block = tensor_type_info(matrix->type)->block_elements;
    ASSERT(row_begin <= row_end && row_end <= matrix->rows && matrix->columns % block == 0);
    for (size_t row = row_begin; row < row_end; row++) {
        const uint8_t *from = (const uint8_t *)matrix->data + row * matrix->row_bytes;
        const size_t i = row - row_begin;
        struct weight_planes_host to = {planes->codes + i * bytes.codes, NULL, NULL, NULL};
        if (bytes.high > 0) to.high = planes->high + i * bytes.high;
        if (bytes.scales > 0) to.scales = planes->scales + i * bytes.scales;
        if (bytes.supers > 0) to.supers = planes->supers + i * bytes.supers;
        if (weight_plane_type(matrix->type) != matrix->type)
            repack_halves(matrix, scale, from, to.codes);
        else if (block == 1)
            memcpy(to.codes, from, bytes.codes);
        else
            for (size_t b = 0; b < matrix->columns / block; b++)
                (block == 32 ? repack_32 : repack_256)(matrix->type, from, b, &to);
    }
}

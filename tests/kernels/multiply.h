/* multiply: what the tests of matmul and matvec share: their cases, their inputs, and how large an element of a weight
 * can be. */
#pragma once

#include "kernels/check.h"
#include "kernels/convert/convert.h"
#include "kernels/weights.h"

static const enum tensor_type weight_types[] = {
    TENSOR_F32,     TENSOR_F16,    TENSOR_BF16,   TENSOR_Q4_0,    TENSOR_Q4_1,  TENSOR_Q5_0,
    TENSOR_Q5_1,    TENSOR_Q8_0,   TENSOR_Q2_K,   TENSOR_Q3_K,    TENSOR_Q4_K,  TENSOR_Q5_K,
    TENSOR_Q6_K,    TENSOR_IQ4_NL, TENSOR_IQ4_XS, TENSOR_MXFP4,   TENSOR_NVFP4, TENSOR_IQ3_S,
    TENSOR_IQ3_XXS, TENSOR_IQ2_S,  TENSOR_IQ2_XS, TENSOR_IQ2_XXS, TENSOR_IQ1_S, TENSOR_IQ1_M,
};
enum { WEIGHT_TYPES = sizeof weight_types / sizeof weight_types[0] };

enum input_kind { INPUT_NORMAL, INPUT_LARGEST, INPUT_SPARSE, INPUT_KINDS };

struct test_case {
    enum tensor_type type;
    size_t rows, columns, input_count, row_begin, row_end;
    enum weight_kind weight;
    enum input_kind input;
};

static inline void fill_input(struct random *random, enum input_kind kind, float *x, size_t count) {
    for (size_t i = 0; i < count; i++) switch (kind) {
        case INPUT_NORMAL: x[i] = (float)random_normal(random); break;
        case INPUT_LARGEST: x[i] = random_next(random) % 8 ? 1000 : -1000; break; /* codes 127 and -127 */
        case INPUT_SPARSE: x[i] = i / 32 % 3 == 1 ? (float)random_normal(random) : 0; break;
        case INPUT_KINDS: break;
        }
}

/* magnitude[c] = the largest value that element c of the row can have, for any code; of exact types its own. */
static inline void row_magnitudes(const struct convert_kernels *convert, enum tensor_type type,
                                  const void *row, size_t columns, float *magnitude) {
    const struct tensor_type_info *info = tensor_type_info(type);
    const struct block_layout *layout = block_layout_find(type);
    const bool fills_codes = layout != NULL && !layout->exact;
    size_t bytes = columns / info->block_elements * info->block_bytes;
    uint8_t *copy = malloc(bytes);
    float *value = malloc(columns * sizeof *value);
    memset(magnitude, 0, columns * sizeof *magnitude);
    static const uint8_t fills[4] = {0x00, 0xff, 0x80, 0x7f};
    for (size_t f = 0; f < (fills_codes ? 4 : 1); f++) {
        memcpy(copy, row, bytes);
        for (size_t b = 0; fills_codes && b < columns / info->block_elements; b++) {
            uint8_t *block = copy + b * info->block_bytes;
            memset(block + layout->codes_begin, fills[f], (size_t)(layout->codes_end - layout->codes_begin));
            block[layout->d + 1] &= 0x7f; /* d positive, and what is added or subtracted too */
            if (layout->m >= 0 && info->block_elements == 32) block[layout->m + 1] &= 0x7f;
            if (layout->m >= 0 && info->block_elements == 256) block[layout->m + 1] |= 0x80;
        }
        convert->dequantize[type](copy, value, columns);
        for (size_t c = 0; c < columns; c++)
            magnitude[c] = fmaxf(magnitude[c], fabsf(value[c]) * (layout ? 3 : 1));
    }
    free(value);
    free(copy);
}

/* The definition: prepared inputs, and sums in double of the values that convert defines. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "kernels/convert/convert.h"
#include "kernels/matvec/matvec_internal.h"
#include "kernels/quantize_32.h"
#include "tensor/half.h"

static size_t input_bytes(enum matvec_form form, size_t columns) {
    size_t groups = (columns + INPUT_GROUP - 1) / INPUT_GROUP;
    switch (form) {
    case MATVEC_FORM_F32: return align_up(columns * sizeof(float), 64);
    case MATVEC_FORM_Q8_32: return groups * sizeof(struct input_q8_32);
    case MATVEC_FORM_Q8_256: return groups * sizeof(struct input_q8_256);
    case MATVEC_FORM_COUNT: break;
    }
    ASSERT(false && "a matvec form");
    return 0;
}

static void prepare_f32(const float *x, size_t columns, void *prepared) { memcpy(prepared, x, columns * sizeof *x); }

/* q = round(x / scale), ties to even; returns the scale.  An infinity or a NaN among the values makes the
 * scale NaN, so that the outputs show it.  `count` may be less than the block at the end of a row. */
static float quantize_block(const float *x, size_t count, int8_t *q) {
    uint32_t largest_bits = 0; /* magnitudes as integers have the order of floats, with NaN above all */
    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = float_to_bits(x[i]) & 0x7fffffffu;
        largest_bits = magnitude > largest_bits ? magnitude : largest_bits;
    }
    if (largest_bits >= 0x7f800000u) return NAN;
    float largest = bits_to_float(largest_bits);
    if (largest < INPUT_TINY) return 0;
    float inverse = 127 / largest;
    for (size_t i = 0; i < count; i++) q[i] = (int8_t)lrintf(x[i] * inverse);
    return largest / 127;
}

static void prepare_q8_32(const float *x, size_t columns, void *prepared) {
    struct input_q8_32 *group = prepared;
    memset(group, 0, input_bytes(MATVEC_FORM_Q8_32, columns));
    for (size_t begin = 0; begin < columns; begin += 32) {
        struct input_q8_32 *g = group + begin / INPUT_GROUP;
        size_t b = begin % INPUT_GROUP / 32, place = input_block_place(b);
        int8_t *q = g->q + b * 32;
        g->scale[place] = round_to_half_precision(quantize_block(x + begin, min_size(32, columns - begin), q));
        int sum = 0;
        for (size_t i = 0; i < 32; i++) {
            int16_t *start = &g->start[2 * place + i % 4 / 2];
            g->turned[i / 4 * 32 + place * 4 + i % 4] = q[i];
            *start = (int16_t)(*start - 8 * q[i]);
            sum += q[i];
        }
        g->sum[place] = g->scale[place] * (float)sum;
        g->sum8[place] = 8 * sum;
    }
    for (size_t begin = 0; begin < columns; begin += INPUT_GROUP) input_halves_fill(group++);
}

static void prepare_q8_256(const float *x, size_t columns, void *prepared) {
    struct input_q8_256 *group = prepared;
    memset(group, 0, input_bytes(MATVEC_FORM_Q8_256, columns));
    for (size_t begin = 0; begin < columns; begin += INPUT_GROUP, group++) {
        for (size_t b = 0; b < 8 && begin + b * 32 < columns; b++) {
            size_t count = min_size(32, columns - begin - b * 32);
            float scale = quantize_block(x + begin + b * 32, count, group->q + b * 32);
            group->scale[input_block_place(b)] = round_to_half_precision(scale);
        }
        for (size_t i = 0; i < INPUT_GROUP; i++) {
            size_t place = input_turned_place(i), block = input_block_place(i / 32);
            int16_t *start = &group->start[i / 32 % 2][place % 32 / 2];
            group->turned[place] = group->q[i];
            *start = (int16_t)(*start - 32 * group->q[i]);
            group->sums[block][i / 16 % 2] = (int16_t)(group->sums[block][i / 16 % 2] + group->q[i]);
            group->sum16[block] += 16 * group->q[i];
            group->start_4[i / 4] -= 32 * group->q[i];
        }
        for (size_t p = 0; p < 8; p++) {
            for (size_t g = 0; g < 2; g++) group->group_sum[g][p] = group->scale[p] * (float)group->sums[p][g];
            group->sum[p] = group->scale[p] * (float)(group->sums[p][0] + group->sums[p][1]);
        }
        input_256_halves_fill(group);
    }
}

/* A group of a prepared input; exact in double. */
static void input_values(enum matvec_form form, const void *input, size_t begin, size_t count, double *values) {
    const size_t number = begin / INPUT_GROUP;
    const int8_t *codes;
    const float *scales;
    if (form == MATVEC_FORM_Q8_32) {
        const struct input_q8_32 *group = (const struct input_q8_32 *)input + number;
        codes = group->q;
        scales = group->scale;
    } else if (form == MATVEC_FORM_Q8_256) {
        const struct input_q8_256 *group = (const struct input_q8_256 *)input + number;
        codes = group->q;
        scales = group->scale;
    } else {
        for (size_t k = 0; k < count; k++) values[k] = (double)((const float *)input)[begin + k];
        return;
    }
    for (size_t k = 0; k < count; k++) values[k] = (double)scales[input_block_place(k / 32)] * codes[k];
}

static const enum matvec_form forms[MATVEC_TYPES] = {
    [TENSOR_F32] = MATVEC_FORM_F32,       [TENSOR_F16] = MATVEC_FORM_F32,      [TENSOR_BF16] = MATVEC_FORM_F32,
    [TENSOR_Q4_0] = MATVEC_FORM_Q8_32,    [TENSOR_Q4_1] = MATVEC_FORM_Q8_32,   [TENSOR_Q5_0] = MATVEC_FORM_Q8_32,
    [TENSOR_Q5_1] = MATVEC_FORM_Q8_32,    [TENSOR_Q8_0] = MATVEC_FORM_Q8_32,   [TENSOR_IQ4_NL] = MATVEC_FORM_Q8_32,
    [TENSOR_Q2_K] = MATVEC_FORM_Q8_256,   [TENSOR_Q3_K] = MATVEC_FORM_Q8_256,  [TENSOR_Q4_K] = MATVEC_FORM_Q8_256,
    [TENSOR_Q5_K] = MATVEC_FORM_Q8_256,   [TENSOR_Q6_K] = MATVEC_FORM_Q8_256,  [TENSOR_IQ4_XS] = MATVEC_FORM_Q8_256,
    [TENSOR_IQ1_S] = MATVEC_FORM_Q8_256,  [TENSOR_IQ1_M] = MATVEC_FORM_Q8_256, [TENSOR_IQ2_XXS] = MATVEC_FORM_Q8_256,
    [TENSOR_IQ2_XS] = MATVEC_FORM_Q8_256, [TENSOR_IQ2_S] = MATVEC_FORM_Q8_256, [TENSOR_IQ3_XXS] = MATVEC_FORM_Q8_256,
    [TENSOR_IQ3_S] = MATVEC_FORM_Q8_256,  [TENSOR_MXFP4] = MATVEC_FORM_Q8_32,  [TENSOR_NVFP4] = MATVEC_FORM_Q8_32,
};

/* Rows that share what an input's values are; each row's sum is one after the other, as if alone. */
enum { ROWS_TOGETHER = 16 };

static void run_rows(const struct matvec_args *args, size_t row_begin, size_t row_count) {
    const struct matrix *weight = args->weight;
    const struct tensor_type_info *info = tensor_type_info(weight->type);
    struct convert_kernels convert;
    convert_ref_install(&convert);
    const enum matvec_form form = forms[weight->type];
    const size_t input_bytes_each = input_bytes(form, weight->columns);
    double sums[MATVEC_INPUTS_MAX][ROWS_TOGETHER] = {0};
    for (size_t begin = 0; begin < weight->columns; begin += INPUT_GROUP) {
        double x[INPUT_GROUP], w[INPUT_GROUP][ROWS_TOGETHER] = {0};
        const size_t count = min_size(INPUT_GROUP, weight->columns - begin);
        for (size_t r = 0; r < row_count; r++) {
            float values[INPUT_GROUP];
            const uint8_t *row = (const uint8_t *)weight->data + (row_begin + r) * weight->row_bytes;
            convert.dequantize[weight->type](row + begin / info->block_elements * info->block_bytes, values, count);
            for (size_t c = 0; c < count; c++) w[c][r] = (double)values[c];
        }
        for (size_t i = 0; i < args->input_count; i++) {
            input_values(form, (const uint8_t *)args->inputs + i * input_bytes_each, begin, count, x);
            for (size_t c = 0; c < count; c++)
                for (size_t r = 0; r < ROWS_TOGETHER; r++) sums[i][r] += w[c][r] * x[c];
        }
    }
    for (size_t i = 0; i < args->input_count; i++)
        for (size_t r = 0; r < row_count; r++)
            args->outputs[i * args->output_stride + row_begin + r] = (float)sums[i][r];
}

static void run_ref(const struct matvec_args *args) {
    for (size_t row = args->row_begin; row < args->row_end; row += ROWS_TOGETHER)
        run_rows(args, row, min_size(ROWS_TOGETHER, args->row_end - row));
}

void matvec_ref_install(struct matvec_kernels *kernels) {
    memset(kernels, 0, sizeof *kernels);
    kernels->input_bytes = input_bytes;
    kernels->prepare[MATVEC_FORM_F32] = prepare_f32;
    kernels->prepare[MATVEC_FORM_Q8_32] = prepare_q8_32;
    kernels->prepare[MATVEC_FORM_Q8_256] = prepare_q8_256;
    for (uint32_t type = 0; type < MATVEC_TYPES; type++) {
        const struct tensor_type_info *info = tensor_type_find(type);
        if (info == NULL || !info->is_weight) continue;
        kernels->form[type] = forms[type];
        kernels->run[type] = run_ref;
    }
}

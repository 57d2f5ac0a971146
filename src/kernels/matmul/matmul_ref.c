/* The definition of matmul: every weight dequantised, every product and sum in double.
 * Slow and plain on purpose; the other variants are tested against it. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "kernels/convert/convert.h"
#include "kernels/matmul/matmul_internal.h"

static size_t prepared_bytes(size_t input_count, size_t columns) {
    return align_up(input_count * columns * sizeof(float), 64);
}

static void prepare(const float *x, size_t x_stride, size_t input_count, size_t columns, size_t input_begin,
                    size_t input_end, void *prepared) {
    ASSERT(input_begin <= input_end && input_end <= input_count);
    float *target = prepared; /* [input_count][columns] */
    for (size_t i = input_begin; i < input_end; i++)
        memcpy(target + i * columns, x + i * x_stride, columns * sizeof(float));
}

static size_t scratch_bytes(size_t columns) { return align_up(columns * sizeof(float), 64); }

static void run(const struct matmul_args *args) {
    const struct matrix *weight = args->weight;
    const float *x = args->prepared;
    float *row = args->scratch; /* [columns] */
    struct convert_kernels convert;
    convert_ref_install(&convert);
    ASSERT(args->row_begin <= args->row_end && args->row_end <= weight->rows);
    for (size_t r = args->row_begin; r < args->row_end; r++) {
        const char *source = (const char *)weight->data + r * weight->row_bytes;
        convert.dequantize[weight->type](source, row, weight->columns);
        for (size_t i = 0; i < args->input_count; i++) {
            const float *input = x + i * weight->columns;
            double sum = 0;
            for (size_t c = 0; c < weight->columns; c++) sum += (double)row[c] * (double)input[c];
            args->outputs[i * args->output_stride + r] = (float)sum;
        }
    }
}

void matmul_ref_install(struct matmul_kernels *kernels) {
    memset(kernels, 0, sizeof *kernels);
    for (uint32_t type = 0; type < MATMUL_TYPES; type++) {
        const struct tensor_type_info *info = tensor_type_find(type);
        if (info == NULL || !info->is_weight) continue;
        kernels->method[type] = (struct matmul_method){
            .form = MATMUL_FORM_F32,
            .row_granule = 1,
            .prepared_bytes = prepared_bytes,
            .input_granule = 1,
            .prepare = prepare,
            .scratch_bytes = scratch_bytes,
            .run = run,
        };
    }
}

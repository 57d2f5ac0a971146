/* The rows of project over `floats`; included by project_avx2.c, project_avx512.c and project_neon.c. */
#include "kernels/project/project.h"
#include "kernels/project/project_floats.h"

FLOATS_INLINE void project_store(const struct project_args *args, size_t row, size_t column, floats value) {
    size_t at = row * args->out_stride + column;
    if (args->out != NULL)
        floats_store(args->out + at, value);
    else
        floats_store_half(args->out_halves + at, value);
}

FLOATS_INLINE void project_inputs(const size_t inputs, const size_t vectors, const struct project_args *args,
                                  size_t row) {
    const float *x = args->x + row * args->x_stride;
    size_t column = 0;
    floats sum[8];
    for (; column + vectors * FLOATS <= args->columns; column += vectors * FLOATS) {
        project_tile(inputs, vectors, args->weights + column, args->columns, args->dimension, x, args->x_stride, sum);
        FLOATS_UNROLL
        for (size_t i = 0; i < inputs * vectors; i++)
            project_store(args, row + i / vectors, column + i % vectors * FLOATS, sum[i]);
    }
    for (; column < args->columns; column += FLOATS) {
        project_tile(inputs, 1, args->weights + column, args->columns, args->dimension, x, args->x_stride, sum);
        FLOATS_UNROLL
        for (size_t i = 0; i < inputs; i++) project_store(args, row + i, column, sum[i]);
    }
}

static void project_rows(const struct project_args *args) {
    FLOATS_FILL(args->columns % FLOATS == 0, project, project, rows, args)
    size_t row = 0;
    for (; row + 4 <= args->count; row += 4) project_inputs(4, 2, args, row);
    for (; row + 2 <= args->count; row += 2) project_inputs(2, 4, args, row);
    for (; row < args->count; row++) project_inputs(1, 8, args, row);
}

FLOATS_INSTALL(project, project) { kernels->rows = project_rows; }

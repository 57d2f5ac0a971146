/* matvec: y[i][r] = sum over c of w[r][c] * x[i][c], for a few inputs i at a time.
 *
 * The decode path: memory-bound, so the weights are read once, in the layout of the file,
 * and every input uses a block while it is in registers.  Inputs are first converted to the
 * form that the weight's type multiplies with (int8 blocks for quantised weights), once,
 * and then shared by all threads and by all matrices that multiply the same input.
 */
#pragma once

#include <stddef.h>

#include "kernels/variants.h"
#include "tensor/type.h"

enum { MATVEC_INPUTS_MAX = 8, MATVEC_TYPES = TENSOR_TYPES };

/* The prepared form of an input; weights of types with the same form can share it. */
enum matvec_form {
    MATVEC_FORM_F32,
    MATVEC_FORM_Q8_32,  /* int8 in blocks of 32, for the 32-element weight types */
    MATVEC_FORM_Q8_256, /* int8 in blocks of 256 with sums, for the 256-element weight types */
    MATVEC_FORM_COUNT
};

struct matvec_args {
    const struct matrix *weight; /* [rows][columns] */
    size_t input_count;          /* 1..MATVEC_INPUTS_MAX */
    const void *inputs;          /* prepared rows, input_bytes(form, columns) apart */
    float *outputs;              /* [input_count][output_stride] */
    size_t output_stride;        /* floats */
    size_t row_begin, row_end;   /* rows of the weight to compute; outputs[i][row] */
};

struct matvec_kernels {
    enum matvec_form form[MATVEC_TYPES]; /* by weight type */
    /* Bytes of one prepared input of `columns` elements, a multiple of 64. */
    size_t (*input_bytes)(enum matvec_form form, size_t columns);
    void (*prepare[MATVEC_FORM_COUNT])(const float *x, size_t columns, void *prepared);
    void (*run[MATVEC_TYPES])(const struct matvec_args *args); /* NULL: no such weight type */
};

KERNELS(matvec);

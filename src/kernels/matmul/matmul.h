/* matmul: y[i][r] = sum over c of w[r][c] * x[i][c], for many inputs (prefill, batches).
 *
 * Compute-bound.  Inputs are prepared once (packed, and quantised to int8 or rounded to bf16
 * where the variant multiplies so), shared by all threads; weights are unpacked from the file's
 * layout panel by panel into the calling thread's scratch and used for all inputs.  Nothing is
 * repacked at load, so a model is ready as soon as it is mapped.
 */
#pragma once

#include <stddef.h>

#include "kernels/variants.h"
#include "tensor/type.h"

struct matmul_kernels;

struct matmul_args {
    const struct matrix *weight; /* [rows][columns] */
    size_t input_count;          /* m */
    const void *prepared;        /* prepared_bytes() bytes, aligned to 64, filled by prepare over all parts */
    float *outputs;              /* [input_count][output_stride] */
    size_t output_stride;        /* floats */
    size_t row_begin, row_end;   /* rows of the weight to compute; multiples of row_granule except at the end */
    void *scratch;               /* scratch_bytes(), 64-byte aligned, this thread's own */
};

/* How the chosen variant multiplies one weight type.  Types with the same `form` share a prepared input. */
struct matmul_method {
    int form;
    size_t row_granule; /* rows per panel: split work at its multiples */
    size_t (*prepared_bytes)(size_t input_count, size_t columns);
    /* Prepares inputs [input_begin, input_end) of x[input_count][x_stride].  Different threads may prepare parts that
     * meet at multiples of input_granule. */
    size_t input_granule;
    void (*prepare)(const float *x, size_t x_stride, size_t input_count, size_t columns, size_t input_begin,
                    size_t input_end, void *prepared);
    size_t (*scratch_bytes)(size_t columns);
    void (*run)(const struct matmul_args *args);
};

enum { MATMUL_TYPES = TENSOR_TYPES };

struct matmul_kernels {
    struct matmul_method method[MATMUL_TYPES]; /* by weight type; run == NULL: no such weight type */
    /* With AMX what its methods stand in for: tiles want bf16, which costs the same for one input as for 32, so a few
     * inputs are quicker without.  run == NULL: none. */
    struct matmul_method few[MATMUL_TYPES];
};

KERNELS(matmul);

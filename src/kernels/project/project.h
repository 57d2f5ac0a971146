/* project: x . A for vectors of one KV head (skewed partial queries and keys of InfiniGen).
 *
 *   out[i][j] = sum over d of x[i][d] * A[d][j]
 *
 * A may be the kept columns of the skew matrix: out is then the partial key.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/variants.h"

struct project_args {
    const uint16_t *weights;   /* A: [dimension][columns] halves */
    size_t dimension, columns; /* columns a multiple of 8 */
    const float *x;            /* [count][x_stride], dimension each */
    size_t x_stride, count;
    float *out;           /* [count][out_stride], columns each; or NULL, and then: */
    uint16_t *out_halves; /* the same rounded to halves */
    size_t out_stride;    /* elements */
};

struct project_kernels {
    void (*rows)(const struct project_args *args);
};

KERNELS(project);

/* x . A over `floats`; included by the AVX2, AVX-512 and NEON sources of project, and by those of hash, whose codes are
 * the signs of such products.
 *
 * Mapping: up to 4 vectors at once, so that A is read and converted once for them (a group's queries, the keys of a
 * prefill); their sums for 2 registers of columns stay in registers, and 8 registers of columns where
 * there is one vector.  A stays in L1 or L2 over the vectors of a call.
 * Bytes: 2 * dimension * columns per 4 vectors.  Flops: 2 * dimension * columns per vector.
 * Bound: multiply-adds.  Reached, one core of an AMD EPYC (Zen 3), AVX2, 2026-11-21: 78 GFLOP/s at 128 x 128
 * over 64 vectors.
 */
#pragma once

#include "kernels/floats.h"

/* sum[input][vector] = x[input] . A[.][vector * FLOATS ..].  weights points to the first of these columns. */
FLOATS_INLINE void project_tile(const size_t inputs, const size_t vectors, const uint16_t *weights, size_t columns,
                                size_t dimension, const float *x, size_t x_stride, floats *sum) {
    FLOATS_UNROLL
    for (size_t i = 0; i < inputs * vectors; i++) sum[i] = floats_set(0);
    for (size_t d = 0; d < dimension; d++, weights += columns) {
        floats column[8];
        FLOATS_UNROLL
        for (size_t n = 0; n < vectors; n++) column[n] = floats_load_half(weights + n * FLOATS);
        FLOATS_UNROLL
        for (size_t i = 0; i < inputs; i++) {
            floats value = floats_set(x[i * x_stride + d]);
            FLOATS_UNROLL
            for (size_t n = 0; n < vectors; n++)
                sum[i * vectors + n] = floats_fma(value, column[n], sum[i * vectors + n]);
        }
    }
}

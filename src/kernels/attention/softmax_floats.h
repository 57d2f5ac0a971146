/* The online softmax over `floats`, of decode, gather and prefill: m is the greatest score so far, s the sum of
 * exp(score - m) and o that of exp(score - m) v.
 *
 * A weight below exp(WEIGHT_MIN) relative to the maximum so far, hence to the final one, is zero.  So prefill may leave
 * out what is zero for all rows of a tile, and a row has the same bits with any other rows in its tile.  Of n rows less
 * than n 2^-33 of s >= 1 is dropped, where the roundings of s itself may be n 2^-24.
 *
 * A rise of the maximum is rare after the first rows and stays out of line: within each of the callers' shapes it cost
 * gather 2 to 3% (all rows, group 4). */
#pragma once

#include <math.h>

#include "kernels/floats.h"

#define WEIGHT_MIN (-23.0f)

/* Rows of a step of decode and prefill, which begins at a multiple of it: the maximum rises between steps only.  16 KiB
 * ahead is what Zen 5 wants of decode; there steps of 64 rows of 512 bytes would push each other out of L1. */
enum { SOFTMAX_ROWS = 32, SOFTMAX_ROWS_MAX = FLOATS == 16 ? 64 : 32, SOFTMAX_STEP_BYTES = 16 << 10 };

/* row_bytes: of K and V, without scales. */
FLOATS_INLINE size_t softmax_step_rows(const size_t row_bytes) {
    return row_bytes * SOFTMAX_ROWS_MAX <= SOFTMAX_STEP_BYTES ? SOFTMAX_ROWS_MAX : SOFTMAX_ROWS;
}

FLOATS_INLINE floats softmax_weight(floats x) { return floats_exp_below(x, WEIGHT_MIN); }

/* The factors by which s and o shrink when the maxima rise from `before` to `after`. */
FLOATS_INLINE floats softmax_shrink(floats before, floats after) {
    const floats shrink = floats_exp(floats_subtract(before, after));
    return floats_if_less(floats_set(-INFINITY), before, shrink, floats_set(0));
}

/* *m rises to `greatest`, unless that is lower or NaN (the sum will say it), and o [dimension, a multiple of FLOATS]
 * shrinks to it.  Returns what s has to shrink by, in every place. */
static __attribute__((noinline)) floats softmax_raise(float largest, float *m, float *o, size_t dimension) {
    float before = *m, after = largest > before ? largest : before;
    *m = after;
    if (before == -INFINITY) return floats_set(0); /* s and o are zeros */
    floats shrink = floats_exp(floats_set(before - after));
    for (size_t d = 0; d < dimension; d += FLOATS) floats_store(o + d, floats_multiply(floats_load(o + d), shrink));
    return shrink;
}

/* A step: scores x [count] become weights relative to *m (-INFINITY: 0), and s [FLOATS] their sum in each place.
 * `rises`: one of them is above *m. */
FLOATS_INLINE void softmax_step(const floats *x, const size_t count, int rises, float *m, float *s, float *o,
                                size_t dimension, float *weights) {
    floats base = floats_set(*m);
    if (rises) {
        floats top = x[0];
        FLOATS_UNROLL
        for (size_t i = 1; i < count; i++) top = floats_max(top, x[i]);
        floats shrink = softmax_raise(floats_largest(top), m, o, dimension);
        floats_store(s, floats_multiply(floats_load(s), shrink));
        base = floats_set(*m);
    }
    if (*m == -INFINITY) base = floats_set(0); /* -inf - -inf is NaN; exp(-inf - 0) is 0 */
    floats sum = floats_load(s);
    FLOATS_UNROLL
    for (size_t i = 0; i < count; i++) {
        floats weight = softmax_weight(floats_subtract(x[i], base));
        floats_store(weights + i * FLOATS, weight);
        sum = floats_add(sum, weight);
    }
    floats_store(s, sum);
}

/* The merge of partials (attention.h) for FLOATS heads or rows: *target_m becomes the larger maximum; target = keep
 * target + take source.  An empty partial leaves the other one unchanged. */
FLOATS_INLINE void softmax_shares(float *target_m, const float *source_m, float *keep, float *take) {
    const floats target = floats_load(target_m), source = floats_load(source_m);
    const floats empty = floats_set(-INFINITY), none = floats_set(0);
    const floats upper = floats_if_less(target, source, source, target);
    floats_store(keep, floats_if_less(empty, target, floats_exp(floats_subtract(target, upper)), none));
    floats_store(take, floats_if_less(empty, source, floats_exp(floats_subtract(source, upper)), none));
    floats_store(target_m, upper);
}

FLOATS_INLINE void softmax_outputs_add(size_t dimension, floats keep, floats take, float *target, const float *source) {
    size_t d = 0;
    for (; d + FLOATS <= dimension; d += FLOATS) {
        floats part = floats_multiply(take, floats_load(source + d));
        floats_store(target + d, floats_fma(keep, floats_load(target + d), part));
    }
    for (; d < dimension; d++) {
        floats part = floats_multiply(take, floats_set(source[d]));
        target[d] = floats_first(floats_fma(keep, floats_set(target[d]), part));
    }
}

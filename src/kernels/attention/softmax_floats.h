/* The online softmax over `floats`, of decode, gather and prefill: m is the greatest score so far, s the sum of
 * exp(score - m) and o that of exp(score - m) v.
 *
 * A rise of the maximum is rare after the first rows and stays out of line: within each of the callers' shapes it cost
 * gather 2 to 3% (all rows, group 4). */
#ifndef LOAM_KERNELS_SOFTMAX_FLOATS_H
#define LOAM_KERNELS_SOFTMAX_FLOATS_H

#include <math.h>

#include "kernels/floats.h"

/* *m rises to `greatest`, unless that is lower or NaN (the sum will say it), and o [dimension, a multiple of FLOATS]
 * shrinks to it.  Returns what s has to shrink by, in every place. */
static __attribute__((noinline)) floats softmax_raise(float greatest, float *m, float *o, size_t dimension) {
    float before = *m, after = greatest > before ? greatest : before;
    floats shrink = before == -INFINITY ? floats_set(0) : floats_exp(floats_set(before - after));
    for (size_t d = 0; d < dimension; d += FLOATS)
        floats_store(o + d, floats_multiply(floats_load(o + d), shrink));
    *m = after;
    return shrink;
}

/* A step: scores x [count], of which -INFINITY does not count, become weights relative to *m, and s [FLOATS] their sum
 * in each place.  `rises`: one of them is greater than *m. */
FLOATS_INLINE void softmax_step(const floats *x, const size_t count, int rises, float *m, float *s, float *o,
                                size_t dimension, float *weights) {
    floats base = floats_set(*m);
    if (rises) {
        floats top = x[0];
        FLOATS_UNROLL
        for (size_t i = 1; i < count; i++) top = floats_max(top, x[i]);
        floats shrink = softmax_raise(floats_greatest(top), m, o, dimension);
        floats_store(s, floats_multiply(floats_load(s), shrink));
        base = floats_set(*m);
    }
    if (*m == -INFINITY) base = floats_set(0); /* -inf - -inf is NaN; exp(-inf - 0) is 0 */
    floats sum = floats_load(s);
    FLOATS_UNROLL
    for (size_t i = 0; i < count; i++) {
        floats weight = floats_exp_below(floats_subtract(x[i], base));
        floats_store(weights + i * FLOATS, weight);
        sum = floats_add(sum, weight);
    }
    floats_store(s, sum);
}

#endif

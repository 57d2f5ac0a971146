/* recurrence: layers whose rows hand a state of fixed size on to the rows behind them, in place of K and V.
 *
 * Rows go one after another (the sequential rule), so a row has the same bits wherever its prompt is cut.  A state is
 * read from `from` (NULL: zeros) and left in `to`, which may be the same. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/variants.h"

enum { CONVOLVE_CHANNELS = 64, CONVOLVE_TAPS_MAX = 8, DELTA_DIMENSION_MAX = 256 };

/* A causal convolution of each channel by itself:
 *   u[t] = x[t] * in_gate[t];  y[t] = out_gate[t] * f(sum over j of w[j] * u[t - (taps - 1) + j]),  f: silu or nothing.
 * The state is the last taps - 1 rows of u, the oldest first. */
struct convolve_args {
    size_t row_count, channel_count;     /* the second one at most CONVOLVE_CHANNELS */
    const float *x, *in_gate, *out_gate; /* [row_count][x_stride]; NULL: no gate */
    size_t x_stride;
    const float *w; /* [channel_count][taps] */
    size_t taps;    /* 2 to CONVOLVE_TAPS_MAX */
    bool silu;
    const float *from; /* [taps - 1][state_stride] */
    float *to;
    size_t state_stride;
    float *y; /* [row_count][y_stride] */
    size_t y_stride;
};

/* A head of a gated delta net (Yang et al. 2025).  For each row, with q and k divided by their lengths and
 * q by sqrt(k_dimension):
 *   S *= exp(decay * softplus(alpha + bias));  S += k (sigmoid(beta) * (v - S^T k))^T;  o = S^T q
 *   y = norm * o / sqrt(mean(o^2) + epsilon) * silu(z) */
struct delta_args {
    size_t row_count, k_dimension, v_dimension; /* at most DELTA_DIMENSION_MAX */
    const float *q, *k, *v;                     /* [row_count][stride] */
    size_t stride;
    const float *alpha, *beta; /* [row_count][gate_stride] */
    size_t gate_stride;
    float decay, bias;
    const float *z; /* [row_count][y_stride] */
    const float *norm;
    float epsilon;
    const float *from; /* S, [k_dimension][v_dimension] */
    float *to;
    float *y; /* [row_count][y_stride] */
    size_t y_stride;
};

struct recurrence_kernels {
    void (*convolve)(const struct convolve_args *args);
    void (*delta)(const struct delta_args *args);
    void (*gate)(const float *gate, size_t count, float *y); /* y *= sigmoid(gate) */
};

KERNELS(recurrence);

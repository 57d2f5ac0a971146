/* activation: element-wise functions between matrices, and softmax over a row. */
#pragma once

#include <stddef.h>

#include "kernels/variants.h"

struct activation_kernels {
    void (*silu_multiply)(const float *gate, const float *up, size_t count,
                          float *y); /* y = silu(gate) * up; y may be gate */
    /* y = g sigmoid(1.702 g) (u + 1), with g = gate, at most 7, and u = up within +-7; y may be gate */
    void (*swiglu_clamped)(const float *gate, const float *up, size_t count, float *y);
    void (*relu)(const float *x, size_t count, float *y);
    /* y = gelu(gate) * up, in its tanh form; y may be gate */
    void (*gelu_multiply)(const float *gate, const float *up, size_t count, float *y);
    void (*softcap)(const float *x, float cap, size_t count, float *y);  /* y = cap tanh(x / cap); y may be x */
    void (*add)(const float *a, const float *b, size_t count, float *y); /* y may be a */
    /* y = softmax(x), after subtracting the maximum; returns log(sum(exp(x))) of the input. */
    double (*softmax)(const float *x, size_t count, float *y);
};

KERNELS(activation);

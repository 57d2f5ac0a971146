#include <math.h>

#include "kernels/activation/activation_internal.h"

static void silu_multiply(const float *gate, const float *up, size_t count, float *y) {
    for (size_t i = 0; i < count; i++) {
        double x = (double)gate[i];
        y[i] = (float)(x / (1.0 + exp(-x)) * (double)up[i]);
    }
}

static double within(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

static void swiglu_clamped(const float *gate, const float *up, size_t count, float *y) {
    for (size_t i = 0; i < count; i++) {
        double g = within((double)gate[i], -INFINITY, SWIGLU_LIMIT);
        double u = within((double)up[i], -SWIGLU_LIMIT, SWIGLU_LIMIT);
        y[i] = (float)(g / (1.0 + exp(-SWIGLU_SLOPE * g)) * (u + 1.0));
    }
}

static void relu(const float *x, size_t count, float *y) {
    for (size_t i = 0; i < count; i++) y[i] = x[i] < 0 ? 0.0f : x[i]; /* NaN stays */
}

/* 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), Hendrycks and Gimpel 2016; written with exp because
 * 1 + tanh cancels for x far below zero: 1 + tanh(u) = 2 / (1 + exp(-2u)). */
static void gelu_multiply(const float *gate, const float *up, size_t count, float *y) {
    const double twice_root = 1.5957691216057308; /* 2 sqrt(2 / pi) */
    for (size_t i = 0; i < count; i++) {
        double v = (double)gate[i];
        y[i] = (float)(v / (1.0 + exp(-twice_root * (v + 0.044715 * v * v * v))) * (double)up[i]);
    }
}

static void softcap(const float *x, float cap, size_t count, float *y) {
    for (size_t i = 0; i < count; i++) y[i] = (float)((double)cap * tanh((double)x[i] / (double)cap));
}

static void add(const float *a, const float *b, size_t count, float *y) {
    for (size_t i = 0; i < count; i++) y[i] = a[i] + b[i];
}

static double softmax(const float *x, size_t count, float *y) {
    float largest = -INFINITY;
    for (size_t i = 0; i < count; i++)
        if (x[i] > largest) largest = x[i];
    double shift = largest == -INFINITY ? 0 : (double)largest, sum = 0; /* all masked: exp(-inf) = 0 */
    for (size_t i = 0; i < count; i++) sum += exp((double)x[i] - shift);
    for (size_t i = 0; i < count; i++) y[i] = sum == 0 ? 0.0f : (float)(exp((double)x[i] - shift) / sum);
    return shift + log(sum);
}

void activation_ref_install(struct activation_kernels *kernels) {
    *kernels = (struct activation_kernels){.silu_multiply = silu_multiply,
                                           .swiglu_clamped = swiglu_clamped,
                                           .relu = relu,
                                           .gelu_multiply = gelu_multiply,
                                           .softcap = softcap,
                                           .add = add,
                                           .softmax = softmax};
}

/* Activations over `floats`; included by activation_avx2.c, _avx512.c and _neon.c.
 *
 * Memory-bound but for the exponential (some 20 instructions per register).  The last partial register
 * goes through a buffer on the stack. */
#include <math.h>
#include <string.h>

#include "kernels/activation/activation_internal.h"
#include "kernels/floats.h"

FLOATS_INLINE floats load_part(const float *x, size_t count, float otherwise) {
    float buffer[FLOATS];
    for (size_t i = 0; i < FLOATS; i++) buffer[i] = otherwise;
    memcpy(buffer, x, count * sizeof *x);
    return floats_load(buffer);
}

FLOATS_INLINE void store_part(float *y, floats x, size_t count) {
    float buffer[FLOATS];
    floats_store(buffer, x);
    memcpy(y, buffer, count * sizeof *y);
}

/* x / (1 + exp(-u)) */
FLOATS_INLINE floats sigmoid_multiply(floats x, floats minus_u) {
    return floats_divide(x, floats_add(floats_set(1.0f), floats_exp(minus_u)));
}

/* y = of(gate, up), which is inlined. */
FLOATS_INLINE void gated(floats (*of)(floats gate, floats up), const float *gate, const float *up, size_t count,
                         float *y) {
    size_t i = 0;
    for (; i + FLOATS <= count; i += FLOATS) floats_store(y + i, of(floats_load(gate + i), floats_load(up + i)));
    if (i < count) store_part(y + i, of(load_part(gate + i, count - i, 0), load_part(up + i, count - i, 0)), count - i);
}

FLOATS_INLINE floats silu_of(floats x, floats up) {
    return floats_multiply(sigmoid_multiply(x, floats_subtract(floats_set(0), x)), up);
}

static void silu_multiply(const float *gate, const float *up, size_t count, float *y) {
    gated(silu_of, gate, up, count, y);
}

/* The first operands are numbers, so that NaN passes. */
FLOATS_INLINE floats swiglu_of(floats gate, floats up) {
    const floats limit = floats_set((float)SWIGLU_LIMIT);
    floats g = floats_min(limit, gate), u = floats_max(floats_set(-(float)SWIGLU_LIMIT), floats_min(limit, up));
    return floats_multiply(sigmoid_multiply(g, floats_multiply(g, floats_set(-(float)SWIGLU_SLOPE))),
                           floats_add(u, floats_set(1)));
}

static void swiglu_clamped(const float *gate, const float *up, size_t count, float *y) {
    gated(swiglu_of, gate, up, count, y);
}

static void relu(const float *x, size_t count, float *y) {
    size_t i = 0;
    for (; i + FLOATS <= count; i += FLOATS) floats_store(y + i, floats_max(floats_set(0), floats_load(x + i)));
    for (; i < count; i++) y[i] = x[i] < 0 ? 0.0f : x[i];
}

/* As in the reference: x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3). */
FLOATS_INLINE floats gelu_of(floats x, floats up) {
    floats square = floats_multiply(x, x);
    floats inner = floats_fma(square, floats_set(-1.5957691216f * 0.044715f), floats_set(-1.5957691216f));
    return floats_multiply(sigmoid_multiply(x, floats_multiply(inner, x)), up);
}

static void gelu_multiply(const float *gate, const float *up, size_t count, float *y) {
    gated(gelu_of, gate, up, count, y);
}

static void softcap(const float *x, float cap, size_t count, float *y) {
    size_t i = 0;
    for (; i + FLOATS <= count; i += FLOATS) floats_store(y + i, floats_softcap(floats_load(x + i), cap));
    if (i < count) store_part(y + i, floats_softcap(load_part(x + i, count - i, 0), cap), count - i);
}

static void add(const float *a, const float *b, size_t count, float *y) {
    size_t i = 0;
    for (; i + FLOATS <= count; i += FLOATS) floats_store(y + i, floats_add(floats_load(a + i), floats_load(b + i)));
    for (; i < count; i++) y[i] = a[i] + b[i];
}

static float largest_of(const float *x, size_t count) {
    floats top = floats_set(-INFINITY);
    size_t i = 0;
    for (; i + FLOATS <= count; i += FLOATS) top = floats_max(floats_load(x + i), top); /* NaN loses */
    if (i < count) top = floats_max(load_part(x + i, count - i, -INFINITY), top);
    return floats_largest(top);
}

static double softmax(const float *x, size_t count, float *y) {
    enum { RUN = 64 * FLOATS }; /* summed in float before it goes to double */
    float largest = largest_of(x, count), shift = largest == -INFINITY ? 0 : largest;
    double total = 0;
    size_t i = 0;
    while (i + FLOATS <= count) {
        floats sum = floats_set(0);
        for (size_t end = i + RUN; i < end && i + FLOATS <= count; i += FLOATS) {
            floats weight = floats_exp(floats_subtract(floats_load(x + i), floats_set(shift)));
            floats_store(y + i, weight);
            sum = floats_add(sum, weight);
        }
        total += (double)floats_sum(sum);
    }
    if (i < count) {
        floats weight = floats_exp(floats_subtract(load_part(x + i, count - i, -INFINITY), floats_set(shift)));
        store_part(y + i, weight, count - i);
        total += (double)floats_sum(weight);
    }
    float inverse = total == 0 ? 0.0f : (float)(1.0 / total);
    for (i = 0; i + FLOATS <= count; i += FLOATS)
        floats_store(y + i, floats_multiply(floats_load(y + i), floats_set(inverse)));
    for (; i < count; i++) y[i] *= inverse;
    return (double)shift + log(total);
}

FLOATS_INSTALL(activation, activation) {
    kernels->silu_multiply = silu_multiply;
    kernels->swiglu_clamped = swiglu_clamped;
    kernels->relu = relu;
    kernels->gelu_multiply = gelu_multiply;
    kernels->softcap = softcap;
    kernels->add = add;
    kernels->softmax = softmax;
}

/* Norms over `floats`; included by norm_avx2.c, norm_avx512.c and norm_neon.c.
 *
 * A row is read twice (three times for LayerNorm) and written once, from the first-level cache.  Sums
 * run in four registers, so that their rounding grows with count / (4 * FLOATS). */
#include <math.h>

#include "kernels/floats.h"
#include "kernels/norm/norm.h"

/* sum of (x - center)^power, power 1 or 2 */
FLOATS_INLINE float power_sum(const float *x, size_t count, float center, const int power) {
    floats sum[4] = {floats_set(0), floats_set(0), floats_set(0), floats_set(0)};
    floats middle = floats_set(center);
    size_t i = 0;
    for (; i + 4 * FLOATS <= count; i += 4 * FLOATS) {
        FLOATS_UNROLL
        for (size_t n = 0; n < 4; n++) {
            floats off = floats_subtract(floats_load(x + i + n * FLOATS), middle);
            sum[n] = power == 2 ? floats_fma(off, off, sum[n]) : floats_add(off, sum[n]);
        }
    }
    for (; i + FLOATS <= count; i += FLOATS) {
        floats off = floats_subtract(floats_load(x + i), middle);
        sum[0] = power == 2 ? floats_fma(off, off, sum[0]) : floats_add(off, sum[0]);
    }
    float rest = 0;
    for (; i < count; i++) rest += power == 2 ? (x[i] - center) * (x[i] - center) : x[i] - center;
    return rest + floats_sum(floats_add(floats_add(sum[0], sum[1]), floats_add(sum[2], sum[3])));
}

static void rms(const float *x, const float *w, float eps, size_t count, float *y) {
    float inverse = 1.0f / sqrtf(power_sum(x, count, 0, 2) / (float)count + eps);
    size_t i = 0;
    for (; i + FLOATS <= count; i += FLOATS) {
        floats scaled = floats_multiply(floats_load(x + i), floats_set(inverse));
        floats_store(y + i, floats_multiply(scaled, floats_load(w + i)));
    }
    for (; i < count; i++) y[i] = x[i] * inverse * w[i];
}

static void layer(const float *x, const float *w, const float *b, float eps, size_t count, float *y) {
    float mean = power_sum(x, count, 0, 1) / (float)count;
    mean += power_sum(x, count, mean, 1) / (float)count; /* what the first sum's rounding left */
    float inverse = 1.0f / sqrtf(power_sum(x, count, mean, 2) / (float)count + eps);
    size_t i = 0;
    for (; i + FLOATS <= count; i += FLOATS) {
        floats scaled = floats_multiply(floats_subtract(floats_load(x + i), floats_set(mean)), floats_set(inverse));
        floats_store(y + i, floats_fma(scaled, floats_load(w + i), floats_load(b + i)));
    }
    for (; i < count; i++) y[i] = (x[i] - mean) * inverse * w[i] + b[i];
}

FLOATS_INSTALL(norm, norm) { *kernels = (struct norm_kernels){.rms = rms, .layer = layer}; }

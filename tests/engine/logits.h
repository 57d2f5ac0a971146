/* How far two rows of logits are apart, and one spreads. */
#pragma once

#include <math.h>
#include <stddef.h>

/* The largest difference, as a fraction of b's largest; INFINITY if one is not finite. */
static inline double difference(const float *a, const float *b, size_t count) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    return worst / largest;
}

/* The root of a row's mean square distance from its mean. */
static inline double deviation_of(const float *x, size_t count) {
    double mean = 0, squares = 0;
    for (size_t i = 0; i < count; i++) mean += (double)x[i] / (double)count;
    for (size_t i = 0; i < count; i++) squares += pow((double)x[i] - mean, 2) / (double)count;
    return sqrt(squares);
}

/* gram: second moments, sums of x x^T, in double. */
#pragma once

#include <stddef.h>

/* Lower triangle only, until mirrored. gram: [dimension][dimension] */
static inline void gram_add(double *gram, const float *x, size_t dimension) {
    for (size_t i = 0; i < dimension; i++)
        for (size_t j = 0; j <= i; j++) gram[i * dimension + j] += (double)(x[i] * x[j]);
}

static inline void gram_mirror(double *gram, size_t dimension) {
    for (size_t i = 0; i < dimension; i++)
        for (size_t j = 0; j < i; j++) gram[j * dimension + i] = gram[i * dimension + j];
}

#include "lab/calibrate/skew.h"

#include <math.h>
#include <string.h>

#include "lab/calibrate/eigen.h"

void skew_find(double *queries, double *keys, size_t dimension, double *work, double *skew, double *kept) {
    size_t n = dimension;
    double *vectors = work, *values = work + n * n, *products = work + 2 * n * n;
    eigen_symmetric(queries, n, values, vectors);
    for (size_t j = 0; j < n; j++) {
        double square = 0; /* a^T K^T K a */
        for (size_t a = 0; a < n; a++)
            for (size_t b = 0; b < n; b++) square += vectors[a * n + j] * keys[a * n + b] * vectors[b * n + j];
        products[j] = sqrt(fmax(values[j], 0) * fmax(square, 0));
    }
    double whole = 0, first = 0;
    for (size_t place = 0; place < n; place++) {
        size_t best = 0;
        for (size_t j = 1; j < n; j++)
            if (products[j] > products[best]) best = j;
        for (size_t i = 0; i < n; i++) skew[i * n + place] = vectors[i * n + best];
        whole += products[best] * products[best];
        if (place < (n + 4) / 5) first = whole;
        products[best] = -1;
    }
    *kept = whole > 0 ? first / whole : 0;
}

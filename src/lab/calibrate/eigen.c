#include "lab/calibrate/eigen.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static double off_diagonal(const double *a, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            if (i != j) sum += a[i * n + j] * a[i * n + j];
    return sqrt(sum);
}

/* Turns the plane of rows and columns p, q so that a[p][q] becomes 0 (Golub and Van Loan, 8.5.2). */
static void rotate(double *a, double *v, size_t n, size_t p, size_t q) {
    double off = a[p * n + q];
    if (off == 0) return;
    double tau = (a[q * n + q] - a[p * n + p]) / (2 * off);
    double t = (tau >= 0 ? 1 : -1) / (fabs(tau) + sqrt(1 + tau * tau)), c = 1 / sqrt(1 + t * t), s = t * c;
    for (size_t i = 0; i < n; i++) {
        double x = a[i * n + p], y = a[i * n + q];
        a[i * n + p] = c * x - s * y;
        a[i * n + q] = s * x + c * y;
    }
    for (size_t i = 0; i < n; i++) {
        double x = a[p * n + i], y = a[q * n + i];
        a[p * n + i] = c * x - s * y;
        a[q * n + i] = s * x + c * y;
    }
    for (size_t i = 0; i < n; i++) {
        double x = v[i * n + p], y = v[i * n + q];
        v[i * n + p] = c * x - s * y;
        v[i * n + q] = s * x + c * y;
    }
}

static void swap_columns(double *v, size_t n, size_t i, size_t j) {
    for (size_t row = 0; row < n; row++) {
        double kept = v[row * n + i];
        v[row * n + i] = v[row * n + j];
        v[row * n + j] = kept;
    }
}

void eigen_symmetric(double *matrix, size_t count, double *values, double *vectors) {
    enum { SWEEPS_MAX = 30 };
    size_t n = count;
    double whole = 0;
    for (size_t i = 0; i < n * n; i++) whole += matrix[i] * matrix[i];
    memset(vectors, 0, n * n * sizeof *vectors);
    for (size_t i = 0; i < n; i++) vectors[i * n + i] = 1;
    for (size_t sweep = 0; sweep < SWEEPS_MAX && off_diagonal(matrix, n) > 1e-15 * sqrt(whole); sweep++)
        for (size_t p = 0; p + 1 < n; p++)
            for (size_t q = p + 1; q < n; q++) rotate(matrix, vectors, n, p, q);
    for (size_t i = 0; i < n; i++) values[i] = matrix[i * n + i];
    for (size_t i = 0; i + 1 < n; i++) {
        size_t best = i;
        for (size_t j = i + 1; j < n; j++)
            if (values[j] > values[best]) best = j;
        if (best == i) continue;
        double kept = values[i];
        values[i] = values[best];
        values[best] = kept;
        swap_columns(vectors, n, i, best);
    }
}

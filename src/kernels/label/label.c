#include "kernels/label/label.h"

#include <math.h>

double label_cosine(const float *a, const float *b, size_t dimension) {
    double dot = 0, a_square = 0, b_square = 0;
    for (size_t i = 0; i < dimension; i++) {
        dot += (double)a[i] * (double)b[i];
        a_square += (double)a[i] * (double)a[i];
        b_square += (double)b[i] * (double)b[i];
    }
    const double cosine = dot / sqrt(a_square * b_square); /* exactly 1 for the same */
    return isfinite(cosine) ? fmax(fmin(cosine, 1), -1) : NAN;
}

/* NaN if one of them is. */
static double minimum(const double *values, size_t count) {
    double lowest = values[0];
    for (size_t i = 1; i < count; i++)
        if (isnan(values[i]) || values[i] < lowest) lowest = values[i];
    return isnan(values[0]) ? NAN : lowest;
}

double label_similarity(enum label_aggregate aggregate, const double *cosines, const float *importance, size_t count) {
    const double lowest = minimum(cosines, count);
    double weights = 0, harmonic = 0;
    if (aggregate == LABEL_MINIMUM || !(lowest > 0)) return lowest; /* NaN: NaN */
    for (size_t i = 0; i < count; i++) {
        weights += (double)importance[i];
        harmonic += (double)importance[i] / cosines[i];
    }
    return weights > 0 ? weights / harmonic : lowest;
}

#include "attention/reuse_options.h"

#include <math.h>

struct reuse_options reuse_options_default(void) {
    return (struct reuse_options){.eta = 0.8, .power = 3, .epsilon = 0.1, .age = 64};
}

double reuse_threshold(const struct reuse_options *options, double importance) {
    if (!(options->eta <= 1)) return INFINITY;
    const double pi = acos(-1), lambda = pow(importance, options->power);
    return cos(lambda * acos(fmax(options->eta, -1)) + (1 - lambda) * pi);
}

double reuse_cosine(const float *a, const float *b, size_t dimension) {
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

double reuse_similarity(const struct reuse_options *options, const double *similarities,
                        const float *importance, size_t count) {
    const double lowest = minimum(similarities, count);
    double weights = 0, harmonic = 0;
    for (size_t i = 0; i < count; i++) {
        weights += (double)importance[i];
        harmonic += (double)importance[i] / fmax(similarities[i], REUSE_SIMILARITY_MIN);
    }
    if (isnan(lowest)) return NAN;
    if (options->aggregate == REUSE_MINIMUM || !(weights > 0)) return lowest;
    return weights / harmonic;
}

#include "plan/compression.h"

#include <math.h>

#include "cache/page_fractions.h"

static double read_seconds(const struct compression_costs *costs, double fraction) {
    double bytes = costs->bytes * (1 - fraction) + costs->bytes * fraction * costs->ratio;
    return costs->other_seconds + bytes / costs->read_rate;
}

static double compute_seconds(const struct compression_costs *costs, double fraction) {
    return costs->compute_seconds + costs->bytes * fraction / costs->decode_rate;
}

double compression_layer_seconds(const struct compression_costs *costs, double fraction) {
    return fmax(read_seconds(costs, fraction), compute_seconds(costs, fraction));
}

/* With weights fraction / sensitivity times `scale`. */
static double spread(const double *fractions, const float *sensitivity, size_t layer, double scale) {
    if (sensitivity == NULL || !(fractions[layer] > 0)) return fractions[layer];
    return fmin(scale * fractions[layer] / fmax((double)sensitivity[layer], 1e-9), 1);
}

/* The scale at which the sum is what it was: it grows with the scale. */
static double spread_scale(const double *fractions, const float *sensitivity, size_t layer_count) {
    double sum = 0, low = 0, high = 0;
    for (size_t i = 0; i < layer_count; i++) sum += fractions[i];
    for (size_t i = 0; i < layer_count; i++)
        if (sensitivity != NULL && fractions[i] > 0)
            high = fmax(high, fmax((double)sensitivity[i], 1e-9) / fractions[i]);
    for (int round = 0; round < 100; round++) {
        double middle = (low + high) / 2, found = 0;
        for (size_t i = 0; i < layer_count; i++) found += spread(fractions, sensitivity, i, middle);
        *(found < sum ? &low : &high) = middle;
    }
    return high;
}

void compression_spread(const double *fractions, const float *sensitivity, size_t layer_count, uint8_t *sixteenths) {
    double scale = spread_scale(fractions, sensitivity, layer_count), owed = 0;
    for (size_t i = 0; i < layer_count; i++) {
        owed += PAGE_FRACTION_WHOLE * spread(fractions, sensitivity, i, scale);
        double given = fmin(fmax(round(owed), 0), PAGE_FRACTION_WHOLE);
        sixteenths[i] = (uint8_t)given;
        owed -= given;
    }
}

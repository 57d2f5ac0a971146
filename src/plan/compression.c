#include "plan/compression.h"

#include <math.h>

#include "base/assert.h"
#include "cache/page_shares.h"

double compression_read_seconds(const struct compression_costs *costs, double share) {
    double bytes = costs->bytes * (1 - share) + costs->bytes * share * costs->ratio;
    return costs->other_seconds + bytes / costs->read_rate;
}

double compression_compute_seconds(const struct compression_costs *costs, double share) {
    return costs->compute_seconds + costs->bytes * share / costs->decode_rate;
}

double compression_layer_seconds(const struct compression_costs *costs, double share) {
    return fmax(compression_read_seconds(costs, share), compression_compute_seconds(costs, share));
}

double compression_fraction(const struct compression_costs *costs) {
    ASSERT(costs->read_rate > 0 && costs->decode_rate > 0);
    if (!(costs->bytes > 0) || !(costs->ratio < 1)) return 0;
    double late = compression_read_seconds(costs, 0) - compression_compute_seconds(costs, 0);
    double gained = costs->bytes * ((1 - costs->ratio) / costs->read_rate + 1 / costs->decode_rate);
    return fmin(fmax(late / gained, 0), 1);
}

/* With weights share / sensitivity times `scale`. */
static double spread(const double *shares, const float *sensitivity, size_t layer, double scale) {
    if (sensitivity == NULL || !(shares[layer] > 0)) return shares[layer];
    return fmin(scale * shares[layer] / fmax((double)sensitivity[layer], 1e-9), 1);
}

/* The scale at which the sum is what it was: it grows with the scale. */
static double spread_scale(const double *shares, const float *sensitivity, size_t layer_count) {
    double sum = 0, low = 0, high = 0;
    for (size_t i = 0; i < layer_count; i++) sum += shares[i];
    for (size_t i = 0; i < layer_count; i++)
        if (sensitivity != NULL && shares[i] > 0)
            high = fmax(high, fmax((double)sensitivity[i], 1e-9) / shares[i]);
    for (int round = 0; round < 100; round++) {
        double middle = (low + high) / 2, found = 0;
        for (size_t i = 0; i < layer_count; i++) found += spread(shares, sensitivity, i, middle);
        *(found < sum ? &low : &high) = middle;
    }
    return high;
}

void compression_spread(const double *shares, const float *sensitivity, size_t layer_count,
                        uint8_t *sixteenths) {
    double scale = spread_scale(shares, sensitivity, layer_count), owed = 0;
    for (size_t i = 0; i < layer_count; i++) {
        owed += PAGE_SHARE_WHOLE * spread(shares, sensitivity, i, scale);
        double given = fmin(fmax(round(owed), 0), PAGE_SHARE_WHOLE);
        sixteenths[i] = (uint8_t)given;
        owed -= given;
    }
}

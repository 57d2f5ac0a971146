#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "rates/rates.h"

void rate_add(struct rate *rate, double amount, double seconds) {
    rate->amount += amount;
    rate->seconds += seconds;
}

void rate_end_sample(struct rate *rate) {
    if (rate->amount > 0) {
        rate->samples[rate->next] = rate->seconds / rate->amount;
        rate->next = (rate->next + 1) % RATE_SAMPLES;
        rate->count = min_size(rate->count + 1, RATE_SAMPLES);
    }
    rate->amount = rate->seconds = 0;
}

void rate_note(struct rate *rate, double amount, double seconds) {
    rate_add(rate, amount, seconds);
    rate_end_sample(rate);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double rate_median(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_size);
    return values[(count - 1) / 2];
}

double rate_seconds(const struct rate *rate) {
    double sorted[RATE_SAMPLES];
    if (rate->count == 0) return rate->amount > 0 ? rate->seconds / rate->amount : 0;
    memcpy(sorted, rate->samples, rate->count * sizeof *sorted);
    return rate_median(sorted, rate->count);
}

double rate_per_second(const struct rate *rate) {
    const double seconds = rate_seconds(rate);
    return seconds > 0 ? 1 / seconds : 0;
}

double rate_spread(const struct rate *rate) {
    double sorted[RATE_SAMPLES];
    if (rate->count < 2) return 0;
    memcpy(sorted, rate->samples, rate->count * sizeof *sorted);
    const double median = rate_median(sorted, rate->count);
    return (sorted[rate->count - 1] - sorted[0]) / median;
}

bool rate_has_changed(const struct rate *rate, double then, double factor) {
    const double seconds = rate_seconds(rate);
    return then > 0 && (seconds > factor * then || factor * seconds < then);
}

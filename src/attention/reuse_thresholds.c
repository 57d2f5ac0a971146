#include "attention/reuse_thresholds.h"

const double reuse_curve_thresholds[REUSE_CURVE_POINTS] = {-1, 0, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 2};

/* The point of least loss where a reused list is worth so much. */
static const struct reuse_point *best(const struct reuse_point *curve, double worth) {
    const struct reuse_point *found = &curve[REUSE_CURVE_POINTS - 1];
    for (size_t i = REUSE_CURVE_POINTS - 1; i-- > 0;)
        if ((double)curve[i].loss - worth * (double)curve[i].hits < (double)found->loss - worth * (double)found->hits)
            found = &curve[i];
    return found;
}

static double divide(double *thresholds, const struct reuse_point *curves, size_t count, double worth) {
    double hits = 0;
    for (size_t i = 0; i < count; i++) {
        const struct reuse_point *point = best(curves + i * REUSE_CURVE_POINTS, worth);
        hits += (double)point->hits;
        if (thresholds != NULL) thresholds[i] = (double)point->threshold;
    }
    return count > 0 ? hits / (double)count : 0;
}

double reuse_thresholds_divide(double *thresholds, const struct reuse_point *curves, size_t count, double wanted) {
    enum { HALVINGS = 100 };
    double low = 0, high = 1e-6; /* what a reused list is worth; losses are relative squares */
    while (divide(NULL, curves, count, high) < wanted && high < 1e9) high *= 2;
    for (size_t i = 0; i < HALVINGS; i++) {
        const double middle = (low + high) / 2;
        if (divide(NULL, curves, count, middle) < wanted)
            low = middle;
        else
            high = middle;
    }
    return divide(thresholds, curves, count, wanted > 0 ? high : 0);
}

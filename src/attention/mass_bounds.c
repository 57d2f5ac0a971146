#include "attention/mass_bounds.h"

void mass_bounds_add(struct mass_bounds *bounds, const double *masses, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (bounds->count == 0 || masses[i] < bounds->min) bounds->min = masses[i];
        bounds->sum += masses[i];
        bounds->count++;
    }
}

void mass_bounds_merge(struct mass_bounds *sum, const struct mass_bounds *more) {
    if (more->count == 0) return;
    if (sum->count == 0 || more->min < sum->min) sum->min = more->min;
    sum->sum += more->sum;
    sum->count += more->count;
}

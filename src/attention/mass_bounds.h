/* mass_bounds: sums the mass bounds of all rows and query heads so far (device.h, mass_bound). */
#ifndef LOAM_ATTENTION_MASS_BOUNDS_H
#define LOAM_ATTENTION_MASS_BOUNDS_H

#include <stddef.h>
#include <stdint.h>

struct mass_bounds {
    uint64_t count;  /* query heads of rows that chose; 0: no bounds were computed, and the rest is not set */
    double sum, min; /* of their mass bounds, 0 to 1 */
};

void mass_bounds_add(struct mass_bounds *bounds, const double *masses, size_t count);
void mass_bounds_merge(struct mass_bounds *sum, const struct mass_bounds *more);

#endif

#include "lab/calibrate/quadratic.h"

#include <math.h>
#include <string.h>

/* d/dx_i = 2 (G x)_i - c_i */
static double slope_at(const double *g, const double *c, size_t count, const double *x, size_t i) {
    double sum = 0;
    for (size_t j = 0; j < count; j++) sum += g[i * count + j] * x[j];
    return 2 * sum - c[i];
}

double quadratic_violation(const double *g, const double *c, size_t count, const double *x) {
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        double slope = slope_at(g, c, count, x, i);
        if (x[i] <= 0) slope = fmin(slope, 0);
        if (x[i] >= 1) slope = fmax(slope, 0);
        worst = fmax(worst, fabs(slope));
    }
    return worst;
}

double quadratic_solve(const double *g, const double *c, size_t count, double tolerance, double *x) {
    enum { ROUNDS_MAX = 10000 };
    memset(x, 0, count * sizeof *x);
    double violation = quadratic_violation(g, c, count, x);
    for (size_t round = 0; round < ROUNDS_MAX && violation > tolerance; round++) {
        for (size_t i = 0; i < count; i++) {
            double slope = slope_at(g, c, count, x, i), curvature = 2 * g[i * count + i];
            /* A coordinate without curvature moves downhill to its bound. */
            double step = curvature > 0 ? -slope / curvature : slope < 0 ? 1 : slope > 0 ? -1 : 0;
            x[i] = fmin(1, fmax(0, x[i] + step));
        }
        violation = quadratic_violation(g, c, count, x);
    }
    return violation;
}

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

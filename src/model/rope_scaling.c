#include "model/rope_scaling.h"

#include <math.h>

#define PI 3.14159265358979323846

double rope_yarn_magnitude(double factor, double multiplier) {
    return factor <= 1.0 ? 1.0 : 0.1 * multiplier * log(factor) + 1.0;
}

void rope_llama3_divisors(double base, size_t dimension, double factor, double low_factor, double high_factor,
                          double original_context, double *divisors) {
    for (size_t j = 0; j < dimension / 2; j++) {
        double wavelength = 2.0 * PI * pow(base, 2.0 * (double)j / (double)dimension);
        if (wavelength < original_context / high_factor) {
            divisors[j] = 1.0;
        } else if (wavelength > original_context / low_factor) {
            divisors[j] = factor;
        } else {
            double smooth = (original_context / wavelength - low_factor) / (high_factor - low_factor);
            divisors[j] = 1.0 / ((1.0 - smooth) / factor + smooth);
        }
    }
}

/* The pair (as a real number) that turns `turns` times within the original context. */
static double yarn_pair(double turns, double dimension, double base, double original_context) {
    return dimension * log(original_context / (turns * 2.0 * PI)) / (2.0 * log(base));
}

/* The weight of each pair's unscaled frequency, times the extrapolation strength. */
static double yarn_extrapolation(const struct model_config *config, double dimension, size_t pair) {
    double context = (double)config->rope_original_context;
    double low = yarn_pair(config->yarn_beta_fast, dimension, config->rope_base, context);
    double high = yarn_pair(config->yarn_beta_slow, dimension, config->rope_base, context);
    if (!config->yarn_is_exact) low = floor(low), high = ceil(high);
    low = fmax(low, 0.0);
    high = fmin(high, dimension - 1.0);
    double ramp = ((double)pair - low) / fmax(0.001, high - low);
    return (1.0 - fmin(1.0, fmax(0.0, ramp))) * (double)config->yarn_extrapolation;
}

void rope_frequencies(const struct model_config *config, size_t rotated, const float *divisors, float *frequency) {
    double base = config->rope_base, dimension = (double)rotated;
    for (size_t j = 0; j < rotated / 2; j++) {
        double exact = pow(base, -2.0 * (double)j / dimension);
        if (divisors != NULL) exact /= (double)divisors[j];
        double interpolated = exact / (double)config->rope_factor, value = exact;
        switch (config->rope_scaling) {
        case ROPE_SCALING_NONE:
        case ROPE_SCALING_LLAMA3: break;
        case ROPE_SCALING_LINEAR: value = interpolated; break;
        case ROPE_SCALING_YARN: {
            double keep = yarn_extrapolation(config, dimension, j);
            value = interpolated * (1.0 - keep) + exact * keep;
            break;
        }
        }
        frequency[j] = (float)value;
    }
    if (config->rope_scaling == ROPE_SCALING_LLAMA3 && config->llama3_high_factor > 0) {
        double own[ROPE_PAIRS_MAX];
        rope_llama3_divisors(base, rotated, config->rope_factor, config->llama3_low_factor, config->llama3_high_factor,
                             (double)config->rope_original_context, own);
        for (size_t j = 0; j < rotated / 2; j++)
            frequency[j] = (float)(pow(base, -2.0 * (double)j / dimension) / own[j]);
    }
}

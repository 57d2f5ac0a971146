/* norm: RMSNorm, y = x / sqrt(mean(x^2) + eps) * w, and LayerNorm, y = (x - mean) / sqrt(var + eps) * w + b. */
#pragma once

#include <stddef.h>

#include "kernels/variants.h"

struct norm_kernels {
    void (*rms)(const float *x, const float *w, float eps, size_t count, float *y); /* y may be x */
    void (*layer)(const float *x, const float *w, const float *b, float eps, size_t count, float *y);
};

KERNELS(norm);

#include <math.h>

#include "kernels/rope/rope.h"

/* position * frequency needs up to 53 + 24 bits.  The rounding of the double product, which is as large as
 * a quarter of a radian at 2^52, is computed exactly by fma and given back as a rotation of its own, so
 * that the angle is right at any position below 2^53.  libm reduces the arguments exactly. */
static void angles(uint64_t position, const float *frequency, size_t pair_count, float factor, float *cosine_sine) {
    for (size_t j = 0; j < pair_count; j++) {
        double angle = (double)position * (double)frequency[j];
        double rest = fma((double)position, (double)frequency[j], -angle);
        double sine = sin(angle), cosine = cos(angle);
        if (rest != 0) { /* not before position 2^29 */
            double turned = cosine * cos(rest) - sine * sin(rest);
            sine = sine * cos(rest) + cosine * sin(rest);
            cosine = turned;
        }
        cosine_sine[2 * j] = (float)((double)factor * cosine);
        cosine_sine[2 * j + 1] = (float)((double)factor * sine);
    }
}

static void apply(float *x, size_t head_count, size_t head_stride, size_t pair_count, enum rope_order order,
                  const float *cosine_sine) {
    size_t step = order == ROPE_ADJACENT ? 2 : 1, across = order == ROPE_ADJACENT ? 1 : pair_count;
    for (size_t head = 0; head < head_count; head++)
        for (size_t j = 0; j < pair_count; j++) {
            float *pair = x + head * head_stride + j * step;
            double a = (double)pair[0], b = (double)pair[across];
            double cosine = (double)cosine_sine[2 * j], sine = (double)cosine_sine[2 * j + 1];
            pair[0] = (float)(a * cosine - b * sine);
            pair[across] = (float)(a * sine + b * cosine);
        }
}

void rope_ref_install(struct rope_kernels *kernels) {
    *kernels = (struct rope_kernels){.angles = angles, .apply = apply};
}

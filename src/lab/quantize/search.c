#include "lab/quantize/search.h"

#include <math.h>

#include "kernels/convert/codes.h"
#include "tensor/half.h"

/* Adding 1.5·2^23 leaves the rounded integer in the low bits of the sum: no call, and it vectorises. */
static inline int round_magic(float value) { return (int)(float_to_bits(value + 12582912.0f) - 0x4b400000u); }

int round_near(float value) { return round_magic(value); }

uint16_t half_finite(float value) {
    const float largest = 65504.0f;
    return float_to_half(value > largest ? largest : value < -largest ? -largest : value);
}

static void round_integer(const float *x, size_t count, float inverse, int lowest, int highest, int8_t *level) {
    float low = (float)lowest, high = (float)highest;
    for (size_t i = 0; i < count; i++) {
        float v = x[i] * inverse;
        v = v > low ? v : low; /* this order turns NaN into the lowest */
        v = v < high ? v : high;
        level[i] = (int8_t)round_magic(v);
    }
}

static void round_iq4(const float *x, size_t count, float inverse, int8_t *level) {
    for (size_t i = 0; i < count; i++) {
        float v = x[i] * inverse;
        int8_t nearest = iq4_levels[0];
        for (size_t k = 1; k < 16; k++)
            if (2 * v > (float)(iq4_levels[k - 1] + iq4_levels[k])) nearest = iq4_levels[k];
        level[i] = nearest;
    }
}

uint8_t iq4_code(int8_t level) {
    uint8_t code = 0;
    while (iq4_levels[code] != level) code++;
    return code;
}

void grid_round(const struct grid *grid, const float *x, size_t count, float inverse, int8_t *level) {
    if (grid->iq4)
        round_iq4(x, count, inverse, level);
    else
        round_integer(x, count, inverse, grid->lowest, grid->highest, level);
}

static float squared_error(const float *x, const int8_t *level, size_t count, float step) {
    float error = 0;
    for (size_t i = 0; i < count; i++) {
        float difference = x[i] - step * (float)level[i];
        error += difference * difference;
    }
    return error;
}

float grid_error(const struct grid *grid, const float *x, size_t count, float step, int8_t *level) {
    float inverse = fabsf(step) < QUANTIZE_TINY ? 0 : 1 / step;
    grid_round(grid, x, count, inverse, level);
    return squared_error(x, level, count, step);
}

/* One candidate: the levels nearest for `inverse`, the best step for those levels, and what it gains:
 * the squared error is sum x^2 − gain. */
static float step_fit(const struct grid *grid, const float *x, size_t count, float inverse, float *gain) {
    int8_t level[GROUP_MAX];
    grid_round(grid, x, count, inverse, level);
    float xl = 0, ll = 0;
    for (size_t i = 0; i < count; i++) {
        float l = (float)level[i];
        xl += x[i] * l;
        ll += l * l;
    }
    *gain = ll > 0 ? xl * xl / ll : -1;
    return ll > 0 ? xl / ll : 0;
}

float grid_step_find(const struct grid *grid, const float *x, size_t count) {
    float extreme = 0;
    for (size_t i = 0; i < count; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    if (!(fabsf(extreme) >= QUANTIZE_TINY)) return 0;
    /* The largest value goes near the end of the grid: a bit beyond it (clamped) or a bit inside; both
     * signs of the step, since the grid is longer on one side. */
    int lowest = grid->iq4 ? iq4_levels[0] : grid->lowest, highest = grid->iq4 ? iq4_levels[15] : grid->highest;
    float best = 0, best_gain = -1;
    for (int sign = 0; sign < 2; sign++) {
        float end = (float)(sign ? highest : lowest);
        for (int t = -6; t <= 9; t++) {
            float gain;
            float inverse = end * (1 - 0.03f * (float)t) / extreme;
            float step = step_fit(grid, x, count, inverse, &gain);
            if (gain > best_gain) best = step, best_gain = gain;
        }
    }
    for (int round = 0; round < 3 && fabsf(best) >= QUANTIZE_TINY; round++) {
        float gain;
        float step = step_fit(grid, x, count, 1 / best, &gain);
        if (!(gain > best_gain)) break;
        best = step, best_gain = gain;
    }
    return best;
}

float affine_error(struct affine affine, const float *x, size_t count, int highest, uint8_t *code) {
    float inverse = affine.step < QUANTIZE_TINY ? 0 : 1 / affine.step, high = (float)highest, error = 0;
    for (size_t i = 0; i < count; i++) {
        float v = (x[i] - affine.minimum) * inverse;
        v = v > 0 ? v : 0;
        v = v < high ? v : high;
        code[i] = (uint8_t)round_magic(v);
        float difference = x[i] - (affine.step * (float)code[i] + affine.minimum);
        error += difference * difference;
    }
    return error;
}

/* The best step and minimum for the codes nearest under `from`, with their squared error. */
static struct affine affine_fit(struct affine from, const float *x, size_t count, int highest, bool below_zero,
                                float *error) {
    uint8_t code[GROUP_MAX];
    affine_error(from, x, count, highest, code);
    float n = (float)count, sx = 0, sc = 0, scc = 0, sxc = 0;
    for (size_t i = 0; i < count; i++) {
        float c = (float)code[i];
        sx += x[i], sc += c, scc += c * c, sxc += x[i] * c;
    }
    struct affine fit = from;
    float determinant = n * scc - sc * sc;
    if (determinant > 0) {
        fit.step = (n * sxc - sx * sc) / determinant;
        fit.minimum = (scc * sx - sc * sxc) / determinant;
        if (below_zero && fit.minimum > 0) {
            fit.minimum = 0;
            fit.step = sxc / scc;
        }
    }
    if (!(fit.step >= 0)) fit = from;
    *error = 0;
    for (size_t i = 0; i < count; i++) {
        float difference = x[i] - (fit.step * (float)code[i] + fit.minimum);
        *error += difference * difference;
    }
    return fit;
}

struct affine affine_find(const float *x, size_t count, int highest, bool below_zero) {
    float low = x[0], high = x[0];
    for (size_t i = 1; i < count; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    if (below_zero && low > 0) low = 0;
    if (!(high - low >= QUANTIZE_TINY)) /* all equal */
        return (struct affine){0, below_zero && low > 0 ? 0 : low};
    struct affine best = {(high - low) / (float)highest, low};
    float best_error = INFINITY;
    for (int t = -4; t <= 16; t++) { /* from a range a little too wide to one that clamps both ends */
        float shrink = 0.6f * (float)t / 16 / (float)(highest + 2) * (highest < 8 ? 2 : 3);
        float range = (high - low) * (1 - shrink), error;
        struct affine start = {range / (float)highest, low + (high - low) * shrink / 2};
        if (below_zero && start.minimum > 0) start.minimum = 0;
        struct affine fit = affine_fit(start, x, count, highest, below_zero, &error);
        if (error < best_error) best = fit, best_error = error;
    }
    for (int round = 0; round < 4; round++) {
        float error;
        struct affine fit = affine_fit(best, x, count, highest, below_zero, &error);
        if (!(error < best_error)) break;
        best = fit, best_error = error;
    }
    return best;
}

/* search: the least-squares searches that the quantisers are made of.
 *
 * A group of values is written as step·level (levels on a grid) or step·code + minimum.  For given
 * levels the best step is a least-squares solution; for a given step the best levels are the nearest
 * ones.  A scan over steps finds the right basin, alternating the two polishes it.  All errors are
 * plain squared errors.  Values must be finite; a NaN becomes the lowest level.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GROUP_MAX = 32 }; /* values in the largest group */

/* Quantisers take magnitudes below this as zero: their inverse would overflow. */
#define QUANTIZE_TINY 1e-30f

struct grid {
    int lowest, highest; /* every integer between, or */
    bool iq4;            /* the 16 levels of IQ4 */
};

/* level[i] = the grid's nearest to x[i]·inverse. */
void grid_round(const struct grid *grid, const float *x, size_t count, float inverse, int8_t *level);

/* The step with the least squared error of step·level for x[count], count <= GROUP_MAX; 0 for zeros. */
float grid_step_find(const struct grid *grid, const float *x, size_t count);

/* The squared error of step·level with the nearest levels, which it leaves in level[count]. */
float grid_error(const struct grid *grid, const float *x, size_t count, float step, int8_t *level);

struct affine {
    float step, minimum; /* value = step·code + minimum, step >= 0 */
};

/* Codes 0..highest.  With `below_zero` the minimum is at most 0, as the K types need. */
struct affine affine_find(const float *x, size_t count, int highest, bool below_zero);

/* The squared error with the nearest codes, which it leaves in code[count]. */
float affine_error(struct affine affine, const float *x, size_t count, int highest, uint8_t *code);

/* Of a level of IQ4. */
uint8_t iq4_code(int8_t level);

/* The nearest half, kept finite. */
uint16_t half_finite(float value);

/* To nearest, for |value| < 2^22. */
int round_near(float value);

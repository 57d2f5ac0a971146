/* mass: the attention that each token has received, summed over decode steps (H2O).
 *
 *   mass[rows[i]] += sum over heads h of the group of exp(scores[h][i] - m[h]) / s[h]
 *
 * The scores are those that attention's gather hands out; m and s are of the whole attention of the head, after
 * all partials are merged, so that a step adds 1 per head over all its rows.  A head with s = 0 adds nothing.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/variants.h"

struct mass_add_args {
    const float *scores;  /* [group][scores_stride], row_count each */
    size_t scores_stride; /* floats */
    size_t group;         /* 1..64 */
    const float *m, *s;   /* [group] */
    const uint32_t *rows; /* [row_count], each at most once; NULL: row_first + i */
    uint64_t row_first;   /* of consecutive rows; 0 with `rows` */
    size_t row_count;
    float *mass; /* indexed by row */
};

struct mass_kernels {
    void (*add)(const struct mass_add_args *args);
};

KERNELS(mass);

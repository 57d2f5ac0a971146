/* group: the scores of a unit's parts become one, and those of a group's query heads one per unit.
 *
 *   out[i] = sum over heads h of  e_h[i] / sum over j of e_h[j],   e_h[i] = exp(scales[h] (scores[h][i] - m_h))
 *
 * with m_h the greatest score of the head.  Each head's scores become shares that sum to 1, so a head whose queries
 * are long does not outvote the others, as it does in a sum or a maximum of raw scores.
 * A NaN makes its own unit NaN and no other: it does not count in the sums.  A head without a number adds NaN to all.
 */
#pragma once

#include <stddef.h>

#include "kernels/variants.h"

struct group_softmax_args {
    float *scores;       /* [heads][stride], count each; overwritten: the result is in the first row */
    size_t stride;       /* floats */
    size_t heads, count; /* heads 1..64 */
    const float *scales; /* [heads], at least 0 */
};

/* The best score of each unit's parts: the greatest, or NaN if one of them is (as top_k.h takes it). */
struct group_best_args {
    const float *scores; /* [count][parts] */
    size_t count, parts; /* parts at least 1 */
    float *best;         /* [count]; not where scores are */
};

struct group_kernels {
    void (*softmax)(const struct group_softmax_args *args);
    void (*best)(const struct group_best_args *args);
};

KERNELS(group);

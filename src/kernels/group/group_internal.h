/* group_internal: what the variants of group share. */
#pragma once

#include "kernels/group/group.h"

/* The definition of `best`, which the variants use for parts that fill no register, and where a score is no number. */
static inline void group_best_of_each(const struct group_best_args *args) {
    for (size_t i = 0; i < args->count; i++) {
        const float *scores = args->scores + i * args->parts;
        float best = scores[0];
        for (size_t p = 1; p < args->parts && best == best; p++)
            if (!(scores[p] <= best)) best = scores[p];
        args->best[i] = best;
    }
}

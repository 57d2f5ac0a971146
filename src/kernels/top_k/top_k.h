/* top_k: the indices of the k largest of n scores, ascending; exact and deterministic.
 *
 * Equal scores: the lower index is taken.  Zeros of both signs are equal.  A NaN of either sign ranks above
 * everything: its token is attended to, so that damage shows in the output.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/variants.h"

struct top_k_args {
    const float *scores;  /* [count] */
    size_t count;         /* at most 2^31 */
    size_t k;             /* of which min(k, count) are taken */
    uint32_t index_first; /* added to every index: the caller owns sinks and recent rows and passes the middle */
    uint32_t *indices;    /* out: [min(k, count)], ascending */
    void *scratch;        /* scratch_bytes(count, k), aligned to 64 */
};

struct top_k_kernels {
    void (*select)(const struct top_k_args *args);
    size_t (*scratch_bytes)(size_t count, size_t k);
};

KERNELS(top_k);

/* score: rows of halves against the queries of a group, one score per row.
 *
 *   score(row) = max or sum over heads h of  q_h . row
 *
 * The rows are of a key index: partial keys (lowrank), or abstracts of pages (abstract.h makes its scores of this).
 * A NaN in a row or in a query gives NaN.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/variants.h"

/* How the scores of a group's query heads become one.
 *   SCORE_MAX      a row that one head wants is kept for it
 *   SCORE_SUM      the score of the summed query, one dot product per row
 *   SCORE_SOFTMAX  the sum of each head's softmax over all units (kernels/group), which needs all scores of a head:
 *                  kernels that score are then given one head at a time */
enum score_aggregate { SCORE_MAX, SCORE_SUM, SCORE_SOFTMAX };

struct score_args {
    const void *const *blocks; /* row r is row r % block_rows of blocks[r / block_rows] */
    size_t block_offset;       /* bytes from the start of a block to its row 0; a multiple of 16 */
    size_t block_rows;         /* rows of a block, one after the other */
    size_t columns;            /* halves of a row; a multiple of 8 */
    uint64_t row_begin, row_end;
    const float *q;  /* [heads][q_stride], columns each */
    size_t q_stride; /* floats */
    size_t heads;    /* 1..64 */
    enum score_aggregate aggregate;
    float *scores; /* [row_end - row_begin] */
    void *scratch; /* scratch_bytes(columns), aligned to 4 */
    /* then[b] is what will be read if block b scores well.  A line of each is prefetched while these are scored, so
     * that its page is in the TLB (bench/lab/prefetches.md).  NULL: nothing. */
    const void *const *then;
};

struct score_kernels {
    void (*rows)(const struct score_args *args);
    size_t (*scratch_bytes)(size_t columns);
};

KERNELS(score);

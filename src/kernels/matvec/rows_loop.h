/* rows_loop: the loop over rows, groups of 256 weights and inputs that the vector variants of matvec share.
 *
 * Written once and specialised by constant arguments (so everything here must be inlined): a variant gives
 * the function that adds one group of a row, times n inputs, to the accumulators.  Who includes this has
 * defined row_vector, the type of an accumulator, row_zero() and row_sum(a, b), the sum of all lanes of both. */
#ifndef LOAM_KERNELS_MATVEC_ROWS_LOOP_H
#define LOAM_KERNELS_MATVEC_ROWS_LOOP_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/matvec/matvec_internal.h"

struct row_kind {
    size_t block_bytes, group_blocks; /* of the weight; a group is 256 weights */
    size_t input_group_bytes;
};

/* Adds one group of a row, at w, times n inputs, at x[i], to acc[i] or acc[TILE_MOST + i] (the row's sum is
 * that of all lanes of both). */
typedef void group_function(const uint8_t *w, const void *const *x, size_t n, row_vector *acc);

/* Rows [begin, end) times n inputs; y[i·stride + row]. */
INLINE void rows_times(const struct matvec_args *args, const uint8_t *const *inputs, float *y, size_t n,
                       size_t begin, size_t end, group_function *group, struct row_kind kind) {
    const struct matrix *weight = args->weight;
    const size_t group_bytes = kind.block_bytes * kind.group_blocks, groups = weight->columns / INPUT_GROUP;
    const size_t rest = weight->columns % INPUT_GROUP * kind.group_blocks / INPUT_GROUP * kind.block_bytes;
    const uint8_t *row_data = (const uint8_t *)weight->data + begin * weight->row_bytes;
    for (size_t row = begin; row < end; row++, row_data += weight->row_bytes) {
        const uint8_t *w = row_data, *const w_end = w + groups * group_bytes;
        const void *x[TILE_MOST];
        row_vector acc[2 * TILE_MOST];
        UNROLL for (size_t i = 0; i < n; i++) {
            x[i] = inputs[i];
            acc[i] = acc[TILE_MOST + i] = row_zero();
        }
        for (; w < w_end; w += group_bytes) {
            prefetch_lines(w, group_bytes);
            group(w, x, n, acc);
            UNROLL for (size_t i = 0; i < n; i++) { x[i] = (const uint8_t *)x[i] + kind.input_group_bytes; }
        }
        if (kind.group_blocks > 1 && rest != 0) { /* the last group, filled up with blocks that are zero */
            uint8_t copy[GROUP_BYTES_MOST] = {0};
            memcpy(copy, w, rest);
            group(copy, x, n, acc);
        }
        UNROLL for (size_t i = 0; i < n; i++) {
            y[i * args->output_stride + row] = row_sum(acc[i], acc[TILE_MOST + i]);
        }
    }
}

INLINE void rows_run(const struct matvec_args *args, group_function *group, struct row_kind kind) {
    const size_t groups = (args->weight->columns + INPUT_GROUP - 1) / INPUT_GROUP;
    const uint8_t *x[MATVEC_INPUTS_MOST];
    for (size_t i = 0; i < args->input_count; i++)
        x[i] = (const uint8_t *)args->inputs + i * groups * kind.input_group_bytes;
    /* More inputs than a tile: row by row, so that the second tile finds the row in L1. */
    size_t step = args->input_count <= TILE_MOST ? args->row_end - args->row_begin : 1;
    for (size_t row = args->row_begin; row < args->row_end; row += step)
        for (size_t i = 0; i < args->input_count; i += TILE_MOST) {
            float *y = args->outputs + i * args->output_stride;
            switch (args->input_count - i) {
            case 1: rows_times(args, x + i, y, 1, row, row + step, group, kind); break;
            case 2: rows_times(args, x + i, y, 2, row, row + step, group, kind); break;
            case 3: rows_times(args, x + i, y, 3, row, row + step, group, kind); break;
            default: rows_times(args, x + i, y, 4, row, row + step, group, kind); break;
            }
        }
}

#endif

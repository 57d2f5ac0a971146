/* Tiles of floats; included by matmul_float_avx2.c, _avx512.c and _neon.c, each of which defines tile_multiply. */
#ifndef LOAM_KERNELS_MATMUL_FLOAT_TILES_H
#define LOAM_KERNELS_MATMUL_FLOAT_TILES_H

#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"

enum { TILE_INPUTS = FLOAT_TILE_INPUTS };

/* sums[n][tile rows] += block_count blocks of the panel (of two with 32 rows, FLOAT_RUN_BLOCKS apart) times x, the
 * prepared inputs of the tile, [columns][n]; n is a constant, 1..TILE_INPUTS. */
static inline __attribute__((always_inline)) void tile_multiply(const struct float_panel *panel,
                                                                const float *x, size_t block_count, size_t n,
                                                                float *restrict sums);

static void tile_run(const struct panel_kernel *kernel, const void *panel, const void *input,
                     size_t block_count, size_t inputs, float *sums) {
    (void)kernel;
    switch (inputs) {
    case 1: tile_multiply(panel, input, block_count, 1, sums); break;
    case 2: tile_multiply(panel, input, block_count, 2, sums); break;
    case 3: tile_multiply(panel, input, block_count, 3, sums); break;
    case 4: tile_multiply(panel, input, block_count, 4, sums); break;
    case 5: tile_multiply(panel, input, block_count, 5, sums); break;
    default: tile_multiply(panel, input, block_count, 6, sums); break;
    }
}

static void float_tiles_run(const struct matmul_args *args, size_t tile_rows, float_unpack *unpack) {
    struct panel_kernel kernel = {
        .panel_bytes = sizeof(struct float_panel),
        .run_blocks = FLOAT_RUN_BLOCKS,
        .run_inputs = RUN_INPUTS,
        .tile_inputs = TILE_INPUTS,
        .tile_rows = tile_rows,
        .unpack = unpack,
        .input_get = float_input_get,
        .tile = tile_run,
    };
    panel_run(args, &kernel);
}

#endif

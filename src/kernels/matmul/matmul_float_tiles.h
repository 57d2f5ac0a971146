/* Tiles of floats: two registers of rows (a panel, or with 16 floats to a register two) by up to 6 inputs.  Included by
 * matmul_float_avx2.c, _neon.c, and _avx512.c, which defines FLOATS_512 first. */
#pragma once

#include "kernels/floats.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"

enum { TILE_INPUTS = FLOAT_TILE_INPUTS, TILE_ROWS = 2 * FLOATS };

/* The products of lane `lane` of a span: its columns `lane`, lane + 8, ... of the panel (of two panels with 32 rows,
 * FLOAT_RUN_BLOCKS apart) times x, the prepared inputs of the tile, [columns][n]. */
static inline __attribute__((always_inline)) void lane_multiply(const struct float_panel *panel, const float *x,
                                                                size_t column_count, size_t lane, size_t n,
                                                                floats acc[TILE_INPUTS][2]) {
    const float *first = panel->values[0];
    const float *second = (size_t)FLOATS == PANEL_ROWS ? panel[FLOAT_RUN_BLOCKS].values[0] : first + FLOATS;
    FLOATS_UNROLL
    for (size_t i = 0; i < n; i++) acc[i][0] = acc[i][1] = floats_set(0);
    x += lane * n;
    for (size_t c = lane; c < column_count; c += SPAN_LANES, x += SPAN_LANES * n) {
        floats low = floats_load(first + c * PANEL_ROWS), high = floats_load(second + c * PANEL_ROWS);
        FLOATS_UNROLL
        for (size_t i = 0; i < n; i++) {
            floats input = floats_set(x[i]);
            acc[i][0] = floats_fma(low, input, acc[i][0]);
            acc[i][1] = floats_fma(high, input, acc[i][1]);
        }
    }
}

/* sums[n][tile rows] += block_count blocks, a span of the sum (kernels/span.h).  n is a constant, 1..TILE_INPUTS.
 * Lanes come in the order of the leaves of their tree: sums of 1, 2 and 4 lanes wait for their neighbours. */
static inline __attribute__((always_inline)) void tile_multiply(const struct float_panel *panel, const float *x,
                                                                size_t block_count, size_t n, float *restrict sums) {
    static const uint8_t leaves[SPAN_LANES] = {0, 2, 1, 3, 4, 6, 5, 7};
    floats waiting[3][TILE_INPUTS][2];
    for (size_t leaf = 0; leaf < SPAN_LANES; leaf++) {
        floats acc[TILE_INPUTS][2];
        size_t level = 0;
        lane_multiply(panel, x, block_count * PANEL_COLUMNS, leaves[leaf], n, acc);
        for (; leaf >> level & 1; level++) {
            FLOATS_UNROLL
            for (size_t i = 0; i < n; i++) {
                acc[i][0] = floats_add(waiting[level][i][0], acc[i][0]);
                acc[i][1] = floats_add(waiting[level][i][1], acc[i][1]);
            }
        }
        FLOATS_UNROLL
        for (size_t i = 0; i < n && level < 3; i++) {
            waiting[level][i][0] = acc[i][0];
            waiting[level][i][1] = acc[i][1];
        }
        if (level < 3) continue;
        FLOATS_UNROLL
        for (size_t i = 0; i < n; i++) {
            float *target = sums + i * TILE_ROWS;
            floats_store(target, floats_add(floats_load(target), acc[i][0]));
            floats_store(target + FLOATS, floats_add(floats_load(target + FLOATS), acc[i][1]));
        }
    }
}

static void tile_run(const struct panel_kernel *kernel, const void *panel, const void *input, size_t block_count,
                     size_t inputs, float *sums) {
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

static void float_tiles_run(const struct matmul_args *args, float_unpack *unpack) {
    struct panel_kernel kernel = {
        .panel_bytes = sizeof(struct float_panel),
        .run_blocks = FLOAT_RUN_BLOCKS,
        .run_inputs = RUN_INPUTS,
        .tile_inputs = TILE_INPUTS,
        .tile_rows = TILE_ROWS,
        .unpack = unpack,
        .input_get = float_input_get,
        .tile = tile_run,
    };
    panel_run(args, &kernel);
}

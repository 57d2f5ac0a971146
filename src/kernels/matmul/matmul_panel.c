#include "base/assert.h"
#include "base/checked.h"
#include "kernels/matmul/matmul_panel_internal.h"

#include <string.h>

/* Where a call stands: rows [row, row_end), blocks [block, block + block_count) of all_blocks. */
struct stand {
    const struct matmul_args *args;
    const struct panel_kernel *kernel;
    size_t row, row_end;
    size_t block, block_count, all_blocks;
    size_t tile_count;
};

/* Unpacks the panels of the stand; rows past the end repeat the last one (computed, never stored). */
static void panels_unpack(const struct stand *s) {
    const struct matrix *weight = s->args->weight;
    const struct tensor_type_info *info = tensor_type_info(weight->type);
    size_t column = s->block * PANEL_COLUMNS;
    size_t column_count = min_size(s->block_count * PANEL_COLUMNS, weight->columns - column);
    size_t offset = column / info->block_elements * info->block_bytes;
    char *panel = s->args->scratch;
    for (size_t row = s->row; row < s->row_end; row += s->kernel->tile_rows)
        for (size_t half = 0; half < s->kernel->tile_rows / 8; half++) {
            const uint8_t *rows[8];
            for (size_t r = 0; r < 8; r++) {
                size_t index = min_size(row + half * 8 + r, s->args->row_end - 1);
                rows[r] = (const uint8_t *)weight->data + index * weight->row_bytes + offset;
            }
            s->kernel->unpack(s->kernel, rows, column_count, half % 2, panel);
            if (half % 2 == 1) panel += s->kernel->run_blocks * s->kernel->panel_bytes;
        }
}

static void sums_load(const struct stand *s, struct tile_inputs inputs, size_t row, size_t rows,
                      float *sums) {
    size_t width = s->kernel->tile_rows;
    if (s->block == 0 || rows < width) memset(sums, 0, inputs.count * width * sizeof(float));
    if (s->block == 0) return;
    const float *source = s->args->outputs + inputs.begin * s->args->output_stride + row;
    for (size_t i = 0; i < inputs.count; i++, source += s->args->output_stride)
        memcpy(sums + i * width, source, rows * sizeof(float));
}

static void sums_store(const struct stand *s, struct tile_inputs inputs, size_t row, size_t rows,
                       const float *sums) {
    size_t width = s->kernel->tile_rows;
    float *target = s->args->outputs + inputs.begin * s->args->output_stride + row;
    for (size_t i = 0; i < inputs.count; i++, target += s->args->output_stride)
        memcpy(target, sums + i * width, rows * sizeof(float));
}

/* One panel, or two, with the tiles [tile_begin, tile_end). */
static void tiles_run(const struct stand *s, size_t row, size_t tile_begin, size_t tile_end) {
    const struct panel_kernel *kernel = s->kernel;
    _Alignas(64) float sums[TILE_INPUTS_MOST * TILE_ROWS_MOST];
    size_t rows = min_size(kernel->tile_rows, s->row_end - row);
    const char *panel = (const char *)s->args->scratch +
                        (row - s->row) / PANEL_ROWS * kernel->run_blocks * kernel->panel_bytes;
    for (size_t tile = tile_begin; tile < tile_end; tile++) {
        struct tile_inputs inputs = tile_get(tile, s->tile_count, s->args->input_count);
        sums_load(s, inputs, row, rows, sums);
        const void *x = kernel->input_get(s->args->prepared, tile, inputs, s->block, s->all_blocks);
        kernel->tile(kernel, panel, x, s->block_count, inputs.count, sums);
        sums_store(s, inputs, row, rows, sums);
    }
}

void panel_run(const struct matmul_args *args, const struct panel_kernel *kernel) {
    const struct matrix *weight = args->weight;
    ASSERT(args->row_begin <= args->row_end && args->row_end <= weight->rows);
    ASSERT((uintptr_t)args->scratch % 64 == 0 && (uintptr_t)args->prepared % 64 == 0);
    ASSERT(kernel->run_blocks <= RUN_BLOCKS && kernel->run_blocks % 8 == 0);
    if (args->input_count == 0) return;
    size_t stretch = RUN_INPUTS / kernel->tile_inputs;
    struct stand s = {.args = args, .kernel = kernel};
    s.all_blocks = (weight->columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    s.tile_count = tile_count_get(args->input_count, kernel->tile_inputs);
    for (s.row = args->row_begin; s.row < args->row_end; s.row += RUN_ROWS) {
        s.row_end = min_size(s.row + RUN_ROWS, args->row_end);
        for (s.block = 0; s.block < s.all_blocks; s.block += kernel->run_blocks) {
            s.block_count = min_size(kernel->run_blocks, s.all_blocks - s.block);
            panels_unpack(&s);
            for (size_t tile = 0; tile < s.tile_count; tile += stretch)
                for (size_t row = s.row; row < s.row_end; row += kernel->tile_rows)
                    tiles_run(&s, row, tile, min_size(tile + stretch, s.tile_count));
        }
    }
}

/* matmul by panels: weight rows are unpacked once per panel and used for all inputs. */
#include "base/assert.h"
#include "base/checked.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"

#include <string.h>

enum { PREFETCH_TILES = 2 };

/* Where a call stands: rows [row, row_end); inputs [input_begin, input_end), which are the tiles
 * [tile_begin, tile_end) of tile_count; blocks [block, block + block_count) of all_blocks. */
struct stand {
    const struct matmul_args *args;
    const struct panel_kernel *kernel;
    size_t row, row_end;
    size_t block, block_count, all_blocks;
    size_t tile_begin, tile_end, tile_count;
    size_t input_begin, input_end;
};

/* The part of a row that the blocks [block, block + run_blocks) take. */
struct row_part {
    size_t column_count, offset, bytes;
};

static struct row_part row_part_get(const struct stand *s, size_t block) {
    const struct matrix *weight = s->args->weight;
    const struct tensor_type_info *info = tensor_type_info(weight->type);
    size_t column = block * PANEL_COLUMNS;
    size_t column_count = min_size(s->kernel->run_blocks * PANEL_COLUMNS, weight->columns - column);
    return (struct row_part){column_count, column / info->block_elements * info->block_bytes,
                             column_count / info->block_elements * info->block_bytes};
}

/* Prefetches into L2 what is unpacked of tile_rows rows from `row` on. */
static void rows_prefetch(const struct stand *s, size_t row, size_t block) {
    const struct matrix *weight = s->args->weight;
    const struct row_part part = row_part_get(s, block);
    const size_t end = min_size(row + s->kernel->tile_rows, s->args->row_end);
    for (; row < end; row++) {
        const uint8_t *data = (const uint8_t *)weight->data + row * weight->row_bytes + part.offset;
        for (size_t line = 0; line < part.bytes; line += 64) __builtin_prefetch(data + line, 0, 2);
    }
}

/* Prefetches what is unpacked PREFETCH_TILES tiles of rows later: of these blocks, of the next, or of the next rows.  A
 * row's part of a run is a few lines, too short for the hardware to see a stream. */
static void tiles_prefetch(const struct stand *s, size_t row) {
    size_t block = s->block, ahead = row + PREFETCH_TILES * s->kernel->tile_rows;
    if (ahead >= s->row_end) {
        ahead -= align_up(s->row_end - s->row, s->kernel->tile_rows);
        block += s->kernel->run_blocks;
    }
    if (block >= s->all_blocks) {
        ahead += RUN_ROWS;
        block = 0;
    }
    rows_prefetch(s, ahead, block);
}

/* Unpacks the panel of tile_rows rows from `row` on, or two; rows past the end repeat the last one (computed, never
 * stored). */
static void panel_unpack(const struct stand *s, size_t row) {
    const struct matrix *weight = s->args->weight;
    const struct row_part part = row_part_get(s, s->block);
    char *panel = s->args->scratch;
    tiles_prefetch(s, row);
    for (size_t half = 0; half < s->kernel->tile_rows / 8; half++) {
        const uint8_t *rows[8];
        for (size_t r = 0; r < 8; r++) {
            size_t index = min_size(row + half * 8 + r, s->args->row_end - 1);
            rows[r] = (const uint8_t *)weight->data + index * weight->row_bytes + part.offset;
        }
        s->kernel->unpack(s->kernel, rows, part.column_count, half % 2, panel);
        if (half % 2 == 1) panel += s->kernel->run_blocks * s->kernel->panel_bytes;
    }
}

static struct tile_inputs inputs_get(const struct stand *s, size_t tile) {
    return s->kernel->has_whole_tiles ? tile_get_whole(tile, s->kernel->tile_inputs, s->args->input_count)
                                      : tile_get(tile, s->tile_count, s->args->input_count);
}

/* The sums of all inputs of the stretch, [panel rows / tile_rows][tile][input][tile_rows], behind the panels. */
static float *sums_get(const struct stand *s, size_t row, size_t input) {
    char *sums = (char *)s->args->scratch + panel_bytes_max(s->kernel->panel_bytes);
    size_t stretch_inputs = s->input_end - s->input_begin;
    if (s->kernel->has_whole_tiles) stretch_inputs = align_up(stretch_inputs, s->kernel->tile_inputs);
    return (float *)(void *)sums + (row - s->row) * stretch_inputs + (input - s->input_begin) * s->kernel->tile_rows;
}

/* The unpacked panel, or two, with the tiles of the stretch. */
static void tiles_run(const struct stand *s, size_t row) {
    const struct panel_kernel *kernel = s->kernel;
    for (size_t tile = s->tile_begin; tile < s->tile_end; tile++) {
        struct tile_inputs inputs = inputs_get(s, tile);
        float *sums = sums_get(s, row, inputs.begin);
        size_t zeroed = kernel->has_whole_tiles ? kernel->tile_inputs : inputs.count;
        if (s->block == 0) memset(sums, 0, zeroed * kernel->tile_rows * sizeof(float));
        const void *x = kernel->input_get(s->args->prepared, tile, inputs, s->block, s->all_blocks);
        kernel->tile(kernel, s->args->scratch, x, s->block_count, inputs.count, sums);
    }
}

static void sums_store(const struct stand *s) {
    size_t width = s->kernel->tile_rows;
    for (size_t row = s->row; row < s->row_end; row += width) {
        size_t bytes = min_size(width, s->row_end - row) * sizeof(float);
        const float *source = sums_get(s, row, s->input_begin);
        float *target = s->args->outputs + s->input_begin * s->args->output_stride + row;
        for (size_t i = s->input_begin; i < s->input_end; i++) {
            memcpy(target, source, bytes);
            source += width;
            target += s->args->output_stride;
        }
    }
}

/* The stand's rows with the inputs of one stretch of tiles. */
static void stretch_run(struct stand *s) {
    struct tile_inputs last = inputs_get(s, s->tile_end - 1);
    s->input_begin = inputs_get(s, s->tile_begin).begin;
    s->input_end = last.begin + last.count;
    for (s->block = 0; s->block < s->all_blocks; s->block += s->kernel->run_blocks) {
        s->block_count = min_size(s->kernel->run_blocks, s->all_blocks - s->block);
        for (size_t row = s->row; row < s->row_end; row += s->kernel->tile_rows) {
            panel_unpack(s, row);
            tiles_run(s, row);
        }
    }
    sums_store(s);
}

void panel_run(const struct matmul_args *args, const struct panel_kernel *kernel) {
    const struct matrix *weight = args->weight;
    ASSERT(args->row_begin <= args->row_end && args->row_end <= weight->rows);
    ASSERT((uintptr_t)args->scratch % 64 == 0 && (uintptr_t)args->prepared % 64 == 0);
    ASSERT(kernel->run_blocks <= RUN_BLOCKS && kernel->run_blocks % 8 == 0);
    ASSERT(kernel->tile_rows <= RUN_PANELS_MAX * PANEL_ROWS);
    if (args->input_count == 0) return;
    size_t stretch = kernel->run_inputs / kernel->tile_inputs;
    struct stand s = {.args = args, .kernel = kernel};
    s.all_blocks = (weight->columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    s.tile_count = tile_count_get(args->input_count, kernel->tile_inputs);
    for (size_t tile = 0; tile < PREFETCH_TILES; tile++)
        rows_prefetch(&s, args->row_begin + tile * kernel->tile_rows, 0);
    for (s.row = args->row_begin; s.row < args->row_end; s.row += RUN_ROWS) {
        s.row_end = min_size(s.row + RUN_ROWS, args->row_end);
        for (s.tile_begin = 0; s.tile_begin < s.tile_count; s.tile_begin += stretch) {
            s.tile_end = min_size(s.tile_begin + stretch, s.tile_count);
            stretch_run(&s);
        }
    }
}

/* --- float inputs ------------------------------------------------------------------------ */

static size_t columns_padded(size_t columns) { return align_up(columns, PANEL_COLUMNS); }

static size_t prepared_bytes(size_t input_count, size_t columns) {
    return align_up(input_count * columns_padded(columns) * sizeof(float), 64);
}

/* Prepared: for each tile [columns, padded with zeros][inputs of the tile]. */
static void prepare(const float *x, size_t x_stride, size_t input_count, size_t columns, size_t input_begin,
                    size_t input_end, void *prepared) {
    ASSERT(input_begin <= input_end && input_end <= input_count);
    size_t tile_count = tile_count_get(input_count, FLOAT_TILE_INPUTS), padded = columns_padded(columns);
    for (size_t i = input_begin; i < input_end; i++) {
        struct tile_inputs inputs = tile_get(tile_find(i, tile_count, input_count), tile_count, input_count);
        float *target = (float *)prepared + inputs.begin * padded + (i - inputs.begin);
        const float *source = x + i * x_stride;
        for (size_t c = 0; c < columns; c++) target[c * inputs.count] = source[c];
        for (size_t c = columns; c < padded; c++) target[c * inputs.count] = 0;
    }
}

const void *float_input_get(const void *prepared, size_t tile, struct tile_inputs inputs, size_t block,
                            size_t block_count) {
    (void)tile;
    return (const float *)prepared + (inputs.begin * block_count + block * inputs.count) * PANEL_COLUMNS;
}

static size_t scratch_bytes(size_t columns) {
    (void)columns;
    return panel_scratch_bytes(sizeof(struct float_panel), RUN_INPUTS);
}

const struct matmul_method float_tiles_method = {
    .form = MATMUL_FORM_F32_TILES,
    .row_granule = PANEL_ROWS,
    .prepared_bytes = prepared_bytes,
    .input_granule = 1,
    .prepare = prepare,
    .scratch_bytes = scratch_bytes,
};

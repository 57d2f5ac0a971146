/* matmul for quantised weights on AMX int8: 32 inputs x 32 rows, integer sums per block of 32 columns.
 *
 * Mapping: C is 2 x 2 tiles of 16 inputs x 16 rows in int32.  Both operands lie as other variants have them: the
 * codes of a panel are a B tile of 8 groups of four columns x 16 rows, and 16 quantised inputs of a block
 * (struct code_input, one line each) an A tile of 16 x 32 bytes.  Activations are signed and codes unsigned, as for
 * VPDPBUSD, and sums are scaled as on AVX-512 (matmul_int8_avx512.c), with the same error bound:
 *     y += ((sum - offset * sum of x) * scale) * dx  [+ minimum * (dx * sum of x)]
 * Types whose scales hold for 16 columns would use a quarter of a tile's depth and stay with bf16.
 *
 * A scale per 32 columns uses half of the 64 that an int8 tile is deep, so a product is no faster than one of
 * bf16 (16 cycles for 16 x 16 x 32), and each block takes its sums out: 64 stores of a row and 64 times a load, a
 * conversion, a multiplication and an FMA, some 130 cycles beside the 64 of the products.  bf16 is the default for
 * that reason; `--cpu-mask amx-int8` takes this (docs/decisions/0015-bf16-tiles-by-default.md).
 * Not measured on hardware yet; the source is tested on emulated tiles.
 */
#include "base/assert.h"
#include "base/checked.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"
#include "kernels/matmul/span_lanes_avx512.h"
#include "kernels/vector.h"

enum { TILE_INPUTS = 32, TILE_ROWS = 2 * PANEL_ROWS, STRETCH_INPUTS = 512, HALF = 16 };

/* Integer sums of a block as the tiles leave them: [inputs / 16][panel][16][PANEL_ROWS]. */
typedef int32_t block_sums[TILE_INPUTS / HALF][2][HALF][PANEL_ROWS];

/* --- preparing: for each tile and block 32 struct code_input; missing inputs of the last tile are zero ------- */

static size_t prepared_bytes(size_t input_count, size_t columns) {
    return align_up(input_count, TILE_INPUTS) * (columns / PANEL_COLUMNS) * sizeof(struct code_input);
}

static void prepare(const float *x, size_t x_stride, size_t input_count, size_t columns, size_t input_begin,
                    size_t input_end, void *prepared) {
    ASSERT(input_begin <= input_end && input_end <= input_count && input_begin % TILE_INPUTS == 0);
    size_t block_count = columns / PANEL_COLUMNS;
    struct code_input *inputs = prepared;
    for (size_t i = input_begin; i < input_end; i++) {
        struct code_input *target = inputs + i / TILE_INPUTS * TILE_INPUTS * block_count + i % TILE_INPUTS;
        for (size_t b = 0; b < block_count; b++)
            code_input_prepare(x + i * x_stride + b * PANEL_COLUMNS, false, target + b * TILE_INPUTS);
    }
    size_t used = input_end % TILE_INPUTS;
    if (used == 0) return;
    struct code_input *last = inputs + (input_end - used) * block_count;
    for (size_t b = 0; b < block_count; b++)
        memset(last + b * TILE_INPUTS + used, 0, (TILE_INPUTS - used) * sizeof *last);
}

static const void *input_get(const void *prepared, size_t tile, struct tile_inputs inputs, size_t block,
                             size_t block_count) {
    (void)inputs;
    return (const struct code_input *)prepared + (tile * block_count + block) * TILE_INPUTS;
}

/* --- multiplying ------------------------------------------------------------------------- */

/* Palette 1: tiles 0..3: C; 4, 5: A, 16 inputs x 32 columns; 6, 7: B, 8 groups of four columns x 16 rows. */
static void tiles_configure(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } configuration = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, PANEL_COLUMNS, PANEL_COLUMNS, 64, 64},
        .rows = {HALF, HALF, HALF, HALF, HALF, HALF, PANEL_STEPS, PANEL_STEPS},
    };
    _tile_loadconfig(&configuration);
}

/* both: more than 16 inputs. */
static inline void block_multiply(const struct code_panel *first, const struct code_panel *second,
                                  const struct code_input *x, bool both, block_sums sums) {
    enum { ROW_BYTES = 64 };
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(4, x[0].q, sizeof *x);
    _tile_loadd(6, first->codes, ROW_BYTES);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, second->codes, ROW_BYTES);
    _tile_dpbsud(1, 4, 7);
    _tile_stored(0, sums[0][0], ROW_BYTES);
    _tile_stored(1, sums[0][1], ROW_BYTES);
    if (!both) return;
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(5, x[HALF].q, sizeof *x);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
    _tile_stored(2, sums[1][0], ROW_BYTES);
    _tile_stored(3, sums[1][1], ROW_BYTES);
}

static inline void block_add(const struct code_panel *panel, size_t which, const struct code_input *x,
                             size_t inputs, const struct code_layout *layout, block_sums integers,
                             bool is_first, float *lane) {
    const __m512 scale = _mm512_load_ps(panel->scale), minimum = _mm512_load_ps(panel->minimum[0]);
    const int32_t offset = code_offset(layout);
    for (size_t i = 0; i < inputs; i++) {
        float *target = lane + i * TILE_ROWS + which * PANEL_ROWS;
        int32_t start = x[i].total * offset; /* -offset * sum of q */
        __m512i sum = _mm512_load_si512((const void *)integers[i / HALF][which][i % HALF]);
        __m512 total = _mm512_cvtepi32_ps(_mm512_add_epi32(sum, _mm512_set1_epi32(start)));
        __m512 scaled = _mm512_mul_ps(total, scale), factor = _mm512_set1_ps(x[i].scale);
        __m512 y = is_first ? _mm512_mul_ps(scaled, factor)
                            : _mm512_fmadd_ps(scaled, factor, _mm512_load_ps(target));
        if (layout->has_minimum) y = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x[i].sum), y);
        _mm512_store_ps(target, y);
    }
}

static void tile_run(const struct panel_kernel *kernel, const void *panel, const void *input,
                     size_t block_count, size_t inputs, float *sums) {
    const struct code_panel *first = panel, *second = first + kernel->run_blocks;
    const struct code_input *x = input;
    _Alignas(64) float lanes[SPAN_LANES][TILE_INPUTS * TILE_ROWS];
    for (size_t b = 0; b < block_count; b++, first++, second++, x += TILE_INPUTS) {
        _Alignas(64) block_sums integers;
        float *lane = lanes[b % SPAN_LANES];
        block_multiply(first, second, x, inputs > HALF, integers);
        block_add(first, 0, x, inputs, &kernel->code, integers, b < SPAN_LANES, lane);
        block_add(second, 1, x, inputs, &kernel->code, integers, b < SPAN_LANES, lane);
    }
    span_lanes_add(lanes[0], sizeof lanes[0] / sizeof(float), block_count, inputs * TILE_ROWS, sums);
}

/* --- running ----------------------------------------------------------------------------- */

static void unpack(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count,
                   size_t half, void *panel) {
    kernel->code.unpack(row, column_count / PANEL_COLUMNS, half, panel);
}

static struct code_layout layout_find(enum tensor_type type) {
    struct code_layout code = code_layout_find(type);
    return code.unpack == NULL ? code_layout_find_bytes(type) : code;
}

static void run(const struct matmul_args *args) {
    struct panel_kernel kernel = {
        .panel_bytes = sizeof(struct code_panel),
        .run_blocks = RUN_BLOCKS,
        .run_inputs = STRETCH_INPUTS,
        .tile_inputs = TILE_INPUTS,
        .tile_rows = TILE_ROWS,
        .has_whole_tiles = true,
        .code = layout_find(args->weight->type),
        .unpack = unpack,
        .input_get = input_get,
        .tile = tile_run,
    };
    tiles_configure(); /* the tiles belong to this thread, for this call */
    panel_run(args, &kernel);
    _tile_release();
}

static size_t scratch_bytes(size_t columns) {
    (void)columns;
    return panel_scratch_bytes(sizeof(struct code_panel), STRETCH_INPUTS);
}

void matmul_int8_amx_init(struct matmul_kernels *kernels) {
    static const struct matmul_method method = {
        .form = MATMUL_FORM_I8_TILES,
        .row_granule = TILE_ROWS,
        .prepared_bytes = prepared_bytes,
        .input_granule = TILE_INPUTS,
        .prepare = prepare,
        .scratch_bytes = scratch_bytes,
        .run = run,
    };
    for (size_t type = 0; type < MATMUL_TYPES; type++) {
        struct code_layout code = layout_find((enum tensor_type)type);
        if (code.unpack != NULL && !code.has_groups) kernels->method[type] = method;
    }
}

/* matmul on AMX: bf16 tiles, 32 inputs x 32 rows, for every weight type.
 *
 * Mapping: C is 2 x 2 tiles of 16 inputs x 16 rows in float; A tiles hold 16 inputs x 32 columns, B tiles
 * 32 columns x 16 rows as 16 pairs of columns.  Per block of 32 columns 4 tile loads and 4 TDPBF16PS.
 * Quantised weights become bf16 with their scales when they are unpacked; int8 tiles are twice as fast at full
 * depth, but a scale per 32 columns is half of it, and taking C out after each costs more than the product: measured,
 * they were slower than AVX-512 (decision 0056).
 * Accuracy: bf16 keeps 8 bits, so each product is off by at most 2^-8 of it for the weight and 2^-8 for the
 * activation, 2^-9.8 each on average; int8 activations with a scale per 32 are off by up to 1/254 of the
 * block's largest, which for normal values is larger.  F32 and F16 weights must not lose that much: both
 * sides are split into the sum of two bf16 and three of the four products are taken (2^-14 at most).
 *
 * Bytes: 4 KiB of operands per 131,072 flops, from L2: panels 64 KiB, inputs 64 bytes per block each.
 * Bound: the tile unit, 4 x 16 cycles per block; unpacking costs about 0.3 cycles per weight, to be
 * compared with one cycle per weight and 512 inputs.  Measured with 512 inputs: 1.7 to 2.2 times AVX-512
 * (bench/results/2026-11-26-xeon-amx-kernels.csv).  Tested on emulated tiles, and on the processor's where it has them.
 */
#include "base/assert.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"
#include "kernels/vector.h"

enum {
    TILE_INPUTS = 32,
    TILE_ROWS = 32,
    AMX_INPUTS = 1024, /* per stretch: 1 MiB of L2 at 16 blocks; unpacking is amortised over them */
    TILE_BYTES = 1024,
    TILE_STRIDE = 64
};

/* One term (of one or two) of 16 rows x 32 columns: the B tile. */
struct tile_panel {
    uint16_t values[PANEL_COLUMNS / 2][PANEL_ROWS][2];
};

/* One term of a block of a tile's inputs: two A tiles. */
struct tile_input {
    uint16_t values[TILE_INPUTS][PANEL_COLUMNS];
};
static_assert(sizeof(struct tile_panel) == TILE_BYTES && sizeof(struct tile_input) == 2 * TILE_BYTES, "tiles");

static size_t blocks_get(size_t columns) { return (columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS; }

/* --- preparing --------------------------------------------------------------------------- */

/* To nearest even, in the upper half of each lane; NaN stays NaN. */
static inline __m256i bf16_round(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), is_nan);
    return _mm256_and_si256(rounded, _mm256_set1_epi32((int)0xffff0000u));
}

/* 8 activations into each term. */
static inline void eight_prepare(__m256 x, size_t term_count, struct tile_input *target, size_t input, size_t column) {
    for (size_t term = 0; term < term_count; term++) {
        __m256i rounded = bf16_round(x);
        __m256i words = _mm256_srli_epi32(rounded, 16);
        words = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
        _mm_store_si128((__m128i *)(void *)&target[term].values[input][column], _mm256_castsi256_si128(words));
        x = _mm256_sub_ps(x, _mm256_castsi256_ps(rounded));
    }
}

static inline void input_prepare(const float *x, size_t columns, size_t term_count, struct tile_input *target,
                                 size_t input) {
    size_t c = 0;
    for (; c + 8 <= columns; c += 8)
        eight_prepare(_mm256_loadu_ps(x + c), term_count, target + c / PANEL_COLUMNS * term_count, input,
                      c % PANEL_COLUMNS);
    for (; c < blocks_get(columns) * PANEL_COLUMNS; c += 8) {
        float copy[8] = {0};
        if (c < columns) memcpy(copy, x + c, (columns - c) * sizeof(float));
        eight_prepare(_mm256_loadu_ps(copy), term_count, target + c / PANEL_COLUMNS * term_count, input,
                      c % PANEL_COLUMNS);
    }
}

/* Prepared: for each tile, block and term a struct tile_input; missing inputs of the last tile are zero. */
static void terms_prepare(const float *x, size_t x_stride, size_t input_count, size_t columns, size_t input_begin,
                          size_t input_end, size_t term_count, void *prepared) {
    ASSERT(input_begin <= input_end && input_end <= input_count && input_begin % TILE_INPUTS == 0);
    size_t block_count = blocks_get(columns);
    for (size_t i = input_begin; i < input_end; i++)
        input_prepare(x + i * x_stride, columns, term_count,
                      (struct tile_input *)prepared + i / TILE_INPUTS * block_count * term_count, i % TILE_INPUTS);
    if (input_end % TILE_INPUTS == 0) return;
    struct tile_input *last = (struct tile_input *)prepared + input_end / TILE_INPUTS * block_count * term_count;
    for (size_t b = 0; b < block_count * term_count; b++)
        memset(last[b].values[input_end % TILE_INPUTS], 0,
               (TILE_INPUTS - input_end % TILE_INPUTS) * sizeof last[b].values[0]);
}

static void once_prepare(const float *x, size_t x_stride, size_t input_count, size_t columns, size_t input_begin,
                         size_t input_end, void *prepared) {
    terms_prepare(x, x_stride, input_count, columns, input_begin, input_end, 1, prepared);
}

static void twice_prepare(const float *x, size_t x_stride, size_t input_count, size_t columns, size_t input_begin,
                          size_t input_end, void *prepared) {
    terms_prepare(x, x_stride, input_count, columns, input_begin, input_end, 2, prepared);
}

static size_t once_prepared_bytes(size_t input_count, size_t columns) {
    return tile_count_get(input_count, TILE_INPUTS) * blocks_get(columns) * sizeof(struct tile_input);
}

static size_t twice_prepared_bytes(size_t input_count, size_t columns) {
    return 2 * once_prepared_bytes(input_count, columns);
}

static const void *once_input_get(const void *prepared, size_t tile, struct tile_inputs inputs, size_t block,
                                  size_t block_count) {
    (void)inputs;
    return (const struct tile_input *)prepared + tile * block_count + block;
}

static const void *twice_input_get(const void *prepared, size_t tile, struct tile_inputs inputs, size_t block,
                                   size_t block_count) {
    (void)inputs;
    return (const struct tile_input *)prepared + 2 * (tile * block_count + block);
}

/* --- unpacking --------------------------------------------------------------------------- */

/* Two columns of 8 rows, rounded half up, as a pair of bf16 per row. */
static inline __m256i pair_round(__m256 even, __m256 odd) {
    const __m256i half = _mm256_set1_epi32(0x8000);
    __m256i low = _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(even), half), 16);
    return _mm256_blend_epi16(low, _mm256_add_epi32(_mm256_castps_si256(odd), half), 0xaa);
}

static inline void pair_store(struct tile_panel *panel, size_t pair, size_t half, __m256i value) {
    _mm256_store_si256((__m256i *)(void *)panel->values[pair][half * 8], value);
}

/* Byte `index` of each row's word as scale * code + bias. */
static inline __m256 code_value(__m256i words, int index, __m256 scale, __m256 bias) {
    __m256i code = _mm256_and_si256(_mm256_srli_epi32(words, 8 * index), _mm256_set1_epi32(255));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(code), scale, bias);
}

static inline void code_block_round(const struct code_layout *layout, const struct code_panel *source, size_t half,
                                    struct tile_panel *target) {
    const __m256 offset = _mm256_set1_ps((float)code_offset(layout));
    __m256 scale = _mm256_load_ps(source->scale + half * 8), bias = _mm256_setzero_ps();
    const __m256 block_scale = scale;
    for (size_t s = 0; s < PANEL_STEPS; s++) {
        size_t g = layout->has_groups ? s / 4 : 0;
        if (s % 4 == 0) {
            if (layout->has_factors) {
                scale = _mm256_load_ps(source->group_factor[g] + half * 8);
            } else if (layout->has_groups) {
                __m256i pairs = _mm256_load_si256((const void *)source->group_scale[g][half * 8]);
                scale = _mm256_mul_ps(block_scale, _mm256_cvtepi32_ps(_mm256_srai_epi32(pairs, 16)));
            }
            bias = layout->has_minimum ? _mm256_load_ps(source->minimum[g] + half * 8) : _mm256_setzero_ps();
            bias = _mm256_fnmadd_ps(offset, scale, bias);
        }
        __m256i words = _mm256_load_si256((const void *)source->codes[s][half * 8]);
        __m256 first = code_value(words, 0, scale, bias), second = code_value(words, 1, scale, bias);
        __m256 third = code_value(words, 2, scale, bias), fourth = code_value(words, 3, scale, bias);
        pair_store(target, 2 * s, half, pair_round(first, second));
        pair_store(target, 2 * s + 1, half, pair_round(third, fourth));
    }
}

static void code_unpack(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count,
                        size_t half, void *panel) {
    _Alignas(64) struct code_panel codes[RUN_BLOCKS];
    struct tile_panel *target = panel;
    kernel->code.unpack(row, column_count / PANEL_COLUMNS, half, codes);
    for (size_t b = 0; b < column_count / PANEL_COLUMNS; b++)
        code_block_round(&kernel->code, codes + b, half, target + b);
}

static inline void float_terms_unpack(const struct panel_kernel *kernel, const uint8_t *const row[8],
                                      size_t column_count, size_t half, size_t term_count, struct tile_panel *target) {
    _Alignas(64) struct float_panel floats[FLOAT_RUN_BLOCKS];
    kernel->floats(kernel, row, column_count, half, floats);
    for (size_t b = 0; b < blocks_get(column_count); b++)
        for (size_t pair = 0; pair < PANEL_COLUMNS / 2; pair++) {
            __m256 even = _mm256_load_ps(floats[b].values[2 * pair] + half * 8);
            __m256 odd = _mm256_load_ps(floats[b].values[2 * pair + 1] + half * 8);
            for (size_t term = 0; term < term_count; term++) {
                __m256i rounded = pair_round(even, odd);
                pair_store(target + b * term_count + term, pair, half, rounded);
                even = _mm256_sub_ps(even, _mm256_castsi256_ps(_mm256_slli_epi32(rounded, 16)));
                odd = _mm256_sub_ps(
                    odd, _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32((int)0xffff0000u))));
            }
        }
}

static void once_unpack(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count,
                        size_t half, void *panel) {
    float_terms_unpack(kernel, row, column_count, half, 1, panel);
}

static void twice_unpack(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count,
                         size_t half, void *panel) {
    float_terms_unpack(kernel, row, column_count, half, 2, panel);
}

/* --- multiplying ------------------------------------------------------------------------- */

/* Palette 1: 8 tiles of 16 rows x 64 bytes.  Tiles 0..3: C; 4, 5: A; 6, 7: B. */
struct tile_configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void tiles_configure(void) {
    /* Constant, not built here: gcc takes the instruction to read 8 bytes only and drops other stores. */
    static const struct tile_configuration configuration = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    _tile_loadconfig(&configuration);
}

#define A_LOAD(input)                                               \
    do {                                                            \
        _tile_loadd(4, (input)->values[0], TILE_STRIDE);            \
        if (both) _tile_loadd(5, (input)->values[16], TILE_STRIDE); \
    } while (0)
#define B_LOAD(first, second)                             \
    do {                                                  \
        _tile_loadd(6, (first)->values[0], TILE_STRIDE);  \
        _tile_loadd(7, (second)->values[0], TILE_STRIDE); \
    } while (0)
#define MULTIPLY()                   \
    do {                             \
        _tile_dpbf16ps(0, 4, 6);     \
        _tile_dpbf16ps(1, 4, 7);     \
        if (both) {                  \
            _tile_dpbf16ps(2, 5, 6); \
            _tile_dpbf16ps(3, 5, 7); \
        }                            \
    } while (0)

/* sums[inputs][TILE_ROWS] += blocks; both: more than 16 inputs. */
static inline __attribute__((always_inline)) void tile_multiply(const struct tile_panel *first,
                                                                const struct tile_panel *second,
                                                                const struct tile_input *x, size_t block_count,
                                                                bool both, size_t term_count, float *sums) {
    enum { SUM_STRIDE = TILE_ROWS * sizeof(float) };
    float *lower = sums + (size_t)16 * TILE_ROWS;
    _tile_loadd(0, sums, SUM_STRIDE);
    _tile_loadd(1, sums + 16, SUM_STRIDE);
    if (both) {
        _tile_loadd(2, lower, SUM_STRIDE);
        _tile_loadd(3, lower + 16, SUM_STRIDE);
    }
    for (size_t b = 0; b < block_count; b++, first += term_count, second += term_count, x += term_count) {
        B_LOAD(first, second);
        if (term_count == 2) { /* low activations with high weights, then the two others with high activations */
            A_LOAD(x + 1);
            MULTIPLY();
        }
        A_LOAD(x);
        MULTIPLY();
        if (term_count == 2) {
            B_LOAD(first + 1, second + 1);
            MULTIPLY();
        }
    }
    _tile_stored(0, sums, SUM_STRIDE);
    _tile_stored(1, sums + 16, SUM_STRIDE);
    if (both) {
        _tile_stored(2, lower, SUM_STRIDE);
        _tile_stored(3, lower + 16, SUM_STRIDE);
    }
}

static void once_tile(const struct panel_kernel *kernel, const void *panel, const void *input, size_t block_count,
                      size_t inputs, float *sums) {
    const struct tile_panel *first = panel, *second = first + kernel->run_blocks;
    if (inputs > 16)
        tile_multiply(first, second, input, block_count, true, 1, sums);
    else
        tile_multiply(first, second, input, block_count, false, 1, sums);
}

static void twice_tile(const struct panel_kernel *kernel, const void *panel, const void *input, size_t block_count,
                       size_t inputs, float *sums) {
    const struct tile_panel *first = panel, *second = first + 2 * kernel->run_blocks;
    if (inputs > 16)
        tile_multiply(first, second, input, block_count, true, 2, sums);
    else
        tile_multiply(first, second, input, block_count, false, 2, sums);
}

static void tiles_run(const struct matmul_args *args, const struct panel_kernel *kernel) {
    tiles_configure(); /* the tiles belong to this thread, for this call */
    panel_run(args, kernel);
    _tile_release();
}

static void code_run(const struct matmul_args *args) {
    struct code_layout code = code_layout_find(args->weight->type);
    if (code.unpack == NULL) code = code_layout_find_bytes(args->weight->type);
    struct panel_kernel kernel = {
        .panel_bytes = sizeof(struct tile_panel),
        .run_blocks = RUN_BLOCKS,
        .run_inputs = AMX_INPUTS,
        .tile_inputs = TILE_INPUTS,
        .tile_rows = TILE_ROWS,
        .has_whole_tiles = true,
        .code = code,
        .unpack = code_unpack,
        .input_get = once_input_get,
        .tile = once_tile,
    };
    tiles_run(args, &kernel);
}

static void float_run(const struct matmul_args *args) {
    bool is_once = args->weight->type == TENSOR_BF16;
    struct panel_kernel kernel = {
        .panel_bytes = (is_once ? 1 : 2) * sizeof(struct tile_panel),
        .run_blocks = FLOAT_RUN_BLOCKS,
        .run_inputs = AMX_INPUTS,
        .tile_inputs = TILE_INPUTS,
        .tile_rows = TILE_ROWS,
        .has_whole_tiles = true,
        .floats = float_unpack_find(args->weight->type),
        .unpack = is_once ? once_unpack : twice_unpack,
        .input_get = is_once ? once_input_get : twice_input_get,
        .tile = is_once ? once_tile : twice_tile,
    };
    tiles_run(args, &kernel);
}

static size_t scratch_bytes(size_t columns) {
    (void)columns;
    return panel_scratch_bytes(2 * sizeof(struct tile_panel), AMX_INPUTS);
}

void matmul_amx_install(struct matmul_kernels *kernels) {
    memcpy(kernels->few, kernels->method, sizeof kernels->few);
    struct matmul_method once = {
        .form = MATMUL_FORM_BF16,
        .row_granule = TILE_ROWS,
        .prepared_bytes = once_prepared_bytes,
        .input_granule = TILE_INPUTS,
        .prepare = once_prepare,
        .scratch_bytes = scratch_bytes,
        .run = code_run,
    };
    for (size_t type = 0; type < MATMUL_TYPES; type++)
        if (code_layout_find((enum tensor_type)type).unpack != NULL ||
            code_layout_find_bytes((enum tensor_type)type).unpack != NULL)
            kernels->method[type] = once;
    once.run = float_run;
    kernels->method[TENSOR_BF16] = once;
    once.form = MATMUL_FORM_BF16_TWICE;
    once.prepared_bytes = twice_prepared_bytes;
    once.prepare = twice_prepare;
    kernels->method[TENSOR_F16] = kernels->method[TENSOR_F32] = once;
}

/* matmul for quantised weights on AVX2: int8 activations, 16-row panels, tiles of 6 inputs.
 *
 * Mapping: a panel (matmul_panel_internal.h) holds 16 rows of weights, one row per 32-bit lane; four
 * activation bytes of an input are broadcast to all lanes, so a product needs no horizontal sum.  Two
 * kernels:
 *   codes (types below 7 bits): vpmaddubsw of unsigned codes with signed activations, summed in 16 bits
 *     over a whole group and then widened once, by vpmaddwd, with the group's integer scale where the
 *     type has one.  16-bit sums wrap around, so they start at -offset * (sum of the lane's activations)
 *     and only the final value must fit: 16 columns of |code - offset| <= 16, or 8 columns of <= 32, times
 *     127 are 32,512 < 32,768.  (One vpmaddubsw adds 2 products, at most 2 * 63 * 127 = 16,002.)
 *   wide (Q8_0, IQ4): vpmaddwd of 16-bit values, summed in 32 bits.  Bytes times bytes would overflow 16
 *     bits after one pair; the sign trick needs as many multiplications and reached 0.95 of this.
 * Each block of 32 is scaled into float sums: y += (sum * dw) * dx, plus minimum * (dx * sum of x), which are added up
 * in the lanes of a span (kernels/span.h), as matvec does it.
 *
 * Bytes: a thread unpacks 16 rows x RUN_BLOCKS blocks into its scratch (13 KiB, L1) and walks over a stretch of
 * inputs that stays in L2; per 16 x 6 tile and 32 columns it loads 0.5 to 1 KiB of weights (L1) and 0.4 KiB of
 * activations (L2).  Weights are read from memory once per stretch.
 * Bound: the multiplying pipes and, for codes, the 20 vector operations around 8 multiplications of a block.
 * Measured 2026-11-21 at 512 x 2048 x 2048, one thread of a shared Zen 3 virtual machine at 2.2 GHz, thread
 * time, in one run with the peaks: FMA 73 GFLOP/s, vpmaddubsw + vpaddw 218 GOP/s, vpmaddwd + vpaddd 107 GOP/s;
 * Q4_0 137 (0.63 of its peak), Q4_K 127, Q6_K 110, Q8_0 91 (0.85); a hand-written block of codes
 * without the loops around it reached 149.
 */
#include <immintrin.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"
#include "kernels/matmul/span_leaves.h"
#include "kernels/quantize_32.h"

enum { BLOCK = PANEL_COLUMNS, TILE_INPUTS = 6 };

/* The wide form of a tile of n inputs: per block n of these, then n scales padded to 8 floats. */
struct wide_input {
    int16_t q[BLOCK];
};
enum { WIDE_SCALES = 8 };

static inline size_t wide_block_bytes(size_t inputs) {
    return inputs * sizeof(struct wide_input) + WIDE_SCALES * sizeof(float);
}

/* --- preparing --------------------------------------------------------------------------- */

void code_input_prepare(const float *x, bool has_pairs, struct code_input *target) {
    __m256i packed;
    target->scale = quantize_32(x, &packed);
    _mm256_store_si256((__m256i *)(void *)target->q, packed);
    const __m256i q[2] = {_mm256_cvtepi8_epi16(_mm256_castsi256_si128(packed)),
                          _mm256_cvtepi8_epi16(_mm256_extracti128_si256(packed, 1))};
    int32_t even[2], odd[2]; /* dwords of q[g]: pairs of columns; even ones feed lane 0, odd ones lane 1 */
    for (size_t g = 0; g < 2; g++) {
        __m256i pairs = _mm256_madd_epi16(q[g], _mm256_set1_epi16(1));
        __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
        sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
        even[g] = _mm_cvtsi128_si32(sums), odd[g] = _mm_extract_epi32(sums, 1);
        target->group_sum[g] = target->scale * (float)(even[g] + odd[g]);
    }
    const int32_t total = even[0] + odd[0] + even[1] + odd[1];
    target->sum = target->scale * (float)total;
    target->unused = 0;
    for (size_t g = 0; g < 2 && has_pairs; g++) {
        target->group_pair[g][0] = (int16_t)-even[g];
        target->group_pair[g][1] = (int16_t)-odd[g];
    }
    if (has_pairs) {
        target->pair[0] = (int16_t) - (even[0] + even[1]);
        target->pair[1] = (int16_t) - (odd[0] + odd[1]);
    } else {
        target->total = -total;
        target->group_total[0] = -even[0] - odd[0];
        target->group_total[1] = -even[1] - odd[1];
    }
}

static size_t code_prepared_bytes(size_t input_count, size_t columns) {
    return input_count * (columns / BLOCK) * sizeof(struct code_input);
}

void code_inputs_prepare(const float *x, size_t x_stride, size_t input_count, size_t columns, bool has_pairs,
                         size_t input_begin, size_t input_end, void *prepared) {
    ASSERT(input_begin <= input_end && input_end <= input_count && columns % BLOCK == 0);
    size_t tile_count = tile_count_get(input_count, TILE_INPUTS), block_count = columns / BLOCK;
    for (size_t i = input_begin; i < input_end; i++) {
        size_t tile = tile_find(i, tile_count, input_count);
        struct tile_inputs inputs = tile_get(tile, tile_count, input_count);
        struct code_input *target = (struct code_input *)prepared + inputs.begin * block_count + (i - inputs.begin);
        for (size_t b = 0; b < block_count; b++) {
            size_t begin = b - b % SPAN_BLOCKS, count = min_size(SPAN_BLOCKS, block_count - begin);
            size_t place = has_pairs ? b : begin + span_place(b - begin, count);
            code_input_prepare(x + i * x_stride + b * BLOCK, has_pairs, target + place * inputs.count);
        }
    }
}

static void code_prepare(const float *x, size_t x_stride, size_t input_count, size_t columns, size_t input_begin,
                         size_t input_end, void *prepared) {
    code_inputs_prepare(x, x_stride, input_count, columns, true, input_begin, input_end, prepared);
}

static size_t wide_prepared_bytes(size_t input_count, size_t columns) {
    size_t scales = tile_count_get(input_count, TILE_INPUTS) * WIDE_SCALES * sizeof(float);
    return align_up((input_count * sizeof(struct wide_input) + scales) * (columns / BLOCK), 64);
}

static char *wide_tile_get(const void *prepared, size_t tile, size_t begin, size_t block_count) {
    return (char *)(uintptr_t)prepared +
           (begin * sizeof(struct wide_input) + tile * WIDE_SCALES * sizeof(float)) * block_count;
}

static void wide_prepare(const float *x, size_t x_stride, size_t input_count, size_t columns, size_t input_begin,
                         size_t input_end, void *prepared) {
    ASSERT(input_begin <= input_end && input_end <= input_count && columns % BLOCK == 0);
    size_t tile_count = tile_count_get(input_count, TILE_INPUTS), block_count = columns / BLOCK;
    for (size_t i = input_begin; i < input_end; i++) {
        size_t tile = tile_find(i, tile_count, input_count);
        struct tile_inputs inputs = tile_get(tile, tile_count, input_count);
        char *target = wide_tile_get(prepared, tile, inputs.begin, block_count);
        for (size_t b = 0; b < block_count; b++, target += wide_block_bytes(inputs.count)) {
            __m256i q;
            float *scales = (float *)(void *)(target + inputs.count * sizeof(struct wide_input));
            scales[i - inputs.begin] = quantize_32(x + i * x_stride + b * BLOCK, &q);
            __m256i *values = (__m256i *)(void *)((struct wide_input *)(void *)target + (i - inputs.begin));
            _mm256_store_si256(values, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q)));
            _mm256_store_si256(values + 1, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1)));
            /* The padding belongs to the tile's last input: every byte is written, by one thread. */
            for (size_t j = inputs.count; i + 1 == inputs.begin + inputs.count && j < WIDE_SCALES; j++) scales[j] = 0;
        }
    }
}

/* --- the tile kernels -------------------------------------------------------------------- */

#define INLINE static inline __attribute__((always_inline))

/* Pins a sum to its register: gcc would otherwise reassociate the additions of a block into trees
 * whose leaves it spills (measured: half the speed). */
#define KEEP(value) __asm__("" : "+x"(value))

INLINE __m256i vector_load(const void *source) { return _mm256_load_si256((const __m256i *)source); }

/* The 16-bit sums of steps [begin, end) for n inputs x 16 rows. */
INLINE void code_steps(const struct code_panel *panel, const struct code_input *x, size_t begin, size_t end, size_t n,
                       __m256i acc[][2]) {
#pragma GCC unroll 8
    for (size_t s = begin; s < end; s++) {
        __m256i low = vector_load(panel->codes[s][0]), high = vector_load(panel->codes[s][8]);
#pragma GCC unroll 6
        for (size_t i = 0; i < n; i++) {
            int32_t four;
            memcpy(&four, x[i].q + 4 * s, sizeof four);
            __m256i input = _mm256_set1_epi32(four);
            acc[i][0] = _mm256_add_epi16(acc[i][0], _mm256_maddubs_epi16(low, input));
            acc[i][1] = _mm256_add_epi16(acc[i][1], _mm256_maddubs_epi16(high, input));
            KEEP(acc[i][0]);
            KEEP(acc[i][1]);
        }
    }
}

/* The lanes of a span's sums: [lane][inputs][PANEL_ROWS]. */
typedef float span_lanes[SPAN_LANES][TILE_INPUTS * PANEL_ROWS];

/* The sum of 8 lanes at `at`. */
INLINE __m256 lanes_sum(span_lanes lanes, size_t at) {
    __m256 four[2];
    for (size_t odd = 0; odd < 2; odd++) {
        __m256 a = _mm256_add_ps(_mm256_load_ps(lanes[odd] + at), _mm256_load_ps(lanes[odd + 4] + at));
        __m256 b = _mm256_add_ps(_mm256_load_ps(lanes[odd + 2] + at), _mm256_load_ps(lanes[odd + 6] + at));
        four[odd] = _mm256_add_ps(a, b);
    }
    return _mm256_add_ps(four[0], four[1]);
}

/* target += more, count floats. */
INLINE void sums_add(float *target, const float *more, size_t count) {
    for (size_t at = 0; at < count; at += 8)
        _mm256_store_ps(target + at, _mm256_add_ps(_mm256_load_ps(target + at), _mm256_load_ps(more + at)));
}

/* Adds the sums of the first block_count lanes to sums[n][PANEL_ROWS]; those past them are not filled. */
INLINE void lanes_add(span_lanes lanes, size_t block_count, size_t n, float *restrict sums) {
    const struct span_leaf *leaf = span_leaves[min_size(block_count, SPAN_LANES) - 1];
    const float *waiting[SPAN_WAITING_MAX + 1];
    size_t depth = 0;
    if (block_count >= SPAN_LANES) {
        for (size_t at = 0; at < n * PANEL_ROWS; at += 8)
            _mm256_store_ps(sums + at, _mm256_add_ps(_mm256_load_ps(sums + at), lanes_sum(lanes, at)));
        return;
    }
    for (size_t k = 0; k < block_count; k++) {
        for (size_t joins = leaf[k].joins; joins > 0; joins--)
            sums_add(lanes[leaf[k].lane], waiting[--depth], n * PANEL_ROWS);
        waiting[depth++] = lanes[leaf[k].lane];
    }
    sums_add(sums, waiting[0], n * PANEL_ROWS);
}

/* Adds the scaled sums of one block to a lane; the first one fills it. */
INLINE void code_sums_add(const struct code_panel *panel, const struct code_input *x, size_t i, size_t v,
                          bool has_groups, bool has_minimum, __m256 total, bool is_first, float *restrict lane) {
    float *target = lane + i * PANEL_ROWS + v * 8;
    __m256 scaled = _mm256_mul_ps(total, _mm256_load_ps(panel->scale + v * 8));
    __m256 scale = _mm256_set1_ps(x[i].scale);
    __m256 y = is_first ? _mm256_mul_ps(scaled, scale) : _mm256_fmadd_ps(scaled, scale, _mm256_load_ps(target));
    if (has_minimum && !has_groups)
        y = _mm256_fmadd_ps(_mm256_load_ps(panel->minimum[0] + v * 8), _mm256_set1_ps(x[i].sum), y);
    if (has_minimum && has_groups) {
        y = _mm256_fmadd_ps(_mm256_load_ps(panel->minimum[0] + v * 8), _mm256_set1_ps(x[i].group_sum[0]), y);
        y = _mm256_fmadd_ps(_mm256_load_ps(panel->minimum[1] + v * 8), _mm256_set1_ps(x[i].group_sum[1]), y);
    }
    _mm256_store_ps(target, y);
}

/* What is known of a type of weights when a tile is compiled. */
struct tile_kind {
    bool has_groups, has_minimum, has_factors;
};

INLINE void code_block(const struct code_panel *panel, const struct code_input *x, size_t n, struct tile_kind kind,
                       __m128i shift, bool is_first, float *restrict lane) {
    const bool has_groups = kind.has_groups;
    __m256i acc[TILE_INPUTS][2], total[TILE_INPUTS][2];
    __m256 scaled[TILE_INPUTS][2]; /* the total where the groups' scales are floats */
    for (size_t g = 0; g < (has_groups ? 2 : 1); g++) {
#pragma GCC unroll 6
        for (size_t i = 0; i < n; i++) {
            int32_t pair = pair_get(has_groups ? x[i].group_pair[g] : x[i].pair);
            acc[i][0] = acc[i][1] = _mm256_sll_epi16(_mm256_set1_epi32(pair), shift);
        }
        if (has_groups)
            code_steps(panel, x, g * 4, g * 4 + 4, n, acc);
        else
            code_steps(panel, x, 0, 8, n, acc);
#pragma GCC unroll 6
        for (size_t i = 0; i < n; i++)
#pragma GCC unroll 2
            for (size_t v = 0; v < 2; v++) {
                __m256i factor =
                    has_groups && !kind.has_factors ? vector_load(panel->group_scale[g][v * 8]) : _mm256_set1_epi16(1);
                __m256i part = _mm256_madd_epi16(acc[i][v], factor);
                if (kind.has_factors) {
                    const __m256 sum = _mm256_cvtepi32_ps(part), f = _mm256_load_ps(panel->group_factor[g] + v * 8);
                    scaled[i][v] = g == 0 ? _mm256_mul_ps(sum, f) : _mm256_fmadd_ps(sum, f, scaled[i][v]);
                    continue;
                }
                total[i][v] = g == 0 ? part : _mm256_add_epi32(total[i][v], part);
            }
    }
#pragma GCC unroll 6
    for (size_t i = 0; i < n; i++)
#pragma GCC unroll 2
        for (size_t v = 0; v < 2; v++) {
            const __m256 sum = kind.has_factors ? scaled[i][v] : _mm256_cvtepi32_ps(total[i][v]);
            code_sums_add(panel, x, i, v, has_groups, kind.has_minimum, sum, is_first, lane);
        }
}

INLINE void code_tile(const struct code_panel *panel, const struct code_input *x, size_t block_count, size_t n,
                      struct tile_kind kind, unsigned offset_shift, float *restrict sums) {
    const __m128i shift = _mm_cvtsi32_si128((int)offset_shift);
    _Alignas(32) span_lanes lanes;
    for (size_t b = 0; b < block_count && b < SPAN_LANES; b++)
        code_block(panel + b, x + b * n, n, kind, shift, true, lanes[b]);
    for (size_t b = SPAN_LANES; b < block_count; b++)
        code_block(panel + b, x + b * n, n, kind, shift, false, lanes[b - SPAN_LANES]);
    lanes_add(lanes, block_count, n, sums);
}

INLINE void wide_block(const struct wide_panel *panel, const char *x, size_t n, bool is_first, float *restrict lane) {
    const struct wide_input *input = (const struct wide_input *)(const void *)x;
    const float *scales = (const float *)(const void *)(x + n * sizeof *input);
    __m256i acc[TILE_INPUTS][2];
#pragma GCC unroll 6
    for (size_t i = 0; i < n; i++) acc[i][0] = acc[i][1] = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (size_t s = 0; s < BLOCK / 2; s++) {
        __m256i low = vector_load(panel->values[s][0]), high = vector_load(panel->values[s][8]);
#pragma GCC unroll 6
        for (size_t i = 0; i < n; i++) {
            int32_t two;
            memcpy(&two, input[i].q + 2 * s, sizeof two);
            __m256i both = _mm256_set1_epi32(two);
            acc[i][0] = _mm256_add_epi32(acc[i][0], _mm256_madd_epi16(low, both));
            acc[i][1] = _mm256_add_epi32(acc[i][1], _mm256_madd_epi16(high, both));
            KEEP(acc[i][0]);
            KEEP(acc[i][1]);
        }
    }
#pragma GCC unroll 6
    for (size_t i = 0; i < n; i++)
#pragma GCC unroll 2
        for (size_t v = 0; v < 2; v++) {
            float *target = lane + i * PANEL_ROWS + v * 8;
            __m256 scale = _mm256_set1_ps(scales[i]);
            __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[i][v]), _mm256_load_ps(panel->scale + v * 8));
            _mm256_store_ps(target, is_first ? _mm256_mul_ps(scaled, scale)
                                             : _mm256_fmadd_ps(scaled, scale, _mm256_load_ps(target)));
        }
}

INLINE void wide_tile(const struct wide_panel *panel, const char *x, size_t block_count, size_t n,
                      float *restrict sums) {
    _Alignas(32) span_lanes lanes;
    for (size_t b = 0; b < block_count && b < SPAN_LANES; b++, x += wide_block_bytes(n))
        wide_block(panel + b, x, n, true, lanes[b]);
    for (size_t b = SPAN_LANES; b < block_count; b++, x += wide_block_bytes(n))
        wide_block(panel + b, x, n, false, lanes[b - SPAN_LANES]);
    lanes_add(lanes, block_count, n, sums);
}

/* One function per number of inputs and kind: their loops are unrolled with constant bounds. */
typedef void code_tile_run(const struct code_panel *panel, const struct code_input *x, size_t block_count,
                           unsigned offset_shift, float *sums);
typedef void wide_tile_run(const struct wide_panel *panel, const char *x, size_t block_count, float *sums);

#define CODE_TILE(name, n, ...)                                                                            \
    static void name##_##n(const struct code_panel *panel, const struct code_input *x, size_t block_count, \
                           unsigned offset_shift, float *restrict sums) {                                  \
        code_tile(panel, x, block_count, n, (struct tile_kind){__VA_ARGS__}, offset_shift, sums);          \
    }
#define CODE_TILES(name, ...)       \
    CODE_TILE(name, 1, __VA_ARGS__) \
    CODE_TILE(name, 2, __VA_ARGS__) \
    CODE_TILE(name, 3, __VA_ARGS__) \
    CODE_TILE(name, 4, __VA_ARGS__) \
    CODE_TILE(name, 5, __VA_ARGS__) CODE_TILE(name, 6, __VA_ARGS__)
CODE_TILES(code_tile_plain, false, false, false)
CODE_TILES(code_tile_minimum, false, true, false)
CODE_TILES(code_tile_groups, true, false, false)
CODE_TILES(code_tile_groups_minimum, true, true, false)
CODE_TILES(code_tile_factors, true, false, true)

#define WIDE_TILE(n)                                                                             \
    static void wide_tile_##n(const struct wide_panel *panel, const char *x, size_t block_count, \
                              float *restrict sums) {                                            \
        wide_tile(panel, x, block_count, n, sums);                                               \
    }
WIDE_TILE(1)
WIDE_TILE(2)
WIDE_TILE(3)
WIDE_TILE(4)
WIDE_TILE(5)
WIDE_TILE(6)

#define TILE_TABLE(name) \
    { NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6 }
static code_tile_run *const code_tiles[2][2][TILE_INPUTS + 1] = {
    {TILE_TABLE(code_tile_plain), TILE_TABLE(code_tile_minimum)},
    {TILE_TABLE(code_tile_groups), TILE_TABLE(code_tile_groups_minimum)},
};
static code_tile_run *const factor_tiles[TILE_INPUTS + 1] = TILE_TABLE(code_tile_factors);
static wide_tile_run *const wide_tiles[TILE_INPUTS + 1] = TILE_TABLE(wide_tile);

/* --- running ----------------------------------------------------------------------------- */

static void code_unpack(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count,
                        size_t half, void *panel) {
    kernel->code.unpack(row, column_count / BLOCK, half, panel);
}

const void *code_input_get(const void *prepared, size_t tile, struct tile_inputs inputs, size_t block,
                           size_t block_count) {
    (void)tile;
    return (const struct code_input *)prepared + inputs.begin * block_count + block * inputs.count;
}

static void code_tile_call(const struct panel_kernel *kernel, const void *panel, const void *input, size_t block_count,
                           size_t inputs, float *restrict sums) {
    code_tile_run *tile = kernel->code.has_factors
                              ? factor_tiles[inputs]
                              : code_tiles[kernel->code.has_groups][kernel->code.has_minimum][inputs];
    tile(panel, input, block_count, kernel->code.offset_shift, sums);
}

static void code_run(const struct matmul_args *args) {
    struct panel_kernel kernel = {
        .panel_bytes = sizeof(struct code_panel),
        .run_blocks = RUN_BLOCKS,
        .run_inputs = RUN_INPUTS,
        .tile_inputs = TILE_INPUTS,
        .tile_rows = PANEL_ROWS,
        .code = code_layout_find(args->weight->type),
        .unpack = code_unpack,
        .input_get = code_input_get,
        .tile = code_tile_call,
    };
    panel_run(args, &kernel);
}

static size_t code_scratch_bytes(size_t columns) {
    (void)columns;
    return panel_scratch_bytes(sizeof(struct code_panel), RUN_INPUTS);
}

static void wide_unpack_call(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count,
                             size_t half, void *panel) {
    kernel->wide(row, column_count / BLOCK, half, panel);
}

static const void *wide_input_get(const void *prepared, size_t tile, struct tile_inputs inputs, size_t block,
                                  size_t block_count) {
    return wide_tile_get(prepared, tile, inputs.begin, block_count) + block * wide_block_bytes(inputs.count);
}

static void wide_tile_call(const struct panel_kernel *kernel, const void *panel, const void *input, size_t block_count,
                           size_t inputs, float *restrict sums) {
    (void)kernel;
    wide_tiles[inputs](panel, input, block_count, sums);
}

static void wide_run(const struct matmul_args *args) {
    struct panel_kernel kernel = {
        .panel_bytes = sizeof(struct wide_panel),
        .run_blocks = RUN_BLOCKS,
        .run_inputs = RUN_INPUTS,
        .tile_inputs = TILE_INPUTS,
        .tile_rows = PANEL_ROWS,
        .wide = wide_unpack_find(args->weight->type),
        .unpack = wide_unpack_call,
        .input_get = wide_input_get,
        .tile = wide_tile_call,
    };
    panel_run(args, &kernel);
}

static size_t wide_scratch_bytes(size_t columns) {
    (void)columns;
    return panel_scratch_bytes(sizeof(struct wide_panel), RUN_INPUTS);
}

void matmul_int8_avx2_install(struct matmul_kernels *kernels) {
    for (size_t type = 0; type < MATMUL_TYPES; type++) {
        if (code_layout_find((enum tensor_type)type).unpack != NULL)
            kernels->method[type] = (struct matmul_method){
                .form = MATMUL_FORM_I8_PAIRS,
                .row_granule = PANEL_ROWS,
                .prepared_bytes = code_prepared_bytes,
                .input_granule = 1,
                .prepare = code_prepare,
                .scratch_bytes = code_scratch_bytes,
                .run = code_run,
            };
        if (wide_unpack_find((enum tensor_type)type) != NULL)
            kernels->method[type] = (struct matmul_method){
                .form = MATMUL_FORM_I16,
                .row_granule = PANEL_ROWS,
                .prepared_bytes = wide_prepared_bytes,
                .input_granule = 1,
                .prepare = wide_prepare,
                .scratch_bytes = wide_scratch_bytes,
                .run = wide_run,
            };
    }
}

/* matmul for quantised weights on AVX-512 VNNI: int8 activations, two 16-row panels x 6 inputs.
 *
 * Mapping: the panels and inputs of the AVX2 variant (matmul_int8_avx2.c); one vector holds the 16 rows of
 * a panel.  vpdpbusd multiplies four unsigned codes of a row with four signed activations straight into
 * 32 bits, so codes may be whole bytes (Q8_0 and IQ4 with offset 128) and nothing can overflow: at most
 * 32 * 255 * 127.  Sums start at -offset * (sum of the activations).  Each block of 32:
 *     y += sum * (scale * dx)  [+ minimum * (dx * sum of x)]
 * in the lanes of a span (kernels/span.h), as matvec does it.
 *
 * Per 4 columns 2 loads of weights, 6 broadcasts, 12 vpdpbusd; per block and sum one conversion, one
 * multiplication and one FMA more: 8 of 11 vector operations multiply.  Bound: ports 0 and 5, hence
 * 73% of the VNNI peak (57% for 16-column groups would be 4 of 7; summing both groups first makes it 8 of 13).
 * Not measured on hardware yet; the source is tested on SIMDe.
 */
#include "base/assert.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"
#include "kernels/vector.h"

enum { TILE_INPUTS = 6, TILE_PANELS = 2 };

#define INLINE static inline __attribute__((always_inline))

#include "kernels/matmul/span_lanes_avx512.h"

INLINE __m512i codes_load(const struct code_panel *panel, size_t step) {
    return _mm512_load_si512((const void *)panel->codes[step]);
}

/* Integer sums of steps [begin, end) of n inputs with two panels. */
INLINE void steps_multiply(const struct code_panel *const panel[TILE_PANELS], const struct code_input *x,
                           size_t begin, size_t end, size_t n, __m512i acc[][TILE_PANELS]) {
    VECTOR_UNROLL(8)
    for (size_t s = begin; s < end; s++) {
        __m512i first = codes_load(panel[0], s), second = codes_load(panel[1], s);
        VECTOR_UNROLL(6)
        for (size_t i = 0; i < n; i++) {
            int32_t four;
            memcpy(&four, x[i].q + 4 * s, sizeof four);
            __m512i input = _mm512_set1_epi32(four);
            acc[i][0] = _mm512_dpbusd_epi32(acc[i][0], first, input);
            acc[i][1] = _mm512_dpbusd_epi32(acc[i][1], second, input);
        }
    }
}

INLINE __m512i start_get(const int16_t pair[2], __m128i shift) {
    __m512i sum = _mm512_madd_epi16(_mm512_set1_epi32(pair_get(pair)), _mm512_set1_epi16(1));
    return _mm512_sll_epi32(sum, shift);
}

INLINE __m512 minima_add(const struct code_panel *panel, const struct code_input *x, bool has_groups,
                         __m512 y) {
    if (!has_groups) return _mm512_fmadd_ps(_mm512_load_ps(panel->minimum[0]), _mm512_set1_ps(x->sum), y);
    y = _mm512_fmadd_ps(_mm512_load_ps(panel->minimum[0]), _mm512_set1_ps(x->group_sum[0]), y);
    return _mm512_fmadd_ps(_mm512_load_ps(panel->minimum[1]), _mm512_set1_ps(x->group_sum[1]), y);
}

/* The sum of a block, or with groups that of group g with its scale added: an integer below 2^24, exact as a float. */
INLINE void group_multiply(const struct code_panel *const panel[TILE_PANELS], const struct code_input *x,
                           size_t n, bool has_groups, size_t g, __m128i shift, __m512 total[][TILE_PANELS]) {
    __m512i acc[TILE_INPUTS][TILE_PANELS];
    VECTOR_UNROLL(6)
    for (size_t i = 0; i < n; i++)
        acc[i][0] = acc[i][1] = start_get(has_groups ? x[i].group_pair[g] : x[i].pair, shift);
    steps_multiply(panel, x, has_groups ? g * 4 : 0, has_groups ? g * 4 + 4 : 8, n, acc);
    VECTOR_UNROLL(6)
    for (size_t i = 0; i < n; i++) VECTOR_UNROLL(2)
    for (size_t p = 0; p < TILE_PANELS; p++) {
        __m512 sum = _mm512_cvtepi32_ps(acc[i][p]);
        if (!has_groups) {
            total[i][p] = sum;
            continue;
        }
        __m512 f = _mm512_load_ps(panel[p]->group_factor[g]);
        total[i][p] = g == 0 ? _mm512_mul_ps(sum, f) : _mm512_fmadd_ps(sum, f, total[i][p]);
    }
}

/* Adds a block to a lane of the span; the first one fills it. */
INLINE void block_multiply(const struct code_panel *const panel[TILE_PANELS], const struct code_input *x,
                           size_t n, bool has_groups, bool has_minimum, __m128i shift, bool is_first,
                           float *restrict lane) {
    __m512 total[TILE_INPUTS][TILE_PANELS];
    group_multiply(panel, x, n, has_groups, 0, shift, total);
    if (has_groups) group_multiply(panel, x, n, has_groups, 1, shift, total);
    VECTOR_UNROLL(6)
    for (size_t i = 0; i < n; i++) VECTOR_UNROLL(2)
    for (size_t p = 0; p < TILE_PANELS; p++) {
        float *target = lane + (i * TILE_PANELS + p) * PANEL_ROWS;
        __m512 scale = _mm512_mul_ps(_mm512_load_ps(panel[p]->scale), _mm512_set1_ps(x[i].scale));
        __m512 y = is_first ? _mm512_mul_ps(total[i][p], scale)
                            : _mm512_fmadd_ps(total[i][p], scale, _mm512_load_ps(target));
        if (has_minimum) y = minima_add(panel[p], x + i, has_groups, y);
        _mm512_store_ps(target, y);
    }
}

typedef void tile_function(const struct code_panel *panel, const struct code_input *x, size_t block_count,
                           unsigned offset_shift, float *restrict sums);

/* The lanes of a span: [lane][inputs][panel][PANEL_ROWS]. */
typedef float span_lanes[SPAN_LANES][TILE_INPUTS * TILE_PANELS * PANEL_ROWS];

INLINE void tile_multiply(const struct code_panel *panel, const struct code_input *x, size_t block_count,
                          size_t n, bool has_groups, bool has_minimum, unsigned offset_shift,
                          float *restrict sums) {
    const __m128i shift = _mm_cvtsi32_si128((int)offset_shift);
    _Alignas(64) span_lanes lanes;
    for (size_t b = 0; b < block_count && b < SPAN_LANES; b++) {
        const struct code_panel *const both[TILE_PANELS] = {panel + b, panel + b + RUN_BLOCKS};
        block_multiply(both, x + b * n, n, has_groups, has_minimum, shift, true, lanes[b]);
    }
    for (size_t b = SPAN_LANES; b < block_count; b++) {
        const struct code_panel *const both[TILE_PANELS] = {panel + b, panel + b + RUN_BLOCKS};
        block_multiply(both, x + b * n, n, has_groups, has_minimum, shift, false, lanes[b - SPAN_LANES]);
    }
    span_lanes_add(lanes[0], sizeof lanes[0] / sizeof(float), block_count, n * TILE_PANELS * PANEL_ROWS,
                   sums);
}

#define TILE(name, n, has_groups, has_minimum)                                                             \
    static void name##_##n(const struct code_panel *panel, const struct code_input *x, size_t block_count, \
                           unsigned offset_shift, float *restrict sums) {                                  \
        tile_multiply(panel, x, block_count, n, has_groups, has_minimum, offset_shift, sums);              \
    }
#define TILES(name, has_groups, has_minimum) \
    TILE(name, 1, has_groups, has_minimum)   \
    TILE(name, 2, has_groups, has_minimum)   \
    TILE(name, 3, has_groups, has_minimum)   \
    TILE(name, 4, has_groups, has_minimum)   \
    TILE(name, 5, has_groups, has_minimum) TILE(name, 6, has_groups, has_minimum)
TILES(tile_plain, false, false)
TILES(tile_minimum, false, true)
TILES(tile_groups, true, false)
TILES(tile_groups_minimum, true, true)

#define TABLE(name) \
    { NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6 }
static tile_function *const tiles[2][2][TILE_INPUTS + 1] = {
    {TABLE(tile_plain), TABLE(tile_minimum)},
    {TABLE(tile_groups), TABLE(tile_groups_minimum)},
};

static void tile_run(const struct panel_kernel *kernel, const void *panel, const void *input,
                     size_t block_count, size_t inputs, float *sums) {
    tile_function *tile = tiles[kernel->code.has_groups][kernel->code.has_minimum][inputs];
    tile(panel, input, block_count, kernel->code.offset_shift, sums);
}

/* Unpacks, and turns the integer scales of groups into floats in their place. */
static void unpack(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count,
                   size_t half, void *panel) {
    size_t block_count = column_count / PANEL_COLUMNS;
    kernel->code.unpack(row, block_count, half, panel);
    if (!kernel->code.has_groups) return;
    struct code_panel *target = panel;
    for (size_t b = 0; b < block_count; b++, target++)
        for (size_t g = 0; g < 2; g++) {
            __m256i pairs = _mm256_load_si256((const void *)target->group_scale[g][half * 8]);
            __m256 scale = _mm256_cvtepi32_ps(_mm256_srai_epi32(pairs, 16));
            _mm256_store_ps(target->group_factor[g] + half * 8, scale);
        }
}

static void run(const struct matmul_args *args) {
    struct code_layout code = code_layout_find(args->weight->type);
    if (code.unpack == NULL) code = code_layout_find_bytes(args->weight->type);
    struct panel_kernel kernel = {
        .panel_bytes = sizeof(struct code_panel),
        .run_blocks = RUN_BLOCKS,
        .run_inputs = RUN_INPUTS,
        .tile_inputs = TILE_INPUTS,
        .tile_rows = TILE_PANELS * PANEL_ROWS,
        .code = code,
        .unpack = unpack,
        .input_get = code_input_get,
        .tile = tile_run,
    };
    panel_run(args, &kernel);
}

void matmul_int8_avx512_init(struct matmul_kernels *kernels) {
    struct matmul_method method = kernels->method[TENSOR_Q4_0]; /* the inputs are those of AVX2's codes */
    ASSERT(method.form == MATMUL_FORM_I8_PAIRS);
    method.row_granule = TILE_PANELS * PANEL_ROWS;
    method.run = run;
    for (size_t type = 0; type < MATMUL_TYPES; type++)
        if (code_layout_find((enum tensor_type)type).unpack != NULL ||
            code_layout_find_bytes((enum tensor_type)type).unpack != NULL)
            kernels->method[type] = method;
}

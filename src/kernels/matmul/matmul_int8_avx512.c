/* matmul for quantised weights on AVX-512 VNNI: int8 activations, two 16-row panels x 6 inputs.
 *
 * Mapping: the panels and inputs of the AVX2 variant (matmul_int8_avx2.c); one vector holds the 16 rows of
 * a panel.  vpdpbusd multiplies four unsigned codes of a row with four signed activations straight into
 * 32 bits, so codes may be whole bytes (Q8_0 and IQ4 with offset 128) and nothing can overflow: at most
 * 32 * 255 * 127.  Sums start at -offset * (sum of the activations).  Each block of 32:
 *     y += (sum * scale) * dx  [+ minimum * (dx * sum of x)]
 * in the lanes of a span (kernels/span.h), as matvec does it: a lane is two blocks whose sums stay in registers, then
 * joins those that wait in L1 (span_leaves.h).
 *
 * Per 4 columns 2 loads of weights, 6 broadcasts, 12 vpdpbusd; per block and sum one conversion, one
 * multiplication and one FMA more: 8 of 11 vector operations multiply.  Bound: ports 0 and 5, hence
 * 73% of the VNNI peak (57% for 16-column groups would be 4 of 7; summing both groups first makes it 8 of 13).
 * Not measured on hardware yet; the source is tested on SIMDe.
 */
#include "base/assert.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"
#include "kernels/matmul/span_leaves.h"
#include "kernels/vector.h"

enum { TILE_INPUTS = 6, TILE_PANELS = 2 };

#define INLINE static inline __attribute__((always_inline))

INLINE __m512i codes_load(const struct code_panel *panel, size_t step) {
    return _mm512_load_si512((const void *)panel->codes[step]);
}

/* Integer sums of steps [begin, end) of n inputs with two panels. */
INLINE void steps_multiply(const struct code_panel *const panel[TILE_PANELS], const struct code_input *x, size_t begin,
                           size_t end, size_t n, __m512i acc[][TILE_PANELS]) {
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

/* What is known of a type of weights when a tile is compiled. */
struct tile_kind {
    bool has_groups, has_minimum;
    unsigned offset_shift;
};

/* -offset * (sum of the input's block or of its group g). */
INLINE __m512i start_get(const struct code_input *x, struct tile_kind kind, size_t g) {
    const int32_t total = kind.has_groups ? x->group_total[g] : x->total;
    return _mm512_sll_epi32(_mm512_set1_epi32(total), _mm_cvtsi32_si128((int)kind.offset_shift));
}

INLINE __m512 minima_add(const struct code_panel *panel, const struct code_input *x, bool has_groups, __m512 y) {
    if (!has_groups) return _mm512_fmadd_ps(_mm512_load_ps(panel->minimum[0]), _mm512_set1_ps(x->sum), y);
    y = _mm512_fmadd_ps(_mm512_load_ps(panel->minimum[0]), _mm512_set1_ps(x->group_sum[0]), y);
    return _mm512_fmadd_ps(_mm512_load_ps(panel->minimum[1]), _mm512_set1_ps(x->group_sum[1]), y);
}

/* The sum of a block, or with groups that of group g with its scale added: an integer below 2^24, exact as a float.
 * With factors (NVFP4) the products are exact, too, and their sum is rounded once. */
INLINE void group_multiply(const struct code_panel *const panel[TILE_PANELS], const struct code_input *x, size_t n,
                           struct tile_kind kind, size_t g, __m512 total[][TILE_PANELS]) {
    __m512i acc[TILE_INPUTS][TILE_PANELS];
    VECTOR_UNROLL(6)
    for (size_t i = 0; i < n; i++) acc[i][0] = acc[i][1] = start_get(x + i, kind, g);
    steps_multiply(panel, x, kind.has_groups ? g * 4 : 0, kind.has_groups ? g * 4 + 4 : 8, n, acc);
    VECTOR_UNROLL(6)
    for (size_t i = 0; i < n; i++) VECTOR_UNROLL(2)
    for (size_t p = 0; p < TILE_PANELS; p++) {
        __m512 sum = _mm512_cvtepi32_ps(acc[i][p]);
        if (!kind.has_groups) {
            total[i][p] = sum;
            continue;
        }
        __m512 f = _mm512_load_ps(panel[p]->group_factor[g]);
        total[i][p] = g == 0 ? _mm512_mul_ps(sum, f) : _mm512_fmadd_ps(sum, f, total[i][p]);
    }
}

/* Adds a block to a lane of the span; the first one fills it. */
INLINE void block_multiply(const struct code_panel *panel, const struct code_input *x, size_t n, struct tile_kind kind,
                           bool is_first, __m512 lane[][TILE_PANELS]) {
    const struct code_panel *const both[TILE_PANELS] = {panel, panel + RUN_BLOCKS};
    __m512 total[TILE_INPUTS][TILE_PANELS];
    group_multiply(both, x, n, kind, 0, total);
    if (kind.has_groups) group_multiply(both, x, n, kind, 1, total);
    VECTOR_UNROLL(6)
    for (size_t i = 0; i < n; i++) VECTOR_UNROLL(2)
    for (size_t p = 0; p < TILE_PANELS; p++) {
        const __m512 scaled = _mm512_mul_ps(total[i][p], _mm512_load_ps(both[p]->scale));
        const __m512 scale = _mm512_set1_ps(x[i].scale);
        lane[i][p] = is_first ? _mm512_mul_ps(scaled, scale) : _mm512_fmadd_ps(scaled, scale, lane[i][p]);
        if (kind.has_minimum) lane[i][p] = minima_add(both[p], x + i, kind.has_groups, lane[i][p]);
    }
}

typedef void tile_function(const struct code_panel *panel, const struct code_input *x, size_t block_count,
                           unsigned offset_shift, float *restrict sums);

/* Sums that wait in L1: [inputs][panel][PANEL_ROWS]. */
typedef float tile_sums[TILE_INPUTS * TILE_PANELS * PANEL_ROWS];

/* lane += waiting */
INLINE void lane_join(__m512 lane[][TILE_PANELS], size_t n, const float *waiting) {
    VECTOR_UNROLL(6)
    for (size_t i = 0; i < n; i++) VECTOR_UNROLL(2)
    for (size_t p = 0; p < TILE_PANELS; p++)
        lane[i][p] = _mm512_add_ps(_mm512_load_ps(waiting + (i * TILE_PANELS + p) * PANEL_ROWS), lane[i][p]);
}

INLINE void lane_store(__m512 lane[][TILE_PANELS], size_t n, float *target) {
    VECTOR_UNROLL(6)
    for (size_t i = 0; i < n; i++) VECTOR_UNROLL(2)
    for (size_t p = 0; p < TILE_PANELS; p++) _mm512_store_ps(target + (i * TILE_PANELS + p) * PANEL_ROWS, lane[i][p]);
}

INLINE void tile_multiply(const struct code_panel *panel, const struct code_input *x, size_t block_count, size_t n,
                          struct tile_kind kind, float *restrict sums) {
    const size_t lanes = min_size(block_count, SPAN_LANES);
    const struct span_leaf *leaf = span_leaves[lanes - 1];
    _Alignas(64) tile_sums waiting[SPAN_WAITING_MAX];
    size_t depth = 0;
    for (size_t k = 0; k < lanes; k++, leaf++) {
        const size_t first = leaf->lane, second = first + SPAN_LANES;
        __m512 lane[TILE_INPUTS][TILE_PANELS];
        block_multiply(panel + first, x, n, kind, true, lane);
        x += n;
        if (second < block_count) {
            block_multiply(panel + second, x, n, kind, false, lane);
            x += n;
        }
        for (size_t joins = leaf->joins; joins > 0; joins--) lane_join(lane, n, waiting[--depth]);
        if (k + 1 < lanes)
            lane_store(lane, n, waiting[depth++]);
        else {
            lane_join(lane, n, sums);
            lane_store(lane, n, sums);
        }
    }
}

#define TILE(name, n, has_groups, has_minimum)                                                             \
    static void name##_##n(const struct code_panel *panel, const struct code_input *x, size_t block_count, \
                           unsigned offset_shift, float *restrict sums) {                                  \
        const struct tile_kind kind = {has_groups, has_minimum, offset_shift};                             \
        tile_multiply(panel, x, block_count, n, kind, sums);                                               \
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

static void tile_run(const struct panel_kernel *kernel, const void *panel, const void *input, size_t block_count,
                     size_t inputs, float *sums) {
    tile_function *tile = tiles[kernel->code.has_groups][kernel->code.has_minimum][inputs];
    tile(panel, input, block_count, kernel->code.offset_shift, sums);
}

/* Unpacks, and turns the integer scales of groups into floats in their place. */
static void unpack(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count, size_t half,
                   void *panel) {
    size_t block_count = column_count / PANEL_COLUMNS;
    kernel->code.unpack(row, block_count, half, panel);
    if (!kernel->code.has_groups || kernel->code.has_factors) return;
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

static void prepare(const float *x, size_t x_stride, size_t input_count, size_t columns, size_t input_begin,
                    size_t input_end, void *prepared) {
    code_inputs_prepare(x, x_stride, input_count, columns, false, input_begin, input_end, prepared);
}

void matmul_int8_avx512_install(struct matmul_kernels *kernels) {
    struct matmul_method method = kernels->method[TENSOR_Q4_0]; /* the inputs are AVX2's but for their sums */
    ASSERT(method.form == MATMUL_FORM_I8_PAIRS);
    method.form = MATMUL_FORM_I8_TOTALS;
    method.prepare = prepare;
    method.row_granule = TILE_PANELS * PANEL_ROWS;
    method.run = run;
    for (size_t type = 0; type < MATMUL_TYPES; type++)
        if (code_layout_find((enum tensor_type)type).unpack != NULL ||
            code_layout_find_bytes((enum tensor_type)type).unpack != NULL)
            kernels->method[type] = method;
}

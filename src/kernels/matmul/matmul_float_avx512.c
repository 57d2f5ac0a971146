/* matmul for F32, F16 and BF16 weights on AVX-512: float, tiles of 32 rows x 6 inputs.
 *
 * The panels and inputs of matmul_float_avx2.c; two panels at a time.  Per column 2 loads of weights,
 * 6 broadcasts and 12 FMAs into 12 registers.  Bound: the two FMA ports.  Not measured on hardware yet;
 * the source is tested on SIMDe.
 */
#include "base/assert.h"
#include "kernels/matmul/matmul_float_tiles.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"
#include "kernels/vector.h"

enum { TILE_ROWS = 2 * PANEL_ROWS };

static inline __attribute__((always_inline)) void tile_multiply(const struct float_panel *panel,
                                                                const float *x, size_t block_count, size_t n,
                                                                float *restrict sums) {
    __m512 acc[TILE_INPUTS][2];
    VECTOR_UNROLL(6)
    for (size_t i = 0; i < n; i++) {
        acc[i][0] = _mm512_load_ps(sums + i * TILE_ROWS);
        acc[i][1] = _mm512_load_ps(sums + i * TILE_ROWS + PANEL_ROWS);
    }
    const float *first = panel->values[0], *second = panel[FLOAT_RUN_BLOCKS].values[0];
    for (size_t c = 0; c < block_count * PANEL_COLUMNS; c++, x += n) {
        __m512 low = _mm512_load_ps(first + c * PANEL_ROWS), high = _mm512_load_ps(second + c * PANEL_ROWS);
        VECTOR_UNROLL(6)
        for (size_t i = 0; i < n; i++) {
            __m512 input = _mm512_set1_ps(x[i]);
            acc[i][0] = _mm512_fmadd_ps(low, input, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(high, input, acc[i][1]);
        }
    }
    VECTOR_UNROLL(6)
    for (size_t i = 0; i < n; i++) {
        _mm512_store_ps(sums + i * TILE_ROWS, acc[i][0]);
        _mm512_store_ps(sums + i * TILE_ROWS + PANEL_ROWS, acc[i][1]);
    }
}

static void run(const struct matmul_args *args) {
    float_tiles_run(args, TILE_ROWS, float_unpack_find(args->weight->type));
}

void matmul_float_avx512_init(struct matmul_kernels *kernels) {
    static const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) { /* the inputs are AVX2's */
        ASSERT(kernels->method[types[t]].form == MATMUL_FORM_F32_TILES);
        kernels->method[types[t]].row_granule = TILE_ROWS;
        kernels->method[types[t]].run = run;
    }
}

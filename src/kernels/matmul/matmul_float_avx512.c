/* matmul for F32, F16 and BF16 weights on AVX-512: float, tiles of 32 rows x 6 inputs.
 *
 * The panels and inputs of matmul_float_avx2.c; two panels at a time.  Per column 2 loads of weights,
 * 6 broadcasts and 12 FMAs into 12 registers.  Bound: the two FMA ports.  Not measured on hardware yet;
 * the source is tested on SIMDe.
 */
#define FLOATS_512
#include "base/assert.h"
#include "kernels/matmul/matmul_float_tiles.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"

static void run(const struct matmul_args *args) { float_tiles_run(args, float_unpack_find(args->weight->type)); }

void matmul_float_avx512_install(struct matmul_kernels *kernels) {
    static const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) { /* the inputs are AVX2's */
        ASSERT(kernels->method[types[t]].form == MATMUL_FORM_F32_TILES);
        kernels->method[types[t]].row_granule = TILE_ROWS;
        kernels->method[types[t]].run = run;
    }
}

/* matmul for every weight type on 64-bit ARM: everything in float, tiles of 16 rows x 6 inputs.
 *
 * Mapping: as in matmul_float_avx2.c; quantised rows become floats first, by convert, a run of 256 columns at a
 * time (1 / inputs of the multiplications).  Per column 4 loads of weights, 6 broadcasts and 24 FMAs into 24
 * of the 32 registers.  Bound: the FMA pipes.  Not measured on hardware; tested under emulation.
 */
#include "base/checked.h"
#include "kernels/convert/convert.h"
#include "kernels/floats.h"
#include "kernels/matmul/matmul_float_tiles.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"

enum { RUN_COLUMNS = FLOAT_RUN_BLOCKS * PANEL_COLUMNS };

/* 8 rows of column_count columns as floats, then 8 x 8 at a time; the panels are padded with zeros. */
static void rows_unpack(enum tensor_type type, const uint8_t *const row[8], size_t column_count, size_t half,
                        void *panel) {
    struct convert_kernels convert;
    convert_ref_install(&convert);
    float value[8][RUN_COLUMNS];
    size_t padded = align_up(column_count, PANEL_COLUMNS);
    for (size_t r = 0; r < 8; r++) {
        convert.dequantize[type](row[r], value[r], column_count);
        for (size_t c = column_count; c < padded; c++) value[r][c] = 0;
    }
    float *target = (float *)panel + half * 8;
    for (size_t c = 0; c < padded; c += 8, target += (size_t)8 * PANEL_ROWS) {
        floats8 x[8];
        FLOATS_UNROLL
        for (size_t r = 0; r < 8; r++) x[r] = floats8_load(value[r] + c);
        floats8_transpose(x);
        FLOATS_UNROLL
        for (size_t i = 0; i < 8; i++) floats8_store(target + i * PANEL_ROWS, x[i]);
    }
}

/* One pair of functions per type: what unpacks has no other way to know it. */
#define METHOD(type)                                                                                               \
    static void unpack_##type(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count, \
                              size_t half, void *panel) {                                                          \
        (void)kernel;                                                                                              \
        rows_unpack(TENSOR_##type, row, column_count, half, panel);                                                \
    }                                                                                                              \
    static void run_##type(const struct matmul_args *args) { float_tiles_run(args, unpack_##type); }
#define EACH_TYPE(do_one)                                                                                              \
    do_one(F32) do_one(F16) do_one(BF16) do_one(Q4_0) do_one(Q4_1) do_one(Q5_0) do_one(Q5_1) do_one(Q8_0) do_one(Q2_K) \
        do_one(Q3_K) do_one(Q4_K) do_one(Q5_K) do_one(Q6_K) do_one(IQ4_NL) do_one(IQ4_XS) do_one(MXFP4) do_one(NVFP4)  \
            do_one(IQ1_S) do_one(IQ1_M) do_one(IQ2_XXS) do_one(IQ2_XS) do_one(IQ2_S) do_one(IQ3_XXS) do_one(IQ3_S)
EACH_TYPE(METHOD)

void matmul_float_neon_install(struct matmul_kernels *kernels) {
#define INSTALL(type)                                    \
    kernels->method[TENSOR_##type] = float_tiles_method; \
    kernels->method[TENSOR_##type].run = run_##type;
    EACH_TYPE(INSTALL)
}

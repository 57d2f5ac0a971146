/* matmul for F32, F16 and BF16 weights on AVX2: everything in float, tiles of 16 rows x 6 inputs.
 *
 * Mapping: a panel is 16 rows of floats, column by column; a tile's inputs are interleaved the same way.
 * Per column 2 loads of weights, 6 broadcasts and 12 FMAs into 12 registers that hold the sums over the
 * whole panel.  Bytes: a panel of 256 columns is 16 KiB (L1), the tile's inputs 6 KiB; 0.4 bytes of L1
 * per flop.  Bound: the two FMA pipes; 62 of 73 GFLOP/s (0.85) measured 2026-11-21 at 512 x 2048 x 2048, one
 * thread of a shared Zen 3 virtual machine.
 */
#include <immintrin.h>
#include <string.h>

#include "base/checked.h"
#include "kernels/floats.h"
#include "kernels/matmul/matmul_float_tiles.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matmul/matmul_panel_internal.h"

static inline __m256 f32_get(const void *source) { return _mm256_loadu_ps(source); }
static inline __m256 f16_get(const void *source) { return _mm256_cvtph_ps(_mm_loadu_si128(source)); }
static inline __m256 bf16_get(const void *source) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(source)), 16));
}

/* 8 rows x column_count columns, 8 x 8 at a time; the last columns through a copy, padded with zeros. */
#define UNPACK(name, element_bytes)                                                                                \
    static void name##_unpack(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count, \
                              size_t half, void *panel) {                                                          \
        (void)kernel;                                                                                              \
        float *target = (float *)panel + half * 8;                                                                 \
        for (size_t c = 0; c < align_up(column_count, PANEL_COLUMNS); c += 8, target += (size_t)8 * PANEL_ROWS) {  \
            __m256 v[8];                                                                                           \
            for (size_t r = 0; r < 8; r++) {                                                                       \
                uint8_t copy[8 * (element_bytes)] = {0};                                                           \
                const uint8_t *source = row[r] + c * (element_bytes);                                              \
                if (c + 8 > column_count) {                                                                        \
                    if (c < column_count) memcpy(copy, source, (column_count - c) * (element_bytes));              \
                    source = copy;                                                                                 \
                }                                                                                                  \
                v[r] = name##_get(source);                                                                         \
            }                                                                                                      \
            floats8_transpose(v);                                                                                  \
            for (size_t i = 0; i < 8; i++) _mm256_store_ps(target + i * PANEL_ROWS, v[i]);                         \
        }                                                                                                          \
    }
UNPACK(f32, 4)
UNPACK(f16, 2)
UNPACK(bf16, 2)
#undef UNPACK

float_unpack *float_unpack_find(enum tensor_type type) {
    return type == TENSOR_F32 ? f32_unpack : type == TENSOR_F16 ? f16_unpack : bf16_unpack;
}

static void run(const struct matmul_args *args) { float_tiles_run(args, float_unpack_find(args->weight->type)); }

void matmul_float_avx2_install(struct matmul_kernels *kernels) {
    static const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        kernels->method[types[t]] = float_tiles_method;
        kernels->method[types[t]].run = run;
    }
}

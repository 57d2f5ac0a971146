/* matvec for float weights (F32, F16, BF16), on AVX2.
 *
 * Mapping: a row at a time, in steps of 64 columns, up to 4 inputs on the same weights; 4 chains of fused
 * multiply-adds for one input, 2 for more.  Columns past the last 8 go through a buffer that is filled with zeros.
 * Bound: memory, the row once; the inputs stay in L1. */
#include <immintrin.h>
#include <string.h>

#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_avx2.h"

enum { STEP = 64, CHAINS_MOST = 4 };

typedef __m256 load_function(const uint8_t *w); /* 8 weights */

INLINE __m256 load_f32(const uint8_t *w) { return _mm256_loadu_ps((const float *)(const void *)w); }
INLINE __m256 load_f16(const uint8_t *w) { return _mm256_cvtph_ps(load_128(w)); }
INLINE __m256 load_bf16(const uint8_t *w) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(w)), 16));
}

/* One row times n inputs. */
INLINE void row_times(const uint8_t *w, const float *const *x, size_t columns, size_t n, size_t bytes,
                      load_function *load, float *y, size_t stride) {
    const size_t chains = n == 1 ? 4 : 2;
    __m256 acc[TILE_MOST][CHAINS_MOST];
    UNROLL for (size_t i = 0; i < n; i++) {
        UNROLL for (size_t c = 0; c < CHAINS_MOST; c++) { acc[i][c] = _mm256_setzero_ps(); }
    }
    size_t k = 0;
    for (; k + STEP <= columns; k += STEP) {
        prefetch_lines(w + k * bytes, STEP * bytes);
        UNROLL for (size_t part = 0; part < STEP / 8; part++) {
            __m256 weight = load(w + (k + part * 8) * bytes);
            UNROLL for (size_t i = 0; i < n; i++) {
                __m256 *target = &acc[i][part % chains];
                *target = _mm256_fmadd_ps(weight, _mm256_loadu_ps(x[i] + k + part * 8), *target);
            }
        }
    }
    for (; k + 8 <= columns; k += 8) {
        __m256 weight = load(w + k * bytes);
        UNROLL for (size_t i = 0; i < n; i++) {
            acc[i][0] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(x[i] + k), acc[i][0]);
        }
    }
    if (k < columns) {
        uint8_t last_weights[8 * sizeof(float)] = {0};
        memcpy(last_weights, w + k * bytes, (columns - k) * bytes);
        UNROLL for (size_t i = 0; i < n; i++) {
            float last[8] = {0};
            memcpy(last, x[i] + k, (columns - k) * sizeof *last);
            acc[i][0] = _mm256_fmadd_ps(load(last_weights), _mm256_loadu_ps(last), acc[i][0]);
        }
    }
    UNROLL for (size_t i = 0; i < n; i++) {
        __m256 sum = _mm256_add_ps(_mm256_add_ps(acc[i][0], acc[i][1]), _mm256_add_ps(acc[i][2], acc[i][3]));
        y[i * stride] = sum_lanes(sum);
    }
}

INLINE void run(const struct matvec_args *args, size_t bytes, load_function *load) {
    const struct matrix *weight = args->weight;
    const size_t columns = weight->columns, stride = args->output_stride;
    const size_t input_bytes = (columns * sizeof(float) + 63) / 64 * 64;
    const float *x[MATVEC_INPUTS_MOST];
    for (size_t i = 0; i < args->input_count; i++)
        x[i] = (const float *)(const void *)((const char *)args->inputs + i * input_bytes);
    for (size_t row = args->row_begin; row < args->row_end; row++) {
        const uint8_t *w = (const uint8_t *)weight->data + row * weight->row_bytes;
        for (size_t i = 0; i < args->input_count; i += TILE_MOST) {
            float *y = args->outputs + i * stride + row;
            switch (args->input_count - i) {
            case 1: row_times(w, x + i, columns, 1, bytes, load, y, stride); break;
            case 2: row_times(w, x + i, columns, 2, bytes, load, y, stride); break;
            case 3: row_times(w, x + i, columns, 3, bytes, load, y, stride); break;
            default: row_times(w, x + i, columns, 4, bytes, load, y, stride); break;
            }
        }
    }
}

static void run_f32(const struct matvec_args *args) { run(args, sizeof(float), load_f32); }
static void run_f16(const struct matvec_args *args) { run(args, sizeof(uint16_t), load_f16); }
static void run_bf16(const struct matvec_args *args) { run(args, sizeof(uint16_t), load_bf16); }

void matvec_init_plain_avx2(struct matvec_kernels *kernels) {
    kernels->run[TENSOR_F32] = run_f32;
    kernels->run[TENSOR_F16] = run_f16;
    kernels->run[TENSOR_BF16] = run_bf16;
}

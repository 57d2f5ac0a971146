/* matvec for float weights (F32, F16, BF16), on AVX2.
 *
 * Mapping: rows in steps of 64 columns, up to 4 rows that lie far apart (row_streams) or up to 4 inputs on the
 * same weights; a chain of fused multiply-adds per row and input, whatever their counts: 8 lanes, added up after every
 * span of columns, which is matmul's order (kernels/span.h).  Columns past the last 8 go through a buffer that is
 * filled with zeros.
 * Bound: memory, the row once; the inputs stay in L1. */
#include <immintrin.h>
#include <string.h>

#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_avx2.h"

enum { STEP = 64, TILE = 4 };

typedef __m256 load_function(const uint8_t *w); /* 8 weights */

INLINE __m256 load_f32(const uint8_t *w) { return _mm256_loadu_ps((const float *)(const void *)w); }
INLINE __m256 load_f16(const uint8_t *w) { return _mm256_cvtph_ps(load_128(w)); }
INLINE __m256 load_bf16(const uint8_t *w) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(w)), 16));
}

/* What is left of a row's columns after the last step: by 8, the last ones filled up with zeros. */
INLINE void add_rest(const uint8_t *w, const float *const *x, size_t k, size_t columns, size_t n, size_t bytes,
                     load_function *load, __m256 acc[TILE_MAX]) {
    for (; k + 8 <= columns; k += 8) {
        __m256 weight = load(w + k * bytes);
        UNROLL for (size_t i = 0; i < n; i++) { acc[i] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(x[i] + k), acc[i]); }
    }
    if (k == columns) return;
    uint8_t last_weights[8 * sizeof(float)] = {0};
    memcpy(last_weights, w + k * bytes, (columns - k) * bytes);
    UNROLL for (size_t i = 0; i < n; i++) {
        float last[8] = {0};
        memcpy(last, x[i] + k, (columns - k) * sizeof *last);
        acc[i] = _mm256_fmadd_ps(load(last_weights), _mm256_loadu_ps(last), acc[i]);
    }
}

/* Columns [k, end) of `streams` rows, `apart_bytes` from each other, times n inputs. */
INLINE void span_times(const uint8_t *w, size_t apart_bytes, const float *const *x, size_t k, size_t end, size_t n,
                       size_t streams, size_t bytes, load_function *load, __m256 acc[STREAMS_MAX][TILE_MAX]) {
    for (; k + STEP <= end; k += STEP) {
        UNROLL for (size_t s = 0; s < streams; s++) { prefetch_lines(w + s * apart_bytes + k * bytes, STEP * bytes); }
        UNROLL for (size_t part = 0; part < STEP / 8; part++) {
            UNROLL for (size_t s = 0; s < streams; s++) {
                __m256 weights = load(w + s * apart_bytes + (k + part * 8) * bytes);
                UNROLL for (size_t i = 0; i < n; i++) {
                    acc[s][i] = _mm256_fmadd_ps(weights, _mm256_loadu_ps(x[i] + k + part * 8), acc[s][i]);
                }
            }
        }
    }
    if (k == end) return;
    UNROLL for (size_t s = 0; s < streams; s++) { add_rest(w + s * apart_bytes, x, k, end, n, bytes, load, acc[s]); }
}

/* `streams` rows, `apart` rows from each other, times n inputs. */
INLINE void float_set_times(const struct matrix *weight, size_t row, size_t apart, const float *const *x, size_t n,
                            size_t streams, size_t bytes, load_function *load, float *y, size_t stride) {
    const size_t columns = weight->columns, apart_bytes = apart * weight->row_bytes;
    const uint8_t *w = (const uint8_t *)weight->data + row * weight->row_bytes;
    __m256 acc[STREAMS_MAX][TILE_MAX];
    float totals[STREAMS_MAX * TILE] = {0};
    for (size_t begin = 0; begin < columns; begin += SPAN_FLOAT_COLUMNS) {
        const size_t end = columns - begin < SPAN_FLOAT_COLUMNS ? columns : begin + SPAN_FLOAT_COLUMNS;
        UNROLL for (size_t s = 0; s < streams; s++) {
            UNROLL for (size_t i = 0; i < n; i++) { acc[s][i] = row_zero(); }
        }
        span_times(w, apart_bytes, x, begin, end, n, streams, bytes, load, acc);
        span_add(acc, streams, n, totals);
    }
    UNROLL for (size_t s = 0; s < streams; s++) {
        UNROLL for (size_t i = 0; i < n; i++) { y[i * stride + row + s * apart] = totals[s * n + i]; }
    }
}

/* Rows [begin, begin + streams · count), in sets of `streams` that lie `count` rows apart, times all inputs. */
INLINE void float_rows_times(const struct matvec_args *args, const float *const *x, size_t begin, size_t count,
                             size_t streams, size_t bytes, load_function *load) {
    const struct matrix *weight = args->weight;
    const size_t stride = args->output_stride;
    for (size_t row = begin; row < begin + count; row++)
        for (size_t i = 0; i < args->input_count; i += TILE) {
            float *y = args->outputs + i * stride;
            if (streams == 4) {
                float_set_times(weight, row, count, x, 1, streams, bytes, load, y, stride);
                continue;
            }
            switch (args->input_count - i) {
            case 1: float_set_times(weight, row, count, x + i, 1, streams, bytes, load, y, stride); break;
            case 2: float_set_times(weight, row, count, x + i, 2, streams, bytes, load, y, stride); break;
            case 3: float_set_times(weight, row, count, x + i, 3, streams, bytes, load, y, stride); break;
            default: float_set_times(weight, row, count, x + i, 4, streams, bytes, load, y, stride); break;
            }
        }
}

INLINE void run(const struct matvec_args *args, size_t bytes, load_function *load) {
    const size_t input_bytes = (args->weight->columns * sizeof(float) + 63) / 64 * 64;
    const float *x[MATVEC_INPUTS_MAX];
    for (size_t i = 0; i < args->input_count; i++)
        x[i] = (const float *)(const void *)((const char *)args->inputs + i * input_bytes);
    const size_t streams = row_streams(args->input_count, 2);
    const size_t count = (args->row_end - args->row_begin) / streams;
    if (streams == 4)
        float_rows_times(args, x, args->row_begin, count, 4, bytes, load);
    else if (streams == 2)
        float_rows_times(args, x, args->row_begin, count, 2, bytes, load);
    else
        float_rows_times(args, x, args->row_begin, count, 1, bytes, load);
    const size_t done = args->row_begin + streams * count;
    if (done < args->row_end) float_rows_times(args, x, done, args->row_end - done, 1, bytes, load);
}

static void run_f32(const struct matvec_args *args) { run(args, sizeof(float), load_f32); }
static void run_f16(const struct matvec_args *args) { run(args, sizeof(uint16_t), load_f16); }
static void run_bf16(const struct matvec_args *args) { run(args, sizeof(uint16_t), load_bf16); }

void matvec_plain_avx2_install(struct matvec_kernels *kernels) {
    kernels->run[TENSOR_F32] = run_f32;
    kernels->run[TENSOR_F16] = run_f16;
    kernels->run[TENSOR_BF16] = run_bf16;
}

/* rows_avx2: the loop over rows, groups of 256 weights and inputs that the AVX2 variants of matvec share.
 *
 * Written once and specialised by constant arguments (so everything here must be inlined): a variant gives
 * the function that adds one group of a row, times n inputs, to the accumulators. */
#ifndef LOAM_KERNELS_MATVEC_ROWS_AVX2_H
#define LOAM_KERNELS_MATVEC_ROWS_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/matvec/matvec_internal.h"

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum {
    TILE_MOST = 4, /* inputs that share the unpacked codes of a group in registers */
    GROUP_BYTES_MOST = 8 * 34,
};

/* How far ahead of its use a row's memory is asked for.  Rows lie one after another, so this runs into the
 * next row; past the last row it asks for what is not used, which is harmless. */
enum { PREFETCH_AHEAD = 2048 };

INLINE __m128i load_128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE __m256i load_256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

INLINE void prefetch_lines(const uint8_t *w, size_t bytes) {
    UNROLL for (size_t line = 0; line < bytes; line += 64) {
        _mm_prefetch((const char *)w + PREFETCH_AHEAD + line, _MM_HINT_T0);
    }
}

INLINE float sum_lanes(__m256 v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    half = _mm_add_ss(half, _mm_movehdup_ps(half));
    return _mm_cvtss_f32(half);
}

struct row_kind {
    size_t block_bytes, group_blocks; /* of the weight; a group is 256 weights */
    size_t input_group_bytes;
};

/* Adds one group of a row, at w, times n inputs, at x[i], to acc[i] or acc[TILE_MOST + i] (the row's sum is
 * that of all lanes of both). */
typedef void group_function(const uint8_t *w, const void *const *x, size_t n, __m256 *acc);

/* Rows [begin, end) times n inputs; y[i·stride + row]. */
INLINE void rows_times(const struct matvec_args *args, const uint8_t *const *inputs, float *y, size_t n,
                       size_t begin, size_t end, group_function *group, struct row_kind kind) {
    const struct matrix *weight = args->weight;
    const size_t group_bytes = kind.block_bytes * kind.group_blocks, groups = weight->columns / INPUT_GROUP;
    const size_t rest = weight->columns % INPUT_GROUP * kind.group_blocks / INPUT_GROUP * kind.block_bytes;
    const uint8_t *row_data = (const uint8_t *)weight->data + begin * weight->row_bytes;
    for (size_t row = begin; row < end; row++, row_data += weight->row_bytes) {
        const uint8_t *w = row_data, *const w_end = w + groups * group_bytes;
        const void *x[TILE_MOST];
        __m256 acc[2 * TILE_MOST];
        UNROLL for (size_t i = 0; i < n; i++) {
            x[i] = inputs[i];
            acc[i] = acc[TILE_MOST + i] = _mm256_setzero_ps();
        }
        for (; w < w_end; w += group_bytes) {
            prefetch_lines(w, group_bytes);
            group(w, x, n, acc);
            UNROLL for (size_t i = 0; i < n; i++) { x[i] = (const uint8_t *)x[i] + kind.input_group_bytes; }
        }
        if (kind.group_blocks > 1 && rest != 0) { /* the last group, filled up with blocks that are zero */
            uint8_t copy[GROUP_BYTES_MOST] = {0};
            memcpy(copy, w, rest);
            group(copy, x, n, acc);
        }
        UNROLL for (size_t i = 0; i < n; i++) {
            y[i * args->output_stride + row] = sum_lanes(_mm256_add_ps(acc[i], acc[TILE_MOST + i]));
        }
    }
}

INLINE void rows_run(const struct matvec_args *args, group_function *group, struct row_kind kind) {
    const size_t groups = (args->weight->columns + INPUT_GROUP - 1) / INPUT_GROUP;
    const uint8_t *x[MATVEC_INPUTS_MOST];
    for (size_t i = 0; i < args->input_count; i++)
        x[i] = (const uint8_t *)args->inputs + i * groups * kind.input_group_bytes;
    /* More inputs than a tile: row by row, so that the second tile finds the row in L1. */
    size_t step = args->input_count <= TILE_MOST ? args->row_end - args->row_begin : 1;
    for (size_t row = args->row_begin; row < args->row_end; row += step)
        for (size_t i = 0; i < args->input_count; i += TILE_MOST) {
            float *y = args->outputs + i * args->output_stride;
            switch (args->input_count - i) {
            case 1: rows_times(args, x + i, y, 1, row, row + step, group, kind); break;
            case 2: rows_times(args, x + i, y, 2, row, row + step, group, kind); break;
            case 3: rows_times(args, x + i, y, 3, row, row + step, group, kind); break;
            default: rows_times(args, x + i, y, 4, row, row + step, group, kind); break;
            }
        }
}

#endif

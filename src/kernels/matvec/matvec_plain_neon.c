/* matvec for float weights (F32, F16, BF16), on 64-bit ARM.
 *
 * Mapping: a row at a time, 16 columns a step in two chains of fused multiply-adds on pairs of registers, up to 4
 * inputs on the same weights.  Columns past the last 8 go through a buffer filled with zeros.
 * Bound: memory, the row once.  Not measured on hardware; tested under emulation. */
#include <string.h>

#include "kernels/floats.h"
#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_inline.h"

enum { TILE = 4 }; /* inputs on the same weights */

typedef floats load_function(const uint8_t *w); /* FLOATS weights */

FLOATS_INLINE floats load_f32(const uint8_t *w) { return floats_load((const float *)(const void *)w); }
FLOATS_INLINE floats load_f16(const uint8_t *w) { return floats_load_half(w); }
FLOATS_INLINE floats load_bf16(const uint8_t *w) {
    uint16x8_t bits = vreinterpretq_u16_u8(vld1q_u8(w));
    return (floats){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
                    vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16))};
}

/* One row times n inputs. */
FLOATS_INLINE void row_times(const uint8_t *w, const float *const *x, size_t columns, const size_t n,
                             const size_t bytes, load_function *load, float *y, size_t stride) {
    enum { CHAINS = 2 }; /* however many inputs: one alone and the same among others give the same bits */
    floats acc[TILE][CHAINS];
    UNROLL for (size_t i = 0; i < n; i++) {
        UNROLL for (size_t c = 0; c < CHAINS; c++) { acc[i][c] = floats_set(0); }
    }
    size_t k = 0;
    for (; k + CHAINS * FLOATS <= columns; k += CHAINS * FLOATS) {
        prefetch_lines(w + k * bytes, CHAINS * FLOATS * bytes);
        UNROLL for (size_t c = 0; c < CHAINS; c++) {
            floats weight = load(w + (k + c * FLOATS) * bytes);
            UNROLL for (size_t i = 0; i < n; i++) {
                acc[i][c] = floats_fma(weight, floats_load(x[i] + k + c * FLOATS), acc[i][c]);
            }
        }
    }
    for (; k < columns; k += FLOATS) {
        uint8_t last_weights[FLOATS * sizeof(float)] = {0};
        const size_t count = columns - k < FLOATS ? columns - k : FLOATS;
        memcpy(last_weights, w + k * bytes, count * bytes);
        UNROLL for (size_t i = 0; i < n; i++) {
            float last[FLOATS] = {0};
            memcpy(last, x[i] + k, count * sizeof *last);
            acc[i][0] = floats_fma(load(last_weights), floats_load(last), acc[i][0]);
        }
    }
    UNROLL for (size_t i = 0; i < n; i++) { y[i * stride] = floats_sum(floats_add(acc[i][0], acc[i][1])); }
}

FLOATS_INLINE void run(const struct matvec_args *args, const size_t bytes, load_function *load) {
    const struct matrix *weight = args->weight;
    const size_t columns = weight->columns, stride = args->output_stride;
    const size_t input_bytes = (columns * sizeof(float) + 63) / 64 * 64;
    const float *x[MATVEC_INPUTS_MAX];
    for (size_t i = 0; i < args->input_count; i++)
        x[i] = (const float *)(const void *)((const char *)args->inputs + i * input_bytes);
    for (size_t row = args->row_begin; row < args->row_end; row++) {
        const uint8_t *w = (const uint8_t *)weight->data + row * weight->row_bytes;
        for (size_t i = 0; i < args->input_count; i += TILE) {
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

void matvec_plain_neon_install(struct matvec_kernels *kernels) {
    kernels->run[TENSOR_F32] = run_f32;
    kernels->run[TENSOR_F16] = run_f16;
    kernels->run[TENSOR_BF16] = run_bf16;
}

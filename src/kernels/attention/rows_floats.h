/* What decode and gather have in common over `floats`: elements of rows, tiles of the outputs, partials that begin and
 * end, and the shapes that are constants. */
#pragma once

#include "kernels/attention/attention_internal.h"
#include "kernels/attention/softmax_floats.h"
#include "tensor/half.h"

/* A row's dimension and type, as constants if the caller knows them. */
struct rows_shape {
    enum kv_type k_type, v_type;
    size_t k_dimension, v_dimension;
};

FLOATS_INLINE size_t rows_element_bytes(const enum kv_type type) {
    return type == KV_Q8 ? sizeof(int8_t) : sizeof(uint16_t);
}

/* A row's elements from d on.  scale: Q8. */
FLOATS_INLINE floats rows_load(const enum kv_type type, const uint8_t *row, size_t d, floats scale) {
    if (type == KV_F16) return floats_load_half(row + d * sizeof(uint16_t));
    return floats_multiply(floats_load_int8(row + d), scale);
}

/* sum[heads][vectors] of o[head][vectors registers], and back. */
FLOATS_INLINE void outputs_load(const size_t heads, const size_t vectors, const float *o, size_t o_stride,
                                floats *sum) {
    FLOATS_UNROLL
    for (size_t head = 0; head < heads; head++) FLOATS_UNROLL
    for (size_t n = 0; n < vectors; n++) sum[head * vectors + n] = floats_load(o + head * o_stride + n * FLOATS);
}

FLOATS_INLINE void outputs_store(const size_t heads, const size_t vectors, const floats *sum, float *o,
                                 size_t o_stride) {
    FLOATS_UNROLL
    for (size_t head = 0; head < heads; head++) FLOATS_UNROLL
    for (size_t n = 0; n < vectors; n++) floats_store(o + head * o_stride + n * FLOATS, sum[head * vectors + n]);
}

/* Of a group's heads: partials of no row yet, s [group][FLOATS]; and the sums over the places of s. */
FLOATS_INLINE void partials_begin(size_t group, const size_t v_dimension, float *m, float *s, float *o,
                                  size_t o_stride) {
    for (size_t head = 0; head < group; head++) {
        m[head] = -INFINITY;
        floats_store(s + head * FLOATS, floats_set(0));
        for (size_t d = 0; d < v_dimension; d++) o[head * o_stride + d] = 0;
    }
}

FLOATS_INLINE void partials_end(size_t group, const float *s, float *sums) {
    for (size_t head = 0; head < group; head++) sums[head] = floats_sum(floats_load(s + head * FLOATS));
}

/* NAME_floats, of NAME_shaped: the dimensions of most models are constants; other dimensions and mixed types are
 * variables. */
#define ROWS_SHAPES(NAME)                                                                                        \
    FLOATS_INLINE void NAME##_typed(const enum kv_type k_type, const enum kv_type v_type,                        \
                                    const struct attention_##NAME##_args *args) {                                \
        const size_t k = args->layout->k_dimension, v = args->layout->v_dimension;                               \
        if (k_type == v_type && k == 64 && v == 64)                                                              \
            NAME##_shaped((struct rows_shape){k_type, v_type, 64, 64}, args);                                    \
        else if (k_type == v_type && k == 128 && v == 128)                                                       \
            NAME##_shaped((struct rows_shape){k_type, v_type, 128, 128}, args);                                  \
        else                                                                                                     \
            NAME##_shaped((struct rows_shape){k_type, v_type, k, v}, args);                                      \
    }                                                                                                            \
    static void NAME##_f16(const struct attention_##NAME##_args *args) { NAME##_typed(KV_F16, KV_F16, args); }   \
    static void NAME##_q8(const struct attention_##NAME##_args *args) { NAME##_typed(KV_Q8, KV_Q8, args); }      \
    static void NAME##_f16_q8(const struct attention_##NAME##_args *args) { NAME##_typed(KV_F16, KV_Q8, args); } \
    static void NAME##_q8_f16(const struct attention_##NAME##_args *args) { NAME##_typed(KV_Q8, KV_F16, args); } \
    static void NAME##_floats(const struct attention_##NAME##_args *args) {                                      \
        FLOATS_FILL(kv_rows_fill(args->layout, FLOATS), attention, attention_##NAME, NAME, args)                 \
        if (args->layout->k_type == KV_F16)                                                                      \
            (args->layout->v_type == KV_F16 ? NAME##_f16 : NAME##_f16_q8)(args);                                 \
        else                                                                                                     \
            (args->layout->v_type == KV_F16 ? NAME##_q8_f16 : NAME##_q8)(args);                                  \
    }

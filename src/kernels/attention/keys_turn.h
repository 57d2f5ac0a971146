/* keys_turn: rows of K turned into columns of floats: column d is at target + d * stride. */
#pragma once

#include "kernels/attention/kv_layout.h"
#include "kernels/floats.h"
#include "tensor/half.h"

/* The 8 rows of a block, where `load` gives elements d .. d + 7 of row i. */
#define KEYS_TURN_8(load, dimension, target, stride)                                       \
    for (size_t d = 0; d < (dimension); d += 8) {                                          \
        floats8 x[8];                                                                      \
        FLOATS_UNROLL                                                                      \
        for (size_t i = 0; i < 8; i++) x[i] = (load);                                      \
        floats8_transpose(x);                                                              \
        FLOATS_UNROLL                                                                      \
        for (size_t i = 0; i < 8; i++) floats8_store((target) + (d + i) * (stride), x[i]); \
    }

FLOATS_INLINE void keys_turn_q8(const struct kv_layout *layout, const void *chunk, size_t token, float *target,
                                const size_t stride) {
    const uint8_t *row = kv_k_row(layout, chunk, token);
    const uint16_t *scales = kv_k_scales(layout, chunk, token);
    const size_t parts = layout->k_dimension / KV_SCALE_GROUP;
    KEYS_TURN_8(floats8_scale(floats8_load_int8(row + i * layout->k_row_bytes + d),
                              half_to_float(scales[i * parts + d / KV_SCALE_GROUP])),
                layout->k_dimension, target, stride)
}

#if defined(__aarch64__)
FLOATS_INLINE void keys_turn_f16(const struct kv_layout *layout, const uint8_t *block, float *target,
                                 const size_t stride) {
    KEYS_TURN_8(floats8_load_half(block + i * layout->k_row_bytes + d * sizeof(uint16_t)), layout->k_dimension, target,
                stride)
}
#else
#if defined(FLOATS_512)
typedef __m512i keys_register;
#define KEYS_LOAD(p)      _mm512_loadu_si512(p)
#define KEYS_LOW(x, y)    _mm512_unpacklo_epi16(x, y)
#define KEYS_HIGH(x, y)   _mm512_unpackhi_epi16(x, y)
#define KEYS_HALF(x)      _mm512_castsi512_si256(x)
#define KEYS_OTHER(x)     _mm512_extracti64x4_epi64(x, 1)
#define KEYS_FLOATS(half) _mm512_cvtph_ps(half)
#else
typedef __m256i keys_register;
#define KEYS_LOAD(p)      _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define KEYS_LOW(x, y)    _mm256_unpacklo_epi16(x, y)
#define KEYS_HIGH(x, y)   _mm256_unpackhi_epi16(x, y)
#define KEYS_HALF(x)      _mm256_castsi256_si128(x)
#define KEYS_OTHER(x)     _mm256_extracti128_si256(x, 1)
#define KEYS_FLOATS(half) _mm256_cvtph_ps(half)
#endif

/* Squares of 8 x 8 halves, one in each 128 bits of the registers: three times, the rows of the first four are
 * interleaved with those of the last four. */
FLOATS_INLINE void keys_turn_squares(keys_register x[8]) {
    keys_register y[8];
    FLOATS_UNROLL
    for (size_t round = 0; round < 3; round++) {
        FLOATS_UNROLL
        for (size_t i = 0; i < 4; i++) {
            y[2 * i] = KEYS_LOW(x[i], x[i + 4]);
            y[2 * i + 1] = KEYS_HIGH(x[i], x[i + 4]);
        }
        FLOATS_UNROLL
        for (size_t i = 0; i < 8; i++) x[i] = y[i];
    }
}

/* Halves d + i and, if they are there, d + 8 + i of FLOATS keys. */
FLOATS_INLINE void keys_turned_store(const keys_register x[8], const int both, float *target, const size_t stride) {
    FLOATS_UNROLL
    for (size_t i = 0; i < 8; i++) floats_store(target + i * stride, KEYS_FLOATS(KEYS_HALF(x[i])));
    if (!both) return;
    FLOATS_UNROLL
    for (size_t i = 0; i < 8; i++) floats_store(target + (8 + i) * stride, KEYS_FLOATS(KEYS_OTHER(x[i])));
}

/* The FLOATS rows that begin with a block.  Of a row whole registers are read: behind the last one is V. */
FLOATS_INLINE void keys_turn_f16(const struct kv_layout *layout, const uint8_t *block, float *target,
                                 const size_t stride) {
    const size_t dimension = layout->k_dimension, row_bytes = layout->k_row_bytes;
    for (size_t d = 0; d < dimension; d += 2 * FLOATS) {
        const uint8_t *row = block + d * sizeof(uint16_t);
        keys_register x[8];
        FLOATS_UNROLL
        for (size_t i = 0; i < 8; i++) x[i] = KEYS_LOAD(row + i * row_bytes);
        keys_turn_squares(x);
#if defined(FLOATS_512) /* the next 8 keys join the squares: those of d and d + 8, and those of d + 16 and d + 24 */
        const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
        keys_register next[8], joined[8];
        FLOATS_UNROLL
        for (size_t i = 0; i < 8; i++) next[i] = KEYS_LOAD(row + layout->block_bytes + i * row_bytes);
        keys_turn_squares(next);
        FLOATS_UNROLL
        for (size_t i = 0; i < 8; i++) joined[i] = _mm512_permutex2var_epi64(x[i], first, next[i]);
        keys_turned_store(joined, 1, target + d * stride, stride);
        if (d + FLOATS >= dimension) break;
        FLOATS_UNROLL
        for (size_t i = 0; i < 8; i++) joined[i] = _mm512_permutex2var_epi64(x[i], second, next[i]);
        keys_turned_store(joined, 1, target + (d + FLOATS) * stride, stride);
#else
        keys_turned_store(x, d + 8 < dimension, target + d * stride, stride);
#endif
    }
}
#endif

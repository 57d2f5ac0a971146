/* encode over `floats`; included by hash_avx2.c, hash_avx512.c and hash_neon.c. */
#include <math.h>

#include "kernels/hash/hash_internal.h"
#include "kernels/project/project_floats.h"

FLOATS_INLINE void encode_inputs(const size_t inputs, const size_t vectors, const struct hash_encode_args *args,
                                 size_t row) {
    const size_t code_bytes = args->bits / 8;
    floats sum[8];
    size_t column = 0;
#define ENCODE_TILE(count)                                                                                           \
    project_tile(inputs, count, args->weights + column, args->bits, args->dimension, args->x + row * args->x_stride, \
                 args->x_stride, sum);                                                                               \
    FLOATS_UNROLL                                                                                                    \
    for (size_t i = 0; i < inputs * (count); i++)                                                                    \
    floats_store_signs(args->codes + (row + i / (count)) * code_bytes + (column + i % (count)*FLOATS) / 8, sum[i])
    for (; column + vectors * FLOATS <= args->bits; column += vectors * FLOATS) { ENCODE_TILE(vectors); }
    for (; column < args->bits; column += FLOATS) { ENCODE_TILE(1); }
#undef ENCODE_TILE
}

static float norm_of(const float *x, size_t dimension) {
    floats sum = floats_set(0);
    size_t d = 0;
    for (; d + FLOATS <= dimension; d += FLOATS) {
        floats value = floats_load(x + d);
        sum = floats_fma(value, value, sum);
    }
    float squares = floats_sum(sum);
    for (; d < dimension; d++) squares += x[d] * x[d];
    return sqrtf(squares);
}

static void hash_encode(const struct hash_encode_args *args) {
    size_t row = 0;
    for (; row + 4 <= args->count; row += 4) encode_inputs(4, 2, args, row);
    for (; row + 2 <= args->count; row += 2) encode_inputs(2, 4, args, row);
    for (; row < args->count; row++) encode_inputs(1, 8, args, row);
    for (size_t i = 0; args->norms != NULL && i < args->count; i++)
        args->norms[i] = norm_of(args->x + i * args->x_stride, args->dimension);
}

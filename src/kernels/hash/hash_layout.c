#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "kernels/hash/hash.h"
#include "tensor/half.h"

void hash_layout_init(struct hash_layout *layout, size_t bits) {
    ASSERT(bits > 0 && bits % 32 == 0 && bits <= HASH_BITS_MAX);
    layout->bits = bits;
    layout->code_bytes = bits / 8;
    layout->norms_offset = layout->code_bytes * KV_CHUNK_TOKENS;
    layout->bytes = layout->norms_offset + KV_CHUNK_TOKENS * sizeof(uint16_t);
}

void hash_store(const struct hash_layout *layout, void *block, size_t token, const uint8_t *code,
                float norm) {
    uint8_t *codes = block;
    ASSERT(token < KV_CHUNK_TOKENS);
    for (size_t byte = 0; byte < layout->code_bytes; byte++)
        codes[byte * KV_CHUNK_TOKENS + token] = code[byte];
    uint16_t *norms = (uint16_t *)(void *)(codes + layout->norms_offset);
    norms[token] = float_to_half(norm > 65504 ? 65504 : norm);
}

void hash_load(const struct hash_layout *layout, const void *block, size_t token, uint8_t *code,
               float *norm) {
    const uint8_t *codes = block;
    ASSERT(token < KV_CHUNK_TOKENS);
    for (size_t byte = 0; byte < layout->code_bytes; byte++)
        code[byte] = codes[byte * KV_CHUNK_TOKENS + token];
    *norm = half_to_float(((const uint16_t *)(const void *)(codes + layout->norms_offset))[token]);
}

/* The step of the uniform quantiser with 2^planes levels that is best for a normal distribution of variance 1. */
static float level_step(size_t planes) {
    static const float steps[] = {1.5958f, 0.9957f, 0.5860f, 0.3352f, 0.1881f, 0.1041f, 0.0569f, 0.0308f};
    const size_t count = sizeof steps / sizeof steps[0];
    return planes <= count ? steps[planes - 1] : steps[count - 1];
}

void hash_levels(const float *x, size_t dimension, size_t bits, uint8_t *code, float *factor) {
    const size_t planes = bits / dimension;
    ASSERT(bits % dimension == 0 && bits <= HASH_BITS_MAX && planes <= HASH_PLANES_MAX);
    double squares = 0, product = 0;
    for (size_t j = 0; j < dimension; j++) squares += (double)x[j] * (double)x[j];
    memset(code, 0, bits / 8);
    *factor = (float)squares;
    if (!(squares > 0 && squares < (double)INFINITY)) return; /* 0, NaN or too large */
    const float inverse = 1 / (level_step(planes) * (float)sqrt(squares / (double)dimension));
    const int half = 1 << (planes - 1);
    for (size_t j = 0; j < dimension; j++) {
        float place = floorf(x[j] * inverse) + (float)half;
        int level = place < 0 ? 0 : place > (float)(2 * half - 1) ? 2 * half - 1 : (int)place;
        product += (double)(2 * level - (2 * half - 1)) * (double)x[j];
        for (size_t p = 0; p < planes; p++)
            code[(p * dimension + j) / 8] |= (uint8_t)((level >> p & 1) << (p * dimension + j) % 8);
    }
    *factor = (float)((double)bits * squares / product);
}

void hash_level_values(const float *x, size_t dimension, size_t bits, float *values) {
    for (size_t p = bits / dimension; p-- > 0;)
        for (size_t j = 0; j < dimension; j++) values[p * dimension + j] = x[j] * (float)(1 << p);
}

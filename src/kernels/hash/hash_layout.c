/* Where codes and norms lie in a chunk's block. */
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

void hash_store(const struct hash_layout *layout, void *block, size_t token, const uint8_t *code, float norm) {
    uint8_t *codes = block;
    ASSERT(token < KV_CHUNK_TOKENS);
    for (size_t byte = 0; byte < layout->code_bytes; byte++) codes[byte * KV_CHUNK_TOKENS + token] = code[byte];
    uint16_t *norms = (uint16_t *)(void *)(codes + layout->norms_offset);
    norms[token] = float_to_half(norm > 65504 ? 65504 : norm);
}

void hash_load(const struct hash_layout *layout, const void *block, size_t token, uint8_t *code, float *norm) {
    const uint8_t *codes = block;
    ASSERT(token < KV_CHUNK_TOKENS);
    for (size_t byte = 0; byte < layout->code_bytes; byte++) code[byte] = codes[byte * KV_CHUNK_TOKENS + token];
    *norm = half_to_float(((const uint16_t *)(const void *)(codes + layout->norms_offset))[token]);
}

/* key_sample: a few keys of each chunk, drawn at random and kept with the chunk's key index.
 *
 * They are in RAM even where the chunk is on disk, and are saved and opened with the chunk.  They are drawn by layer,
 * KV head and chunk, whatever their values, and each set of tokens is equally likely.  So an estimate from them for the
 * keys that were not read is unbiased.
 *
 *   block + sample_offset   [sample_count][k_dimension] halves, then [sample_count] bytes: the tokens, ascending
 */
#pragma once

#include "base/random.h"
#include "device/device.h"

static inline size_t key_sample_bytes(size_t sample_count, size_t k_dimension) {
    return sample_count * (k_dimension * sizeof(uint16_t) + 1);
}

static inline uint16_t *key_sample_keys(const struct key_index_layout *layout, const void *block) {
    return (uint16_t *)(uintptr_t)((const uint8_t *)block + layout->sample_offset);
}

static inline uint8_t *key_sample_tokens(const struct key_index_layout *layout, size_t k_dimension, const void *block) {
    return (uint8_t *)(key_sample_keys(layout, block) + layout->sample_count * k_dimension);
}

/* tokens: [count], ascending, of the KV_CHUNK_TOKENS of a chunk. */
static inline void key_sample_draw(uint8_t *tokens, size_t count, size_t layer_index, size_t kv_head, uint64_t chunk) {
    struct random random;
    size_t drawn = 0;
    random_init(&random, ((uint64_t)layer_index << 48) ^ ((uint64_t)kv_head << 36) ^ chunk);
    for (size_t token = 0; drawn < count; token++)
        if (random_below(&random, KV_CHUNK_TOKENS - token) < count - drawn) tokens[drawn++] = (uint8_t)token;
}

/* product_codes: what lies beside a chunk of KEY_INDEX_PRODUCT (PQCache's product quantization of keys).
 *
 * A key is cut into `partitions` parts; a token has a code of one byte for each, which names the nearest of the
 * centroids of its part.  The codebook of a chunk is the centroids of the last codebook_chunks chunks, its own
 * included: each chunk brings `centroids` of them for each part, fitted to its own keys where the ones before are far
 * away.  So a block depends on its own chunk's keys and the blocks before it, and comes with the chunk's last token.
 *
 *   [partitions][centroids][k_dimension / partitions] halves, then [partitions][KV_CHUNK_TOKENS] codes
 *
 * Code c is the centroid c from the end of the codebook: 0 is the last one of the chunk itself. */
#pragma once

#include "device/device.h"

enum { PRODUCT_BITS_MAX = 8, PRODUCT_PARTITIONS_MAX = 16 };

static inline size_t product_centroid_bytes(const struct product_layout *layout, size_t k_dimension) {
    return layout->centroids * k_dimension * sizeof(uint16_t);
}

static inline size_t product_bytes(const struct product_layout *layout, size_t k_dimension) {
    return product_centroid_bytes(layout, k_dimension) + layout->partitions * KV_CHUNK_TOKENS;
}

static inline uint16_t *product_centroids(const struct product_layout *layout, const void *block, size_t k_dimension,
                                          size_t partition) {
    return (uint16_t *)(uintptr_t)block + partition * layout->centroids * (k_dimension / layout->partitions);
}

static inline uint8_t *product_codes(const struct product_layout *layout, const void *block, size_t k_dimension,
                                     size_t partition) {
    return (uint8_t *)(uintptr_t)block + product_centroid_bytes(layout, k_dimension) + partition * KV_CHUNK_TOKENS;
}

/* The first chunk of the codebook of `chunk`. */
static inline uint64_t product_codebook_first(const struct product_layout *layout, uint64_t chunk) {
    return chunk + 1 > layout->codebook_chunks ? chunk + 1 - layout->codebook_chunks : 0;
}

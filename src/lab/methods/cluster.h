/* cluster: what lies beside a chunk of KEY_INDEX_CLUSTER (RetroInfer's clusters, of one chunk's keys).
 *
 *   [cluster_count][k_dimension] halves   centroids: the means of the clusters' keys
 *   [cluster_count][v_dimension] halves   the means of their values
 *   [cluster_count] bytes                 their sizes; 0: there is none
 *   [KV_CHUNK_TOKENS] bytes               each token's cluster
 */
#pragma once

#include "device/device.h"

enum { CLUSTERS_MAX = 8 };

static inline size_t cluster_bytes(size_t cluster_count, size_t k_dimension, size_t v_dimension) {
    return cluster_count * (k_dimension + v_dimension) * sizeof(uint16_t) + cluster_count + KV_CHUNK_TOKENS;
}

struct cluster_block {
    uint16_t *centroids, *values;
    uint8_t *sizes, *of_tokens;
};

static inline struct cluster_block cluster_block_of(const void *block, size_t cluster_count, size_t k_dimension,
                                                    size_t v_dimension) {
    uint16_t *centroids = (uint16_t *)(uintptr_t)block, *values = centroids + cluster_count * k_dimension;
    uint8_t *sizes = (uint8_t *)(values + cluster_count * v_dimension);
    return (struct cluster_block){centroids, values, sizes, sizes + cluster_count};
}

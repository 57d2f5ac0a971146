/* kv_cache: the chunks of every sequence, in slabs under a budget.
 *
 * Chunks (64 tokens of one KV head of one layer, kernels/attention/kv_layout.h) come from one slab in
 * the device's memory; a sequence holds, per layer, a table of chunk addresses per KV head.
 * The slab is reserved at start and touched only as chunks are used.  Never exceeded: a sequence that
 * does not fit gets STATUS_FULL from kv_sequence_reserve, before any work.
 * Thread: the engine's.
 */
#ifndef LOAM_CACHE_KV_CACHE_H
#define LOAM_CACHE_KV_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

struct kv_cache;
struct kv_sequence;

struct kv_cache_config {
    size_t layer_count;
    size_t kv_head_count; /* of every layer */
    size_t k_dimension, v_dimension;
    enum kv_type k_type, v_type;
    uint64_t token_capacity;  /* tokens over all sequences that the slab must hold; rounded up to chunks */
    size_t sequence_capacity; /* sequences alive at once */
};

enum status kv_cache_create(struct kv_cache **cache, struct device *device,
                            const struct kv_cache_config *config, struct error *error) STATUS_CHECKED;
void kv_cache_destroy(struct kv_cache *cache);
/* Bytes of KV for one token over all layers, chunk layout included. */
uint64_t kv_cache_bytes_per_token(const struct kv_cache_config *config);
uint64_t kv_cache_used_bytes(const struct kv_cache *cache);
uint64_t kv_cache_capacity_bytes(const struct kv_cache *cache);

enum status kv_sequence_create(struct kv_sequence **sequence, struct kv_cache *cache, uint64_t token_capacity,
                               struct error *error) STATUS_CHECKED;
void kv_sequence_destroy(struct kv_sequence *sequence);
/* Makes room for tokens [0, token_count); STATUS_FULL names the bytes missing. */
enum status kv_sequence_reserve(struct kv_sequence *sequence, uint64_t token_count, struct error *error)
    STATUS_CHECKED;
/* Tokens stored; set by the engine after a step. */
uint64_t kv_sequence_length(const struct kv_sequence *sequence);
void kv_sequence_set_length(struct kv_sequence *sequence,
                            uint64_t token_count); /* shorter gives chunks back */
struct kv_view kv_sequence_view(const struct kv_sequence *sequence, size_t layer_index);

#endif

/* The key index of chunks on disk: blocks of the layer that chooses, read when it does. */
#include <string.h>

#include "base/assert.h"
#include "cache/kv_tier_internal.h"
#include "platform/clock.h"

static bool is_on_disk(const struct kv_sequence *sequence, size_t layer) {
    const struct kv_cache_config *config = &sequence->cache->config;
    return config->key_index_on_disk && sequence->key_index != NULL && layer >= config->key_index_layer_first;
}

static uint8_t *open_block(const struct kv_sequence *sequence, size_t layer, size_t head) {
    const struct kv_cache_config *config = &sequence->cache->config;
    return sequence->open_blocks + (layer * config->kv_head_count + head) * config->key_index_bytes;
}

static void *block_at(const struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    ASSERT(chunk < sequence->column_count);
    return kv_key_index_blocks(sequence, layer)[head * sequence->column_capacity + chunk];
}

void kv_sequence_open_key_index(struct kv_sequence *sequence, struct stream *stream, size_t layer_index,
                                uint64_t position_first) {
    const struct kv_cache *cache = sequence->cache;
    if (!is_on_disk(sequence, layer_index)) return;
    size_t *loaded = &sequence->loaded[kv_key_index_place(&cache->config, layer_index)];
    if (*loaded != layer_index + 1) *loaded = 0;
    if (position_first % KV_CHUNK_TOKENS == 0) return; /* a new chunk */
    ASSERT(sequence->open_chunks[layer_index] == position_first / KV_CHUNK_TOKENS);
    for (size_t head = 0; head < cache->config.kv_head_count; head++)
        cache->device->operations->copy(
            stream, block_at(sequence, layer_index, head, position_first / KV_CHUNK_TOKENS),
            open_block(sequence, layer_index, head), cache->config.key_index_bytes);
}

void kv_sequence_keep_key_index(struct kv_sequence *sequence, struct stream *stream, size_t layer_index,
                                uint64_t position_end) {
    const struct kv_cache *cache = sequence->cache;
    if (!is_on_disk(sequence, layer_index) || position_end == 0) return;
    const uint64_t chunk = (position_end - 1) / KV_CHUNK_TOKENS;
    sequence->open_chunks[layer_index] = chunk;
    for (size_t head = 0; head < cache->config.kv_head_count; head++)
        cache->device->operations->copy(stream, open_block(sequence, layer_index, head),
                                        block_at(sequence, layer_index, head, chunk),
                                        cache->config.key_index_bytes);
}

/* Blocks [first, end) of a layer, all in one document, to the entries of [kv head][stride] from chunk `first` on. */
static enum status read_blocks(struct kv_sequence *sequence, struct document *document, size_t layer,
                               uint64_t first, uint64_t end, void *const *blocks, size_t stride,
                               struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    const size_t bytes = config->key_index_bytes;
    if (!document_key_index_written(document, layer, first, end - first))
        TRY(document_flush(document, error));
    for (uint64_t chunk = first; chunk < end;) {
        const uint64_t segment_end = (chunk / TIER_RUN_CHUNKS + 1) * TIER_RUN_CHUNKS;
        const size_t count = (size_t)((segment_end < end ? segment_end : end) - chunk);
        TRY(document_read_key_index_run(document, layer, chunk, count, tier->key_index_run, error));
        for (size_t head = 0; head < config->kv_head_count; head++)
            for (size_t i = 0; i < count; i++)
                memcpy(blocks[head * stride + (chunk - first) + i],
                       tier->key_index_run + (head * TIER_RUN_CHUNKS + i) * bytes, bytes);
        tier->statistics.key_index_read_bytes += config->kv_head_count * count * bytes;
        chunk += count;
    }
    return STATUS_OK;
}

/* Who chooses next, in this step or in the following one. */
static size_t next_layer(const struct kv_cache_config *config, size_t layer) {
    return layer + 1 < config->layer_count ? layer + 1 : config->key_index_layer_first;
}

static enum status load_blocks(struct kv_sequence *sequence, size_t layer, struct error *error) {
    const struct kv_cache *cache = sequence->cache;
    const uint64_t closed = sequence->pages->written[layer], open = sequence->open_chunks[layer];
    void *const *blocks = kv_key_index_blocks(sequence, layer);
    for (size_t i = 0; i < sequence->pages->source_count; i++) {
        const struct page_source *source = &sequence->pages->sources[i];
        const uint64_t end = source->chunk_end < closed ? source->chunk_end : closed;
        if (source->chunk_first >= end) continue;
        TRY(read_blocks(sequence, source->document, layer, source->chunk_first, end,
                        blocks + source->chunk_first, sequence->column_capacity, error));
        document_prefetch_key_index(source->document, next_layer(&cache->config, layer), source->chunk_first,
                                    end - source->chunk_first);
    }
    for (size_t head = 0; head < cache->config.kv_head_count; head++)
        if (open >= closed && open < sequence->column_count)
            memcpy(block_at(sequence, layer, head, open), open_block(sequence, layer, head),
                   cache->config.key_index_bytes);
    return STATUS_OK;
}

enum status kv_sequence_load_key_index(struct kv_sequence *sequence, struct stream *stream,
                                       size_t layer_index, struct error *error) {
    if (!is_on_disk(sequence, layer_index)) return STATUS_OK;
    struct kv_tier *tier = sequence->cache->tier;
    size_t *loaded = &sequence->loaded[kv_key_index_place(&sequence->cache->config, layer_index)];
    if (*loaded == layer_index + 1) return STATUS_OK;
    const uint64_t began = clock_ns();
    *loaded = 0;
    /* Blocks of chunks that grow may still be built. */
    TRY(sequence->cache->device->operations->stream_synchronize(stream, error));
    TRY(load_blocks(sequence, layer_index, error));
    *loaded = layer_index + 1;
    tier->statistics.wait_ns += clock_ns() - began;
    return STATUS_OK;
}

enum status tier_reopen_blocks(struct kv_sequence *sequence, size_t layer, uint64_t chunk,
                               struct error *error) {
    if (!is_on_disk(sequence, layer) || chunk >= sequence->pages->written[layer]) return STATUS_OK;
    struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    struct document *document = tier_document_of(sequence, chunk);
    ASSERT(document != NULL);
    if (!document_key_index_written(document, layer, chunk, 1)) TRY(document_flush(document, error));
    TRY(document_read_key_index_run(document, layer, chunk, 1, tier->key_index_run, error));
    for (size_t head = 0; head < config->kv_head_count; head++)
        memcpy(open_block(sequence, layer, head),
               tier->key_index_run + head * TIER_RUN_CHUNKS * config->key_index_bytes,
               config->key_index_bytes);
    sequence->open_chunks[layer] = chunk;
    return STATUS_OK;
}

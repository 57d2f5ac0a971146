/* The key index of chunks on disk: blocks of the layer that chooses, read when it does. */
#include <string.h>

#include "base/assert.h"
#include "cache/kv_tier_internal.h"
#include "platform/clock.h"

static bool is_on_disk(const struct kv_sequence *sequence, size_t layer) {
    const struct kv_cache_config *config = &sequence->cache->config;
    return config->key_index_on_disk && kv_has_key_index(sequence) && layer >= config->key_index_layer_first &&
           !kv_slides(config, layer);
}

static uint8_t *open_block(const struct kv_sequence *sequence, size_t layer, size_t head) {
    const struct kv_cache_config *config = &sequence->cache->config;
    return sequence->open.blocks + kv_lane(config, layer, head) * config->key_index_bytes;
}

static struct key_index_place *place_of(struct kv_sequence *sequence, size_t layer) {
    return &sequence->places[kv_key_index_place(&sequence->cache->config, layer)];
}

static struct span block_at(const struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    ASSERT(chunk < sequence->column_count);
    return kv_key_index_block(sequence, layer, head, chunk);
}

void kv_sequence_keep_key_index(struct kv_sequence *sequence, struct stream *stream, size_t layer_index,
                                uint64_t position_end) {
    const struct kv_cache *cache = sequence->cache;
    if (!is_on_disk(sequence, layer_index) || position_end == 0) return;
    const uint64_t chunk = (position_end - 1) / KV_CHUNK_TOKENS;
    sequence->open.chunks[layer_index] = chunk;
    for (size_t head = 0; head < kv_heads(&cache->config, layer_index); head++)
        cache->device->operations->download(stream, open_block(sequence, layer_index, head),
                                            block_at(sequence, layer_index, head, chunk),
                                            cache->config.key_index_bytes);
}

static struct span block_of(const struct kv_sequence *sequence, const struct tier_blocks *blocks, size_t i) {
    return block_at(sequence, blocks->layer, blocks->head, blocks->chunk_first + i);
}

/* So many from number i on are neighbours in the key index, as they are in a document. */
static size_t joined_blocks(const struct kv_sequence *sequence, const struct tier_blocks *blocks, size_t i) {
    const size_t bytes = sequence->cache->config.key_index_bytes;
    const struct span first = block_of(sequence, blocks, i);
    size_t joined = 1;
    for (; i + joined < blocks->chunk_count; joined++) {
        const struct span next = block_of(sequence, blocks, i + joined);
        if (next.buffer != first.buffer || next.offset != first.offset + joined * bytes) break;
    }
    return joined;
}

void tier_download_blocks(struct kv_sequence *sequence, const struct tier_blocks *blocks) {
    const struct kv_cache *cache = sequence->cache;
    const size_t bytes = cache->config.key_index_bytes;
    for (size_t i = 0, joined; i < blocks->chunk_count; i += joined) {
        joined = joined_blocks(sequence, blocks, i);
        cache->device->operations->download(cache->tier->stream, blocks->memory + i * bytes,
                                            block_of(sequence, blocks, i), joined * bytes);
    }
}

static void upload_blocks(struct kv_sequence *sequence, const struct tier_blocks *blocks, struct span source) {
    const struct kv_cache *cache = sequence->cache;
    const size_t bytes = cache->config.key_index_bytes;
    for (size_t i = 0, joined; i < blocks->chunk_count; i += joined) {
        joined = joined_blocks(sequence, blocks, i);
        cache->device->operations->copy(cache->tier->stream, block_of(sequence, blocks, i),
                                        span_behind(source, i * bytes), joined * bytes);
    }
}

enum status tier_load_blocks(const struct kv_sequence *sequence, struct document *document,
                             const struct tier_blocks *blocks, struct error *why) {
    for (size_t i = 0, joined; i < blocks->chunk_count; i += joined) {
        joined = blocks->memory != NULL ? blocks->chunk_count : joined_blocks(sequence, blocks, i);
        const struct key_index_read read = {blocks->layer,
                                            blocks->head,
                                            1,
                                            blocks->chunk_first + i,
                                            joined,
                                            blocks->memory != NULL ? blocks->memory
                                                                   : span_host(block_of(sequence, blocks, i))};
        TRY(document_read_key_index(document, &read, why));
    }
    return STATUS_OK;
}

static bool run_is_whole(const struct kv_sequence *sequence, uint64_t chunk, size_t count) {
    return count == KEY_INDEX_RUN && kv_key_index_run_is_whole(sequence, chunk);
}

enum status tier_load_run(const struct kv_sequence *sequence, struct document *document,
                          const struct tier_blocks *blocks, struct error *why) {
    const struct kv_cache_config *config = &sequence->cache->config;
    const size_t heads = kv_heads(config, blocks->layer), bytes = blocks->chunk_count * config->key_index_bytes;
    if (run_is_whole(sequence, blocks->chunk_first, blocks->chunk_count)) {
        const struct key_index_read read = {
            blocks->layer,
            0,
            heads,
            blocks->chunk_first,
            blocks->chunk_count,
            blocks->memory != NULL ? blocks->memory
                                   : span_host(block_at(sequence, blocks->layer, 0, blocks->chunk_first))};
        return document_read_key_index(document, &read, why);
    }
    struct tier_blocks own = *blocks;
    for (own.head = 0; own.head < heads; own.head++) {
        TRY(tier_load_blocks(sequence, document, &own, why));
        if (own.memory != NULL) own.memory += bytes;
    }
    return STATUS_OK;
}

/* The end of the runs from that one on that are whole, and neighbours in the key index; chunk: there is none. */
static uint64_t whole_runs_end(const struct kv_sequence *sequence, size_t layer, uint64_t chunk, uint64_t end) {
    const struct kv_cache_config *config = &sequence->cache->config;
    const struct span first = block_at(sequence, layer, 0, chunk);
    const uint64_t bytes = kv_heads(config, layer) * config->key_index_bytes; /* of a chunk, of all heads */
    uint64_t next = chunk;
    for (; end - next >= KEY_INDEX_RUN && kv_key_index_run_is_whole(sequence, next); next += KEY_INDEX_RUN) {
        const struct span its = block_at(sequence, layer, 0, next);
        if (its.buffer != first.buffer || its.offset != first.offset + (next - chunk) * bytes) break;
    }
    return next;
}

void tier_upload_runs(struct kv_sequence *sequence, const struct tier_blocks *blocks, struct span source) {
    const struct kv_cache *cache = sequence->cache;
    const size_t heads = kv_heads(&cache->config, blocks->layer), bytes = cache->config.key_index_bytes;
    const uint64_t end = blocks->chunk_first + blocks->chunk_count, first_run = blocks->chunk_first / KEY_INDEX_RUN;
    for (uint64_t chunk = blocks->chunk_first, next; chunk < end; chunk = next) {
        const uint64_t chunks = (chunk / KEY_INDEX_RUN - first_run) * KEY_INDEX_RUN;
        const struct span place = span_behind(source, chunks * heads * bytes);
        next = whole_runs_end(sequence, blocks->layer, chunk, end);
        if (next > chunk) {
            cache->device->operations->copy(cache->tier->stream, block_at(sequence, blocks->layer, 0, chunk), place,
                                            (next - chunk) * heads * bytes);
            continue;
        }
        next = min_size((chunk / KEY_INDEX_RUN + 1) * KEY_INDEX_RUN, end);
        struct tier_blocks own = {blocks->layer, 0, chunk, next - chunk, NULL};
        for (; own.head < heads; own.head++)
            upload_blocks(sequence, &own, span_behind(place, own.head * own.chunk_count * bytes));
    }
}

/* Blocks [first, end) of full chunks of a layer, all in one document, to where the view shows them. */
static enum status read_blocks(struct kv_sequence *sequence, struct document *document, size_t layer, uint64_t first,
                               uint64_t end, struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    const size_t heads = kv_heads(&sequence->cache->config, layer);
    struct error why;
    if (!document_key_index_written(document, layer, first, end - first)) TRY(document_flush(document, error));
    for (uint64_t chunk = first; chunk < end;) {
        const uint64_t segment_end = (chunk / KEY_INDEX_RUN + 1) * KEY_INDEX_RUN;
        const size_t count = (size_t)((segment_end < end ? segment_end : end) - chunk);
        if (tier_load_run(sequence, document, &(struct tier_blocks){layer, 0, chunk, count, NULL}, &why) != STATUS_OK)
            return document_key_index_failed(document, &why, error);
        tier->statistics.key_index_read_bytes += heads * count * sequence->cache->config.key_index_bytes;
        chunk += count;
    }
    return STATUS_OK;
}

/* Blocks [first, end) of full chunks of a layer to where the view shows them. */
static enum status read_range(struct kv_sequence *sequence, size_t layer, uint64_t first, uint64_t end,
                              struct error *error) {
    for (size_t i = 0; i < sequence->pages->source_count; i++) {
        const struct page_source *source = &sequence->pages->sources[i];
        const uint64_t from = source->chunk_first > first ? source->chunk_first : first,
                       to = source->chunk_end < end ? source->chunk_end : end;
        if (from < to) TRY(read_blocks(sequence, source->document, layer, from, to, error));
    }
    return STATUS_OK;
}

/* Who chooses next, in this step or in the following one. */
static size_t next_layer(const struct kv_cache_config *config, size_t layer) {
    do layer = layer + 1 < config->layer_count ? layer + 1 : config->key_index_layer_first;
    while (kv_heads(config, layer) == 0 || kv_slides(config, layer));
    return layer;
}

enum status kv_sequence_open_key_index(struct kv_sequence *sequence, struct stream *stream, size_t layer_index,
                                       uint64_t position_first, uint64_t position_end, struct error *error) {
    const struct kv_cache *cache = sequence->cache;
    if (!is_on_disk(sequence, layer_index)) return STATUS_OK;
    struct key_index_place *place = place_of(sequence, layer_index);
    const uint64_t chunk = position_first / KV_CHUNK_TOKENS,
                   group = cache->config.key_index_group > 1 ? cache->config.key_index_group : 1,
                   group_first = chunk - chunk % group;
    if (place->layer_end != layer_index + 1) *place = (struct key_index_place){layer_index + 1, chunk};
    if (place->chunk_first > chunk) place->chunk_first = chunk; /* after a cut */
    if (place->chunk_first > group_first && position_end >= (group_first + group) * KV_CHUNK_TOKENS) {
        TRY(cache->device->operations->stream_synchronize(stream, error));
        TRY(read_range(sequence, layer_index, group_first, place->chunk_first, error));
        place->chunk_first = group_first;
    }
    if (position_first % KV_CHUNK_TOKENS == 0) return STATUS_OK; /* a new chunk */
    ASSERT(sequence->open.chunks[layer_index] == chunk);
    for (size_t head = 0; head < kv_heads(&cache->config, layer_index); head++)
        cache->device->operations->upload(stream, block_at(sequence, layer_index, head, chunk),
                                          open_block(sequence, layer_index, head), cache->config.key_index_bytes);
    return STATUS_OK;
}

static void prefetch_next(const struct kv_sequence *sequence, size_t layer, uint64_t chunk_end) {
    const size_t next = next_layer(&sequence->cache->config, layer);
    for (size_t i = 0; i < sequence->pages->source_count; i++) {
        const struct page_source *source = &sequence->pages->sources[i];
        const uint64_t end = source->chunk_end < chunk_end ? source->chunk_end : chunk_end;
        if (source->chunk_first < end)
            document_prefetch_key_index(source->document, next, source->chunk_first, end - source->chunk_first);
    }
}

enum status kv_sequence_load_key_index(struct kv_sequence *sequence, struct stream *stream, size_t reading_layer,
                                       struct error *error) {
    const size_t layer_index = kv_sequence_source_layer(sequence, reading_layer);
    if (!is_on_disk(sequence, layer_index)) return STATUS_OK;
    struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    struct key_index_place *place = place_of(sequence, layer_index);
    const uint64_t closed = sequence->pages->written[layer_index], open = sequence->open.chunks[layer_index];
    const bool is_own = place->layer_end == layer_index + 1;
    if (is_own && place->chunk_first == 0) return STATUS_OK;
    const uint64_t began = clock_ns(), end = is_own && place->chunk_first < closed ? place->chunk_first : closed;
    *place = (struct key_index_place){0};
    /* Blocks of chunks that grow may still be built. */
    TRY(sequence->cache->device->operations->stream_synchronize(stream, error));
    TRY(read_range(sequence, layer_index, 0, end, error));
    prefetch_next(sequence, layer_index, closed);
    for (size_t head = 0; head < kv_heads(config, layer_index); head++)
        if (open >= closed && open < sequence->column_count)
            memcpy(span_host(block_at(sequence, layer_index, head, open)), open_block(sequence, layer_index, head),
                   config->key_index_bytes);
    *place = (struct key_index_place){layer_index + 1, 0};
    tier->statistics.wait_ns += clock_ns() - began;
    return STATUS_OK;
}

enum status tier_reopen_blocks(struct kv_sequence *sequence, size_t layer, uint64_t chunk, struct error *error) {
    if (!is_on_disk(sequence, layer) || chunk >= sequence->pages->written[layer]) return STATUS_OK;
    struct document *document = tier_document_of(sequence, chunk);
    struct error why;
    ASSERT(document != NULL);
    if (!document_key_index_written(document, layer, chunk, 1)) TRY(document_flush(document, error));
    for (size_t head = 0; head < kv_heads(&sequence->cache->config, layer); head++) {
        const struct key_index_read read = {layer, head, 1, chunk, 1, open_block(sequence, layer, head)};
        if (document_read_key_index(document, &read, &why) != STATUS_OK)
            return document_key_index_failed(document, &why, error);
    }
    sequence->open.chunks[layer] = chunk;
    return STATUS_OK;
}

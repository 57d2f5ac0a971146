/* Pages of an opened document that nobody has wanted yet, read while there is nothing else to do. */
#include "cache/kv_tier_internal.h"

enum { WARM_CHUNKS = 64 }; /* a call's: 1 MB of f16 rows of 64 values, 20 ms of a disk of 50 MB a second */

/* The next chunks of a lane, below chunk_end, that are on disk alone and find a vacant slot; how many.  *chunk: from
 * where, and up to where it has looked. */
static size_t find_cold(const struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk_end,
                        uint64_t *chunk, uint32_t *chunks) {
    struct kv_tier *tier = sequence->cache->tier;
    uint64_t plain = tier_vacant_slots(&tier->slots.plain), quantized = tier_vacant_slots(&tier->slots.quantized);
    size_t count = 0;
    for (; *chunk < chunk_end && count < WARM_CHUNKS; ++*chunk) {
        if (kv_slides(&sequence->cache->config, layer) && !kv_windows_has(sequence, *chunk)) continue;
        const bool is_quantized =
            *chunk < sequence->pages->quantized_end[layer] && kv_chunk_is_quantized(sequence, layer, head, *chunk);
        uint64_t *left = is_quantized ? &quantized : &plain;
        const uint32_t place = (is_quantized ? kv_quantized_place : kv_chunk_place)(sequence, layer, head, *chunk);
        if (place != PLACE_NOWHERE || *left == 0) continue;
        chunks[count++] = (uint32_t)*chunk;
        --*left;
    }
    return count;
}

static enum status read_chunks(struct kv_sequence *sequence, size_t layer, size_t head, const uint32_t *chunks,
                               size_t count, struct error *error) {
    struct kv_fetch fetch = {.sequence = sequence,
                             .layer_index = layer,
                             .kv_head = head,
                             .chunks = chunks,
                             .chunk_count = count,
                             .is_prefetch = true,
                             .stays = true,
                             .quantized = true};
    enum status status = STATUS_OK;
    if (kv_fetch_begin(&fetch)) { /* else the queue is full, and these come when they are wanted */
        kv_fetch_flush(&fetch);
        status = kv_fetch_wait(&fetch, error);
    }
    kv_fetch_release(&fetch);
    return status;
}

enum status kv_sequence_warm(struct kv_sequence *sequence, bool *more, struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    *more = false;
    if (tier == NULL || tier->slots.list == NULL || sequence->pages->source_count == 0) return STATUS_OK;
    TRY(kv_tier_failure(sequence->cache, error));
    const struct kv_cache_config *config = &sequence->cache->config;
    const uint64_t lanes = kv_lane_count(config);
    struct sequence_pages *pages = sequence->pages;
    uint32_t chunks[WARM_CHUNKS];
    for (size_t count = 0; pages->warm_lane < lanes && count == 0;) {
        if (tier_vacant_slots(&tier->slots.plain) + tier_vacant_slots(&tier->slots.quantized) == 0) return STATUS_OK;
        const struct kv_lane_place at = kv_lane_place(config, pages->warm_lane);
        const size_t layer = at.layer, head = at.kv_head;
        const uint64_t chunk_end =
            pages->written[layer] < sequence->column_count ? pages->written[layer] : sequence->column_count;
        count = find_cold(sequence, layer, head, chunk_end, &pages->warm_chunk, chunks);
        if (count > 0) TRY(read_chunks(sequence, layer, head, chunks, count, error));
        if (pages->warm_chunk < chunk_end) continue;
        pages->warm_chunk = 0;
        pages->warm_lane++;
    }
    *more = pages->warm_lane < lanes;
    return STATUS_OK;
}

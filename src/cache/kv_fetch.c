/* Fetches the chunks of a head and holds them in memory (struct kv_fetch); gets slots for chunks whose rows change. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "cache/kv_tier_internal.h"
#include "cache/kv_watch_internal.h"
#include "cache/residency.h"

static uint64_t fetch_chunk(const struct kv_fetch *fetch, size_t index) {
    return fetch->chunks != NULL ? fetch->chunks[index] : fetch->chunk_first + index;
}

static int by_number_down(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

/* Takes slots for a scan's next chunks in the order of memory, so that neighbours on the disk become neighbours in
 * memory and are read in one request.  Without sorting, every fetch that ends in between would cut runs, and none would
 * heal. */
static struct slot *scan_slot(struct kv_tier *tier, const struct kv_fetch *fetch) {
    if (tier->slots.reserve_count == 0) {
        size_t missing = 0;
        for (size_t i = fetch->pinned; i < fetch->chunk_count && missing < TIER_RESERVE_SLOTS; i++)
            missing += kv_chunk_place(fetch->sequence, fetch->layer_index, fetch->kv_head, fetch_chunk(fetch, i)) ==
                       PLACE_NOWHERE;
        for (struct slot *slot; missing > 0 && (slot = tier_slot_take(tier, &tier->slots.plain, true)) != NULL;
             missing--)
            tier->slots.reserve[tier->slots.reserve_count++] = (uint32_t)(slot - tier->slots.list);
        qsort(tier->slots.reserve, tier->slots.reserve_count, sizeof *tier->slots.reserve, by_number_down);
    }
    return tier->slots.reserve_count > 0 ? &tier->slots.list[tier->slots.reserve[--tier->slots.reserve_count]] : NULL;
}

static struct slot *fetch_take(struct kv_tier *tier, struct tier_pool *pool, const struct kv_fetch *fetch) {
    ASSERT(!fetch->scan || pool == &tier->slots.plain);
    struct slot *slot = fetch->scan ? scan_slot(tier, fetch) : tier_slot_take(tier, pool, false);
    if (slot != NULL || fetch->is_prefetch || (fetch->ahead && tier_is_read(tier))) return slot;
    return tier_slot_take_waiting(tier, pool, fetch->scan);
}

uint64_t kv_tier_beside_chunks(const struct kv_cache *cache) { return kv_slots_beside(cache->tier->slots.plain.count); }

/* A scan has so many chunks on their way that another one would only drive out what the scan will come back to.  One of
 * a list is of a layer that is rebuilt (attention/rebuild.h): the link is not to be idle before that ends. */
static bool scan_is_full(const struct kv_tier *tier, const struct kv_fetch *fetch) {
    uint64_t pins_max =
        fetch->beside ? kv_tier_beside_chunks(tier->cache) : tier->slots.plain.count / (fetch->chunks != NULL ? 2 : 4);
    if (pins_max < 4 * fetch->chunk_count) pins_max = 4 * fetch->chunk_count;
    return fetch->scan && fetch->pinned == 0 && tier->slots.scan_pins > 0 &&
           tier->slots.scan_pins + fetch->chunk_count > pins_max;
}

static uint8_t fetch_blocks(const struct kv_fetch *fetch, size_t index) {
    return fetch->blocks != NULL ? fetch->blocks[index] : UINT8_MAX;
}

/* A submission to a full queue blocks, and a prefetch must not block. */
static bool prefetch_fits_queue(const struct kv_tier *tier, const struct kv_fetch *fetch) {
    if (!fetch->is_prefetch) return true;
    size_t requests = 0;
    for (size_t i = fetch->pinned; i < fetch->chunk_count; i++)
        requests += tier_requests_of(tier, fetch_blocks(fetch, i));
    return requests <= io_queue_free_count(tier->reads.queue);
}

/* Chunks that are full are wanted in 4 bits where they may be chosen from, and as rows where they are scanned. */
static bool wants_quantized(const struct kv_fetch *fetch, uint64_t chunk) {
    const struct kv_sequence *sequence = fetch->sequence;
    return fetch->quantized && kv_has_quantized(sequence) &&
           chunk < sequence->pages->quantized_end[fetch->layer_index] &&
           kv_chunk_is_quantized(sequence, fetch->layer_index, fetch->kv_head, chunk);
}

static uint32_t fetch_place(const struct kv_fetch *fetch, uint64_t chunk) {
    return (wants_quantized(fetch, chunk) ? kv_quantized_place : kv_chunk_place)(fetch->sequence, fetch->layer_index,
                                                                                 fetch->kv_head, chunk);
}

static struct slot *fetch_slot(const struct kv_fetch *fetch, size_t index) {
    return tier_slot_at(fetch->sequence->cache->tier, fetch_place(fetch, fetch_chunk(fetch, index)));
}

/* Rows of a chunk that lies in memory in 4 bits; false: it does not. */
static bool dequantize(struct kv_tier *tier, const struct kv_fetch *fetch, struct slot *slot, uint64_t chunk) {
    const struct kv_sequence *sequence = fetch->sequence;
    if (!kv_has_quantized(sequence) || tier_slot_is_quantized(tier, slot)) return false;
    const uint32_t place = kv_quantized_place(sequence, fetch->layer_index, fetch->kv_head, chunk);
    if (place == PLACE_NOWHERE) return false;
    const struct slot *quantized = tier_slot_at(tier, place);
    while (quantized->state == SLOT_READING) tier_drain(tier, 1);
    tier->codec.q4_decode(kv_cache_layer_layout(tier->cache, fetch->layer_index), tier_slot_memory(tier, quantized),
                          tier_slot_memory(tier, slot));
    slot->state = SLOT_CLEAN;
    slot->parts = TIER_PARTS_ALL;
    return true;
}

static void read_missing(struct kv_fetch *fetch, struct slot *slot, uint8_t blocks, struct read_batch *batch) {
    struct kv_tier *tier = fetch->sequence->cache->tier;
    tier_read_blocks(tier, batch, slot, blocks);
    fetch->missed++;
    ++*(fetch->is_prefetch ? &tier->statistics.prefetched : &tier->statistics.misses);
    kv_watch_read(fetch->sequence, slot->lane, slot->chunk, fetch->is_prefetch);
}

static void count_hit(struct kv_fetch *fetch, bool was_prefetched) {
    struct kv_tier *tier = fetch->sequence->cache->tier;
    if (fetch->is_prefetch) return;
    tier->statistics.hits++;
    tier->statistics.prefetch_hits += was_prefetched;
    fetch->prefetch_hits += was_prefetched;
    kv_watch_hit(fetch->sequence, was_prefetched);
}

/* A slot that holds the chunk, or some of it. */
static struct slot *fetch_found_chunk(struct kv_fetch *fetch, struct slot *slot, uint8_t blocks,
                                      struct read_batch *batch) {
    struct kv_tier *tier = fetch->sequence->cache->tier;
    if (tier_lacks(tier, slot, blocks)) {
        read_missing(fetch, slot, blocks, batch);
        if (fetch->is_prefetch) slot->prefetched = true;
        return slot;
    }
    count_hit(fetch, slot->prefetched);
    return slot;
}

/* A slot for a chunk that has none, shared or on its way there; NULL: not now. */
static struct slot *fetch_begin_chunk(struct kv_fetch *fetch, uint64_t chunk, uint8_t blocks,
                                      struct read_batch *batch) {
    struct kv_sequence *sequence = fetch->sequence;
    struct kv_tier *tier = sequence->cache->tier;
    size_t lane = kv_lane(&sequence->cache->config, fetch->layer_index, fetch->kv_head);
    const bool quantized = wants_quantized(fetch, chunk);
    struct tier_pool *pool = quantized ? &tier->slots.quantized : &tier->slots.plain;
    struct slot *slot = tier_slot_share(tier, sequence, lane, chunk, quantized);
    if (slot != NULL) return fetch_found_chunk(fetch, slot, blocks, batch);
    slot = fetch_take(tier, pool, fetch);
    if (slot == NULL) return NULL;
    tier_slot_give(tier, slot, sequence, lane, chunk, SLOT_READING);
    slot->fetched = true;
    slot->prefetched = fetch->is_prefetch;
    if (dequantize(tier, fetch, slot, chunk)) {
        count_hit(fetch, false);
        return slot;
    }
    read_missing(fetch, slot, blocks, batch);
    return slot;
}

/* Slots lie apart, and whatever was computed since they were last looked at has driven them out of the caches. */
static void prefetch_slot(const struct kv_fetch *fetch, size_t index) {
    if (index >= fetch->chunk_count) return;
    uint64_t chunk = fetch_chunk(fetch, index);
    const uint32_t place = fetch_place(fetch, chunk);
    size_t lane = kv_lane(&fetch->sequence->cache->config, fetch->layer_index, fetch->kv_head);
    __builtin_prefetch(tier_uses_at(fetch->sequence, lane, chunk), 1);
    if (place != PLACE_NOWHERE) __builtin_prefetch(tier_slot_at(fetch->sequence->cache->tier, place), 1);
}

bool kv_fetch_begin(struct kv_fetch *fetch) {
    struct kv_tier *tier = fetch->sequence->cache->tier;
    struct read_batch batch;
    batch.count = 0;
    if (scan_is_full(tier, fetch) || !prefetch_fits_queue(tier, fetch)) return false;
    for (; fetch->pinned < fetch->chunk_count; fetch->pinned++) {
        prefetch_slot(fetch, fetch->pinned + TIER_PREFETCH_CHUNKS);
        uint64_t chunk = fetch_chunk(fetch, fetch->pinned);
        const uint32_t place = fetch_place(fetch, chunk);
        const uint8_t blocks = fetch_blocks(fetch, fetch->pinned);
        struct slot *slot = place == PLACE_NOWHERE
                                ? fetch_begin_chunk(fetch, chunk, blocks, &batch)
                                : fetch_found_chunk(fetch, tier_slot_at(tier, place), blocks, &batch);
        if (slot == NULL) break;
        ASSERT(slot->pins < UINT16_MAX);
        slot->pins++;
        if (fetch->scan) tier->slots.scan_pins++;
        if (!fetch->scan && !fetch->is_prefetch) tier_count_use(tier, slot);
    }
    while (tier->slots.reserve_count > 0) /* evictions freed slots that are not needed */
        tier->slots.plain.free_slots[tier->slots.plain.free_count++] = tier->slots.reserve[--tier->slots.reserve_count];
    if (batch.count > 0) tier_batch_submit(tier, &batch);
    return fetch->pinned == fetch->chunk_count;
}

void kv_fetch_flush(struct kv_fetch *fetch) { io_queue_flush(fetch->sequence->cache->tier->reads.queue); }

static bool has_arrived(struct kv_fetch *fetch) {
    while (fetch->arrived < fetch->pinned && fetch_slot(fetch, fetch->arrived)->state != SLOT_READING) fetch->arrived++;
    return fetch->arrived == fetch->chunk_count;
}

bool kv_fetch_is_ready(struct kv_fetch *fetch) {
    if (has_arrived(fetch)) return true;
    tier_drain(fetch->sequence->cache->tier, 0);
    return has_arrived(fetch);
}

enum status kv_fetch_wait(struct kv_fetch *fetch, struct error *error) {
    struct kv_tier *tier = fetch->sequence->cache->tier;
    ASSERT(fetch->pinned == fetch->chunk_count);
    while (!has_arrived(fetch)) tier_drain(tier, 1);
    return kv_tier_failure(tier->cache, error);
}

void kv_fetch_release(struct kv_fetch *fetch) { kv_fetch_release_after(fetch, (struct ticket){NULL, 0}); }

void kv_fetch_release_after(struct kv_fetch *fetch, struct ticket ticket) {
    struct kv_tier *tier = fetch->sequence->cache->tier;
    /* The last first, so that they are taken again in the order of their chunks and neighbours stay neighbours. */
    for (size_t i = fetch->pinned; i > 0; i--) {
        if (i > TIER_PREFETCH_CHUNKS) prefetch_slot(fetch, i - 1 - TIER_PREFETCH_CHUNKS);
        struct slot *slot = fetch_slot(fetch, i - 1);
        ASSERT(slot->pins > 0);
        slot->pins--;
        tier_slot_read_until(tier, slot, ticket);
        if (fetch->scan) tier->slots.scan_pins--;
        if (slot->pins > 0) continue;
        slot->prefetched = false; /* also of a slot that was there, and lacked a part that a prefetch read */
        if (!slot->fetched) continue;
        slot->fetched = false;
        if (tier_slot_is_resident(tier, slot) || fetch->stays) continue;
        if (fetch->scan)
            tier_make_victim(tier, slot);
        else
            tier_admit(tier, slot);
    }
    fetch->pinned = fetch->arrived = 0;
}

void kv_fetch_hold(const struct kv_fetch *fetch, bool more) {
    struct kv_tier *tier = fetch->sequence->cache->tier;
    const size_t lane = kv_lane(&tier->cache->config, fetch->layer_index, fetch->kv_head);
    ASSERT(fetch->pinned == fetch->chunk_count);
    if (!more) residency_release(fetch->sequence, lane);
    for (size_t i = 0; i < fetch->chunk_count; i++) residency_hold(tier, fetch_slot(fetch, i));
}

/* ---- rows ---- */

static void forget_quantized(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    struct kv_tier *tier = sequence->cache->tier;
    const uint32_t place = kv_quantized_place(sequence, layer, head, chunk);
    if (place != PLACE_NOWHERE) tier_slot_leave(tier, tier_slot_at(tier, place), sequence);
}

/* Of a chunk that others have, too: a slot of its own, with the same rows and the pin of the fetch. */
static enum status own_slot(struct kv_fetch *fetch, struct error *error) {
    struct kv_sequence *sequence = fetch->sequence;
    struct kv_tier *tier = sequence->cache->tier;
    struct slot *slot = fetch_slot(fetch, 0);
    const uint32_t lane = slot->lane, chunk = slot->chunk;
    if (!tier_slot_has_others(tier, slot, sequence)) return STATUS_OK;
    struct slot *own = tier_slot_take_waiting(tier, tier_pool_of(tier, slot), true);
    if (own == NULL) return kv_tier_full(tier->cache, error);
    memcpy(tier_slot_memory(tier, own), tier_slot_memory(tier, slot), tier_pool_of(tier, slot)->slot_bytes);
    slot->pins--;
    tier_slot_leave(tier, slot, sequence);
    tier_slot_give(tier, own, sequence, lane, chunk, SLOT_CLEAN);
    own->pins++;
    return STATUS_OK;
}

/* The chunk's rows are changed from now on: it is in memory, and not on disk. */
enum status tier_make_dirty(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk,
                            struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    const uint32_t index = (uint32_t)chunk;
    struct kv_fetch fetch = {
        .sequence = sequence, .layer_index = layer, .kv_head = head, .chunks = &index, .chunk_count = 1};
    if (!kv_fetch_begin(&fetch)) return kv_tier_full(tier->cache, error);
    enum status status = kv_fetch_wait(&fetch, error);
    if (status == STATUS_OK) status = own_slot(&fetch, error);
    if (status == STATUS_OK) fetch_slot(&fetch, 0)->state = SLOT_DIRTY;
    if (kv_has_quantized(sequence) && status == STATUS_OK) forget_quantized(sequence, layer, head, chunk);
    kv_fetch_release(&fetch);
    return status;
}

enum status kv_sequence_open_rows(struct kv_sequence *sequence, size_t layer_index, uint64_t position_first,
                                  uint64_t row_count, struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    uint64_t end = kv_chunks_of(position_first + row_count);
    TRY(kv_tier_failure(sequence->cache, error));
    tier_drop_behind(sequence, layer_index, position_first); /* rows before have attended */
    for (size_t head = 0; head < kv_heads(config, layer_index); head++)
        for (uint64_t chunk = position_first / KV_CHUNK_TOKENS; chunk < end; chunk++) {
            const uint32_t place = kv_chunk_place(sequence, layer_index, head, chunk);
            if (kv_has_quantized(sequence) && chunk * KV_CHUNK_TOKENS >= position_first)
                forget_quantized(sequence, layer_index, head, chunk); /* of a step that failed */
            if (place != PLACE_NOWHERE && tier_slot_at(tier, place)->state == SLOT_DIRTY) continue;
            if (place != PLACE_NOWHERE || chunk * KV_CHUNK_TOKENS < position_first) {
                TRY(tier_make_dirty(sequence, layer_index, head, chunk, error));
                continue;
            }
            if (tier_slot_dirty(tier, &tier->slots.plain, sequence, kv_lane(config, layer_index, head), chunk) != NULL)
                continue;
            return kv_tier_full(sequence->cache, error);
        }
    if (sequence->pages->complete[layer_index] > position_first)
        sequence->pages->complete[layer_index] = position_first;
    if (sequence->pages->quantized_end[layer_index] > position_first / KV_CHUNK_TOKENS)
        sequence->pages->quantized_end[layer_index] = position_first / KV_CHUNK_TOKENS;
    return STATUS_OK;
}

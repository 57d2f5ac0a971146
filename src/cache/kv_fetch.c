/* Chunks of a head brought into memory and held there: struct kv_bring; and chunks whose rows change. */
#include <stdlib.h>

#include "base/assert.h"
#include "cache/kv_tier_internal.h"

static uint64_t bring_chunk(const struct kv_bring *bring, size_t index) {
    return bring->chunks != NULL ? bring->chunks[index] : bring->chunk_first + index;
}

static int by_number_down(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

/* Slots for a scan's next chunks, in the order of memory: neighbours on the disk become neighbours in memory, and are
 * read in one request.  Without sorting, runs would be cut by every bring that ends between, and never heal. */
static struct slot *scan_slot(struct kv_tier *tier, const struct kv_bring *bring) {
    if (tier->slots.reserve_count == 0) {
        size_t missing = 0;
        for (size_t i = bring->pinned; i < bring->chunk_count && missing < TIER_RESERVE_SLOTS; i++)
            missing += *kv_chunk_entry(bring->sequence, bring->layer_index, bring->kv_head,
                                       bring_chunk(bring, i)) == NULL;
        for (struct slot *slot;
             missing > 0 && (slot = tier_slot_take(tier, &tier->slots.plain, true)) != NULL; missing--)
            tier->slots.reserve[tier->slots.reserve_count++] = (uint32_t)(slot - tier->slots.list);
        qsort(tier->slots.reserve, tier->slots.reserve_count, sizeof *tier->slots.reserve, by_number_down);
    }
    return tier->slots.reserve_count > 0 ? &tier->slots.list[tier->slots.reserve[--tier->slots.reserve_count]]
                                         : NULL;
}

static struct slot *bring_take(struct kv_tier *tier, struct tier_pool *pool, const struct kv_bring *bring) {
    ASSERT(!bring->scan || pool == &tier->slots.plain);
    struct slot *slot = bring->scan ? scan_slot(tier, bring) : tier_slot_take(tier, pool, false);
    return slot != NULL || bring->ahead ? slot : tier_slot_take_waiting(tier, pool, bring->scan);
}

/* A scan has so many chunks on their way that another one would only drive out what the scan will come back to. */
static bool scan_is_full(const struct kv_tier *tier, const struct kv_bring *bring) {
    uint64_t most = tier->slots.plain.count / 4;
    if (most < 4 * bring->chunk_count) most = 4 * bring->chunk_count;
    return bring->scan && bring->pinned == 0 && tier->slots.scan_pins > 0 &&
           tier->slots.scan_pins + bring->chunk_count > most;
}

/* What is submitted to a full queue waits, and for a guess nobody does. */
static bool guess_has_room(const struct kv_tier *tier, const struct kv_bring *bring) {
    return !bring->ahead || bring->chunk_count - bring->pinned <= io_queue_room(tier->reads.queue);
}

/* Chunks that are full are wanted in 4 bits where they may be chosen from, and as rows where they are scanned. */
static void **bring_entry(const struct kv_bring *bring, uint64_t chunk) {
    const struct kv_sequence *sequence = bring->sequence;
    bool quantized = bring->packed && sequence->quantized != NULL &&
                     chunk < sequence->pages->quantized_end[bring->layer_index];
    return (quantized ? kv_stored_entry : kv_chunk_entry)(sequence, bring->layer_index, bring->kv_head,
                                                          chunk);
}

static struct slot *bring_slot(const struct kv_bring *bring, size_t index) {
    return tier_slot_at(bring->sequence->cache->tier, *bring_entry(bring, bring_chunk(bring, index)));
}

/* Rows of a chunk that lies in memory in 4 bits; false: it does not. */
static bool dequantize(struct kv_tier *tier, const struct kv_bring *bring, struct slot *slot,
                       uint64_t chunk) {
    const struct kv_sequence *sequence = bring->sequence;
    if (sequence->quantized == NULL || tier_slot_is_quantized(tier, slot)) return false;
    const void *quantized = *kv_quantized_entry(sequence, bring->layer_index, bring->kv_head, chunk);
    if (quantized == NULL) return false;
    while (tier_slot_at(tier, quantized)->state == SLOT_READING) tier_drain(tier, 1);
    tier->codec.q4_decode(&tier->cache->layout, quantized, tier_slot_memory(tier, slot));
    slot->state = SLOT_CLEAN;
    return true;
}

/* A slot for a chunk that has none, on its way there; NULL: not now. */
static struct slot *bring_begin_chunk(struct kv_bring *bring, uint64_t chunk, struct read_batch *batch) {
    struct kv_sequence *sequence = bring->sequence;
    struct kv_tier *tier = sequence->cache->tier;
    size_t lane = bring->layer_index * sequence->cache->config.kv_head_count + bring->kv_head;
    bool quantized =
        bring_entry(bring, chunk) != kv_chunk_entry(sequence, bring->layer_index, bring->kv_head, chunk);
    struct tier_pool *pool = quantized ? &tier->slots.quantized : &tier->slots.plain;
    struct slot *slot = bring_take(tier, pool, bring);
    if (slot == NULL) return NULL;
    tier_slot_give(tier, slot, sequence, lane, chunk, SLOT_READING);
    slot->fetched = true;
    slot->guessed = bring->ahead;
    if (dequantize(tier, bring, slot, chunk)) {
        tier->statistics.hits += !bring->ahead;
        return slot;
    }
    tier_batch_add(tier, batch, slot);
    bring->missed++;
    ++*(bring->ahead ? &tier->statistics.guessed : &tier->statistics.misses);
    return slot;
}

/* Slots lie apart, and whatever was computed since they were last looked at has driven them out of the caches. */
static void prefetch_slot(const struct kv_bring *bring, size_t index) {
    if (index >= bring->chunk_count) return;
    uint64_t chunk = bring_chunk(bring, index);
    const void *memory = *bring_entry(bring, chunk);
    size_t lane = bring->layer_index * bring->sequence->cache->config.kv_head_count + bring->kv_head;
    __builtin_prefetch(tier_uses_at(bring->sequence, lane, chunk), 1);
    if (memory != NULL) __builtin_prefetch(tier_slot_at(bring->sequence->cache->tier, memory), 1);
}

bool kv_bring_begin(struct kv_bring *bring) {
    struct kv_tier *tier = bring->sequence->cache->tier;
    struct read_batch batch;
    batch.count = 0;
    if (scan_is_full(tier, bring) || !guess_has_room(tier, bring)) return false;
    for (; bring->pinned < bring->chunk_count; bring->pinned++) {
        prefetch_slot(bring, bring->pinned + TIER_PREFETCH_CHUNKS);
        uint64_t chunk = bring_chunk(bring, bring->pinned);
        void *const *entry = bring_entry(bring, chunk);
        struct slot *slot;
        if (*entry == NULL) {
            slot = bring_begin_chunk(bring, chunk, &batch);
            if (slot == NULL) break;
        } else {
            slot = tier_slot_at(tier, *entry);
            tier->statistics.hits += !bring->ahead;
            if (slot->guessed && !bring->ahead) {
                bring->foreseen++;
                tier->statistics.foreseen++;
            }
        }
        ASSERT(slot->pins < UINT16_MAX);
        slot->pins++;
        if (bring->scan) tier->slots.scan_pins++;
        if (!bring->scan && !bring->ahead) tier_count_use(tier, slot);
    }
    while (tier->slots.reserve_count > 0) /* evictions made room that is not needed */
        tier->slots.plain.free_slots[tier->slots.plain.free_count++] =
            tier->slots.reserve[--tier->slots.reserve_count];
    if (batch.count > 0) tier_batch_submit(tier, &batch);
    return bring->pinned == bring->chunk_count;
}

void kv_bring_flush(struct kv_bring *bring) { io_queue_flush(bring->sequence->cache->tier->reads.queue); }

static bool has_arrived(struct kv_bring *bring) {
    while (bring->arrived < bring->pinned && bring_slot(bring, bring->arrived)->state != SLOT_READING)
        bring->arrived++;
    return bring->arrived == bring->chunk_count;
}

bool kv_bring_is_ready(struct kv_bring *bring) {
    if (has_arrived(bring)) return true;
    tier_drain(bring->sequence->cache->tier, 0);
    return has_arrived(bring);
}

enum status kv_bring_wait(struct kv_bring *bring, struct error *error) {
    struct kv_tier *tier = bring->sequence->cache->tier;
    ASSERT(bring->pinned == bring->chunk_count);
    while (!has_arrived(bring)) tier_drain(tier, 1);
    return kv_tier_failure(tier->cache, error);
}

void kv_bring_release(struct kv_bring *bring) {
    struct kv_tier *tier = bring->sequence->cache->tier;
    /* The last first, so that they are taken again in the order of their chunks and neighbours stay neighbours. */
    for (size_t i = bring->pinned; i > 0; i--) {
        if (i > TIER_PREFETCH_CHUNKS) prefetch_slot(bring, i - 1 - TIER_PREFETCH_CHUNKS);
        struct slot *slot = bring_slot(bring, i - 1);
        ASSERT(slot->pins > 0);
        slot->pins--;
        if (bring->scan) tier->slots.scan_pins--;
        if (!slot->fetched || slot->pins > 0) continue;
        slot->fetched = slot->guessed = false;
        if (tier_slot_is_resident(tier, slot) || bring->stays) continue;
        if (bring->scan)
            tier_make_victim(tier, slot);
        else
            tier_admit(tier, slot);
    }
    bring->pinned = bring->arrived = 0;
}

/* ---- rows ---- */

static void forget_quantized(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    struct kv_tier *tier = sequence->cache->tier;
    const void *quantized = *kv_quantized_entry(sequence, layer, head, chunk);
    if (quantized != NULL) tier_slot_free(tier, tier_slot_at(tier, quantized));
}

/* The chunk's rows are changed from now on: it is in memory, and not on disk. */
enum status tier_make_dirty(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk,
                            struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    const uint32_t index = (uint32_t)chunk;
    struct kv_bring bring = {
        .sequence = sequence, .layer_index = layer, .kv_head = head, .chunks = &index, .chunk_count = 1};
    if (!kv_bring_begin(&bring)) {
        TRY(kv_tier_failure(tier->cache, error));
        return kv_tier_full(tier->cache, error);
    }
    enum status status = kv_bring_wait(&bring, error);
    struct slot *slot = bring_slot(&bring, 0);
    slot->state = SLOT_DIRTY;
    if (sequence->quantized != NULL && status == STATUS_OK) forget_quantized(sequence, layer, head, chunk);
    kv_bring_release(&bring);
    return status;
}

enum status kv_sequence_open_rows(struct kv_sequence *sequence, size_t layer_index, uint64_t position_first,
                                  uint64_t row_count, struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    size_t heads = sequence->cache->config.kv_head_count;
    uint64_t end = kv_chunks_of(position_first + row_count);
    TRY(kv_tier_failure(sequence->cache, error));
    for (size_t head = 0; head < heads; head++)
        for (uint64_t chunk = position_first / KV_CHUNK_TOKENS; chunk < end; chunk++) {
            void *const *entry = kv_chunk_entry(sequence, layer_index, head, chunk);
            if (sequence->quantized != NULL && chunk * KV_CHUNK_TOKENS >= position_first)
                forget_quantized(sequence, layer_index, head, chunk); /* of a step that failed */
            if (*entry != NULL && tier_slot_at(tier, *entry)->state == SLOT_DIRTY) continue;
            if (*entry != NULL || chunk * KV_CHUNK_TOKENS < position_first) {
                TRY(tier_make_dirty(sequence, layer_index, head, chunk, error));
                continue;
            }
            if (tier_slot_dirty(tier, &tier->slots.plain, sequence, layer_index * heads + head, chunk) !=
                NULL)
                continue;
            TRY(kv_tier_failure(sequence->cache, error));
            return kv_tier_full(sequence->cache, error);
        }
    if (sequence->pages->complete[layer_index] > position_first)
        sequence->pages->complete[layer_index] = position_first;
    if (sequence->pages->quantized_end[layer_index] > position_first / KV_CHUNK_TOKENS)
        sequence->pages->quantized_end[layer_index] = position_first / KV_CHUNK_TOKENS;
    return STATUS_OK;
}

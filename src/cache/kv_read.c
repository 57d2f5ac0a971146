/* Pages on their way from the disk into slots: submitted in batches, checked as they arrive. */
#include <string.h>

#include "base/assert.h"
#include "cache/kv_tier_internal.h"
#include "cache/kv_watch_internal.h"
#include "cache/residency.h"
#include "platform/clock.h"

/* memory: where the page begins, in the slot or in the staging area. */
static void page_arrived(struct kv_tier *tier, const struct tier_place *place, void *memory,
                         const struct io_completion *completion) {
    struct slot *slot = &tier->slots.list[place->slot];
    const struct kv_lane_place lane = kv_lane_place(&tier->cache->config, slot->lane);
    const struct page_read read = {.layer = (uint32_t)lane.layer,
                                   .kv_head = (uint32_t)lane.kv_head,
                                   .chunk = slot->chunk,
                                   .memory = memory,
                                   .part_first = place->part_first,
                                   .part_count = place->part_count};
    struct error error;
    if (tier->lane_stays[slot->lane]) tier->statistics.resident_read_pages++;
    enum status status = completion->status == STATUS_OK
                             ? document_check_page(tier_document_of(slot->sequence, slot->chunk), &read, &error)
                             : document_read_failed(tier_document_of(slot->sequence, slot->chunk), completion, &error);
    if (status != STATUS_OK) {
        if (tier->failed == STATUS_OK)
            tier->failed_document = document_id(tier_document_of(slot->sequence, slot->chunk));
        kv_tier_fail(tier, &error);
        slot->parts &= (uint8_t) ~(((1u << place->part_count) - 1) << place->part_first); /* others may have it */
    } else if (tier_slot_is_quantized(tier, slot)) {
        memcpy(tier_slot_memory(tier, slot), memory, tier->quantized_bytes);
    } else if (slot->reads_quantized) {
        tier->codec.q4_decode(kv_cache_layer_layout(tier->cache, lane.layer), memory, tier_slot_memory(tier, slot));
    }
    ASSERT(slot->state == SLOT_READING && slot->reading > 0);
    if (--slot->reading == 0) slot->state = SLOT_CLEAN;
    slot->reads_quantized = false;
}

static void trace_read(struct kv_tier *tier, uint64_t tag, size_t pages) {
    const struct tier_reads *reads = &tier->reads;
    const struct slot *slot = &tier->slots.list[reads->ring[tag % reads->ring_pages].slot];
    const struct kv_lane_place lane = kv_lane_place(&tier->cache->config, slot->lane);
    trace_add(reads->trace, &(struct trace_span){.name = "read",
                                                 .begin_ns = reads->began_ns[tag % reads->ring_pages],
                                                 .end_ns = clock_ns(),
                                                 .track = TRACE_READS,
                                                 .layer = (uint32_t)lane.layer,
                                                 .kv_head = (uint32_t)lane.kv_head,
                                                 .chunk = slot->chunk,
                                                 .count = (uint32_t)pages});
}

static void pages_arrived(struct kv_tier *tier, const struct io_completion *completions, size_t count) {
    struct tier_reads *reads = &tier->reads;
    for (size_t i = 0; i < count; i++) {
        uint64_t tag = completions[i].request.tag;
        const struct tier_place *first = &reads->ring[tag % reads->ring_pages];
        size_t page_bytes =
            tier->slots.list[first->slot].reads_quantized ? reads->page_bytes : tier->slots.plain.slot_bytes;
        size_t pages = (completions[i].request.bytes + page_bytes - 1) / page_bytes;
        uint8_t *memory = (uint8_t *)completions[i].request.memory - first->part_first * tier->page_parts.bytes;
        if (reads->trace != NULL) trace_read(tier, tag, pages);
        struct kv_sequence *owner = tier->slots.list[first->slot].sequence;
        for (size_t p = 0; p < pages; p++, tag++) {
            struct tier_place *place = &reads->ring[tag % reads->ring_pages];
            page_arrived(tier, place, memory + p * page_bytes, &completions[i]);
            place->slot = TIER_NO_SLOT;
        }
        tier->statistics.read_bytes += completions[i].request.bytes;
        kv_watch_bytes(owner, completions[i].request.bytes);
        tier->statistics.read_pages += pages;
        tier->statistics.read_requests++;
    }
}

/* Waits for at least count_min completions of requests. */
void tier_drain(struct kv_tier *tier, size_t count_min) {
    struct io_completion completions[TIER_READ_BATCH];
    uint64_t began = clock_ns();
    size_t count = count_min > 0 ? io_queue_wait(tier->reads.queue, completions, TIER_READ_BATCH, count_min)
                                 : io_queue_poll(tier->reads.queue, completions, TIER_READ_BATCH);
    if (count_min > 0) tier->statistics.wait_ns += clock_ns() - began;
    if (count_min > 0) trace_since(tier->reads.trace, "disk", TRACE_WAITS, began, TRACE_NONE, TRACE_NONE);
    pages_arrived(tier, completions, count);
}

static void tags_retire(struct kv_tier *tier) {
    struct tier_reads *reads = &tier->reads;
    while (reads->tag_oldest < reads->tag_next &&
           reads->ring[reads->tag_oldest % reads->ring_pages].slot == TIER_NO_SLOT)
        reads->tag_oldest++;
}

void tier_drain_all(struct kv_tier *tier) {
    while (io_queue_in_flight(tier->reads.queue) > 0) tier_drain(tier, 1);
}

/* What reads go to is told to the queue, an advantage or not, once all of it has been used: telling makes it resident,
 * and a document that is opened for one question would wait for memory that it never needs. */
static void register_memory(struct kv_tier *tier) {
    const struct kv_cache_config *config = &tier->cache->config;
    const struct slab *plain = &tier->slots.plain.memory;
    bool to_plain = !config->quantized_pages || config->mixes_pages;
    if (tier->reads.is_registered || io_queue_in_flight(tier->reads.queue) > 0) return;
    if (to_plain && tier->slots.plain.fresh_count < tier->slots.plain.count) return;
    tier->reads.is_registered = true;
    if (slab_exists(&tier->staging))
        (void)io_queue_register_memory(tier->reads.queue, tier->reads.pages, tier->staging.pool.slot_bytes);
    for (size_t i = 0; to_plain && i < slab_buffer_count(plain); i++)
        (void)io_queue_register_memory(tier->reads.queue, plain->pool.buffers[i].host, plain->pool.buffers[i].bytes);
}

void tier_batch_submit(struct kv_tier *tier, struct read_batch *batch) {
    struct tier_reads *reads = &tier->reads;
    register_memory(tier);
    for (tags_retire(tier); reads->tag_next + batch->count - reads->tag_oldest > reads->ring_pages; tags_retire(tier))
        tier_drain(tier, 1);
    for (size_t i = 0; i < batch->count; i++) {
        size_t place = (reads->tag_next + i) % reads->ring_pages;
        reads->ring[place] = (struct tier_place){(uint32_t)(batch->slots[i] - tier->slots.list),
                                                 batch->reads[i].part_first, batch->reads[i].part_count};
        if (reads->trace != NULL) reads->began_ns[place] = clock_ns();
        if (batch->slots[i]->reads_quantized) batch->reads[i].memory = reads->pages + place * reads->page_bytes;
    }
    for (size_t next = 0; next < batch->count;) {
        enum status status =
            document_read_pages(batch->document, reads->queue, batch->reads, batch->count, &next, reads->tag_next);
        if (status != STATUS_OK) tier_drain(tier, 1); /* full */
    }
    reads->tag_next += batch->count;
    batch->count = 0;
}

void tier_batch_add(struct kv_tier *tier, struct read_batch *batch, struct slot *slot, size_t part_first,
                    size_t part_count) {
    const struct kv_lane_place lane = kv_lane_place(&tier->cache->config, slot->lane);
    struct document *document = tier_document_of(slot->sequence, slot->chunk);
    ASSERT(document != NULL);
    if (batch->count == TIER_READ_BATCH || (batch->count > 0 && document != batch->document))
        tier_batch_submit(tier, batch);
    const struct page_read read = {.layer = (uint32_t)lane.layer,
                                   .kv_head = (uint32_t)lane.kv_head,
                                   .chunk = slot->chunk,
                                   .memory = tier_slot_memory(tier, slot),
                                   .part_first = (uint8_t)part_first,
                                   .part_count = (uint8_t)part_count};
    slot->reading++;
    slot->state = SLOT_READING;
    slot->reads_quantized = kv_chunk_is_quantized(slot->sequence, read.layer, read.kv_head, read.chunk) &&
                            !document_read_is_tail(document, &read);
    ASSERT(slot->reads_quantized || !tier_slot_is_quantized(tier, slot));
    batch->document = document;
    batch->slots[batch->count] = slot;
    batch->reads[batch->count++] = read;
}

void tier_forget_chunk(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    struct kv_tier *tier = sequence->cache->tier;
    const uint32_t places[] = {kv_chunk_place(sequence, layer, head, chunk),
                               kv_has_quantized(sequence) ? kv_quantized_place(sequence, layer, head, chunk)
                                                          : PLACE_NOWHERE};
    for (size_t i = 0; i < 2; i++) {
        if (places[i] == PLACE_NOWHERE) continue;
        struct slot *slot = tier_slot_at(tier, places[i]);
        while (slot->state == SLOT_READING) tier_drain(tier, 1);
        tier_slot_leave(tier, slot, sequence);
    }
}

struct slot *tier_slot_take_waiting(struct kv_tier *tier, struct tier_pool *pool, bool scan) {
    struct slot *slot = tier_slot_take(tier, pool, scan);
    while (slot == NULL && tier_wait_reader(tier)) slot = tier_slot_take(tier, pool, scan);
    /* What nobody waits for any more may go when it has come. */
    while (slot == NULL && io_queue_in_flight(tier->reads.queue) > 0) {
        tier_drain(tier, 1);
        slot = tier_slot_take(tier, pool, scan);
    }
    if (slot == NULL && residency_release_all(tier)) slot = tier_slot_take(tier, pool, scan);
    for (size_t round = 0; slot == NULL && round < 2 && tier->failed == STATUS_OK; round++) {
        tier->reclaim(tier, round == 1);
        slot = tier_slot_take(tier, pool, scan);
    }
    return slot;
}

struct slot *tier_slot_dirty(struct kv_tier *tier, struct tier_pool *pool, struct kv_sequence *sequence, size_t lane,
                             uint64_t chunk) {
    struct slot *slot = tier_slot_take_waiting(tier, pool, true);
    if (slot != NULL) tier_slot_give(tier, slot, sequence, lane, chunk, SLOT_DIRTY);
    return slot;
}

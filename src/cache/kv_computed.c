/* Chunks that the caller computes again instead of having them read: into slots that nobody has. */
#include "base/assert.h"
#include "cache/kv_tier_internal.h"

bool kv_sequence_has_room(const struct kv_sequence *sequence, uint64_t chunk_count) {
    const struct kv_cache *cache = sequence->cache;
    return cache->tier != NULL && !kv_has_quantized(sequence) &&
           tier_vacant_slots(&cache->tier->slots.plain) / kv_heads_max(&cache->config) >= chunk_count;
}

/* The head's chunk has a slot, whatever is on its way there or is written from it is not touched. */
static bool give_slot(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    struct kv_tier *tier = sequence->cache->tier;
    const uint32_t place = kv_chunk_place(sequence, layer, head, chunk);
    struct slot *slot = place != PLACE_NOWHERE ? tier_slot_at(tier, place) : NULL;
    ASSERT(tier_document_of(sequence, chunk) != NULL);
    if (slot == NULL) {
        struct tier_pool *pool = &tier->slots.plain;
        slot = tier_vacant_slots(pool) > 0 ? tier_slot_take(tier, pool, true) : NULL;
        if (slot == NULL) return false;
        tier_slot_give(tier, slot, sequence, kv_lane(&sequence->cache->config, layer, head), chunk,
                       SLOT_READING); /* nobody takes it for complete */
    } else if (slot->state != SLOT_CLEAN) {
        return false;
    }
    ASSERT(slot->pins < UINT16_MAX);
    slot->pins++;
    return true;
}

static void settle(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk, bool computed,
                   struct ticket ticket) {
    struct kv_tier *tier = sequence->cache->tier;
    struct slot *slot = tier_slot_at(tier, kv_chunk_place(sequence, layer, head, chunk));
    ASSERT(slot->pins > 0 && slot->reading == 0);
    slot->pins--;
    tier_slot_read_until(tier, slot, ticket);
    if (slot->state != SLOT_READING) return; /* it was there before */
    slot->state = SLOT_CLEAN;
    slot->parts = TIER_PARTS_ALL;
    if (!computed) tier_slot_free(tier, slot);
}

bool kv_sequence_begin_computing(struct kv_sequence *sequence, size_t layer, uint64_t chunk_first,
                                 uint64_t chunk_count) {
    const size_t heads = kv_heads(&sequence->cache->config, layer);
    const struct ticket unread = {NULL, 0};
    for (uint64_t i = 0; i < chunk_count; i++)
        for (size_t head = 0; head < heads; head++) {
            if (give_slot(sequence, layer, head, chunk_first + i)) continue;
            for (size_t before = 0; before < head; before++)
                settle(sequence, layer, before, chunk_first + i, false, unread);
            kv_sequence_end_computing(sequence, layer, chunk_first, i, 0, unread);
            return false;
        }
    return true;
}

void kv_sequence_end_computing(struct kv_sequence *sequence, size_t layer, uint64_t chunk_first, uint64_t chunk_count,
                               uint64_t computed_count, struct ticket ticket) {
    ASSERT(computed_count <= chunk_count);
    for (uint64_t i = 0; i < chunk_count; i++)
        for (size_t head = 0; head < kv_heads(&sequence->cache->config, layer); head++)
            settle(sequence, layer, head, chunk_first + i, i < computed_count, ticket);
}

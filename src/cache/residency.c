#include "cache/residency.h"

#include "base/assert.h"
#include "cache/kv_budget_internal.h"

static uint64_t half_beyond(uint64_t count, uint64_t needed) { return count > needed ? (count - needed) / 2 : 0; }

void residency_divide(struct kv_tier *tier) {
    const struct kv_cache_config *config = &tier->cache->config;
    const struct slot_counts slots_min = kv_budget_slots_min(config),
                             stays = kv_budget_resident_slots(config, &tier->fractions, &tier->residents);
    struct tier_pool *plain = &tier->slots.plain, *quantized = &tier->slots.quantized;
    ASSERT(plain->held_count == 0 && quantized->held_count == 0);
    plain->held_max = half_beyond(plain->count, slots_min.plain + stays.plain);
    quantized->held_max = half_beyond(quantized->count, slots_min.quantized + stays.quantized);
}

void residency_hold(struct kv_tier *tier, struct slot *slot) {
    struct tier_pool *pool = tier_pool_of(tier, slot);
    uint32_t *first = &slot->sequence->pages->held[slot->lane];
    if (slot->is_held || pool->held_count >= pool->held_max || tier_slot_is_resident(tier, slot) ||
        !tier_slot_is_clean(tier, slot))
        return;
    ASSERT(slot->pins < UINT16_MAX);
    slot->pins++;
    slot->is_held = true;
    slot->next_held = *first;
    *first = (uint32_t)(slot - tier->slots.list);
    pool->held_count++;
}

void residency_release(struct kv_sequence *sequence, size_t lane) {
    struct kv_tier *tier = sequence->cache->tier;
    uint32_t *first = &sequence->pages->held[lane];
    while (*first != TIER_NO_SLOT) {
        struct slot *slot = &tier->slots.list[*first];
        ASSERT(slot->is_held && slot->pins > 0 && slot->sequence == sequence && slot->lane == lane);
        *first = slot->next_held;
        slot->is_held = false;
        tier_pool_of(tier, slot)->held_count--;
        if (--slot->pins > 0) continue;
        slot->prefetched = false;
        if (!slot->fetched) continue;
        slot->fetched = false;
        tier_admit(tier, slot);
    }
}

void residency_release_sequence(struct kv_sequence *sequence) {
    const struct kv_cache_config *config = &sequence->cache->config;
    for (size_t lane = 0; lane < kv_lane_count(config); lane++) residency_release(sequence, lane);
}

bool residency_release_all(struct kv_tier *tier) {
    if (tier->slots.plain.held_count + tier->slots.quantized.held_count == 0) return false;
    for (struct kv_sequence *s = tier->cache->sequences; s != NULL; s = s->next)
        if (s->pages != NULL) residency_release_sequence(s);
    return true;
}

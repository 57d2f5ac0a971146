/* Divides the slots' memory between plain and quantized ones, by the budget and the first sequence's fractions. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/kv_budget_internal.h"
#include "cache/kv_tier_internal.h"
#include "cache/residency.h"

enum { QUEUE_DEPTH = 128 };

/* Without its memory. */
static void pool_init(struct tier_pool *pool, const struct kv_tier *tier, size_t slot_bytes, uint64_t first,
                      uint64_t count) {
    *pool = (struct tier_pool){.slot_bytes = slot_bytes,
                               .first = first,
                               .count = count,
                               .free_slots = tier->slots.stacks + 2 * first,
                               .victims = tier->slots.stacks + 2 * first + count};
}

uint64_t tier_host_bytes(const struct kv_tier *tier) {
    const struct slot_counts used = {tier->slots.plain.fresh_count, tier->slots.quantized.fresh_count};
    const struct kv_cache_config *config = &tier->cache->config;
    uint64_t bytes = kv_budget_fixed_bytes(config) + kv_budget_slot_bytes(config, used);
    return bytes > tier->host_bytes_max ? bytes : tier->host_bytes_max;
}

/* What views look places up in. */
static void show_pools(struct kv_tier *tier) {
    for (size_t i = 0; i < KV_GROUPS_MAX; i++) { /* any slot may hold a chunk of any group */
        tier->cache->pools[i].list[POOL_ROWS] = tier->slots.plain.memory.pool;
        tier->cache->pools[i].list[POOL_QUANTIZED] = tier->slots.quantized.memory.pool;
    }
}

void tier_release_slots(struct kv_tier *tier) {
    io_queue_destroy(tier->reads.queue);
    slab_deinit(&tier->staging);
    slab_deinit(&tier->slots.plain.memory);
    slab_deinit(&tier->slots.quantized.memory);
    show_pools(tier);
    free(tier->slots.list);
    tier->reads.queue = NULL;
    tier->slots.list = NULL;
    tier->slots.stacks = NULL;
}

static void pool_empty(struct kv_tier *tier, struct tier_pool *pool) {
    ASSERT(pool->held_count == 0 && pool->fresh_count == pool->free_count);
    memset(tier->slots.list + pool->first, 0, pool->fresh_count * sizeof *tier->slots.list);
    pool->fresh_count = pool->free_count = pool->victim_count = pool->hand = 0;
}

void tier_give_back(struct kv_cache *cache) {
    struct kv_tier *tier = cache->tier;
    const struct io_queue_options options = {.backend = cache->config.backend, .depth = QUEUE_DEPTH};
    struct io_queue *queue;
    if (!tier_is_divided(cache) || tier_used_bytes(cache) > 0) return;
    if (tier->slots.plain.fresh_count + tier->slots.quantized.fresh_count == 0) return;
    tier_drain_all(tier);
    if (io_queue_create(&queue, &options, NULL) != STATUS_OK) return; /* it stays as it is */
    tier->host_bytes_max = tier_host_bytes(tier);
    io_queue_destroy(tier->reads.queue); /* it may know the old memory */
    tier->reads.queue = queue;
    tier->reads.is_registered = false;
    (void)slab_renew(&tier->slots.plain.memory);
    (void)slab_renew(&tier->slots.quantized.memory);
    show_pools(tier);
    pool_empty(tier, &tier->slots.plain);
    pool_empty(tier, &tier->slots.quantized);
}

static enum status create_slots(struct kv_tier *tier, struct slot_counts counts, struct error *error) {
    const struct kv_cache_config *config = &tier->cache->config;
    const size_t plain_bytes = kv_budget_plain_bytes(config), staging = kv_budget_staging_bytes(config);
    struct device *device = tier->cache->device;
    uint64_t count = counts.plain + counts.quantized;
    if (count >= TIER_NO_SLOT) return error_set(error, STATUS_MEMORY, "KV tier: too many slots");
    tier->slots.list = calloc(count, TIER_SLOT_TABLE_BYTES);
    if (tier->slots.list == NULL)
        return error_set(error, STATUS_MEMORY, "KV tier: no memory for the table of %" PRIu64 " slots", count);
    tier->slots.stacks = (uint32_t *)(void *)(tier->slots.list + count);
    pool_init(&tier->slots.plain, tier, plain_bytes, 0, counts.plain);
    pool_init(&tier->slots.quantized, tier, tier->quantized_bytes, counts.plain, counts.quantized);
    TRY(slab_init(&tier->staging, device, MEMORY_SHARED, max_size(staging, 1), staging > 0 ? 1 : 0, error));
    TRY(slab_init(&tier->slots.plain.memory, device, MEMORY_SHARED, plain_bytes, counts.plain, error));
    TRY(slab_init(&tier->slots.quantized.memory, device, MEMORY_SHARED, max_size(tier->quantized_bytes, 1),
                  counts.quantized, error));
    tier->reads.pages = staging > 0 ? span_host(slab_slot(&tier->staging, 0)) : NULL;
    show_pools(tier);
    residency_divide(tier);
    const struct io_queue_options options = {.backend = config->backend, .depth = QUEUE_DEPTH};
    tier->reads.is_registered = false;
    return io_queue_create(&tier->reads.queue, &options, error);
}

void tier_set_residents(struct kv_tier *tier, struct kv_residents residents) {
    const struct kv_cache_config *config = &tier->cache->config;
    tier->residents = residents;
    for (size_t lane = 0; lane < kv_lane_count(config); lane++)
        tier->lane_stays[lane] = lane < kv_lane(config, residents.layer_count, 0);
    for (size_t i = 0; i < residents.lane_count; i++) tier->lane_stays[residents.lanes[i]] = true;
}

static enum status divide(struct kv_tier *tier, struct error *error) {
    const struct kv_cache_config *config = &tier->cache->config;
    tier->host_bytes_max = tier_host_bytes(tier);
    tier_release_slots(tier);
    tier_set_residents(tier,
                       kv_budget_residents(config, &tier->fractions, tier->wanted_lanes, tier->wanted_lane_count));
    return create_slots(tier, kv_budget_slots(config, &tier->fractions, &tier->residents), error);
}

const bool *kv_tier_staying(const struct kv_cache *cache) { return cache->tier->lane_stays; }

enum status kv_tier_set_resident_heads(struct kv_cache *cache, const uint32_t *lanes, size_t count, uint64_t list_bytes,
                                       struct error *error) {
    struct kv_tier *tier = cache->tier;
    struct kv_cache_config *config = &cache->config;
    const size_t first = kv_lane(config, min_size(config->resident_layers, config->layer_count), 0);
    ASSERT(tier_used_bytes(cache) == 0);
    uint32_t *wanted = calloc(count + 1, sizeof *wanted);
    if (wanted == NULL) return error_set(error, STATUS_MEMORY, "KV tier: out of memory");
    free(tier->wanted_lanes);
    tier->wanted_lanes = wanted;
    tier->wanted_lane_count = 0;
    config->scratch_bytes = config->scratch_bytes - config->list_bytes + list_bytes;
    config->list_bytes = list_bytes;
    for (size_t i = 0; i < count; i++)
        if (lanes[i] >= first) wanted[tier->wanted_lane_count++] = lanes[i];
    if (!tier_is_divided(cache)) return STATUS_OK;
    tier_drain_all(tier);
    return divide(tier, error);
}

enum status tier_divide(struct kv_cache *cache, struct error *error) {
    struct kv_tier *tier = cache->tier;
    const struct kv_cache_config *config = &cache->config;
    uint64_t fixed = kv_budget_fixed_bytes(config), bytes_min = kv_tier_bytes_min(config);
    if (tier->slots.plain.fresh_count != 0)
        return error_set(error, STATUS_UNSUPPORTED, "another selection while KV is in the host tier");
    if (config->host_bytes < bytes_min)
        return error_set(error, STATUS_MEMORY,
                         "--kv-host: %" PRIu64 " bytes, but this context needs at least %" PRIu64 ": %" PRIu64
                         " for key index, tables and buffers, %" PRIu64 " for chunks",
                         config->host_bytes, bytes_min, fixed, bytes_min - fixed);
    TRY(divide(tier, error));
    tier_release_bounce(tier);
    tier->bounce.memory = aligned_alloc(IO_ALIGNMENT, max_size(kv_budget_bounce_bytes(config), IO_ALIGNMENT));
    if (tier->bounce.memory == NULL) return error_set(error, STATUS_MEMORY, "KV tier: out of memory");
    const size_t upload = kv_budget_upload_bytes(config);
    return slab_init(&tier->bounce.upload, cache->device, MEMORY_SHARED, upload / TIER_UPLOADS,
                     upload > 0 ? TIER_UPLOADS : 0, error);
}

void tier_release_bounce(struct kv_tier *tier) {
    free(tier->bounce.memory);
    tier->bounce.memory = NULL;
    slab_deinit(&tier->bounce.upload);
}

enum status kv_sequence_set_fractions(struct kv_sequence *sequence, const struct page_fractions *fractions,
                                      struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    ASSERT(sequence->cache->config.mixes_pages && fractions->layer_count == sequence->cache->config.layer_count);
    ASSERT(sequence->length == 0 && sequence->pages->source_count == 0);
    sequence->pages->fractions = *fractions;
    if (tier_used_bytes(sequence->cache) > 0 || page_fractions_equal(&tier->fractions, fractions)) return STATUS_OK;
    tier_drain_all(tier);
    tier->fractions = *fractions;
    return divide(tier, error);
}

/* Layers with resident heads keep their fractions, as slots were divided by them. */
static void keep_residents(const struct kv_sequence *sequence, struct page_fractions *fractions) {
    const struct kv_tier *tier = sequence->cache->tier;
    const struct page_fractions *before = &sequence->pages->fractions;
    const struct kv_cache_config *config = &sequence->cache->config;
    struct page_span *last = &fractions->later[fractions->later_count - 1];
    for (size_t layer = 0; layer < fractions->layer_count; layer++)
        for (size_t head = 0; head < kv_heads(config, layer); head++)
            if (tier->lane_stays[kv_lane(config, layer, head)])
                last->sixteenths[layer] = (uint8_t)page_fractions_at(before, layer, last->chunk_first);
}

enum status kv_sequence_change_fractions(struct kv_sequence *sequence, const struct page_fractions *wanted,
                                         struct error *error) {
    struct sequence_pages *pages = sequence->pages;
    struct page_fractions fractions = *wanted;
    ASSERT(kv_sequence_may_change_fractions(sequence) && fractions.later_count > 0);
    ASSERT(fractions.later[fractions.later_count - 1].chunk_first * KV_CHUNK_TOKENS >= sequence->length);
    keep_residents(sequence, &fractions);
    TRY(document_set_fractions(pages->sources[pages->source_count - 1].document, &fractions, error));
    pages->fractions = pages->backing.layout.fractions = fractions;
    return STATUS_OK;
}

bool kv_sequence_may_change_fractions(const struct kv_sequence *sequence) {
    const struct sequence_pages *pages = sequence->pages;
    return pages != NULL && pages->writes && pages->saved && pages->failed == STATUS_OK &&
           document_layout(pages->sources[pages->source_count - 1].document)->fractions.layer_count > 0;
}

bool kv_sequence_divides_slots(const struct kv_sequence *sequence) { return tier_used_bytes(sequence->cache) == 0; }

const struct page_fractions *kv_sequence_fractions(const struct kv_sequence *sequence) {
    const struct sequence_pages *pages = sequence->pages;
    return pages != NULL && pages->fractions.layer_count > 0 ? &pages->fractions : NULL;
}

bool tier_is_divided(const struct kv_cache *cache) { return cache->tier->slots.list != NULL; }

static uint64_t pool_used_bytes(const struct tier_pool *pool) {
    return (pool->fresh_count - pool->free_count) * pool->slot_bytes;
}

uint64_t tier_used_bytes(const struct kv_cache *cache) {
    const struct tier_slots *slots = &cache->tier->slots;
    return pool_used_bytes(&slots->plain) + pool_used_bytes(&slots->quantized);
}

/* kv_budget: what a budget of RAM (kv_cache_config.host_bytes) holds.  Arithmetic on numbers alone. */
#pragma once

#include "cache/kv_tier.h"

/* Slots of the two kinds. */
struct slot_counts {
    uint64_t plain, quantized;
};

/* Bytes of a slot of rows, whole pages; of a 4-bit chunk, 0 where there are none; of the area that 4-bit pages are
 * read to. */
size_t kv_budget_plain_bytes(const struct kv_cache_config *config);
size_t kv_budget_quantized_bytes(const struct kv_cache_config *config);
size_t kv_budget_staging_bytes(const struct kv_cache_config *config);
/* Heads whose runs of the key index are written together: as many as every buffer for writing holds. */
size_t kv_budget_write_heads(const struct kv_cache_config *config);
/* Of the area that blocks of the key index are written from, and parts of saved states are read to. */
size_t kv_budget_bounce_bytes(const struct kv_cache_config *config);
/* Of the areas that the device's own memory gets a key index from, each of so many runs of all heads of a
 * layer; 0: RAM has it. */
size_t kv_budget_upload_bytes(const struct kv_cache_config *config);
size_t kv_budget_upload_runs(const struct kv_cache_config *config);
/* Pages that are being read at once, at most: no more than there are. */
size_t kv_budget_ring_pages(const struct kv_cache_config *config);
/* Bytes of everything but slots. */
uint64_t kv_budget_fixed_bytes(const struct kv_cache_config *config);
/* What a step cannot do without. */
struct slot_counts kv_budget_slots_min(const struct kv_cache_config *config);
/* With what the tier keeps about each. */
uint64_t kv_budget_slot_bytes(const struct kv_cache_config *config, struct slot_counts counts);
/* What stays in RAM whole: the first layers, and heads of later ones. */
struct kv_residents {
    size_t layer_count;
    const uint32_t *lanes; /* borrowed; [lane_count] kv_lane, each once */
    size_t lane_count;
};
/* For every chunk of theirs, in the form in which it stays. */
struct slot_counts kv_budget_resident_slots(const struct kv_cache_config *config,
                                            const struct page_fractions *fractions,
                                            const struct kv_residents *residents);
/* Of a budget that suffices (kv_tier_bytes_min): the first layers that it holds whole, of those that are wanted, and
 * then the first of the lanes; and all slots.  lanes: all those that are wanted, in layers behind the first ones. */
struct kv_residents kv_budget_residents(const struct kv_cache_config *config, const struct page_fractions *fractions,
                                        const uint32_t *lanes, size_t lane_count);
struct slot_counts kv_budget_slots(const struct kv_cache_config *config, const struct page_fractions *fractions,
                                   const struct kv_residents *residents);

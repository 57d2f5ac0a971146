/* What a budget of RAM holds: bytes that are taken whatever there is, slots, and how they are divided. */
#include <string.h>

#include "base/checked.h"
#include "cache/kv_budget_internal.h"
#include "cache/kv_tier_internal.h"

/* A slot holds a chunk of any group: it is as large as the largest. */
size_t kv_budget_plain_bytes(const struct kv_cache_config *config) {
    return align_up(kv_cache_chunk_bytes_max(config), IO_ALIGNMENT);
}

size_t kv_budget_quantized_bytes(const struct kv_cache_config *config) {
    size_t bytes = 0;
    for (size_t i = 0; i < kv_group_count(config) && config->quantized_pages; i++) {
        struct kv_layout layout;
        kv_group_layout(config, i, &layout);
        bytes = max_size(bytes, kv_q4_chunk_bytes(&layout));
    }
    return bytes;
}

size_t kv_budget_write_heads(const struct kv_cache_config *config) {
    const size_t run = max_size(KEY_INDEX_RUN * config->key_index_bytes, 1);
    return min_size(max_size(STORE_BUFFER_BYTES_MIN / run, 1), max_size(kv_heads_max(config), 1));
}

size_t kv_budget_bounce_bytes(const struct kv_cache_config *config) {
    const size_t part = store_state_part_bytes(config->state_floats * sizeof(float)),
                 runs = kv_budget_write_heads(config) * KEY_INDEX_RUN * config->key_index_bytes;
    return max_size(align_up(runs, IO_ALIGNMENT), part);
}

size_t kv_budget_upload_runs(const struct kv_cache_config *config) {
    const uint64_t chunks = kv_chunks_of(config->token_capacity / max_size(config->sequence_capacity, 1));
    return min_size((chunks + KEY_INDEX_RUN - 1) / KEY_INDEX_RUN,
                    max_size(TIER_UPLOAD_RUNS / kv_heads_max(config), 1));
}

/* What RAM has is read to where it lies. */
size_t kv_budget_upload_bytes(const struct kv_cache_config *config) {
    if (kv_key_index_is_in_ram(config)) return 0;
    return TIER_UPLOADS * align_up(kv_budget_upload_runs(config) * KEY_INDEX_RUN * kv_heads_max(config) *
                                       config->key_index_bytes,
                                   IO_ALIGNMENT);
}

size_t kv_budget_ring_pages(const struct kv_cache_config *config) {
    const uint64_t all = kv_lane_count(config) * kv_chunks_of(config->token_capacity);
    return config->quantized_pages ? TIER_STAGING_PAGES : max_size(min_size(all, TIER_RING_PAGES), TIER_STAGING_PAGES);
}

static uint64_t device_tables_bytes(const struct kv_cache_config *config) {
    const uint64_t sequences = max_size(config->sequence_capacity, 1);
    return sequences * kv_sequence_device_table_bytes(config, kv_chunks_of(config->token_capacity / sequences));
}

/* In RAM. */
static uint64_t tables_bytes(const struct kv_cache_config *config) {
    const uint64_t sequences = max_size(config->sequence_capacity, 1),
                   chunks = kv_chunks_of(config->token_capacity / sequences);
    struct kv_tier tier;
    struct layout layout = {0};
    tier_place(&tier, &layout, config);
    return layout.used + columns_bytes(kv_column_count(config)) +
           sequences * (kv_sequence_table_bytes(config, chunks) + tier_pages_bytes(config, chunks)) -
           (config->device_has_memory ? device_tables_bytes(config) : 0);
}

static uint64_t plain_cost(const struct kv_cache_config *config) {
    return kv_budget_plain_bytes(config) + TIER_SLOT_TABLE_BYTES;
}
static uint64_t quantized_cost(const struct kv_cache_config *config) {
    return kv_budget_quantized_bytes(config) + TIER_SLOT_TABLE_BYTES;
}

size_t kv_budget_staging_bytes(const struct kv_cache_config *config) {
    return align_up(kv_budget_quantized_bytes(config), IO_ALIGNMENT) * TIER_STAGING_PAGES;
}

struct store_layout kv_tier_store_layout(const struct kv_cache_config *config) {
    const uint64_t state_bytes = config->state_floats * (uint64_t)sizeof(float);
    struct store_layout store = {.layer_count = (uint32_t)config->layer_count,
                                 .key_index_bytes = (uint32_t)config->key_index_bytes};
    size_t numbers[KV_GROUPS_MAX], count = 0;
    store.state_bytes = state_bytes <= STORE_STATE_BYTES_MAX ? (uint32_t)state_bytes : UINT32_MAX; /* is refused */
    if (config->mixes_pages) store.fractions.layer_count = (uint16_t)config->layer_count;
    for (size_t i = 0; i < kv_group_count(config); i++) {
        const size_t heads = kv_group_at(config, i).geometry.kv_head_count;
        numbers[i] = heads > 0 ? count++ : STORE_GROUP_NONE;
        if (heads == 0) continue;
        struct kv_layout layout;
        kv_group_layout(config, i, &layout);
        const uint32_t rows = (uint32_t)layout.chunk_bytes;
        const struct store_group group = {.kv_head_count = (uint32_t)heads,
                                          .chunk_bytes =
                                              config->quantized_pages ? (uint32_t)kv_q4_chunk_bytes(&layout) : rows,
                                          .tail_bytes = config->quantized_pages ? rows : 0};
        if (numbers[i] > 0) {
            store.groups.later[store.groups.later_count++] = group;
            continue;
        }
        store.kv_head_count = group.kv_head_count;
        store.chunk_bytes = group.chunk_bytes;
        store.tail_bytes = group.tail_bytes;
    }
    if (config->windows != NULL) store.windows.tokens = (uint32_t)config->windows->tokens;
    for (size_t layer = 0; layer < config->layer_count && layer < STORE_GROUP_LAYERS_MAX; layer++) {
        store.windows.slides[layer] = kv_slides(config, layer);
        if (config->groups != NULL) store.groups.of_layer[layer] = (uint8_t)numbers[kv_group_of(config, layer)];
    }
    return store;
}

/* Of the document that each sequence has open. */
static uint64_t documents_bytes(const struct kv_cache_config *config) {
    const struct store_layout layout = kv_tier_store_layout(config);
    const uint64_t sequences = max_size(config->sequence_capacity, 1);
    return config->buffer_bytes == 0 /* no disk */
               ? 0
               : sequences * document_memory_bytes(&layout, config->token_capacity / sequences);
}

uint64_t kv_tier_device_bytes(const struct kv_cache_config *config) {
    if (!config->device_has_memory) return 0;
    const uint64_t key_index =
        kv_key_index_is_in_ram(config) ? 0 : kv_key_index_blocks(config) * config->key_index_bytes;
    return key_index + max_size(config->sequence_capacity, 1) * kv_states_bytes(config) + device_tables_bytes(config);
}

uint64_t kv_budget_fixed_bytes(const struct kv_cache_config *config) {
    const uint64_t key_index =
        kv_key_index_is_in_ram(config) ? kv_key_index_blocks(config) * config->key_index_bytes : 0;
    return config->buffer_bytes + config->scratch_bytes + tables_bytes(config) + documents_bytes(config) + key_index +
           kv_budget_bounce_bytes(config) + kv_budget_upload_bytes(config) + kv_budget_staging_bytes(config);
}

/* The least number of slots of each kind.  Plain: for every head of every layer the chunk that grows and the one before
 * it, which is being written; for one layer what a block appends; and one head's whole context, which attention over
 * everything needs at once.  With 4-bit pages the chunk before is quantized already, and what a block appends of that
 * head is part of its context.  Quantized: what a block fills, or what one head may choose, at most a chunk for each
 * row; by then what the block filled has been written, or is on its way.  Where pages are mixed any of these may be of
 * either kind, so that the least is the same for all fractions. */
struct slot_counts kv_budget_slots_min(const struct kv_cache_config *config) {
    uint64_t sequences = max_size(config->sequence_capacity, 1);
    uint64_t growing = kv_lane_count(config) * sequences;
    uint64_t block = kv_heads_max(config) * (kv_chunks_of(config->block_tokens) + 1);
    uint64_t context = kv_chunks_of(config->token_capacity / sequences) + 1;
    if (!config->quantized_pages) return (struct slot_counts){.plain = growing * 2 + block + context};
    uint64_t own = block / kv_heads_max(config), chosen = context;
    if (config->chosen_tokens > 0 && config->chosen_tokens < chosen) chosen = config->chosen_tokens;
    const uint64_t quantized = block > chosen ? block : chosen;
    if (config->mixes_pages)
        return (struct slot_counts){.plain = growing * 2 + block + context, .quantized = quantized};
    return (struct slot_counts){.plain = growing + block + (context > own ? context - own : 0), .quantized = quantized};
}

uint64_t kv_budget_slot_bytes(const struct kv_cache_config *config, struct slot_counts counts) {
    return counts.plain * plain_cost(config) + counts.quantized * quantized_cost(config);
}

uint64_t kv_tier_bytes_min(const struct kv_cache_config *config) {
    return kv_budget_fixed_bytes(config) + kv_budget_slot_bytes(config, kv_budget_slots_min(config));
}

/* Of a head's or a layer's chunks of all sequences' whole contexts so many are quantized. */
static uint64_t quantized_chunks(const struct kv_cache_config *config, const struct page_fractions *fractions,
                                 size_t layer, size_t head_first, size_t head_end) {
    const uint64_t sequences = max_size(config->sequence_capacity, 1);
    uint64_t quantized = 0;
    for (size_t head = head_first; head < head_end; head++)
        quantized += page_fractions_before(fractions, layer, head, kv_heads(config, layer),
                                           kv_chunks_of(config->token_capacity / sequences));
    return sequences * quantized;
}

/* Chunks of a head's whole context, of all sequences: of a layer that slides, those that a sequence has at most. */
static uint64_t lane_chunks(const struct kv_cache_config *config, size_t layer) {
    const uint64_t all = kv_chunks_of(config->token_capacity);
    if (!kv_slides(config, layer) || config->mixes_pages) return all;
    return min_size(all,
                    max_size(config->sequence_capacity, 1) * kv_window_columns(config->windows, config->batch_tokens));
}

static void add_slots(struct slot_counts *sum, struct slot_counts more) {
    sum->plain += more.plain;
    sum->quantized += more.quantized;
}

/* Slots for the chunks of some heads' whole contexts. */
static struct slot_counts head_slots(const struct kv_cache_config *config, const struct page_fractions *fractions,
                                     size_t layer, size_t head_first, size_t head_end) {
    const uint64_t chunks = (head_end - head_first) * lane_chunks(config, layer);
    if (!config->mixes_pages)
        return config->quantized_pages ? (struct slot_counts){.quantized = chunks}
                                       : (struct slot_counts){.plain = chunks};
    const uint64_t quantized = quantized_chunks(config, fractions, layer, head_first, head_end),
                   rounding = max_size(config->sequence_capacity, 1); /* of chunks per sequence */
    return (struct slot_counts){.plain = chunks + rounding - quantized, .quantized = quantized + rounding};
}

struct slot_counts kv_budget_resident_slots(const struct kv_cache_config *config,
                                            const struct page_fractions *fractions,
                                            const struct kv_residents *residents) {
    struct slot_counts counts = {0, 0};
    for (size_t i = 0; i < residents->layer_count; i++)
        add_slots(&counts, head_slots(config, fractions, i, 0, kv_heads(config, i)));
    for (size_t i = 0; i < residents->lane_count; i++) {
        const struct kv_lane_place place = kv_lane_place(config, residents->lanes[i]);
        add_slots(&counts, head_slots(config, fractions, place.layer, place.kv_head, place.kv_head + 1));
    }
    return counts;
}

struct kv_residents kv_budget_residents(const struct kv_cache_config *config, const struct page_fractions *fractions,
                                        const uint32_t *lanes, size_t lane_count) {
    const size_t wanted = min_size(config->resident_layers, config->layer_count);
    const uint64_t rest = config->host_bytes - kv_tier_bytes_min(config);
    struct kv_residents residents = {.layer_count = wanted, .lanes = lanes};
    while (residents.layer_count > 0 &&
           kv_budget_slot_bytes(config, kv_budget_resident_slots(config, fractions, &residents)) > rest)
        residents.layer_count--;
    if (residents.layer_count < wanted) return residents;
    do residents.lane_count++;
    while (residents.lane_count <= lane_count &&
           kv_budget_slot_bytes(config, kv_budget_resident_slots(config, fractions, &residents)) <= rest);
    residents.lane_count--;
    return residents;
}

/* Of `rest` bytes what goes to quantized slots, by the chunks that are quantized of all. */
static uint64_t quantized_of(const struct kv_cache_config *config, const struct page_fractions *fractions,
                             uint64_t rest) {
    enum { PARTS = 1 << 16 };
    uint64_t quantized = 0, all = kv_lane_count(config) * max_size(config->sequence_capacity, 1) *
                                  kv_chunks_of(config->token_capacity / max_size(config->sequence_capacity, 1));
    if (!config->mixes_pages) return rest / quantized_cost(config);
    for (size_t i = 0; i < config->layer_count; i++)
        quantized += quantized_chunks(config, fractions, i, 0, kv_heads(config, i));
    quantized = quantized * PARTS / all; /* or the product would not fit */
    return rest * quantized / (quantized * quantized_cost(config) + (PARTS - quantized) * plain_cost(config));
}

/* With 4-bit pages plain slots hold growing chunks, and what attention over everything reads, which is all chunks where
 * there is no key index.  Where pages are mixed they also hold the pages that are rows. */
struct slot_counts kv_budget_slots(const struct kv_cache_config *config, const struct page_fractions *fractions,
                                   const struct kv_residents *residents) {
    struct slot_counts counts = kv_budget_slots_min(config);
    add_slots(&counts, kv_budget_resident_slots(config, fractions, residents));
    uint64_t rest = config->host_bytes - kv_budget_fixed_bytes(config) - kv_budget_slot_bytes(config, counts);
    uint64_t all = kv_lane_count(config) * config->sequence_capacity; /* a chunk that grows, of each */
    for (size_t i = 0; i < config->layer_count; i++) all += kv_heads(config, i) * lane_chunks(config, i);
    if (!config->quantized_pages) {
        counts.plain += rest / plain_cost(config);
    } else {
        uint64_t plain = config->key_index_bytes > 0 ? 0 : rest / 2 / plain_cost(config);
        uint64_t quantized = quantized_of(config, fractions, rest - plain * plain_cost(config));
        if (config->mixes_pages) plain = (rest - quantized * quantized_cost(config)) / plain_cost(config);
        counts.plain += plain;
        counts.quantized += quantized;
    }
    counts.plain = counts.plain < all ? counts.plain : all;
    counts.quantized = counts.quantized < all ? counts.quantized : all;
    return counts;
}

uint64_t kv_tier_heads_bytes(const struct kv_cache_config *config, size_t head_count) {
    return head_count * kv_chunks_of(config->token_capacity) * plain_cost(config);
}

uint64_t kv_tier_slots_bytes(const struct kv_cache_config *config, uint64_t kv_bytes) {
    uint64_t bytes;
    return checked_multiply(kv_bytes / kv_cache_chunk_bytes_max(config), plain_cost(config), &bytes) ? bytes
                                                                                                     : UINT64_MAX;
}

uint64_t kv_tier_bytes_around(const struct kv_cache_config *config, uint64_t kv_bytes) {
    return kv_budget_fixed_bytes(config) + kv_bytes / kv_budget_plain_bytes(config) * plain_cost(config);
}

uint64_t kv_tier_chunk_slots(const struct kv_cache_config *config, uint8_t quantized_of_16) {
    struct page_fractions fractions = {.layer_count = config->mixes_pages ? (uint16_t)config->layer_count : 0};
    memset(fractions.sixteenths, quantized_of_16, fractions.layer_count);
    const struct slot_counts counts = kv_budget_slots(config, &fractions, &(struct kv_residents){0});
    const uint64_t growing = config->quantized_pages ? kv_budget_slots_min(config).plain : 0;
    return counts.plain + counts.quantized - growing;
}

double kv_tier_page_bytes(const struct kv_cache_config *config, uint8_t quantized_of_16) {
    double bytes = 0, heads = 0;
    for (size_t i = 0; i < kv_group_count(config); i++) {
        const struct kv_group group = kv_group_at(config, i);
        const size_t group_heads = group.layer_count * group.geometry.kv_head_count;
        struct kv_layout layout;
        kv_group_layout(config, i, &layout);
        bytes += (double)(group_heads *
                          (align_up(kv_q4_chunk_bytes(&layout), IO_ALIGNMENT) * quantized_of_16 +
                           align_up(layout.chunk_bytes, IO_ALIGNMENT) * (PAGE_FRACTION_WHOLE - quantized_of_16)));
        heads += (double)group_heads;
    }
    return bytes / (PAGE_FRACTION_WHOLE * heads);
}

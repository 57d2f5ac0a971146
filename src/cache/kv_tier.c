/* The tier as a whole: its life and its sequences', what it did, and whether RAM will do without the disk. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/kv_budget_internal.h"
#include "cache/kv_tier_internal.h"

static enum status create(struct kv_cache *cache, struct error *error) {
    const struct kv_cache_config *config = &cache->config;
    const struct device *device = cache->device;
    struct kv_tier *tier = calloc(1, sizeof *tier);
    if (tier == NULL) return error_set(error, STATUS_MEMORY, "KV tier: out of memory");
    cache->tier = tier;
    tier->cache = cache;
    tier->reclaim = tier_reclaim;
    tier->quantized_bytes = kv_budget_quantized_bytes(config);
    tier->reads.page_bytes = align_up(tier->quantized_bytes, IO_ALIGNMENT);
    struct layout layout = {0};
    tier_place(tier, &layout, config);
    layout = (struct layout){.memory = calloc(1, layout.used)};
    if (layout.memory == NULL) return error_set(error, STATUS_MEMORY, "KV tier: out of memory");
    tier_place(tier, &layout, config);
    codec_kernels_init(&tier->codec, cpu_features()); /* all variants give the same bits */
    ASSERT(!config->mixes_pages || (config->quantized_pages && config->layer_count <= PAGE_FRACTIONS_LAYERS_MAX));
    tier->fractions.layer_count = config->mixes_pages ? (uint16_t)config->layer_count : 0;
    memset(tier->fractions.sixteenths, PAGE_FRACTION_WHOLE / 2,
           tier->fractions.layer_count); /* until a sequence has its own */
    if (kv_group_count(config) == 1)     /* else pages are read whole */
        tier->page_parts =
            store_page_parts(&(struct store_layout){.chunk_bytes = (uint32_t)kv_budget_plain_bytes(config)});
    tier->gap_bytes = (size_t)(config->read_gap_bytes != 0 ? config->read_gap_bytes : KV_READ_GAP_BYTES);
    return device->operations->stream_create(cache->device, &tier->stream, error);
}

static void destroy(struct kv_cache *cache) {
    struct kv_tier *tier = cache->tier;
    if (tier == NULL) return;
    tier_release_slots(tier);
    if (tier->stream != NULL) tier->cache->device->operations->stream_destroy(tier->stream);
    free(tier->reads.ring);
    free(tier->wanted_lanes);
    tier_release_bounce(tier);
    free(tier->reads.began_ns);
    free(tier);
}

static enum status add(struct kv_sequence *sequence, struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct layout layout = {.memory = calloc(1, tier_pages_bytes(config, sequence->column_capacity))};
    if (layout.memory == NULL) return error_set(error, STATUS_MEMORY, "KV sequence: out of memory");
    sequence->pages = tier_pages_place(&layout, config, sequence->column_capacity);
    for (size_t lane = 0; lane < kv_lane_count(config); lane++) sequence->pages->held[lane] = TIER_NO_SLOT;
    return STATUS_OK;
}

static void remove_sequence(struct kv_sequence *sequence) {
    struct sequence_pages *pages = sequence->pages;
    if (pages == NULL) return;
    if (sequence->column_count > 0 || pages->source_count > 0) tier_forget(sequence);
    free(pages);
    sequence->pages = NULL;
}

enum status kv_tier_create(struct kv_cache **cache, struct device *device, const struct kv_cache_config *config,
                           struct error *error) {
    static const struct kv_chunk_owner owner = {.create = create,
                                                .destroy = destroy,
                                                .divide = tier_divide,
                                                .is_divided = tier_is_divided,
                                                .used_bytes = tier_used_bytes,
                                                .give_back = tier_give_back,
                                                .add = add,
                                                .remove = remove_sequence,
                                                .drop = tier_drop,
                                                .truncate = tier_truncate};
    ASSERT(config->host_bytes > 0);
    return kv_cache_create_owned(cache, device, config, &owner, error);
}

#define ROW(KIND, UNIT, MEMBER, NAME, HELP) COUNTER_ROW(KIND, UNIT, struct kv_tier_statistics, MEMBER, NAME, HELP)
static const struct counter counter_rows[] = {
    ROW(LEVEL, BYTES, host_bytes, "host_bytes", "Slots ever used, key index, tables and buffers."),
    ROW(TOTAL, BYTES, read_bytes, "read_bytes", "Pages read from disk."),
    ROW(TOTAL, ITEMS, read_pages, "read_pages", "Pages read from disk."),
    ROW(TOTAL, ITEMS, read_requests, "read_requests", "Requests to the disk for them: neighbours are read in one."),
    ROW(TOTAL, BYTES, write_bytes, "write_bytes", "Pages written to disk."),
    ROW(TOTAL, ITEMS, hits, "hits", "Chunks attended to that were in memory."),
    ROW(TOTAL, ITEMS, misses, "misses", "Chunks attended to that were read."),
    ROW(TOTAL, ITEMS, prefetched, "prefetched", "Chunks read before they were chosen."),
    ROW(TOTAL, ITEMS, prefetch_hits, "prefetch_hits", "Of these, chunks that were then chosen."),
    ROW(TOTAL, SECONDS, wait_ns, "wait_seconds", "Time in which nothing could be computed."),
    ROW(TOTAL, BYTES, key_index_read_bytes, "key_index_read_bytes", "Key index read from disk."),
    ROW(TOTAL, ITEMS, resident_read_pages, "resident_read_pages", "Pages read of layers that stay in RAM."),
    ROW(LEVEL, ITEMS, resident_layers, "resident_layers", "Layers that stay in RAM."),
    ROW(LEVEL, ITEMS, resident_heads, "resident_heads", "KV heads of later layers that do."),
    ROW(LEVEL, ITEMS, held, "held_chunks", "Chunks that heads hold now."),
};
#undef ROW
const struct counter_table kv_tier_counters = COUNTER_TABLE("kv_", struct kv_tier_statistics, counter_rows);

struct kv_tier_statistics kv_tier_statistics(const struct kv_cache *cache) {
    if (cache->tier == NULL) return (struct kv_tier_statistics){0};
    struct kv_tier_statistics statistics = cache->tier->statistics;
    statistics.held = cache->tier->slots.plain.held_count + cache->tier->slots.quantized.held_count;
    statistics.resident_layers = cache->tier->residents.layer_count;
    statistics.resident_heads = cache->tier->residents.lane_count;
    statistics.host_bytes = tier_host_bytes(cache->tier);
    return statistics;
}

enum status kv_tier_set_trace(struct kv_cache *cache, struct trace *trace, struct error *error) {
    struct kv_tier *tier = cache->tier;
    if (tier == NULL) return STATUS_OK;
    free(tier->reads.began_ns);
    tier->reads.trace = NULL;
    tier->reads.began_ns = trace != NULL ? calloc(tier->reads.ring_pages, sizeof *tier->reads.began_ns) : NULL;
    if (trace != NULL && tier->reads.began_ns == NULL)
        return error_set(error, STATUS_MEMORY, "KV tier: no memory for the times of reads");
    tier->reads.trace = trace;
    return STATUS_OK;
}

/* Of a layer with windows the last ones alone. */
static uint64_t first_of(const struct kv_cache_config *config, size_t layer, uint64_t chunk_first, uint64_t chunk_end) {
    if (!kv_slides(config, layer)) return chunk_first;
    const uint64_t most = kv_window_columns(config->windows, config->batch_tokens);
    return chunk_end > chunk_first + most ? chunk_end - most : chunk_first;
}

/* Slots that chunks [chunk_first, chunk_end) of the heads that do not stay take, the last one of them as it grows. */
static struct slot_counts slots_of_chunks(const struct kv_sequence *sequence, uint64_t chunk_first,
                                          uint64_t chunk_end) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct slot_counts counts = {0, 0};
    const bool *stays = sequence->cache->tier->lane_stays;
    for (size_t layer = 0; layer < config->layer_count; layer++)
        for (size_t head = 0; head < kv_heads(config, layer); head++)
            for (uint64_t chunk = first_of(config, layer, chunk_first, chunk_end);
                 chunk < chunk_end && !stays[kv_lane(config, layer, head)]; chunk++)
                if (chunk + 1 < chunk_end && kv_chunk_is_quantized(sequence, layer, head, chunk))
                    counts.quantized++;
                else
                    counts.plain++;
    return counts;
}

/* What is lacking for them, beside those that stay and a head's chunks from the disk. */
static struct slot_counts lacking(const struct kv_sequence *sequence, uint64_t token_count) {
    const struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    uint64_t first = tier_sources_end(sequence), sequences = max_size(config->sequence_capacity, 1);
    struct slot_counts needed = slots_of_chunks(sequence, first, kv_chunks_of(token_count)),
                       stays = kv_budget_resident_slots(config, &tier->fractions, &tier->residents);
    needed.plain = needed.plain * sequences + stays.plain + first;
    needed.quantized = needed.quantized * sequences + stays.quantized + (config->quantized_pages ? first : 0);
    return (struct slot_counts){
        needed.plain > tier->slots.plain.count ? needed.plain - tier->slots.plain.count : 0,
        needed.quantized > tier->slots.quantized.count ? needed.quantized - tier->slots.quantized.count : 0};
}

enum status kv_sequence_holds(struct kv_sequence *sequence, uint64_t token_count, struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    if (tier == NULL || sequence->pages->failed == STATUS_OK || sequence->pages->backing.store != NULL)
        return STATUS_OK;
    for (;;) {
        struct slot_counts lack = lacking(sequence, token_count);
        if (lack.plain == 0 && lack.quantized == 0) return STATUS_OK;
        struct kv_residents fewer = tier->residents;
        if (fewer.layer_count + fewer.lane_count == 0)
            return tier_without_disk(sequence, tier_failure_status(sequence), error,
                                     "and for the KV of %" PRIu64 " tokens that the disk does not have --kv-host "
                                     "lacks at least %" PRIu64 " bytes",
                                     token_count - tier_sources_end(sequence) * KV_CHUNK_TOKENS,
                                     kv_budget_slot_bytes(&sequence->cache->config, lack));
        if (fewer.lane_count > 0)
            fewer.lane_count--;
        else
            fewer.layer_count--;
        tier_set_residents(tier, fewer);
    }
}

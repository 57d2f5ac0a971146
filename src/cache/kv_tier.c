/* The host tier: slots, who goes, reads.  What is written is in kv_tier_write.c. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/kv_tier_internal.h"
#include "platform/clock.h"

enum {
    QUEUE_DEPTH = 128,
    READ_BATCH = 64,
    SAMPLE_SLOTS = 16, /* of which the one that is used least goes */
    AGE_USES = 16,     /* uses per slot after which all counts are halved */
    PREFETCH_CHUNKS = 8,
};

/* ---- life ---- */

static uint64_t tables_bytes(const struct kv_cache_config *config) {
    uint64_t rows = config->layer_count * config->kv_head_count,
             chunks = kv_chunks_of(config->token_capacity);
    size_t tables = (size_t)1 + (config->metadata_bytes > 0 ? 1 : 0) + (config->q4_pages ? 1 : 0);
    return rows * chunks * (tables * sizeof(void *) + sizeof(uint8_t)) + chunks * 2 * sizeof(uint64_t) +
           (uint64_t)TIER_RING_PAGES * sizeof(uint32_t);
}

static uint64_t rows_bytes_of(const struct kv_cache_config *config) {
    struct kv_layout layout;
    kv_layout_init(&layout, config->k_type, config->v_type, config->k_dimension, config->v_dimension);
    return align_up(layout.chunk_bytes, IO_ALIGNMENT);
}

/* A 4-bit chunk; 0: pages are what slots are. */
static size_t q4_bytes_of(const struct kv_cache_config *config) {
    struct kv_layout layout;
    if (!config->q4_pages) return 0;
    kv_layout_init(&layout, config->k_type, config->v_type, config->k_dimension, config->v_dimension);
    return kv_q4_chunk_bytes(&layout);
}

/* What the tier keeps about a slot. */
enum { SLOT_TABLE_BYTES = sizeof(struct slot) + 2 * sizeof(uint32_t) };

static uint64_t rows_cost(const struct kv_cache_config *config) {
    return rows_bytes_of(config) + SLOT_TABLE_BYTES;
}
static uint64_t packed_cost(const struct kv_cache_config *config) {
    return q4_bytes_of(config) + SLOT_TABLE_BYTES;
}

static uint64_t staging_bytes_of(const struct kv_cache_config *config) {
    return align_up(q4_bytes_of(config), IO_ALIGNMENT) * TIER_STAGING_PAGES;
}

/* Of the document that each sequence has open. */
static uint64_t documents_bytes(const struct kv_cache_config *config) {
    const struct store_layout layout = {.layer_count = (uint32_t)config->layer_count,
                                        .kv_head_count = (uint32_t)config->kv_head_count,
                                        .metadata_bytes = (uint32_t)config->metadata_bytes};
    uint64_t sequences = max_size(config->sequence_capacity, 1);
    return config->buffer_bytes == 0 /* no disk */
               ? 0
               : sequences * document_memory_bytes(&layout, config->token_capacity / sequences);
}

static uint64_t fixed_bytes(const struct kv_cache_config *config) {
    uint64_t metadata = kv_column_metadata_bytes(config) * kv_chunks_of(config->token_capacity);
    return config->buffer_bytes + config->scratch_bytes + tables_bytes(config) + documents_bytes(config) +
           metadata + TIER_RUN_CHUNKS * config->metadata_bytes + staging_bytes_of(config);
}

struct tier_share {
    uint64_t rows, packed; /* slots */
};

/* Rows: for every head of every layer the chunk that grows and the one before it, which is being written; for one layer
 * what a block appends; and one head's whole context, which attention over everything needs at once.  With 4-bit
 * pages the chunk before is packed already, and what a block appends of that head is part of its context (a block that
 * appends less leaves more); and there are packed slots for what a block fills, or one head may choose: by
 * then what the block filled has been written, or is on its way.  Where pages are mixed any of all that may be
 * of either kind, so that the least is the same whatever the shares are. */
static struct tier_share slots_least(const struct kv_cache_config *config) {
    uint64_t sequences = max_size(config->sequence_capacity, 1);
    uint64_t growing = config->layer_count * config->kv_head_count * sequences;
    uint64_t block = config->kv_head_count * (kv_chunks_of(config->block_tokens) + 1);
    uint64_t context = kv_chunks_of(config->token_capacity / sequences) + 1;
    if (!config->q4_pages) return (struct tier_share){.rows = growing * 2 + block + context};
    uint64_t own = block / config->kv_head_count, packed = block > context ? block : context;
    if (config->mixes_pages)
        return (struct tier_share){.rows = growing * 2 + block + context, .packed = packed};
    return (struct tier_share){.rows = growing + block + (context > own ? context - own : 0),
                               .packed = packed};
}

static uint64_t share_bytes(const struct kv_cache_config *config, struct tier_share share) {
    return share.rows * rows_cost(config) + share.packed * packed_cost(config);
}

uint64_t kv_tier_bytes_least(const struct kv_cache_config *config) {
    return fixed_bytes(config) + share_bytes(config, slots_least(config));
}

/* Every chunk of the first layers, in the form in which it stays. */
static struct tier_share layers_share(const struct kv_cache_config *config, const struct page_shares *shares,
                                      size_t layer_count) {
    uint64_t layer = config->kv_head_count * kv_chunks_of(config->token_capacity), packed = 0;
    if (!config->mixes_pages)
        return config->q4_pages ? (struct tier_share){.packed = layer_count * layer}
                                : (struct tier_share){.rows = layer_count * layer};
    for (size_t i = 0; i < layer_count; i++) packed += layer * shares->sixteenths[i] / PAGE_SHARE_WHOLE;
    uint64_t rounding =
        layer_count * max_size(config->sequence_capacity, 1); /* each sequence's share has its own */
    return (struct tier_share){.rows = layer_count * layer - packed + rounding, .packed = packed + rounding};
}

/* The first layers that a budget which suffices holds whole, of those that are wanted. */
static size_t resident_layers_of(const struct kv_cache_config *config, const struct page_shares *shares) {
    size_t layers = min_size(config->resident_layers, config->layer_count);
    uint64_t rest = config->host_bytes - kv_tier_bytes_least(config);
    while (layers > 0 && share_bytes(config, layers_share(config, shares, layers)) > rest) layers--;
    return layers;
}

/* Of `rest` bytes what goes to packed slots, by the chunks that are packed of all. */
static uint64_t packed_of(const struct kv_cache_config *config, const struct page_shares *shares,
                          uint64_t rest) {
    uint64_t packed = 0, all = config->layer_count * PAGE_SHARE_WHOLE;
    if (!config->mixes_pages) return rest / packed_cost(config);
    for (size_t i = 0; i < config->layer_count; i++) packed += shares->sixteenths[i];
    return rest * packed / (packed * packed_cost(config) + (all - packed) * rows_cost(config));
}

/* What a budget that suffices gives.  With 4-bit pages rows are a workplace: of what grows, and of attention over
 * everything, which without metadata is all there is; and where pages are mixed the place of those that are rows. */
static struct tier_share slots_of(const struct kv_cache_config *config, const struct page_shares *shares) {
    struct tier_share share = slots_least(config),
                      resident = layers_share(config, shares, resident_layers_of(config, shares));
    share.rows += resident.rows;
    share.packed += resident.packed;
    uint64_t rest = config->host_bytes - fixed_bytes(config) - share_bytes(config, share);
    uint64_t all = config->layer_count * config->kv_head_count *
                   (kv_chunks_of(config->token_capacity) + config->sequence_capacity);
    if (!config->q4_pages) {
        share.rows += rest / rows_cost(config);
    } else {
        uint64_t rows = config->metadata_bytes > 0 ? 0 : rest / 2 / rows_cost(config);
        uint64_t packed = packed_of(config, shares, rest - rows * rows_cost(config));
        if (config->mixes_pages) rows = (rest - packed * packed_cost(config)) / rows_cost(config);
        share.rows += rows;
        share.packed += packed;
    }
    share.rows = share.rows < all ? share.rows : all;
    share.packed = share.packed < all ? share.packed : all;
    return share;
}

static void pool_init(struct tier_pool *pool, const struct kv_tier *tier, uint8_t *memory, size_t slot_bytes,
                      uint64_t first, uint64_t count) {
    *pool = (struct tier_pool){.memory = memory,
                               .slot_bytes = slot_bytes,
                               .first = first,
                               .count = count,
                               .free_slots = tier->stacks + 2 * first,
                               .victims = tier->stacks + 2 * first + count};
}

static uint64_t host_bytes(const struct kv_tier *tier) {
    const struct tier_share used = {tier->rows.fresh_count, tier->packed.fresh_count};
    uint64_t bytes = fixed_bytes(&tier->cache->config) + share_bytes(&tier->cache->config, used);
    return bytes > tier->host_bytes_most ? bytes : tier->host_bytes_most;
}

static void release_slots(struct kv_tier *tier) {
    io_queue_destroy(tier->queue);
    if (tier->slab != NULL)
        tier->cache->device->operations->release(tier->cache->device, MEMORY_HOST, tier->slab,
                                                 tier->slab_bytes);
    free(tier->slots);
    free(tier->stacks);
    tier->queue = NULL;
    tier->slab = NULL;
    tier->slots = NULL;
    tier->stacks = NULL;
}

static enum status create_slots(struct kv_tier *tier, struct tier_share share, struct error *error) {
    const struct kv_cache_config *config = &tier->cache->config;
    const size_t rows_bytes = (size_t)rows_bytes_of(config), staging = (size_t)staging_bytes_of(config);
    uint64_t count = share.rows + share.packed;
    if (count >= TIER_NO_SLOT) return error_set(error, STATUS_MEMORY, "KV tier: too many slots");
    tier->slab_bytes = staging + share.rows * rows_bytes + share.packed * tier->q4_bytes;
    void *slab;
    TRY(tier->cache->device->operations->allocate(tier->cache->device, MEMORY_HOST, tier->slab_bytes, &slab,
                                                  error));
    tier->slab = tier->staging = slab;
    tier->slots = calloc(count, sizeof *tier->slots);
    tier->stacks = calloc(2 * count, sizeof *tier->stacks);
    if (tier->slots == NULL || tier->stacks == NULL)
        return error_set(error, STATUS_MEMORY, "KV tier: no memory for the table of %" PRIu64 " slots",
                         count);
    pool_init(&tier->rows, tier, tier->slab + staging, rows_bytes, 0, share.rows);
    pool_init(&tier->packed, tier, tier->rows.memory + share.rows * rows_bytes, tier->q4_bytes, share.rows,
              share.packed);
    const struct io_queue_options options = {.backend = config->backend, .depth = QUEUE_DEPTH};
    tier->is_registered = false;
    return io_queue_create(&tier->queue, &options, error);
}

/* What reads go to is told to the queue, an advantage or not, once all of it has been used: telling makes it resident,
 * and a document that is opened for one question would wait for memory that it never needs. */
static void register_memory(struct kv_tier *tier) {
    const struct kv_cache_config *config = &tier->cache->config;
    size_t bytes = (size_t)staging_bytes_of(config);
    bool to_rows = !config->q4_pages || config->mixes_pages;
    if (tier->is_registered || io_queue_in_flight(tier->queue) > 0) return;
    if (to_rows && tier->rows.fresh_count < tier->rows.count) return;
    if (to_rows) bytes += (size_t)tier->rows.count * tier->rows.slot_bytes;
    tier->is_registered = true;
    (void)io_queue_register_memory(tier->queue, tier->slab, bytes);
}

uint64_t kv_tier_bytes_around(const struct kv_cache_config *config, uint64_t kv_bytes) {
    return fixed_bytes(config) + kv_bytes / rows_bytes_of(config) * rows_cost(config);
}

enum status kv_tier_create(struct kv_cache *cache, struct error *error) {
    const struct kv_cache_config *config = &cache->config;
    const struct device *device = cache->device;
    if (!device->reaches_host)
        return error_set(error, STATUS_UNSUPPORTED,
                         "KV on disk with device %s, whose operations cannot read the host's memory",
                         device->name);
    struct kv_tier *tier = calloc(1, sizeof *tier);
    if (tier == NULL) return error_set(error, STATUS_MEMORY, "KV tier: out of memory");
    cache->tier = tier;
    tier->cache = cache;
    tier->q4_bytes = q4_bytes_of(config);
    tier->staging_bytes = align_up(tier->q4_bytes, IO_ALIGNMENT);
    tier->ring_pages = tier->q4_bytes > 0 ? TIER_STAGING_PAGES : TIER_RING_PAGES;
    tier->ring = calloc(tier->ring_pages, sizeof *tier->ring);
    codec_kernels_init(&tier->codec, cpu_features()); /* all variants give the same bits */
    ASSERT(!config->mixes_pages || (config->q4_pages && config->layer_count <= PAGE_SHARES_LAYERS_MOST));
    tier->shares.layer_count = config->mixes_pages ? (uint16_t)config->layer_count : 0;
    memset(tier->shares.sixteenths, PAGE_SHARE_WHOLE / 2,
           tier->shares.layer_count); /* until a sequence has some */
    if (tier->ring == NULL) return error_set(error, STATUS_MEMORY, "KV tier: out of memory");
    return device->operations->stream_create(cache->device, &tier->stream, error);
}

void kv_tier_destroy(struct kv_tier *tier) {
    if (tier == NULL) return;
    release_slots(tier);
    if (tier->stream != NULL) tier->cache->device->operations->stream_destroy(tier->stream);
    free(tier->ring);
    free(tier->metadata_run);
    free(tier->began_ns);
    free(tier);
}

static enum status divide(struct kv_tier *tier, struct error *error) {
    const struct kv_cache_config *config = &tier->cache->config;
    tier->host_bytes_most = host_bytes(tier);
    release_slots(tier);
    tier->resident_layers = resident_layers_of(config, &tier->shares);
    return create_slots(tier, slots_of(config, &tier->shares), error);
}

enum status kv_tier_divide(struct kv_tier *tier, struct error *error) {
    const struct kv_cache_config *config = &tier->cache->config;
    uint64_t fixed = fixed_bytes(config), least = kv_tier_bytes_least(config);
    if (tier->rows.fresh_count != 0)
        return error_set(error, STATUS_UNSUPPORTED, "another selection while KV is in the host tier");
    if (config->host_bytes < least)
        return error_set(error, STATUS_MEMORY,
                         "--kv-host: %" PRIu64 " bytes, but this context needs at least %" PRIu64 ": %" PRIu64
                         " for metadata, tables and buffers, %" PRIu64 " for chunks",
                         config->host_bytes, least, fixed, least - fixed);
    TRY(divide(tier, error));
    free(tier->metadata_run);
    tier->metadata_run = calloc(TIER_RUN_CHUNKS, max_size(config->metadata_bytes, 1));
    if (tier->metadata_run == NULL) return error_set(error, STATUS_MEMORY, "KV tier: out of memory");
    return STATUS_OK;
}

enum status kv_sequence_set_shares(struct kv_sequence *sequence, const struct page_shares *shares,
                                   struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    ASSERT(sequence->cache->config.mixes_pages && shares->layer_count == sequence->cache->config.layer_count);
    ASSERT(sequence->length == 0 && sequence->source_count == 0);
    sequence->shares = *shares;
    if (kv_tier_used_bytes(tier) > 0 || memcmp(&tier->shares, shares, sizeof *shares) == 0) return STATUS_OK;
    tier_drain_all(tier);
    tier->shares = *shares;
    return divide(tier, error);
}

const struct page_shares *kv_sequence_shares(const struct kv_sequence *sequence) {
    return sequence->shares.layer_count > 0 ? &sequence->shares : NULL;
}

bool kv_tier_is_divided(const struct kv_tier *tier) { return tier->slots != NULL; }

static uint64_t pool_used_bytes(const struct tier_pool *pool) {
    return (pool->fresh_count - pool->free_count) * pool->slot_bytes;
}

uint64_t kv_tier_used_bytes(const struct kv_tier *tier) {
    return pool_used_bytes(&tier->rows) + pool_used_bytes(&tier->packed);
}

struct kv_tier_statistics kv_tier_statistics(const struct kv_cache *cache) {
    if (cache->tier == NULL) return (struct kv_tier_statistics){0};
    struct kv_tier_statistics statistics = cache->tier->statistics;
    statistics.resident_layers = cache->tier->resident_layers;
    statistics.host_bytes = host_bytes(cache->tier);
    return statistics;
}

enum status kv_tier_set_trace(struct kv_cache *cache, struct trace *trace, struct error *error) {
    struct kv_tier *tier = cache->tier;
    if (tier == NULL) return STATUS_OK;
    free(tier->began_ns);
    tier->trace = NULL;
    tier->began_ns = trace != NULL ? calloc(tier->ring_pages, sizeof *tier->began_ns) : NULL;
    if (trace != NULL && tier->began_ns == NULL)
        return error_set(error, STATUS_MEMORY, "KV tier: no memory for the times of reads");
    tier->trace = trace;
    return STATUS_OK;
}

enum status kv_tier_failure(const struct kv_cache *cache, struct error *error) {
    if (cache->tier == NULL || cache->tier->failed == STATUS_OK) return STATUS_OK;
    if (error != NULL) *error = cache->tier->failure;
    return cache->tier->failed;
}

enum status kv_tier_full(const struct kv_cache *cache, struct error *error) {
    for (const struct kv_sequence *s = cache->sequences; s != NULL; s = s->next)
        if (s->write_failed != STATUS_OK)
            return error_set(error, s->write_failed == STATUS_IO ? STATUS_IO : STATUS_MEMORY,
                             "%s; and without the disk --kv-host does not hold the KV",
                             s->write_failure.message);
    return error_set(error, STATUS_MEMORY,
                     "KV tier: all %" PRIu64 " slots are in use: give more --kv-host, or --kv-disk",
                     cache->tier->rows.count + cache->tier->packed.count);
}

/* Slots that chunks [chunk_first, chunk_end) of the layers that do not stay take, the last one of them as it grows. */
static struct tier_share chunks_share(const struct kv_sequence *sequence, uint64_t chunk_first,
                                      uint64_t chunk_end) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct tier_share share = {0, 0};
    for (size_t layer = sequence->cache->tier->resident_layers; layer < config->layer_count; layer++)
        for (size_t head = 0; head < config->kv_head_count; head++)
            for (uint64_t chunk = chunk_first; chunk < chunk_end; chunk++)
                if (chunk + 1 < chunk_end && kv_chunk_is_packed(sequence, layer, head, chunk))
                    share.packed++;
                else
                    share.rows++;
    return share;
}

static uint64_t chunks_on_disk(const struct kv_sequence *sequence) {
    return sequence->source_count > 0 ? sequence->sources[sequence->source_count - 1].chunk_end : 0;
}

/* What is lacking for them, beside the layers that stay and a head's chunks from the disk. */
static struct tier_share lacking(const struct kv_sequence *sequence, uint64_t token_count) {
    const struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    uint64_t first = chunks_on_disk(sequence), sequences = max_size(config->sequence_capacity, 1);
    struct tier_share needed = chunks_share(sequence, first, kv_chunks_of(token_count)),
                      stays = layers_share(config, &tier->shares, tier->resident_layers);
    needed.rows = needed.rows * sequences + stays.rows + first;
    needed.packed = needed.packed * sequences + stays.packed + (config->q4_pages ? first : 0);
    return (struct tier_share){needed.rows > tier->rows.count ? needed.rows - tier->rows.count : 0,
                               needed.packed > tier->packed.count ? needed.packed - tier->packed.count : 0};
}

enum status kv_sequence_holds(struct kv_sequence *sequence, uint64_t token_count, struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    if (tier == NULL || sequence->write_failed == STATUS_OK || sequence->backing.store != NULL)
        return STATUS_OK;
    for (;;) {
        struct tier_share lack = lacking(sequence, token_count);
        if (lack.rows == 0 && lack.packed == 0) return STATUS_OK;
        if (tier->resident_layers == 0)
            return error_set(error, sequence->write_failed == STATUS_IO ? STATUS_IO : STATUS_MEMORY,
                             "%s; and for the KV of %" PRIu64
                             " tokens that the disk does not have --kv-host lacks at least %" PRIu64 " bytes",
                             sequence->write_failure.message,
                             token_count - chunks_on_disk(sequence) * KV_CHUNK_TOKENS,
                             share_bytes(&sequence->cache->config, lack));
        tier->resident_layers--;
    }
}

void kv_tier_fail(struct kv_tier *tier, const struct error *error) {
    if (tier->failed != STATUS_OK) return;
    tier->failed = error->status;
    tier->failure = *error;
}

enum status kv_tier_add(struct kv_sequence *sequence, struct error *error) {
    size_t layers = sequence->cache->config.layer_count;
    sequence->written = calloc(layers, sizeof *sequence->written);
    sequence->complete = calloc(layers, sizeof *sequence->complete);
    sequence->rounded = calloc(layers, sizeof *sequence->rounded);
    sequence->uses =
        calloc(layers * sequence->cache->config.kv_head_count, max_size(sequence->column_capacity, 1));
    if (sequence->written != NULL && sequence->complete != NULL && sequence->rounded != NULL &&
        sequence->uses != NULL)
        return STATUS_OK;
    return error_set(error, STATUS_MEMORY, "KV sequence: out of memory");
}

/* ---- slots ---- */

static bool is_packed(const struct kv_tier *tier, const struct slot *slot) {
    return (uint64_t)(slot - tier->slots) >= tier->packed.first;
}

static struct tier_pool *pool_of(struct kv_tier *tier, const struct slot *slot) {
    return is_packed(tier, slot) ? &tier->packed : &tier->rows;
}

struct slot *tier_slot_at(const struct kv_tier *tier, const void *chunk) {
    const uint8_t *at = chunk;
    const struct tier_pool *pool =
        tier->packed.count > 0 && at >= tier->packed.memory ? &tier->packed : &tier->rows;
    return &tier->slots[pool->first + (size_t)(at - pool->memory) / pool->slot_bytes];
}

uint8_t *tier_slot_memory(const struct kv_tier *tier, const struct slot *slot) {
    const struct tier_pool *pool = is_packed(tier, slot) ? &tier->packed : &tier->rows;
    return pool->memory + ((size_t)(slot - tier->slots) - pool->first) * pool->slot_bytes;
}

static void **slot_entry(const struct kv_tier *tier, const struct slot *slot) {
    size_t heads = tier->cache->config.kv_head_count;
    return (is_packed(tier, slot) ? kv_packed_entry : kv_chunk_entry)(slot->sequence, slot->row / heads,
                                                                      slot->row % heads, slot->chunk);
}

struct document *tier_document_of(const struct kv_sequence *sequence, uint64_t chunk) {
    for (size_t i = sequence->source_count; i > 0; i--) {
        const struct kv_source *source = &sequence->sources[i - 1];
        if (chunk >= source->chunk_first && chunk < source->chunk_end) return source->document;
    }
    return NULL;
}

/* A page on its way has arrived on disk: the slot may go. */
static bool is_written(struct kv_tier *tier, struct slot *slot) {
    size_t heads = tier->cache->config.kv_head_count;
    const struct document *document = tier_document_of(slot->sequence, slot->chunk);
    ASSERT(slot->state == SLOT_QUEUED && document != NULL);
    if (!document_page_written(document, slot->row / heads, slot->row % heads, slot->chunk)) return false;
    slot->state = SLOT_CLEAN;
    tier->queued_count--;
    return true;
}

/* The slot holds what is to stay in memory; rows of a chunk that is there in 4 bits are copies, and of a sequence with
 * other shares than there are slots for nothing stays. */
static bool is_resident(const struct kv_tier *tier, const struct slot *slot) {
    const size_t heads = tier->cache->config.kv_head_count;
    if (slot->row >= tier->resident_layers * heads) return false;
    if (tier->cache->config.mixes_pages &&
        memcmp(&slot->sequence->shares, &tier->shares, sizeof tier->shares) != 0)
        return false;
    return is_packed(tier, slot) ==
           kv_chunk_is_packed(slot->sequence, slot->row / heads, slot->row % heads, slot->chunk);
}

static bool may_go(struct kv_tier *tier, struct slot *slot) {
    if (slot->sequence == NULL || slot->pins > 0 || is_resident(tier, slot)) return false;
    return slot->state == SLOT_CLEAN || (slot->state == SLOT_QUEUED && is_written(tier, slot));
}

/* The slot is nobody's; it is not put among the free ones. */
static void slot_forget(struct kv_tier *tier, struct slot *slot) {
    ASSERT(slot->pins == 0 && slot->state != SLOT_READING);
    if (slot->state == SLOT_QUEUED) tier->queued_count--;
    *slot_entry(tier, slot) = NULL;
    slot->sequence = NULL;
    slot->state = SLOT_FREE;
}

void tier_slot_free(struct kv_tier *tier, struct slot *slot) {
    struct tier_pool *pool = pool_of(tier, slot);
    slot_forget(tier, slot);
    pool->free_slots[pool->free_count++] = (uint32_t)(slot - tier->slots);
}

/* ---- who goes ---- */

static uint8_t *uses_at(struct kv_sequence *sequence, size_t row, uint64_t chunk) {
    return &sequence->uses[row * sequence->column_capacity + chunk];
}

static uint8_t uses_of(const struct slot *slot) { return *uses_at(slot->sequence, slot->row, slot->chunk); }

/* Counts that never fell would keep what was wanted long ago. */
static void age_uses(struct kv_tier *tier, struct tier_pool *pool) {
    size_t rows = tier->cache->config.layer_count * tier->cache->config.kv_head_count;
    for (struct kv_sequence *s = tier->cache->sequences; s != NULL; s = s->next)
        for (size_t i = 0; i < rows * s->column_capacity; i++) s->uses[i] /= 2;
    pool->use_count = 0;
}

static void count_use(struct kv_tier *tier, const struct slot *slot) {
    struct tier_pool *pool = pool_of(tier, slot);
    uint8_t *uses = uses_at(slot->sequence, slot->row, slot->chunk);
    if (*uses < UINT8_MAX) ++*uses;
    if (++pool->use_count > pool->count * AGE_USES) age_uses(tier, pool);
}

static void make_victim(struct kv_tier *tier, struct slot *slot) {
    struct tier_pool *pool = pool_of(tier, slot);
    if (slot->is_victim) return;
    slot->is_victim = true;
    pool->victims[pool->victim_count++] = (uint32_t)(slot - tier->slots);
}

static struct slot *take_victim(struct kv_tier *tier, struct tier_pool *pool) {
    while (pool->victim_count > 0) {
        struct slot *slot = &tier->slots[pool->victims[--pool->victim_count]];
        slot->is_victim = false;
        if (may_go(tier, slot)) return slot;
    }
    return NULL;
}

/* Of the next `sample` slots that may go the one that is used least; NULL: none of the next `most`. */
static struct slot *least_used(struct kv_tier *tier, struct tier_pool *pool, uint64_t most, size_t sample) {
    struct slot *least = NULL;
    size_t seen = 0;
    for (uint64_t i = 0; i < most && seen < sample; i++) {
        struct slot *slot = &tier->slots[pool->first + pool->hand];
        const struct slot *later = slot + (pool->hand + PREFETCH_CHUNKS < pool->count ? PREFETCH_CHUNKS : 0);
        if (later->sequence != NULL)
            __builtin_prefetch(uses_at(later->sequence, later->row, later->chunk), 0);
        pool->hand = (pool->hand + 1) % pool->count;
        if (slot->is_victim || !may_go(tier, slot)) continue;
        seen++;
        if (least == NULL || uses_of(slot) < uses_of(least)) least = slot;
    }
    return least;
}

/* A chunk that was brought for a choice stays if it is used more than another one, which then goes in its place: what
 * is wanted now and then does not drive out what is wanted often (LeoAM's table of access frequencies; the
 * admission is that of TinyLFU, Einziger et al. 2017). */
static void admit(struct kv_tier *tier, struct slot *slot) {
    struct slot *other = least_used(tier, pool_of(tier, slot), SAMPLE_SLOTS * 4, SAMPLE_SLOTS);
    make_victim(tier, other != NULL && other != slot && uses_of(other) < uses_of(slot) ? other : slot);
}

/* A slot of nobody; NULL: all are pinned or not on disk yet.  A scan takes what comes next, without comparing. */
static struct slot *slot_take(struct kv_tier *tier, struct tier_pool *pool, bool scan) {
    if (pool->free_count > 0) return &tier->slots[pool->free_slots[--pool->free_count]];
    if (pool->fresh_count < pool->count) return &tier->slots[pool->first + pool->fresh_count++];
    struct slot *slot = take_victim(tier, pool);
    if (slot == NULL) slot = least_used(tier, pool, pool->count, scan ? 1 : SAMPLE_SLOTS);
    if (slot != NULL) slot_forget(tier, slot);
    return slot;
}

static void slot_give(struct kv_tier *tier, struct slot *slot, struct kv_sequence *sequence, size_t row,
                      uint64_t chunk, enum slot_state state) {
    *slot = (struct slot){.sequence = sequence,
                          .row = (uint32_t)row,
                          .chunk = (uint32_t)chunk,
                          .state = (uint8_t)state,
                          .is_victim = slot->is_victim};
    *slot_entry(tier, slot) = tier_slot_memory(tier, slot);
}

static void drain(struct kv_tier *tier, size_t least);

/* Waits for what is being written; with spill, also writes what nobody had asked to write. */
static void reclaim(struct kv_tier *tier, bool spill) {
    for (struct kv_sequence *s = tier->cache->sequences; s != NULL; s = s->next) {
        struct error error;
        enum status status = STATUS_OK;
        if (spill && !s->writes && s->backing.store != NULL && s->write_failed == STATUS_OK)
            status = tier_spill(s, &error);
        if (status == STATUS_OK && s->writes)
            status = document_flush(s->sources[s->source_count - 1].document, &error);
        if (status != STATUS_OK) tier_stop_writing(s, &error);
    }
}

static struct slot *slot_take_or_reclaim(struct kv_tier *tier, struct tier_pool *pool, bool scan) {
    struct slot *slot = slot_take(tier, pool, scan);
    while (slot == NULL &&
           io_queue_in_flight(tier->queue) > 0) { /* what nobody waits for any more may go when it has come */
        drain(tier, 1);
        slot = slot_take(tier, pool, scan);
    }
    for (size_t round = 0; slot == NULL && round < 2 && tier->failed == STATUS_OK; round++) {
        reclaim(tier, round == 1);
        slot = slot_take(tier, pool, scan);
    }
    return slot;
}

struct slot *tier_slot_dirty(struct kv_tier *tier, struct tier_pool *pool, struct kv_sequence *sequence,
                             size_t row, uint64_t chunk) {
    struct slot *slot = slot_take_or_reclaim(tier, pool, true);
    if (slot != NULL) slot_give(tier, slot, sequence, row, chunk, SLOT_DIRTY);
    return slot;
}

/* ---- reads ---- */

/* memory: the slot's own, or the page's in the staging area. */
static void page_arrived(struct kv_tier *tier, struct slot *slot, void *memory,
                         const struct io_completion *completion) {
    size_t heads = tier->cache->config.kv_head_count;
    const struct page_read read = {.layer = (uint32_t)(slot->row / heads),
                                   .kv_head = (uint32_t)(slot->row % heads),
                                   .chunk = slot->chunk,
                                   .memory = memory};
    struct error error;
    if (slot->row < tier->resident_layers * heads) tier->statistics.resident_read_pages++;
    enum status status =
        completion->status == STATUS_OK
            ? document_check_page(tier_document_of(slot->sequence, slot->chunk), &read, &error)
            : document_read_failed(tier_document_of(slot->sequence, slot->chunk), completion, &error);
    if (status != STATUS_OK)
        kv_tier_fail(tier, &error);
    else if (is_packed(tier, slot))
        memcpy(tier_slot_memory(tier, slot), memory, tier->q4_bytes);
    else if (slot->staged)
        tier->codec.q4_decode(&tier->cache->layout, memory, tier_slot_memory(tier, slot));
    ASSERT(slot->state == SLOT_READING);
    slot->state = SLOT_CLEAN;
    slot->staged = false;
}

static void trace_read(struct kv_tier *tier, uint64_t tag, size_t pages) {
    const struct slot *slot = &tier->slots[tier->ring[tag % tier->ring_pages]];
    size_t heads = tier->cache->config.kv_head_count;
    trace_add(tier->trace, &(struct trace_span){.name = "read",
                                                .begin_ns = tier->began_ns[tag % tier->ring_pages],
                                                .end_ns = clock_ns(),
                                                .track = TRACE_READS,
                                                .layer = (uint32_t)(slot->row / heads),
                                                .kv_head = (uint32_t)(slot->row % heads),
                                                .chunk = slot->chunk,
                                                .count = (uint32_t)pages});
}

static void pages_arrived(struct kv_tier *tier, const struct io_completion *completions, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t tag = completions[i].request.tag;
        size_t page_bytes = tier->slots[tier->ring[tag % tier->ring_pages]].staged ? tier->staging_bytes
                                                                                   : tier->rows.slot_bytes;
        size_t pages = (completions[i].request.bytes + page_bytes - 1) / page_bytes;
        if (tier->trace != NULL) trace_read(tier, tag, pages);
        for (size_t p = 0; p < pages; p++, tag++) {
            uint32_t *place = &tier->ring[tag % tier->ring_pages];
            page_arrived(tier, &tier->slots[*place],
                         (uint8_t *)completions[i].request.memory + p * page_bytes, &completions[i]);
            *place = TIER_NO_SLOT;
        }
        tier->statistics.read_bytes += completions[i].request.bytes;
        tier->statistics.read_pages += pages;
    }
}

/* Waits for at least so many completions of requests. */
static void drain(struct kv_tier *tier, size_t least) {
    struct io_completion completions[READ_BATCH];
    uint64_t began = clock_ns();
    size_t count = least > 0 ? io_queue_wait(tier->queue, completions, READ_BATCH, least)
                             : io_queue_poll(tier->queue, completions, READ_BATCH);
    if (least > 0) tier->statistics.wait_ns += clock_ns() - began;
    if (least > 0 && tier->trace != NULL)
        trace_add(tier->trace, &(struct trace_span){.name = "disk",
                                                    .begin_ns = began,
                                                    .end_ns = clock_ns(),
                                                    .track = TRACE_WAITS,
                                                    .layer = TRACE_NONE,
                                                    .kv_head = TRACE_NONE,
                                                    .chunk = TRACE_NONE,
                                                    .count = TRACE_NONE});
    pages_arrived(tier, completions, count);
}

static void tags_retire(struct kv_tier *tier) {
    while (tier->tag_oldest < tier->tag_next &&
           tier->ring[tier->tag_oldest % tier->ring_pages] == TIER_NO_SLOT)
        tier->tag_oldest++;
}

void tier_drain_all(struct kv_tier *tier) {
    while (io_queue_in_flight(tier->queue) > 0) drain(tier, 1);
}

struct read_batch {
    struct document *document;
    struct page_read reads[READ_BATCH];
    struct slot *slots[READ_BATCH];
    size_t count;
};

static void batch_submit(struct kv_tier *tier, struct read_batch *batch) {
    register_memory(tier);
    for (tags_retire(tier); tier->tag_next + batch->count - tier->tag_oldest > tier->ring_pages;
         tags_retire(tier))
        drain(tier, 1);
    for (size_t i = 0; i < batch->count; i++) {
        size_t place = (tier->tag_next + i) % tier->ring_pages;
        tier->ring[place] = (uint32_t)(batch->slots[i] - tier->slots);
        if (tier->trace != NULL) tier->began_ns[place] = clock_ns();
        if (batch->slots[i]->staged) batch->reads[i].memory = tier->staging + place * tier->staging_bytes;
    }
    for (size_t next = 0; next < batch->count;) {
        enum status status = document_read_pages(batch->document, tier->queue, batch->reads, batch->count,
                                                 &next, tier->tag_next);
        if (status != STATUS_OK) drain(tier, 1); /* full */
    }
    tier->tag_next += batch->count;
    batch->count = 0;
}

static void batch_add(struct kv_tier *tier, struct read_batch *batch, struct slot *slot) {
    size_t heads = tier->cache->config.kv_head_count;
    struct document *document = tier_document_of(slot->sequence, slot->chunk);
    ASSERT(document != NULL);
    if (batch->count == READ_BATCH || (batch->count > 0 && document != batch->document))
        batch_submit(tier, batch);
    const struct page_read read = {.layer = (uint32_t)(slot->row / heads),
                                   .kv_head = (uint32_t)(slot->row % heads),
                                   .chunk = slot->chunk,
                                   .memory = tier_slot_memory(tier, slot)};
    slot->staged = kv_chunk_is_packed(slot->sequence, read.layer, read.kv_head, read.chunk) &&
                   !document_read_is_tail(document, &read);
    ASSERT(slot->staged || !is_packed(tier, slot));
    batch->document = document;
    batch->slots[batch->count] = slot;
    batch->reads[batch->count++] = read;
}

/* ---- bringing ---- */

static uint64_t bring_chunk(const struct kv_bring *bring, size_t index);

static int by_number_down(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

/* Slots for a scan's next chunks, in the order of memory: neighbours on the disk become neighbours in memory, and are
 * read in one request.  Without sorting, runs would be cut by every bring that ends between, and never heal. */
static struct slot *scan_slot(struct kv_tier *tier, const struct kv_bring *bring) {
    if (tier->reserve_count == 0) {
        size_t missing = 0;
        for (size_t i = bring->pinned; i < bring->chunk_count && missing < TIER_RESERVE_SLOTS; i++)
            missing += *kv_chunk_entry(bring->sequence, bring->layer_index, bring->kv_head,
                                       bring_chunk(bring, i)) == NULL;
        for (struct slot *slot; missing > 0 && (slot = slot_take(tier, &tier->rows, true)) != NULL; missing--)
            tier->reserve[tier->reserve_count++] = (uint32_t)(slot - tier->slots);
        qsort(tier->reserve, tier->reserve_count, sizeof *tier->reserve, by_number_down);
    }
    return tier->reserve_count > 0 ? &tier->slots[tier->reserve[--tier->reserve_count]] : NULL;
}

static struct slot *bring_take(struct kv_tier *tier, struct tier_pool *pool, const struct kv_bring *bring) {
    ASSERT(!bring->scan || pool == &tier->rows);
    struct slot *slot = bring->scan ? scan_slot(tier, bring) : slot_take(tier, pool, false);
    return slot != NULL || bring->ahead ? slot : slot_take_or_reclaim(tier, pool, bring->scan);
}

/* A scan has so many chunks on their way that another one would only drive out what the scan will come back to. */
static bool scan_is_full(const struct kv_tier *tier, const struct kv_bring *bring) {
    uint64_t most = tier->rows.count / 4;
    if (most < 4 * bring->chunk_count) most = 4 * bring->chunk_count;
    return bring->scan && bring->pinned == 0 && tier->scan_pins > 0 &&
           tier->scan_pins + bring->chunk_count > most;
}

/* What is submitted to a full queue waits, and for a guess nobody does. */
static bool guess_has_room(const struct kv_tier *tier, const struct kv_bring *bring) {
    return !bring->ahead || bring->chunk_count - bring->pinned <= io_queue_room(tier->queue);
}

static uint64_t bring_chunk(const struct kv_bring *bring, size_t index) {
    return bring->chunks != NULL ? bring->chunks[index] : bring->chunk_first + index;
}

/* Chunks that are full are wanted in 4 bits where they may be chosen from, and as rows where they are scanned. */
static void **bring_entry(const struct kv_bring *bring, uint64_t chunk) {
    const struct kv_sequence *sequence = bring->sequence;
    bool formed = bring->packed && sequence->packed != NULL && chunk < sequence->rounded[bring->layer_index];
    return (formed ? kv_form_entry : kv_chunk_entry)(sequence, bring->layer_index, bring->kv_head, chunk);
}

static struct slot *bring_slot(const struct kv_bring *bring, size_t index) {
    return tier_slot_at(bring->sequence->cache->tier, *bring_entry(bring, bring_chunk(bring, index)));
}

/* Rows of a chunk that lies in memory in 4 bits; false: it does not. */
static bool unpack(struct kv_tier *tier, const struct kv_bring *bring, struct slot *slot, uint64_t chunk) {
    const struct kv_sequence *sequence = bring->sequence;
    if (sequence->packed == NULL || is_packed(tier, slot)) return false;
    const void *packed = *kv_packed_entry(sequence, bring->layer_index, bring->kv_head, chunk);
    if (packed == NULL) return false;
    while (tier_slot_at(tier, packed)->state == SLOT_READING) drain(tier, 1);
    tier->codec.q4_decode(&tier->cache->layout, packed, tier_slot_memory(tier, slot));
    slot->state = SLOT_CLEAN;
    return true;
}

/* A slot for a chunk that has none, on its way there; NULL: not now. */
static struct slot *bring_begin_chunk(struct kv_bring *bring, uint64_t chunk, struct read_batch *batch) {
    struct kv_sequence *sequence = bring->sequence;
    struct kv_tier *tier = sequence->cache->tier;
    size_t row = bring->layer_index * sequence->cache->config.kv_head_count + bring->kv_head;
    bool packed =
        bring_entry(bring, chunk) != kv_chunk_entry(sequence, bring->layer_index, bring->kv_head, chunk);
    struct tier_pool *pool = packed ? &tier->packed : &tier->rows;
    struct slot *slot = bring_take(tier, pool, bring);
    if (slot == NULL) return NULL;
    slot_give(tier, slot, sequence, row, chunk, SLOT_READING);
    slot->fetched = true;
    slot->guessed = bring->ahead;
    if (unpack(tier, bring, slot, chunk)) {
        tier->statistics.hits += !bring->ahead;
        return slot;
    }
    batch_add(tier, batch, slot);
    bring->missed++;
    ++*(bring->ahead ? &tier->statistics.guessed : &tier->statistics.misses);
    return slot;
}

/* Slots lie apart, and whatever was computed since they were last looked at has driven them out of the caches. */
static void prefetch_slot(const struct kv_bring *bring, size_t index) {
    if (index >= bring->chunk_count) return;
    uint64_t chunk = bring_chunk(bring, index);
    const void *memory = *bring_entry(bring, chunk);
    size_t row = bring->layer_index * bring->sequence->cache->config.kv_head_count + bring->kv_head;
    __builtin_prefetch(uses_at(bring->sequence, row, chunk), 1);
    if (memory != NULL) __builtin_prefetch(tier_slot_at(bring->sequence->cache->tier, memory), 1);
}

bool kv_bring_begin(struct kv_bring *bring) {
    struct kv_tier *tier = bring->sequence->cache->tier;
    struct read_batch batch;
    batch.count = 0;
    if (scan_is_full(tier, bring) || !guess_has_room(tier, bring)) return false;
    for (; bring->pinned < bring->chunk_count; bring->pinned++) {
        prefetch_slot(bring, bring->pinned + PREFETCH_CHUNKS);
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
        if (bring->scan) tier->scan_pins++;
        if (!bring->scan && !bring->ahead) count_use(tier, slot);
    }
    while (tier->reserve_count > 0) /* evictions made room that is not needed */
        tier->rows.free_slots[tier->rows.free_count++] = tier->reserve[--tier->reserve_count];
    if (batch.count > 0) batch_submit(tier, &batch);
    return bring->pinned == bring->chunk_count;
}

void kv_bring_flush(struct kv_bring *bring) { io_queue_flush(bring->sequence->cache->tier->queue); }

static bool has_arrived(struct kv_bring *bring) {
    while (bring->arrived < bring->pinned && bring_slot(bring, bring->arrived)->state != SLOT_READING)
        bring->arrived++;
    return bring->arrived == bring->chunk_count;
}

bool kv_bring_is_ready(struct kv_bring *bring) {
    if (has_arrived(bring)) return true;
    drain(bring->sequence->cache->tier, 0);
    return has_arrived(bring);
}

enum status kv_bring_wait(struct kv_bring *bring, struct error *error) {
    struct kv_tier *tier = bring->sequence->cache->tier;
    ASSERT(bring->pinned == bring->chunk_count);
    while (!has_arrived(bring)) drain(tier, 1);
    return kv_tier_failure(tier->cache, error);
}

void kv_bring_release(struct kv_bring *bring) {
    struct kv_tier *tier = bring->sequence->cache->tier;
    /* The last first, so that they are taken again in the order of their chunks and neighbours stay neighbours. */
    for (size_t i = bring->pinned; i > 0; i--) {
        if (i > PREFETCH_CHUNKS) prefetch_slot(bring, i - 1 - PREFETCH_CHUNKS);
        struct slot *slot = bring_slot(bring, i - 1);
        ASSERT(slot->pins > 0);
        slot->pins--;
        if (bring->scan) tier->scan_pins--;
        if (!slot->fetched || slot->pins > 0) continue;
        slot->fetched = slot->guessed = false;
        if (is_resident(tier, slot) || bring->stays) continue;
        if (bring->scan)
            make_victim(tier, slot);
        else
            admit(tier, slot);
    }
    bring->pinned = bring->arrived = 0;
}

/* ---- rows ---- */

static void forget_packed(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    struct kv_tier *tier = sequence->cache->tier;
    const void *packed = *kv_packed_entry(sequence, layer, head, chunk);
    if (packed != NULL) tier_slot_free(tier, tier_slot_at(tier, packed));
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
    if (slot->state == SLOT_QUEUED) tier->queued_count--; /* the writer has a copy */
    slot->state = SLOT_DIRTY;
    if (sequence->packed != NULL && status == STATUS_OK) forget_packed(sequence, layer, head, chunk);
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
            if (sequence->packed != NULL && chunk * KV_CHUNK_TOKENS >= position_first)
                forget_packed(sequence, layer_index, head, chunk); /* of a step that failed */
            if (*entry != NULL && tier_slot_at(tier, *entry)->state == SLOT_DIRTY) continue;
            if (*entry != NULL || chunk * KV_CHUNK_TOKENS < position_first) {
                TRY(tier_make_dirty(sequence, layer_index, head, chunk, error));
                continue;
            }
            if (tier_slot_dirty(tier, &tier->rows, sequence, layer_index * heads + head, chunk) != NULL)
                continue;
            TRY(kv_tier_failure(sequence->cache, error));
            return kv_tier_full(sequence->cache, error);
        }
    if (sequence->complete[layer_index] > position_first) sequence->complete[layer_index] = position_first;
    if (sequence->rounded[layer_index] > position_first / KV_CHUNK_TOKENS)
        sequence->rounded[layer_index] = position_first / KV_CHUNK_TOKENS;
    return STATUS_OK;
}

/* The documents of a sequence: opened, created, copied, cut back; and those that nobody will find, for what does not
 * fit in RAM. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/inputs.h"
#include "cache/kv_tier_internal.h"
#include "cache/residency.h"
#include "platform/pool.h"

enum { LAYER_CHUNKS = 4 }; /* read at once, of every head; slots_min has slots for as many */

uint64_t tier_sources_end(const struct kv_sequence *sequence) {
    return sequence->pages->source_count > 0 ? sequence->pages->sources[sequence->pages->source_count - 1].chunk_end
                                             : 0;
}

static enum status add_source(struct kv_sequence *sequence, struct document *document, uint64_t chunk_first,
                              uint64_t chunk_end, struct error *error) {
    if (sequence->pages->source_count == TIER_SOURCES_MAX) {
        document_close(document);
        return error_set(error, STATUS_MEMORY, "KV tier: a sequence that was cut back %d times", TIER_SOURCES_MAX);
    }
    sequence->pages->sources[sequence->pages->source_count++] = (struct page_source){document, chunk_first, chunk_end};
    return STATUS_OK;
}

static enum status create_document(struct kv_sequence *sequence, uint64_t token_capacity, struct error *error) {
    const struct kv_backing *backing = &sequence->pages->backing;
    struct document *document;
    uint64_t first = tier_sources_end(sequence);
    ASSERT(backing->store != NULL && !sequence->pages->writes);
    ASSERT(page_fractions_equal(&backing->layout.fractions, &sequence->pages->fractions));
    TRY(document_create(&document, backing->store,
                        &(struct document_description){.model = &backing->model,
                                                       .layout = &backing->layout,
                                                       .name = backing->name,
                                                       .token_capacity = token_capacity},
                        error));
    TRY(add_source(sequence, document, first, UINT64_MAX, error));
    sequence->pages->writes = true;
    for (size_t layer = 0; layer < sequence->cache->config.layer_count; layer++)
        sequence->pages->written[layer] = sequence->pages->index_written[layer] = first;
    return STATUS_OK;
}

enum status kv_sequence_create_document(struct kv_sequence *sequence, uint64_t token_capacity, struct error *error) {
    ASSERT(sequence->pages->source_count == 0 && sequence->length == 0);
    TRY(create_document(sequence, token_capacity, error));
    sequence->pages->saved = true;
    sequence->pages->committed_tokens = 0;
    return STATUS_OK;
}

uint64_t kv_sequence_document(const struct kv_sequence *sequence, const int32_t *tokens) {
    const struct sequence_pages *pages = sequence->pages;
    if (pages == NULL || pages->source_count == 0) return 0;
    const struct document *document = pages->sources[pages->source_count - 1].document;
    if (pages->writes) return pages->saved && pages->failed == STATUS_OK ? document_id(document) : 0;
    if (document_token_count(document) < sequence->length) return 0;
    const bool same = memcmp(document_tokens(document), tokens, (size_t)sequence->length * sizeof *tokens) == 0;
    return same ? document_id(document) : 0;
}

bool kv_sequence_is_committed(const struct kv_sequence *sequence, const int32_t *tokens, uint64_t token_count) {
    const struct sequence_pages *pages = sequence->pages;
    if (kv_sequence_document(sequence, tokens) == 0) return false;
    return !pages->writes || pages->committed_tokens >= token_count;
}

uint64_t kv_sequence_committed_tokens(const struct kv_sequence *sequence) {
    return sequence->pages != NULL ? sequence->pages->committed_tokens : 0;
}

bool kv_sequence_uses_document(const struct kv_sequence *sequence, uint64_t id) {
    const struct sequence_pages *pages = sequence->pages;
    for (size_t i = 0; pages != NULL && i < pages->source_count; i++)
        if (document_id(pages->sources[i].document) == id) return true;
    return false;
}

static enum status spill_sequence(struct kv_sequence *sequence, struct error *error) {
    TRY(create_document(sequence, sequence->column_capacity * KV_CHUNK_TOKENS, error));
    for (size_t layer = 0; layer < sequence->cache->config.layer_count; layer++)
        TRY(tier_write_chunks(sequence, layer, sequence->pages->complete[layer] / KV_CHUNK_TOKENS, error));
    return STATUS_OK;
}

/* Of layers with windows, which no commit has asked for yet. */
static enum status write_full_windows(struct kv_sequence *sequence, struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    for (size_t layer = 0; layer < config->layer_count; layer++)
        if (kv_slides(config, layer))
            TRY(tier_write_chunks(sequence, layer, sequence->pages->complete[layer] / KV_CHUNK_TOKENS, error));
    return STATUS_OK;
}

/* Nothing of it is written yet, and it may be. */
static bool may_spill(const struct sequence_pages *pages) {
    return !pages->writes && !pages->is_opening && pages->backing.store != NULL && pages->failed == STATUS_OK;
}

/* Waits for what is being written; with spill, also writes what nobody had asked to write. */
void tier_reclaim(struct kv_tier *tier, bool spill) {
    for (struct kv_sequence *s = tier->cache->sequences; s != NULL; s = s->next) {
        struct error error;
        enum status status = STATUS_OK;
        if (spill && may_spill(s->pages)) status = spill_sequence(s, &error);
        if (status == STATUS_OK && s->pages->writes) status = write_full_windows(s, &error);
        if (status == STATUS_OK && s->pages->writes)
            status = document_flush(s->pages->sources[s->pages->source_count - 1].document, &error);
        if (status != STATUS_OK) tier_stop_writing(s, &error);
    }
}

/* Chunks [first, first + count) of a layer's heads, on their way to memory.  wanted: [KV heads of the layer]; NULL:
 * all.  false: there are no slots for all of them. */
static bool begin_heads(struct kv_sequence *sequence, size_t layer, struct kv_fetch *fetches, const bool *wanted,
                        uint64_t first, size_t count) {
    const size_t heads = kv_heads(&sequence->cache->config, layer);
    for (size_t head = 0; head < heads; head++)
        fetches[head] = (struct kv_fetch){.sequence = sequence,
                                          .layer_index = layer,
                                          .kv_head = head,
                                          .chunk_first = first,
                                          .chunk_count = wanted == NULL || wanted[head] ? count : 0,
                                          .quantized = true};
    for (size_t head = 0; head < heads; head++)
        if (!kv_fetch_begin(&fetches[head])) return false;
    return true;
}

static enum status wait_heads(struct kv_fetch *fetches, size_t heads, struct error *error) {
    for (size_t head = 0; head < heads; head++) TRY(kv_fetch_wait(&fetches[head], error));
    return STATUS_OK;
}

static void release_heads(struct kv_fetch *fetches, size_t heads) {
    for (size_t head = 0; head < heads; head++) kv_fetch_release(&fetches[head]);
}

/* In memory until they are released, as their pages are. */
static enum status fetch_heads(struct kv_sequence *sequence, size_t layer, const bool *wanted, uint64_t first,
                               size_t count, struct error *error) {
    struct kv_fetch *fetches = sequence->cache->tier->fetches;
    if (!begin_heads(sequence, layer, fetches, wanted, first, count)) return kv_tier_full(sequence->cache, error);
    return wait_heads(fetches, kv_heads(&sequence->cache->config, layer), error);
}

static void release_layer(struct kv_sequence *sequence, size_t layer) {
    release_heads(sequence->cache->tier->fetches, kv_heads(&sequence->cache->config, layer));
}

/* Key index of chunks [chunk_first, chunk_count) of a document that has none, or others: of its keys. */
static enum status build_key_index(struct kv_sequence *sequence, uint64_t chunk_first, uint64_t chunk_count,
                                   struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct kv_backing *backing = &sequence->pages->backing;
    enum status status = STATUS_OK;
    for (size_t layer = config->key_index_layer_first; layer < config->layer_count; layer++)
        for (uint64_t first = chunk_first; !kv_slides(config, layer) && first < chunk_count && status == STATUS_OK;
             first += LAYER_CHUNKS) {
            size_t count = (size_t)(chunk_count - first < LAYER_CHUNKS ? chunk_count - first : LAYER_CHUNKS);
            status = fetch_heads(sequence, layer, NULL, first, count, error);
            if (status == STATUS_OK)
                status = backing->build_key_index(backing->build_context, sequence, layer, first * KV_CHUNK_TOKENS,
                                                  count * KV_CHUNK_TOKENS, error);
            release_layer(sequence, layer);
        }
    return status;
}

/* Full chunks from the first on whose key index another sequence has of that document. */
static uint64_t has_key_index(const struct kv_sequence *other, const struct document *document) {
    uint64_t chunk = 0;
    while (chunk < other->length / KV_CHUNK_TOKENS) {
        const struct document *its = tier_document_of(other, chunk);
        if (its == NULL || document_id(its) != document_id(document)) break;
        chunk++;
    }
    return chunk;
}

/* What another sequence has in memory of the key index is not read again, and is there once; how many chunks. */
static uint64_t share_key_index(struct kv_sequence *sequence, const struct document *document, uint64_t chunk_count) {
    const struct kv_sequence *best = NULL;
    uint64_t most = 0;
    if (!kv_has_key_index(sequence) || sequence->cache->config.key_index_on_disk) return 0;
    for (const struct kv_sequence *s = sequence->cache->sequences; s != NULL; s = s->next) {
        const uint64_t has = s != sequence ? has_key_index(s, document) : 0;
        if (has <= most) continue;
        most = has;
        best = s;
    }
    if (most > chunk_count) most = chunk_count;
    if (most < chunk_count) most -= most % KEY_INDEX_RUN; /* the rest is read in runs */
    if (most > 0) kv_sequence_share_columns(sequence, best, most);
    return most;
}

/* The chunk of layers from that one on, as many as are read at once; their end. */
static enum status load_tails(struct kv_sequence *sequence, size_t layer_first, uint64_t chunk, size_t *layer_end,
                              struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct kv_fetch *fetches = sequence->cache->tier->fetches;
    const size_t heads_max = kv_heads_max(config), most = min_size(config->layer_count - layer_first, TIER_TAIL_LAYERS);
    enum status status = STATUS_OK;
    size_t count = 0;
    for (bool fits = true; fits && count < most; count += fits) {
        struct kv_fetch *its = fetches + count * heads_max;
        fits = begin_heads(sequence, layer_first + count, its, NULL, chunk, 1);
        if (!fits) release_heads(its, kv_heads(config, layer_first + count)); /* they come with the next ones */
    }
    if (count == 0) return kv_tier_full(sequence->cache, error);
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        status = wait_heads(fetches + i * heads_max, kv_heads(config, layer_first + i), error);
    for (size_t i = 0; i < count; i++) release_heads(fetches + i * heads_max, kv_heads(config, layer_first + i));
    *layer_end = layer_first + count;
    return status;
}

/* The chunk that is not full is what rows are appended to: it leaves the document for good.  Layers one by one would
 * wait for the disk once each. */
static enum status load_tail(struct kv_sequence *sequence, uint64_t token_count, struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    const uint64_t chunk = token_count / KV_CHUNK_TOKENS;
    if (token_count % KV_CHUNK_TOKENS == 0) return STATUS_OK;
    for (size_t layer = 0, end = 0; layer < config->layer_count;) {
        TRY(load_tails(sequence, layer, chunk, &end, error));
        for (; layer < end; layer++)
            for (size_t head = 0; head < kv_heads(config, layer); head++)
                TRY(tier_make_dirty(sequence, layer, head, chunk, error));
    }
    return STATUS_OK;
}

/* What opening a document is besides its key index: the engine's thread's, while others read that. */
struct opening {
    struct kv_sequence *sequence;
    struct document *document;
    uint64_t token_count;
    bool is_done;
    enum status status; /* once it is done, and why it failed */
    struct error why;
};

static enum status do_opening(struct opening *opening, struct error *error) {
    struct trace *trace = opening->sequence->cache->tier->reads.trace;
    TRY(document_open_end(opening->document, error));
    const uint64_t began = trace_clock(trace);
    TRY(tier_load_state(opening->sequence, opening->document, opening->token_count, error));
    TRY(load_tail(opening->sequence, opening->token_count, error));
    trace_since(trace, "read tail", TRACE_ENGINE, began, TRACE_NONE, TRACE_NONE);
    return STATUS_OK;
}

static void opening_end(struct opening *opening) {
    if (!opening->is_done) opening->status = do_opening(opening, &opening->why);
    opening->is_done = true;
}

/* The key index on its way from a document, in parts: a run of a layer, of all KV heads.  To RAM all are read together,
 * in the order in which they lie in the document, [run][layer]; to the device's own memory those of a layer and some
 * runs, which then go up by one copy. */
struct index_parts {
    struct opening *opening;
    struct kv_sequence *sequence;
    struct document *document;
    uint64_t chunk_first, chunk_count; /* chunks [chunk_first, chunk_count) */
    struct tier_blocks blocks;         /* for the device: which ones are read now, of all heads, and where to */
    size_t count;                      /* parts that are read together */
    _Atomic bool has_failed;
    pthread_mutex_t lock;
    size_t failed; /* under lock: the first part that could not be read, and why */
    struct error why;
};

static uint64_t part_end(uint64_t chunk, uint64_t end) {
    return min_size((chunk / KEY_INDEX_RUN + 1) * KEY_INDEX_RUN, end);
}

static size_t part_layers(const struct kv_cache_config *config) {
    return config->layer_count - config->key_index_layer_first;
}

/* Which the host reads to where it lies. */
static struct tier_blocks part_in_ram(const struct index_parts *parts, size_t number) {
    const struct kv_cache_config *config = &parts->sequence->cache->config;
    const size_t layer = config->key_index_layer_first + number % part_layers(config);
    const uint64_t run = (parts->chunk_first / KEY_INDEX_RUN + number / part_layers(config)) * KEY_INDEX_RUN,
                   first = run > parts->chunk_first ? run : parts->chunk_first;
    return (struct tier_blocks){layer, 0, first, part_end(first, parts->chunk_count) - first, NULL};
}

/* Which the device gets. */
static struct tier_blocks part_to_upload(const struct index_parts *parts, size_t number) {
    const struct kv_cache_config *config = &parts->sequence->cache->config;
    const struct tier_blocks *all = &parts->blocks;
    const uint64_t run = (all->chunk_first / KEY_INDEX_RUN + number) * KEY_INDEX_RUN,
                   first = run > all->chunk_first ? run : all->chunk_first,
                   end = part_end(first, all->chunk_first + all->chunk_count);
    uint8_t *memory = all->memory + number * KEY_INDEX_RUN * kv_heads(config, all->layer) * config->key_index_bytes;
    return (struct tier_blocks){all->layer, 0, first, end - first, memory};
}

static bool has_parts(const struct kv_cache_config *config, size_t layer) {
    return kv_heads(config, layer) > 0 && !kv_slides(config, layer);
}

static void read_part(struct index_parts *parts, size_t number) {
    const struct tier_blocks blocks = (parts->blocks.memory != NULL ? part_to_upload : part_in_ram)(parts, number);
    struct error why;
    if (!has_parts(&parts->sequence->cache->config, blocks.layer) ||
        tier_load_run(parts->sequence, parts->document, &blocks, &why) == STATUS_OK)
        return;
    pthread_mutex_lock(&parts->lock);
    if (!parts->has_failed || number < parts->failed) {
        parts->failed = number;
        parts->why = why;
    }
    parts->has_failed = true;
    pthread_mutex_unlock(&parts->lock);
}

/* All parts before one that failed are read: numbers are handed out in order.  The engine's thread first does what
 * else is to be done, while the others read. */
static void read_parts(void *context, const struct pool_worker *worker) {
    struct index_parts *parts = context;
    if (worker->index == 0) {
        opening_end(parts->opening);
        if (parts->opening->status != STATUS_OK) parts->has_failed = true;
    }
    for (size_t i; !parts->has_failed && (i = pool_ticket(worker)) < parts->count;) read_part(parts, i);
}

static size_t run_count(uint64_t chunk_first, uint64_t chunk_end) {
    return (size_t)((chunk_end - 1) / KEY_INDEX_RUN - chunk_first / KEY_INDEX_RUN + 1);
}

static void read_in_ram(struct index_parts *parts) {
    const struct kv_cache *cache = parts->sequence->cache;
    const struct kv_cache_config *config = &cache->config;
    parts->count = run_count(parts->chunk_first, parts->chunk_count) * part_layers(config);
    pool_run(device_pool(cache->device), read_parts, parts);
}

/* While one area goes up, the next one is read to. */
static enum status read_and_upload(struct index_parts *parts, struct error *error) {
    const struct kv_cache *cache = parts->sequence->cache;
    const struct device_operations *operations = cache->device->operations;
    const struct kv_cache_config *config = &cache->config;
    struct ticket tickets[TIER_UPLOADS] = {{NULL, 0}};
    size_t area = 0;
    for (uint64_t first = parts->chunk_first, end; first < parts->chunk_count; first = end) {
        end = min_size((first / KEY_INDEX_RUN + kv_budget_upload_runs(config)) * KEY_INDEX_RUN, parts->chunk_count);
        for (size_t layer = config->key_index_layer_first; layer < config->layer_count; layer++) {
            const struct span source = slab_slot(&cache->tier->bounce.upload, area);
            if (!has_parts(config, layer)) continue;
            if (tickets[area].stream != NULL) TRY(operations->ticket_wait(tickets[area], error));
            parts->blocks = (struct tier_blocks){layer, 0, first, (size_t)(end - first), span_host(source)};
            parts->count = run_count(first, end);
            pool_run(device_pool(cache->device), read_parts, parts);
            if (parts->has_failed) return STATUS_OK; /* the caller tells */
            tier_upload_runs(parts->sequence, &parts->blocks, source);
            tickets[area] = operations->ticket(cache->tier->stream);
            area = (area + 1) % TIER_UPLOADS;
        }
    }
    return STATUS_OK;
}

/* By all threads (decision 0086). */
static enum status read_key_index(struct index_parts *parts, struct error *error) {
    const struct kv_cache *cache = parts->sequence->cache;
    enum status status = STATUS_OK;
    if (kv_key_index_is_in_ram(&cache->config))
        read_in_ram(parts);
    else
        status = read_and_upload(parts, error);
    const enum status moved =
        cache->device->operations->stream_synchronize(cache->tier->stream, status == STATUS_OK ? error : NULL);
    if (parts->opening->status != STATUS_OK) { /* and checksums that parts were compared with may be damaged */
        if (error != NULL) *error = parts->opening->why;
        return parts->opening->status;
    }
    if (parts->has_failed) return document_key_index_failed(parts->document, &parts->why, error);
    return status != STATUS_OK ? status : moved;
}

/* Key index of chunks [chunk_first, chunk_count), as they were saved. */
static enum status load_key_index(struct opening *opening, uint64_t chunk_first, uint64_t chunk_count,
                                  struct error *error) {
    struct kv_sequence *sequence = opening->sequence;
    struct document *document = opening->document;
    const struct kv_cache_config *config = &sequence->cache->config;
    if (!kv_has_key_index(sequence)) return STATUS_OK;
    const struct store_layout *layout = document_layout(document);
    const bool same = strcmp(layout->key_index_kind, sequence->pages->backing.layout.key_index_kind) == 0 &&
                      layout->key_index_bytes == sequence->pages->backing.layout.key_index_bytes;
    if (config->key_index_on_disk && !same)
        return error_set(error, STATUS_UNSUPPORTED, "key index on disk: found %s in the document, expected %s",
                         layout->key_index_kind, sequence->pages->backing.layout.key_index_kind);
    if (config->key_index_on_disk) return STATUS_OK; /* read when a layer chooses */
    if (!same) TRY(document_open_end(document, error));
    if (!same) return build_key_index(sequence, chunk_first, chunk_count, error);
    if (chunk_first >= chunk_count) return STATUS_OK;
    struct index_parts parts = {.opening = opening,
                                .sequence = sequence,
                                .document = document,
                                .chunk_first = chunk_first,
                                .chunk_count = chunk_count,
                                .lock = PTHREAD_MUTEX_INITIALIZER};
    return read_key_index(&parts, error);
}

/* Layers and heads that stay in memory come there now, and are not waited for later. */
static enum status load_resident(struct kv_sequence *sequence, uint64_t token_count, struct error *error) {
    const uint64_t chunk_count = token_count / KV_CHUNK_TOKENS;
    const struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    if (chunk_count == 0) return STATUS_OK;
    enum status status = STATUS_OK;
    for (size_t layer = 0; layer < sequence->cache->config.layer_count && status == STATUS_OK; layer++) {
        const uint64_t first = kv_slides(config, layer) ? kv_window_begin(config->windows->tokens, token_count) : 0;
        status = fetch_heads(sequence, layer, tier->lane_stays + kv_lane(config, layer, 0), first,
                             (size_t)(chunk_count - first), error);
        release_layer(sequence, layer);
    }
    return status;
}

static void forget_chunks(struct kv_sequence *sequence, uint64_t chunk_first) {
    const struct kv_cache_config *config = &sequence->cache->config;
    for (size_t layer = 0; layer < config->layer_count; layer++)
        for (size_t head = 0; head < kv_heads(config, layer); head++)
            for (uint64_t chunk = chunk_first; chunk < sequence->column_count; chunk++)
                tier_forget_chunk(sequence, layer, head, chunk);
}

/* Committed pages behind a cut would be written a second time: what was written stays a source up to the cut, and what
 * comes is written elsewhere. */
static void cut_sources(struct kv_sequence *sequence, uint64_t chunk) {
    while (sequence->pages->source_count > 0) {
        struct page_source *last = &sequence->pages->sources[sequence->pages->source_count - 1];
        if (last->chunk_first < chunk) {
            if (last->chunk_end > chunk) last->chunk_end = chunk;
            break;
        }
        document_close(last->document);
        sequence->pages->source_count--;
    }
    sequence->pages->writes = sequence->pages->saved = false;
}

static enum status load_document(struct kv_sequence *sequence, struct document *document, uint64_t token_count,
                                 struct error *error) {
    struct trace *trace = sequence->cache->tier->reads.trace;
    TRY(add_source(sequence, document, 0, UINT64_MAX, error));
    const uint64_t chunk_count = token_count / KV_CHUNK_TOKENS,
                   shared = share_key_index(sequence, document, chunk_count);
    TRY(kv_sequence_reserve(sequence, token_count, error));
    struct opening opening = {.sequence = sequence, .document = document, .token_count = token_count};
    const uint64_t began = trace_clock(trace);
    TRY(load_key_index(&opening, shared, chunk_count, error));
    trace_since(trace, "read key index", TRACE_ENGINE, began, TRACE_NONE, (uint32_t)(chunk_count - shared));
    opening_end(&opening); /* where nothing of that was read */
    if (opening.status != STATUS_OK && error != NULL) *error = opening.why;
    return opening.status;
}

enum status kv_sequence_open_document(struct kv_sequence *sequence, struct document *document, uint64_t token_count,
                                      bool writable, struct error *error) {
    ASSERT(sequence->length == 0 && sequence->pages->source_count == 0);
    ASSERT(token_count <= document_token_count(document));
    struct kv_tier *tier = sequence->cache->tier;
    tier_drain_all(tier); /* from here on what cannot be read is this document's */
    enum status status = kv_tier_failure(sequence->cache, error);
    struct page_fractions fractions = document_layout(document)->fractions;
    if (sequence->cache->config.mixes_pages && fractions.layer_count == 0) /* all pages are rows: zeros */
        fractions.layer_count = (uint16_t)sequence->cache->config.layer_count;
    sequence->pages->backing.layout.fractions =
        fractions; /* for the document that the sequence writes when it departs from this one */
    if (status == STATUS_OK && fractions.layer_count > 0)
        status = kv_sequence_set_fractions(sequence, &fractions, error);
    if (status != STATUS_OK) {
        document_close(document);
        return status;
    }
    sequence->pages->is_opening = true;
    status = load_document(sequence, document, token_count, error);
    for (size_t layer = 0; layer < sequence->cache->config.layer_count && status == STATUS_OK; layer++) {
        sequence->pages->written[layer] = sequence->pages->quantized_end[layer] = token_count / KV_CHUNK_TOKENS;
        sequence->pages->index_written[layer] = sequence->pages->written[layer];
        sequence->pages->complete[layer] = token_count;
    }
    if (status == STATUS_OK) status = load_resident(sequence, token_count, error);
    sequence->pages->is_opening = false;
    if (status != STATUS_OK) {
        kv_sequence_close_documents(sequence);
        return status;
    }
    if (!writable) sequence->pages->sources[0].chunk_end = token_count / KV_CHUNK_TOKENS;
    sequence->pages->writes = sequence->pages->saved = writable;
    sequence->pages->committed_tokens = token_count;
    sequence->pages->warm_lane = sequence->pages->warm_chunk = 0;
    sequence->length = token_count;
    return STATUS_OK;
}

static enum status copy_layer(struct kv_sequence *sequence, size_t layer, uint64_t chunk_count, struct error *error) {
    struct error why;
    if (chunk_count > 0) TRY(kv_sequence_load_key_index(sequence, sequence->cache->tier->stream, layer, error));
    for (uint64_t first = 0, count; first < chunk_count && sequence->pages->writes; first += count) {
        count = chunk_count - first < LAYER_CHUNKS ? chunk_count - first : LAYER_CHUNKS;
        if (kv_slides(&sequence->cache->config, layer)) count = 1; /* of which some are not there */
        if (kv_slides(&sequence->cache->config, layer) && !kv_windows_has(sequence, first)) continue;
        enum status status = fetch_heads(sequence, layer, NULL, first, (size_t)count, error);
        for (size_t head = 0; status == STATUS_OK && head < kv_heads(&sequence->cache->config, layer); head++)
            if (sequence->pages->writes &&
                tier_copy_pages(sequence, layer, head, first, (size_t)count, &why) != STATUS_OK)
                tier_stop_writing(sequence, &why);
        release_layer(sequence, layer);
        TRY(status);
    }
    if (sequence->pages->writes && tier_write_key_index(sequence, layer, 0, chunk_count, &why) != STATUS_OK)
        tier_stop_writing(sequence, &why);
    return STATUS_OK;
}

static enum status copy_states(struct kv_sequence *sequence, struct error *error) {
    const struct sequence_pages *pages = sequence->pages;
    struct document *to = pages->sources[pages->source_count - 1].document;
    for (size_t i = pages->source_count - 1; i-- > 0;)
        TRY(tier_copy_states(sequence, pages->sources[i].document, to, error));
    return STATUS_OK;
}

enum status kv_sequence_copy_document(struct kv_sequence *sequence, uint64_t token_capacity, struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct error why;
    enum status status = create_document(sequence, token_capacity, error);
    bool created = status == STATUS_OK;
    for (size_t layer = 0; layer < config->layer_count && status == STATUS_OK; layer++)
        status = copy_layer(sequence, layer, sequence->length / KV_CHUNK_TOKENS, error);
    if (status == STATUS_OK && sequence->pages->writes && copy_states(sequence, &why) != STATUS_OK)
        tier_stop_writing(sequence, &why);
    if (status == STATUS_OK) {
        sequence->pages->saved = sequence->pages->writes;
        sequence->pages->committed_tokens = 0;
    } else if (created) {
        kv_sequence_close_documents(sequence);
    }
    return status;
}

void kv_sequence_set_inputs(struct kv_sequence *sequence, struct inputs *inputs) {
    ASSERT(sequence->inputs == NULL);
    sequence->inputs = inputs;
}

struct inputs *kv_sequence_inputs(const struct kv_sequence *sequence) {
    return sequence->inputs;
}

void kv_sequence_close_documents(struct kv_sequence *sequence) {
    struct kv_tier *tier = sequence->cache->tier;
    inputs_close(sequence->inputs);
    sequence->inputs = NULL;
    tier_drain_all(tier);
    tier->failed = STATUS_OK;
    tier->failed_document = 0;
    sequence->generation = ++sequence->cache->generations; /* it may have had rows, or was to have a document's */
    kv_sequence_begin_answer(sequence);
    forget_chunks(sequence, 0);
    kv_sequence_drop_columns(sequence);
    cut_sources(sequence, 0);
    memset(sequence->places, 0, sizeof sequence->places); /* of other keys than those that come */
    if (sequence->cache->config.windows != NULL) kv_windows_set_length(sequence, 0);
    sequence->length = sequence->pages->committed_tokens = 0;
    if (sequence->state != NULL) kv_state_set_length(sequence->state, 0);
    for (size_t layer = 0; layer < sequence->cache->config.layer_count; layer++)
        sequence->pages->written[layer] = sequence->pages->index_written[layer] =
            sequence->pages->quantized_end[layer] = sequence->pages->complete[layer] = 0;
}

/* ---- cutting back ---- */

/* Whether pages behind `chunk` have been given to the writer. */
static bool is_written_behind(const struct kv_sequence *sequence, uint64_t chunk) {
    for (size_t layer = 0; layer < sequence->cache->config.layer_count; layer++)
        if (sequence->pages->written[layer] > chunk) return true;
    return false;
}

/* What was written behind the cut is not committed, and its pages are written once more, with what comes. */
static bool writes_anew(struct kv_sequence *sequence, uint64_t token_count) {
    const struct sequence_pages *pages = sequence->pages;
    const struct page_source *last = &pages->sources[pages->source_count - 1];
    const uint64_t chunk = token_count / KV_CHUNK_TOKENS;
    struct error ignored; /* of a write: whoever writes next is told */
    if (pages->committed_tokens > token_count || last->chunk_first > chunk) return false;
    return !is_written_behind(sequence, chunk) || document_forget_pages(last->document, chunk, &ignored) == STATUS_OK;
}

void tier_truncate(struct kv_sequence *sequence, uint64_t token_count) {
    struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    uint64_t chunk = token_count / KV_CHUNK_TOKENS;
    struct error error;
    if (token_count == sequence->length && !is_written_behind(sequence, chunk)) return;
    tier_drain_all(tier);
    residency_release_sequence(sequence);
    forget_chunks(sequence, kv_chunks_of(token_count));
    bool partial = token_count % KV_CHUNK_TOKENS != 0;
    for (size_t layer = 0; layer < config->layer_count && partial; layer++)
        for (size_t head = 0; head < kv_heads(config, layer); head++)
            if (tier_make_dirty(sequence, layer, head, chunk, &error) != STATUS_OK) kv_tier_fail(tier, &error);
    if (partial && kv_sequence_own_column(sequence, chunk, tier->stream, &error) != STATUS_OK)
        kv_tier_fail(tier, &error);
    for (size_t layer = 0; layer < config->layer_count && partial; layer++)
        if (tier_reopen_blocks(sequence, layer, chunk, &error) != STATUS_OK) kv_tier_fail(tier, &error);
    if (!sequence->pages->writes || !writes_anew(sequence, token_count)) cut_sources(sequence, chunk);
    for (size_t layer = 0; layer < config->layer_count; layer++) {
        if (sequence->pages->written[layer] > chunk) sequence->pages->written[layer] = chunk;
        if (sequence->pages->index_written[layer] > chunk) sequence->pages->index_written[layer] = chunk;
        if (sequence->pages->complete[layer] > token_count) sequence->pages->complete[layer] = token_count;
        if (sequence->pages->quantized_end[layer] > chunk) sequence->pages->quantized_end[layer] = chunk;
    }
}

void tier_forget(struct kv_sequence *sequence) {
    tier_drain_all(sequence->cache->tier);
    residency_release_sequence(sequence);
    forget_chunks(sequence, 0);
    cut_sources(sequence, 0);
}

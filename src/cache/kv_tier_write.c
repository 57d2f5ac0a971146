/* The host tier's way down: documents of a sequence, what is written to them, and truncation. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/kv_tier_internal.h"

enum { LAYER_CHUNKS = 4 }; /* of every head at once; there are slots for as many (slots_least) */

void kv_sequence_set_backing(struct kv_sequence *sequence, const struct kv_backing *backing) {
    ASSERT(sequence->source_count == 0 && sequence->length == 0);
    sequence->backing = *backing;
}

void kv_sequence_keep_in_ram(struct kv_sequence *sequence, const struct error *why) {
    ASSERT(!sequence->writes);
    sequence->backing = (struct kv_backing){0};
    sequence->write_failed = why->status;
    sequence->write_failure = *why;
}

static struct document *written_document(const struct kv_sequence *sequence) {
    ASSERT(sequence->writes && sequence->source_count > 0);
    return sequence->sources[sequence->source_count - 1].document;
}

/* A write that finds all buffers under way waits for one. */
#define WRITE(document, call)                                                                     \
    do {                                                                                          \
        enum status write_status_;                                                                \
        while ((write_status_ = (call)) == STATUS_FULL) TRY(document_wait_room(document, error)); \
        TRY(write_status_);                                                                       \
    } while (0)

/* ---- chunks ---- */

/* Metadata of chunks [first, first + count); layers that keep none have zeros there. */
static enum status write_metadata(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t first,
                                  size_t count, struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    struct document *document = written_document(sequence);
    size_t bytes = sequence->backing.layout.metadata_bytes;
    bool has = sequence->metadata != NULL && layer >= config->metadata_layer_first;
    ASSERT(bytes == config->metadata_bytes && count <= TIER_RUN_CHUNKS);
    memset(tier->metadata_run, 0, count * bytes);
    size_t row = (layer * config->kv_head_count + head) * sequence->column_capacity;
    const struct device_operations *operations = sequence->cache->device->operations;
    for (size_t i = 0; has && i < count; i++)
        operations->copy(tier->stream, tier->metadata_run + i * bytes, sequence->metadata[row + first + i],
                         bytes);
    TRY(operations->stream_synchronize(tier->stream, error));
    tier->statistics.write_bytes += count * bytes;
    WRITE(document, document_write_metadata(document, layer, head, first, count, tier->metadata_run, error));
    return STATUS_OK;
}

/* Bytes of a page on disk. */
static size_t page_bytes_of(const struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    const struct store_layout *layout = &sequence->backing.layout;
    bool rows = sequence->packed != NULL && !kv_chunk_is_packed(sequence, layer, head, chunk);
    return rows ? store_tail_bytes(layout) : store_page_bytes(layout);
}

/* Chunks that have become full are packed, written or not: what they hold must not depend on the budget.  Before
 * `complete` says that they are there to be written. */
static enum status pack_chunks(struct kv_sequence *sequence, size_t layer, uint64_t chunk_end,
                               struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    const size_t heads = sequence->cache->config.kv_head_count;
    if (tier->q4_bytes == 0) return STATUS_OK;
    for (uint64_t chunk = sequence->rounded[layer]; chunk < chunk_end; chunk++) {
        for (size_t head = 0; head < heads; head++) {
            void *const *rows = kv_chunk_entry(sequence, layer, head, chunk);
            if (!kv_chunk_is_packed(sequence, layer, head, chunk)) continue; /* they are what stays */
            if (*kv_packed_entry(sequence, layer, head, chunk) != NULL)
                continue; /* before there was no room */
            ASSERT(*rows != NULL && tier_slot_at(tier, *rows)->state == SLOT_DIRTY);
            struct slot *slot = tier_slot_dirty(tier, &tier->packed, sequence, layer * heads + head, chunk);
            TRY(kv_tier_failure(sequence->cache, error));
            if (slot == NULL) return kv_tier_full(sequence->cache, error);
            tier->codec.q4_encode(&sequence->cache->layout, *rows, tier_slot_memory(tier, slot));
            tier_slot_free(tier, tier_slot_at(tier, *rows));
        }
        sequence->rounded[layer] = chunk + 1;
    }
    return STATUS_OK;
}

static enum status write_run(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t first,
                             size_t count, struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    struct document *document = written_document(sequence);
    const void *pages[TIER_RUN_CHUNKS];
    ASSERT(count <= TIER_RUN_CHUNKS && (tier->q4_bytes == 0 || first + count <= sequence->rounded[layer]));
    for (size_t i = 0; i < count; i++) {
        pages[i] = *kv_form_entry(sequence, layer, head, first + i);
        ASSERT(pages[i] != NULL);
    }
    WRITE(document, document_write_pages(document, layer, head, first, count, pages, error));
    if (sequence->backing.layout.metadata_bytes > 0)
        TRY(write_metadata(sequence, layer, head, first, count, error));
    for (size_t i = 0; i < count; i++) {
        struct slot *slot = tier_slot_at(tier, pages[i]);
        tier->statistics.write_bytes += page_bytes_of(sequence, layer, head, first + i);
        ASSERT(slot->state == SLOT_DIRTY);
        slot->state = SLOT_QUEUED;
        tier->queued_count++;
    }
    return STATUS_OK;
}

static enum status write_chunks(struct kv_sequence *sequence, size_t layer, uint64_t chunk_end,
                                struct error *error) {
    size_t most = min_size(document_write_most(written_document(sequence)), TIER_RUN_CHUNKS);
    uint64_t first = sequence->written[layer];
    if (first >= chunk_end) return STATUS_OK;
    for (size_t head = 0; head < sequence->cache->config.kv_head_count; head++)
        for (uint64_t chunk = first; chunk < chunk_end;) {
            size_t count = (size_t)(chunk_end - chunk < most ? chunk_end - chunk : most);
            TRY(write_run(sequence, layer, head, chunk, count, error));
            chunk += count;
        }
    sequence->written[layer] = chunk_end;
    return STATUS_OK;
}

enum status kv_sequence_write(struct kv_sequence *sequence, size_t layer_index, uint64_t token_count,
                              struct error *error) {
    struct error why;
    TRY(kv_tier_failure(sequence->cache, error));
    TRY(pack_chunks(sequence, layer_index, token_count / KV_CHUNK_TOKENS, error));
    sequence->complete[layer_index] = token_count;
    if (sequence->writes &&
        write_chunks(sequence, layer_index, token_count / KV_CHUNK_TOKENS, &why) != STATUS_OK)
        tier_stop_writing(sequence, &why);
    return STATUS_OK;
}

void tier_stop_writing(struct kv_sequence *sequence, const struct error *why) {
    struct kv_tier *tier = sequence->cache->tier;
    struct error ignored;
    if (sequence->write_failed == STATUS_OK) {
        sequence->write_failed = why->status;
        sequence->write_failure = *why;
    }
    if (!sequence->writes) return;
    enum status flushed =
        document_flush(written_document(sequence), &ignored); /* no page is on its way now */
    (void)flushed;
    for (uint64_t i = 0; i < tier->rows.count + tier->packed.count; i++) {
        struct slot *slot = &tier->slots[i];
        if (slot->sequence != sequence || slot->state != SLOT_QUEUED) continue;
        tier->queued_count--;
        size_t heads = sequence->cache->config.kv_head_count;
        bool there = document_page_written(tier_document_of(sequence, slot->chunk), slot->row / heads,
                                           slot->row % heads, slot->chunk);
        slot->state = there ? SLOT_CLEAN : SLOT_DIRTY;
    }
    sequence->writes = sequence->saved = false;
}

/* ---- documents ---- */

static uint64_t sources_end(const struct kv_sequence *sequence) {
    return sequence->source_count > 0 ? sequence->sources[sequence->source_count - 1].chunk_end : 0;
}

static enum status add_source(struct kv_sequence *sequence, struct document *document, uint64_t chunk_first,
                              uint64_t chunk_end, struct error *error) {
    if (sequence->source_count == KV_SOURCES_MOST) {
        document_close(document);
        return error_set(error, STATUS_MEMORY, "KV tier: a sequence that was cut back %d times",
                         KV_SOURCES_MOST);
    }
    sequence->sources[sequence->source_count++] = (struct kv_source){document, chunk_first, chunk_end};
    return STATUS_OK;
}

static enum status create_document(struct kv_sequence *sequence, uint64_t token_capacity,
                                   struct error *error) {
    const struct kv_backing *backing = &sequence->backing;
    struct document *document;
    uint64_t first = sources_end(sequence);
    ASSERT(backing->store != NULL && !sequence->writes);
    ASSERT(memcmp(&backing->layout.shares, &sequence->shares, sizeof sequence->shares) == 0);
    TRY(document_create(&document, backing->store,
                        &(struct document_description){.model = &backing->model,
                                                       .layout = &backing->layout,
                                                       .name = backing->name,
                                                       .token_capacity = token_capacity},
                        error));
    TRY(add_source(sequence, document, first, UINT64_MAX, error));
    sequence->writes = true;
    for (size_t layer = 0; layer < sequence->cache->config.layer_count; layer++)
        sequence->written[layer] = first;
    return STATUS_OK;
}

enum status kv_sequence_create_document(struct kv_sequence *sequence, uint64_t token_capacity,
                                        struct error *error) {
    ASSERT(sequence->source_count == 0 && sequence->length == 0);
    TRY(create_document(sequence, token_capacity, error));
    sequence->saved = true;
    sequence->committed_tokens = 0;
    return STATUS_OK;
}

enum status tier_spill(struct kv_sequence *sequence, struct error *error) {
    TRY(create_document(sequence, sequence->column_capacity * KV_CHUNK_TOKENS, error));
    for (size_t layer = 0; layer < sequence->cache->config.layer_count; layer++)
        TRY(write_chunks(sequence, layer, sequence->complete[layer] / KV_CHUNK_TOKENS, error));
    return STATUS_OK;
}

/* All heads' chunks [first, first + count) of a layer, in memory until they are released, as their pages are. */
static enum status bring_layer(struct kv_sequence *sequence, struct kv_bring *brings, size_t layer,
                               uint64_t first, size_t count, struct error *error) {
    size_t heads = sequence->cache->config.kv_head_count;
    for (size_t head = 0; head < heads; head++)
        brings[head] = (struct kv_bring){.sequence = sequence,
                                         .layer_index = layer,
                                         .kv_head = head,
                                         .chunk_first = first,
                                         .chunk_count = count,
                                         .packed = true};
    for (size_t head = 0; head < heads; head++)
        if (!kv_bring_begin(&brings[head])) {
            TRY(kv_tier_failure(sequence->cache, error));
            return kv_tier_full(sequence->cache, error);
        }
    for (size_t head = 0; head < heads; head++) TRY(kv_bring_wait(&brings[head], error));
    return STATUS_OK;
}

static void release_layer(struct kv_sequence *sequence, struct kv_bring *brings) {
    for (size_t head = 0; head < sequence->cache->config.kv_head_count; head++)
        kv_bring_release(&brings[head]);
}

/* Metadata of the first chunk_count chunks of a document that has none, or others: of its keys. */
static enum status build_metadata(struct kv_sequence *sequence, uint64_t chunk_count, struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct kv_backing *backing = &sequence->backing;
    struct kv_bring *brings = calloc(config->kv_head_count, sizeof *brings);
    if (brings == NULL) return error_set(error, STATUS_MEMORY, "metadata: out of memory");
    enum status status = STATUS_OK;
    for (size_t layer = config->metadata_layer_first; layer < config->layer_count; layer++)
        for (uint64_t first = 0; first < chunk_count && status == STATUS_OK; first += LAYER_CHUNKS) {
            size_t count = (size_t)(chunk_count - first < LAYER_CHUNKS ? chunk_count - first : LAYER_CHUNKS);
            status = bring_layer(sequence, brings, layer, first, count, error);
            if (status == STATUS_OK)
                status = backing->build_metadata(backing->build_context, sequence, layer,
                                                 first * KV_CHUNK_TOKENS, count * KV_CHUNK_TOKENS, error);
            release_layer(sequence, brings);
        }
    free(brings);
    return status;
}

/* Metadata of the first chunk_count chunks, as they were saved. */
static enum status load_metadata(struct kv_sequence *sequence, struct document *document,
                                 uint64_t chunk_count, struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    size_t heads = config->kv_head_count, bytes = config->metadata_bytes;
    if (sequence->metadata == NULL) return STATUS_OK;
    const struct store_layout *layout = document_layout(document);
    if (strcmp(layout->metadata_kind, sequence->backing.layout.metadata_kind) != 0 ||
        layout->metadata_bytes != sequence->backing.layout.metadata_bytes)
        return build_metadata(sequence, chunk_count, error);
    const struct device_operations *operations = sequence->cache->device->operations;
    struct stream *stream = sequence->cache->tier->stream;
    uint8_t *run = malloc(heads * TIER_RUN_CHUNKS * bytes);
    if (run == NULL) return error_set(error, STATUS_MEMORY, "metadata: out of memory");
    enum status status = STATUS_OK;
    for (size_t layer = config->metadata_layer_first; layer < config->layer_count; layer++)
        for (uint64_t first = 0; first < chunk_count && status == STATUS_OK; first += TIER_RUN_CHUNKS) {
            size_t count =
                (size_t)(chunk_count - first < TIER_RUN_CHUNKS ? chunk_count - first : TIER_RUN_CHUNKS);
            status = document_read_metadata(document, layer, first, count, run, error);
            for (size_t head = 0; head < heads && status == STATUS_OK; head++)
                for (size_t i = 0; i < count; i++)
                    operations->copy(
                        stream,
                        sequence->metadata[(layer * heads + head) * sequence->column_capacity + first + i],
                        run + (head * count + i) * bytes, bytes);
            if (status == STATUS_OK) status = operations->stream_synchronize(stream, error);
        }
    free(run);
    return status;
}

/* The chunk that is not full is what rows are appended to: it leaves the document for good. */
static enum status load_tail(struct kv_sequence *sequence, uint64_t token_count, struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    if (token_count % KV_CHUNK_TOKENS == 0) return STATUS_OK;
    struct kv_bring *brings = calloc(config->kv_head_count, sizeof *brings);
    if (brings == NULL) return error_set(error, STATUS_MEMORY, "KV tier: out of memory");
    enum status status = STATUS_OK;
    for (size_t layer = 0; layer < config->layer_count && status == STATUS_OK; layer++) {
        /* All heads are on their way together; alone each would wait for the disk. */
        status = bring_layer(sequence, brings, layer, token_count / KV_CHUNK_TOKENS, 1, error);
        release_layer(sequence, brings);
        for (size_t head = 0; head < config->kv_head_count && status == STATUS_OK; head++)
            status = tier_make_dirty(sequence, layer, head, token_count / KV_CHUNK_TOKENS, error);
    }
    free(brings);
    return status;
}

/* Layers that stay in memory come there now, and are not waited for later. */
static enum status load_resident(struct kv_sequence *sequence, uint64_t chunk_count, struct error *error) {
    const struct kv_tier *tier = sequence->cache->tier;
    const size_t heads = sequence->cache->config.kv_head_count;
    if (tier->resident_layers == 0 || chunk_count == 0) return STATUS_OK;
    struct kv_bring *brings = calloc(heads, sizeof *brings);
    if (brings == NULL) return error_set(error, STATUS_MEMORY, "KV tier: out of memory");
    enum status status = STATUS_OK;
    for (size_t layer = 0; layer < tier->resident_layers && status == STATUS_OK; layer++) {
        status = bring_layer(sequence, brings, layer, 0, (size_t)chunk_count, error);
        release_layer(sequence, brings);
    }
    free(brings);
    return status;
}

static void forget_chunks(struct kv_sequence *sequence, uint64_t chunk_first) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct kv_tier *tier = sequence->cache->tier;
    for (size_t layer = 0; layer < config->layer_count; layer++)
        for (size_t head = 0; head < config->kv_head_count; head++)
            for (uint64_t chunk = chunk_first; chunk < sequence->column_count; chunk++) {
                const void *rows = *kv_chunk_entry(sequence, layer, head, chunk);
                if (rows != NULL) tier_slot_free(tier, tier_slot_at(tier, rows));
                if (sequence->packed == NULL) continue;
                const void *packed = *kv_packed_entry(sequence, layer, head, chunk);
                if (packed != NULL) tier_slot_free(tier, tier_slot_at(tier, packed));
            }
}

/* Pages behind a cut would be written a second time: what was written stays a source up to the cut, and what comes is
 * written elsewhere. */
static void cut_sources(struct kv_sequence *sequence, uint64_t chunk) {
    while (sequence->source_count > 0) {
        struct kv_source *last = &sequence->sources[sequence->source_count - 1];
        if (last->chunk_first < chunk) {
            if (last->chunk_end > chunk) last->chunk_end = chunk;
            break;
        }
        document_close(last->document);
        sequence->source_count--;
    }
    sequence->writes = sequence->saved = false;
}

static enum status load_document(struct kv_sequence *sequence, struct document *document,
                                 uint64_t token_count, struct error *error) {
    TRY(add_source(sequence, document, 0, UINT64_MAX, error));
    TRY(kv_sequence_reserve(sequence, token_count, error));
    TRY(load_metadata(sequence, document, token_count / KV_CHUNK_TOKENS, error));
    return load_tail(sequence, token_count, error);
}

enum status kv_sequence_open_document(struct kv_sequence *sequence, struct document *document,
                                      uint64_t token_count, bool writable, struct error *error) {
    ASSERT(sequence->length == 0 && sequence->source_count == 0);
    ASSERT(token_count <= document_token_count(document));
    struct kv_tier *tier = sequence->cache->tier;
    tier_drain_all(tier); /* from here on what cannot be read is this document's */
    enum status status = kv_tier_failure(sequence->cache, error);
    const struct page_shares *shares = &document_layout(document)->shares;
    sequence->backing.layout.shares = *shares; /* of what is written elsewhere when the sequence departs */
    if (status == STATUS_OK && shares->layer_count > 0)
        status = kv_sequence_set_shares(sequence, shares, error);
    if (status != STATUS_OK) {
        document_close(document);
        return status;
    }
    status = load_document(sequence, document, token_count, error);
    for (size_t layer = 0; layer < sequence->cache->config.layer_count && status == STATUS_OK; layer++) {
        sequence->written[layer] = sequence->rounded[layer] = token_count / KV_CHUNK_TOKENS;
        sequence->complete[layer] = token_count;
    }
    if (status == STATUS_OK) status = load_resident(sequence, token_count / KV_CHUNK_TOKENS, error);
    if (status != STATUS_OK) {
        kv_sequence_close_documents(sequence);
        return status;
    }
    if (!writable) sequence->sources[0].chunk_end = token_count / KV_CHUNK_TOKENS;
    sequence->writes = sequence->saved = writable;
    sequence->committed_tokens = token_count;
    sequence->length = token_count;
    return STATUS_OK;
}

/* Pages of one head that are in memory now, and their metadata. */
static enum status copy_head(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t first,
                             size_t count, struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    struct document *document = written_document(sequence);
    size_t most = min_size(document_write_most(document), TIER_RUN_CHUNKS);
    for (size_t done = 0, run; done < count; done += run) {
        const void *pages[TIER_RUN_CHUNKS];
        run = min_size(count - done, most);
        for (size_t i = 0; i < run; i++) {
            pages[i] = *kv_form_entry(sequence, layer, head, first + done + i);
            tier->statistics.write_bytes += page_bytes_of(sequence, layer, head, first + done + i);
        }
        WRITE(document, document_write_pages(document, layer, head, first + done, run, pages, error));
        if (sequence->backing.layout.metadata_bytes > 0)
            TRY(write_metadata(sequence, layer, head, first + done, run, error));
    }
    return STATUS_OK;
}

static enum status copy_layer(struct kv_sequence *sequence, struct kv_bring *brings, size_t layer,
                              uint64_t chunk_count, struct error *error) {
    struct error why;
    for (uint64_t first = 0; first < chunk_count && sequence->writes; first += LAYER_CHUNKS) {
        size_t count = (size_t)(chunk_count - first < LAYER_CHUNKS ? chunk_count - first : LAYER_CHUNKS);
        enum status status = bring_layer(sequence, brings, layer, first, count, error);
        for (size_t head = 0; status == STATUS_OK && head < sequence->cache->config.kv_head_count; head++)
            if (sequence->writes && copy_head(sequence, layer, head, first, count, &why) != STATUS_OK)
                tier_stop_writing(sequence, &why);
        release_layer(sequence, brings);
        TRY(status);
    }
    return STATUS_OK;
}

enum status kv_sequence_copy_document(struct kv_sequence *sequence, uint64_t token_capacity,
                                      struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct kv_bring *brings = calloc(config->kv_head_count, sizeof *brings);
    if (brings == NULL) return error_set(error, STATUS_MEMORY, "KV tier: out of memory");
    enum status status = create_document(sequence, token_capacity, error);
    bool created = status == STATUS_OK;
    for (size_t layer = 0; layer < config->layer_count && status == STATUS_OK; layer++)
        status = copy_layer(sequence, brings, layer, sequence->length / KV_CHUNK_TOKENS, error);
    free(brings);
    if (status == STATUS_OK) {
        sequence->saved = sequence->writes;
        sequence->committed_tokens = 0;
    } else if (created) {
        kv_sequence_close_documents(sequence);
    }
    return status;
}

void kv_sequence_close_documents(struct kv_sequence *sequence) {
    struct kv_tier *tier = sequence->cache->tier;
    tier_drain_all(tier);
    tier->failed = STATUS_OK;
    forget_chunks(sequence, 0);
    cut_sources(sequence, 0);
    sequence->length = sequence->committed_tokens = 0;
    for (size_t layer = 0; layer < sequence->cache->config.layer_count; layer++)
        sequence->written[layer] = sequence->rounded[layer] = sequence->complete[layer] = 0;
}

bool kv_sequence_is_saved(const struct kv_sequence *sequence) { return sequence->saved; }

static enum status write_tails(struct kv_sequence *sequence, struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct document *document = written_document(sequence);
    uint64_t length = sequence->length, chunk = length / KV_CHUNK_TOKENS;
    if (length % KV_CHUNK_TOKENS == 0) return STATUS_OK;
    for (size_t layer = 0; layer < config->layer_count; layer++)
        for (size_t head = 0; head < config->kv_head_count; head++)
            WRITE(document, document_write_tail(document, layer, head, length,
                                                *kv_chunk_entry(sequence, layer, head, chunk), error));
    return STATUS_OK;
}

static enum status commit(struct kv_sequence *sequence, const int32_t *tokens, struct error *error) {
    for (size_t layer = 0; layer < sequence->cache->config.layer_count; layer++)
        TRY(write_chunks(sequence, layer, sequence->length / KV_CHUNK_TOKENS, error));
    TRY(write_tails(sequence, error));
    TRY(document_commit(written_document(sequence), tokens, sequence->length, error));
    sequence->committed_tokens = sequence->length;
    return STATUS_OK;
}

enum status kv_sequence_commit(struct kv_sequence *sequence, const int32_t *tokens, struct error *error) {
    TRY(kv_tier_failure(sequence->cache, error));
    if (!sequence->saved || sequence->length <= sequence->committed_tokens) return STATUS_OK;
    struct error why;
    if (commit(sequence, tokens, &why) != STATUS_OK) tier_stop_writing(sequence, &why);
    return STATUS_OK;
}

enum status kv_sequence_flush(struct kv_sequence *sequence, struct error *error) {
    struct error why;
    if (sequence->writes && document_flush(written_document(sequence), &why) != STATUS_OK)
        tier_stop_writing(sequence, &why);
    if (sequence->backing.store == NULL) return STATUS_OK; /* kv_sequence_keep_in_ram */
    if (sequence->write_failed != STATUS_OK && error != NULL) *error = sequence->write_failure;
    return sequence->write_failed;
}

/* ---- cutting back ---- */

/* Whether pages behind `chunk` have been given to the writer. */
static bool is_written_behind(const struct kv_sequence *sequence, uint64_t chunk) {
    for (size_t layer = 0; layer < sequence->cache->config.layer_count; layer++)
        if (sequence->written[layer] > chunk) return true;
    return false;
}

void kv_tier_truncate(struct kv_sequence *sequence, uint64_t token_count) {
    struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    uint64_t chunk = token_count / KV_CHUNK_TOKENS;
    struct error error;
    tier_drain_all(tier);
    forget_chunks(sequence, kv_chunks_of(token_count));
    bool partial = token_count % KV_CHUNK_TOKENS != 0;
    for (size_t layer = 0; layer < config->layer_count && partial; layer++)
        for (size_t head = 0; head < config->kv_head_count; head++)
            if (tier_make_dirty(sequence, layer, head, chunk, &error) != STATUS_OK)
                kv_tier_fail(tier, &error);
    bool committed = sequence->committed_tokens > token_count;
    if (!sequence->writes || committed || is_written_behind(sequence, chunk)) cut_sources(sequence, chunk);
    for (size_t layer = 0; layer < config->layer_count; layer++) {
        if (sequence->written[layer] > chunk) sequence->written[layer] = chunk;
        if (sequence->complete[layer] > token_count) sequence->complete[layer] = token_count;
        if (sequence->rounded[layer] > chunk) sequence->rounded[layer] = chunk;
    }
}

void kv_tier_remove(struct kv_sequence *sequence) {
    if (sequence->written != NULL && sequence->complete != NULL && sequence->rounded != NULL) {
        tier_drain_all(sequence->cache->tier);
        forget_chunks(sequence, 0);
        cut_sources(sequence, 0);
    }
    free(sequence->written);
    free(sequence->complete);
    free(sequence->rounded);
    free(sequence->uses);
}

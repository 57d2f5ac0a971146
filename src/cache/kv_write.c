/* A sequence's chunks on their way to the disk: quantized when they are full, written behind the computation, and
 * committed. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/inputs.h"
#include "cache/kv_tier_internal.h"

void kv_sequence_set_backing(struct kv_sequence *sequence, const struct kv_backing *backing) {
    ASSERT(sequence->pages->source_count == 0 && sequence->length == 0);
    sequence->pages->backing = *backing;
}

void kv_sequence_keep_in_ram(struct kv_sequence *sequence, const struct error *why) {
    ASSERT(!sequence->pages->writes);
    sequence->pages->backing = (struct kv_backing){0};
    sequence->pages->failed = why->status;
    sequence->pages->failure = *why;
}

static struct document *written_document(const struct kv_sequence *sequence) {
    ASSERT(sequence->pages->writes && sequence->pages->source_count > 0);
    return sequence->pages->sources[sequence->pages->source_count - 1].document;
}

/* Writes blocks of the key index; layers that have none have zeros there. */
static enum status write_blocks(struct kv_sequence *sequence, struct key_index_write *write, struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    struct document *document = written_document(sequence);
    const size_t bytes = write->count * config->key_index_bytes;
    ASSERT(write->kv_head_count * bytes <= kv_budget_bounce_bytes(config));
    memset(tier->bounce.memory, 0, write->kv_head_count * bytes);
    if (kv_has_key_index(sequence) && write->layer >= config->key_index_layer_first) {
        for (size_t i = 0; i < write->kv_head_count; i++) {
            const struct tier_blocks blocks = {write->layer, write->kv_head + i, write->chunk, write->count,
                                               tier->bounce.memory + i * bytes};
            tier_download_blocks(sequence, &blocks);
        }
        TRY(sequence->cache->device->operations->stream_synchronize(tier->stream, error));
    }
    tier->statistics.write_bytes += write->kv_head_count * bytes;
    write->memory = tier->bounce.memory;
    DOCUMENT_WRITE(document, document_write_key_index(document, write, error));
    return STATUS_OK;
}

static bool writes_key_index(const struct kv_sequence *sequence, size_t layer) {
    const size_t bytes = sequence->pages->backing.layout.key_index_bytes;
    ASSERT(bytes == 0 || bytes == sequence->cache->config.key_index_bytes);
    return bytes > 0 && !kv_slides(&sequence->cache->config, layer);
}

/* A whole run of all heads is one piece of the file: fewer writes, and the system keeps it in larger pages, which are
 * quicker to read. */
enum status tier_write_key_index(struct kv_sequence *sequence, size_t layer, uint64_t first, uint64_t end,
                                 struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    const size_t heads = kv_heads(config, layer);
    if (!writes_key_index(sequence, layer)) return STATUS_OK;
    const size_t chunks_max = document_write_key_index_max(written_document(sequence));
    for (uint64_t chunk = first, run; chunk < end; chunk += run) {
        run = min_size((chunk / KEY_INDEX_RUN + 1) * KEY_INDEX_RUN, end) - chunk;
        run = min_size(run, chunks_max);
        const size_t together = run == KEY_INDEX_RUN ? kv_budget_write_heads(config) : 1;
        for (size_t head = 0; head < heads; head += together) {
            struct key_index_write write = {layer, head, min_size(together, heads - head), chunk, (size_t)run, NULL};
            TRY(write_blocks(sequence, &write, error));
        }
    }
    return STATUS_OK;
}

/* From where it was written to, up to chunk_end. */
static enum status go_on_with_key_index(struct kv_sequence *sequence, size_t layer, uint64_t chunk_end,
                                        struct error *error) {
    uint64_t *written = &sequence->pages->index_written[layer];
    if (*written < chunk_end) TRY(tier_write_key_index(sequence, layer, *written, chunk_end, error));
    if (*written < chunk_end) *written = chunk_end;
    return STATUS_OK;
}

/* Bytes of a page on disk. */
static size_t page_bytes_of(const struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    const bool plain = !kv_has_quantized(sequence) || !kv_chunk_is_quantized(sequence, layer, head, chunk);
    const struct kv_layout *layout = kv_cache_layer_layout(sequence->cache, layer);
    return align_up(plain ? layout->chunk_bytes : kv_q4_chunk_bytes(layout), IO_ALIGNMENT);
}

/* Chunks that have become full are quantized, written or not: what they hold must not depend on the budget.  Before
 * `complete` says that they are there to be written. */
static enum status quantize_chunks(struct kv_sequence *sequence, size_t layer, uint64_t chunk_end,
                                   struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    const struct kv_cache_config *config = &sequence->cache->config;
    if (tier->quantized_bytes == 0) return STATUS_OK;
    for (uint64_t chunk = sequence->pages->quantized_end[layer]; chunk < chunk_end; chunk++) {
        for (size_t head = 0; head < kv_heads(config, layer); head++) {
            if (!kv_chunk_is_quantized(sequence, layer, head, chunk)) continue; /* they are what stays */
            if (kv_slides(config, layer) && kv_chunk_place(sequence, layer, head, chunk) == PLACE_NOWHERE)
                continue; /* no row to come sees it */
            if (kv_quantized_place(sequence, layer, head, chunk) != PLACE_NOWHERE)
                continue; /* before there was no space */
            const uint32_t place = kv_chunk_place(sequence, layer, head, chunk);
            ASSERT(place != PLACE_NOWHERE && tier_slot_at(tier, place)->state == SLOT_DIRTY);
            struct slot *plain = tier_slot_at(tier, place);
            struct slot *slot =
                tier_slot_dirty(tier, &tier->slots.quantized, sequence, kv_lane(config, layer, head), chunk);
            TRY(kv_tier_failure(sequence->cache, error));
            if (slot == NULL) return kv_tier_full(sequence->cache, error);
            tier->codec.q4_encode(kv_cache_layer_layout(sequence->cache, layer), tier_slot_memory(tier, plain),
                                  tier_slot_memory(tier, slot));
            tier_slot_free(tier, plain);
        }
        sequence->pages->quantized_end[layer] = chunk + 1;
    }
    return STATUS_OK;
}

static enum status write_run(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t first, size_t count,
                             struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    struct document *document = written_document(sequence);
    const void *pages[TIER_RUN_CHUNKS];
    struct slot *slots[TIER_RUN_CHUNKS];
    ASSERT(count <= TIER_RUN_CHUNKS &&
           (tier->quantized_bytes == 0 || first + count <= sequence->pages->quantized_end[layer]));
    for (size_t i = 0; i < count; i++) {
        const uint32_t place = kv_stored_place(sequence, layer, head, first + i);
        ASSERT(place != PLACE_NOWHERE);
        slots[i] = tier_slot_at(tier, place);
        pages[i] = tier_slot_memory(tier, slots[i]);
    }
    DOCUMENT_WRITE(document, document_write_pages(document, layer, head, first, count, pages, error));
    for (size_t i = 0; i < count; i++) {
        struct slot *slot = slots[i];
        tier->statistics.write_bytes += page_bytes_of(sequence, layer, head, first + i);
        ASSERT(slot->state == SLOT_DIRTY);
        slot->state = SLOT_QUEUED;
    }
    return STATUS_OK;
}

/* The chunk's rows are full, and in memory alone. */
static bool is_dirty(const struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    const uint32_t place = kv_stored_place(sequence, layer, head, chunk);
    return place != PLACE_NOWHERE && tier_slot_at(sequence->cache->tier, place)->state == SLOT_DIRTY;
}

/* Of a layer with windows: what a row to come will see, or one behind a snapshot; planned: behind one that is ahead,
 * alone.  What leaves the window before is never written. */
static enum status write_windows(struct kv_sequence *sequence, size_t layer, uint64_t chunk_end, bool planned,
                                 struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct sequence_pages *pages = sequence->pages;
    bool (*const wants)(const struct kv_sequence *, uint64_t) = planned ? kv_windows_plan_sees : kv_windows_has;
    const uint64_t source = pages->sources[pages->source_count - 1].chunk_first,
                   begin = planned ? kv_window_begin(config->windows->tokens, sequence->length) : 0;
    const size_t run_max = min_size(document_write_max(written_document(sequence)), TIER_RUN_CHUNKS);
    for (size_t head = 0; head < kv_heads(config, layer); head++)
        for (uint64_t chunk = begin > source ? begin : source, run; chunk < chunk_end; chunk += run + (run == 0)) {
            run = 0;
            while (run < run_max && chunk + run < chunk_end && wants(sequence, chunk + run) &&
                   is_dirty(sequence, layer, head, chunk + run))
                run++;
            if (run > 0) TRY(write_run(sequence, layer, head, chunk, (size_t)run, error));
        }
    if (pages->written[layer] < chunk_end) pages->written[layer] = chunk_end;
    return STATUS_OK;
}

enum status tier_write_chunks(struct kv_sequence *sequence, size_t layer, uint64_t chunk_end, struct error *error) {
    if (kv_slides(&sequence->cache->config, layer)) return write_windows(sequence, layer, chunk_end, false, error);
    size_t run_max = min_size(document_write_max(written_document(sequence)), TIER_RUN_CHUNKS);
    uint64_t first = sequence->pages->written[layer];
    if (first >= chunk_end) return STATUS_OK;
    for (size_t head = 0; head < kv_heads(&sequence->cache->config, layer); head++)
        for (uint64_t chunk = first; chunk < chunk_end;) {
            size_t count = (size_t)(chunk_end - chunk < run_max ? chunk_end - chunk : run_max);
            TRY(write_run(sequence, layer, head, chunk, count, error));
            chunk += count;
        }
    sequence->pages->written[layer] = chunk_end;
    /* Where it is read from there, none of it waits for the rest of a run. */
    const bool is_read = sequence->cache->config.key_index_on_disk;
    return go_on_with_key_index(sequence, layer, is_read ? chunk_end : chunk_end - chunk_end % KEY_INDEX_RUN, error);
}

/* Blocks of the key index that have no place in memory must be on disk: who did not write begins to. */
static enum status write_somewhere(struct kv_sequence *sequence, size_t layer, uint64_t chunk_end,
                                   struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    struct sequence_pages *pages = sequence->pages;
    if (!sequence->cache->config.key_index_on_disk || kv_slides(&sequence->cache->config, layer) || pages->writes ||
        chunk_end <= pages->written[layer])
        return STATUS_OK;
    tier->reclaim(tier, true);
    if (pages->writes) return STATUS_OK;
    if (pages->failed != STATUS_OK)
        return tier_without_disk(sequence, STATUS_IO, error,
                                 "and without the disk --kv-host does not hold the key index");
    return error_set(error, STATUS_MEMORY, "key index on disk: the sequence has no folder to write it to");
}

enum status kv_sequence_write(struct kv_sequence *sequence, size_t layer_index, uint64_t token_count,
                              struct error *error) {
    struct error why;
    TRY(kv_tier_failure(sequence->cache, error));
    TRY(quantize_chunks(sequence, layer_index, token_count / KV_CHUNK_TOKENS, error));
    sequence->pages->complete[layer_index] = token_count;
    TRY(write_somewhere(sequence, layer_index, token_count / KV_CHUNK_TOKENS, error));
    const uint64_t chunk_end = token_count / KV_CHUNK_TOKENS;
    if (!sequence->pages->writes) return STATUS_OK;
    const enum status status = kv_slides(&sequence->cache->config, layer_index)
                                   ? write_windows(sequence, layer_index, chunk_end, true, &why)
                                   : tier_write_chunks(sequence, layer_index, chunk_end, &why);
    if (status != STATUS_OK) tier_stop_writing(sequence, &why);
    return STATUS_OK;
}

bool kv_sequence_keeps_forms(const struct kv_sequence *sequence, size_t layer_index, uint64_t position) {
    const size_t source = kv_sequence_source_layer(sequence, layer_index);
    return !kv_has_quantized(sequence) || sequence->pages->quantized_end[source] >= position / KV_CHUNK_TOKENS;
}

/* ---- what no window sees ---- */

static void drop_chunk(struct kv_sequence *sequence, size_t layer, uint64_t chunk) {
    const struct sequence_pages *pages = sequence->pages;
    for (size_t head = 0; head < kv_heads(&sequence->cache->config, layer); head++) {
        tier_forget_chunk(sequence, layer, head, chunk);
        if (pages->writes && chunk >= pages->sources[pages->source_count - 1].chunk_first)
            document_drop_page(written_document(sequence), layer, head, chunk);
    }
}

void tier_drop(struct kv_sequence *sequence, uint64_t chunk) {
    for (size_t layer = 0; layer < sequence->cache->config.layer_count; layer++)
        if (kv_slides(&sequence->cache->config, layer)) drop_chunk(sequence, layer, chunk);
}

/* Layers that come attend to its KV, from the batch's first row on. */
static bool is_read_again(const struct kv_groups *groups, size_t layer) {
    if (groups == NULL) return false;
    for (size_t later = groups->stored_count; later < groups->layer_count; later++)
        if (groups->source[later] == layer) return true;
    return false;
}

void tier_drop_behind(struct kv_sequence *sequence, size_t layer, uint64_t position) {
    const struct kv_cache_config *config = &sequence->cache->config;
    if (!kv_slides(config, layer) || is_read_again(config->groups, layer)) return;
    const uint64_t end = kv_window_begin(config->windows->tokens, position);
    for (uint64_t chunk = kv_chunks_of(sequence->length); chunk < end; chunk++)
        if (!kv_windows_plan_sees(sequence, chunk)) drop_chunk(sequence, layer, chunk);
}

void tier_stop_writing(struct kv_sequence *sequence, const struct error *why) {
    struct kv_tier *tier = sequence->cache->tier;
    struct error ignored;
    if (sequence->pages->failed == STATUS_OK) {
        sequence->pages->failed = why->status;
        sequence->pages->failure = *why;
    }
    if (!sequence->pages->writes) return;
    enum status flushed = document_flush(written_document(sequence), &ignored); /* no page is on its way now */
    (void)flushed;
    for (uint64_t i = 0; i < tier->slots.plain.count + tier->slots.quantized.count; i++) {
        struct slot *slot = &tier->slots.list[i];
        if (slot->sequence != sequence || slot->state != SLOT_QUEUED) continue;
        const struct kv_lane_place at = kv_lane_place(&tier->cache->config, slot->lane);
        bool there = document_page_written(tier_document_of(sequence, slot->chunk), at.layer, at.kv_head, slot->chunk);
        slot->state = there ? SLOT_CLEAN : SLOT_DIRTY;
    }
    sequence->pages->writes = sequence->pages->saved = false;
}

/* Copies the pages of one head that are in memory now. */
enum status tier_copy_pages(struct kv_sequence *sequence, size_t layer, size_t head, uint64_t first, size_t count,
                            struct error *error) {
    struct kv_tier *tier = sequence->cache->tier;
    struct document *document = written_document(sequence);
    size_t run_max = min_size(document_write_max(document), TIER_RUN_CHUNKS);
    for (size_t done = 0, run; done < count; done += run) {
        const void *pages[TIER_RUN_CHUNKS];
        run = min_size(count - done, run_max);
        for (size_t i = 0; i < run; i++) {
            const uint32_t place = kv_stored_place(sequence, layer, head, first + done + i);
            pages[i] = span_host(kv_pools_chunk(&sequence->cache->pools[0], place));
            tier->statistics.write_bytes += page_bytes_of(sequence, layer, head, first + done + i);
        }
        DOCUMENT_WRITE(document, document_write_pages(document, layer, head, first + done, run, pages, error));
    }
    return STATUS_OK;
}

bool kv_sequence_is_saved(const struct kv_sequence *sequence) {
    return sequence->pages != NULL && sequence->pages->saved;
}

static enum status write_tails(struct kv_sequence *sequence, struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct document *document = written_document(sequence);
    uint64_t length = sequence->length, chunk = length / KV_CHUNK_TOKENS;
    if (length % KV_CHUNK_TOKENS == 0) return STATUS_OK;
    for (size_t layer = 0; layer < config->layer_count; layer++)
        for (size_t head = 0; head < kv_heads(config, layer); head++)
            DOCUMENT_WRITE(document,
                           document_write_tail(document, layer, head, length,
                                               span_host(kv_sequence_chunk(sequence, layer, head, chunk)), error));
    return STATUS_OK;
}

static enum status commit(struct kv_sequence *sequence, const int32_t *tokens, struct error *error) {
    for (size_t layer = 0; layer < sequence->cache->config.layer_count; layer++) {
        TRY(tier_write_chunks(sequence, layer, sequence->length / KV_CHUNK_TOKENS, error));
        TRY(go_on_with_key_index(sequence, layer, sequence->length / KV_CHUNK_TOKENS, error));
    }
    TRY(write_tails(sequence, error));
    TRY(tier_write_states(sequence, written_document(sequence), error));
    TRY(document_commit(written_document(sequence), tokens, sequence->length, error));
    sequence->pages->committed_tokens = sequence->length;
    return STATUS_OK;
}

enum status kv_sequence_commit(struct kv_sequence *sequence, const int32_t *tokens, struct error *error) {
    TRY(kv_tier_failure(sequence->cache, error));
    if (!sequence->pages->saved || sequence->length <= sequence->pages->committed_tokens) return STATUS_OK;
    struct error why;
    if (commit(sequence, tokens, &why) != STATUS_OK)
        tier_stop_writing(sequence, &why);
    else if (sequence->inputs != NULL)
        inputs_commit(sequence->inputs, tokens, sequence->length);
    return STATUS_OK;
}

bool kv_sequence_is_flushed(const struct kv_sequence *sequence) {
    return (!sequence->pages->writes || document_is_flushed(written_document(sequence))) &&
           (sequence->inputs == NULL || inputs_is_flushed(sequence->inputs));
}

enum status kv_sequence_flush(struct kv_sequence *sequence, struct error *error) {
    struct error why;
    if (sequence->pages->writes && document_flush(written_document(sequence), &why) != STATUS_OK)
        tier_stop_writing(sequence, &why);
    if (sequence->pages->backing.store == NULL) return STATUS_OK; /* kv_sequence_keep_in_ram */
    if (sequence->pages->failed != STATUS_OK && error != NULL) *error = sequence->pages->failure;
    if (sequence->pages->failed != STATUS_OK || sequence->inputs == NULL) return sequence->pages->failed;
    return inputs_flush(sequence->inputs, error);
}

#include "attention/fetch.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/layout.h"
#include "platform/clock.h"

static void place(struct fetch *fetch, struct layout *layout, const struct fetch_options *options) {
    fetch->jobs = layout_take(layout, options->jobs, sizeof *fetch->jobs);
    fetch->chunks = layout_take(layout, options->chunks, sizeof *fetch->chunks);
    fetch->blocks = layout_take(layout, options->chunks, sizeof *fetch->blocks);
}

uint64_t fetch_bytes(const struct fetch_options *options) {
    struct layout layout = {NULL, 0};
    place(&(struct fetch){0}, &layout, options);
    return layout.used;
}

enum status fetch_init(struct fetch *fetch, const struct fetch_options *options, struct error *error) {
    struct layout layout = {calloc(1, (size_t)fetch_bytes(options)), 0};
    *fetch = (struct fetch){.capacity = options->jobs, .chunks_capacity = options->chunks};
    if (layout.memory == NULL) return error_set(error, STATUS_MEMORY, "fetch: no memory for %zu heads", options->jobs);
    place(fetch, &layout, options);
    return STATUS_OK;
}

void fetch_deinit(struct fetch *fetch) {
    fetch_drop(fetch);
    free(fetch->jobs);
    *fetch = (struct fetch){0};
}

void fetch_drop(struct fetch *fetch) {
    for (size_t i = fetch->done; i < fetch->count; i++) kv_fetch_release(&fetch->jobs[i].request);
    fetch->count = fetch->begun = fetch->done = 0;
    fetch->chunks_used = 0;
}

/* ---- what ---- */

static struct kv_fetch *add(struct fetch *fetch, struct kv_sequence *sequence, size_t index, size_t kv_head) {
    ASSERT(fetch->count < fetch->capacity);
    struct fetch_job *job = &fetch->jobs[fetch->count++];
    *job = (struct fetch_job){.index = index,
                              .request = {.sequence = sequence,
                                          .layer_index = kv_sequence_source_layer(sequence, fetch->layer_index),
                                          .kv_head = kv_head}};
    return &job->request;
}

/* Adds a job of all chunks that rows [first, end) lie in. */
static void add_range(struct fetch *fetch, struct kv_sequence *sequence, size_t index, size_t kv_head, uint64_t first,
                      uint64_t end) {
    struct kv_fetch *request = add(fetch, sequence, index, kv_head);
    request->chunk_first = first / KV_CHUNK_TOKENS;
    request->chunk_count = (size_t)(kv_chunks_of(end) - request->chunk_first);
    request->scan = true;
}

void fetch_add_list(struct fetch *fetch, const struct fetch_list *list) {
    struct kv_fetch *request = add(fetch, list->sequence, list->index, list->kv_head);
    const uint32_t *rows = list->rows;
    uint32_t *chunks = fetch->chunks + fetch->chunks_used;
    uint8_t *blocks = fetch->blocks + fetch->chunks_used;
    size_t used = 0;
    for (size_t i = 0; i < list->count;) {
        if (list->missing != NULL && list->missing[i / KV_BLOCK_TOKENS] == 0) {
            i += KV_BLOCK_TOKENS;
            continue;
        }
        uint32_t chunk = rows[i] / KV_CHUNK_TOKENS;
        if (used == 0 || chunks[used - 1] != chunk) { /* once each, with their blocks */
            ASSERT(fetch->chunks_used + used < fetch->chunks_capacity);
            blocks[used] = 0;
            chunks[used++] = chunk;
        }
        bool whole = list->missing == NULL && i + KV_CHUNK_TOKENS <= list->count &&
                     rows[i + KV_CHUNK_TOKENS - 1] / KV_CHUNK_TOKENS == chunk;
        const uint8_t block = (uint8_t)(1u << rows[i] % KV_CHUNK_TOKENS / KV_BLOCK_TOKENS);
        blocks[used - 1] = (uint8_t)(blocks[used - 1] | (whole ? UINT8_MAX : block));
        const size_t step = list->missing != NULL ? KV_BLOCK_TOKENS : 1;
        i += whole ? KV_CHUNK_TOKENS : step; /* rows ascend */
    }
    request->chunks = chunks;
    request->blocks = blocks;
    request->chunk_count = used;
    request->quantized = true;
    request->stays = list->stays;
    fetch->chunks_used += used;
}

enum status fetch_add_choice(struct fetch *fetch, struct choice *choice, struct kv_sequence *const *sequences,
                             struct list_buffers *lists, bool stays, struct error *error) {
    const size_t heads = choice->kv_head_count;
    size_t entries = 0;
    for (size_t i = 0; i < choice->chosen_count; i++)
        for (size_t head = 0; head < heads; head++)
            entries += min_size(choice->chosen[i].lists[head].count, kv_chunks_of(choice->chosen[i].position + 1));
    if (entries > fetch->chunks_capacity)
        return error_set(error, STATUS_MEMORY, "fetch: lists of %zu chunks, there is memory for %zu", entries,
                         fetch->chunks_capacity);
    for (size_t i = 0; i < choice->chosen_count; i++)
        for (size_t head = 0; head < heads; head++) {
            struct kv_sequence *sequence = sequences[choice->chosen_items[i]];
            const struct row_list *list = &choice->chosen[i].lists[head];
            const struct list_buffer *buffer = list_buffers_of(lists, sequence, fetch->layer_index, head, list);
            struct fetch_list wanted = {
                .sequence = sequence, .index = i, .kv_head = head, .count = list->count, .stays = stays};
            wanted.rows =
                buffer != NULL ? list_buffer_missing(lists, buffer, list, &wanted.count) : row_list_host(list);
            fetch_add_list(fetch, &wanted);
        }
    choice->statistics.lists_read += choice->chosen_count * heads;
    return STATUS_OK;
}

/* ---- when ---- */

/* The oldest jobs have slots before the younger ones get any (but those that were begun a layer ahead have some). */
static void begin(struct fetch *fetch, size_t chunks_max, bool beside, bool ahead) {
    size_t first = fetch->begun, flush = first, read = 0;
    for (size_t i = 0; i < fetch->begun; i++) read += fetch->jobs[i].request.missed;
    for (size_t i = first; i < fetch->count; i++) {
        fetch->jobs[i].request.beside = beside;
        fetch->jobs[i].request.ahead = ahead || i > fetch->done;
    }
    while (fetch->begun < fetch->count && read < chunks_max && kv_fetch_begin(&fetch->jobs[fetch->begun].request)) {
        read += fetch->jobs[fetch->begun].request.missed;
        if (fetch->begun++ == flush) { /* the disk begins at once, and is told of twice as much each time */
            kv_fetch_flush(&fetch->jobs[flush].request);
            flush = fetch->begun + (fetch->begun - first);
        }
    }
    if (first < fetch->count) kv_fetch_flush(&fetch->jobs[first].request);
}

void fetch_begin(struct fetch *fetch, size_t chunks_max) { begin(fetch, chunks_max, false, false); }

void fetch_begin_ahead(struct fetch *fetch, size_t chunks_max) { begin(fetch, chunks_max, false, true); }

void fetch_keep_busy(struct fetch *fetch, size_t chunks_max) {
    size_t arrived = 0;
    for (size_t i = 0; i < fetch->begun; i++)
        if (i < fetch->done || kv_fetch_is_ready(&fetch->jobs[i].request)) arrived += fetch->jobs[i].request.missed;
    begin(fetch, arrived + chunks_max, true, true);
}

bool fetch_have_arrived(struct fetch *fetch, size_t end) {
    ASSERT(end <= fetch->begun);
    for (size_t i = fetch->done; i < end; i++)
        if (!kv_fetch_is_ready(&fetch->jobs[i].request)) return false;
    return true;
}

bool fetch_has_arrived(struct fetch *fetch) {
    return fetch->begun == fetch->count && fetch_have_arrived(fetch, fetch->count);
}

uint64_t fetch_missed(const struct fetch *fetch, size_t end) {
    uint64_t chunks = 0;
    for (size_t i = 0; i < end; i++) chunks += fetch->jobs[i].request.missed;
    return chunks;
}

static enum status wait_traced(struct kv_fetch *request, struct trace *trace, struct error *error) {
    if (trace == NULL || kv_fetch_is_ready(request)) return kv_fetch_wait(request, error);
    struct trace_span span = {.name = "wait",
                              .begin_ns = clock_ns(),
                              .track = TRACE_WAITS,
                              .layer = (uint32_t)request->layer_index,
                              .kv_head = (uint32_t)request->kv_head,
                              .chunk = TRACE_NONE,
                              .count = (uint32_t)(request->pinned - request->arrived)};
    enum status status = kv_fetch_wait(request, error);
    span.end_ns = clock_ns();
    trace_add(trace, &span);
    return status;
}

enum status fetch_wait(struct fetch *fetch, struct trace *trace, size_t *end, struct error *error) {
    const size_t first = fetch->done;
    ASSERT(first < fetch->begun);
    TRY(wait_traced(&fetch->jobs[first].request, trace, error));
    *end = first + 1;
    while (*end < fetch->begun && fetch->jobs[*end].index == fetch->jobs[first].index &&
           kv_fetch_is_ready(&fetch->jobs[*end].request))
        ++*end;
    return STATUS_OK;
}

void fetch_yield(struct fetch *fetch) {
    for (size_t i = fetch->done + 1; i < fetch->count; i++) kv_fetch_release(&fetch->jobs[i].request);
}

void fetch_release(struct fetch *fetch, size_t end, struct ticket ticket) {
    for (; fetch->done < end; fetch->done++) kv_fetch_release_after(&fetch->jobs[fetch->done].request, ticket);
}

static uint64_t first_row(const struct attend_operation *operation, const struct attend_item *item) {
    uint64_t position = item->position_first;
    return operation->window > 0 && position + 1 > operation->window ? position + 1 - operation->window : 0;
}

void fetch_add_everything(struct fetch *fetch, const struct attention_layer *layer) {
    const struct attend_operation *operation = &layer->operation;
    fetch->layer_index = layer->index;
    for (size_t i = 0; i < operation->item_count; i++)
        for (size_t head = 0; head < operation->kv_head_count; head++) {
            const struct attend_item *item = &operation->items[i];
            add_range(fetch, layer->sequences[i], i, head, first_row(operation, item),
                      item->position_first + item->row_count);
        }
}

void fetch_add_chunks(struct fetch *fetch, const struct attention_layer *layer, const uint32_t *chunks, size_t count) {
    ASSERT(layer->operation.item_count == 1);
    fetch->layer_index = layer->index;
    for (size_t head = 0; head < layer->operation.kv_head_count; head++) {
        struct kv_fetch *request = add(fetch, layer->sequences[0], 0, head);
        request->chunks = chunks;
        request->chunk_count = count;
        request->scan = true;
    }
}

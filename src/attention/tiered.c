#include "attention/tiered.h"

#include <stdlib.h>

#include "attention/watch.h"
#include "base/checked.h"
#include "platform/clock.h"

enum { ROWS_MIN = 8 }; /* that choose together: heads enough for the disk to be busy */

size_t tiered_row_capacity(const struct attention_options *options) {
    return max_size(options->sequence_capacity, ROWS_MIN);
}

static struct fetch_options lists_of(const struct attention_options *options) {
    const size_t jobs = tiered_row_capacity(options) * options->kv_head_count;
    const uint64_t chunks = kv_chunks_of(options->context_size);
    return (struct fetch_options){.jobs = jobs,
                                  .chunks = jobs * (size_t)(options->kept_max < chunks ? options->kept_max : chunks)};
}

uint64_t tiered_bytes(const struct attention_options *options) {
    const struct fetch_options lists = lists_of(options);
    return 3 * fetch_bytes(&lists) + rebuild_bytes(options); /* the layer's, the next one's, what is held */
}

enum status tiered_create_lists(struct tiered *tiered, const struct attention_options *options, uint64_t bytes,
                                struct error *error) {
    const struct list_buffer_shape shape = {.layer_count = options->layer_count,
                                            .kv_head_count = options->kv_head_count,
                                            .groups = options->groups,
                                            .sequence_capacity = options->sequence_capacity,
                                            .layer_first = options->list_layer_first,
                                            .list_rows = options->kept_max,
                                            .chunk_bytes =
                                                kv_cache_chunk_bytes_max(kv_cache_get_config(options->cache)),
                                            .bytes = bytes,
                                            .stays = kv_tier_staying(options->cache)};
    TRY(list_buffers_create(&tiered->lists, tiered->device, &shape, error));
    if (tiered->lists == NULL) return STATUS_OK;
    tiered->prefetch.lists = tiered->lists;
    tiered->list_shown = calloc(options->kv_head_count, sizeof(struct list_buffer *));
    tiered->list_rows = calloc(options->kv_head_count, sizeof *tiered->list_rows);
    if (tiered->list_shown != NULL && tiered->list_rows != NULL) return STATUS_OK;
    return error_set(error, STATUS_MEMORY, "attention in tiers: out of memory");
}

enum status tiered_create(struct tiered **result, struct device *device, const struct attention_options *options,
                          struct error *error) {
    struct tiered *tiered = calloc(1, sizeof *tiered);
    const struct fetch_options lists = lists_of(options);
    *result = NULL;
    if (tiered == NULL) return error_set(error, STATUS_MEMORY, "attention in tiers: out of memory");
    *tiered = (struct tiered){.device = device,
                              .cache = options->cache,
                              .trace = options->trace,
                              .row_capacity = tiered_row_capacity(options),
                              .prefetches = options->prefetches};
    enum status status = fetch_init(&tiered->now, &lists, error);
    if (status == STATUS_OK) status = prefetch_init(&tiered->prefetch, device, options, &lists, error);
    if (status == STATUS_OK && options->rebuild.chunks > 0)
        status = rebuild_create(&tiered->rebuild, device, options, error);
    if (status == STATUS_OK)
        *result = tiered;
    else
        tiered_destroy(tiered);
    return status;
}

void tiered_destroy(struct tiered *tiered) {
    if (tiered == NULL) return;
    fetch_deinit(&tiered->now);
    prefetch_deinit(&tiered->prefetch);
    rebuild_destroy(tiered->rebuild);
    list_buffers_destroy(tiered->lists);
    free(tiered->list_shown);
    free(tiered->list_rows);
    free(tiered);
}

/* ---- rows come and go ---- */

enum status tiered_open_rows(struct tiered *tiered, const struct attention_rows *rows, struct error *error) {
    for (size_t i = 0; i < rows->item_count; i++) {
        const struct attend_item *item = &rows->items[i];
        enum status status =
            kv_sequence_open_rows(rows->sequences[i], rows->layer_index, item->position_first, item->row_count, error);
        if (status == STATUS_MEMORY && tiered->prefetch.next.count > 0) { /* it has taken the slots */
            fetch_drop(&tiered->prefetch.next);
            status = kv_sequence_open_rows(rows->sequences[i], rows->layer_index, item->position_first, item->row_count,
                                           error);
        }
        TRY(status);
    }
    return STATUS_OK;
}

enum status tiered_write_rows(struct tiered *tiered, const struct attention_rows *rows, struct error *error) {
    for (size_t i = 0; i < rows->item_count; i++) {
        uint64_t end = rows->items[i].position_first + rows->items[i].row_count;
        enum status status = kv_sequence_write(rows->sequences[i], rows->layer_index, end, error);
        if (status != STATUS_OK && tiered->prefetch.next.count > 0) { /* it has taken the slots */
            fetch_drop(&tiered->prefetch.next);
            status = kv_sequence_write(rows->sequences[i], rows->layer_index, end, error);
        }
        TRY(status);
    }
    return STATUS_OK;
}

void tiered_end_step(struct tiered *tiered) {
    fetch_drop(&tiered->now);
    prefetch_forget(&tiered->prefetch);
    if (tiered->rebuild != NULL) rebuild_end_step(tiered->rebuild);
}

/* Jobs [now.done, *end) of one item, of neighbouring heads, are in memory, and its view shows them; waits for at least
 * one. */
static enum status next_heads(struct tiered *tiered, struct stream *stream, size_t *end, struct error *error) {
    struct fetch *now = &tiered->now;
    fetch_begin(now, SIZE_MAX);
    if (now->begun == now->count) prefetch_begin_certain(&tiered->prefetch);
    if (now->begun == now->done) { /* what holds the slots is ahead of its time */
        prefetch_drop(&tiered->prefetch);
        fetch_yield(now);
        fetch_begin(now, SIZE_MAX);
    }
    if (now->begun == now->done) return kv_tier_full(tiered->cache, error);
    TRY(fetch_wait(now, tiered->trace, end, error));
    const struct kv_fetch *request = &now->jobs[now->done].request;
    kv_sequence_update(request->sequence, stream, request->layer_index);
    return STATUS_OK;
}

/* ---- everything ---- */

/* One item of an operation, some of its KV heads: an operation of its own. */
struct heads_operation {
    struct attend_operation operation; /* whose item is: */
    struct attend_item item;
};

static void take_heads(struct heads_operation *heads, const struct attend_operation *operation,
                       const struct attend_item *item, size_t head_first, size_t head_count) {
    size_t group = operation->head_count / operation->kv_head_count;
    heads->item = *item;
    heads->item.view = kv_view_heads(&item->view, head_first);
    heads->item.view.quantized = (struct span){.buffer = NULL}; /* rows */
    heads->operation = *operation;
    heads->operation.q = span_floats(operation->q, head_first * group * item->view.layout->k_dimension);
    heads->operation.out = span_floats(operation->out, head_first * group * item->view.layout->v_dimension);
    heads->operation.sinks = span_floats(operation->sinks, head_first * group);
    heads->operation.head_count = group * head_count;
    heads->operation.kv_head_count = head_count;
    heads->operation.items = &heads->item;
    heads->operation.item_count = 1;
}

/* How heads attend whose chunks are all here: to everything, or by a choice made there and then. */
struct scan {
    struct select *select; /* NULL: to everything */
    struct choice *choice;
    struct rebuild *rebuild; /* NULL: all of it is read */
};

static enum status scan_heads(const struct tiered *tiered, struct stream *stream, const struct scan *scan,
                              const struct attention_layer *layer, size_t job_end, struct error *error) {
    const struct fetch_job *job = &tiered->now.jobs[tiered->now.done];
    const size_t head_first = job->request.kv_head, head_count = job_end - tiered->now.done;
    struct heads_operation heads;
    take_heads(&heads, &layer->operation, &layer->operation.items[job->index], head_first, head_count);
    if (scan->rebuild != NULL) {
        heads.item.view = rebuild_view(scan->rebuild, stream, &heads.item.view, &job->request, head_count);
        heads.operation.ranges = rebuild_ranges(scan->rebuild, head_first);
    }
    if (scan->select == NULL) {
        tiered->device->operations->attend(stream, &heads.operation);
        return STATUS_OK;
    }
    const struct choice_query query = {.layer_index = layer->index,
                                       .operation = &heads.operation,
                                       .rules = &layer->rules[job->index],
                                       .sequences = &layer->sequences[job->index],
                                       .kv_head_first = head_first,
                                       .attends_next = true};
    const size_t row_count = heads.item.row_count;
    heads.item.row_count = 1;
    for (size_t row = 0; row < row_count; row++, heads.item.row_first++, heads.item.position_first++) {
        TRY(select_choose(scan->select, stream, &query, scan->choice, error));
        TRY(watch_choice(scan->choice, &query, stream, error));
        if (scan->choice->chosen_count > 0) {
            TRY(select_attend_chosen(scan->select, stream, &heads.operation, scan->choice, error));
            continue;
        }
        watch_everything(&heads.operation, query.sequences, layer->index, head_first);
        tiered->device->operations->attend(stream, &heads.operation);
    }
    return STATUS_OK;
}

/* Some chunks are computed again while the others are read.  *rebuilt false: their inputs failed, and nothing is being
 * read. */
static enum status rebuild_some(struct tiered *tiered, struct stream *stream, const struct attention_layer *layer,
                                bool *rebuilt, struct error *error) {
    size_t count;
    const uint32_t *others = rebuild_others(tiered->rebuild, &count);
    struct error why;
    fetch_add_chunks(&tiered->now, layer, others, count);
    enum status status = rebuild_begin(tiered->rebuild, &tiered->now, &why);
    if (status == STATUS_OK) status = rebuild_run(tiered->rebuild, stream, layer, &tiered->now, &why);
    *rebuilt = status == STATUS_OK;
    if (status == STATUS_OK) return STATUS_OK;
    rebuild_refuse(tiered->rebuild, &why);
    fetch_drop(&tiered->now);
    if (status == STATUS_DOCUMENT || status == STATUS_IO) return STATUS_OK;
    if (error != NULL) *error = why;
    return status;
}

/* The items' chunks are asked for, or computed. */
static enum status plan_items(struct tiered *tiered, struct stream *stream, struct scan *scan,
                              const struct attention_layer *layer, bool prefetches, struct error *error) {
    struct fetch *now = &tiered->now;
    struct attention_layer next = *layer;
    next.index++;
    fetch_drop(now);
    if (prefetch_take_over(&tiered->prefetch, now, layer)) {
        /* they are on their way */
    } else if (scan->select == NULL && tiered->rebuild != NULL && rebuild_plan(tiered->rebuild, layer)) {
        bool rebuilt;
        TRY(rebuild_some(tiered, stream, layer, &rebuilt, error));
        if (rebuilt) scan->rebuild = tiered->rebuild;
    }
    if (now->count == 0) fetch_add_everything(now, layer);
    if (prefetches && !rebuild_expects(tiered->rebuild, &next)) prefetch_everything(&tiered->prefetch, layer);
    return STATUS_OK;
}

static enum status scan_items(struct tiered *tiered, struct stream *stream, const struct scan *scan,
                              const struct attention_layer *layer, bool prefetches, struct error *error) {
    struct fetch *now = &tiered->now;
    struct scan own = *scan;
    struct rebuild_layer layer_done = {
        .index = layer->index, .row_count = layer->operation.items[0].row_count, .begin_ns = clock_ns()};
    TRY(plan_items(tiered, stream, &own, layer, prefetches, error));
    for (size_t end; now->done < now->count; fetch_release(now, end, tiered->device->operations->ticket(stream))) {
        const uint64_t began = clock_ns();
        TRY(next_heads(tiered, stream, &end, error));
        layer_done.read_end_ns = clock_ns();
        layer_done.wait_ns += layer_done.read_end_ns - began;
        TRY(scan_heads(tiered, stream, &own, layer, end, error));
    }
    if (tiered->rebuild == NULL || scan->select != NULL) return STATUS_OK;
    layer_done.end_ns = clock_ns();
    layer_done.is_rebuilt = own.rebuild != NULL;
    layer_done.kv_bytes =
        fetch_missed(now, now->count) * kv_cache_layer_layout(tiered->cache, layer->index)->chunk_bytes;
    rebuild_note(tiered->rebuild, &layer_done);
    return STATUS_OK;
}

/* Items beyond the sequences of a step are rows of prompts, which go in parts of row_capacity. */
static enum status scan_layer(struct tiered *tiered, struct stream *stream, const struct scan *scan,
                              const struct attention_layer *layer, bool prefetches, struct error *error) {
    prefetch_hold(&tiered->prefetch, layer->index);
    for (size_t first = 0; first < layer->operation.item_count; first += tiered->row_capacity) {
        struct attention_layer part = *layer;
        part.operation.items += first;
        part.operation.item_count = min_size(layer->operation.item_count - first, tiered->row_capacity);
        part.sequences += first;
        if (part.rules != NULL) part.rules += first;
        TRY(scan_items(tiered, stream, scan, &part, prefetches, error));
    }
    return STATUS_OK;
}

enum status tiered_attend_everything(struct tiered *tiered, struct stream *stream, const struct attention_layer *layer,
                                     bool prefetches, struct error *error) {
    const struct scan everything = {.select = NULL};
    return scan_layer(tiered, stream, &everything, layer, prefetches, error);
}

enum status tiered_scan(struct tiered *tiered, struct stream *stream, const struct tiered_choice *chosen,
                        struct error *error) {
    const struct scan scan = {.select = chosen->select, .choice = chosen->choice};
    return scan_layer(tiered, stream, &scan, chosen->layer, tiered->prefetches, error);
}

/* ---- a choice ---- */

/* Host work beside the device's (device.h): chunks are asked for while the next layer's queries are computed, and what
 * is expected while heads attend. */
static void begin_now(void *context) { fetch_begin(&((struct tiered *)context)->now, SIZE_MAX); }
static void begin_expected(void *context) { prefetch_begin_expected(&((struct tiered *)context)->prefetch); }

enum status tiered_expect(struct tiered *tiered, struct stream *stream, const struct select *select,
                          const struct attention_layer *layer, struct error *error) {
    if (!prefetch_expects(&tiered->prefetch, select, layer)) return STATUS_OK;
    TRY(prefetch_choose(&tiered->prefetch, stream, select, layer, error));
    if (prefetch_waits(&tiered->prefetch)) tiered->device->operations->overlap(stream, begin_expected, tiered);
    return STATUS_OK;
}

static struct list_buffer *buffer_of(struct tiered *tiered, const struct choice *choice, const struct fetch_job *job) {
    return list_buffers_of(tiered->lists, job->request.sequence, tiered->now.layer_index, job->request.kv_head,
                           &choice->chosen[job->index].lists[job->request.kv_head]);
}

/* Lists that are kept keep their chunks, where they have no buffer. */
static void hold(struct tiered *tiered, const struct choice *choice, size_t end) {
    const struct fetch *now = &tiered->now;
    for (size_t i = now->done; i < end; i++) {
        const struct fetch_job *job = &now->jobs[i];
        if (buffer_of(tiered, choice, job) != NULL) continue;
        kv_fetch_hold(&job->request, choice->hits[job->index * choice->kv_head_count + job->request.kv_head]);
    }
}

/* The buffers of heads [first, end) of the jobs hold their lists. */
static void fill_buffers(struct tiered *tiered, const struct choice *choice, size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        const struct fetch_job *job = &tiered->now.jobs[i];
        const struct kv_fetch *request = &job->request;
        struct list_buffer *buffer = buffer_of(tiered, choice, job);
        list_buffer_fill(tiered->lists, buffer, &choice->chosen[job->index].lists[request->kv_head],
                         &choice->chosen[job->index].view,
                         kv_sequence_places(request->sequence, request->layer_index, request->kv_head));
        tiered->list_shown[i - first] = buffer;
        tiered->list_rows[i - first] = list_buffer_rows(buffer);
    }
}

/* Units of these heads, whose chunks are in RAM, come into the device's slots. */
static void fetch_units(const struct tiered_choice *chosen, struct stream *stream, const struct chosen_heads *heads) {
    struct unit_lists lists = *chosen->unit_lists;
    lists.item_first = heads->index;
    lists.item_count = 1;
    lists.items += heads->index;
    lists.generations += heads->index;
    lists.head_first = heads->kv_head_first;
    lists.head_count = heads->kv_head_count;
    unit_cache_fetch(chosen->units, stream, &lists);
}

/* Jobs [now.done, end), neighbouring heads of a row: those with a buffer attend to it, the others to chunks. */
static enum status attend_heads(struct tiered *tiered, struct stream *stream, const struct tiered_choice *chosen,
                                size_t end, struct error *error) {
    struct choice *choice = chosen->choice;
    const struct fetch_job *jobs = tiered->now.jobs;
    for (size_t first = tiered->now.done, next; first < end; first = next) {
        const bool buffered = buffer_of(tiered, choice, &jobs[first]) != NULL;
        for (next = first + 1; next < end && (buffer_of(tiered, choice, &jobs[next]) != NULL) == buffered;) next++;
        struct select_rows_source source = {.lists = tiered->list_rows};
        if (buffered) {
            fill_buffers(tiered, choice, first, next);
            source.view = list_buffers_view(tiered->lists, stream, choice->chosen[jobs[first].index].view.layout,
                                            tiered->list_shown, next - first);
        }
        const struct chosen_heads heads = {.index = jobs[first].index,
                                           .kv_head_first = jobs[first].request.kv_head,
                                           .kv_head_count = next - first,
                                           .source = buffered ? &source : NULL};
        if (chosen->units != NULL && !buffered) fetch_units(chosen, stream, &heads);
        TRY(select_attend_heads(chosen->select, stream, &chosen->layer->operation, choice, &heads, error));
    }
    return STATUS_OK;
}

enum status tiered_attend_choice(struct tiered *tiered, struct stream *stream, const struct tiered_choice *chosen,
                                 struct error *error) {
    const struct device_operations *operations = tiered->device->operations;
    const struct attention_layer *layer = chosen->layer;
    struct choice *choice = chosen->choice;
    struct fetch *now = &tiered->now;
    struct prefetch *prefetch = &tiered->prefetch;
    prefetch_hold(prefetch, layer->index);
    fetch_drop(now);
    now->layer_index = layer->index;
    TRY(fetch_add_choice(now, choice, layer->sequences, tiered->lists, chosen->stays, error));
    if (tiered->lists != NULL) TRY(operations->stream_synchronize(stream, error)); /* the new rows are copied */
    const bool late = prefetch_is_late(prefetch);
    if (prefetch_expects(prefetch, chosen->select, layer)) {
        operations->overlap(stream, begin_now, tiered);
        TRY(prefetch_choose(prefetch, stream, chosen->select, layer, error));
    }
    for (size_t end; now->done < now->count; fetch_release(now, end, operations->ticket(stream))) {
        TRY(next_heads(tiered, stream, &end, error));
        if (prefetch_waits(prefetch) && fetch_has_arrived(now)) operations->overlap(stream, begin_expected, tiered);
        TRY(attend_heads(tiered, stream, chosen, end, error));
        if (select_get_options(chosen->select)->reuse.kind == REUSE_SIMILARITY) hold(tiered, choice, end);
    }
    prefetch_settle(prefetch, now, late);
    return STATUS_OK;
}

#include "attention/prefetch.h"

#include <stdlib.h>

#include "attention/reuse.h"
#include "base/assert.h"

enum status prefetch_init(struct prefetch *prefetch, struct device *device, const struct attention_options *options,
                          const struct fetch_options *lists, struct error *error) {
    *prefetch = (struct prefetch){.device = device,
                                  .trace = options->trace,
                                  .layer_count = options->layer_count,
                                  .kv_head_count = options->kv_head_count,
                                  .groups = options->groups};
    prefetch->gates = calloc(prefetch->layer_count, sizeof *prefetch->gates);
    if (prefetch->gates == NULL) return error_set(error, STATUS_MEMORY, "prefetch: out of memory");
    for (size_t i = 0; i < prefetch->layer_count; i++) prefetch_gate_init(&prefetch->gates[i]);
    TRY(fetch_init(&prefetch->next, lists, error));
    return fetch_init(&prefetch->held, lists, error);
}

void prefetch_deinit(struct prefetch *prefetch) {
    choice_deinit(&prefetch->choice);
    fetch_deinit(&prefetch->next);
    fetch_deinit(&prefetch->held);
    free(prefetch->gates);
    *prefetch = (struct prefetch){.device = NULL};
}

void prefetch_drop(struct prefetch *prefetch) {
    fetch_drop(&prefetch->next);
    fetch_drop(&prefetch->held);
}

void prefetch_forget(struct prefetch *prefetch) {
    prefetch_drop(prefetch);
    prefetch->is_decided = false;
}

/* ---- what is certain ---- */

/* All chunks of the job from its first one on, up to one. */
static void set_end(struct fetch_job *job, uint64_t chunk_end) {
    ASSERT(job->request.chunk_first <= chunk_end);
    job->request.chunk_count = (size_t)(chunk_end - job->request.chunk_first);
}

/* The next one that attends: layers that keep a state in between give the disk more time. */
static size_t next_layer(const struct prefetch *prefetch, size_t layer) {
    do layer++;
    while (layer < prefetch->layer_count && kv_layer_heads(prefetch->groups, prefetch->kv_head_count, layer) == 0);
    return layer;
}

/* The next layer's rows are not there yet: their chunk is in memory when it is attended to, and not before. */
void prefetch_everything(struct prefetch *prefetch, const struct attention_layer *layer) {
    const struct attend_operation *operation = &layer->operation;
    const size_t following = next_layer(prefetch, layer->index);
    if (following >= prefetch->layer_count || prefetch->next.count > 0 || operation->window > 0) return;
    for (size_t i = 0; i < operation->item_count; i++)
        /* later blocks of a prompt: the next layer has not come so far */
        if (operation->items[i].row_count != 1 ||
            operation->items[i].position_first != kv_sequence_length(layer->sequences[i]))
            return;
    struct attention_layer next = *layer;
    next.index = following;
    next.operation.kv_head_count = kv_layer_heads(prefetch->groups, prefetch->kv_head_count, next.index);
    next.operation.window = following == layer->index + 1 ? layer->math.next_window : 0;
    prefetch->is_certain = true;
    fetch_add_everything(&prefetch->next, &next);
    for (size_t i = 0; i < prefetch->next.count; i++) {
        struct fetch_job *job = &prefetch->next.jobs[i];
        set_end(job, operation->items[job->index].position_first / KV_CHUNK_TOKENS);
    }
}

void prefetch_begin_certain(struct prefetch *prefetch) {
    if (prefetch->next.count > 0 && prefetch->is_certain) fetch_begin_ahead(&prefetch->next, SIZE_MAX);
}

bool prefetch_take_over(struct prefetch *prefetch, struct fetch *now, const struct attention_layer *layer) {
    if (prefetch->next.count == 0 || prefetch->next.layer_index != layer->index) {
        if (prefetch->next.layer_index <= layer->index) fetch_drop(&prefetch->next);
        return false;
    }
    struct fetch finished = *now;
    *now = prefetch->next;
    prefetch->next = finished;
    ASSERT(prefetch->is_certain && now->done == 0);
    ASSERT(now->count == layer->operation.item_count * layer->operation.kv_head_count);
    for (size_t i = 0; i < now->count; i++) {
        const struct attend_item *item = &layer->operation.items[now->jobs[i].index];
        ASSERT(now->jobs[i].request.sequence == layer->sequences[now->jobs[i].index]);
        set_end(&now->jobs[i], kv_chunks_of(item->position_first + item->row_count));
    }
    now->begun = 0; /* begun once more, for the last chunk */
    return true;
}

/* ---- what is expected ---- */

bool prefetch_expects(struct prefetch *prefetch, const struct select *select, const struct attention_layer *layer) {
    const size_t next = layer->index + 1;
    if (prefetch->choice.row_capacity == 0 || layer->math.queries == NULL || next >= prefetch->layer_count ||
        kv_layer_heads(prefetch->groups, prefetch->kv_head_count, next) == 0)
        return false;
    prefetch->reads = prefetch_gate_opens(&prefetch->gates[next]);
    return prefetch->reads || (prefetch->decides && select_layer_chooses(select, next));
}

bool prefetch_has_decided(const struct prefetch *prefetch, size_t layer_index) {
    return prefetch->is_decided && prefetch->decided_layer == layer_index;
}

bool prefetch_take_choice(struct prefetch *prefetch, size_t layer_index, struct choice *choice) {
    if (!prefetch_has_decided(prefetch, layer_index)) return false;
    struct choice decided = prefetch->choice;
    prefetch->is_decided = false;
    prefetch->choice = *choice;
    *choice = decided;
    choice->statistics = prefetch->choice.statistics;
    select_statistics_add(&choice->statistics, &decided.statistics);
    return true;
}

void prefetch_leave_out_growing(struct fetch_job *job, uint64_t position) {
    job->request.is_prefetch = true;
    while (job->request.chunk_count > 0 &&
           job->request.chunks[job->request.chunk_count - 1] >= position / KV_CHUNK_TOKENS)
        job->request.chunk_count--;
}

enum status prefetch_put(struct prefetch *prefetch, struct stream *stream, const struct select *select,
                         const struct attention_layer *layer, bool *expects, struct error *error) {
    const size_t next = layer->index + 1;
    struct attend_operation operation;
    const struct choice_query query = {
        .layer_index = next, .operation = &operation, .rules = layer->rules, .sequences = layer->sequences};
    *expects = prefetch->choice.row_capacity > 0 && layer->math.queries != NULL && next < prefetch->layer_count &&
               kv_layer_heads(prefetch->groups, prefetch->kv_head_count, next) > 0 &&
               select_layer_chooses(select, next) && layer->math.queries(layer->math.context, next, &operation);
    if (!*expects) return STATUS_OK;
    if (prefetch->reuse != NULL)
        TRY(reuse_capture_expected(prefetch->reuse, select, stream, &query, &prefetch->choice, error));
    else
        TRY(select_choose(select, stream, &query, &prefetch->choice, error));
    *expects = !prefetch->choice.everything;
    return STATUS_OK;
}

bool prefetch_plans(struct prefetch *prefetch, size_t layer_index) {
    fetch_drop(&prefetch->next);
    prefetch->next.layer_index = layer_index;
    prefetch->is_certain = false;
    return prefetch_gate_opens(&prefetch->gates[layer_index]);
}

enum status prefetch_choose(struct prefetch *prefetch, struct stream *stream, const struct select *select,
                            const struct attention_layer *layer, struct error *error) {
    const struct device_operations *operations = prefetch->device->operations;
    struct attend_operation operation;
    const struct choice_query query = {
        .layer_index = layer->index + 1, .operation = &operation, .rules = layer->rules, .sequences = layer->sequences};
    if (!layer->math.queries(layer->math.context, query.layer_index, &operation))
        return operations->stream_synchronize(stream, error);
    uint64_t began = trace_clock(prefetch->trace);
    if (prefetch->decides) {
        prefetch->choice.statistics = (struct select_statistics){0};
        TRY(reuse_choose(prefetch->reuse, select, stream, &query, &prefetch->choice, error));
        prefetch->is_decided = true;
        prefetch->decided_layer = query.layer_index;
    } else if (prefetch->reuse != NULL) {
        TRY(reuse_expect(prefetch->reuse, select, stream, &query, &prefetch->choice, error));
    } else {
        TRY(select_choose(select, stream, &query, &prefetch->choice, error));
    }
    TRY(operations->stream_synchronize(stream, error));
    trace_since(prefetch->trace, "choose next layer", TRACE_CHOICE, began, (uint32_t)query.layer_index,
                (uint32_t)prefetch->choice.chosen_count);
    fetch_drop(&prefetch->next);
    if (prefetch->choice.everything || !prefetch->reads) return STATUS_OK;
    prefetch->next.layer_index = query.layer_index;
    prefetch->is_certain = false;
    TRY(fetch_add_choice(&prefetch->next, &prefetch->choice, layer->sequences, prefetch->lists, false, error));
    for (size_t i = 0; i < prefetch->next.count; i++) {
        struct fetch_job *job = &prefetch->next.jobs[i];
        prefetch_leave_out_growing(job, prefetch->choice.chosen[job->index].position);
    }
    return STATUS_OK;
}

bool prefetch_waits(const struct prefetch *prefetch) {
    return !prefetch->is_certain && prefetch->next.begun < prefetch->next.count;
}

void prefetch_begin_expected(struct prefetch *prefetch) {
    fetch_begin_ahead(&prefetch->next, prefetch_gate_chunks(&prefetch->gates[prefetch->next.layer_index]));
}

void prefetch_hold(struct prefetch *prefetch, size_t layer_index) {
    if (prefetch->next.count == 0 || prefetch->is_certain || prefetch->next.layer_index != layer_index) return;
    struct fetch expected = prefetch->next;
    fetch_drop(&prefetch->held);
    prefetch->next = prefetch->held;
    prefetch->held = expected;
}

bool prefetch_is_late(struct prefetch *prefetch) {
    for (size_t i = 0; i < prefetch->held.begun; i++)
        if (!kv_fetch_is_ready(&prefetch->held.jobs[i].request)) return true;
    return false;
}

void prefetch_settle(struct prefetch *prefetch, const struct fetch *now, bool late) {
    struct prefetch_outcome outcome = {.late = late};
    const struct fetch *held = &prefetch->held;
    for (size_t i = 0; i < held->count; i++) outcome.read += held->jobs[i].request.missed;
    for (size_t i = 0; i < now->count; i++) outcome.used += now->jobs[i].request.prefetch_hits;
    if (held->count > 0 && held->layer_index == now->layer_index)
        prefetch_gate_add(&prefetch->gates[now->layer_index], &outcome);
    fetch_drop(&prefetch->held);
}

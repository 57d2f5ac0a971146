/* step_graph: a decode step that is captured once and launched for every token. Positions and tokens are in the rows
 * of the step; places of chunks in page tables, and limits of lists beside the rows, which are all brought up to
 * date in front of the launch. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "model/forward_internal.h"

/* Where the places of a sequence's chunks in a layer are. */
struct table_place {
    uint64_t address, key_index; /* key_index: of their blocks; 0: none */
    size_t chunk_stride;
};

/* What a captured step cannot differ in. */
struct step_kind {
    size_t row_count; /* 0: there was no step */
    bool beside;
    struct kv_pools pools;
    struct attention_shape attention;
    uint64_t *places, *places_before; /* owned, [logit_row_capacity]: slots of units */
    uint64_t *windows;                /* owned, [layer_count] */
    /* owned, [1 + STEP_GRAPHS][logit_row_capacity][2]: where rows have their states from and leave them, 0: they have
     * none; of this step, and of each graph, if it is known */
    uint64_t *states;
    bool knows[STEP_GRAPHS];
    size_t now;                  /* the last step's graph */
    struct table_place tables[]; /* [layer_count][row_count] */
};

enum status step_graph_init(struct forward *forward, struct error *error) {
    const size_t count = forward->model->config.layer_count * forward->logit_row_capacity;
    struct step_kind *kind = calloc(1, sizeof *kind + count * sizeof *kind->tables);
    if (kind == NULL) return error_set(error, STATUS_MEMORY, "no memory for a step of %zu layers", count);
    forward->graph.kind = kind;
    kind->places = calloc(forward->logit_row_capacity, sizeof *kind->places);
    kind->places_before = calloc(forward->logit_row_capacity, sizeof *kind->places_before);
    kind->windows = calloc(forward->model->config.layer_count, sizeof *kind->windows);
    kind->states = calloc((1 + STEP_GRAPHS) * forward->logit_row_capacity, 2 * sizeof *kind->states);
    if (kind->places == NULL || kind->places_before == NULL || kind->windows == NULL || kind->states == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for a step of %zu layers",
                         forward->model->config.layer_count);
    for (size_t layer = 0; layer < forward->model->config.layer_count; layer++) {
        const struct layer_config *shape = &forward->model->config.layers[layer];
        kind->windows[layer] = shape->attention == ATTENTION_SLIDING ? shape->window : 0;
    }
    return STATUS_OK;
}

static void forget(struct forward *forward, size_t graph) {
    forward->model->device->operations->graph_destroy(forward->graph.graphs[graph]);
    forward->graph.graphs[graph] = NULL;
    forward->graph.kind->knows[graph] = false;
}

void forward_forget_graph(struct forward *forward) {
    if (forward->graph.kind == NULL) return;
    for (size_t graph = 0; graph < STEP_GRAPHS; graph++) forget(forward, graph);
    forward->graph.kind->row_count = 0;
}

void step_graph_deinit(struct forward *forward) {
    struct step_kind *kind = forward->graph.kind;
    forward_forget_graph(forward);
    if (kind == NULL) return;
    free(kind->places);
    free(kind->places_before);
    free(kind->windows);
    free(kind->states);
    free(kind);
}

struct step_graph_counts forward_graph_counts(const struct forward *forward) {
    return forward->graph.counts;
}

bool step_graph_takes(const struct forward *forward, const struct forward_batch *batch) {
    const bool is_step = batch->item_count == batch->row_count && batch->logit_row_count == batch->row_count &&
                         batch->block_rows == 0 && !batch->keep_rows;
    const bool is_whole = batch->progress == NULL && batch->pauses == NULL && batch->leave == NULL;
    const bool is_observed =
        forward->watch.layer.observer != NULL || forward->watch.attention.observer != NULL || forward->trace != NULL;
    const struct model_config *config = &forward->model->config;
    if (config->temperature != 0) return false; /* operations have factors of their positions */
    return is_step && is_whole && !is_observed && forward->replay == NULL && forward->model->stream == NULL &&
           attention_fits_graphs(forward->attention);
}

static bool attends(const struct forward *forward, size_t layer) {
    return forward->model->config.layers[layer].mixer == MIXER_ATTENTION;
}

/* The layer's rows with their views, up to date. */
static struct attention_rows show_layer(struct forward *forward, const struct forward_batch *batch, size_t layer) {
    struct attention_rows rows = {.layer_index = layer,
                                  .kv_head_count = forward->model->config.layers[layer].kv.kv_head_count,
                                  .sequences = batch->sequences,
                                  .items = forward->items,
                                  .item_count = batch->item_count};
    memcpy(forward->items, batch->items, batch->item_count * sizeof *batch->items);
    attention_show_layer(forward->stream, &rows);
    return rows;
}

/* Brings all page tables up to date, and notes the step's kind; false: it differs from that of the last one. */
static bool note_kind(struct forward *forward, const struct forward_batch *batch) {
    struct step_kind *kind = forward->graph.kind;
    const size_t rows = batch->row_count;
    bool same = kind->row_count == rows && kind->beside == batch->beside;
    for (size_t layer = 0; layer < forward->model->config.layer_count; layer++) {
        if (!attends(forward, layer)) continue;
        const struct attention_rows shown = show_layer(forward, batch, layer);
        for (size_t i = 0; i < rows; i++) {
            const struct kv_view *view = &shown.items[i].view;
            const struct span index = view->key_index;
            const struct table_place now = {view->chunks.buffer->address + view->chunks.offset,
                                            span_exists(index) ? index.buffer->address + index.offset : 0,
                                            view->chunk_stride};
            struct table_place *place = &kind->tables[layer * rows + i];
            same = same && place->address == now.address && place->key_index == now.key_index &&
                   place->chunk_stride == now.chunk_stride;
            *place = now;
        }
    }
    const struct kv_pools *pools = forward->items[0].view.pools;
    for (size_t i = 1; i < rows; i++) ASSERT(forward->items[i].view.pools == pools);
    for (size_t i = 0; i < PLACE_POOLS; i++)
        same = same && kind->pools.list[i].buffers == pools->list[i].buffers &&
               kind->pools.list[i].buffer_count == pools->list[i].buffer_count &&
               kind->pools.list[i].slot_bytes == pools->list[i].slot_bytes;
    kind->pools = *pools;
    kind->row_count = rows;
    kind->beside = batch->beside;
    return same;
}

/* The graph of a step whose states go the way that this one's go; *seen: there was such a step before. */
static size_t note_states(struct forward *forward, const struct forward_batch *batch, bool *seen) {
    struct step_kind *kind = forward->graph.kind;
    const size_t rows = batch->row_count, bytes = rows * 2 * sizeof *kind->states;
    uint64_t *const of[STEP_GRAPHS] = {kind->states + 2 * forward->logit_row_capacity,
                                       kind->states + 4 * forward->logit_row_capacity};
    for (size_t i = 0; i < rows; i++) {
        struct kv_state *state = kv_sequence_state(batch->sequences[i]);
        const uint64_t position = batch->items[i].position_first;
        const struct kv_state_part part =
            state != NULL ? kv_state_part(state, position, position + 1) : (struct kv_state_part){.end = 0};
        kind->states[2 * i] = span_exists(part.from) ? part.from.buffer->address + part.from.offset : 0;
        kind->states[2 * i + 1] = span_exists(part.to) ? part.to.buffer->address + part.to.offset : 0;
    }
    for (size_t graph = 0; graph < STEP_GRAPHS; graph++) {
        *seen = kind->knows[graph] && memcmp(of[graph], kind->states, bytes) == 0;
        if (*seen) return graph;
    }
    const size_t other = kind->knows[kind->now] ? 1 - kind->now : kind->now;
    forget(forward, other);
    memcpy(of[other], kind->states, bytes);
    kind->knows[other] = true;
    return other;
}

static enum status capture(struct forward *forward, const struct forward_batch *batch, step_run *run,
                           struct error *error) {
    const struct device_operations *operations = forward->model->device->operations;
    TRY(operations->graph_begin(forward->stream, error));
    attention_begin_capture(forward->attention);
    enum status status = run(forward, batch, error);
    attention_end_capture(forward->attention);
    enum status ended = operations->graph_end(forward->stream, &forward->graph.graphs[forward->graph.kind->now],
                                              status == STATUS_OK ? error : NULL);
    if (status == STATUS_OK) status = ended;
    if (status != STATUS_OK) forward_forget_graph(forward);
    forward->graph.counts.captures += status == STATUS_OK;
    return status;
}

static struct attention_step step_of(const struct forward *forward, const struct forward_batch *batch) {
    return (struct attention_step){.row_count = batch->row_count,
                                   .sequences = batch->sequences,
                                   .rules = batch->rules,
                                   .items = batch->items,
                                   .windows = forward->graph.kind->windows};
}

/* What its lists may hold is on its way to the device.  *same: so far it is like the last step; cleared where its lists
 * lie elsewhere.  *fits false: it is none that a graph may be. */
static enum status prepare(struct forward *forward, const struct forward_batch *batch, bool *same, bool *fits,
                           struct error *error) {
    struct step_kind *kind = forward->graph.kind;
    const size_t rows = batch->row_count;
    const struct attention_step step = step_of(forward, batch);
    const struct attention_shape before = kind->attention;
    memcpy(kind->places_before, kind->places, rows * sizeof *kind->places);
    TRY(attention_prepare_step(forward->attention, forward->stream, &step, &kind->attention, kind->places, fits,
                               error));
    *same = *same && before.chooses == kind->attention.chooses &&
            memcmp(before.lists, kind->attention.lists, sizeof before.lists) == 0 &&
            memcmp(kind->places, kind->places_before, rows * sizeof *kind->places) == 0;
    return STATUS_OK;
}

enum status step_graph_run(struct forward *forward, const struct forward_batch *batch, step_run *run,
                           struct error *error) {
    struct step_graph *own = &forward->graph;
    const struct model_config *config = &forward->model->config;
    bool same = note_kind(forward, batch), fits;
    TRY(prepare(forward, batch, &same, &fits, error));
    if (!same || !fits)
        for (size_t graph = 0; graph < STEP_GRAPHS; graph++) forget(forward, graph);
    own->kind->now = note_states(forward, batch, &same);
    struct graph **const graph = &own->graphs[own->kind->now];
    if (!same || *graph == NULL) attention_uncount_step(forward->attention);
    if (!same) {
        if (!fits) own->kind->row_count = 0;
        return run(forward, batch, error);
    }
    if (*graph == NULL) {
        const enum status status = capture(forward, batch, run, error);
        if (status == STATUS_MEMORY) return run(forward, batch, error); /* without a graph */
        TRY(status);
    } else {
        for (size_t layer = 0; layer < config->layer_count; layer++) {
            if (!attends(forward, layer)) continue;
            const struct attention_rows rows = show_layer(forward, batch, layer);
            attention_watch_layer(&rows, own->kind->windows[layer]);
        }
    }
    forward->model->device->operations->graph_launch(forward->stream, *graph);
    const struct attention_step step = step_of(forward, batch);
    attention_note_step(forward->attention, forward->stream, &step);
    own->counts.launches++;
    return STATUS_OK;
}

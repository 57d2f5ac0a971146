/* step_graph: a decode step that is captured once and launched for every token. Positions and tokens are in the rows
 * of the step; places of chunks in page tables, and limits of lists beside the rows, which are all brought up to
 * date in front of the launch.  Some graphs are kept, one for each number of rows: where other sequences come, or
 * memory moves, the graph of as many rows becomes one of theirs (graph_end of device.h). */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "model/forward_internal.h"

/* A kind of steps, as numbers: what a graph of them has in it.  The first is its class, which says what operations
 * there are. */
enum {
    KIND_NUMBERS = 5 + 3 * PLACE_POOLS, /* the class, lists, tokens and pools */
    ROW_NUMBERS = 3,                    /* slots of units; where its states come from and go */
    TABLE_NUMBERS = 4                   /* where a row's places in a layer are, in both forms, and of its key index */
};

/* A graph of a class, and the kind that it is of now. */
struct kept_graph {
    struct graph *graph; /* owned; NULL: there was one step of the kind */
    uint64_t *numbers;   /* owned */
    size_t count;        /* 0: none */
    uint64_t used;       /* when, of step_kinds.clock */
};

struct step_kinds {
    struct kept_graph graphs[STEP_GRAPHS];
    uint64_t clock;
    uint64_t *numbers; /* owned; of the step that runs */
    size_t count;
    uint64_t *places;  /* owned, [logit_row_capacity]: slots of units */
    uint64_t *windows; /* owned, [layer_count] */
};

enum status step_graph_init(struct forward *forward, struct error *error) {
    const size_t layers = forward->model->config.layer_count, rows = forward->logit_row_capacity,
                 count = KIND_NUMBERS + rows * (ROW_NUMBERS + layers * TABLE_NUMBERS);
    struct step_kinds *kinds = calloc(1, sizeof *kinds);
    if (kinds == NULL) return error_set(error, STATUS_MEMORY, "no memory for a step of %zu layers", layers);
    forward->graph.kinds = kinds;
    kinds->numbers = calloc(count + rows + layers, sizeof *kinds->numbers);
    if (kinds->numbers == NULL) return error_set(error, STATUS_MEMORY, "no memory for a step of %zu layers", layers);
    kinds->places = kinds->numbers + count;
    kinds->windows = kinds->places + rows;
    for (size_t layer = 0; layer < layers; layer++) {
        const struct layer_config *shape = &forward->model->config.layers[layer];
        kinds->windows[layer] = shape->attention == ATTENTION_SLIDING ? shape->window : 0;
    }
    return STATUS_OK;
}

static void forget(struct forward *forward, struct kept_graph *kept) {
    forward->model->device->operations->graph_destroy(kept->graph);
    free(kept->numbers);
    *kept = (struct kept_graph){.graph = NULL};
}

void forward_forget_graph(struct forward *forward) {
    for (size_t i = 0; i < STEP_GRAPHS && forward->graph.kinds != NULL; i++)
        forget(forward, &forward->graph.kinds->graphs[i]);
}

void step_graph_deinit(struct forward *forward) {
    forward_forget_graph(forward);
    if (forward->graph.kinds != NULL) free(forward->graph.kinds->numbers); /* places and windows lie behind them */
    free(forward->graph.kinds);
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

static void note(struct step_kinds *kinds, uint64_t number) { kinds->numbers[kinds->count++] = number; }

static uint64_t address_of(struct span span) { return span_exists(span) ? span.buffer->address + span.offset : 0; }

/* Brings all page tables up to date, and notes where they are. */
static void note_tables(struct forward *forward, const struct forward_batch *batch) {
    struct step_kinds *kinds = forward->graph.kinds;
    for (size_t layer = 0; layer < forward->model->config.layer_count; layer++) {
        if (!attends(forward, layer)) continue;
        const struct attention_rows shown = show_layer(forward, batch, layer);
        for (size_t i = 0; i < batch->row_count; i++) {
            note(kinds, address_of(shown.items[i].view.chunks));
            note(kinds, address_of(shown.items[i].view.quantized));
            note(kinds, address_of(shown.items[i].view.key_index));
            note(kinds, shown.items[i].view.chunk_stride);
        }
    }
    const struct kv_pools *pools = forward->items[0].view.pools;
    for (size_t i = 1; i < batch->row_count; i++) ASSERT(forward->items[i].view.pools == pools);
    for (size_t i = 0; i < PLACE_POOLS; i++) {
        note(kinds, (uintptr_t)pools->list[i].buffers);
        note(kinds, pools->list[i].buffer_count);
        note(kinds, pools->list[i].slot_bytes);
    }
}

/* What layers that keep a state read, and where they leave it. */
static void note_states(struct step_kinds *kinds, const struct forward_batch *batch) {
    for (size_t i = 0; i < batch->row_count; i++) {
        struct kv_state *state = kv_sequence_state(batch->sequences[i]);
        const uint64_t position = batch->items[i].position_first;
        if (state == NULL) continue;
        const struct kv_state_part part = kv_state_part(state, position, position + 1);
        note(kinds, address_of(part.from));
        note(kinds, address_of(part.to));
    }
}

/* The graph of the step's kind; or one of its class that becomes one of this kind, as long as there are as many as a
 * class takes turns with; or the one that was not used for longest.  *seen: it is of the kind. */
static struct kept_graph *find(struct forward *forward, bool *seen) {
    struct step_kinds *kinds = forward->graph.kinds;
    struct kept_graph *oldest = kinds->graphs, *of_class = NULL;
    const size_t turns = forward->model->config.state.layer_count > 0 ? 2 : 1;
    size_t count = 0;
    for (struct kept_graph *kept = kinds->graphs; kept < kinds->graphs + STEP_GRAPHS; kept++) {
        if (kept->used < oldest->used) oldest = kept;
        if (kept->count == 0 || kept->numbers[0] != kinds->numbers[0]) continue;
        *seen = kept->count == kinds->count &&
                memcmp(kept->numbers, kinds->numbers, kinds->count * sizeof *kinds->numbers) == 0;
        if (*seen) return kept;
        count++;
        if (of_class == NULL || kept->used < of_class->used) of_class = kept;
    }
    *seen = false;
    if (count >= turns) return of_class;
    forget(forward, oldest);
    return oldest;
}

/* It is of the step's kind from now on.  false: no memory. */
static bool become(struct kept_graph *kept, const struct step_kinds *kinds) {
    const size_t bytes = kinds->count * sizeof *kinds->numbers;
    if (kept->count != kinds->count) {
        free(kept->numbers);
        kept->numbers = malloc(bytes);
        kept->count = kept->numbers != NULL ? kinds->count : 0;
    }
    if (kept->numbers != NULL) memcpy(kept->numbers, kinds->numbers, bytes);
    return kept->numbers != NULL;
}

static enum status capture(struct forward *forward, const struct forward_batch *batch, step_run *run,
                           struct kept_graph *kept, struct error *error) {
    const struct device_operations *operations = forward->model->device->operations;
    struct step_graph_counts *counts = &forward->graph.counts;
    TRY(operations->graph_begin(forward->stream, error));
    attention_begin_capture(forward->attention);
    enum status status = run(forward, batch, error);
    attention_end_capture(forward->attention);
    *(kept->graph == NULL ? &counts->captures : &counts->changes) += 1;
    enum status ended = operations->graph_end(forward->stream, &kept->graph, status == STATUS_OK ? error : NULL);
    if (status == STATUS_OK) status = ended;
    if (status != STATUS_OK) forward_forget_graph(forward);
    return status;
}

static struct attention_step step_of(const struct forward *forward, const struct forward_batch *batch) {
    return (struct attention_step){.row_count = batch->row_count,
                                   .sequences = batch->sequences,
                                   .rules = batch->rules,
                                   .items = batch->items,
                                   .windows = forward->graph.kinds->windows};
}

/* Notes the step's kind; all that a graph of it reads is on its way to the device.  *fits false: it is none that a
 * graph may be. */
static enum status note_kind(struct forward *forward, const struct forward_batch *batch, bool *fits,
                             struct error *error) {
    struct step_kinds *kinds = forward->graph.kinds;
    const struct attention_step step = step_of(forward, batch);
    struct attention_shape shape;
    kinds->count = 1;
    TRY(attention_open_step(forward->attention, &step, error));
    note_tables(forward, batch);
    TRY(attention_prepare_step(forward->attention, forward->stream, &step, &shape, kinds->places, fits, error));
    kinds->numbers[0] =
        batch->row_count << 3 | (uint64_t)shape.looks << 2 | (uint64_t)shape.chooses << 1 | batch->beside;
    for (size_t i = 0; i < sizeof shape.lists / sizeof shape.lists[0]; i++) note(kinds, shape.lists[i]);
    note(kinds, shape.tokens);
    for (size_t i = 0; i < batch->row_count; i++) note(kinds, kinds->places[i]);
    note_states(kinds, batch);
    return STATUS_OK;
}

enum status step_graph_run(struct forward *forward, const struct forward_batch *batch, step_run *run,
                           struct error *error) {
    const struct model_config *config = &forward->model->config;
    struct step_kinds *kinds = forward->graph.kinds;
    bool fits, seen = false;
    TRY(note_kind(forward, batch, &fits, error));
    struct kept_graph *kept = fits ? find(forward, &seen) : NULL;
    if (kept == NULL || !seen || kept->graph == NULL) attention_uncount_step(forward->attention);
    if (kept == NULL || (!seen && !become(kept, kinds))) return run(forward, batch, error);
    kept->used = ++kinds->clock;
    if (!seen && kept->graph == NULL) return run(forward, batch, error); /* the first */
    if (!seen || kept->graph == NULL) {
        const enum status status = capture(forward, batch, run, kept, error);
        if (status == STATUS_MEMORY) return run(forward, batch, error); /* without a graph */
        TRY(status);
    } else {
        for (size_t layer = 0; layer < config->layer_count; layer++) {
            if (!attends(forward, layer)) continue;
            const struct attention_rows rows = show_layer(forward, batch, layer);
            attention_watch_layer(&rows, kinds->windows[layer]);
        }
    }
    forward->model->device->operations->graph_launch(forward->stream, kept->graph);
    const struct attention_step step = step_of(forward, batch);
    attention_note_step(forward->attention, forward->stream, &step);
    forward->graph.counts.launches++;
    return STATUS_OK;
}

enum status step_graph_end(struct forward *forward, const struct forward_batch *batch, step_run *run,
                           struct error *error) {
    const struct attention_step step = step_of(forward, batch);
    bool again;
    TRY(attention_settle_step(forward->attention, &step, &again, error));
    if (!again) return STATUS_OK;
    forward->graph.counts.again++;
    const enum status status = run(forward, batch, error);
    const enum status finished =
        forward->model->device->operations->stream_synchronize(forward->stream, status == STATUS_OK ? error : NULL);
    return status != STATUS_OK ? status : finished;
}

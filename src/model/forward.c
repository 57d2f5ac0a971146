/* The forward pass: its buffers, and a batch through embedding, layers and output. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/layout.h"
#include "model/forward_internal.h"
#include "model/weight_stream.h"

enum {
    FORWARD_ROWS_MAX = 1 << 20,
    STEP_FLOATS = sizeof(struct step_row) / sizeof(float),
};

/* The first round (memory NULL) only counts bytes. */
struct floats {
    const struct buffer *memory;
    struct layout layout;
};

static struct span place(struct floats *floats, size_t rows, size_t columns) {
    return span_of(floats->memory, layout_offset(&floats->layout, rows, columns * sizeof(float)));
}

static size_t place_all(struct forward *forward, const struct model_config *config, const struct buffer *memory) {
    struct floats layout = {memory, {NULL, 0}};
    size_t rows = forward->block_capacity, wanted = forward->logit_row_capacity, hidden = config->hidden_size;
    size_t all = forward->row_capacity + forward->beside_capacity;
    forward->hidden = place(&layout, all, hidden);
    forward->normed = place(&layout, rows, hidden);
    forward->q = place(&layout, rows, config->head_count * config->k_dimension);
    forward->k = place(&layout, rows, config->kv_head_count * config->k_dimension);
    forward->v = place(&layout, rows, config->kv_head_count * config->v_dimension);
    forward->attended = place(&layout, rows, config->head_count * config->v_dimension);
    const size_t gates = config->family == FAMILY_OPT ? 0 : rows;
    forward->gate = place(&layout, rows + gates, model_ffn_width(config));
    forward->up = span_floats(forward->gate, gates * model_ffn_width(config));
    const size_t besides = config->experts.shared == SHARED_EXPERT_BESIDE ? rows : 0;
    forward->beside = place(&layout, besides, hidden);
    forward->mixed_sum = place(&layout, besides, hidden);
    for (size_t i = 0; i < ROPES_MAX; i++) forward->angles[i] = place(&layout, all, rope_dimension_of(config, i));
    forward->routes.scores = place(&layout, rows, config->experts.count);
    forward->routes.picks = place(&layout, rows, config->experts.used);
    forward->routes.weights = place(&layout, rows, config->experts.used);
    forward->expected.scores = forward->routes.scores;
    forward->expected.picks = place(&layout, rows, config->experts.used);
    forward->expected.weights = place(&layout, rows, config->experts.used);
    const struct state_config *state = &config->state;
    const bool is_delta = state->value_heads > 0;
    forward->mixed.in = place(&layout, rows, state->in_width);
    forward->mixed.out = place(&layout, rows, state->out_width);
    forward->mixed.convolved = place(&layout, is_delta ? rows : 0, state->channels);
    forward->mixed.z = place(&layout, is_delta ? rows : 0, state->out_width);
    forward->mixed.alpha = place(&layout, rows, 2 * state->value_heads);
    forward->mixed.beta = span_floats(forward->mixed.alpha, rows * state->value_heads);
    forward->mixed.ahead = place(&layout, state->layer_count * FORWARD_AHEAD_MAX, model_ahead_width(config));
    forward->mixed.dropped = place(&layout, 1, state->layer_floats);
    forward->gated = place(&layout, config->has_gates ? rows : 0, 2 * config->head_count * config->k_dimension);
    forward->step = place(&layout, all, STEP_FLOATS);
    forward->narrow.hidden = place(&layout, wanted, hidden);
    forward->narrow.step = place(&layout, wanted, STEP_FLOATS);
    forward->next.normed = place(&layout, rows, hidden);
    forward->next.q = place(&layout, rows, config->head_count * config->k_dimension);
    forward->narrow.normed = place(&layout, wanted, hidden);
    const size_t rebuilt = forward->rebuilds ? REBUILD_ROWS_MAX : 0;
    forward->inputs.normed = place(&layout, rebuilt, hidden);
    forward->inputs.k = place(&layout, rebuilt, config->kv_head_count * config->k_dimension);
    forward->inputs.v = place(&layout, rebuilt, config->kv_head_count * config->v_dimension);
    forward->inputs.angles = place(&layout, rebuilt, max_size(config->rope_dimension, config->sliding_rope_dimension));
    forward->inputs.step = place(&layout, rebuilt, STEP_FLOATS);
    return layout.layout.used;
}

static void set_capacities(struct forward *forward, const struct forward_options *options) {
    forward->rebuilds = options->rebuilds;
    forward->row_capacity = options->row_capacity;
    forward->block_capacity = options->block_capacity;
    forward->logit_row_capacity = options->logit_row_capacity;
    forward->beside_capacity = options->beside_capacity;
}

uint64_t forward_bytes(const struct model_config *config, const struct forward_options *options) {
    struct forward forward = {.model = NULL};
    set_capacities(&forward, options);
    return place_all(&forward, config, NULL);
}

static enum status forward_init(struct forward *forward, struct error *error) {
    const struct model_config *config = &forward->model->config;
    struct device *device = forward->model->device;
    size_t rows = forward->block_capacity, wanted = forward->logit_row_capacity;
    const size_t memory_bytes = place_all(forward, config, NULL);
    TRY(device->operations->stream_create(device, &forward->stream, error));
    TRY(device->operations->allocate(device, MEMORY_DEVICE, memory_bytes, &forward->memory, error));
    place_all(forward, config, &forward->memory);
    TRY(device->operations->allocate(device, MEMORY_SHARED, wanted * config->vocabulary_size * sizeof(float),
                                     &forward->logits, error));
    const size_t step_rows = max_size(max_size(forward->row_capacity, forward->beside_capacity), REBUILD_ROWS_MAX);
    forward->items = calloc(rows, sizeof *forward->items);
    forward->step_rows = calloc(step_rows, sizeof *forward->step_rows);
    forward->narrow.items = calloc(wanted, sizeof *forward->narrow.items);
    forward->narrow.sequences = calloc(wanted, sizeof *forward->narrow.sequences);
    forward->narrow.kv = calloc(wanted, sizeof(struct kv_sequence *));
    forward->next.items = calloc(rows, sizeof *forward->next.items);
    forward->mixed.items = calloc(rows, sizeof *forward->mixed.items);
    forward->routes.host = calloc(rows * config->experts.used + 1, sizeof *forward->routes.host);
    forward->expected.host = calloc(rows * config->experts.used + 1, sizeof *forward->expected.host);
    forward->gated_rows = calloc(rows * config->head_count, sizeof *forward->gated_rows);
    forward->narrow.positions = calloc(wanted, sizeof *forward->narrow.positions);
    forward->narrow.rows = calloc(wanted, sizeof *forward->narrow.rows);
    if (forward->items == NULL || forward->step_rows == NULL || forward->narrow.items == NULL ||
        forward->narrow.sequences == NULL || forward->narrow.kv == NULL || forward->next.items == NULL ||
        forward->narrow.positions == NULL || forward->narrow.rows == NULL || forward->mixed.items == NULL ||
        forward->gated_rows == NULL || forward->routes.host == NULL || forward->expected.host == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for a forward pass of %zu rows", rows);
    for (size_t i = 0; i < rows * config->head_count; i++) forward->gated_rows[i] = (uint32_t)(2 * i);
    TRY(step_graph_init(forward, error));
    if (!forward->rebuilds) return STATUS_OK;
    forward->inputs.host = calloc(rows * config->hidden_size, sizeof *forward->inputs.host);
    if (forward->inputs.host == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for the inputs of %zu rows", rows);
    return STATUS_OK;
}

enum status forward_create(struct forward **forward, struct model *model, const struct forward_options *options,
                           struct error *error) {
    const size_t row_capacity = options->row_capacity, block_capacity = options->block_capacity;
    const size_t logit_row_capacity = options->logit_row_capacity;
    *forward = NULL;
    if (block_capacity == 0 || block_capacity > DEVICE_BATCH_MAX || logit_row_capacity == 0 ||
        logit_row_capacity > block_capacity)
        return error_set(error, STATUS_USAGE, "a forward pass takes 1 to %d rows, not %zu with %zu of logits",
                         DEVICE_BATCH_MAX, block_capacity, logit_row_capacity);
    if (row_capacity < block_capacity || row_capacity > FORWARD_ROWS_MAX)
        return error_set(error, STATUS_USAGE, "a forward pass over %zu rows in blocks of %zu: expected at most %d rows",
                         row_capacity, block_capacity, FORWARD_ROWS_MAX);
    struct forward *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for a forward pass");
    made->model = model;
    made->attention = options->attention;
    made->trace = options->trace;
    set_capacities(made, options);
    enum status status = forward_init(made, error);
    if (status != STATUS_OK) {
        forward_destroy(made);
        return status;
    }
    *forward = made;
    return STATUS_OK;
}

void forward_destroy(struct forward *forward) {
    if (forward == NULL) return;
    struct device *device = forward->model->device;
    step_graph_deinit(forward);
    device->operations->release(device, &forward->logits);
    device->operations->release(device, &forward->memory);
    device->operations->release(device, &forward->segment.memory);
    free(forward->segment.routes.host);
    if (forward->stream != NULL) device->operations->stream_destroy(forward->stream);
    free(forward->items);
    free(forward->step_rows);
    free(forward->narrow.items);
    free(forward->narrow.sequences);
    free(forward->narrow.kv);
    free(forward->next.items);
    free(forward->mixed.items);
    free(forward->gated_rows);
    free(forward->routes.host);
    free(forward->expected.host);
    free(forward->narrow.positions);
    free(forward->narrow.rows);
    free(forward->inputs.host);
    free(forward->watch.layer.copy);
    free(forward->watch.attention.copy);
    free(forward);
}

void forward_set_observer(struct forward *forward, forward_observer *observer, void *context) {
    forward->watch.layer.observer = observer;
    forward->watch.layer.context = context;
}

void forward_set_replay(struct forward *forward, const struct forward_replay *replay) { forward->replay = replay; }

void forward_set_attention_observer(struct forward *forward, attention_observer *observer, void *context) {
    forward->watch.attention.observer = observer;
    forward->watch.attention.context = context;
}

/* Tokens come from outside (a request, --ids).  The engine makes the rest of a batch. */
static enum status batch_check(const struct forward *forward, const struct forward_batch *batch, struct error *error) {
    const struct model_config *config = &forward->model->config;
    size_t capacity = batch->beside ? forward->beside_capacity : forward->row_capacity;
    if (batch->row_count == 0 || batch->row_count > capacity)
        return error_set(error, STATUS_USAGE, "a batch of %zu rows, expected 1 to %zu", batch->row_count, capacity);
    size_t block_rows = batch->block_rows != 0 ? batch->block_rows : batch->row_count;
    if (block_rows > forward->block_capacity)
        return error_set(error, STATUS_USAGE, "%zu rows at a time, expected 1 to %zu", block_rows,
                         forward->block_capacity);
    ASSERT(batch->item_count > 0 && batch->item_count <= batch->row_count);
    ASSERT(batch->block_rows == 0 || batch->item_count == 1);
    ASSERT(batch->logit_row_count <= forward->logit_row_capacity);
    size_t rows = 0;
    for (size_t i = 0; i < batch->item_count; i++) {
        ASSERT(batch->items[i].row_first == rows);
        rows += batch->items[i].row_count;
    }
    ASSERT(rows == batch->row_count);
    for (size_t i = 0; i < batch->row_count; i++) {
        if (batch->tokens[i] < 0 || (size_t)batch->tokens[i] >= config->vocabulary_size)
            return error_set(error, STATUS_USAGE, "token id %d: expected 0 to %zu", batch->tokens[i],
                             config->vocabulary_size - 1);
        if (!config->has_rope && batch->positions[i] >= config->context_length)
            return error_set(error, STATUS_USAGE, "position %llu: this model has learned positions up to %llu",
                             (unsigned long long)batch->positions[i], (unsigned long long)(config->context_length - 1));
    }
    return STATUS_OK;
}

/* Finds the items of the wanted rows.  Rows and items both ascend, and an item of several blocks is the only one. */
static void narrow_prepare(struct forward *forward, const struct forward_batch *batch) {
    size_t item = 0;
    for (size_t i = 0; i < batch->logit_row_count; i++) {
        size_t row = batch->logit_rows[i];
        ASSERT(row < batch->row_count && (i == 0 || row > batch->logit_rows[i - 1]));
        while (row >= batch->items[item].row_first + batch->items[item].row_count) item++;
        forward->narrow.rows[i] = (uint32_t)(batch->block_rows != 0 ? row % batch->block_rows : row);
        forward->narrow.sequences[i] = item;
        forward->narrow.kv[i] = batch->sequences[item];
        forward->narrow.positions[i] = batch->positions[row];
    }
}

/* Where a row of a batch has its residual stream and its angles. */
static struct span hidden_of(const struct forward *forward, const struct forward_batch *batch, size_t row) {
    size_t first = batch->beside ? forward->row_capacity : 0;
    return span_floats(forward->hidden, (first + row) * forward->model->config.hidden_size);
}
static struct span angles_of(const struct forward *forward, const struct forward_batch *batch, size_t row,
                             size_t rope) {
    size_t first = batch->beside ? forward->row_capacity : 0;
    return span_floats(forward->angles[rope], (first + row) * rope_dimension_of(&forward->model->config, rope));
}

static struct span step_of(const struct forward *forward, const struct forward_batch *batch, size_t row) {
    size_t first = batch->beside ? forward->row_capacity : 0;
    return span_behind(forward->step, (first + row) * sizeof(struct step_row));
}

/* What the batch's operations read of its rows, and of those whose logits are wanted. */
static void upload_steps(struct forward *forward, const struct forward_batch *batch) {
    for (size_t item = 0; item < batch->item_count; item++)
        for (size_t i = 0; i < batch->items[item].row_count; i++) {
            const size_t row = batch->items[item].row_first + i;
            forward->step_rows[row] = (struct step_row){
                .position = batch->positions[row], .token = (uint32_t)batch->tokens[row], .item = (uint32_t)item};
        }
    forward_upload_step(forward, step_of(forward, batch, 0), batch->row_count);
    if (batch->logit_row_count == 0 || batch->logit_row_count == batch->row_count) return;
    for (size_t i = 0; i < batch->logit_row_count; i++)
        forward->step_rows[i] = (struct step_row){.position = forward->narrow.positions[i],
                                                  .token = (uint32_t)batch->tokens[batch->logit_rows[i]]};
    forward_upload_step(forward, forward->narrow.step, batch->logit_row_count);
}

/* first: the block's, of the batch. */
static void make_angles(struct forward *forward, const struct forward_batch *batch, size_t first) {
    for (size_t i = 0; i < ROPES_MAX; i++)
        if (rope_dimension_of(&forward->model->config, i) > 0)
            forward_angles(forward, i, batch->positions, step_of(forward, batch, first), batch->row_count,
                           angles_of(forward, batch, first, i));
}

/* first: the block's, of the batch. */
static void embed(struct forward *forward, const struct forward_batch *batch, size_t first) {
    const struct model *model = forward->model;
    const struct model_config *config = &model->config;
    const struct device_operations *operations = model->device->operations;
    operations->embed(forward->stream,
                      &(struct embed_operation){.table = &model->token_embedding,
                                                .position_table = config->has_rope ? NULL : &model->position_embedding,
                                                .step = step_of(forward, batch, first),
                                                .position_offset = config->position_offset,
                                                .row_count = batch->row_count,
                                                .y = hidden_of(forward, batch, first),
                                                .scale = config->embedding_scale});
    make_angles(forward, batch, first);
}

static enum status observe(const struct layer_pass *pass, struct error *error) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    size_t hidden = forward->model->config.hidden_size, row_count = pass->row_count;
    if (forward->watch.layer.copy == NULL)
        forward->watch.layer.copy = calloc(forward->block_capacity * hidden, sizeof *forward->watch.layer.copy);
    if (forward->watch.layer.copy == NULL) return error_set(error, STATUS_MEMORY, "no memory for the observer");
    operations->download(forward->stream, forward->watch.layer.copy, pass->residual,
                         row_count * hidden * sizeof(float));
    TRY(operations->stream_synchronize(forward->stream, error));
    forward->watch.layer.observer(forward->watch.layer.context, pass->layer_index, forward->watch.layer.copy,
                                  row_count);
    return STATUS_OK;
}

static enum status observe_attention(struct forward *forward, const struct forward_batch *batch, size_t layer_index,
                                     struct error *error) {
    const struct model_config *config = &forward->model->config;
    const struct layer_config *layer = &config->layers[layer_index];
    const struct device_operations *operations = forward->model->device->operations;
    const bool stores = layer->kv_layer == layer_index;
    const size_t kv_heads = stores ? layer->kv.kv_head_count : 0;
    size_t q_size = config->head_count * layer->kv.k_dimension, k_size = kv_heads * layer->kv.k_dimension;
    size_t v_size = kv_heads * layer->kv.v_dimension, o_size = config->head_count * layer->kv.v_dimension;
    size_t rows = batch->row_count, capacity = forward->block_capacity;
    const size_t floats = (config->head_count + config->kv_head_count) * (config->k_dimension + config->v_dimension);
    if (forward->watch.attention.copy == NULL) forward->watch.attention.copy = calloc(capacity * floats, sizeof(float));
    if (forward->watch.attention.copy == NULL) return error_set(error, STATUS_MEMORY, "no memory for the observer");
    float *q = forward->watch.attention.copy, *k = q + capacity * q_size, *v = k + capacity * k_size;
    float *attended = v + capacity * v_size;
    operations->download(forward->stream, q, forward->q, rows * q_size * sizeof(float));
    operations->download(forward->stream, k, forward->k, rows * k_size * sizeof(float));
    operations->download(forward->stream, v, forward->v, rows * v_size * sizeof(float));
    operations->download(forward->stream, attended, forward->attended, rows * o_size * sizeof(float));
    TRY(operations->stream_synchronize(forward->stream, error));
    forward->watch.attention.observer(forward->watch.attention.context,
                                      &(struct attention_event){.layer_index = layer_index,
                                                                .row_count = rows,
                                                                .q = q,
                                                                .k = k,
                                                                .v = v,
                                                                .attended = attended,
                                                                .positions = batch->positions,
                                                                .items = forward->items,
                                                                .sequences = batch->sequences,
                                                                .item_count = batch->item_count});
    return STATUS_OK;
}

/* The last layer drops rows whose logits nobody wants, unless somebody observes them. */
static bool may_narrow(const struct forward *forward, const struct forward_batch *batch) {
    bool watched = forward->watch.layer.observer != NULL || forward->watch.attention.observer != NULL ||
                   attention_watches_prefill(forward->attention);
    return batch->logit_row_count != batch->row_count && !batch->keep_rows && batch->rules == NULL && !watched;
}

/* rows: [row_count][hidden_size] of the residual stream after the last layer. */
static void project_logits(struct forward *forward, struct span rows, size_t row_count) {
    const struct model *model = forward->model;
    const struct model_config *config = &model->config;
    const struct device_operations *operations = model->device->operations;
    operations->norm(forward->stream,
                     &(struct norm_operation){.kind = span_exists(model->output_norm_bias) ? NORM_LAYER : NORM_RMS,
                                              .x = rows,
                                              .x_stride = config->hidden_size,
                                              .row_count = row_count,
                                              .segment_count = 1,
                                              .segment_size = config->hidden_size,
                                              .w = model->output_norm,
                                              .b = model->output_norm_bias,
                                              .epsilon = config->norm_epsilon,
                                              .y = forward->narrow.normed,
                                              .y_stride = config->hidden_size});
    operations->matmul(forward->stream, &(struct matmul_operation){.x = forward->narrow.normed,
                                                                   .x_stride = config->hidden_size,
                                                                   .row_count = row_count,
                                                                   .weight_count = 1,
                                                                   .weights = {&model->output},
                                                                   .y = {span_of(&forward->logits, 0)},
                                                                   .y_stride = {config->vocabulary_size}});
    if (config->logit_softcap == 0) return;
    operations->activation(forward->stream, &(struct activation_operation){.kind = ACTIVATION_SOFTCAP,
                                                                           .gate = span_of(&forward->logits, 0),
                                                                           .stride = config->vocabulary_size,
                                                                           .row_count = row_count,
                                                                           .count = config->vocabulary_size,
                                                                           .cap = config->logit_softcap,
                                                                           .y = span_of(&forward->logits, 0)});
}

/* y[i] = x[rows[i]] of the residual stream. */
static void gather_hidden(struct forward *forward, struct span x, const uint32_t *rows, size_t row_count,
                          struct span y) {
    size_t hidden = forward->model->config.hidden_size;
    forward->model->device->operations->gather(forward->stream, &(struct gather_operation){.x = x,
                                                                                           .x_stride = hidden,
                                                                                           .indices = rows,
                                                                                           .row_count = row_count,
                                                                                           .count = hidden,
                                                                                           .y = y,
                                                                                           .y_stride = hidden});
}

/* ---- layers and blocks ---- */

/* A block of a batch: rows [first, first + batch.row_count) as a batch of their own.  If the whole has several
 * blocks, a block has one item. */
struct block {
    struct forward_batch batch;
    struct attend_item item;
    size_t index, count; /* among the batch's blocks */
    size_t first, narrow_first;
};

/* The next block; the first one after a zeroed struct.  false: there is none. */
static bool next_block(const struct forward *forward, const struct forward_batch *batch, struct block *block) {
    size_t first = block->first + block->batch.row_count;
    size_t narrow_first = block->narrow_first + block->batch.logit_row_count;
    if (first == batch->row_count) return false;
    size_t rows = batch->block_rows != 0 ? batch->block_rows : batch->row_count, wanted = 0;
    block->index = first / rows;
    block->count = (batch->row_count + rows - 1) / rows;
    block->first = first;
    block->narrow_first = narrow_first;
    block->batch = *batch;
    block->batch.tokens += first;
    block->batch.positions += first;
    block->batch.row_count = rows = min_size(rows, batch->row_count - first);
    while (narrow_first + wanted < batch->logit_row_count && batch->logit_rows[narrow_first + wanted] < first + rows)
        wanted++;
    block->batch.logit_rows = forward->narrow.rows + narrow_first;
    block->batch.logit_row_count = wanted;
    if (block->count == 1) return true;
    block->item = batch->items[0];
    block->item.row_count = rows;
    block->item.position_first += first;
    block->batch.items = &block->item;
    return true;
}

static struct attention_rows rows_of(const struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct kv_geometry kv = layer_config_of(pass)->kv;
    const struct forward_batch *batch = pass->batch;
    for (size_t i = 0; i < batch->item_count; i++) forward->items[i] = batch->items[i];
    return (struct attention_rows){.layer_index = pass->layer_index,
                                   .kv_head_count = kv.kv_head_count,
                                   .k = forward->k,
                                   .v = forward->v,
                                   .k_stride = kv.kv_head_count * kv.k_dimension,
                                   .v_stride = kv.kv_head_count * kv.v_dimension,
                                   .sequences = batch->sequences,
                                   .items = forward->items,
                                   .item_count = batch->item_count,
                                   .step = pass->step};
}

static enum status run_layer(struct layer_pass *pass, struct error *error) {
    struct forward *forward = pass->forward;
    const bool attends = layer_config_of(pass)->mixer == MIXER_ATTENTION;
    pass->rows = rows_of(pass);
    layer_phase(pass, "open");
    if (attends) TRY(attention_begin_layer(forward->attention, &pass->rows, error));
    layer_phase(pass, "project");
    enum status computed = STATUS_OK;
    if (forward->model->config.family == FAMILY_OPT)
        opt_layer(pass);
    else
        computed = llama_layer(pass, error);
    layer_phase(pass, "store");
    enum status ended = STATUS_OK; /* also after a failure: rows were appended */
    if (attends)
        ended =
            attention_end_layer(forward->attention, forward->stream, &pass->rows, computed == STATUS_OK ? error : NULL);
    TRY(computed);
    TRY(ended);
    if (forward->watch.layer.observer != NULL) TRY(observe(pass, error));
    if (forward->watch.attention.observer != NULL && attends)
        TRY(observe_attention(forward, pass->batch, pass->layer_index, error));
    return STATUS_OK;
}

/* A block through a layer.  After the last layer the residual stream of the wanted rows is in narrow.hidden, unless
 * all rows of the batch are wanted. */
static enum status run_block(struct forward *forward, const struct block *block, size_t layer_index, bool all_wanted,
                             bool defers, struct error *error) {
    const struct model_config *config = &forward->model->config;
    const size_t picks = block->first * config->experts.used;
    const struct span none = {.buffer = NULL};
    bool last = layer_index + 1 == config->layer_count;
    struct layer_pass pass = {.forward = forward,
                              .batch = &block->batch,
                              .weights = &forward->model->layers[layer_index],
                              .layer_index = layer_index,
                              .narrow = last && may_narrow(forward, &block->batch),
                              .narrow_first = block->narrow_first,
                              .is_last_block = block->index + 1 == block->count,
                              .angles = {angles_of(forward, &block->batch, block->first, ROPE_FULL),
                                         angles_of(forward, &block->batch, block->first, ROPE_SLIDING),
                                         angles_of(forward, &block->batch, block->first, ROPE_QUERIES)},
                              .step = step_of(forward, &block->batch, block->first),
                              .residual = hidden_of(forward, &block->batch, block->first),
                              .normed = forward->normed,
                              .mixed = config->experts.shared == SHARED_EXPERT_BESIDE ? forward->mixed_sum : none,
                              .defers_experts = defers,
                              .routes = forward->routes,
                              .row_count = block->batch.row_count};
    if (defers) {
        pass.normed = span_floats(forward->segment.normed, block->first * config->hidden_size);
        pass.routes = forward->segment.routes;
        pass.routes.picks = span_floats(pass.routes.picks, picks);
        pass.routes.weights = span_floats(pass.routes.weights, picks);
    }
    uint64_t began = trace_clock(forward->trace);
    enum status status = run_layer(&pass, error);
    if (forward->trace != NULL) trace_phase(forward->trace, NULL, TRACE_NONE);
    trace_since(forward->trace, "layer", TRACE_ENGINE, began, (uint32_t)layer_index, (uint32_t)block->batch.row_count);
    TRY(status);
    if (last && !all_wanted && !pass.narrow && !defers && block->batch.logit_row_count > 0)
        gather_hidden(forward, pass.residual, block->batch.logit_rows, block->batch.logit_row_count,
                      span_floats(forward->narrow.hidden, block->narrow_first * config->hidden_size));
    return STATUS_OK;
}

/* Launched operations read the layer's weights, whose memory the next layer takes. */
static enum status leave_layer(struct forward *forward, size_t layer, struct error *error) {
    TRY(forward->model->device->operations->stream_synchronize(forward->stream, error));
    weight_stream_done(forward->model->stream, layer);
    return STATUS_OK;
}

/* The block before the first one at or behind a row: next_block goes on from there. */
static struct block block_before(const struct forward_batch *batch, size_t row) {
    struct block block = {.first = row};
    while (block.narrow_first < batch->logit_row_count && batch->logit_rows[block.narrow_first] < row)
        block.narrow_first++;
    return block;
}

/* Notes where the batch goes on, behind a block; true: it pauses there. */
static bool pauses(const struct forward_batch *batch, size_t layer, const struct block *block) {
    if (batch->pauses == NULL || !batch->pauses(batch->pauses_context)) return false;
    size_t next = block->first + block->batch.row_count;
    bool over = next == batch->row_count;
    *batch->cursor = (struct forward_cursor){.layer = layer + over, .row_first = over ? 0 : next};
    return true;
}

/* Those that may leave do so, if it is time: the batch is of the others from here on. */
static enum status let_leave(struct forward *forward, struct forward_batch *batch, size_t done, struct error *error) {
    const struct model_config *config = &forward->model->config;
    const struct device_operations *operations = forward->model->device->operations;
    struct forward_leave *leave = batch->leave;
    if (leave == NULL || done == config->layer_count || !leave->asks(leave->context, done, config->layer_count))
        return STATUS_OK;
    ASSERT(batch->block_rows == 0 && leave->stays < batch->item_count && forward->model->stream == NULL);
    const size_t first = batch->items[leave->stays].row_first;
    operations->download(forward->stream, leave->rows, hidden_of(forward, batch, first),
                         (batch->row_count - first) * config->hidden_size * sizeof *leave->rows);
    TRY(operations->stream_synchronize(forward->stream, error));
    attention_change_items(forward->attention);
    leave->layer = done;
    batch->leave = NULL;
    batch->row_count = first;
    batch->item_count = leave->stays;
    while (batch->logit_row_count > 0 && batch->logit_rows[batch->logit_row_count - 1] >= first)
        batch->logit_row_count--;
    return STATUS_OK;
}

/* Experts that are read go through all blocks before the next ones are read.  In a last layer that is narrowed only
 * rows whose logits are wanted have some, and somebody who watches layers sees each block's rows behind theirs. */
static bool defers_experts(const struct forward *forward, const struct forward_batch *batch, size_t layer) {
    const struct model_config *config = &forward->model->config;
    return batch->block_rows != 0 && batch->row_count > batch->block_rows && !batch->beside &&
           weight_stream_experts(forward->model->stream) != NULL && model_layer_has_experts(config, layer) &&
           (layer + 1 < config->layer_count || !may_narrow(forward, batch)) && forward->watch.layer.observer == NULL;
}

/* *batch: its items may leave. */
static enum status run_layers(struct forward *forward, struct forward_batch *batch, bool *paused, struct error *error) {
    static const struct forward_cursor begin;
    const struct forward_cursor from = batch->cursor != NULL ? *batch->cursor : begin;
    size_t layer_count = forward->model->config.layer_count;
    uint64_t done = (uint64_t)batch->row_count * from.layer + from.row_first,
             total = (uint64_t)batch->row_count * layer_count;
    for (size_t layer = from.layer; layer < layer_count; layer++) {
        struct block block = block_before(batch, layer == from.layer ? from.row_first : 0);
        const bool all_wanted = batch->logit_row_count == batch->row_count;
        const bool defers = defers_experts(forward, batch, layer);
        TRY(weight_stream_need(forward->model->stream, layer, error));
        if (defers) TRY(segment_rows_init(forward, error));
        while (next_block(forward, batch, &block)) {
            if (layer == 0) embed(forward, &block.batch, block.first);
            TRY(run_block(forward, &block, layer, all_wanted, defers, error));
            const bool is_last = block.index + 1 == block.count;
            if (defers && is_last) TRY(layer_deferred_experts(forward, batch, layer, error));
            if (defers && is_last && layer + 1 == layer_count && !all_wanted && batch->logit_row_count > 0)
                gather_hidden(forward, forward->hidden, batch->logit_rows, batch->logit_row_count,
                              forward->narrow.hidden);
            done += block.batch.row_count;
            if (done == total) break;
            if (batch->progress != NULL && batch->progress(batch->progress_context, done, total))
                return error_set(error, STATUS_INTERRUPTED, "interrupted");
            *paused = (!defers || is_last) && pauses(batch, layer, &block); /* what is deferred is not saved */
            if (*paused) return STATUS_OK;
        }
        if (forward->model->stream != NULL) TRY(leave_layer(forward, layer, error));
        TRY(let_leave(forward, batch, layer + 1, error));
        *paused = batch->row_count == 0;
        if (*paused) return STATUS_OK;
    }
    return STATUS_OK;
}

/* A batch of one block, from the tokens to the logits of all its rows. */
static enum status run_step(struct forward *forward, const struct forward_batch *batch, struct error *error) {
    struct block block = {.count = 0};
    bool is_one = next_block(forward, batch, &block);
    ASSERT(is_one && block.count == 1);
    embed(forward, &block.batch, 0);
    for (size_t layer = 0; layer < forward->model->config.layer_count; layer++)
        TRY(run_block(forward, &block, layer, true, false, error));
    project_logits(forward, hidden_of(forward, batch, 0), batch->row_count);
    return STATUS_OK;
}

static void begin_rows(const struct forward_batch *batch) {
    for (size_t i = 0; i < batch->item_count; i++) {
        const uint64_t first = batch->items[i].position_first, end = first + batch->items[i].row_count;
        kv_sequence_begin_rows(batch->sequences[i], batch->ahead ? first + 1 : end, end);
    }
}

enum status forward_run(struct forward *forward, const struct forward_batch *given, const float **logits,
                        struct error *error) {
    bool paused = false;
    struct forward_batch own = *given;
    const struct forward_batch *batch = &own;
    forward->kept_row_count = 0;
    TRY(batch_check(forward, batch, error));
    narrow_prepare(forward, batch);
    begin_rows(batch);
    upload_steps(forward, batch);
    uint64_t began = trace_clock(forward->trace);
    const bool as_graph = step_graph_takes(forward, batch);
    enum status status =
        as_graph ? step_graph_run(forward, batch, run_step, error) : run_layers(forward, &own, &paused, error);
    if (!as_graph) attention_end_step(forward->attention);
    if (forward->trace != NULL) trace_phase(forward->trace, "logits", TRACE_NONE);
    bool all_wanted = batch->logit_row_count == batch->row_count;
    if (status == STATUS_OK && !as_graph && batch->logit_row_count > 0 && !paused)
        project_logits(forward, all_wanted ? hidden_of(forward, batch, 0) : forward->narrow.hidden,
                       batch->logit_row_count);
    /* Also after a failure: launched operations may still read the caller's arrays. */
    enum status finished =
        forward->model->device->operations->stream_synchronize(forward->stream, status == STATUS_OK ? error : NULL);
    if (forward->trace != NULL) trace_phase(forward->trace, NULL, TRACE_NONE);
    trace_since(forward->trace, batch->rules != NULL ? "step" : "prompt", TRACE_ENGINE, began, TRACE_NONE,
                (uint32_t)batch->row_count);
    if (status == STATUS_OK) status = finished;
    if (status == STATUS_OK && as_graph) status = step_graph_end(forward, batch, run_step, error);
    if (as_graph) attention_end_step(forward->attention);
    attention_end_units(forward->attention, status != STATUS_OK);
    weight_stream_end_pass(forward->model->stream);
    TRY(gguf_check(&forward->model->gguf, error)); /* a failure, too, may come of it */
    if (status != STATUS_OK) return status;
    if (batch->keep_rows && !paused) forward->kept_row_count = batch->row_count;
    if (logits != NULL) *logits = paused ? NULL : forward->logits.host;
    return STATUS_OK;
}

enum status forward_save_rows(struct forward *forward, size_t row_count, float *rows, struct error *error) {
    const struct device_operations *operations = forward->model->device->operations;
    ASSERT(row_count <= forward->row_capacity);
    operations->download(forward->stream, rows, forward->hidden,
                         row_count * forward->model->config.hidden_size * sizeof *rows);
    return operations->stream_synchronize(forward->stream, error);
}

enum status forward_restore_rows(struct forward *forward, const struct forward_batch *batch, const float *rows,
                                 struct error *error) {
    const struct device_operations *operations = forward->model->device->operations;
    struct block block = {.count = 0};
    TRY(batch_check(forward, batch, error));
    operations->upload(forward->stream, forward->hidden, rows,
                       batch->row_count * forward->model->config.hidden_size * sizeof *rows);
    upload_steps(forward, batch);
    while (next_block(forward, batch, &block)) make_angles(forward, &block.batch, block.first);
    return operations->stream_synchronize(forward->stream, error);
}

enum status forward_logits(struct forward *forward, const uint32_t *rows, size_t row_count, const float **logits,
                           struct error *error) {
    ASSERT(row_count > 0 && row_count <= forward->logit_row_capacity);
    for (size_t i = 0; i < row_count; i++) ASSERT(rows[i] < forward->kept_row_count);
    gather_hidden(forward, forward->hidden, rows, row_count, forward->narrow.hidden);
    project_logits(forward, forward->narrow.hidden, row_count);
    TRY(forward->model->device->operations->stream_synchronize(forward->stream, error));
    *logits = forward->logits.host;
    return gguf_check(&forward->model->gguf, error);
}

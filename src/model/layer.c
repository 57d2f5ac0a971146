/* layer: the attention part of a layer, which all families share. */
#include "base/assert.h"
#include "model/forward_internal.h"
#include "model/weight_stream.h"

void layer_narrow(struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct model_config *config = &forward->model->config;
    const struct device_operations *operations = forward->model->device->operations;
    const struct forward_batch *batch = pass->batch;
    size_t hidden = config->hidden_size, count = batch->logit_row_count;
    const struct span sources[2] = {pass->residual, pass->normed};
    const struct span targets[2] = {span_floats(forward->narrow.hidden, pass->narrow_first * hidden),
                                    forward->narrow.normed};
    for (size_t i = 0; i < 2; i++)
        operations->gather(forward->stream, &(struct gather_operation){.x = sources[i],
                                                                       .x_stride = hidden,
                                                                       .indices = batch->logit_rows,
                                                                       .row_count = count,
                                                                       .count = hidden,
                                                                       .y = targets[i],
                                                                       .y_stride = hidden});
    pass->residual = targets[0];
    pass->normed = targets[1];
    pass->row_count = count;
}

/* The same with their q. */
static void narrow(struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct model_config *config = &forward->model->config;
    const struct layer_config *layer = layer_config_of(pass);
    layer_narrow(pass);
    const size_t count = pass->row_count;
    layer_multiply(pass, layer_input(pass), &pass->weights->q, pass->weights->q_bias,
                   config->has_gates ? forward->gated : forward->q);
    if (config->has_gates) layer_take_queries(forward, count, layer->kv.k_dimension, forward->q);
    forward_angles(forward, layer->query_rope, forward->narrow.positions + pass->narrow_first,
                   span_behind(forward->narrow.step, pass->narrow_first * sizeof(struct step_row)), count,
                   angles_for(pass, layer->query_rope));
}

static struct attend_operation operation_of(const struct layer_pass *pass, size_t layer_index, struct span q,
                                            const struct attend_item *items, size_t item_count) {
    struct forward *forward = pass->forward;
    const struct layer_config *layer = &forward->model->config.layers[layer_index];
    return (struct attend_operation){.q = q,
                                     .q_stride = layer->head_count * layer->kv.k_dimension,
                                     .out = forward->attended,
                                     .out_stride = layer->head_count * layer->kv.v_dimension,
                                     .head_count = layer->head_count,
                                     .kv_head_count = layer->kv.kv_head_count,
                                     .scale = layer->scale,
                                     .softcap = forward->model->config.score_softcap,
                                     .sinks = forward->model->layers[layer_index].sinks,
                                     .items = items,
                                     .item_count = item_count};
}

/* Estimates the next layer's queries from the residual stream before this layer, which changes it little (InfiniGen;
 * CLO section 4).  Only for steps that choose.  With gates the queries are computed where this layer's would be, and
 * only layers that keep a state have none there. */
static bool expected_queries(void *context, size_t next, struct attend_operation *operation) {
    const struct layer_pass *pass = context;
    struct forward *forward = pass->forward;
    const struct model *model = forward->model;
    const struct model_config *config = &model->config;
    ASSERT(next == pass->layer_index + 1);
    const bool attends = layer_config_of(pass)->mixer == MIXER_ATTENTION;
    if (forward->replay != NULL || pass->narrow || (config->has_gates && attends) || next >= config->layer_count ||
        pass->row_count > forward->block_capacity || config->layers[next].mixer != MIXER_ATTENTION ||
        config->layers[next].attention == ATTENTION_SLIDING)
        return false;
    if (!weight_stream_has_queries(model->stream, next)) return false;
    const struct layer_weights *weights = &model->layers[next];
    const struct layer_config *layer = &config->layers[next];
    struct span x = pass->residual;
    if (config->norms != NORMS_BEHIND) {
        x = forward->next.normed;
        layer_norm_into(pass, weights->attention_norm, weights->attention_norm_bias, x);
    }
    layer_multiply(pass, x, &weights->q, weights->q_bias, config->has_gates ? forward->gated : forward->next.q);
    if (config->has_gates) layer_take_queries(forward, pass->row_count, layer->kv.k_dimension, forward->next.q);
    layer_head_norm(pass, layer, forward->next.q, pass->row_count, config->head_count, weights->q_norm);
    layer_rotate(pass, layer, forward->next.q, pass->row_count, config->head_count,
                 angles_for(pass, layer->query_rope));
    for (size_t i = 0; i < pass->batch->item_count; i++) {
        forward->next.items[i] = forward->items[i];
        forward->next.items[i].view = kv_sequence_view(pass->batch->sequences[i], forward->stream, next);
    }
    *operation = operation_of(pass, next, forward->next.q, forward->next.items, pass->batch->item_count);
    return true;
}

/* The rows that go on, one item each. */
static const struct attend_item *narrow_items(const struct layer_pass *pass) {
    const struct forward *forward = pass->forward;
    struct attend_item *items = forward->narrow.items + pass->narrow_first;
    for (size_t i = 0; i < pass->row_count; i++)
        items[i] = (struct attend_item){.view = forward->items[forward->narrow.sequences[pass->narrow_first + i]].view,
                                        .row_first = i,
                                        .row_count = 1,
                                        .position_first = forward->narrow.positions[pass->narrow_first + i]};
    return items;
}

static uint64_t next_window(const struct layer_pass *pass) {
    const struct model_config *config = &pass->forward->model->config;
    const struct layer_config *next = &config->layers[pass->layer_index + 1];
    const bool slides = pass->layer_index + 1 < config->layer_count && next->attention == ATTENTION_SLIDING;
    return slides ? next->window : 0;
}

static struct layer_math math_of(struct layer_pass *pass) {
    return (struct layer_math){.queries = expected_queries,
                               .rebuild = pass->forward->rebuilds ? layer_rebuild : NULL,
                               .next_window = next_window(pass),
                               .context = pass};
}

void layer_expect(struct layer_pass *pass) {
    const struct forward *forward = pass->forward;
    const struct attention_layer layer = {.index = pass->layer_index,
                                          .sequences = pass->batch->sequences,
                                          .rules = pass->batch->rules,
                                          .operation = {.items = forward->items, .item_count = pass->batch->item_count},
                                          .math = math_of(pass)};
    attention_expect(forward->attention, forward->stream, &layer);
}

/* The rows of one item, or, item NULL, all of the pass. */
static void attend(struct layer_pass *pass, const struct attend_item *item, size_t item_index) {
    struct forward *forward = pass->forward;
    const struct layer_config *config = layer_config_of(pass);
    struct attention_layer layer = {.index = pass->layer_index,
                                    .sequences = pass->batch->sequences,
                                    .rules = pass->batch->rules,
                                    .math = math_of(pass)};
    if (pass->narrow) {
        layer.sequences = forward->narrow.kv + pass->narrow_first;
        layer.operation = operation_of(pass, pass->layer_index, forward->q, narrow_items(pass), pass->row_count);
    } else {
        layer.operation = operation_of(pass, pass->layer_index, forward->q, forward->items, pass->batch->item_count);
        layer.operation.step = pass->step;
    }
    if (item != NULL) {
        layer.operation.items = item;
        layer.operation.item_count = 1;
        layer.sequences += item_index;
        if (layer.rules != NULL) layer.rules += item_index;
        layer.math.queries = NULL; /* of a part of the rows none knows what the next layer wants first */
    }
    layer.operation.window = config->attention == ATTENTION_SLIDING ? config->window : 0;
    attention_attend(forward->attention, forward->stream, &layer);
}

static size_t rows_in_chunk(const struct attend_item *item) {
    const size_t left = KV_CHUNK_TOKENS - (size_t)(item->position_first % KV_CHUNK_TOKENS);
    return item->row_count < left ? item->row_count : left;
}

static bool goes_in_pieces(const struct layer_pass *pass) {
    if (!attention_rounds(pass->forward->attention)) return false;
    for (size_t i = 0; i < pass->rows.item_count; i++)
        if (rows_in_chunk(&pass->rows.items[i]) < pass->rows.items[i].row_count) return true;
    return false;
}

/* Each item's rows chunk by chunk (attention_rounds).  Where only the last rows attend, they do so when all others are
 * stored. */
static void append_in_pieces(struct layer_pass *pass, bool attends) {
    struct forward *forward = pass->forward;
    for (size_t i = 0; i < pass->rows.item_count; i++) {
        struct attend_item *whole = &pass->rows.items[i], piece = *whole;
        const size_t row_end = whole->row_first + whole->row_count;
        for (; piece.row_first < row_end; piece.row_first += piece.row_count) {
            piece.position_first = whole->position_first + (piece.row_first - whole->row_first);
            piece.row_count = row_end - piece.row_first;
            piece.row_count = rows_in_chunk(&piece);
            struct attention_rows rows = pass->rows;
            rows.items = &piece;
            rows.item_count = 1;
            rows.sequences += i;
            attention_append(forward->attention, forward->stream, &rows);
            whole->view = piece.view;
            if (attends) attend(pass, &piece, i);
            const bool is_last = piece.row_first + piece.row_count == row_end;
            if (!is_last && !attention_store(forward->attention, forward->stream, &rows)) return;
        }
    }
}

/* Replaces a layer's computed rows, [row_count][size] from `rows` on, by those of the replay. */
static void replay_rows(const struct layer_pass *pass, struct span target, const float *rows, size_t size) {
    struct forward *forward = pass->forward;
    ASSERT(!pass->narrow && pass->row_count == forward->replay->row_count);
    forward->model->device->operations->upload(forward->stream, target,
                                               rows + pass->layer_index * pass->row_count * size,
                                               pass->row_count * size * sizeof *rows);
}

static void replay_keys_and_values(const struct layer_pass *pass) {
    const struct forward *forward = pass->forward;
    const struct model_config *config = &forward->model->config;
    replay_rows(pass, forward->k, forward->replay->k, config->kv_head_count * config->k_dimension);
    replay_rows(pass, forward->v, forward->replay->v, config->kv_head_count * config->v_dimension);
}

bool layer_attention(struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct model_config *config = &forward->model->config;
    layer_project(pass, layer_input(pass), pass->row_count, forward->k, forward->v,
                  pass->narrow ? (struct span){.buffer = NULL} : forward->q);
    if (forward->inputs.host != NULL && forward->replay == NULL) layer_keep_inputs(pass);
    const struct layer_config *layer = layer_config_of(pass);
    if (layer_stores(pass))
        layer_finish_kv(pass, pass->row_count, forward->k, forward->v, angles_for(pass, layer->rope));
    if (forward->replay != NULL) replay_keys_and_values(pass);
    const bool in_pieces = goes_in_pieces(pass);
    if (!in_pieces)
        attention_append(forward->attention, forward->stream, &pass->rows);
    else if (pass->narrow)
        append_in_pieces(pass, false);
    if (pass->narrow) {
        if (pass->batch->logit_row_count == 0) return false;
        narrow(pass);
    }
    layer_head_norm(pass, layer, forward->q, pass->row_count, config->head_count, pass->weights->q_norm);
    layer_rotate(pass, layer, forward->q, pass->row_count, config->head_count, angles_for(pass, layer->query_rope));
    if (forward->replay != NULL)
        replay_rows(pass, forward->q, forward->replay->q, config->head_count * config->k_dimension);
    layer_phase(pass, "attend");
    if (in_pieces && !pass->narrow)
        append_in_pieces(pass, true);
    else
        attend(pass, NULL, 0);
    layer_phase(pass, "output");
    if (config->has_gates)
        forward->model->device->operations->gate(forward->stream,
                                                 &(struct gate_operation){.gates = forward->gated,
                                                                          .row_count = pass->row_count,
                                                                          .head_count = config->head_count,
                                                                          .head_size = layer->kv.k_dimension,
                                                                          .y = forward->attended});
    layer_add(pass,
              &(struct matmul_operation){.x = forward->attended,
                                         .x_stride = config->head_count * layer->kv.v_dimension,
                                         .weights = {&pass->weights->output},
                                         .biases = {pass->weights->output_bias}},
              pass->weights->attention_norm_behind, 0);
    return true;
}

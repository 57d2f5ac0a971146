/* K and V of rows of a layer from its inputs, after the step that they were rows of; and the inputs of a step's rows,
 * kept for that.  The operations are those of layer.c, in its order. */
#include "cache/inputs.h"
#include "model/forward_internal.h"

/* The first layer's inputs: the embedded tokens, normalized. */
static struct span first_inputs(const struct layer_pass *pass, const struct rebuild_rows *rows) {
    struct forward *forward = pass->forward;
    const struct model *model = forward->model;
    const struct model_config *config = &model->config;
    const struct layer_weights *weights = &model->layers[0];
    const bool has_bias = span_exists(weights->attention_norm_bias);
    const struct span normed = forward->inputs.normed;
    model->device->operations->embed(
        forward->stream,
        &(struct embed_operation){.table = &model->token_embedding,
                                  .position_table = config->has_rope ? NULL : &model->position_embedding,
                                  .step = forward->inputs.step,
                                  .position_offset = config->position_offset,
                                  .row_count = rows->row_count,
                                  .y = normed,
                                  .scale = config->embedding_scale});
    if (config->norms == NORMS_BEHIND) return normed;
    model->device->operations->norm(forward->stream, &(struct norm_operation){.kind = has_bias ? NORM_LAYER : NORM_RMS,
                                                                              .x = normed,
                                                                              .x_stride = config->hidden_size,
                                                                              .row_count = rows->row_count,
                                                                              .segment_count = 1,
                                                                              .segment_size = config->hidden_size,
                                                                              .w = weights->attention_norm,
                                                                              .b = weights->attention_norm_bias,
                                                                              .epsilon = config->norm_epsilon,
                                                                              .y = normed,
                                                                              .y_stride = config->hidden_size});
    return normed;
}

static struct span restored_inputs(const struct forward *forward, const struct rebuild_rows *rows) {
    size_t done = 0;
    for (size_t i = 0; i < rows->kept_count; done += rows->kept[i++].row_count) {
        struct keep_rows_operation restore = rows->kept[i];
        restore.restores = true;
        restore.x = span_floats(forward->inputs.normed, done * restore.columns);
        restore.x_stride = restore.columns;
        forward->model->device->operations->keep_rows(forward->stream, &restore);
    }
    ASSERT(done == rows->row_count);
    return forward->inputs.normed;
}

void layer_rebuild(void *context, struct rebuild_rows *rows) {
    const struct layer_pass *pass = context;
    struct forward *forward = pass->forward;
    const struct kv_geometry kv = layer_config_of(pass)->kv;
    const struct span k = forward->inputs.k, v = forward->inputs.v;
    const struct span step = rows->kept != NULL ? rows->step : forward->inputs.step;
    for (size_t i = 0; i < rows->row_count && rows->kept == NULL; i++)
        forward->step_rows[i] = (struct step_row){.position = rows->position_first + i,
                                                  .token = rows->tokens != NULL ? (uint32_t)rows->tokens[i] : 0};
    if (rows->kept == NULL) forward_upload_step(forward, step, rows->row_count);
    const struct span x = rows->kept != NULL          ? restored_inputs(forward, rows)
                          : span_exists(rows->inputs) ? rows->inputs
                                                      : first_inputs(pass, rows);
    forward_angles(forward, layer_config_of(pass)->rope, NULL, step, rows->row_count, forward->inputs.angles);
    layer_project(pass, x, rows->row_count, k, v, (struct span){.buffer = NULL});
    layer_finish_kv(pass, rows->row_count, k, v, forward->inputs.angles);
    rows->k = k;
    rows->v = v;
    rows->k_stride = kv.kv_head_count * kv.k_dimension;
    rows->v_stride = kv.kv_head_count * kv.v_dimension;
}

void layer_keep_inputs(const struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    const size_t hidden = forward->model->config.hidden_size;
    const struct forward_batch *batch = pass->batch;
    const bool come_back = pass->row_count > forward->model->device->rows_few; /* else they have other bits */
    bool keeps = false;
    if (pass->layer_index == 0 || !layer_stores(pass)) return;
    if (attention_keep_inputs(forward->attention, forward->stream,
                              &(struct attention_inputs){.layer_index = pass->layer_index,
                                                         .sequences = batch->sequences,
                                                         .items = batch->items,
                                                         .item_count = batch->item_count,
                                                         .x = layer_input(pass),
                                                         .come_back = come_back}))
        return;
    for (size_t i = 0; i < batch->item_count; i++) {
        const struct inputs *inputs = kv_sequence_inputs(batch->sequences[i]);
        keeps = keeps || (inputs != NULL && inputs_keeps(inputs));
    }
    if (!keeps || !come_back) return;
    operations->download(forward->stream, forward->inputs.host, layer_input(pass),
                         pass->row_count * hidden * sizeof(float));
    struct error error; /* a lack is told once */
    if (operations->stream_synchronize(forward->stream, &error) != STATUS_OK) {
        attention_fail(forward->attention, &error);
        return;
    }
    for (size_t i = 0; i < batch->item_count; i++) {
        struct inputs *inputs = kv_sequence_inputs(batch->sequences[i]);
        const struct attend_item *item = &batch->items[i];
        if (inputs != NULL)
            inputs_append(inputs, pass->layer_index, item->position_first, item->row_count,
                          forward->inputs.host + item->row_first * hidden);
    }
}

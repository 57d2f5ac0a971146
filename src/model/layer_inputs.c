/* layer_inputs: per-layer embeddings, of small models of gemma4: what a token gives each layer, gated by what the layer
 * has made of the token, is added behind its feed-forward. */
#include <math.h>

#include "model/forward_internal.h"

/* What the tokens give this layer, [row_count][layer_input_size], in forward->up.  The projection's rows are scaled by
 * the root of hidden_size first, which a norm sees in its epsilon alone. */
static void token_inputs(const struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct model *model = forward->model;
    const struct model_config *config = &model->config;
    const struct device_operations *operations = model->device->operations;
    const struct layer_input_weights *input = &pass->weights->input;
    const size_t size = config->layer_input_size, hidden = config->hidden_size;
    const size_t narrow_at = pass->narrow_first * sizeof(struct step_row);
    struct embed_operation embed = {.table = &model->token_embedding,
                                    .step = pass->narrow ? span_behind(forward->narrow.step, narrow_at) : pass->step,
                                    .row_count = pass->row_count,
                                    .y = pass->normed,
                                    .scale = config->embedding_scale};
    operations->embed(forward->stream, &embed);
    layer_multiply(pass, pass->normed, &input->projection, (struct span){.buffer = NULL}, forward->gate);
    embed.table = &model->input_table;
    embed.column_first = pass->layer_index * size;
    embed.column_count = size;
    embed.y = forward->up;
    embed.scale = sqrtf((float)size / 2);
    operations->embed(forward->stream, &embed);
    operations->norm(forward->stream, &(struct norm_operation){.kind = NORM_RMS,
                                                               .x = forward->gate,
                                                               .x_stride = size,
                                                               .row_count = pass->row_count,
                                                               .segment_count = 1,
                                                               .segment_size = size,
                                                               .w = input->norm,
                                                               .epsilon = config->norm_epsilon * (float)hidden,
                                                               .y = forward->up,
                                                               .y_stride = size,
                                                               .adds = true});
}

void layer_add_inputs(struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct model_config *config = &forward->model->config;
    const struct layer_input_weights *input = &pass->weights->input;
    const size_t size = config->layer_input_size;
    token_inputs(pass);
    layer_multiply(pass, pass->residual, &input->gate, (struct span){.buffer = NULL}, forward->gate);
    layer_activation(pass, config->activation, size);
    layer_add(pass, &(struct matmul_operation){.x = forward->gate, .x_stride = size, .weights = {&input->output}},
              input->norm_behind, pass->weights->output_scale);
}

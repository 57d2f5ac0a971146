/* llama: RMSNorm, attention with rotary positions, RMSNorm, SiLU-gated feed-forward (Touvron et al. 2023).
 * qwen2 adds biases to q, k and v.  qwen3 adds a norm per head of q and k.  layer_attention applies both if the
 * weights exist.  In lfm2 and qwen35 most layers keep a state in place of attention (mixer.c).  The feed-forward may be
 * a mixture of experts.  In gemma2 to gemma4, olmo2 and exaone4 norms stand behind both parts (layer_add), in the last
 * two there alone, and layer_norm does nothing.  Small models of gemma4 have a third part, of what a token gives each
 * layer. */
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
    operations->matmul(forward->stream, &(struct matmul_operation){.x = pass->normed,
                                                                   .x_stride = hidden,
                                                                   .row_count = pass->row_count,
                                                                   .weight_count = 1,
                                                                   .weights = {&input->projection},
                                                                   .y = {forward->gate},
                                                                   .y_stride = {size}});
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
    const struct device_operations *operations = forward->model->device->operations;
    const size_t size = config->layer_input_size;
    token_inputs(pass);
    operations->matmul(forward->stream, &(struct matmul_operation){.x = pass->residual,
                                                                   .x_stride = config->hidden_size,
                                                                   .row_count = pass->row_count,
                                                                   .weight_count = 1,
                                                                   .weights = {&pass->weights->input.gate},
                                                                   .y = {forward->gate},
                                                                   .y_stride = {size}});
    operations->activation(forward->stream, &(struct activation_operation){.kind = config->activation,
                                                                           .gate = forward->gate,
                                                                           .up = forward->up,
                                                                           .stride = size,
                                                                           .row_count = pass->row_count,
                                                                           .count = size,
                                                                           .y = forward->gate});
    const struct layer_input_weights *input = &pass->weights->input;
    layer_add(pass, &(struct matmul_operation){.x = forward->gate, .x_stride = size, .weights = {&input->output}},
              input->norm_behind, pass->weights->output_scale);
}

enum status llama_layer(struct layer_pass *pass, struct error *error) {
    const struct layer_weights *weights = pass->weights;
    const struct model_config *config = &pass->forward->model->config;
    layer_norm(pass, weights->attention_norm, (struct span){.buffer = NULL});
    const bool attends = layer_config_of(pass)->mixer == MIXER_ATTENTION;
    if (!(attends ? layer_attention : layer_mixer)(pass)) return STATUS_OK;
    layer_phase(pass, "feed-forward");
    const bool has_experts = model_layer_has_experts(config, pass->layer_index);
    if (!has_experts || config->experts.shared != SHARED_EXPERT_BESIDE)
        layer_norm(pass, weights->ffn_norm, (struct span){.buffer = NULL});
    if (has_experts) {
        TRY(layer_experts(pass, error));
    } else {
        const struct matmul_operation product = layer_gated(pass, config->activation, &weights->gate, &weights->up,
                                                            &weights->down, layer_config_of(pass)->ffn_size);
        layer_add(pass, &product, weights->ffn_norm_behind, layer_ffn_scale(pass));
    }
    if (config->layer_input_size > 0 && !pass->defers_experts) layer_add_inputs(pass);
    return STATUS_OK;
}

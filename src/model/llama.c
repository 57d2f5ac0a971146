/* llama: RMSNorm, attention with rotary positions, RMSNorm, SiLU-gated feed-forward (Touvron et al. 2023).
 * qwen2 adds biases to q, k and v.  qwen3 adds a norm per head of q and k.  layer_attention applies both if the
 * weights exist.  In lfm2 and qwen35 most layers keep a state in place of attention (mixer.c).  The feed-forward may be
 * a mixture of experts. */
#include "model/forward_internal.h"

void layer_gated(struct layer_pass *pass, const struct weight *gate, const struct weight *up,
                 const struct weight *down, size_t size) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    const size_t hidden = forward->model->config.hidden_size;
    operations->matmul(forward->stream, &(struct matmul_operation){.x = pass->normed,
                                                                   .x_stride = hidden,
                                                                   .row_count = pass->row_count,
                                                                   .weight_count = 2,
                                                                   .weights = {gate, up},
                                                                   .y = {forward->gate, forward->up},
                                                                   .y_stride = {size, size}});
    operations->activation(forward->stream, &(struct activation_operation){.kind = ACTIVATION_SILU_MULTIPLY,
                                                                           .gate = forward->gate,
                                                                           .up = forward->up,
                                                                           .stride = size,
                                                                           .row_count = pass->row_count,
                                                                           .count = size,
                                                                           .y = forward->gate});
    operations->matmul(forward->stream, &(struct matmul_operation){.x = forward->gate,
                                                                   .x_stride = size,
                                                                   .row_count = pass->row_count,
                                                                   .weight_count = 1,
                                                                   .weights = {down},
                                                                   .y = {pass->residual},
                                                                   .y_stride = {hidden},
                                                                   .accumulate = true});
}

void llama_layer(struct layer_pass *pass) {
    const struct layer_weights *weights = pass->weights;
    const struct model_config *config = &pass->forward->model->config;
    layer_norm(pass, weights->attention_norm, (struct span){.buffer = NULL});
    const bool attends = layer_config_of(pass)->mixer == MIXER_ATTENTION;
    if (!(attends ? layer_attention : layer_mixer)(pass)) return;
    layer_phase(pass, "feed-forward");
    layer_norm(pass, weights->ffn_norm, (struct span){.buffer = NULL});
    if (model_layer_has_experts(config, pass->layer_index))
        layer_experts(pass);
    else
        layer_gated(pass, &weights->gate, &weights->up, &weights->down, config->ffn_size);
}

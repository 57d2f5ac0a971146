/* llama: RMSNorm, attention with rotary positions, RMSNorm, SiLU-gated feed-forward (Touvron et al. 2023).
 * qwen2 adds biases to q, k and v.  qwen3 adds a norm per head of q and k.  layer_attention applies both if the
 * weights exist.  In qwen3moe the feed-forward is a mixture of experts. */
#include "model/forward_internal.h"

void llama_layer(struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    const struct layer_weights *weights = pass->weights;
    const struct model_config *config = &forward->model->config;
    layer_norm(pass, weights->attention_norm, (struct span){.buffer = NULL});
    if (!layer_attention(pass)) return;
    layer_phase(pass, "feed-forward");
    layer_norm(pass, weights->ffn_norm, (struct span){.buffer = NULL});
    if (config->experts.count > 0) {
        layer_experts(pass);
        return;
    }
    operations->matmul(forward->stream,
                       &(struct matmul_operation){.x = pass->normed,
                                                  .x_stride = config->hidden_size,
                                                  .row_count = pass->row_count,
                                                  .weight_count = 2,
                                                  .weights = {&weights->gate, &weights->up},
                                                  .y = {forward->gate, forward->up},
                                                  .y_stride = {config->ffn_size, config->ffn_size}});
    operations->activation(forward->stream, &(struct activation_operation){.kind = ACTIVATION_SILU_MULTIPLY,
                                                                           .gate = forward->gate,
                                                                           .up = forward->up,
                                                                           .stride = config->ffn_size,
                                                                           .row_count = pass->row_count,
                                                                           .count = config->ffn_size,
                                                                           .y = forward->gate});
    operations->matmul(forward->stream, &(struct matmul_operation){.x = forward->gate,
                                                                   .x_stride = config->ffn_size,
                                                                   .row_count = pass->row_count,
                                                                   .weight_count = 1,
                                                                   .weights = {&weights->down},
                                                                   .y = {pass->residual},
                                                                   .y_stride = {config->hidden_size},
                                                                   .accumulate = true});
}

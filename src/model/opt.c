/* opt: LayerNorm, attention with learned positions, LayerNorm, ReLU feed-forward, biases everywhere
 * (Zhang et al. 2022).  OPT scales q by 1/sqrt(head_dim) after its bias; that equals loam's attention scale. */
#include "model/forward_internal.h"

void opt_layer(struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct device_operations *operations = forward->model->device->operations;
    const struct layer_weights *weights = pass->weights;
    const struct model_config *config = &forward->model->config;
    const size_t ffn_size = layer_config_of(pass)->ffn_size;
    layer_norm(pass, weights->attention_norm, weights->attention_norm_bias);
    if (!layer_attention(pass)) return;
    layer_phase(pass, "feed-forward");
    layer_norm(pass, weights->ffn_norm, weights->ffn_norm_bias);
    operations->matmul(forward->stream, &(struct matmul_operation){.x = pass->normed,
                                                                   .x_stride = config->hidden_size,
                                                                   .row_count = pass->row_count,
                                                                   .weight_count = 1,
                                                                   .weights = {&weights->up},
                                                                   .biases = {weights->up_bias},
                                                                   .y = {forward->up},
                                                                   .y_stride = {ffn_size}});
    operations->activation(forward->stream, &(struct activation_operation){.kind = ACTIVATION_RELU,
                                                                           .gate = forward->up,
                                                                           .stride = ffn_size,
                                                                           .row_count = pass->row_count,
                                                                           .count = ffn_size,
                                                                           .y = forward->up});
    operations->matmul(forward->stream, &(struct matmul_operation){.x = forward->up,
                                                                   .x_stride = ffn_size,
                                                                   .row_count = pass->row_count,
                                                                   .weight_count = 1,
                                                                   .weights = {&weights->down},
                                                                   .biases = {weights->down_bias},
                                                                   .y = {pass->residual},
                                                                   .y_stride = {config->hidden_size},
                                                                   .accumulate = true});
}

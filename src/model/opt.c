/* opt: LayerNorm, attention with learned positions, LayerNorm, ReLU feed-forward, biases everywhere
 * (Zhang et al. 2022).  OPT scales q by 1/sqrt(head_dim) after its bias; that equals loam's attention scale. */
#include "model/forward_internal.h"

void opt_layer(struct layer_pass *pass) {
    struct forward *forward = pass->forward;
    const struct layer_weights *weights = pass->weights;
    const size_t ffn_size = layer_config_of(pass)->ffn_size;
    layer_norm(pass, weights->attention_norm, weights->attention_norm_bias);
    if (!layer_attention(pass)) return;
    layer_phase(pass, "feed-forward");
    layer_norm(pass, weights->ffn_norm, weights->ffn_norm_bias);
    layer_multiply(pass, pass->normed, &weights->up, weights->up_bias, forward->gate);
    layer_activation(pass, ACTIVATION_RELU, ffn_size);
    const struct matmul_operation down = {
        .x = forward->gate, .x_stride = ffn_size, .weights = {&weights->down}, .biases = {weights->down_bias}};
    layer_add(pass, &down, (struct span){.buffer = NULL}, 0);
}

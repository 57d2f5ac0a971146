/* llama: RMSNorm, attention with rotary positions, RMSNorm, SiLU-gated feed-forward (Touvron et al. 2023).
 * qwen2 adds biases to q, k and v.  qwen3 adds a norm per head of q and k.  layer_attention applies both if the
 * weights exist.  In lfm2 and qwen35 most layers keep a state in place of attention (mixer.c).  The feed-forward may be
 * a mixture of experts.  In gemma2 to gemma4, olmo2 and exaone4 norms stand behind both parts (layer_add), in the last
 * two there alone, and layer_norm does nothing.  In cohere2 the feed-forward has no norm: normed still is what
 * attention was given.  Small models of gemma4 have a third part, of what a token gives each layer. */
#include "model/forward_internal.h"

enum status llama_layer(struct layer_pass *pass, struct error *error) {
    const struct layer_weights *weights = pass->weights;
    const struct model_config *config = &pass->forward->model->config;
    layer_norm(pass, weights->attention_norm, weights->attention_norm_bias);
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

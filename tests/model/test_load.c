/* Loading: what a file must hold, and what is said when it does not. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/host_span.h"
#include "model/model_internal.h"
#include "model/model_size.h"
#include "model/tiny_model.h"

static struct device *device;

static enum status load(const struct tiny_model *tiny, struct error *error) {
    char path[64];
    struct model *model;
    tiny_model_path("load", path, sizeof path);
    tiny_model_write(tiny, path);
    *error = (struct error){0};
    enum status status = model_load(&model, path, device, error);
    model_destroy(model);
    unlink(path);
    return status;
}

static void test_families_load(void **state) {
    (void)state;
    static const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};
    for (size_t f = 0; f < TINY_FAMILIES; f++)
        for (size_t t = 0; t < 3; t++)
            for (int tied = 0; tied < 2; tied++) {
                struct tiny_model tiny = tiny_model_default(tiny_families[f]);
                struct error error;
                tiny.type = types[t];
                tiny.vector_type = types[2 - t];
                tiny.tied = tied;
                assert_ok(load(&tiny, &error), error);
            }
}

/* Layers that keep a state. */
static void test_states_load(void **state) {
    (void)state;
    static const enum tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};
    for (size_t t = 0; t < 3; t++) {
        struct tiny_model tiny = tiny_model_default("lfm2");
        struct error error;
        tiny.type = types[t];
        tiny.vector_type = types[2 - t]; /* of the taps, too */
        assert_ok(load(&tiny, &error), error);
    }
    struct tiny_model tiny = tiny_model_default("lfm2");
    struct error error;
    const struct device_operations *all = device->operations;
    struct device_operations some = *all;
    some.convolve = NULL;
    device->operations = &some;
    const enum status status = load(&tiny, &error);
    device->operations = all;
    assert_int_equal(status, STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "the device cpu does not compute layers that keep a state (family lfm2)"));
    static const int32_t none[] = {0, 0, 0, 0, 0, 0};
    tiny.kv_heads = none;
    assert_int_equal(load(&tiny, &error), STATUS_MODEL);
    assert_non_null(strstr(error.message, "attention.head_count_kv: no layer has KV heads"));
}

static const struct device_operations *real;
static uint64_t allocated;

static enum status count_bytes(struct device *own, enum memory_kind kind, size_t bytes, struct buffer *buffer,
                               struct error *error) {
    allocated += bytes;
    return real->allocate(own, kind, bytes, buffer, error);
}

/* Memory is for tensors that the file has, not for layers that it declares. */
static void test_declared_layers_take_nothing(void **state) {
    (void)state;
    struct tiny_model tiny = tiny_model_default("qwen35");
    struct device_operations counting = *device->operations;
    struct error error;
    real = device->operations;
    counting.allocate = count_bytes;
    device->operations = &counting;
    const enum status whole = load(&tiny, &error);
    const uint64_t bytes = allocated;
    tiny.key = "block_count", tiny.value = 1000;
    allocated = 0;
    const enum status status = load(&tiny, &error);
    device->operations = real;
    assert_int_equal(whole, STATUS_OK);
    assert_int_equal(status, STATUS_MODEL);
    assert_true(bytes > 0 && allocated == bytes);
}

struct bad {
    const char *family;
    struct tiny_model damage;
    const char *says; /* part of the message */
};

static const struct bad bad_files[] = {
    {"llama",
     {.omit = "token_embd.weight", .key = "vocab_size", .value = 80},
     "tensor token_embd.weight: missing"},
    {"llama", {.omit = "blk.1.attn_q.weight"}, "tensor blk.1.attn_q.weight: missing"},
    {"llama", {.omit = "blk.0.ffn_norm.weight"}, "tensor blk.0.ffn_norm.weight: missing"},
    {"llama", {.omit = "output_norm.weight"}, "tensor output_norm.weight: missing"},
    {"qwen2", {.omit = "blk.0.attn_k.bias"}, "tensor blk.0.attn_k.bias: missing"},
    {"qwen3", {.omit = "blk.1.attn_k_norm.weight"}, "tensor blk.1.attn_k_norm.weight: missing"},
    {"seed_oss", {.omit = "blk.1.post_attention_norm.weight"}, "post_attention_norm.weight: missing"},
    {"seed_oss", {.extra = "blk.0.ffn_norm.weight"}, "blk.0.ffn_norm.weight: not part of family seed_oss"},
    {"lfm2", {.omit = "token_embd_norm.weight"}, "tensor token_embd_norm.weight: missing"},
    {"lfm2", {.omit = "shortconv.l_cache"}, "lfm2.shortconv.l_cache"},
    {"lfm2", {.key = "shortconv.l_cache", .value = 9}, "shortconv.l_cache': found 9, expected 0 to 8"},
    {"lfm2", {.omit = "blk.0.shortconv.in_proj.weight"}, "blk.0.shortconv.in_proj.weight: missing"},
    {"lfm2",
     {.reshape = "blk.2.shortconv.conv.weight"},
     "blk.2.shortconv.conv.weight: shape: found [3, 65], expected [3, 64]"},
    {"lfm2", {.poison = "blk.5.shortconv.conv.weight"}, "blk.5.shortconv.conv.weight: value: found nan"},
    {"lfm2", {.extra = "blk.0.attn_q.weight"}, "blk.0.attn_q.weight: not part of family lfm2"},
    {"qwen35", {.omit = "ssm.group_count"}, "qwen35.ssm.group_count"},
    {"qwen35", {.key = "ssm.group_count", .value = 4}, "time_step_rank: found 6, expected a multiple of 4 heads"},
    {"qwen35", {.key = "ssm.inner_size", .value = 100}, "inner_size: found 100, expected a multiple of 6 heads"},
    {"qwen35", {.key = "ssm.state_size", .value = 512}, "qwen35.ssm.state_size"},
    {"qwen35", {.key = "full_attention_interval", .value = 9}, "no layer has KV heads"},
    {"qwen35", {.key = "attention.value_length", .value = 16}, "different dimensions are not supported with gates"},
    {"qwen35", {.omit = "blk.0.ssm_a"}, "tensor blk.0.ssm_a: missing"},
    {"qwen35",
     {.reshape = "blk.1.attn_q.weight"},
     "blk.1.attn_q.weight: shape: found [64, 257], expected [64, 256]"},
    {"qwen35", {.key = "nextn_predict_layers", .value = 5}, "qwen35.nextn_predict_layers"},
    {"opt", {.omit = "position_embd.weight"}, "tensor position_embd.weight: missing"},
    {"opt", {.omit = "blk.1.ffn_down.bias"}, "tensor blk.1.ffn_down.bias: missing"},
    {"llama",
     {.reshape = "blk.0.attn_q.weight"},
     "blk.0.attn_q.weight: shape: found [64, 65], expected [64, 64]"},
    {"llama",
     {.reshape = "blk.1.attn_v.weight"},
     "blk.1.attn_v.weight: shape: found [64, 33], expected [64, 32]"},
    {"llama", {.reshape = "blk.1.ffn_down.weight"}, "blk.1.ffn_down.weight: shape: found [96, 65]"},
    {"llama",
     {.reshape = "blk.1.ffn_norm.weight"},
     "blk.1.ffn_norm.weight: shape: found [65], expected [64]"},
    {"opt", {.reshape = "position_embd.weight"}, "position_embd.weight: shape"},
    {"qwen2", {.reshape = "blk.0.attn_v.bias"}, "blk.0.attn_v.bias: shape"},
    {"llama", {.retype = "blk.0.attn_q.weight"}, "blk.0.attn_q.weight: type: found I32"},
    {"llama", {.retype = "blk.0.attn_norm.weight"}, "blk.0.attn_norm.weight: type: found I32"},
    {"llama", {.poison = "blk.1.attn_norm.weight"}, "blk.1.attn_norm.weight: value: found nan at element 32"},
    {"llama", {.extra = "blk.2.attn_norm.weight"}, "blk.2.attn_norm.weight: not part of family llama"},
    {"llama", {.extra = "blk.0.attn_qkv.weight"}, "blk.0.attn_qkv.weight: not part of"},
    {"llama", {.extra = "blk.0.attn_q.scale"}, "blk.0.attn_q.scale: shape: found [64], expected [1] in F32"},
    {"llama", {.extra = "token_embd.scale"}, "token_embd.scale: not part of"},
    {"falcon",
     {0},
     "general.architecture: found 'falcon', known are llama, qwen2, qwen3, qwen3moe, qwen2moe, glm4moe, gpt-oss, "
     "phi3, glm4, granite, granitemoe, smollm3, seed_oss, mistral3, lfm2, qwen35, qwen35moe, lfm2moe, "
     "qwen3next, gemma2, gemma3, gemma4, olmo2, exaone4, cohere2, minimax-m2, opt"},
    {"phi3", {.omit = "rope_factors_long.weight"},
     "phi3.rope.scaling.type: found 'longrope', and no tensor rope_factors_long.weight"},
    {"phi3",
     {.omit = "rope_factors_short.weight", .key = "context_length", .value = 16},
     "rope_factors_short.weight: missing"},
    {"phi3", {.omit = "blk.1.attn_qkv.weight"}, "blk.1.attn_q.weight: missing"},
    {"phi3", {.reshape = "blk.0.attn_qkv.weight"}, "blk.0.attn_qkv.weight: shape: found [64, 129], expected [64, 128]"},
    {"phi3", {.extra = "blk.0.ffn_gate.weight"}, "blk.0.ffn_gate.weight: not part of family phi3"},
    {"glm4", {.reshape = "blk.0.ffn_up.weight"}, "blk.0.ffn_up.weight: shape: found [64, 193], expected [64, 192]"},
    {"llama",
     {.key = "residual_scale", .value = 0.5F},
     "llama.residual_scale: this feature is not supported in this family"},
    {"granite", {.key = "residual_scale", .value = -1}, "granite.residual_scale: found -1, expected 0 to 1e+06"},
    {"granite", {.key = "residual_scale", .value = 1e-30F}, "granite.residual_scale: expected at least 1e-6"},
    {"granite", {.key = "logit_scale", .value = 1e-30F}, "granite.logit_scale: expected at least 1e-6"},
    {"granite",
     {.key = "rope.scaling.finetuned", .text = "false"},
     "granite.rope.scaling.finetuned: this feature is not supported"},
    {"cohere2", {.omit = "attention.sliding_window"}, "cohere2.attention.sliding_window"},
    {"cohere2", {.omit = "attention.layer_norm_epsilon"}, "cohere2.attention.layer_norm_epsilon"},
    {"cohere2", {.extra = "blk.0.ffn_norm.weight"}, "blk.0.ffn_norm.weight: not part of family cohere2"},
    {"cohere2", {.extra = "blk.0.attn_norm.bias"}, "blk.0.attn_norm.bias: not part of family cohere2"},
    {"granitemoe", {.omit = "expert_count"}, "granitemoe.expert_count"},
    {"granitemoe",
     {.key = "feed_forward_length", .value = 31},
     "blk.0.ffn_gate_exps.weight: shape: found [64, 32, 6], expected [64, 31, 6]"},
    {"granitemoe",
     {.key = "expert_feed_forward_length", .value = 16},
     "blk.0.ffn_gate_exps.weight: shape: found [64, 32, 6], expected [64, 16, 6]"},
    {"granitemoe", {.omit = "blk.1.ffn_gate_inp.weight"}, "blk.1.ffn_gate_inp.weight: missing"},
    {"granitemoe",
     {.shared_size = 64, .key = "expert_shared_feed_forward_length", .value = 0},
     "blk.0.ffn_gate_shexp.weight: not part of family granitemoe"},
    {"granitemoe", {.shared_size = 64, .omit = "blk.1.ffn_down_shexp.weight"}, "blk.1.ffn_down_shexp.weight: missing"},
    {"llama", {.omit = "block_count"}, "llama.block_count"},
    {"llama", {.omit = "embedding_length"}, "llama.embedding_length"},
    {"llama", {.omit = "attention.head_count"}, "llama.attention.head_count"},
    {"llama", {.omit = "attention.layer_norm_rms_epsilon"}, "llama.attention.layer_norm_rms_epsilon"},
    {"llama", {.key = "block_count", .value = 0}, "llama.block_count"},
    {"llama", {.key = "block_count", .value = 5000}, "llama.block_count"},
    {"llama", {.key = "block_count", .value = 3}, "blk.2.attn_norm.weight: missing"},
    {"llama", {.key = "block_count", .value = 1}, "blk.1."},
    {"llama", {.key = "block_count", .text = "two"}, "llama.block_count"},
    {"llama",
     {.key = "embedding_length", .value = 65},
     "llama.embedding_length: found 65, expected a multiple of 4"},
    {"llama", {.key = "attention.head_count", .value = 0}, "llama.attention.head_count"},
    {"llama",
     {.key = "attention.head_count_kv", .value = 3},
     "head_count_kv: found 3, expected a divisor of 4"},
    {"llama", {.key = "attention.head_count_kv", .value = 8}, "llama.attention.head_count_kv"},
    {"llama", {.key = "attention.head_count_kv", .value = 0}, "llama.attention.head_count_kv"},
    {"llama", {.key = "attention.key_length", .value = 12}, "llama.attention.key_length"},
    {"llama", {.key = "attention.key_length", .value = 4096}, "llama.attention.key_length"},
    {"llama", {.key = "attention.layer_norm_rms_epsilon", .value = -1.5F}, "layer_norm_rms_epsilon"},
    {"llama", {.key = "rope.dimension_count", .value = 7}, "rope.dimension_count: expected an even number"},
    {"llama", {.key = "rope.dimension_count", .value = 18}, "llama.rope.dimension_count"},
    {"llama", {.key = "rope.freq_base", .value = 0.5F}, "llama.rope.freq_base"},
    {"llama", {.key = "rope.scaling.type", .text = "longrope"}, "rope.scaling.type: found 'longrope'"},
    {"llama", {.key = "expert_count", .value = 8}, "llama.expert_count: mixtures"},
    {"qwen3moe", {.omit = "expert_count"}, "qwen3moe.expert_count"},
    {"qwen3moe", {.key = "expert_count", .value = 5000}, "qwen3moe.expert_count': found 5000"},
    {"qwen3moe", {.key = "expert_used_count", .value = 7}, "expert_used_count': found 7"},
    {"qwen3moe", {.key = "expert_gating_func", .value = 4}, "qwen3moe.expert_gating_func': found 4"},
    {"qwen3moe",
     {.key = "expert_shared_count", .value = 1},
     "expert_shared_count: this feature is not supported"},
    {"qwen3moe",
     {.key = "expert_group_count", .value = 2},
     "expert_group_count: this feature is not supported"},
    {"qwen3moe", {.omit = "blk.1.ffn_gate_inp.weight"}, "blk.1.ffn_gate_inp.weight: missing"},
    {"qwen3moe", {.omit = "blk.0.ffn_up_exps.weight"}, "blk.0.ffn_up_exps.weight: missing"},
    {"qwen3moe",
     {.reshape = "blk.1.ffn_down_exps.weight"},
     "blk.1.ffn_down_exps.weight: shape: found [32, 65, 6], expected [32, 64, 6]"},
    {"qwen3moe", {.extra = "blk.0.ffn_up.weight"}, "blk.0.ffn_up.weight: not part of"},
    {"gpt-oss", {.omit = "blk.1.attn_sinks.weight"}, "blk.1.attn_sinks.weight: missing"},
    {"gpt-oss", {.reshape = "blk.1.attn_sinks.weight"}, "blk.1.attn_sinks.weight: shape: found [5], expected [4]"},
    {"gpt-oss", {.omit = "blk.0.attn_output.bias"}, "blk.0.attn_output.bias: missing"},
    {"gpt-oss", {.omit = "blk.0.ffn_gate_inp.bias"}, "blk.0.ffn_gate_inp.bias: missing"},
    {"gpt-oss",
     {.reshape = "blk.0.ffn_down_exps.bias"},
     "blk.0.ffn_down_exps.bias: shape: found [65, 6], expected [64, 6]"},
    {"gpt-oss", {.omit = "blk.0.ffn_down_exps.bias"}, "missing, family gpt-oss needs it with shape [64, 6]"},
    {"gpt-oss", {.omit = "attention.sliding_window"}, "gpt-oss.attention.sliding_window"},
    {"lfm2moe", {.omit = "blk.1.exp_probs_b.bias"}, "blk.1.exp_probs_b.bias: missing"},
    {"lfm2moe", {.omit = "leading_dense_block_count"}, "blk.0.ffn_gate_inp.weight: missing"},
    {"lfm2moe", {.key = "expert_shared_count", .value = 1}, "expert_shared_count: this feature is not supported"},
    {"qwen3next", {.omit = "blk.0.ssm_ba.weight"}, "blk.0.ssm_ba.weight: missing"},
    {"qwen3next", {.omit = "blk.2.attn_qkv.weight"}, "blk.2.attn_qkv.weight: missing"},
    {"gemma2", {.key = "attn_logit_softcapping", .value = -1.5F}, "gemma2.attn_logit_softcapping: found -1.5"},
    {"gemma2", {.extra = "blk.0.attn_q_norm.weight"}, "blk.0.attn_q_norm.weight: not part of"},
    {"gemma2", {.omit = "blk.0.post_ffw_norm.weight"}, "blk.0.post_ffw_norm.weight: missing"},
    {"gemma3", {.key = "attn_logit_softcapping", .value = 50.5F}, "this feature is not supported in this family"},
    {"gemma3", {.omit = "blk.1.post_ffw_norm.weight"}, "blk.1.post_ffw_norm.weight: missing"},
    {"gemma3", {.omit = "blk.0.post_attention_norm.weight"}, "blk.0.post_attention_norm.weight: missing"},
    {"gemma3", {.reshape = "blk.0.attn_k_norm.weight"}, "blk.0.attn_k_norm.weight: shape: found [17], expected [16]"},
    {"gemma3", {.key = "rope.freq_base_swa", .value = 0.5F}, "gemma3.rope.freq_base_swa"},
    {"gemma3", {.key = "final_logit_softcapping", .value = -1.5F}, "gemma3.final_logit_softcapping"},
    {"gemma4", {.omit = "attention.sliding_window"}, "gemma4.attention.sliding_window"},
    {"gemma4",
     {.reshape = "blk.1.layer_output_scale.weight"},
     "layer_output_scale.weight: shape: found [2], expected [1]"},
    {"gemma4", {.omit = "blk.0.ffn_gate_inp.scale"}, "blk.0.ffn_gate_inp.scale: missing"},
    {"gemma4", {.omit = "blk.1.pre_ffw_norm_2.weight"}, "blk.1.pre_ffw_norm_2.weight: missing"},
    {"gemma4",
     {.reshape = "blk.1.ffn_gate_up_exps.weight"},
     "blk.1.ffn_gate_up_exps.weight: shape: found [64, 65, 6], expected [64, 64, 6]"},
    {"gemma4", {.omit = "per_layer_token_embd.weight"}, "per_layer_token_embd.weight: missing"},
    {"gemma4", {.omit = "embedding_length_per_layer_input"}, "per_layer_token_embd.weight: not part of"},
    {"gemma4", {.omit = "expert_count"}, "blk.0.ffn_gate_inp.weight: not part of"},
    {"olmo2", {.reshape = "blk.0.attn_q_norm.weight"}, "blk.0.attn_q_norm.weight: shape: found [65], expected [64]"},
    {"olmo2", {.extra = "blk.0.attn_norm.weight"}, "blk.0.attn_norm.weight: not part of"},
    {"exaone4", {.omit = "blk.1.post_attention_norm.weight"}, "blk.1.post_attention_norm.weight: missing"},
    {"gpt-oss", {.key = "attention.sliding_window", .value = 0}, "sliding_window: found 0, expected 1 to"},
    {"qwen2moe", {.omit = "blk.1.ffn_gate_inp_shexp.weight"}, "blk.1.ffn_gate_inp_shexp.weight: missing"},
    {"qwen2moe",
     {.reshape = "blk.0.ffn_gate_inp_shexp.weight"},
     "blk.0.ffn_gate_inp_shexp.weight: shape: found [65], expected [64, 1]"},
    {"qwen2moe", {.omit = "expert_shared_feed_forward_length"}, "found [64, 64], expected [64, 96]"},
    {"minimax-m2", {.omit = "blk.1.exp_probs_b.bias"}, "blk.1.exp_probs_b.bias: missing"},
    {"minimax-m2", {.reshape = "blk.1.attn_k_norm.weight"}, "attn_k_norm.weight: shape: found [33], expected [32]"},
    {"minimax-m2", {.key = "expert_shared_count", .value = 1}, "expert_shared_count: this feature is not supported"},
    {"glm4moe", {.omit = "blk.1.exp_probs_b.bias"}, "blk.1.exp_probs_b.bias: missing"},
    {"glm4moe", {.omit = "blk.1.ffn_up_shexp.weight"}, "blk.1.ffn_up_shexp.weight: missing"},
    {"glm4moe", {.omit = "blk.1.attn_k_norm.weight"}, "blk.1.attn_k_norm.weight: missing"},
    {"glm4moe", {.omit = "leading_dense_block_count"}, "blk.0.ffn_gate_inp.weight: missing"},
    {"glm4moe", {.omit = "expert_shared_count"}, "blk.1.ffn_gate_shexp.weight: not part of"},
    {"glm4moe", {.key = "leading_dense_block_count", .value = 3}, "leading_dense_block_count': found 3"},
    {"glm4moe", {.key = "expert_group_count", .value = 4}, "expert_group_count: expected a divisor of"},
    {"glm4moe", {.key = "expert_group_count", .value = 6}, "expected a divisor of expert_count, with two experts in"},
    {"glm4moe", {.key = "expert_group_count", .value = 5000}, "expert_group_count': found 5000"},
    {"glm4moe", {.key = "expert_group_used_count", .value = 4}, "expert_group_used_count': found 4"},
    {"glm4moe", {.key = "nextn_predict_layers", .value = 2}, "nextn_predict_layers': found 2"},
    {"qwen3moe", {.key = "nextn_predict_layers", .value = 1, .extra = "blk.2.nextn.enorm.weight"}, "not part of"},
    {"llama", {.key = "attn_logit_softcapping", .value = 50.5F}, "llama.attn_logit_softcapping"},
    {"llama", {.key = "attention.temperature_scale", .value = 0.5F}, "temperature_scale: this feature is not"},
    {"mistral3", {.key = "rope.dimension_count", .value = 8}, "temperature_scale: heads of which a part"},
    {"mistral3", {.key = "attention.temperature_scale", .value = -0.5F}, "temperature_scale: found -0.5"},
    {"llama", {.key = "logit_scale", .value = 0.0625F}, "llama.logit_scale"},
    {"llama", {.key = "vocab_size", .text = "many"}, "llama.vocab_size"},
    {"opt", {.key = "context_length", .value = 511}, "position_embd.weight: shape"},
};

static void test_bad_files(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        const struct bad *bad = &bad_files[i];
        struct tiny_model tiny = tiny_model_default(bad->family);
        struct error error;
        tiny.omit = bad->damage.omit, tiny.reshape = bad->damage.reshape, tiny.retype = bad->damage.retype;
        tiny.poison = bad->damage.poison, tiny.extra = bad->damage.extra, tiny.key = bad->damage.key;
        tiny.value = bad->damage.value, tiny.text = bad->damage.text;
        if (bad->damage.shared_size > 0) tiny.shared_size = bad->damage.shared_size;
        enum status status = load(&tiny, &error);
        if (status != STATUS_MODEL || strstr(error.message, bad->says) == NULL || strchr(error.message, '\n'))
            fail_msg("case %zu: status %s, '%s' does not say '%s'", i, status_name(status), error.message,
                     bad->says);
        assert_non_null(strstr(error.message, "tiny-load-")); /* the file is named */
    }
}

/* All families are named, however long a file's path is: of that the end is said. */
static void test_long_path(void **state) {
    (void)state;
    const struct tiny_model tiny = tiny_model_default("falcon");
    for (size_t length = 1; length <= 250; length++) {
        char folder[256] = {0}, path[300];
        struct model *model;
        struct error error = {0};
        memset(folder, 'f', length);
        snprintf(path, sizeof path, "%s/tiny-load-falcon.gguf", folder);
        assert_int_equal(mkdir(folder, 0700), 0);
        tiny_model_write(&tiny, path);
        assert_int_equal(model_load(&model, path, device, &error), STATUS_MODEL);
        unlink(path);
        rmdir(folder);
        const char *at = strstr(error.message, "/tiny-load-falcon.gguf: general.architecture: found 'falcon'");
        assert_true(at != NULL && strcmp(error.message + strlen(error.message) - 5, ", opt") == 0);
        const bool is_whole = strncmp(error.message, path, strlen(path)) == 0;
        const bool is_full = strlen(error.message) + 1 == sizeof error.message;
        assert_true(is_whole || (is_full && strncmp(error.message, "...f", 4) == 0));
    }
}

static void test_bad_layers(void **state) {
    (void)state;
    static const struct {
        size_t layers;
        int32_t heads[6];
        const char *says;
    } bad[] = {{2, {4, 5}, "head_count_kv: found 5, expected a divisor of 12"},
               {2, {4, 0}, "head_count_kv: found 0, expected 1 to 12"},
               {2, {4, -1}, "head_count_kv: found -1, expected 1 to 12"},
               {2, {4, 13}, "head_count_kv: found 13, expected 1 to 12"},
               {5, {1, 2, 3, 4, 6}, "head_count_kv: found layers of more than 4 shapes"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tiny_model tiny = tiny_model_default("llama");
        struct error error;
        tiny.layer_count = bad[i].layers;
        tiny.head_count = 12;
        tiny.kv_heads = bad[i].heads;
        const enum status status = load(&tiny, &error);
        assert_int_equal(status, STATUS_MODEL);
        if (strstr(error.message, bad[i].says) == NULL) fail_msg("case %zu: %s", i, error.message);
    }
}

/* Layers that attend to the KV of others. */
static void test_bad_sources(void **state) {
    (void)state;
    static const struct {
        size_t shared;
        int32_t slides[6], heads[6];
        const char *says;
    } bad[] = {
        {6, {0}, {2, 2, 2, 2, 2, 2}, "shared_kv_layers': found 6, expected 0 to 5"},
        {1, {0, 0, 0, 0, 0, 1}, {2, 2, 2, 2, 2, 2}, "shared_kv_layers: layer 5 has no layer of its kind"},
        {2, {0}, {2, 2, 2, 4, 4, 2}, "found 2 KV heads in layer 5, expected 4, as in layer 3"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tiny_model tiny = tiny_model_of_groups(false);
        struct error error;
        tiny.layer_count = 6;
        tiny.kv_heads = bad[i].heads;
        tiny.slides = bad[i].slides;
        tiny.shared_layers = bad[i].shared;
        assert_int_equal(load(&tiny, &error), STATUS_MODEL);
        if (strstr(error.message, bad[i].says) == NULL) fail_msg("case %zu: %s", i, error.message);
    }
}

static void test_config(void **state) {
    (void)state;
    struct tiny_model tiny = tiny_model_default("qwen3");
    struct error error = {0};
    char path[64];
    tiny.scaling = "yarn", tiny.factor = 4, tiny.original_context = 128;
    tiny.window = 32, tiny.window_period = 2;
    tiny_model_write(&tiny, tiny_model_path("config", path, sizeof path));
    struct model *model;
    assert_ok(model_load(&model, path, device, &error), error);
    const struct model_config *config = &model->config;
    assert_int_equal(config->family, FAMILY_QWEN3);
    assert_int_equal(config->rope_order, ROPE_SPLIT);
    assert_int_equal(config->k_dimension, 32);
    assert_int_equal(config->kv_head_count, 2);
    assert_int_equal(config->vocabulary_size, 80);
    assert_int_equal(config->rope_scaling, ROPE_SCALING_YARN);
    assert_true(config->rope_attention_factor > 1.13862F && config->rope_attention_factor < 1.13864F);
    assert_int_equal(config->layers[0].attention, ATTENTION_SLIDING);
    assert_int_equal(config->layers[0].window, 32);
    assert_int_equal(config->layers[1].attention, ATTENTION_FULL);
    assert_non_null(strstr(config->name, "tiny-config"));
    model_destroy(model);
    unlink(path);
}

struct heard {
    uint64_t done, total;
    size_t calls, calls_max;
};

static bool hear(void *context, uint64_t done, uint64_t total) {
    struct heard *heard = context;
    assert_true(done > heard->done && done <= total);
    *heard = (struct heard){done, total, heard->calls + 1, heard->calls_max};
    return heard->calls == heard->calls_max;
}

/* Each matrix counts once, that of an output which is the embedding too, and parts of one for all layers. */
static void test_progress(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "gemma4", "qwen3moe"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const struct tiny_model tiny = tiny_model_default(families[i]);
        struct heard heard = {.calls_max = SIZE_MAX};
        const struct model_load_options options = {
            .device_layers = SIZE_MAX, .progress = hear, .progress_context = &heard};
        struct error error = {0};
        struct model *model;
        char path[64];
        tiny_model_write(&tiny, tiny_model_path("progress", path, sizeof path));
        assert_ok(model_load_with(&model, path, device, &options, &error), error);
        assert_true(heard.calls > model->config.layer_count);
        assert_int_equal(heard.done, heard.total);
        model_destroy(model);
        heard = (struct heard){.calls_max = 3};
        assert_int_equal(model_load_with(&model, path, device, &options, &error), STATUS_INTERRUPTED);
        assert_int_equal(heard.calls, 3);
        unlink(path);
    }
}

static enum status load_stretched(struct model **model, const char *path, uint64_t tokens, struct error *error) {
    const struct model_load_options options = {.device_layers = SIZE_MAX, .stretched = tokens};
    return model_load_with(model, path, device, &options, error);
}

/* A context that is stretched is as of a file that says so, also where layers with windows have a table of their
 * own. */
static void test_stretched(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "olmo2"};
    struct error error = {0};
    char path[64];
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct tiny_model tiny = tiny_model_default(families[i]);
        struct model *plain, *said, *asked;
        if (i == 1) tiny.window = 32, tiny.window_period = 2;
        tiny.scaling = NULL;
        tiny_model_write(&tiny, tiny_model_path("stretched", path, sizeof path));
        assert_ok(model_load(&plain, path, device, &error), error);
        assert_ok(load_stretched(&asked, path, 2048, &error), error);
        assert_int_equal(load_stretched(&said, path, 512, &error), STATUS_USAGE);
        assert_non_null(strstr(error.message, "found a context of 512 tokens, expected more than the 512"));
        tiny.scaling = "yarn", tiny.factor = 4, tiny.original_context = 512;
        tiny_model_write(&tiny, path);
        assert_ok(model_load(&said, path, device, &error), error);
        for (size_t rope = 0; rope < ROPES_MAX; rope++) {
            const float *frequency = span_memory(asked->rope_frequency[rope]),
                        *expected = span_memory(said->rope_frequency[rope]);
            assert_int_equal(frequency == NULL, expected == NULL);
            if (frequency == NULL) continue;
            assert_memory_equal(frequency, expected, plain->config.rope_dimension / 2 * sizeof *frequency);
            const float *own = span_memory(plain->rope_frequency[rope]);
            if (rope == ROPE_FULL)
                assert_memory_not_equal(frequency, own, plain->config.rope_dimension / 2 * sizeof *own);
        }
        assert_true(asked->config.rope_attention_factor == said->config.rope_attention_factor);
        assert_int_equal(asked->config.context_length, 2048);
        assert_int_equal(asked->config.stretched_from, 512);
        model_destroy(said);
        assert_int_equal(load_stretched(&said, path, 4096, &error), STATUS_USAGE);
        assert_non_null(strstr(error.message, "the file scales its positions already"));
        model_destroy(plain);
        model_destroy(asked);
        unlink(path);
    }
    const struct tiny_model learned = tiny_model_default("opt");
    struct model *model;
    tiny_model_write(&learned, path);
    assert_int_equal(load_stretched(&model, path, 1024, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "positions are learned"));
    unlink(path);
}

/* What a file says of its experts, and what the family says where it does not. */
static void test_experts(void **state) {
    (void)state;
    struct tiny_model tiny = tiny_model_default("qwen3moe");
    struct error error = {0};
    char path[64];
    tiny.key = "expert_gating_func", tiny.value = 2;
    tiny_model_write(&tiny, tiny_model_path("experts", path, sizeof path));
    struct model *model;
    assert_ok(model_load(&model, path, device, &error), error);
    const struct experts_config *experts = &model->config.experts;
    assert_int_equal(experts->count, 6);
    assert_int_equal(experts->used, 2);
    assert_int_equal(experts->size, 32);
    assert_int_equal(experts->router, ROUTER_SIGMOID);
    assert_true(experts->normalises && experts->scale == 1);
    assert_int_equal(model->layers[1].down.matrix.rows, 6 * 64);
    model_destroy(model);
    unlink(path);
}

/* What windows and sizes make of a family's layers. */
static void test_gemma(void **state) {
    (void)state;
    static const struct {
        const char *family, *omit;
        size_t layer_count, period, window, rope; /* of layers that slide */
        float scale, softcap;
    } rows[] = {{"gemma2", NULL, 45, 2, 40, ROPE_FULL, 0, 2},
                {"gemma2", "attention.sliding_window", 46, 2, 4096, ROPE_FULL, 0.25F, 2},
                {"gemma2", "attn_logit_softcapping", 2, 2, 40, ROPE_FULL, 0, 50},
                {"gemma3", NULL, 61, 6, 40, ROPE_SLIDING, 0, 0},
                {"gemma3", NULL, 62, 6, 40, ROPE_SLIDING, 0.25F, 0}};
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        struct tiny_model tiny = tiny_model_default(rows[row].family);
        struct error error = {0};
        struct model *model;
        char path[64];
        tiny.layer_count = rows[row].layer_count, tiny.omit = rows[row].omit;
        tiny.window_period = 0;
        tiny.head_dimension = 32;
        tiny_model_write(&tiny, tiny_model_path("gemma", path, sizeof path));
        assert_ok(model_load(&model, path, device, &error), error);
        assert_true(model->config.score_softcap == rows[row].softcap);
        for (size_t i = 0; i < tiny.layer_count; i++) {
            const struct layer_config *layer = &model->config.layers[i];
            const bool slides = i % rows[row].period < rows[row].period - 1;
            assert_int_equal(layer->window, slides ? rows[row].window : 0);
            assert_int_equal(layer->rope, slides ? rows[row].rope : ROPE_FULL);
            assert_true(layer->scale == (rows[row].scale != 0 ? rows[row].scale : (float)(1 / sqrt(32))));
        }
        model_destroy(model);
        unlink(path);
    }
}

/* What a step reads of each tensor. */
static void test_step_share(void **state) {
    (void)state;
    static const struct {
        const char *family, *table;
        bool tied;
    } rows[] = {{"gemma4", "per_layer_token_embd.weight", true},
                {"opt", "position_embd.weight", true},
                {"llama", "token_embd.weight", false},
                {"qwen3moe", "", true}};
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        struct tiny_model tiny = tiny_model_default(rows[row].family);
        struct model *model;
        size_t zeros = 0;
        tiny.tied = rows[row].tied;
        tiny_model_load_on(&tiny, "share", device, &model);
        for (uint64_t i = 0; i < model->gguf.tensor_count; i++) {
            const struct gguf_tensor *tensor = &model->gguf.tensors[i];
            const double share = model_step_share(&model->gguf, &model->config, tensor);
            zeros += share == 0;
            if (gguf_find_tensor(&model->gguf, rows[row].table) == tensor)
                assert_true(share == 0);
            else
                assert_true(share == (tensor->dimensions[2] > 1 ? 2 / 6.0 : 1)); /* experts */
        }
        assert_int_equal(zeros, rows[row].table[0] != '\0');
        model_destroy(model);
    }
}

/* The taps of a convolution have rows, and are no matrix of their type: what plans measure and count. */
static void test_is_matrix(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "lfm2", "qwen35"};
    for (size_t row = 0; row < sizeof families / sizeof *families; row++) {
        struct tiny_model tiny = tiny_model_default(families[row]);
        struct model *model;
        tiny.type = TENSOR_F16;
        tiny_model_load_on(&tiny, "matrix", device, &model);
        for (uint64_t i = 0; i < model->gguf.tensor_count; i++) {
            const struct gguf_tensor *tensor = &model->gguf.tensors[i];
            if (model_is_matrix(tensor) != (tensor->type == TENSOR_F16))
                fail_msg("%s: %.*s", families[row], (int)tensor->name.length, tensor->name.text);
        }
        model_destroy(model);
    }
}

/* Layers that predict tokens beyond the next one are no layers, and only those are left out.  The last one of a delta
 * net's families would have been one that keeps a state, had it been counted. */
static void test_nextn(void **state) {
    (void)state;
    static const struct {
        const char *family;
        size_t layers, states;
    } rows[] = {{"glm4moe", 2, 0}, {"qwen35", 4, 2}, {"qwen35moe", 4, 2}, {"qwen3next", 4, 2}, {"exaone4", 2, 0}};
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        struct tiny_model tiny = tiny_model_default(rows[row].family);
        struct error error = {0};
        char path[64], own[32], extra[64], says[160];
        tiny.layer_count = rows[row].layers + 1, tiny.key = "nextn_predict_layers", tiny.value = 1;
        snprintf(own, sizeof own, "blk.%zu.", rows[row].layers);
        snprintf(extra, sizeof extra, "%snextn.enorm.weight", own);
        tiny.extra = extra;
        tiny_model_write(&tiny, tiny_model_path("nextn", path, sizeof path));
        struct model *model;
        assert_ok(model_load(&model, path, device, &error), error);
        assert_int_equal(model->config.layer_count, rows[row].layers);
        assert_int_equal(model->config.nextn_layers, 1);
        assert_int_equal(model->config.state.layer_count, rows[row].states);
        const struct weight_sizes sizes = weight_sizes_of(&model->gguf, &model->config);
        uint64_t bytes = 0;
        for (uint64_t i = 0; i < model->gguf.tensor_count; i++) {
            const struct gguf_tensor *tensor = &model->gguf.tensors[i];
            const bool is_counted = memcmp(tensor->name.text, own, strlen(own)) != 0;
            assert_true(is_counted || model_step_share(&model->gguf, &model->config, tensor) == 0);
            if (is_counted) bytes += tensor->size_bytes;
        }
        assert_int_equal(sizes.all, bytes);
        model_destroy(model);
        unlink(path);
        snprintf(extra, sizeof extra, "blk.%zu.nextn.enorm.weight", rows[row].layers + 1);
        assert_int_equal(load(&tiny, &error), STATUS_MODEL);
        snprintf(says, sizeof says, "%s: not part of family %s with %zu layers", extra, rows[row].family,
                 rows[row].layers);
        assert_non_null(strstr(error.message, says));
    }
}

static int set_up(void **state) {
    (void)state;
    struct error error;
    struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    return device_cpu_create(&device, &options, &error) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    device_destroy(device);
    return 0;
}

/* A file that a program writes again is the one that its struct says. */
static void tiny_models_are_not_mixed_up(void **state) {
    static const char *const families[] = {"llama", "qwen3", "llama"};
    (void)state;
    for (size_t i = 0; i < 6; i++) {
        struct tiny_model tiny = tiny_model_default(families[i % 3]);
        struct model *model;
        tiny.layer_count = 1 + i % 2;
        tiny_model_load_on(&tiny, "mixed-up", device, &model);
        assert_int_equal(model->config.layer_count, tiny.layer_count);
        assert_string_equal(family_name(model->config.family), tiny.family);
        model_destroy(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_models_are_not_mixed_up),
        cmocka_unit_test(test_families_load), cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_bad_layers),    cmocka_unit_test(test_bad_sources),
        cmocka_unit_test(test_long_path),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_stretched),
        cmocka_unit_test(test_experts),       cmocka_unit_test(test_nextn),
        cmocka_unit_test(test_states_load),   cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_step_share),    cmocka_unit_test(test_is_matrix),
        cmocka_unit_test(test_declared_layers_take_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

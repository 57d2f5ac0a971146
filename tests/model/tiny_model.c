#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "kernels/weights.h"
#include "model/rope_scaling.h"
#include "model/tiny_model.h"

enum { TENSORS_MAX = 1024 };

struct declared {
    char name[64];
    enum tensor_type type;
    uint64_t rows, columns; /* rows 0: a vector; of a stack the rows of all experts */
    float mean, deviation;
};

struct writer {
    const struct tiny_model *tiny;
    struct gguf_writer *gguf;
    struct error error;
    struct random random;
    struct declared tensors[TENSORS_MAX];
    size_t tensor_count;
    char key[96];
};

const char *const tiny_families[TINY_FAMILIES] = {"llama",    "qwen2",   "qwen3",   "opt",
                                                  "qwen3moe", "qwen2moe", "glm4moe", "gpt-oss", "smollm3",
                                                  "seed_oss", "gemma2", "gemma3", "gemma4", "olmo2", "exaone4",
                                                  "minimax-m2", "phi3", "glm4", "granite", "granitemoe",
                                                  "cohere2", "mistral3"};

const char *const tiny_state_families[TINY_STATE_FAMILIES] = {"lfm2", "qwen35", "qwen35moe", "lfm2moe", "qwen3next"};

/* Layers that convolve around two with attention. */
static struct tiny_model tiny_model_lfm2(const char *family) {
    static const int32_t kv_heads[] = {0, 2, 0, 0, 1, 0};
    struct tiny_model tiny = tiny_model_default("qwen3");
    tiny.family = family;
    if (strcmp(family, "lfm2moe") == 0)
        tiny.expert_count = 6, tiny.expert_used = 2, tiny.expert_size = 32, tiny.dense_layers = 1;
    tiny.layer_count = 6;
    tiny.kv_heads = kv_heads;
    tiny.taps = 3;
    return tiny;
}

static struct tiny_model tiny_model_qwen35(const char *family) {
    const bool has_experts = strcmp(family, "qwen35") != 0;
    struct tiny_model tiny = tiny_model_default("qwen3");
    tiny.family = family;
    if (has_experts) tiny.expert_count = 6, tiny.expert_used = 2, tiny.expert_size = 32, tiny.shared_size = 64;
    tiny.layer_count = 5;
    tiny.attention_interval = 2;
    tiny.taps = 4;
    tiny.key_heads = 2, tiny.value_heads = 6, tiny.delta_k = 16, tiny.delta_v = 24;
    return tiny;
}

struct tiny_model tiny_model_default(const char *family) {
    if (strncmp(family, "lfm2", 4) == 0) return tiny_model_lfm2(family);
    if (strncmp(family, "qwen35", 6) == 0 || strcmp(family, "qwen3next") == 0) return tiny_model_qwen35(family);
    const bool mistral3 = strcmp(family, "mistral3") == 0;
    const bool glm = strcmp(family, "glm4moe") == 0, qwen2 = strcmp(family, "qwen2moe") == 0;
    const bool gemma4 = strcmp(family, "gemma4") == 0, gemma = gemma4 || strcmp(family, "gemma3") == 0;
    const bool gemma2 = strcmp(family, "gemma2") == 0;
    const bool olmo = strcmp(family, "olmo2") == 0;
    const bool oss = strcmp(family, "gpt-oss") == 0, has_yarn = mistral3 || oss || olmo;
    const bool slides = gemma2 || gemma || olmo || strcmp(family, "exaone4") == 0 ||
                        strcmp(family, "cohere2") == 0; /* every other layer */
    const bool minimax = strcmp(family, "minimax-m2") == 0, phi = strcmp(family, "phi3") == 0;
    bool opt = strcmp(family, "opt") == 0;
    const bool experts = glm || qwen2 || oss || gemma4 || minimax || strcmp(family, "qwen3moe") == 0 ||
                         strcmp(family, "granitemoe") == 0;
    return (struct tiny_model){.family = family,
                               .layer_count = strcmp(family, "smollm3") == 0 ? 4 : 2, /* the last one: no rotation */
                               .hidden_size = 64,
                               .head_count = 4,
                               .kv_head_count = opt ? 4 : 2,
                               .head_dimension = strncmp(family, "qwen3", 5) == 0 ? 32 : 16,
                               .ffn_size = 96,
                               .expert_count = experts ? 6 : 0,
                               .expert_used = experts ? 2 : 0,
                               .expert_size = experts ? 32 : 0,
                               .shared_size = glm ? 32 : qwen2 ? 64 : 0,
                               .dense_layers = glm ? 1 : 0,
                               .window = oss || slides ? 40 : 0,
                               .window_period = slides ? 2 : 0,
                               .input_size = gemma4 ? 32 : 0,
                               .scaling = has_yarn ? "yarn" : gemma ? "linear" : phi ? "longrope" : NULL,
                               .factor = has_yarn || gemma ? 4 : phi ? 1 : 0,
                               .original_context = has_yarn || phi ? 24 : 0,
                               .vocabulary_size = 80,
                               .tied = true,
                               .type = TENSOR_F32,
                               .vector_type = TENSOR_F32,
                               .seed = 1};
}

const char *tiny_model_path(const char *name, char *buffer, size_t buffer_bytes) {
    snprintf(buffer, buffer_bytes, "tiny-%s-%ld.gguf", name, (long)getpid());
    return buffer;
}

static bool is(const char *a, const char *b) { return a != NULL && strcmp(a, b) == 0; }

static const char *key_of(struct writer *w, const char *suffix) {
    snprintf(w->key, sizeof w->key, "%s.%s", w->tiny->family, suffix);
    return w->key;
}

/* A key of the family, unless the test sets or omits it. */
static void put_uint(struct writer *w, const char *suffix, size_t value) {
    if (is(w->tiny->omit, suffix) || is(w->tiny->key, suffix)) return;
    assert_ok(gguf_writer_add_uint(w->gguf, key_of(w, suffix), (uint32_t)value, &w->error), w->error);
}

static void put_float(struct writer *w, const char *suffix, float value) {
    if (is(w->tiny->omit, suffix) || is(w->tiny->key, suffix)) return;
    assert_ok(gguf_writer_add_float(w->gguf, key_of(w, suffix), value, &w->error), w->error);
}

static void put_metadata(struct writer *w) {
    const struct tiny_model *t = w->tiny;
    bool opt = is(t->family, "opt"), cohere = is(t->family, "cohere2");
    assert_ok(
        gguf_writer_add_string(w->gguf, "general.architecture", t->family, strlen(t->family), &w->error),
        w->error);
    put_uint(w, "block_count", t->layer_count);
    put_uint(w, "context_length", 512);
    put_uint(w, "embedding_length", t->hidden_size);
    const bool is_granitemoe = is(t->family, "granitemoe"); /* feed_forward_length is that of experts */
    if (!is(t->family, "qwen35moe")) /* it has that of experts alone */
        put_uint(w, "feed_forward_length", is_granitemoe ? t->expert_size : t->ffn_size);
    put_uint(w, "attention.head_count", t->head_count);
    if (t->kv_heads != NULL)
        assert_ok(gguf_writer_add_ints(w->gguf, key_of(w, "attention.head_count_kv"), t->kv_heads,
                                       t->layer_count, &w->error),
                  w->error);
    else if (!opt)
        put_uint(w, "attention.head_count_kv", t->kv_head_count);
    if (t->head_dimension * t->head_count != t->hidden_size) {
        put_uint(w, "attention.key_length", t->head_dimension);
        put_uint(w, "attention.value_length", t->head_dimension);
    }
    if (t->expert_count > 0) {
        put_uint(w, "expert_count", t->expert_count);
        put_uint(w, "expert_used_count", t->expert_used);
        if (!is_granitemoe) put_uint(w, "expert_feed_forward_length", t->expert_size);
    }
    if (is(t->family, "lfm2moe")) put_uint(w, "leading_dense_block_count", t->dense_layers);
    if (is(t->family, "qwen2moe") || is(t->family, "qwen35moe") || is(t->family, "qwen3next") ||
        (is_granitemoe && t->shared_size > 0))
        put_uint(w, "expert_shared_feed_forward_length", t->shared_size);
    if (is(t->family, "minimax-m2") || is(t->family, "glm4"))
        put_uint(w, "rope.dimension_count", t->head_dimension / 2);
    if (is(t->family, "phi3")) put_float(w, "rope.scaling.attn_factor", 1.2F);
    if (is_granitemoe || is(t->family, "granite")) {
        put_float(w, "embedding_scale", 3);
        put_float(w, "residual_scale", 0.5F);
        put_float(w, "logit_scale", 2);
        put_float(w, "attention.scale", 0.3F);
    }
    if (is(t->family, "glm4moe")) {
        put_uint(w, "expert_shared_count", t->shared_size / t->expert_size);
        put_uint(w, "leading_dense_block_count", t->dense_layers);
        put_uint(w, "expert_group_count", 3);
        put_uint(w, "expert_group_used_count", t->expert_used > 4 ? 3 : 2);
        put_uint(w, "rope.dimension_count", t->head_dimension / 2);
        put_float(w, "expert_weights_scale", 1.5F);
    }
    if (is(t->family, "exaone4")) put_float(w, "rope.freq_base_swa", 50000);
    if (t->taps != 0 && t->value_heads == 0) put_uint(w, "shortconv.l_cache", t->taps);
    if (t->value_heads != 0) {
        put_uint(w, "rope.dimension_count", t->head_dimension / 4);
        put_uint(w, "full_attention_interval", t->attention_interval);
        put_uint(w, "ssm.conv_kernel", t->taps);
        put_uint(w, "ssm.group_count", t->key_heads);
        put_uint(w, "ssm.time_step_rank", t->value_heads);
        put_uint(w, "ssm.state_size", t->delta_k);
        put_uint(w, "ssm.inner_size", t->value_heads * t->delta_v);
    }
    if (cohere) put_float(w, "logit_scale", 0.5F);
    put_float(w, opt || cohere ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 1e-5F);
    if (t->window != 0) put_uint(w, "attention.sliding_window", t->window);
    if (t->slides != NULL)
        assert_ok(gguf_writer_add_ints(w->gguf, key_of(w, "attention.sliding_window_pattern"), t->slides,
                                       t->layer_count, &w->error),
                  w->error);
    if (t->sliding_dimension != 0) {
        put_uint(w, "attention.key_length_swa", t->sliding_dimension);
        put_uint(w, "attention.value_length_swa", t->sliding_dimension);
    }
    if (t->input_size != 0) put_uint(w, "embedding_length_per_layer_input", t->input_size);
    if (is(t->family, "gemma2")) put_float(w, "attn_logit_softcapping", 2);
    if (is(t->family, "gemma2") || is(t->family, "gemma4")) put_float(w, "final_logit_softcapping", 20);
    if (t->shared_layers != 0) put_uint(w, "attention.shared_kv_layers", t->shared_layers);
    if (t->window_period != 0) put_uint(w, "attention.sliding_window_pattern", t->window_period);
    if (t->scaling != NULL && !is(t->scaling, "tensor")) {
        assert_ok(gguf_writer_add_string(w->gguf, key_of(w, "rope.scaling.type"), t->scaling,
                                         strlen(t->scaling), &w->error),
                  w->error);
        put_float(w, "rope.scaling.factor", t->factor);
        if (t->original_context != 0)
            put_uint(w, "rope.scaling.original_context_length", t->original_context);
    }
    if (is(t->family, "mistral3")) {
        put_float(w, "rope.scaling.yarn_log_multiplier", 1);
        put_float(w, "attention.temperature_scale", 0.4F);
    }
    if (t->key == NULL) return;
    if (is(t->text, "true") || is(t->text, "false"))
        assert_ok(gguf_writer_add_bool(w->gguf, key_of(w, t->key), is(t->text, "true"), &w->error), w->error);
    else if (t->text != NULL)
        assert_ok(gguf_writer_add_string(w->gguf, key_of(w, t->key), t->text, strlen(t->text), &w->error),
                  w->error);
    else if (t->value == floorf(t->value) && t->value >= 0)
        assert_ok(gguf_writer_add_uint(w->gguf, key_of(w, t->key), (uint32_t)t->value, &w->error), w->error);
    else
        assert_ok(gguf_writer_add_float(w->gguf, key_of(w, t->key), t->value, &w->error), w->error);
}

static void add_typed(struct writer *w, const char *name, enum tensor_type type, uint64_t rows, uint64_t columns,
                      float mean, float deviation) {
    if (is(w->tiny->omit, name)) return;
    assert_true(w->tensor_count < TENSORS_MAX);
    struct declared *d = &w->tensors[w->tensor_count++];
    snprintf(d->name, sizeof d->name, "%s", name);
    if (is(w->tiny->reshape, name)) *(rows > 0 ? &rows : &columns) += 1;
    if (is(w->tiny->retype, name)) type = TENSOR_I32;
    d->type = type, d->rows = rows, d->columns = columns, d->mean = mean, d->deviation = deviation;
    uint64_t dimensions[2] = {columns, rows};
    assert_ok(gguf_writer_declare_tensor(w->gguf, name, type, rows > 0 ? 2 : 1, dimensions, &w->error),
              w->error);
}

static void add(struct writer *w, const char *name, uint64_t rows, uint64_t columns, float mean,
                float deviation) {
    add_typed(w, name, rows > 0 ? w->tiny->type : w->tiny->vector_type, rows, columns, mean, deviation);
}

static void add_matrix(struct writer *w, const char *name, size_t rows, size_t columns) {
    add(w, name, rows, columns, 0, 1.0F / sqrtf((float)columns));
}
/* What a layer adds to the residual stream. */
static void add_output(struct writer *w, const char *name, size_t rows, size_t columns) {
    add(w, name, rows, columns, 0, w->tiny->adds_nothing ? 0 : 1.0F / sqrtf((float)columns));
}
/* A matrix that becomes floats, as vectors do. */
static void add_taps(struct writer *w, const char *name, size_t rows, size_t taps) {
    add_typed(w, name, w->tiny->vector_type, rows, taps, 0, 1);
}
/* A matrix for each expert, one after the other. */
static void add_stack(struct writer *w, const char *name, size_t rows, size_t columns) {
    const struct tiny_model *t = w->tiny;
    if (is(t->omit, name)) return;
    assert_true(w->tensor_count < TENSORS_MAX);
    struct declared *d = &w->tensors[w->tensor_count++];
    snprintf(d->name, sizeof d->name, "%s", name);
    if (is(t->reshape, name)) rows += 1;
    d->type = t->type, d->rows = rows * t->expert_count, d->columns = columns;
    d->deviation = t->adds_nothing ? 0 : 1.0F / sqrtf((float)columns);
    if (is(t->family, "gpt-oss") && strstr(name, "down") != NULL) d->deviation *= 0.1F; /* of large inputs */
    uint64_t dimensions[3] = {columns, rows, t->expert_count};
    assert_ok(gguf_writer_declare_tensor(w->gguf, name, d->type, 3, dimensions, &w->error), w->error);
}
/* Of experts: [count, experts]. */
static void add_biases(struct writer *w, const char *name, size_t count) {
    const struct tiny_model *t = w->tiny;
    if (is(t->omit, name)) return;
    assert_true(w->tensor_count < TENSORS_MAX);
    struct declared *d = &w->tensors[w->tensor_count++];
    snprintf(d->name, sizeof d->name, "%s", name);
    if (is(t->reshape, name)) count += 1;
    d->type = t->vector_type, d->rows = t->expert_count, d->columns = count;
    d->deviation = strstr(name, "down") != NULL ? 0.3F : 3; /* some gates are clamped */
    if (t->adds_nothing) d->deviation = 0;
    uint64_t dimensions[2] = {count, t->expert_count};
    assert_ok(gguf_writer_declare_tensor(w->gguf, name, d->type, 2, dimensions, &w->error), w->error);
}
static void add_norm(struct writer *w, const char *name, size_t count) { add(w, name, 0, count, 1, 0.2F); }
static void add_bias(struct writer *w, const char *name, size_t count) { add(w, name, 0, count, 0, 0.3F); }

static void add_layer(struct writer *w, size_t layer) {
    const struct tiny_model *t = w->tiny;
    bool opt = is(t->family, "opt"), seed_oss = is(t->family, "seed_oss");
    const bool glm = is(t->family, "glm4moe"), oss = is(t->family, "gpt-oss");
    const bool next = is(t->family, "qwen3next"), qwen35 = next || strncmp(t->family, "qwen35", 6) == 0;
    const bool biased = opt || seed_oss || glm || oss || is(t->family, "glm4") || strncmp(t->family, "qwen2", 5) == 0;
    const int32_t own = t->kv_heads != NULL ? t->kv_heads[layer] : (int32_t)t->kv_head_count;
    const size_t kv_heads = own > 0 ? (size_t)own : 1; /* a number that is refused */
    const bool slides = t->slides != NULL && t->slides[layer] != 0,
               stores = layer + t->shared_layers < t->layer_count;
    const size_t dimension = slides && t->sliding_dimension != 0 ? t->sliding_dimension : t->head_dimension;
    size_t q_size = t->head_count * dimension, kv_size = kv_heads * dimension;
    char name[64];
    const size_t interval = t->attention_interval;
    const bool attends = interval != 0 ? (layer + 1) % interval == 0 : t->taps == 0 || own > 0;
#define LAYER(suffix) (snprintf(name, sizeof name, "blk.%zu." suffix, layer), name)
    const bool gemma4 = is(t->family, "gemma4"), gemma = gemma4 || is(t->family, "gemma3");
    const bool olmo = is(t->family, "olmo2"), minimax = is(t->family, "minimax-m2"), of_rows = olmo || minimax;
    const bool behind = olmo || is(t->family, "exaone4");
    if (!behind) add_norm(w, LAYER("attn_norm.weight"), t->hidden_size);
    if (behind || gemma || is(t->family, "gemma2") || is(t->family, "glm4")) {
        add_norm(w, LAYER("post_attention_norm.weight"), t->hidden_size);
        add_norm(w, LAYER("post_ffw_norm.weight"), t->hidden_size);
    }
    if (!attends && qwen35) {
        const size_t inner = t->value_heads * t->delta_v, all = 2 * t->key_heads * t->delta_k + inner;
        add_matrix(w, LAYER("attn_qkv.weight"), all, t->hidden_size);
        add_matrix(w, LAYER("attn_gate.weight"), inner, t->hidden_size);
        add_taps(w, LAYER("ssm_conv1d.weight"), all, t->taps);
        if (next) add_matrix(w, LAYER("ssm_ba.weight"), 2 * t->value_heads, t->hidden_size);
        if (!next) add_matrix(w, LAYER("ssm_alpha.weight"), t->value_heads, t->hidden_size);
        if (!next) add_matrix(w, LAYER("ssm_beta.weight"), t->value_heads, t->hidden_size);
        add_bias(w, LAYER("ssm_dt.bias"), t->value_heads);
        add(w, LAYER("ssm_a"), 0, t->value_heads, -0.3F, 0.1F);
        add_norm(w, LAYER("ssm_norm.weight"), t->delta_v);
        add_output(w, LAYER("ssm_out.weight"), t->hidden_size, inner);
    } else if (!attends) {
        add_matrix(w, LAYER("shortconv.in_proj.weight"), 3 * t->hidden_size, t->hidden_size);
        add_taps(w, LAYER("shortconv.conv.weight"), t->hidden_size, t->taps);
        add_output(w, LAYER("shortconv.out_proj.weight"), t->hidden_size, t->hidden_size);
    } else {
        const bool is_fused = is(t->family, "phi3") && stores;
        if (is_fused) add_matrix(w, LAYER("attn_qkv.weight"), q_size + 2 * kv_size, t->hidden_size);
        else add_matrix(w, LAYER("attn_q.weight"), qwen35 ? 2 * q_size : q_size, t->hidden_size); /* with gates */
        if (stores && !is_fused) add_matrix(w, LAYER("attn_k.weight"), kv_size, t->hidden_size);
        const bool is_full = gemma4 && t->window_period != 0 && layer % t->window_period == t->window_period - 1;
        if (stores && !is_full && !is_fused) add_matrix(w, LAYER("attn_v.weight"), kv_size, t->hidden_size);
        add_output(w, LAYER("attn_output.weight"), t->hidden_size, q_size);
    }
    const bool is_named_so = seed_oss || glm || oss || qwen35;
    if (!behind && !is(t->family, "cohere2"))
        add_norm(w, is_named_so ? LAYER("post_attention_norm.weight") : LAYER("ffn_norm.weight"), t->hidden_size);
    if (t->expert_count > 0 && layer >= t->dense_layers) {
        add(w, LAYER("ffn_gate_inp.weight"), t->expert_count, t->hidden_size, 0,
            4.0F / sqrtf((float)t->hidden_size));
        if (gemma4) {
            add(w, LAYER("ffn_gate_inp.scale"), 0, t->hidden_size, sqrtf((float)t->hidden_size), 0.5F);
            add_norm(w, LAYER("pre_ffw_norm_2.weight"), t->hidden_size);
            add_norm(w, LAYER("post_ffw_norm_1.weight"), t->hidden_size);
            add_norm(w, LAYER("post_ffw_norm_2.weight"), t->hidden_size);
            add_stack(w, LAYER("ffn_gate_up_exps.weight"), 2 * t->expert_size, t->hidden_size);
            add_typed(w, LAYER("ffn_down_exps.scale"), TENSOR_F32, 0, t->expert_count, 1, 0.2F);
        } else {
            add_stack(w, LAYER("ffn_gate_exps.weight"), t->expert_size, t->hidden_size);
            add_stack(w, LAYER("ffn_up_exps.weight"), t->expert_size, t->hidden_size);
        }
        add_stack(w, LAYER("ffn_down_exps.weight"), t->hidden_size, t->expert_size);
        if (glm || minimax || is(t->family, "lfm2moe")) add_bias(w, LAYER("exp_probs_b.bias"), t->expert_count);
        if (oss) {
            add_bias(w, LAYER("ffn_gate_inp.bias"), t->expert_count);
            add_biases(w, LAYER("ffn_gate_exps.bias"), t->expert_size);
            add_biases(w, LAYER("ffn_up_exps.bias"), t->expert_size);
            add_biases(w, LAYER("ffn_down_exps.bias"), t->hidden_size);
        }
        if (t->shared_size > 0) {
            add_matrix(w, LAYER("ffn_gate_shexp.weight"), t->shared_size, t->hidden_size);
            add_matrix(w, LAYER("ffn_up_shexp.weight"), t->shared_size, t->hidden_size);
            add_output(w, LAYER("ffn_down_shexp.weight"), t->hidden_size, t->shared_size);
            if (!glm && !is(t->family, "granitemoe")) add_norm(w, LAYER("ffn_gate_inp_shexp.weight"), t->hidden_size);
        }
    }
    if (t->expert_count == 0 || layer < t->dense_layers || gemma4) {
        const bool is_fused = is(t->family, "phi3") || is(t->family, "glm4");
        if (!opt && !is_fused) add_matrix(w, LAYER("ffn_gate.weight"), t->ffn_size, t->hidden_size);
        add_matrix(w, LAYER("ffn_up.weight"), is_fused ? 2 * t->ffn_size : t->ffn_size, t->hidden_size);
        add_output(w, LAYER("ffn_down.weight"), t->hidden_size, t->ffn_size);
    }
    if (biased) {
        add_bias(w, LAYER("attn_q.bias"), q_size);
        if (stores) add_bias(w, LAYER("attn_k.bias"), kv_size);
        if (stores) add_bias(w, LAYER("attn_v.bias"), kv_size);
    }
    if (oss) {
        add(w, LAYER("attn_output.bias"), 0, t->hidden_size, 0, t->adds_nothing ? 0 : 0.3F);
        add(w, LAYER("attn_sinks.weight"), 0, t->head_count, 1, 1);
    }
    if (opt) {
        add_bias(w, LAYER("attn_norm.bias"), t->hidden_size);
        add_bias(w, LAYER("attn_output.bias"), t->hidden_size);
        add_bias(w, LAYER("ffn_norm.bias"), t->hidden_size);
        add_bias(w, LAYER("ffn_up.bias"), t->ffn_size);
        add_bias(w, LAYER("ffn_down.bias"), t->hidden_size);
    }
    if (gemma4) add(w, LAYER("layer_output_scale.weight"), 0, 1, 1, t->adds_nothing ? 0 : 0.2F);
    if (t->input_size != 0) {
        add_matrix(w, LAYER("inp_gate.weight"), t->input_size, t->hidden_size);
        add_output(w, LAYER("proj.weight"), t->hidden_size, t->input_size);
        add_norm(w, LAYER("post_norm.weight"), t->hidden_size);
    }
    const bool qwen3 = is(t->family, "qwen3") || is(t->family, "qwen3moe");
    if (glm || gemma || behind || minimax || qwen3 || (t->taps != 0 && attends)) {
        add_norm(w, LAYER("attn_q_norm.weight"), of_rows ? q_size : dimension);
        if (stores) add_norm(w, LAYER("attn_k_norm.weight"), of_rows ? kv_size : dimension);
    }
#undef LAYER
}

static void write_values(struct writer *w, const struct declared *d) {
    size_t count = d->columns;
    float *row = calloc(count, sizeof *row);
    uint64_t bytes;
    assert_true(tensor_row_bytes(d->type, count, &bytes));
    void *stored = calloc(1, bytes);
    for (uint64_t r = 0; r < (d->rows > 0 ? d->rows : 1); r++) {
        for (size_t i = 0; i < count; i++) row[i] = d->mean + d->deviation * (float)random_normal(&w->random);
        for (size_t i = 0; i < count && strncmp(d->name, "rope_factors", 12) == 0; i++) row[i] = 1 + fabsf(row[i]);
        if (is(d->name, "rope_freqs.weight")) {
            double divisors[ROPE_PAIRS_MAX];
            rope_llama3_divisors(10000, 2 * count, w->tiny->factor, 1, 4, w->tiny->original_context,
                                 divisors);
            for (size_t i = 0; i < count; i++) row[i] = (float)divisors[i];
        }
        if (is(w->tiny->poison, d->name)) row[count / 2] = NAN;
        if (d->type == TENSOR_F32 || d->type == TENSOR_I32)
            memcpy(stored, row, bytes);
        else
            weight_store(&w->random, d->type, row, stored, count);
        assert_ok(gguf_writer_write(w->gguf, stored, bytes, &w->error), w->error);
    }
    free(row);
    free(stored);
}

static void write_anew(const struct tiny_model *tiny, const char *path) {
    struct writer w = {.tiny = tiny};
    random_init(&w.random, tiny->seed);
    assert_ok(gguf_writer_create(&w.gguf, path, &w.error), w.error);
    put_metadata(&w);
    add_matrix(&w, "token_embd.weight", tiny->vocabulary_size, tiny->hidden_size);
    w.tensors[0].deviation = 1; /* so that tokens differ more than norms hide */
    if (is(tiny->family, "opt")) {
        add_matrix(&w, "position_embd.weight", 512 + 2, tiny->hidden_size);
        add_bias(&w, "output_norm.bias", tiny->hidden_size);
    }
    if (tiny->input_size != 0) {
        add_matrix(&w, "per_layer_token_embd.weight", tiny->vocabulary_size, tiny->layer_count * tiny->input_size);
        add_matrix(&w, "per_layer_model_proj.weight", tiny->layer_count * tiny->input_size, tiny->hidden_size);
        add_norm(&w, "per_layer_proj_norm.weight", tiny->input_size);
    }
    if (is(tiny->scaling, "tensor")) add(&w, "rope_freqs.weight", 0, tiny->head_dimension / 2, 0, 0);
    if (is(tiny->scaling, "longrope")) {
        add(&w, "rope_factors_long.weight", 0, tiny->head_dimension / 2, 0, 1);
        add(&w, "rope_factors_short.weight", 0, tiny->head_dimension / 2, 0, 1);
    }
    for (size_t i = 0; i < tiny->layer_count; i++) add_layer(&w, i);
    const bool lfm2 = strncmp(tiny->family, "lfm2", 4) == 0;
    add_norm(&w, lfm2 ? "token_embd_norm.weight" : "output_norm.weight", tiny->hidden_size);
    if (!tiny->tied) add_matrix(&w, "output.weight", tiny->vocabulary_size, tiny->hidden_size);
    if (tiny->extra != NULL) add_norm(&w, tiny->extra, tiny->hidden_size);
    assert_ok(gguf_writer_begin_data(w.gguf, &w.error), w.error);
    for (size_t i = 0; i < w.tensor_count; i++) write_values(&w, &w.tensors[i]);
    assert_ok(gguf_writer_commit(w.gguf, &w.error), w.error);
    gguf_writer_destroy(w.gguf);
}

/* Random weights take longer than many a case that uses them: the files that a program wrote last are kept. */
enum { KEPT = 4 };
static struct kept {
    struct tiny_model tiny;
    char family[32];
    void *file; /* owned; NULL: none */
    size_t bytes;
} kept[KEPT];

/* All of it is in the struct, but for the name of its family. */
static bool may_be_kept(const struct tiny_model *tiny) {
    return tiny->kv_heads == NULL && tiny->slides == NULL && tiny->scaling == NULL && tiny->omit == NULL &&
           tiny->reshape == NULL && tiny->poison == NULL && tiny->retype == NULL && tiny->extra == NULL &&
           tiny->key == NULL && tiny->text == NULL && strlen(tiny->family) < sizeof kept[0].family;
}

static void keep(struct kept *it, const struct tiny_model *tiny, const char *path) {
    struct stat info;
    FILE *file = fopen(path, "rb");
    assert_true(file != NULL && fstat(fileno(file), &info) == 0);
    free(it->file);
    it->bytes = (size_t)info.st_size;
    it->file = malloc(it->bytes);
    assert_non_null(it->file);
    assert_int_equal(fread(it->file, 1, it->bytes, file), it->bytes);
    fclose(file);
    it->tiny = *tiny;
    it->tiny.family = NULL;
    strcpy(it->family, tiny->family);
}

void tiny_model_write(const struct tiny_model *tiny, const char *path) {
    static size_t next;
    struct tiny_model key = *tiny;
    key.family = NULL;
    for (size_t i = 0; may_be_kept(tiny) && i < KEPT; i++) {
        if (kept[i].file == NULL || memcmp(&kept[i].tiny, &key, sizeof key) != 0 || !is(tiny->family, kept[i].family))
            continue;
        unlink(path); /* who has mapped it keeps it */
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(kept[i].file, 1, kept[i].bytes, file), kept[i].bytes);
        assert_int_equal(fclose(file), 0);
        return;
    }
    write_anew(tiny, path);
    if (may_be_kept(tiny)) keep(&kept[next++ % KEPT], tiny, path);
}

size_t random_between(struct random *random, size_t min, size_t max) {
    return min + (size_t)random_below(random, max - min + 1);
}

struct tiny_model tiny_model_random(struct random *random, const char *const *families, size_t family_count) {
    struct tiny_model tiny = tiny_model_default(families[random_below(random, family_count)]);
    tiny.layer_count = random_between(random, 1, 3);
    if (is(tiny.family, "smollm3")) tiny.layer_count = 4; /* the last one: no rotation */
    tiny.seed = random_next(random) & 0xffff;
    tiny.head_dimension = 32;
    if (is(tiny.family, "opt")) tiny.head_count = tiny.kv_head_count = 2; /* it has no key_length */
    if (is(tiny.family, "llama") && random_below(random, 2)) {
        tiny.window = (uint32_t)random_between(random, 10, 100);
        tiny.window_period = (uint32_t)random_below(random, 3);
    }
    return tiny;
}

struct tiny_model tiny_model_of_groups(bool shares) {
    static const int32_t kv_heads[] = {2, 1, 4, 1, 2, 1, 1}, slides[] = {0, 1, 0, 1, 0, 0, 0};
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.layer_count = 7;
    tiny.kv_heads = kv_heads;
    tiny.head_dimension = 64;
    tiny.sliding_dimension = 32;
    tiny.slides = slides;
    tiny.window = 100;
    tiny.shared_layers = shares ? 1 : 0;
    return tiny;
}

void tiny_model_unslide(struct model *model, size_t layer) {
    struct layer_config *config = (struct layer_config *)(uintptr_t)&model->config.layers[layer];
    config->attention = ATTENTION_FULL;
    config->window = 0;
    ((struct kv_windows *)(uintptr_t)model->config.kv_windows)->slides[layer] = false;
}

void tiny_model_load(const struct tiny_model *tiny, const char *name, const struct device_options *options,
                     struct device **device, struct model **model) {
    struct error error;
    assert_ok(device_cpu_create(device, options, &error), error);
    tiny_model_load_on(tiny, name, *device, model);
}

void tiny_model_load_on(const struct tiny_model *tiny, const char *name, struct device *device,
                        struct model **model) {
    char path[64];
    struct error error;
    tiny_model_write(tiny, tiny_model_path(name, path, sizeof path));
    assert_ok(model_load(model, path, device, &error), error);
    unlink(path);
}

void tiny_model_tokens(const struct tiny_model *tiny, struct random *random, int32_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) tokens[i] = (int32_t)random_below(random, tiny->vocabulary_size);
}

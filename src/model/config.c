/* config: reads a GGUF file's metadata into a model_config.  Every value is checked before a size depends on it.
 *
 * The keys are llama.cpp's (docs/formats.md lists those of OPT, which llama.cpp does not know).  An unsupported feature
 * is rejected with its key's name: ignoring it would give wrong answers.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "kernels/recurrence/recurrence.h"
#include "model/model_internal.h"
#include "model/rope_scaling.h"

#define RMS_EPSILON "attention.layer_norm_rms_epsilon"

static const struct family families[] = {
    {"llama", FAMILY_LLAMA, ROPE_ADJACENT, RMS_EPSILON, .has_biases = false},
    {"qwen2", FAMILY_QWEN2, ROPE_SPLIT, RMS_EPSILON, .has_biases = true},
    {"qwen3", FAMILY_QWEN3, ROPE_SPLIT, RMS_EPSILON, .norms = {.of_heads = true}},
    {"qwen3moe", FAMILY_QWEN3MOE, ROPE_SPLIT, RMS_EPSILON, .norms = {.of_heads = true},
     .experts = {.count = EXPERTS_MAX, .router = ROUTER_SOFTMAX, .normalises = true}},
    {"qwen2moe", FAMILY_QWEN2MOE, ROPE_SPLIT, RMS_EPSILON, .has_biases = true,
     .experts = {.count = EXPERTS_MAX, .router = ROUTER_SOFTMAX, .shared = SHARED_EXPERT_GATED}},
    {"glm4moe", FAMILY_GLM4MOE, ROPE_SPLIT, RMS_EPSILON, .has_nextn = true,
     .norms = {.may_be_of_heads = true, .before_ffn = "post_attention_norm.weight"},
     .experts =
         {.count = EXPERTS_MAX, .router = ROUTER_SIGMOID, .has_choice_bias = true, .shared = SHARED_EXPERT_PLAIN}},
    {"gpt-oss", FAMILY_GPT_OSS, ROPE_SPLIT, RMS_EPSILON, .has_biases = true, .has_output_bias = true, .has_sinks = true,
     .yarn_is_exact = true, .norms = {.before_ffn = "post_attention_norm.weight"},
     .windows = {.period = 2, .are_needed = true},
     .experts = {.count = EXPERTS_MAX,
                 .router = ROUTER_SOFTMAX_OF_CHOSEN,
                 .has_biases = true,
                 .activation = ACTIVATION_SWIGLU_CLAMPED}},
    {"phi3", FAMILY_PHI3, ROPE_SPLIT, RMS_EPSILON, .has_fused_gates = true},
    {"glm4", FAMILY_GLM4, ROPE_ADJACENT, RMS_EPSILON, .has_fused_gates = true, .norms = {.place = NORMS_AROUND}},
    {"granite", FAMILY_GRANITE, ROPE_ADJACENT, RMS_EPSILON, .scales = {.are_given = true}},
    {"granitemoe", FAMILY_GRANITEMOE, ROPE_ADJACENT, RMS_EPSILON, .scales = {.are_given = true},
     .experts = {.count = EXPERTS_MAX,
                 .size = FFN_MAX,
                 .router = ROUTER_SOFTMAX_OF_CHOSEN,
                 .shared = SHARED_EXPERT_PLAIN}},
    {"smollm3", FAMILY_SMOLLM3, ROPE_ADJACENT, RMS_EPSILON, .plain_period = 4},
    {"seed_oss", FAMILY_SEED_OSS, ROPE_SPLIT, RMS_EPSILON, .has_biases = true,
     .norms = {.before_ffn = "post_attention_norm.weight"}},
    {"mistral3", FAMILY_MISTRAL3, ROPE_ADJACENT, RMS_EPSILON, .has_temperature = true},
    {"lfm2", FAMILY_LFM2, ROPE_SPLIT, RMS_EPSILON, .mixer = MIXER_SHORT_CONVOLUTION,
     .norms = {.of_heads = true, .output = "token_embd_norm.weight"}},
    {"qwen35", FAMILY_QWEN35, ROPE_SPLIT, RMS_EPSILON, .mixer = MIXER_DELTA, .has_gates = true, .has_nextn = true,
     .norms = {.of_heads = true, .before_ffn = "post_attention_norm.weight"}},
    {"qwen35moe", FAMILY_QWEN35MOE, ROPE_SPLIT, RMS_EPSILON, .mixer = MIXER_DELTA, .has_gates = true, .has_nextn = true,
     .norms = {.of_heads = true, .before_ffn = "post_attention_norm.weight"},
     .experts = {.count = EXPERTS_MAX, .router = ROUTER_SOFTMAX, .normalises = true, .shared = SHARED_EXPERT_GATED}},
    {"lfm2moe", FAMILY_LFM2MOE, ROPE_SPLIT, RMS_EPSILON, .mixer = MIXER_SHORT_CONVOLUTION,
     .norms = {.of_heads = true, .output = "token_embd_norm.weight"},
     .experts = {.count = EXPERTS_MAX,
                 .router = ROUTER_SIGMOID,
                 .normalises = true,
                 .has_choice_bias = true,
                 .dense_layers = LAYERS_MAX}},
    {"qwen3next", FAMILY_QWEN3NEXT, ROPE_SPLIT, RMS_EPSILON, .mixer = MIXER_DELTA, .delta_is_grouped = true,
     .has_gates = true, .has_nextn = true, .norms = {.of_heads = true, .before_ffn = "post_attention_norm.weight"},
     .experts = {.count = EXPERTS_MAX, .router = ROUTER_SOFTMAX, .normalises = true, .shared = SHARED_EXPERT_GATED}},
    {"gemma2", FAMILY_GEMMA2, ROPE_SPLIT, RMS_EPSILON, .activation = ACTIVATION_GELU_MULTIPLY,
     .scales = {.embedding = true, .wide_layers = 46, .score_softcap = 50, .logit_softcap = 30},
     .norms = {.place = NORMS_AROUND}, .windows = {.period = 2, .tokens = 4096}},
    {"gemma3", FAMILY_GEMMA3, ROPE_SPLIT, RMS_EPSILON, .activation = ACTIVATION_GELU_MULTIPLY,
     .scales = {.embedding = true, .wide_layers = 62}, .norms = {NORMS_AROUND, .of_heads = true},
     .windows = {.period = 6, .are_unscaled = true, .rope_base = 10000}},
    {"gemma4", FAMILY_GEMMA4, ROPE_SPLIT, RMS_EPSILON, .activation = ACTIVATION_GELU_MULTIPLY,
     .scales = {.embedding = true, .attention = 1}, .norms = {NORMS_AROUND, .of_heads = true, .of_values = true},
     .windows = {.period = 6, .are_needed = true, .are_unscaled = true},
     .experts = {.count = EXPERTS_MAX,
                 .router = ROUTER_SOFTMAX,
                 .normalises = true,
                 .activation = ACTIVATION_GELU_MULTIPLY,
                 .shared = SHARED_EXPERT_BESIDE}},
    {"olmo2", FAMILY_OLMO2, ROPE_SPLIT, RMS_EPSILON, .norms = {NORMS_BEHIND, .of_heads = true, .of_rows = true},
     .windows = {.period = 4, .are_unscaled = true}},
    {"exaone4", FAMILY_EXAONE4, ROPE_SPLIT, RMS_EPSILON, .has_nextn = true, .norms = {NORMS_BEHIND, .of_heads = true},
     .windows = {.period = 4, .rotate_alone = true}},
    {"cohere2", FAMILY_COHERE2, ROPE_ADJACENT, "attention.layer_norm_epsilon",
     .scales = {.are_given = true, .logits_are_multiplied = true}, .norms = {.subtract_means = true, .is_one = true},
     .windows = {.period = 4, .are_needed = true, .rotate_alone = true}},
    {"minimax-m2", FAMILY_MINIMAX_M2, ROPE_SPLIT, RMS_EPSILON, .norms = {.of_heads = true, .of_rows = true},
     .experts = {.count = EXPERTS_MAX, .router = ROUTER_SIGMOID, .normalises = true, .has_choice_bias = true}},
    {"opt", FAMILY_OPT, ROPE_ADJACENT, "attention.layer_norm_epsilon", .has_biases = true, .has_output_bias = true},
};
enum { FAMILY_COUNT = sizeof families / sizeof families[0], KEY_BYTES = 96 };

struct reader {
    const struct gguf *gguf;
    const struct family *family;
    struct model_config *config;
    struct error *error;
    /* Dimensions of sliding layers; those of full ones are the configuration's until layers are filled in. */
    struct kv_geometry sliding;
    size_t attention_interval; /* MIXER_DELTA: every so manieth layer attends */
    uint64_t stretched;        /* model_config_read_stretched */
    char key[KEY_BYTES];       /* the key in work, "llama.block_count" */
};

const struct family *family_find(enum model_family family) {
    for (size_t i = 0; i < FAMILY_COUNT; i++)
        if (families[i].family == family) return &families[i];
    ASSERT(false && "a family");
    return NULL;
}

const char *family_name(enum model_family family) { return family_find(family)->name; }

const char *family_names(char *buffer, size_t buffer_bytes) {
    size_t used = 0;
    for (size_t i = 0; i < FAMILY_COUNT && used < buffer_bytes; i++)
        used += (size_t)snprintf(buffer + used, buffer_bytes - used, "%s%s", i > 0 ? ", " : "", families[i].name);
    return buffer;
}

static const char *reader_key(struct reader *reader, const char *suffix) {
    snprintf(reader->key, sizeof reader->key, "%s.%s", reader->family->name, suffix);
    return reader->key;
}

static enum status refuse(struct reader *reader, const char *key, const char *why) {
    return error_set(reader->error, STATUS_MODEL, "%s: %s: %s", reader->gguf->path, key, why);
}

static enum status read_family(struct reader *reader) {
    struct gguf_string name = {0};
    TRY(gguf_required(reader->gguf, "general.architecture", reader->error));
    TRY(gguf_get_string(reader->gguf, "general.architecture", &name, reader->error));
    for (size_t i = 0; i < FAMILY_COUNT; i++)
        if (strlen(families[i].name) == name.length && memcmp(families[i].name, name.text, name.length) == 0) {
            reader->family = &families[i];
            return STATUS_OK;
        }
    char known[288], why[sizeof reader->error->message];
    snprintf(why, sizeof why, "general.architecture: found '%.*s', known are %s", (int)min_size(name.length, 32),
             name.text, family_names(known, sizeof known));
    /* All the names are said: of a long path the end is. */
    const char *path = reader->gguf->path, *cut = "...";
    const size_t room = sizeof why - strlen(why) - sizeof ": ", length = strlen(path);
    if (length <= room) cut = "";
    else path += length - (room - strlen(cut));
    return error_set(reader->error, STATUS_MODEL, "%s%s: %s", cut, path, why);
}

/* A required or defaulted count from min to max. */
static enum status read_count(struct reader *reader, const char *suffix, bool required, uint64_t min, uint64_t max,
                              size_t *value) {
    const char *key = reader_key(reader, suffix);
    uint64_t number = *value;
    if (required) TRY(gguf_required(reader->gguf, key, reader->error));
    TRY(gguf_get_uint(reader->gguf, key, max, &number, reader->error));
    if (number < min || number > max)
        return error_set(reader->error, STATUS_MODEL, "%s: %s: found %llu, expected %llu to %llu", reader->gguf->path,
                         key, (unsigned long long)number, (unsigned long long)min, (unsigned long long)max);
    *value = number;
    return STATUS_OK;
}

/* An array of one number per layer, each from min to max. */
static enum status check_layer_counts(struct reader *reader, const struct gguf_entry *entry, uint64_t min,
                                      uint64_t max) {
    if (entry->element_type == GGUF_STRING || entry->element_type == GGUF_FLOAT32 ||
        entry->element_type == GGUF_FLOAT64 || entry->count < reader->config->layer_count)
        return refuse(reader, reader->key, "expected one whole number per layer");
    for (uint64_t i = 0; i < reader->config->layer_count; i++) {
        const int64_t found = gguf_array_int(entry, i);
        if (found < (int64_t)min || found > (int64_t)max)
            return error_set(reader->error, STATUS_MODEL, "%s: %s: found %lld, expected %llu to %llu",
                             reader->gguf->path, reader->key, (long long)found, (unsigned long long)min,
                             (unsigned long long)max);
    }
    return STATUS_OK;
}

/* The same for a required key that may have one number per layer: the largest. */
static enum status read_layer_count(struct reader *reader, const char *suffix, uint64_t max, size_t *value) {
    const struct gguf_entry *entry = gguf_find(reader->gguf, reader_key(reader, suffix));
    if (entry == NULL || entry->type != GGUF_ARRAY) return read_count(reader, suffix, true, 1, max, value);
    TRY(check_layer_counts(reader, entry, 1, max));
    *value = 0;
    for (uint64_t i = 0; i < reader->config->layer_count; i++)
        *value = max_size(*value, (size_t)gguf_array_int(entry, i));
    return STATUS_OK;
}

static enum status read_heads(struct reader *reader) {
    const struct model_config *config = reader->config;
    const struct gguf_entry *entry = gguf_find(reader->gguf, reader_key(reader, "attention.head_count"));
    TRY(read_layer_count(reader, "attention.head_count", HEADS_MAX, &reader->config->head_count));
    for (uint64_t i = 0; entry != NULL && entry->type == GGUF_ARRAY && i < config->layer_count; i++)
        if ((size_t)gguf_array_int(entry, i) != config->head_count)
            return refuse(reader, reader->key, "layers differ in it, which loam does not support");
    return STATUS_OK;
}

/* A float from min to max.  If it is absent, *value stays unchanged. */
static enum status read_float(struct reader *reader, const char *suffix, double min, double max, float *value) {
    const char *key = reader_key(reader, suffix);
    TRY(gguf_get_float(reader->gguf, key, value, reader->error));
    if (!((double)*value >= min && (double)*value <= max)) /* NaN fails too */
        return error_set(reader->error, STATUS_MODEL, "%s: %s: found %g, expected %g to %g", reader->gguf->path, key,
                         (double)*value, min, max);
    return STATUS_OK;
}

/* Keys that change the arithmetic unless they have their neutral value. */
static enum status refuse_unsupported(struct reader *reader) {
    static const struct {
        const char *suffix;
        float neutral;
    } floats[] = {
        {"attention.clamp_kqv", 0}, {"attention.max_alibi_bias", 0}, {"rope.scaling.yarn_attn_factor", 1},
    };
    static const struct {
        const char *suffix;
        bool neutral;
        bool of_scales; /* only in families with given scales */
    } flags[] = {{"attention.causal", true, false},
                 {"use_parallel_residual", false, false},
                 {"rope.scaling.finetuned", true, true}}; /* no: Granite then rotates nothing */
    size_t experts = 0;
    TRY(read_count(reader, "expert_count", false, 0, UINT32_MAX, &experts));
    if (experts > 0 && reader->family->experts.count == 0)
        return refuse(reader, reader->key, "mixtures of experts are not supported in this family");
    const struct {
        const char *suffix;
        bool is_supported;
    } of_families[] = {{"attention.temperature_scale", reader->family->has_temperature},
                       {"attn_logit_softcapping", reader->family->scales.score_softcap != 0},
                       {"logit_scale", reader->family->scales.are_given},
                       {"residual_scale", reader->family->scales.are_given},
                       {"embedding_scale", reader->family->scales.are_given}};
    for (size_t i = 0; i < sizeof of_families / sizeof of_families[0]; i++) {
        float value = 0;
        const char *key = reader_key(reader, of_families[i].suffix);
        TRY(gguf_get_float(reader->gguf, key, &value, reader->error));
        if (value != 0 && !of_families[i].is_supported)
            return refuse(reader, key, "this feature is not supported in this family");
    }
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        float value = floats[i].neutral;
        const char *key = reader_key(reader, floats[i].suffix);
        TRY(gguf_get_float(reader->gguf, key, &value, reader->error));
        if (value != floats[i].neutral && value != 0) return refuse(reader, key, "this feature is not supported");
    }
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        bool value = flags[i].neutral;
        const char *key = reader_key(reader, flags[i].suffix);
        if (flags[i].of_scales && !reader->family->scales.are_given) continue;
        TRY(gguf_get_bool(reader->gguf, key, &value, reader->error));
        if (value != flags[i].neutral) return refuse(reader, key, "this feature is not supported");
    }
    return STATUS_OK;
}

/* Factors of embeddings, of what layers add, and of logits.  With y = x / r in place of the residual stream x, to which
 * layers add r times what they compute, they add it as it is: norms are the same with an epsilon of e / r^2. */
static enum status read_given_scales(struct reader *reader) {
    enum { EMBEDDING, RESIDUAL, LOGITS, SCALES };
    static const char *const keys[SCALES] = {"embedding_scale", "residual_scale", "logit_scale"};
    struct model_config *config = reader->config;
    float scales[SCALES] = {0};
    if (!reader->family->scales.are_given) return STATUS_OK;
    for (size_t i = 0; i < SCALES; i++) {
        TRY(read_float(reader, keys[i], 0, 1e6, &scales[i]));
        if (scales[i] == 0) scales[i] = 1; /* in llama.cpp: not given */
        if (scales[i] < 1e-6F) return refuse(reader, reader->key, "expected at least 1e-6");
    }
    config->embedding_scale = scales[EMBEDDING] / scales[RESIDUAL];
    config->norm_epsilon /= scales[RESIDUAL] * scales[RESIDUAL];
    config->output_scale = reader->family->scales.logits_are_multiplied ? scales[LOGITS] : 1 / scales[LOGITS];
    return STATUS_OK;
}

/* attention.recurrent_layers: a flag per layer; else every full_attention_interval-th one attends, 4 where it is not
 * given.  Checked by read_shape. */
static bool is_delta(struct reader *reader, size_t layer) {
    const struct gguf_entry *flags = gguf_find(reader->gguf, reader_key(reader, "attention.recurrent_layers"));
    if (flags != NULL) return gguf_array_int(flags, layer) != 0;
    return (layer + 1) % reader->attention_interval != 0;
}

static enum status read_interval(struct reader *reader) {
    reader->attention_interval = 4;
    TRY(read_count(reader, "full_attention_interval", false, 1, LAYERS_MAX, &reader->attention_interval));
    const struct gguf_entry *flags = gguf_find(reader->gguf, reader_key(reader, "attention.recurrent_layers"));
    if (flags == NULL) return STATUS_OK;
    if (flags->type != GGUF_ARRAY) return refuse(reader, reader->key, "expected one flag per layer");
    return check_layer_counts(reader, flags, 0, 1);
}

/* A layer's own number, where the file has one per layer; else all layers' one. */
static size_t layer_count_of(struct reader *reader, const char *suffix, size_t layer, size_t all) {
    const struct gguf_entry *entry = gguf_find(reader->gguf, reader_key(reader, suffix));
    return entry == NULL || entry->type != GGUF_ARRAY ? all : (size_t)gguf_array_int(entry, layer);
}

/* 0: the layer has no attention. */
static size_t layer_kv_heads(struct reader *reader, size_t layer) {
    if (reader->family->mixer == MIXER_DELTA && is_delta(reader, layer)) return 0;
    return layer_count_of(reader, "attention.head_count_kv", layer, reader->config->kv_head_count);
}

static enum status check_kv_heads(struct reader *reader, size_t kv_heads) {
    const size_t heads = reader->config->head_count;
    if (heads % kv_heads != 0)
        return error_set(reader->error, STATUS_MODEL, "%s: %s: found %zu, expected a divisor of %zu heads",
                         reader->gguf->path, reader->key, kv_heads, heads);
    if (heads / kv_heads > GROUP_MAX)
        return refuse(reader, reader->key, "more than 64 query heads per KV head are not supported");
    return STATUS_OK;
}

/* config->kv_head_count: the most of any layer. */
static enum status read_kv_heads(struct reader *reader) {
    static const char suffix[] = "attention.head_count_kv";
    struct model_config *config = reader->config;
    const struct gguf_entry *entry = gguf_find(reader->gguf, reader_key(reader, suffix));
    config->kv_head_count = config->head_count;
    if (entry == NULL || entry->type != GGUF_ARRAY) {
        TRY(read_count(reader, suffix, false, 1, config->head_count, &config->kv_head_count));
        return check_kv_heads(reader, config->kv_head_count);
    }
    TRY(check_layer_counts(reader, entry, reader->family->mixer == MIXER_ATTENTION, config->head_count));
    config->kv_head_count = 0;
    for (size_t i = 0; i < config->layer_count; i++) {
        const size_t heads = layer_kv_heads(reader, i);
        if (heads > 0) TRY(check_kv_heads(reader, heads));
        config->kv_head_count = max_size(config->kv_head_count, heads);
    }
    return STATUS_OK;
}

static enum status read_dimension(struct reader *reader, const char *suffix, size_t *value) {
    TRY(read_count(reader, suffix, false, 1, HEAD_DIMENSION_MAX, value));
    if (*value % HEAD_DIMENSION_GRANULE != 0)
        return refuse(reader, reader->key, "a head dimension that is no multiple of 8 is not supported");
    return STATUS_OK;
}

static enum status read_shape(struct reader *reader) {
    struct model_config *config = reader->config;
    TRY(read_count(reader, "block_count", true, 1, LAYERS_MAX, &config->layer_count));
    if (reader->family->has_nextn)
        TRY(read_count(reader, "nextn_predict_layers", false, 0, config->layer_count - 1, &config->nextn_layers));
    config->layer_count -= config->nextn_layers;
    if (reader->family->mixer == MIXER_DELTA) TRY(read_interval(reader));
    TRY(read_count(reader, "embedding_length", true, 1, HIDDEN_MAX, &config->hidden_size));
    if (reader->family->scales.embedding) config->embedding_scale = sqrtf((float)config->hidden_size);
    const bool is_dense = reader->family->experts.count == 0 ||
                          gguf_find(reader->gguf, reader_key(reader, "feed_forward_length")) != NULL;
    TRY(read_layer_count(reader, is_dense ? "feed_forward_length" : "expert_feed_forward_length", FFN_MAX,
                         &config->ffn_size));
    TRY(read_heads(reader));
    TRY(read_kv_heads(reader));
    bool has_key_length = gguf_find(reader->gguf, reader_key(reader, "attention.key_length")) != NULL;
    if (!has_key_length && config->hidden_size % config->head_count != 0)
        return error_set(reader->error, STATUS_MODEL, "%s: %s: found %zu, expected a multiple of %zu heads",
                         reader->gguf->path, reader_key(reader, "embedding_length"), config->hidden_size,
                         config->head_count);
    config->k_dimension = config->hidden_size / config->head_count;
    TRY(read_dimension(reader, "attention.key_length", &config->k_dimension));
    config->v_dimension = config->k_dimension;
    TRY(read_dimension(reader, "attention.value_length", &config->v_dimension));
    if (config->has_gates && config->v_dimension != config->k_dimension)
        return refuse(reader, reader->key, "values and keys of different dimensions are not supported with gates");
    reader->sliding.k_dimension = config->k_dimension;
    TRY(read_dimension(reader, "attention.key_length_swa", &reader->sliding.k_dimension));
    reader->sliding.v_dimension =
        reader->sliding.k_dimension != config->k_dimension ? reader->sliding.k_dimension : config->v_dimension;
    TRY(read_dimension(reader, "attention.value_length_swa", &reader->sliding.v_dimension));

    size_t context = 0;
    TRY(read_count(reader, "context_length", true, 1, CONTEXT_MAX, &context));
    config->context_length = context;
    TRY(gguf_required(reader->gguf, reader_key(reader, reader->family->epsilon_key), reader->error));
    TRY(read_float(reader, reader->family->epsilon_key, 1e-30, 1.0, &config->norm_epsilon));
    return read_given_scales(reader);
}

/* Layers without experts before others with them, groups of experts and experts that all rows share: of families that
 * have these.  As in llama.cpp, a shared feed-forward is as large as so many experts, or, with a sigmoid, as a dense
 * one. */
static enum status read_shared_experts(struct reader *reader) {
    static const char *const keys[] = {"expert_shared_count", "leading_dense_block_count", "expert_group_count"};
    struct experts_config *experts = &reader->config->experts;
    size_t shared_count = 0;
    size_t *const numbers[] = {&shared_count, &experts->dense_layers, &experts->group_count};
    const uint64_t most[] = {FFN_MAX / experts->size, reader->config->layer_count, ROUTE_GROUPS_MAX};
    const bool has_shared = experts->shared != SHARED_EXPERT_NONE && experts->shared != SHARED_EXPERT_BESIDE;
    const bool has_dense = experts->dense_layers > 0;
    experts->dense_layers = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const bool is_read = has_shared || (i == 1 && has_dense);
        TRY(read_count(reader, keys[i], false, 0, is_read ? most[i] : UINT32_MAX, numbers[i]));
        if (!is_read && *numbers[i] > (i == 2)) return refuse(reader, reader->key, "this feature is not supported");
    }
    if (experts->shared == SHARED_EXPERT_NONE) return STATUS_OK;
    experts->shared_size =
        experts->shared != SHARED_EXPERT_PLAIN ? reader->config->ffn_size : shared_count * experts->size;
    if (experts->shared == SHARED_EXPERT_BESIDE) return STATUS_OK;
    TRY(read_count(reader, "expert_shared_feed_forward_length", false, 0, FFN_MAX, &experts->shared_size));
    if (experts->shared_size == 0) experts->shared = SHARED_EXPERT_NONE;
    if (experts->group_count <= 1) return STATUS_OK;
    if (experts->count % experts->group_count != 0 || experts->group_count == experts->count)
        return refuse(reader, reader_key(reader, "expert_group_count"),
                      "expected a divisor of expert_count, with two experts in a group at least"); /* it is worth two */
    experts->groups_used = experts->group_count;
    TRY(read_count(reader, "expert_group_used_count", false, 1, experts->group_count, &experts->groups_used));
    if (experts->used > experts->groups_used * (experts->count / experts->group_count))
        return refuse(reader, reader->key, "so many groups have fewer experts than a row uses");
    return STATUS_OK;
}

/* The keys are llama.cpp's; what a file does not say is the family's. */
static enum status read_experts(struct reader *reader) {
    struct experts_config *experts = &reader->config->experts;
    size_t gating = 0;
    *experts = reader->family->experts;
    if (experts->count == 0) return STATUS_OK;
    const bool is_needed = experts->shared != SHARED_EXPERT_BESIDE;
    experts->count = 0;
    TRY(read_count(reader, "expert_count", is_needed, is_needed, EXPERTS_MAX, &experts->count));
    if (experts->count == 0) {
        *experts = (struct experts_config){0};
        return STATUS_OK;
    }
    TRY(read_count(reader, "expert_used_count", true, 1, min_size(experts->count, ROUTE_USED_MAX), &experts->used));
    const bool is_whole = experts->size != 0; /* where it is absent, as in llama.cpp */
    experts->size = is_whole ? reader->config->ffn_size : reader->config->ffn_size / experts->used;
    TRY(read_count(reader, "expert_feed_forward_length", false, 1, FFN_MAX, &experts->size));
    TRY(read_count(reader, "expert_gating_func", false, 0, 3, &gating));
    if (gating > 0) experts->router = (enum router)(gating - 1); /* 1 softmax, 2 sigmoid, 3 softmax of the chosen */
    TRY(gguf_get_bool(reader->gguf, reader_key(reader, "expert_weights_norm"), &experts->normalises, reader->error));
    TRY(read_float(reader, "expert_weights_scale", 0, 1e6, &experts->scale));
    if (experts->scale == 0) experts->scale = 1; /* not given */
    experts->is_fused = experts->shared == SHARED_EXPERT_BESIDE &&
                        gguf_find_tensor(reader->gguf, "blk.0.ffn_gate_up_exps.weight") != NULL;
    return read_shared_experts(reader);
}

/* Rows of the embedding, else the key, else the number of listed tokens. */
static enum status read_vocabulary_size(struct reader *reader) {
    const struct gguf_entry *tokens = gguf_find(reader->gguf, "tokenizer.ggml.tokens");
    const struct gguf_tensor *embedding = gguf_find_tensor(reader->gguf, "token_embd.weight");
    uint64_t listed = tokens != NULL && tokens->type == GGUF_ARRAY ? tokens->count : 0;
    size_t size = listed;
    TRY(read_count(reader, "vocab_size", false, 0, VOCABULARY_MAX, &size));
    if (embedding != NULL) size = embedding->dimensions[1];
    if (size == 0 || size > VOCABULARY_MAX)
        return error_set(reader->error, STATUS_MODEL, "%s: vocabulary: found %zu tokens, expected 1 to %d",
                         reader->gguf->path, size, VOCABULARY_MAX);
    if (listed > size)
        return error_set(reader->error, STATUS_MODEL,
                         "%s: tokenizer.ggml.tokens: found %llu tokens, expected at most the %zu rows of "
                         "token_embd.weight",
                         reader->gguf->path, (unsigned long long)listed, size);
    reader->config->vocabulary_size = size;
    return STATUS_OK;
}

static enum status read_scaling_type(struct reader *reader) {
    static const struct {
        const char *name;
        enum rope_scaling scaling;
        const char *tensor; /* which has it; NULL: keys have */
    } known[] = {{"none", ROPE_SCALING_NONE, NULL},
                 {"linear", ROPE_SCALING_LINEAR, NULL},
                 {"yarn", ROPE_SCALING_YARN, NULL},
                 {"llama3", ROPE_SCALING_LLAMA3, NULL},
                 {"longrope", ROPE_SCALING_NONE, ROPE_FACTORS_LONG}};
    struct gguf_string name = {0};
    const char *key = reader_key(reader, "rope.scaling.type");
    TRY(gguf_get_string(reader->gguf, key, &name, reader->error));
    if (name.length == 0) { /* a factor without a type is linear */
        reader->config->rope_scaling = reader->config->rope_factor != 1 ? ROPE_SCALING_LINEAR : ROPE_SCALING_NONE;
        return STATUS_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].name) == name.length && memcmp(known[i].name, name.text, name.length) == 0) {
            reader->config->rope_scaling = known[i].scaling;
            if (known[i].tensor != NULL && gguf_find_tensor(reader->gguf, known[i].tensor) == NULL)
                return refuse(reader, key, "found 'longrope', and no tensor " ROPE_FACTORS_LONG);
            return STATUS_OK;
        }
    return error_set(reader->error, STATUS_MODEL,
                     "%s: %s: found '%.*s', known are none, linear, yarn, llama3, longrope", reader->gguf->path, key,
                     (int)min_size(name.length, 64), name.text);
}

/* llama.cpp's conventions: rope.scaling.attn_factor multiplies YaRN's own magnitude (it does not replace
 * it), and yarn_log_multiplier m makes that magnitude (0.1 ln s + 1) / (0.1 m ln s + 1). */
static enum status read_yarn(struct reader *reader) {
    struct model_config *config = reader->config;
    float log_multiplier = 0;
    config->yarn_extrapolation = 1;
    config->yarn_beta_fast = 32;
    config->yarn_beta_slow = 1;
    TRY(read_float(reader, "rope.scaling.yarn_ext_factor", -1, 1, &config->yarn_extrapolation));
    if (config->yarn_extrapolation < 0) config->yarn_extrapolation = 1; /* llama.cpp's "by type" */
    TRY(read_float(reader, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, &config->yarn_beta_fast));
    TRY(read_float(reader, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, &config->yarn_beta_slow));
    TRY(read_float(reader, "rope.scaling.yarn_log_multiplier", 0, 100, &log_multiplier));
    if (config->yarn_extrapolation == 0) return STATUS_OK;
    double magnitude = rope_yarn_magnitude(config->rope_factor, 1);
    if (log_multiplier != 0) magnitude /= rope_yarn_magnitude(config->rope_factor, log_multiplier);
    config->rope_attention_factor = (float)(magnitude * (double)config->rope_attention_factor);
    return STATUS_OK;
}

/* As of a file that says YaRN, with nothing but a factor. */
static enum status stretch(struct reader *reader) {
    struct model_config *config = reader->config;
    if (!config->has_rope || config->rope_scaling != ROPE_SCALING_NONE)
        return error_set(reader->error, STATUS_USAGE, "%s: YaRN: %s", reader->gguf->path,
                         config->has_rope ? "the file scales its positions already" : "positions are learned");
    if (reader->stretched <= config->context_length)
        return error_set(reader->error, STATUS_USAGE,
                         "%s: YaRN: found a context of %llu tokens, expected more than the %llu of the file",
                         reader->gguf->path, (unsigned long long)reader->stretched,
                         (unsigned long long)config->context_length);
    config->rope_scaling = ROPE_SCALING_YARN;
    config->rope_factor = (float)((double)reader->stretched / (double)config->context_length);
    config->rope_original_context = config->stretched_from = config->context_length;
    config->context_length = reader->stretched;
    return read_yarn(reader);
}

const char *model_rope_divisors(const struct model_config *config, const struct gguf *gguf) {
    if (gguf_find_tensor(gguf, "rope_freqs.weight") != NULL) return "rope_freqs.weight";
    if (gguf_find_tensor(gguf, ROPE_FACTORS_SHORT) == NULL && gguf_find_tensor(gguf, ROPE_FACTORS_LONG) == NULL)
        return NULL;
    return config->context_length > config->rope_original_context ? ROPE_FACTORS_LONG : ROPE_FACTORS_SHORT;
}

static enum status read_rope(struct reader *reader) {
    struct model_config *config = reader->config;
    config->rope_factor = 1;
    config->rope_attention_factor = 1;
    config->has_rope = config->family != FAMILY_OPT;
    if (!config->has_rope) {
        size_t offset = 2;
        TRY(read_count(reader, "position_offset", false, 0, 1024, &offset));
        config->position_offset = offset;
        return reader->stretched > 0 ? stretch(reader) : STATUS_OK;
    }
    config->rope_order = reader->family->rope_order;
    config->yarn_is_exact = reader->family->yarn_is_exact;
    config->rope_dimension = config->k_dimension;
    TRY(read_count(reader, "rope.dimension_count", false, 2, config->k_dimension, &config->rope_dimension));
    if (config->rope_dimension % 2 != 0) return refuse(reader, reader->key, "expected an even number");
    const size_t sliding_k = reader->sliding.k_dimension;
    size_t sliding = sliding_k != config->k_dimension ? sliding_k : config->rope_dimension;
    TRY(read_count(reader, "rope.dimension_count_swa", false, 2, sliding_k, &sliding));
    if (sliding % 2 != 0) return refuse(reader, reader->key, "expected an even number");
    config->rope_base = 10000;
    TRY(read_float(reader, "rope.freq_base", 1.0001, 1e18, &config->rope_base));
    config->sliding_rope_base = reader->family->windows.rope_base;
    if (config->sliding_rope_base == 0) config->sliding_rope_base = config->rope_base;
    TRY(read_float(reader, "rope.freq_base_swa", 1.0001, 1e18, &config->sliding_rope_base));
    TRY(read_float(reader, "rope.scale_linear", 0, 1e6, &config->rope_factor)); /* the old name */
    TRY(read_float(reader, "rope.scaling.factor", 0, 1e6, &config->rope_factor));
    if (config->rope_factor == 0) config->rope_factor = 1; /* llama.cpp writes 0 for "not given" */
    if (config->rope_factor < 1e-6F) return refuse(reader, reader->key, "expected at least 1e-6");
    TRY(read_float(reader, "rope.scaling.attn_factor", 1e-6, 1e6, &config->rope_attention_factor));
    size_t original = config->context_length;
    TRY(read_count(reader, "rope.scaling.original_context_length", false, 1, CONTEXT_MAX, &original));
    config->rope_original_context = original;
    TRY(read_scaling_type(reader));
    if (config->rope_scaling == ROPE_SCALING_YARN) TRY(read_yarn(reader));
    if (config->rope_scaling == ROPE_SCALING_LLAMA3) {
        config->llama3_low_factor = 1;
        config->llama3_high_factor = 4;
        TRY(read_float(reader, "rope.scaling.low_freq_factor", 1e-3, 1e6, &config->llama3_low_factor));
        TRY(read_float(reader, "rope.scaling.high_freq_factor", 1e-3, 1e6, &config->llama3_high_factor));
        if (config->llama3_high_factor <= config->llama3_low_factor)
            return refuse(reader, reader->key, "expected more than rope.scaling.low_freq_factor");
    }
    if (reader->family->has_temperature) {
        TRY(read_float(reader, "attention.temperature_scale", 0, 1e3, &config->temperature));
        if (config->temperature != 0 && config->rope_dimension != config->k_dimension)
            return refuse(reader, reader->key, "heads of which a part is rotated are not supported with it");
    }
    if (model_rope_divisors(config, reader->gguf) != NULL) { /* the tensor has the last word */
        if (config->rope_scaling == ROPE_SCALING_NONE) config->rope_scaling = ROPE_SCALING_LLAMA3;
        config->llama3_low_factor = config->llama3_high_factor = 0;
    }
    if (reader->stretched > 0) TRY(stretch(reader));
    config->sliding_is_unscaled = reader->family->windows.are_unscaled && config->rope_scaling != ROPE_SCALING_NONE;
    if (sliding != config->rope_dimension || config->sliding_rope_base != config->rope_base ||
        config->sliding_is_unscaled)
        config->sliding_rope_dimension = sliding;
    return STATUS_OK;
}

/* attention.sliding_window_pattern: a flag per layer, or n: every n-th layer is full.  Absent: all layers slide. */
static enum status read_windows(struct reader *reader, struct layer_config *layers) {
    struct model_config *config = reader->config;
    size_t window = reader->family->windows.tokens, period = reader->family->windows.period;
    const bool needed = reader->family->windows.are_needed;
    TRY(read_count(reader, "attention.sliding_window", needed, needed, CONTEXT_MAX, &window));
    if (window == 0 || (period == 0 && window >= config->context_length)) return STATUS_OK; /* Phi-3's of 128K */
    const char *key = reader_key(reader, "attention.sliding_window_pattern");
    const struct gguf_entry *pattern = gguf_find(reader->gguf, key);
    bool per_layer = pattern != NULL && pattern->type == GGUF_ARRAY;
    if (per_layer && (pattern->element_type == GGUF_STRING || pattern->count != config->layer_count))
        return refuse(reader, key, "expected one flag per layer");
    if (!per_layer) TRY(read_count(reader, "attention.sliding_window_pattern", false, 0, LAYERS_MAX, &period));
    for (size_t i = 0; i < config->layer_count; i++) {
        bool slides = per_layer ? gguf_array_int(pattern, i) != 0 : period == 0 ? true : i % period < period - 1;
        if (!slides || layer_kv_heads(reader, i) == 0) continue;
        layers[i].attention = ATTENTION_SLIDING;
        layers[i].window = window;
    }
    return STATUS_OK;
}

/* The last layer of the same kind among the first stored_count ones. */
static enum status find_source(struct reader *reader, const struct layer_config *layers, size_t layer,
                               size_t stored_count, size_t *source) {
    for (*source = stored_count; *source > 0 && layers[*source - 1].attention != layers[layer].attention;) --*source;
    if (*source == 0)
        return error_set(reader->error, STATUS_MODEL,
                         "%s: %s: layer %zu has no layer of its kind before it whose KV it could attend to",
                         reader->gguf->path, reader->key, layer);
    --*source;
    const size_t heads = layer_kv_heads(reader, layer), own = layers[*source].kv.kv_head_count;
    if (heads == own) return STATUS_OK;
    return error_set(reader->error, STATUS_MODEL,
                     "%s: %s: found %zu KV heads in layer %zu, expected %zu, as in layer %zu, whose KV it attends to",
                     reader->gguf->path, reader_key(reader, "attention.head_count_kv"), heads, layer, own, *source);
}

/* attention.shared_kv_layers: so many layers, the last ones, attend to the KV of earlier ones. */
static enum status read_sources(struct reader *reader, struct layer_config *layers, size_t *sources) {
    const size_t layer_count = reader->config->layer_count;
    size_t shared = 0;
    TRY(read_count(reader, "attention.shared_kv_layers", false, 0, layer_count - 1, &shared));
    for (size_t i = 0; i < layer_count; i++) {
        sources[i] = i;
        reader_key(reader, "attention.shared_kv_layers");
        if (i >= layer_count - shared) TRY(find_source(reader, layers, i, layer_count - shared, &sources[i]));
        layers[i].kv_layer = sources[i];
    }
    return STATUS_OK;
}

/* A layer slides if all do that attend to its KV: find_source pairs those of a kind. */
static enum status fill_windows(struct reader *reader, const struct layer_config *layers, struct arena *arena) {
    struct kv_windows *windows = arena_array(arena, 1, sizeof *windows);
    if (windows == NULL) return error_set(reader->error, STATUS_MEMORY, "no memory for the layers");
    for (size_t i = 0; i < reader->config->layer_count; i++) {
        if (layers[i].attention != ATTENTION_SLIDING) continue;
        windows->slides[layers[i].kv_layer] = true;
        if (layers[i].window > windows->tokens) windows->tokens = layers[i].window;
    }
    reader->config->kv_windows = windows;
    return STATUS_OK;
}

/* Geometry of every layer, and the groups of equal ones. */
static enum status fill_layers(struct reader *reader, struct layer_config *layers, struct arena *arena) {
    struct model_config *config = reader->config;
    const size_t count = config->layer_count;
    struct kv_groups *groups = arena_array(arena, 1, sizeof *groups);
    struct kv_geometry *shapes = arena_array(arena, count, sizeof *shapes);
    size_t *sources = arena_array(arena, count, sizeof *sources);
    if (groups == NULL || shapes == NULL || sources == NULL)
        return error_set(reader->error, STATUS_MEMORY, "no memory for the layers");
    const struct kv_geometry full = {0, config->k_dimension, config->v_dimension};
    bool has_sliding = false;
    size_t states = 0;
    for (size_t i = 0; i < count; i++) has_sliding = has_sliding || layers[i].attention == ATTENTION_SLIDING;
    config->k_dimension = config->v_dimension = 0;
    for (size_t i = 0; i < count; i++) {
        const bool slides = layers[i].attention == ATTENTION_SLIDING;
        shapes[i] = slides ? reader->sliding : full;
        shapes[i].kv_head_count = layer_kv_heads(reader, i);
        if (shapes[i].kv_head_count == 0) {
            layers[i].mixer = reader->family->mixer;
            layers[i].state_first = states++ * config->state.layer_floats;
        }
        layers[i].head_count = config->head_count;
        layers[i].ffn_size = layer_count_of(reader, "feed_forward_length", i, config->ffn_size);
        layers[i].kv = shapes[i];
        const size_t period = reader->family->plain_period;
        const bool is_plain = (period != 0 && i % period == period - 1) ||
                              (reader->family->windows.rotate_alone && has_sliding && !slides);
        layers[i].rope = is_plain                                        ? ROPE_NONE
                         : slides && config->sliding_rope_dimension != 0 ? ROPE_SLIDING
                                                                         : ROPE_FULL;
        layers[i].query_rope = layers[i].rope == ROPE_FULL && config->temperature != 0 ? ROPE_QUERIES : layers[i].rope;
        config->k_dimension = max_size(config->k_dimension, shapes[i].k_dimension);
        config->v_dimension = max_size(config->v_dimension, shapes[i].v_dimension);
    }
    if (!has_sliding) config->sliding_rope_dimension = 0;
    TRY(read_sources(reader, layers, sources));
    if (!kv_groups_init(groups, shapes, sources, count))
        return error_set(reader->error, STATUS_MODEL,
                         "%s: %s: found layers of more than %d shapes of K and V, which loam does not support",
                         reader->gguf->path, reader_key(reader, "attention.head_count_kv"), KV_GROUPS_MAX);
    if (groups->group_count > 1 || groups->stored_count < count) config->kv_groups = groups;
    return has_sliding ? fill_windows(reader, layers, arena) : STATUS_OK;
}

static enum status read_scales(struct reader *reader, struct layer_config *layers) {
    struct model_config *config = reader->config;
    float scale = 0; /* 0 in llama.cpp: not given */
    TRY(read_float(reader, "attention.scale", 0, 1e6, &scale));
    if (scale == 0) scale = reader->family->scales.attention;
    if (scale == 0 && config->layer_count == reader->family->scales.wide_layers)
        scale = (float)(1.0 / sqrt((double)(config->hidden_size / config->head_count)));
    for (size_t i = 0; i < config->layer_count; i++)
        layers[i].scale = scale > 0 ? scale : (float)(1.0 / sqrt((double)layers[i].kv.k_dimension));
    config->attention_scale = layers[0].scale;
    return STATUS_OK;
}

static enum status read_delta(struct reader *reader, struct state_config *state) {
    size_t inner = 0;
    TRY(read_count(reader, "ssm.conv_kernel", true, 2, CONVOLVE_TAPS_MAX, &state->taps));
    TRY(read_count(reader, "ssm.group_count", true, 1, HEADS_MAX, &state->key_heads));
    TRY(read_count(reader, "ssm.state_size", true, 1, DELTA_DIMENSION_MAX, &state->k_dimension));
    TRY(read_count(reader, "ssm.time_step_rank", true, 1, HEADS_MAX, &state->value_heads));
    if (state->value_heads % state->key_heads != 0)
        return error_set(reader->error, STATUS_MODEL, "%s: %s: found %zu, expected a multiple of %zu heads",
                         reader->gguf->path, reader->key, state->value_heads, state->key_heads);
    TRY(read_count(reader, "ssm.inner_size", true, 1, state->value_heads * DELTA_DIMENSION_MAX, &inner));
    if (inner % state->value_heads != 0)
        return error_set(reader->error, STATUS_MODEL, "%s: %s: found %zu, expected a multiple of %zu heads",
                         reader->gguf->path, reader->key, inner, state->value_heads);
    state->v_dimension = inner / state->value_heads;
    state->is_grouped = reader->family->delta_is_grouped;
    state->channels = state->in_width = 2 * state->key_heads * state->k_dimension + inner;
    state->out_width = inner;
    return STATUS_OK;
}

/* What layers without attention keep. */
static enum status read_state(struct reader *reader) {
    struct model_config *config = reader->config;
    struct state_config *state = &config->state;
    for (size_t i = 0; i < config->layer_count; i++) state->layer_count += layer_kv_heads(reader, i) == 0;
    if (state->layer_count == 0) return STATUS_OK;
    if (state->layer_count == config->layer_count)
        return refuse(reader, reader_key(reader, "attention.head_count_kv"),
                      "no layer has KV heads, which loam does not support");
    if (reader->family->mixer == MIXER_DELTA) {
        TRY(read_delta(reader, state));
    } else {
        TRY(read_count(reader, "shortconv.l_cache", true, 2, CONVOLVE_TAPS_MAX, &state->taps));
        state->channels = state->out_width = config->hidden_size;
        state->in_width = 3 * state->channels;
    }
    state->layer_floats =
        (state->taps - 1) * state->channels + state->value_heads * state->k_dimension * state->v_dimension;
    return STATUS_OK;
}

static enum status read_layers(struct reader *reader, struct arena *arena) {
    struct model_config *config = reader->config;
    struct layer_config *layers = arena_array(arena, config->layer_count, sizeof *layers);
    if (layers == NULL) return error_set(reader->error, STATUS_MEMORY, "no memory for the layers");
    config->layers = layers;
    TRY(read_windows(reader, layers));
    TRY(fill_layers(reader, layers, arena));
    return read_scales(reader, layers);
}

static enum status read_name(struct reader *reader, struct arena *arena) {
    struct gguf_string name = {0};
    TRY(gguf_get_string(reader->gguf, "general.name", &name, reader->error));
    if (name.length == 0) {
        const char *slash = strrchr(reader->gguf->path, '/');
        name.text = slash != NULL ? slash + 1 : reader->gguf->path;
        name.length = strlen(name.text);
    }
    char *copy = arena_text(arena, name.text, min_size(name.length, 256));
    if (copy == NULL) return error_set(reader->error, STATUS_MEMORY, "no memory for the model's name");
    for (char *c = copy; *c != '\0'; c++) /* it will be printed */
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    reader->config->name = copy;
    return STATUS_OK;
}

enum status model_config_read(struct model_config *config, const struct gguf *gguf, struct arena *arena,
                              struct error *error) {
    return model_config_read_stretched(config, gguf, arena, 0, error);
}

enum status model_config_read_stretched(struct model_config *config, const struct gguf *gguf, struct arena *arena,
                                        uint64_t tokens, struct error *error) {
    *config = (struct model_config){0};
    struct reader reader = {.gguf = gguf, .config = config, .error = error, .stretched = tokens};
    TRY(read_family(&reader));
    config->family = reader.family->family;
    config->has_gates = reader.family->has_gates;
    config->norms = reader.family->norms.place;
    config->norms_rows = reader.family->norms.of_rows;
    config->activation = reader.family->activation;
    TRY(read_name(&reader, arena));
    TRY(refuse_unsupported(&reader));
    TRY(read_shape(&reader));
    TRY(read_experts(&reader));
    config->score_softcap = reader.family->scales.score_softcap;
    TRY(read_float(&reader, "attn_logit_softcapping", 0, 1e6, &config->score_softcap));
    config->logit_softcap = reader.family->scales.logit_softcap;
    TRY(read_float(&reader, "final_logit_softcapping", 0, 1e6, &config->logit_softcap));
    TRY(read_count(&reader, "embedding_length_per_layer_input", false, 0, HIDDEN_MAX, &config->layer_input_size));
    TRY(read_vocabulary_size(&reader));
    TRY(read_rope(&reader));
    TRY(read_state(&reader));
    return read_layers(&reader, arena);
}

enum status model_config_check_alike(const struct model_config *config, const char *what, struct error *error) {
    const struct kv_groups *groups = config->kv_groups;
    if (groups == NULL) return STATUS_OK;
    if (config->state.layer_count > 0)
        return error_set(error, STATUS_UNSUPPORTED,
                         "%s: %zu of its %zu layers keep a state in place of K and V, which %s does not support",
                         config->name, config->state.layer_count, config->layer_count, what);
    if (groups->group_count == 1)
        return error_set(error, STATUS_UNSUPPORTED,
                         "%s: some of its layers attend to the KV of others, which %s does not support", config->name,
                         what);
    return error_set(error, STATUS_UNSUPPORTED,
                     "%s: its layers have K and V of %zu different shapes, which %s does not support", config->name,
                     groups->group_count, what);
}

bool model_leaves_out(const struct model_config *config, const struct gguf_tensor *tensor) {
    unsigned long long layer;
    char name[32] = {0};
    memcpy(name, tensor->name.text, min_size(tensor->name.length, sizeof name - 1));
    return sscanf(name, "blk.%llu.", &layer) == 1 && layer >= config->layer_count &&
           layer < config->layer_count + config->nextn_layers;
}

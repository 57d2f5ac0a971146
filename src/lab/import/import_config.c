/* Converts config.json to the keys of a GGUF file.  Reads both spellings: rope_theta and rope_scaling of
 * transformers 4, rope_parameters of transformers 5. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "lab/import/import_internal.h"
#include "model/rope_scaling.h"

enum { LAYERS_MAX = 1 << 12, DIMENSION_MAX = 1 << 24, CONTEXT_MAX = 1 << 28 };

static const struct {
    const char *class_name, *model_type, *architecture;
    enum model_family family;
} classes[] = {
    {"LlamaForCausalLM", "llama", "llama", FAMILY_LLAMA}, {"MistralForCausalLM", "mistral", "llama", FAMILY_LLAMA},
    {"LLaMAForCausalLM", "llama", "llama", FAMILY_LLAMA}, {"Qwen2ForCausalLM", "qwen2", "qwen2", FAMILY_QWEN2},
    {"Qwen3ForCausalLM", "qwen3", "qwen3", FAMILY_QWEN3}, {"OPTForCausalLM", "opt", "opt", FAMILY_OPT},
};

struct fields { /* config.json, with what all readers need */
    struct import *import;
    const struct import_source *source;
    const json_t *object;
};

static enum status field_uint(const struct fields *fields, const char *name, bool required, uint64_t max,
                              uint64_t *value) {
    const struct import_field field = {fields->source, fields->object, name, required};
    return import_uint(fields->import, field, 1, max, value);
}

static enum status field_refuse(const struct fields *fields, const char *name, const char *why) {
    return import_refuse(fields->import, fields->source->file, name, "%s", why);
}

/* A flag that must have the value that loam computes. */
static enum status field_must_be(const struct fields *fields, const char *name, bool expected, bool absent) {
    bool value = absent;
    TRY(import_bool(fields->import, fields->source, fields->object, name, &value));
    if (value == expected) return STATUS_OK;
    return field_refuse(fields, name, value ? "true is not supported" : "false is not supported");
}

static enum status field_must_say(const struct fields *fields, const char *name, const char *expected) {
    const char *value = expected;
    TRY(import_text(fields->import, fields->source, fields->object, name, &value));
    if (strcmp(value, expected) == 0) return STATUS_OK;
    return import_refuse(fields->import, fields->source->file, name, "found '%.40s', expected '%s'", value, expected);
}

static enum status read_family(const struct fields *fields) {
    const json_t *names = import_member(fields->object, "architectures");
    const char *class_name = json_string_value(json_array_get(names, 0)), *model_type = NULL;
    TRY(import_text(fields->import, fields->source, fields->object, "model_type", &model_type));
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        bool matches = class_name != NULL   ? strcmp(class_name, classes[i].class_name) == 0
                       : model_type != NULL ? strcmp(model_type, classes[i].model_type) == 0
                                            : false;
        if (!matches) continue;
        fields->import->config.family = classes[i].family;
        fields->import->config.architecture = classes[i].architecture;
        return STATUS_OK;
    }
    return import_refuse(fields->import, fields->source->file, "architectures",
                         "found '%.50s', known are Llama-, Mistral-, Qwen2-, Qwen3- and OPTForCausalLM",
                         class_name != NULL   ? class_name
                         : model_type != NULL ? model_type
                                              : "nothing");
}

static enum status read_sizes(const struct fields *fields) {
    struct import_config *config = &fields->import->config;
    bool opt = config->family == FAMILY_OPT;
    TRY(field_uint(fields, "hidden_size", true, DIMENSION_MAX, &config->hidden));
    TRY(field_uint(fields, "num_hidden_layers", true, LAYERS_MAX, &config->layers));
    TRY(field_uint(fields, "num_attention_heads", true, DIMENSION_MAX, &config->heads));
    TRY(field_uint(fields, opt ? "ffn_dim" : "intermediate_size", true, DIMENSION_MAX, &config->ffn));
    TRY(field_uint(fields, "vocab_size", true, DIMENSION_MAX, &config->vocabulary));
    TRY(field_uint(fields, "max_position_embeddings", true, CONTEXT_MAX, &config->context));
    config->kv_heads = config->heads;
    if (!opt) TRY(field_uint(fields, "num_key_value_heads", false, DIMENSION_MAX, &config->kv_heads));
    if (config->heads % config->kv_heads != 0)
        return import_refuse(fields->import, fields->source->file, "num_key_value_heads",
                             "found %llu, expected a divisor of %llu", (unsigned long long)config->kv_heads,
                             (unsigned long long)config->heads);
    config->head_dimension = config->hidden / config->heads;
    config->explicit_head_dimension = import_member(fields->object, "head_dim") != NULL;
    if (!opt) TRY(field_uint(fields, "head_dim", false, 1 << 14, &config->head_dimension));
    if (!config->explicit_head_dimension && config->hidden % config->heads != 0)
        return field_refuse(fields, "num_attention_heads", "does not divide hidden_size");
    if (config->head_dimension % 2 != 0) return field_refuse(fields, "head_dim", "found an odd number");
    config->tied = opt;
    return import_bool(fields->import, fields->source, fields->object, "tie_word_embeddings", &config->tied);
}

static enum status read_opt(const struct fields *fields) {
    struct import_config *config = &fields->import->config;
    uint64_t width = config->hidden;
    TRY(field_must_be(fields, "do_layer_norm_before", true, true)); /* opt-350m has it false */
    TRY(field_uint(fields, "word_embed_proj_dim", false, DIMENSION_MAX, &width));
    if (width != config->hidden)
        return import_refuse(fields->import, fields->source->file, "word_embed_proj_dim",
                             "found %llu, only hidden_size (%llu) is supported", (unsigned long long)width,
                             (unsigned long long)config->hidden);
    TRY(field_must_say(fields, "activation_function", "relu"));
    TRY(field_must_be(fields, "enable_bias", true, true));
    TRY(field_must_be(fields, "layer_norm_elementwise_affine", true, true));
    TRY(field_must_be(fields, "_remove_final_layer_norm", false, false));
    config->norm_epsilon = 1e-5; /* OPT's configuration has no field for it */
    return STATUS_OK;
}

/* ---- RoPE ---- */

static enum status rope_number(const struct fields *fields, const json_t *rope, const char *name, bool required,
                               double *value) {
    const struct import_field field = {fields->source, rope, name, required};
    return import_number(fields->import, field, 1e-6, 1e18, value);
}

static enum status read_yarn(const struct fields *fields, const json_t *rope) {
    struct import_config *config = &fields->import->config;
    double mscale = 0, mscale_all = 0;
    bool truncates = true;
    config->rope.beta_fast = 32;
    config->rope.beta_slow = 1;
    TRY(rope_number(fields, rope, "beta_fast", false, &config->rope.beta_fast));
    TRY(rope_number(fields, rope, "beta_slow", false, &config->rope.beta_slow));
    TRY(rope_number(fields, rope, "mscale", false, &mscale));
    TRY(rope_number(fields, rope, "mscale_all_dim", false, &mscale_all));
    TRY(import_bool(fields->import, fields->source, rope, "truncate", &truncates));
    if (!truncates) return field_refuse(fields, "truncate", "YaRN with untruncated bounds is not supported");
    /* GGUF has a factor on top of 0.1 ln s + 1.  transformers gives the product, or two scales whose ratio it is. */
    double usual = rope_yarn_magnitude(config->rope.factor, 1), wanted = usual;
    if (mscale != 0 && mscale_all != 0)
        wanted =
            rope_yarn_magnitude(config->rope.factor, mscale) / rope_yarn_magnitude(config->rope.factor, mscale_all);
    TRY(rope_number(fields, rope, "attention_factor", false, &wanted));
    config->rope.attention_factor = wanted / usual;
    uint64_t scaled = (uint64_t)(config->rope.factor * (double)config->rope.original_context + 0.5);
    if (scaled > config->context && scaled <= CONTEXT_MAX) config->context = scaled;
    return STATUS_OK;
}

static enum status read_scaling(const struct fields *fields, const json_t *rope) {
    struct import_config *config = &fields->import->config;
    const char *type = "default";
    TRY(import_text(fields->import, fields->source, rope, "type", &type));
    TRY(import_text(fields->import, fields->source, rope, "rope_type", &type));
    if (strcmp(type, "default") == 0) return STATUS_OK;
    bool linear = strcmp(type, "linear") == 0, yarn = strcmp(type, "yarn") == 0;
    if (!linear && !yarn && strcmp(type, "llama3") != 0)
        return import_refuse(fields->import, fields->source->file, "rope_type",
                             "found '%.40s', known are default, linear, yarn, llama3", type);
    config->rope.scaling = linear ? ROPE_SCALING_LINEAR : yarn ? ROPE_SCALING_YARN : ROPE_SCALING_LLAMA3;
    TRY(rope_number(fields, rope, "factor", true, &config->rope.factor));
    config->rope.original_context = config->context;
    const struct import_field context = {fields->source, rope, "original_max_position_embeddings", false};
    TRY(import_uint(fields->import, context, 1, CONTEXT_MAX, &config->rope.original_context));
    if (yarn) return read_yarn(fields, rope);
    if (linear) return STATUS_OK;
    TRY(rope_number(fields, rope, "low_freq_factor", true, &config->rope.low_factor));
    TRY(rope_number(fields, rope, "high_freq_factor", true, &config->rope.high_factor));
    if (config->rope.high_factor <= config->rope.low_factor)
        return field_refuse(fields, "high_freq_factor", "expected more than low_freq_factor");
    return STATUS_OK;
}

static enum status read_rope(const struct fields *fields) {
    struct import_config *config = &fields->import->config;
    double partial = 1;
    config->rope.base = 10000;
    config->rope.factor = 1;
    config->rope.attention_factor = 1;
    TRY(rope_number(fields, fields->object, "rope_theta", false, &config->rope.base));
    TRY(rope_number(fields, fields->object, "partial_rotary_factor", false, &partial));
    json_t *rope = import_member(fields->object, "rope_parameters");
    const char *name = rope != NULL ? "rope_parameters" : "rope_scaling";
    if (rope == NULL) rope = import_member(fields->object, "rope_scaling");
    if (rope != NULL && !json_is_object(rope)) return field_refuse(fields, name, "expected an object");
    if (rope != NULL) {
        const char *key;
        json_t *value;
        json_object_foreach(rope, key, value) if (json_is_object(value)) return field_refuse(
            fields, name, "differs between layers, which is not supported");
        TRY(rope_number(fields, rope, "rope_theta", false, &config->rope.base));
        TRY(rope_number(fields, rope, "partial_rotary_factor", false, &partial));
        TRY(read_scaling(fields, rope));
    }
    if (partial != 1) return field_refuse(fields, "partial_rotary_factor", "only 1 is supported");
    return STATUS_OK;
}

/* ---- which layers slide ---- */

static enum status read_window(const struct fields *fields) {
    struct import_config *config = &fields->import->config;
    bool qwen = config->family != FAMILY_LLAMA, uses = !qwen;
    uint64_t window = 0, full_layers = qwen ? 28 : 0, sliding = 0;
    TRY(import_bool(fields->import, fields->source, fields->object, "use_sliding_window", &uses));
    const struct import_field size = {fields->source, fields->object, "sliding_window", false},
                              full = {fields->source, fields->object, "max_window_layers", false};
    TRY(import_uint(fields->import, size, 0, CONTEXT_MAX, &window));
    if (!uses || window == 0) return STATUS_OK;
    TRY(import_uint(fields->import, full, 0, LAYERS_MAX, &full_layers));
    bool *slides = arena_array(&fields->import->arena, config->layers, sizeof *slides);
    if (slides == NULL) return error_set(fields->import->error, STATUS_MEMORY, "out of memory");
    const json_t *types = import_member(fields->object, "layer_types");
    if (types != NULL && json_array_size(types) != config->layers)
        return field_refuse(fields, "layer_types", "expected one name per layer");
    for (uint64_t i = 0; i < config->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        slides[i] = type == NULL ? i >= full_layers : strcmp(type, "sliding_attention") == 0;
        if (type != NULL && !slides[i] && strcmp(type, "full_attention") != 0)
            return field_refuse(fields, "layer_types", "expected full_attention or sliding_attention");
        sliding += slides[i];
    }
    if (sliding == 0) return STATUS_OK;
    config->window = window;
    config->slides = slides;
    return STATUS_OK;
}

enum status import_read_config(struct import *import) {
    const struct fields fields = {import, &import->config_source, import->config_source.object};
    if (!json_is_object(fields.object)) return field_refuse(&fields, "content", "expected an object");
    if (import_member(fields.object, "quantization_config") != NULL)
        return field_refuse(&fields, "quantization_config", "quantised weights cannot be imported");
    TRY(read_family(&fields));
    TRY(read_sizes(&fields));
    if (import->config.family == FAMILY_OPT) return read_opt(&fields);
    TRY(field_must_say(&fields, "hidden_act", "silu"));
    TRY(field_must_be(&fields, "mlp_bias", false, false));
    import->config.norm_epsilon = 1e-6;
    const struct import_field epsilon = {fields.source, fields.object, "rms_norm_eps", false};
    TRY(import_number(import, epsilon, 1e-30, 1, &import->config.norm_epsilon));
    TRY(read_rope(&fields));
    return read_window(&fields);
}

/* ---- writing ---- */

static enum status add_uint(struct import *import, const char *suffix, uint64_t value) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", import->config.architecture, suffix);
    return gguf_writer_add_uint(import->writer, key, (uint32_t)value, import->error);
}

static enum status add_float(struct import *import, const char *suffix, double value) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", import->config.architecture, suffix);
    return gguf_writer_add_float(import->writer, key, (float)value, import->error);
}

static enum status add_text(struct import *import, const char *key, const char *text) {
    return gguf_writer_add_string(import->writer, key, text, strlen(text), import->error);
}

static enum status write_rope(struct import *import) {
    const struct import_config *config = &import->config;
    TRY(add_uint(import, "rope.dimension_count", config->head_dimension));
    TRY(add_float(import, "rope.freq_base", config->rope.base));
    char key[96];
    snprintf(key, sizeof key, "%s.rope.scaling.type", config->architecture);
    switch (config->rope.scaling) {
    case ROPE_SCALING_NONE:
    case ROPE_SCALING_LLAMA3: return STATUS_OK; /* llama3 is the tensor rope_freqs.weight */
    case ROPE_SCALING_LINEAR:
        TRY(add_text(import, key, "linear"));
        return add_float(import, "rope.scaling.factor", config->rope.factor);
    case ROPE_SCALING_YARN: break;
    }
    TRY(add_text(import, key, "yarn"));
    TRY(add_float(import, "rope.scaling.factor", config->rope.factor));
    TRY(add_uint(import, "rope.scaling.original_context_length", config->rope.original_context));
    if (config->rope.attention_factor != 1)
        TRY(add_float(import, "rope.scaling.attn_factor", config->rope.attention_factor));
    if (config->rope.beta_fast != 32) TRY(add_float(import, "rope.scaling.yarn_beta_fast", config->rope.beta_fast));
    if (config->rope.beta_slow != 1) TRY(add_float(import, "rope.scaling.yarn_beta_slow", config->rope.beta_slow));
    return STATUS_OK;
}

static enum status write_window(struct import *import) {
    const struct import_config *config = &import->config;
    if (config->window == 0) return STATUS_OK;
    TRY(add_uint(import, "attention.sliding_window", config->window));
    uint64_t sliding = 0;
    for (uint64_t i = 0; i < config->layers; i++) sliding += config->slides[i];
    if (sliding == config->layers) return STATUS_OK; /* what a window alone means */
    char key[96];
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", config->architecture);
    const struct gguf_entry pattern = {.key = {key, strlen(key)},
                                       .type = GGUF_ARRAY,
                                       .element_type = GGUF_BOOL,
                                       .count = config->layers,
                                       .data = (const uint8_t *)config->slides};
    static_assert(sizeof(bool) == 1, "a bool is a byte, as in the file");
    return gguf_writer_copy_entry(import->writer, &pattern, import->error);
}

/* The folder's own name, without a trailing slash. */
static enum status write_name(struct import *import) {
    size_t end = strlen(import->folder);
    while (end > 1 && import->folder[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && import->folder[begin - 1] != '/') begin--;
    return gguf_writer_add_string(import->writer, "general.name", import->folder + begin, end - begin, import->error);
}

enum status import_write_config(struct import *import) {
    const struct import_config *config = &import->config;
    bool opt = config->family == FAMILY_OPT;
    TRY(add_text(import, "general.architecture", config->architecture));
    TRY(add_text(import, "general.type", "model"));
    TRY(write_name(import));
    TRY(gguf_writer_add_uint(import->writer, "general.file_type", import->file_type, import->error));
    TRY(gguf_writer_add_uint(import->writer, "general.quantization_version", 2, import->error));
    TRY(add_uint(import, "block_count", config->layers));
    TRY(add_uint(import, "context_length", config->context));
    TRY(add_uint(import, "embedding_length", config->hidden));
    TRY(add_uint(import, "feed_forward_length", config->ffn));
    TRY(add_uint(import, "vocab_size", config->vocabulary));
    TRY(add_uint(import, "attention.head_count", config->heads));
    TRY(add_uint(import, "attention.head_count_kv", config->kv_heads));
    if (config->explicit_head_dimension) {
        TRY(add_uint(import, "attention.key_length", config->head_dimension));
        TRY(add_uint(import, "attention.value_length", config->head_dimension));
    }
    TRY(add_float(import, opt ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
                  config->norm_epsilon));
    if (!opt) {
        TRY(write_rope(import));
        return write_window(import);
    }
    TRY(add_uint(import, "position_offset", 2));
    TRY(add_text(import, "opt.activation", "relu"));
    return gguf_writer_add_bool(import->writer, "opt.do_layer_norm_before", true, import->error);
}

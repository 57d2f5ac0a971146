/* The tensors of a model folder under llama.cpp's names.
 *
 * Rows of q and k: transformers rotates element j of a head with element j + D/2; files of architecture llama
 * hold the two next to each other (rope_order ROPE_ADJACENT), so row 2j + half of each head is transformers'
 * row half * D/2 + j.  qwen2 and qwen3 keep transformers' order.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "lab/import/import_internal.h"
#include "lab/quantize/quantizers.h"
#include "model/rope_scaling.h"

enum size { /* a dimension that the configuration determines */
            SIZE_NONE,
            SIZE_HIDDEN,
            SIZE_FFN,
            SIZE_Q,
            SIZE_KV,
            SIZE_HEAD,
            SIZE_VOCABULARY,
            SIZE_POSITIONS,
};

enum need { NEEDED, OPTIONAL };

enum rows { ROWS_PLAIN, ROWS_Q, ROWS_K }; /* Q and K: reordered for architecture llama */

struct mapping {
    const char *source, *target;
    enum size rows, columns; /* columns SIZE_NONE: a vector of rows elements */
    enum need need;
    enum rows order;
};

static const struct mapping llama_top[] = {
    {"model.embed_tokens.weight", "token_embd.weight", SIZE_VOCABULARY, SIZE_HIDDEN, NEEDED, ROWS_PLAIN},
    {"model.norm.weight", "output_norm.weight", SIZE_HIDDEN, SIZE_NONE, NEEDED, ROWS_PLAIN},
};

static const struct mapping llama_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight", SIZE_HIDDEN, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"self_attn.q_proj.weight", "attn_q.weight", SIZE_Q, SIZE_HIDDEN, NEEDED, ROWS_Q},
    {"self_attn.k_proj.weight", "attn_k.weight", SIZE_KV, SIZE_HIDDEN, NEEDED, ROWS_K},
    {"self_attn.v_proj.weight", "attn_v.weight", SIZE_KV, SIZE_HIDDEN, NEEDED, ROWS_PLAIN},
    {"self_attn.o_proj.weight", "attn_output.weight", SIZE_HIDDEN, SIZE_Q, NEEDED, ROWS_PLAIN},
    {"self_attn.q_proj.bias", "attn_q.bias", SIZE_Q, SIZE_NONE, OPTIONAL, ROWS_Q},
    {"self_attn.k_proj.bias", "attn_k.bias", SIZE_KV, SIZE_NONE, OPTIONAL, ROWS_K},
    {"self_attn.v_proj.bias", "attn_v.bias", SIZE_KV, SIZE_NONE, OPTIONAL, ROWS_PLAIN},
    {"self_attn.o_proj.bias", "attn_output.bias", SIZE_HIDDEN, SIZE_NONE, OPTIONAL, ROWS_PLAIN},
    {"post_attention_layernorm.weight", "ffn_norm.weight", SIZE_HIDDEN, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"mlp.gate_proj.weight", "ffn_gate.weight", SIZE_FFN, SIZE_HIDDEN, NEEDED, ROWS_PLAIN},
    {"mlp.up_proj.weight", "ffn_up.weight", SIZE_FFN, SIZE_HIDDEN, NEEDED, ROWS_PLAIN},
    {"mlp.down_proj.weight", "ffn_down.weight", SIZE_HIDDEN, SIZE_FFN, NEEDED, ROWS_PLAIN},
};

static const struct mapping qwen3_layer[] = {
    {"self_attn.q_norm.weight", "attn_q_norm.weight", SIZE_HEAD, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", SIZE_HEAD, SIZE_NONE, NEEDED, ROWS_PLAIN},
};

static const struct mapping opt_top[] = {
    {"embed_tokens.weight", "token_embd.weight", SIZE_VOCABULARY, SIZE_HIDDEN, NEEDED, ROWS_PLAIN},
    {"embed_positions.weight", "position_embd.weight", SIZE_POSITIONS, SIZE_HIDDEN, NEEDED, ROWS_PLAIN},
    {"final_layer_norm.weight", "output_norm.weight", SIZE_HIDDEN, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"final_layer_norm.bias", "output_norm.bias", SIZE_HIDDEN, SIZE_NONE, NEEDED, ROWS_PLAIN},
};

static const struct mapping opt_layer[] = {
    {"self_attn_layer_norm.weight", "attn_norm.weight", SIZE_HIDDEN, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"self_attn_layer_norm.bias", "attn_norm.bias", SIZE_HIDDEN, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"self_attn.q_proj.weight", "attn_q.weight", SIZE_Q, SIZE_HIDDEN, NEEDED, ROWS_PLAIN},
    {"self_attn.q_proj.bias", "attn_q.bias", SIZE_Q, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"self_attn.k_proj.weight", "attn_k.weight", SIZE_KV, SIZE_HIDDEN, NEEDED, ROWS_PLAIN},
    {"self_attn.k_proj.bias", "attn_k.bias", SIZE_KV, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"self_attn.v_proj.weight", "attn_v.weight", SIZE_KV, SIZE_HIDDEN, NEEDED, ROWS_PLAIN},
    {"self_attn.v_proj.bias", "attn_v.bias", SIZE_KV, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"self_attn.out_proj.weight", "attn_output.weight", SIZE_HIDDEN, SIZE_Q, NEEDED, ROWS_PLAIN},
    {"self_attn.out_proj.bias", "attn_output.bias", SIZE_HIDDEN, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"final_layer_norm.weight", "ffn_norm.weight", SIZE_HIDDEN, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"final_layer_norm.bias", "ffn_norm.bias", SIZE_HIDDEN, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"fc1.weight", "ffn_up.weight", SIZE_FFN, SIZE_HIDDEN, NEEDED, ROWS_PLAIN},
    {"fc1.bias", "ffn_up.bias", SIZE_FFN, SIZE_NONE, NEEDED, ROWS_PLAIN},
    {"fc2.weight", "ffn_down.weight", SIZE_HIDDEN, SIZE_FFN, NEEDED, ROWS_PLAIN},
    {"fc2.bias", "ffn_down.bias", SIZE_HIDDEN, SIZE_NONE, NEEDED, ROWS_PLAIN},
};

static const struct mapping output_matrix = {"lm_head.weight", "output.weight", SIZE_VOCABULARY,
                                             SIZE_HIDDEN,      NEEDED,          ROWS_PLAIN};

static uint64_t size_of(const struct import_config *config, enum size size) {
    switch (size) {
    case SIZE_NONE: return 1;
    case SIZE_HIDDEN: return config->hidden;
    case SIZE_FFN: return config->ffn;
    case SIZE_Q: return config->heads * config->head_dimension;
    case SIZE_KV: return config->kv_heads * config->head_dimension;
    case SIZE_HEAD: return config->head_dimension;
    case SIZE_VOCABULARY: return config->vocabulary;
    case SIZE_POSITIONS: return config->context + 2;
    }
    return 0;
}

/* ---- finding and declaring ---- */

__attribute__((format(printf, 3, 4))) static enum status refuse(const struct import *import, const char *tensor,
                                                                const char *format, ...) {
    char message[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    const char *folder = path_tail(import->folder, IMPORT_FOLDER_SHOWN);
    return error_set(import->error, STATUS_MODEL, "%s: tensor '%.80s': %s", folder, tensor, message);
}

static enum status check_shape(const struct import *import, const struct mapping *mapping,
                               const struct safetensors_tensor *tensor) {
    uint64_t rows = size_of(&import->config, mapping->rows), columns = size_of(&import->config, mapping->columns);
    bool is_vector = mapping->columns == SIZE_NONE;
    bool matches = tensor->dimension_count == (is_vector ? 1 : 2) && tensor->dimensions[0] == rows &&
                   (is_vector || tensor->dimensions[1] == columns);
    if (matches) return STATUS_OK;
    char found[100] = "", expected[60];
    for (uint32_t i = 0; i < tensor->dimension_count; i++) {
        size_t used = strlen(found);
        snprintf(found + used, sizeof found - used, "%s%llu", i == 0 ? "" : ", ",
                 (unsigned long long)tensor->dimensions[i]);
    }
    if (is_vector)
        snprintf(expected, sizeof expected, "%llu", (unsigned long long)rows);
    else
        snprintf(expected, sizeof expected, "%llu, %llu", (unsigned long long)rows, (unsigned long long)columns);
    return refuse(import, tensor->name, "shape: found [%s], expected [%s]", found, expected);
}

static enum status dtype_of(const struct import *import, const struct safetensors_tensor *tensor,
                            enum tensor_type *type) {
    *type = TENSOR_F32; /* gcc at -O3 does not see that refuse() is never STATUS_OK */
    if (strcmp(tensor->dtype, "F32") == 0)
        *type = TENSOR_F32;
    else if (strcmp(tensor->dtype, "F16") == 0)
        *type = TENSOR_F16;
    else if (strcmp(tensor->dtype, "BF16") == 0)
        *type = TENSOR_BF16;
    else
        return refuse(import, tensor->name, "dtype: found %s, expected F32, F16 or BF16", tensor->dtype);
    return STATUS_OK;
}

/* Vectors become F32.  OPT's position embedding keeps its type. */
static enum tensor_type type_for(const struct import *import, const struct mapping *mapping, enum tensor_type from) {
    if (mapping->columns == SIZE_NONE) return TENSOR_F32;
    if (import->keep_type || mapping->rows == SIZE_POSITIONS) return from;
    uint64_t columns = size_of(&import->config, mapping->columns);
    return columns % tensor_type_info(import->type)->block_elements == 0 ? import->type : TENSOR_F16;
}

typedef enum status visit(struct import *import, const struct mapping *mapping, const struct safetensors_tensor *tensor,
                          const char *target);

static enum status visit_one(struct import *import, const struct mapping *mapping, const char *prefix,
                             const char *target, visit *action) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, mapping->source);
    const struct safetensors_tensor *tensor = safetensors_find(&import->weights, name);
    if (tensor == NULL && mapping->need == OPTIONAL) return STATUS_OK;
    if (tensor == NULL) return refuse(import, name, "not found, %s needs it", import->config.architecture);
    import->used[tensor - import->weights.tensors] = true;
    return action(import, mapping, tensor, target);
}

static enum status visit_table(struct import *import, const struct mapping *table, size_t count,
                               const char *source_prefix, const char *target_prefix, visit *action) {
    for (size_t i = 0; i < count; i++) {
        char target[GGUF_NAME_BYTES_MAX + 1];
        snprintf(target, sizeof target, "%s%s", target_prefix, table[i].target);
        TRY(visit_one(import, &table[i], source_prefix, target, action));
    }
    return STATUS_OK;
}

#define VISIT(table, source, target) \
    TRY(visit_table(import, table, sizeof table / sizeof table[0], source, target, action))

/* Every tensor of the family, in the file's order. */
static enum status visit_all(struct import *import, visit *action) {
    enum model_family family = import->config.family;
    const char *base = "";
    if (family == FAMILY_OPT)
        base = safetensors_find(&import->weights, "model.decoder.embed_tokens.weight") != NULL ? "model.decoder."
                                                                                               : "decoder.";
    if (family == FAMILY_OPT)
        VISIT(opt_top, base, "");
    else
        VISIT(llama_top, base, "");
    for (uint64_t layer = 0; layer < import->config.layers; layer++) {
        char source[64], target[32];
        snprintf(target, sizeof target, "blk.%llu.", (unsigned long long)layer);
        snprintf(source, sizeof source, "%slayers.%llu.", family == FAMILY_OPT ? base : "model.",
                 (unsigned long long)layer);
        if (family == FAMILY_OPT)
            VISIT(opt_layer, source, target);
        else
            VISIT(llama_layer, source, target);
        if (family == FAMILY_QWEN3) VISIT(qwen3_layer, source, target);
    }
    if (!import->config.tied) TRY(visit_one(import, &output_matrix, "", output_matrix.target, action));
    return STATUS_OK;
}

static enum status declare(struct import *import, const struct mapping *mapping,
                           const struct safetensors_tensor *tensor, const char *target) {
    enum tensor_type from;
    TRY(check_shape(import, mapping, tensor));
    TRY(dtype_of(import, tensor, &from));
    uint64_t rows = size_of(&import->config, mapping->rows), columns = size_of(&import->config, mapping->columns);
    bool is_vector = mapping->columns == SIZE_NONE;
    const uint64_t dimensions[] = {is_vector ? rows : columns, rows};
    return gguf_writer_declare_tensor(import->writer, target, type_for(import, mapping, from), is_vector ? 1 : 2,
                                      dimensions, import->error);
}

/* Tensors that a folder may have and loam does not need: tables that the code computes, a tied copy of the embedding.
 */
static bool may_be_unused(const struct import *import, const char *name) {
    static const char inv_freq[] = ".rotary_emb.inv_freq";
    size_t length = strlen(name);
    if (length > sizeof inv_freq - 1 && strcmp(name + length - (sizeof inv_freq - 1), inv_freq) == 0) return true;
    return import->config.tied && strcmp(name, "lm_head.weight") == 0;
}

enum status import_declare_tensors(struct import *import) {
    import->used = arena_array(&import->arena, import->weights.tensor_count, sizeof *import->used);
    if (import->used == NULL) return error_set(import->error, STATUS_MEMORY, "out of memory");
    TRY(visit_all(import, declare));
    for (uint64_t i = 0; i < import->weights.tensor_count; i++) {
        const char *name = import->weights.tensors[i].name;
        if (!import->used[i] && !may_be_unused(import, name))
            return refuse(import, name, "%s has no use for it", import->config.architecture);
    }
    if (import->config.rope.scaling != ROPE_SCALING_LLAMA3) return STATUS_OK;
    const uint64_t pairs = import->config.head_dimension / 2;
    return gguf_writer_declare_tensor(import->writer, "rope_freqs.weight", TENSOR_F32, 1, &pairs, import->error);
}

/* ---- writing ---- */

static bool is_reordered(const struct import *import, const struct mapping *mapping) {
    return mapping->order != ROWS_PLAIN && import->config.family == FAMILY_LLAMA;
}

/* The row of the folder's tensor that becomes row `row` of the file's tensor. */
static uint64_t source_row(const struct import *import, const struct mapping *mapping, uint64_t row) {
    if (!is_reordered(import, mapping)) return row;
    uint64_t dimension = import->config.head_dimension, head = row / dimension, within = row % dimension;
    return head * dimension + within % 2 * (dimension / 2) + within / 2;
}

/* Converts the rows of a tensor from the folder's type to the file's, one at a time. */
struct row_writer {
    struct import *import;
    const struct safetensors_tensor *tensor;
    enum tensor_type from, to;
    uint64_t columns, from_bytes, to_bytes; /* of a row */
    void *source;                           /* owned: one row, aligned */
    float *values;                          /* owned: [columns] */
    void *target;                           /* owned: one row */
};

static enum status row_writer_init(struct row_writer *w) {
    bool fits =
        tensor_row_bytes(w->from, w->columns, &w->from_bytes) && tensor_row_bytes(w->to, w->columns, &w->to_bytes);
    ASSERT(fits);
    w->source = malloc(w->from_bytes);
    w->values = reallocarray(NULL, w->columns, sizeof(float));
    w->target = malloc(w->to_bytes);
    if (w->source == NULL || w->values == NULL || w->target == NULL)
        return error_set(w->import->error, STATUS_MEMORY, "out of memory for a row of %s", w->tensor->name);
    return STATUS_OK;
}

static void row_writer_deinit(struct row_writer *w) {
    free(w->source);
    free(w->values);
    free(w->target);
}

static enum status write_row(const struct row_writer *w, const uint8_t *data) {
    struct import *import = w->import;
    if (w->from == w->to) return gguf_writer_write(import->writer, data, w->from_bytes, import->error);
    memcpy(w->source, data, w->from_bytes); /* a safetensors file promises no alignment */
    import->convert.dequantize[w->from](w->source, w->values, w->columns);
    const float limit = w->to == TENSOR_F16 ? 65504.0f : INFINITY;
    for (uint64_t i = 0; i < w->columns; i++)
        if (!(fabsf(w->values[i]) <= limit) || isinf(w->values[i]))
            return refuse(import, w->tensor->name, "value: found %g, which %s cannot hold", (double)w->values[i],
                          tensor_type_info(w->to)->name);
    row_quantizer_of(w->to)(w->values, w->target, w->columns);
    return gguf_writer_write(import->writer, w->target, w->to_bytes, import->error);
}

static enum status write_rows(struct import *import, const struct mapping *mapping,
                              const struct safetensors_tensor *tensor, enum tensor_type from, enum tensor_type to) {
    const uint64_t rows = size_of(&import->config, mapping->rows);
    struct row_writer writer = {.import = import,
                                .tensor = tensor,
                                .from = from,
                                .to = to,
                                .columns = size_of(&import->config, mapping->columns)};
    enum status status = row_writer_init(&writer);
    for (uint64_t row = 0; row < rows && status == STATUS_OK; row++)
        status = write_row(&writer, tensor->data + source_row(import, mapping, row) * writer.from_bytes);
    row_writer_deinit(&writer);
    import->report->output_bytes += rows * writer.to_bytes;
    return status;
}

static enum status write_tensor(struct import *import, const struct mapping *mapping,
                                const struct safetensors_tensor *tensor, const char *target) {
    enum tensor_type from;
    TRY(dtype_of(import, tensor, &from));
    enum tensor_type to = type_for(import, mapping, from);
    if (from == to && !is_reordered(import, mapping)) {
        TRY(gguf_writer_write(import->writer, tensor->data, tensor->size_bytes, import->error));
        import->report->output_bytes += tensor->size_bytes;
    } else {
        TRY(write_rows(import, mapping, tensor, from, to));
    }
    uint64_t index = import->report->tensor_count++;
    if (import->options->observer != NULL)
        import->options->observer(import->options->observer_context, target, index, import->weights.tensor_count);
    return STATUS_OK;
}

static enum status write_rope_divisors(struct import *import) {
    const struct import_config *config = &import->config;
    double divisors[ROPE_PAIRS_MAX];
    float values[ROPE_PAIRS_MAX];
    uint64_t pairs = config->head_dimension / 2;
    if (pairs > ROPE_PAIRS_MAX)
        return import_refuse(import, "config.json", "head_dim", "found %llu, expected at most %d",
                             (unsigned long long)config->head_dimension, 2 * ROPE_PAIRS_MAX);
    rope_llama3_divisors(config->rope.base, config->head_dimension, config->rope.factor, config->rope.low_factor,
                         config->rope.high_factor, (double)config->rope.original_context, divisors);
    for (uint64_t i = 0; i < pairs; i++) values[i] = (float)divisors[i];
    import->report->output_bytes += pairs * sizeof values[0];
    import->report->tensor_count++;
    return gguf_writer_write(import->writer, values, pairs * sizeof values[0], import->error);
}

enum status import_write_tensors(struct import *import) {
    TRY(visit_all(import, write_tensor));
    if (import->config.rope.scaling != ROPE_SCALING_LLAMA3) return STATUS_OK;
    return write_rope_divisors(import);
}

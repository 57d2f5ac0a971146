/* loam inspect: the contents of a model file, and what running it would take. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cache/kv_cache.h"
#include "cli/bundled_model.h"
#include "cli/command.h"
#include "cli/json_file.h"
#include "cli/model_type.h"
#include "cli/output.h"
#include "cli/utf8.h"
#include "device/device_list.h"
#include "model/model.h"
#include "model/model_size.h"
#include "plan/plan.h"
#include "server/json_text.h"

enum { VALUES_SHOWN = 4, TYPE_NUMBER_MAX = 64 };

static const char *const type_names[GGUF_TYPE_COUNT] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                        "bool", "string", "array", "u64", "i64", "f64"};

static const uint64_t context_sizes[] = {8192, 32768, 131072, 1048576};
enum { CONTEXT_SIZE_COUNT = sizeof context_sizes / sizeof context_sizes[0] };

struct inspection {
    struct gguf gguf;
    struct arena arena;
    struct model_config config;
    bool has_config;     /* false: vocabulary only, or an architecture that loam does not run */
    struct error reason; /* why not */
    uint64_t parameter_count, weight_bytes;
};

/* ---- reading ---- */

static enum status inspection_open(struct inspection *inspection, const char *path, struct error *error) {
    *inspection = (struct inspection){0};
    arena_init(&inspection->arena);
    TRY(gguf_open(&inspection->gguf, path, error));
    const struct gguf *gguf = &inspection->gguf;
    inspection->parameter_count = model_parameter_count(gguf);
    inspection->weight_bytes = model_tensor_bytes(gguf);
    if (gguf->tensor_count == 0) {
        error_set(&inspection->reason, STATUS_MODEL, "no tensors: a vocabulary only");
        return STATUS_OK;
    }
    enum status status = model_config_read(&inspection->config, gguf, &inspection->arena, &inspection->reason);
    inspection->has_config = status == STATUS_OK;
    return STATUS_OK;
}

static void inspection_close(struct inspection *inspection) {
    arena_deinit(&inspection->arena);
    gguf_close(&inspection->gguf);
}

/* One value of an entry, as text. */
static void value_text(const struct gguf_entry *entry, uint64_t index, char *buffer, size_t buffer_bytes) {
    enum gguf_type type = entry->type == GGUF_ARRAY ? entry->element_type : entry->type;
    if (type == GGUF_STRING) {
        const struct gguf_string *string = &entry->strings[index];
        char escaped[160];
        size_t length_max = entry->type == GGUF_ARRAY ? 24 : 72;
        utf8_escape(string->text, string->length, escaped, length_max);
        snprintf(buffer, buffer_bytes, "\"%s\"", escaped);
    } else if (type == GGUF_FLOAT32 || type == GGUF_FLOAT64) {
        snprintf(buffer, buffer_bytes, "%.7g", gguf_array_float(entry, index));
    } else if (type == GGUF_BOOL) {
        snprintf(buffer, buffer_bytes, "%s", gguf_array_int(entry, index) != 0 ? "true" : "false");
    } else if (type == GGUF_UINT64) {
        snprintf(buffer, buffer_bytes, "%" PRIu64, (uint64_t)gguf_array_int(entry, index));
    } else {
        snprintf(buffer, buffer_bytes, "%" PRId64, gguf_array_int(entry, index));
    }
}

static struct kv_cache_config cache_config(const struct model_config *config, enum kv_type type) {
    return model_cache_config(config, type, type);
}

/* What a card holds of the model. */
struct fitting {
    size_t layers;         /* whose weights it has */
    uint64_t weight_bytes; /* that these take */
    uint64_t f16, q8;      /* tokens whose K and V lie beside them, at most those that the model was trained for */
};

static struct fitting fitting_of(const struct inspection *inspection, const struct device_summary *card) {
    const struct model_config *config = &inspection->config;
    const struct weight_sizes sizes = weight_sizes_on_card(&inspection->gguf, config);
    struct fitting fitting = {.layers = weight_sizes_device_layers(&sizes, card->memory_free_bytes)};
    if (fitting.layers == 0) return fitting;
    fitting.weight_bytes = weight_sizes_device_bytes(&sizes, fitting.layers);
    const uint64_t beside = card->memory_free_bytes - fitting.weight_bytes;
    fitting.f16 = plan_device_context(config, KV_F16, beside);
    if (model_cache_q8_possible(config)) fitting.q8 = plan_device_context(config, KV_Q8, beside);
    return fitting;
}

static bool is_card(const struct device_summary *device) {
    return strcmp(device->name, "cpu") != 0 && device->reason.status == STATUS_OK;
}

/* ---- for people ---- */

static void print_metadata(const struct gguf *gguf) {
    output_text("\nMetadata, %" PRIu64 " keys\n", gguf->entry_count);
    for (uint64_t i = 0; i < gguf->entry_count; i++) {
        const struct gguf_entry *entry = &gguf->entries[i];
        char key[128], kind[40], text[200];
        utf8_escape(entry->key.text, entry->key.length, key, sizeof key);
        if (entry->type == GGUF_ARRAY)
            snprintf(kind, sizeof kind, "%s[%" PRIu64 "]", type_names[entry->element_type], entry->count);
        else
            snprintf(kind, sizeof kind, "%s", type_names[entry->type]);
        output_text("  %-44s %-16s", key, kind);
        for (uint64_t v = 0; v < entry->count && v < VALUES_SHOWN; v++) {
            value_text(entry, v, text, sizeof text);
            output_text("%s%s", v > 0 ? ", " : " ", text);
        }
        output_text("%s\n", entry->count > VALUES_SHOWN ? ", ..." : "");
    }
}

static void print_tensors(const struct inspection *inspection) {
    const struct gguf *gguf = &inspection->gguf;
    output_text("\nTensors, %" PRIu64 "\n", gguf->tensor_count);
    uint64_t counts[TYPE_NUMBER_MAX] = {0}, bytes[TYPE_NUMBER_MAX] = {0};
    char size[32];
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        const struct gguf_tensor *tensor = &gguf->tensors[i];
        char name[128], shape[100] = "";
        utf8_escape(tensor->name.text, tensor->name.length, name, sizeof name);
        for (uint32_t d = 0; d < tensor->dimension_count; d++) {
            size_t used = strlen(shape);
            snprintf(shape + used, sizeof shape - used, "%s%" PRIu64, d ? " x " : "", tensor->dimensions[d]);
        }
        output_text("  %-44s %-8s %-24s %12s\n", name, tensor_type_info(tensor->type)->name, shape,
                    bytes_text(tensor->size_bytes, size, sizeof size));
        if ((size_t)tensor->type < TYPE_NUMBER_MAX) {
            counts[tensor->type]++;
            bytes[tensor->type] += tensor->size_bytes;
        }
    }
    output_text("\nTotals\n");
    for (uint32_t t = 0; t < TYPE_NUMBER_MAX; t++)
        if (counts[t] > 0)
            output_text("  %-8s %6" PRIu64 " tensors  %12s\n", tensor_type_info((enum tensor_type)t)->name, counts[t],
                        bytes_text(bytes[t], size, sizeof size));
    output_text("  all      %6" PRIu64 " tensors  %12s  %.2f M parameters, %.2f bits each\n", gguf->tensor_count,
                bytes_text(inspection->weight_bytes, size, sizeof size), (double)inspection->parameter_count * 1e-6,
                inspection->parameter_count > 0
                    ? (double)inspection->weight_bytes * 8 / (double)inspection->parameter_count
                    : 0);
}

static void print_cards(const struct inspection *inspection) {
    struct device_list list;
    device_list_read(&list);
    for (size_t i = 0; i < list.count; i++) {
        const struct device_summary *card = &list.devices[i];
        char left[32], all[32], weights[32];
        if (!is_card(card)) continue;
        const struct fitting fitting = fitting_of(inspection, card);
        output_text("  %s, %s free of %s: weights of %zu of %zu layers", card->name,
                    bytes_text(card->memory_free_bytes, left, sizeof left),
                    bytes_text(card->memory_bytes, all, sizeof all), fitting.layers, inspection->config.layer_count);
        if (fitting.layers > 0)
            output_text(", %s, and beside them %" PRIu64 " tokens of context in f16",
                        bytes_text(fitting.weight_bytes, weights, sizeof weights), fitting.f16);
        if (fitting.q8 > 0) output_text(", %" PRIu64 " in q8_0", fitting.q8);
        output_text("\n");
    }
}

static void print_model(const struct inspection *inspection) {
    const struct model_config *config = &inspection->config;
    output_text("\nModel\n");
    if (!inspection->has_config) {
        output_text("  %s\n", inspection->reason.message);
        return;
    }
    output_text("  %zu layers, hidden %zu, feed-forward %zu, vocabulary %zu\n", config->layer_count,
                config->hidden_size, config->ffn_size, config->vocabulary_size);
    if (config->nextn_layers > 0)
        output_text("  %zu more for tokens beyond the next one, which loam does not use\n", config->nextn_layers);
    if (config->experts.count > 0)
        output_text("  a mixture of %zu experts of feed-forward %zu, %zu of them for a token\n", config->experts.count,
                    config->experts.size, config->experts.used);
    output_text("  %zu query heads and %s%zu KV heads of %zu (keys) and %zu (values)\n", config->head_count,
                config->kv_groups != NULL ? "up to " : "", config->kv_head_count, config->k_dimension,
                config->v_dimension);
    if (config->state.layer_count > 0) {
        char bytes[32];
        output_text("  %zu layers keep a state in place of K and V: %s a sequence\n", config->state.layer_count,
                    bytes_text(model_state_floats(config) * sizeof(float), bytes, sizeof bytes));
    }
    output_text("  trained for %" PRIu64 " tokens of context\n", config->context_length);
    struct kv_cache_config f16 = cache_config(config, KV_F16), q8 = cache_config(config, KV_Q8);
    uint64_t f16_bytes = kv_cache_bytes_per_token(&f16);
    bool has_q8 = model_cache_q8_possible(config);
    uint64_t q8_bytes = has_q8 ? kv_cache_bytes_per_token(&q8) : 0;
    output_text("\nMemory\n  KV cache per token: %" PRIu64 " bytes in f16", f16_bytes);
    if (has_q8) output_text(", %" PRIu64 " in q8_0", q8_bytes);
    if (config->kv_windows != NULL)
        output_text("\n  of layers with windows of %" PRIu64 " tokens for as long as a row to come may see it",
                    config->kv_windows->tokens);
    output_text("\n  %12s  %12s  %12s  %12s  %12s\n", "context", "KV f16", "KV q8_0", "total f16", "total q8_0");
    for (size_t i = 0; i < CONTEXT_SIZE_COUNT; i++) {
        uint64_t n = context_sizes[i];
        uint64_t fixed = inspection->weight_bytes + model_work_bytes(config, 512);
        char a[32], b[32] = "-", c[32], d[32] = "-";
        bytes_text(plan_sequence_bytes(config, KV_F16, KV_F16, n), a, sizeof a);
        bytes_text(plan_sequence_bytes(config, KV_F16, KV_F16, n) + fixed, c, sizeof c);
        if (has_q8) bytes_text(plan_sequence_bytes(config, KV_Q8, KV_Q8, n), b, sizeof b);
        if (has_q8) bytes_text(plan_sequence_bytes(config, KV_Q8, KV_Q8, n) + fixed, d, sizeof d);
        output_text("  %12" PRIu64 "  %12s  %12s  %12s  %12s%s\n", n, a, b, c, d,
                    n > config->context_length ? "  (beyond training)" : "");
    }
    output_text("  total: weights, KV and the buffers of a block of 512 tokens\n");
    print_cards(inspection);
}

static enum status print_tables(const struct inspection *inspection, struct error *error) {
    const struct gguf *gguf = &inspection->gguf;
    char path[256], size[32];
    output_text("%s: GGUF v%u, %s%s, alignment %" PRIu64 "\n",
                utf8_escape(gguf->path, strlen(gguf->path), path, sizeof path), gguf->version,
                bytes_text(gguf->size_bytes, size, sizeof size), gguf->file_count > 1 ? " in several files" : "",
                gguf->alignment);
    print_metadata(gguf);
    print_tensors(inspection);
    print_model(inspection);
    return output_flush(error);
}

/* ---- for scripts ---- */

static json_t *value_json(const struct gguf_entry *entry, uint64_t index) {
    enum gguf_type type = entry->type == GGUF_ARRAY ? entry->element_type : entry->type;
    if (type == GGUF_STRING) return json_text_without_zeros(entry->strings[index].text, entry->strings[index].length);
    if (type == GGUF_BOOL) return json_boolean(gguf_array_int(entry, index) != 0);
    if (type == GGUF_FLOAT32 || type == GGUF_FLOAT64) {
        json_t *number = json_real(gguf_array_float(entry, index));
        return number != NULL ? number : json_null(); /* NaN or infinity */
    }
    return json_integer(gguf_array_int(entry, index));
}

/* Long arrays (vocabularies) show only type and length. */
static json_t *metadata_json(const struct gguf *gguf) {
    json_t *metadata = json_object();
    for (uint64_t i = 0; i < gguf->entry_count; i++) {
        const struct gguf_entry *entry = &gguf->entries[i];
        json_t *key = json_text_without_zeros(entry->key.text, entry->key.length);
        json_t *value;
        if (entry->type != GGUF_ARRAY) {
            value = value_json(entry, 0);
        } else if (entry->count <= 64) {
            value = json_array();
            for (uint64_t v = 0; v < entry->count; v++) json_array_append_new(value, value_json(entry, v));
        } else {
            value =
                json_pack("{s:s, s:I}", "array_of", type_names[entry->element_type], "count", (json_int_t)entry->count);
        }
        (void)json_object_setn_new(metadata, json_string_value(key), json_string_length(key), value);
        json_decref(key);
    }
    return metadata;
}

static json_t *tensors_json(const struct gguf *gguf) {
    json_t *tensors = json_array();
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        const struct gguf_tensor *tensor = &gguf->tensors[i];
        json_t *shape = json_array();
        for (uint32_t d = 0; d < tensor->dimension_count; d++)
            json_array_append_new(shape, json_integer((json_int_t)tensor->dimensions[d]));
        json_array_append_new(tensors, JSON({"name", json_text_without_zeros(tensor->name.text, tensor->name.length)},
                                            {"type", json_string(tensor_type_info(tensor->type)->name)},
                                            {"shape", shape}, {"bytes", json_uint(tensor->size_bytes)}));
    }
    return tensors;
}

static json_t *cards_json(const struct inspection *inspection) {
    json_t *cards = json_array();
    struct device_list list;
    device_list_read(&list);
    for (size_t i = 0; i < list.count; i++) {
        const struct device_summary *card = &list.devices[i];
        if (!is_card(card)) continue;
        const struct fitting fitting = fitting_of(inspection, card);
        json_array_append_new(
            cards, JSON({"name", json_string(card->name)}, {"memory_bytes", json_uint(card->memory_bytes)},
                        {"memory_free_bytes", json_uint(card->memory_free_bytes)},
                        {"layers", json_uint(fitting.layers)}, {"weight_bytes", json_uint(fitting.weight_bytes)},
                        {"context_f16", json_uint(fitting.f16)}, {"context_q8_0", json_uint(fitting.q8)}));
    }
    return cards;
}

static json_t *model_json(const struct inspection *inspection) {
    const struct model_config *config = &inspection->config;
    json_t *model = JSON({"layers", json_uint(config->layer_count)}, {"hidden_size", json_uint(config->hidden_size)},
                         {"ffn_size", json_uint(config->ffn_size)});
    if (config->experts.count > 0) {
        JSON_PUT(model, {"experts", json_uint(config->experts.count)},
                 {"experts_used", json_uint(config->experts.used)},
                 {"expert_ffn_size", json_uint(config->experts.size)});
    }
    JSON_PUT(model, {"heads", json_uint(config->head_count)}, {"kv_heads", json_uint(config->kv_head_count)});
    if (config->state.layer_count > 0) {
        JSON_PUT(model, {"state_layers", json_uint(config->state.layer_count)},
                 {"state_bytes", json_uint(model_state_floats(config) * sizeof(float))});
    }
    JSON_PUT(model, {"k_dimension", json_uint(config->k_dimension)}, {"v_dimension", json_uint(config->v_dimension)},
             {"vocabulary_size", json_uint(config->vocabulary_size)},
             {"context_length", json_uint(config->context_length)});
    struct kv_cache_config f16 = cache_config(config, KV_F16), q8 = cache_config(config, KV_Q8);
    uint64_t f16_bytes = kv_cache_bytes_per_token(&f16);
    bool has_q8 = model_cache_q8_possible(config);
    uint64_t q8_bytes = has_q8 ? kv_cache_bytes_per_token(&q8) : 0;
    json_t *needs = json_array();
    json_t *per_token = JSON({"f16", json_uint(f16_bytes)});
    if (has_q8) json_put_uint(per_token, "q8_0", q8_bytes);
    json_put(model, "kv_bytes_per_token", per_token);
    if (config->kv_windows != NULL) json_put_uint(model, "window_tokens", config->kv_windows->tokens);
    uint64_t fixed = inspection->weight_bytes + model_work_bytes(config, 512);
    for (size_t i = 0; i < CONTEXT_SIZE_COUNT; i++) {
        json_t *need = JSON({"context", json_uint(context_sizes[i])});
        const uint64_t f16_all = plan_sequence_bytes(config, KV_F16, KV_F16, context_sizes[i]),
                       q8_all = has_q8 ? plan_sequence_bytes(config, KV_Q8, KV_Q8, context_sizes[i]) : 0;
        JSON_PUT(need, {"kv_bytes_f16", json_uint(f16_all)}, {"total_bytes_f16", json_uint(f16_all + fixed)});
        if (has_q8) json_put_uint(need, "kv_bytes_q8_0", q8_all);
        if (has_q8) json_put_uint(need, "total_bytes_q8_0", q8_all + fixed);
        json_array_append_new(needs, need);
    }
    JSON_PUT(model, {"needs", needs}, {"cards", cards_json(inspection)});
    return model;
}

static enum status print_json(const struct inspection *inspection, struct error *error) {
    const struct gguf *gguf = &inspection->gguf;
    json_t *root =
        JSON({"file", json_text(gguf->path, strlen(gguf->path))}, {"gguf_version", json_uint(gguf->version)},
             {"file_bytes", json_uint(gguf->size_bytes)}, {"files", json_uint(gguf->file_count)},
             {"alignment", json_uint(gguf->alignment)}, {"parameters", json_uint(inspection->parameter_count)},
             {"weight_bytes", json_uint(inspection->weight_bytes)},
             {"model", inspection->has_config ? model_json(inspection) : json_null()});
    if (!inspection->has_config)
        json_put(root, "model_reason", json_text(inspection->reason.message, strlen(inspection->reason.message)));
    JSON_PUT(root, {"metadata", metadata_json(gguf)}, {"tensors", tensors_json(gguf)});
    enum status status = json_print(root, JSON_INDENT(1), error);
    json_decref(root);
    return status;
}

enum status inspect_command(const struct options *options, struct error *error) {
    const char *path;
    if (options->positional_count > 0)
        TRY(model_named(options->positionals[0], &path, error));
    else
        TRY(model_path(options, &path, error));
    struct inspection inspection;
    enum status status = inspection_open(&inspection, path, error);
    if (status == STATUS_OK)
        status = option_flag(options, OPTION_JSON) ? print_json(&inspection, error) : print_tables(&inspection, error);
    inspection_close(&inspection);
    return status;
}

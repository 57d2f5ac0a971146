#include "cli/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json_file.h"
#include "cli/model_size.h"
#include "cli/output.h"

enum kv_type kv_type_of_choice(uint64_t choice) { return choice == 0 ? KV_F16 : KV_Q8; }

const char *kv_type_name(enum kv_type type) { return type == KV_F16 ? "f16" : "q8_0"; }

/* A method of the plan as a text of its own. */
static const char *method_text(const struct plan *plan, enum axis axis, char *buffer, size_t buffer_bytes) {
    return axis_method_text(plan->methods[axis], buffer, buffer_bytes);
}

enum status plan_read_axes(struct plan *plan, const char *preset, const char *set, const char *keep,
                           struct error *error) {
    struct axes axes = {
        .k_type = plan->k_type, .v_type = plan->v_type, .on_disk = plan->disk.directory != NULL};
    TRY(axes_read(&axes, preset, set, keep, error));
    plan->preset = axes.preset;
    memcpy(plan->methods, axes.methods, sizeof plan->methods);
    plan->k_type = axes.k_type;
    plan->v_type = axes.v_type;
    plan->q4_pages = axes.q4_pages;
    plan->mixes_pages = axes.mixes_pages;
    plan->resident_layers = axes.resident_layers;
    plan->select = axes.select;
    return STATUS_OK;
}

enum status plan_read_budgets(struct plan *plan, const struct options *options, struct error *error) {
    if (option_given(options, OPTION_KV_DISK))
        TRY(kv_disk_parse(&plan->disk, option_text(options, OPTION_KV_DISK), error));
    static const enum option_id budgets[] = {OPTION_KV_DEVICE, OPTION_KV_HOST};
    for (size_t i = 0; i < 2; i++) {
        if (!option_given(options, budgets[i])) continue;
        plan->has_budget = true;
        if (__builtin_add_overflow(plan->budget_bytes, option_count(options, budgets[i]),
                                   &plan->budget_bytes))
            plan->budget_bytes = UINT64_MAX;
    }
    return STATUS_OK;
}

enum status plan_read(struct plan *plan, const struct options *options, struct error *error) {
    *plan = (struct plan){0};
    plan->k_type = kv_type_of_choice(option_count(options, OPTION_CACHE_K));
    plan->v_type = kv_type_of_choice(option_count(options, OPTION_CACHE_V));
    TRY(plan_read_budgets(plan, options, error));
    return plan_read_axes(plan, option_text(options, OPTION_PRESET), option_text(options, OPTION_SET),
                          option_text(options, OPTION_KEEP), error);
}

/* The cache of one token, metadata included. */
static enum status cache_config(const struct plan *plan, const struct model_config *config,
                                struct kv_cache_config *cache, struct error *error) {
    const struct select_shape shape = {.layer_count = config->layer_count,
                                       .head_count = config->head_count,
                                       .kv_head_count = config->kv_head_count,
                                       .k_dimension = config->k_dimension};
    *cache = model_cache_config(config, plan->k_type, plan->v_type);
    cache->metadata_layer_first = plan->select.dense_layers;
    return select_options_metadata_bytes(&plan->select, &shape, &cache->metadata_bytes, error);
}

enum status plan_context(const struct plan *plan, const struct options *options,
                         const struct model_config *config, size_t sequence_count, uint64_t *context_size,
                         struct error *error) {
    struct kv_cache_config cache;
    TRY(cache_config(plan, config, &cache, error));
    uint64_t wanted = option_count(options, OPTION_CONTEXT);
    *context_size = wanted != 0 ? wanted : config->context_length;
    if (!plan->has_budget || plan->disk.directory != NULL) return STATUS_OK;
    /* The cache hands out whole chunks. */
    uint64_t chunk_bytes = kv_cache_bytes_per_token(&cache) * KV_CHUNK_TOKENS * sequence_count;
    uint64_t fitting = plan->budget_bytes / chunk_bytes * KV_CHUNK_TOKENS;
    if (*context_size <= fitting) return STATUS_OK;
    char needed[32], budget[32];
    uint64_t chunks = *context_size / KV_CHUNK_TOKENS + (*context_size % KV_CHUNK_TOKENS != 0);
    bytes_text(wanted != 0 ? chunks * chunk_bytes : chunk_bytes, needed, sizeof needed);
    bytes_text(plan->budget_bytes, budget, sizeof budget);
    if (fitting == 0 || wanted != 0)
        return error_set(error, STATUS_MEMORY,
                         "the KV of %llu tokens needs %s, the budget is %s; try %s%llu or a larger --kv-host",
                         (unsigned long long)(wanted != 0 ? wanted : KV_CHUNK_TOKENS), needed, budget,
                         plan->k_type == KV_F16 ? "-ctk q8_0 -ctv q8_0, -c " : "-c ",
                         (unsigned long long)(fitting > 0 ? fitting : KV_CHUNK_TOKENS));
    *context_size = fitting;
    return STATUS_OK;
}

/* What new allocations can get without swapping, as the kernel estimates it; UINT64_MAX: it does not say. */
static uint64_t available_bytes(void) {
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL) return UINT64_MAX;
    char line[128];
    unsigned long long kib;
    uint64_t bytes = UINT64_MAX;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) bytes = kib * 1024;
    fclose(file);
    return bytes;
}

void plan_deinit(struct plan *plan) {
    kv_disk_deinit(&plan->disk);
    *plan = (struct plan){0};
}

enum status plan_tiers(const struct plan *plan, const struct model *model, const char *name,
                       struct engine_options *engine_options, struct error *error) {
    struct kv_cache_config cache;
    uint64_t least, all;
    if (plan->disk.directory == NULL) return STATUS_OK;
    engine_options->disk_directory = plan->disk.directory;
    engine_options->disk_bytes = plan->disk.limit_bytes;
    engine_options->document_name = name;
    engine_options->q4_pages = plan->q4_pages;
    engine_options->mixes_pages = plan->mixes_pages;
    engine_options->resident_layers = plan->resident_layers;
    engine_options->looks_ahead = strncmp(plan->methods[AXIS_SPECULATE], "next-layer", 10) == 0;
    engine_options->host_bytes = plan->budget_bytes;
    if (plan->has_budget) return STATUS_OK;
    TRY(cache_config(plan, &model->config, &cache, error));
    TRY(engine_host_bytes_least(model, engine_options, &least, error));
    if (__builtin_mul_overflow(kv_cache_bytes_per_token(&cache), engine_options->context_size, &all) ||
        __builtin_mul_overflow(all, engine_options->sequence_capacity, &all) ||
        __builtin_add_overflow(all, least, &all))
        all = UINT64_MAX;
    uint64_t half = available_bytes() / 2, wanted = all < half ? all : half;
    engine_options->host_bytes = wanted > least ? wanted : least;
    return STATUS_OK;
}

enum status plan_check_memory(const struct plan *plan, const struct model_config *config,
                              uint64_t token_count, struct error *error) {
    struct kv_cache_config cache;
    if (plan->disk.directory != NULL) return STATUS_OK; /* the engine says what it needs */
    TRY(cache_config(plan, config, &cache, error));
    uint64_t per_token = kv_cache_bytes_per_token(&cache), bytes, available = available_bytes();
    if (__builtin_mul_overflow(per_token, token_count, &bytes)) bytes = UINT64_MAX;
    if (bytes <= available) return STATUS_OK;
    char needed[32], free_text[32];
    return error_set(
        error, STATUS_MEMORY, "the KV of %llu tokens needs %s, the system has %s; at most %llu fit%s",
        (unsigned long long)token_count, bytes_text(bytes, needed, sizeof needed),
        bytes_text(available, free_text, sizeof free_text), (unsigned long long)(available / per_token),
        plan->k_type == KV_F16 ? " (-ctk q8_0 -ctv q8_0: nearly twice that)" : "");
}

const char *plan_text(const struct plan *plan, char *buffer, size_t buffer_bytes) {
    const struct preset *preset = NULL;
    char keep[32], usual[32], method[32];
    struct select_keep usual_keep;
    struct error unused;
    if (preset_find(&preset, plan->preset, &unused) != STATUS_OK) return plan->preset;
    size_t used = (size_t)snprintf(buffer, buffer_bytes, "%s", plan->preset);
    method_text(plan, AXIS_SELECT, method, sizeof method);
    if (strcmp(method, preset->methods[AXIS_SELECT]) != 0)
        used += (size_t)snprintf(buffer + used, buffer_bytes - used, " select=%s", method);
    if (select_keep_parse(&usual_keep, preset->keep, &unused) != STATUS_OK) return buffer;
    select_keep_text(plan->select.keep, keep, sizeof keep);
    if (strcmp(keep, select_keep_text(usual_keep, usual, sizeof usual)) != 0)
        snprintf(buffer + used, buffer_bytes - used, " keep %s", keep);
    return buffer;
}

json_t *plan_json(const struct plan *plan) {
    json_t *object = json_object();
    char text[32];
    for (enum axis axis = 0; axis < AXIS_COUNT; axis++)
        if (axis != AXIS_CODEC)
            json_add(object, axis_table[axis].name, json_string(method_text(plan, axis, text, sizeof text)));
    json_add(object, "codec_k", json_string(kv_type_name(plan->k_type)));
    json_add(object, "codec_v", json_string(kv_type_name(plan->v_type)));
    if (plan->q4_pages) json_add(object, "codec_disk", json_string(plan->mixes_pages ? "dynamic" : "q4"));
    json_add(object, "keep", json_string(select_keep_text(plan->select.keep, text, sizeof text)));
    return object;
}

json_t *tree_counts_json(const struct tree_counts *counts) {
    if (counts->searches == 0) return NULL;
    json_t *object = json_object(), *levels = json_array();
    uint64_t evaluated = 0;
    for (enum tree_level level = 0; level < TREE_LEVEL_COUNT; level++) {
        evaluated += counts->evaluated[level];
        json_t *row = json_object();
        json_add_uint(row, "node_tokens", tree_tokens(level));
        json_add_uint(row, "nodes", counts->nodes[level]);
        json_add_uint(row, "evaluated", counts->evaluated[level]);
        json_add_uint(row, "opened", counts->opened[level]);
        json_add_uint(row, "taken_whole", counts->whole[level]);
        json_array_append_new(levels, row);
    }
    json_add_uint(object, "searches", counts->searches);
    json_add_uint(object, "evaluated", evaluated);
    json_add_uint(object, "lower_bounds", counts->lower);
    json_add_uint(object, "tokens", counts->tokens); /* evaluations by token, and by chunk */
    json_add_uint(object, "leaves", counts->leaves);
    json_add(object, "levels", levels);
    return object;
}

json_t *certificates_json(const struct certificates *certificates) {
    if (certificates->count == 0) return NULL;
    json_t *object = json_object();
    json_add_number(object, "mean", certificates->sum / (double)certificates->count);
    json_add_number(object, "least", certificates->least);
    json_add_uint(object, "count", certificates->count);
    return object;
}

#include "cli/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json_file.h"
#include "cli/model_size.h"
#include "cli/output.h"

/* The row of preset full in the table of axes; the codec is the one axis with a choice today. */
static const struct {
    const char *name, *methods;
} axes[] = {
    {"select", "all"},  {"reuse", "none"},   {"speculate", "none"}, {"place", "even"},
    {"move", "direct"}, {"codec", "f16|q8"}, {"rebuild", "none"},   {"schedule", "row"},
};
enum { AXIS_COUNT = sizeof axes / sizeof axes[0] };

enum kv_type kv_type_of_choice(uint64_t choice) { return choice == 0 ? KV_F16 : KV_Q8; }

const char *kv_type_name(enum kv_type type) { return type == KV_F16 ? "f16" : "q8_0"; }

static bool method_exists(const char *methods, const char *name, size_t length) {
    for (const char *m = methods; *m != '\0';) {
        size_t n = strcspn(m, "|");
        if (n == length && strncmp(m, name, n) == 0) return true;
        m += n + (m[n] == '|');
    }
    return false;
}

static enum status refuse_axis(const char *text, size_t length, struct error *error) {
    char names[160] = "";
    for (size_t i = 0; i < AXIS_COUNT; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", axes[i].name);
    }
    return error_set(error, STATUS_USAGE, "--set: no axis '%.*s'; the axes are %s", (int)length, text, names);
}

/* "AXIS=METHOD,..." */
static enum status read_set(struct plan *plan, const char *text, struct error *error) {
    for (const char *c = text; *c != '\0';) {
        size_t length = strcspn(c, ","), axis_length = strcspn(c, "=,");
        if (length > 40) length = 40;
        if (c[axis_length] != '=')
            return error_set(error, STATUS_USAGE, "--set: found '%.*s', expected AXIS=METHOD", (int)length,
                             c);
        size_t a = 0;
        while (a < AXIS_COUNT &&
               !(strlen(axes[a].name) == axis_length && strncmp(axes[a].name, c, axis_length) == 0))
            a++;
        if (a == AXIS_COUNT) return refuse_axis(c, axis_length < 40 ? axis_length : 40, error);
        const char *method = c + axis_length + 1;
        size_t method_length = length - axis_length - 1;
        if (!method_exists(axes[a].methods, method, method_length))
            return error_set(error, STATUS_USAGE, "--set %s: no method '%.*s' in this build, only %s",
                             axes[a].name, (int)method_length, method, axes[a].methods);
        if (strcmp(axes[a].name, "codec") == 0) plan->k_type = plan->v_type = *method == 'q' ? KV_Q8 : KV_F16;
        c += length + (c[length] == ',');
    }
    return STATUS_OK;
}

static enum status read_keep(const char *text, struct error *error) {
    if (strcmp(text, "100%") == 0 || strcmp(text, "1") == 0 || strcmp(text, "1.0") == 0) return STATUS_OK;
    return error_set(error, STATUS_USAGE,
                     "--keep %.40s: preset full keeps 100%%; this build has no other preset", text);
}

enum status plan_read(struct plan *plan, const struct options *options, struct error *error) {
    const char *preset = option_text(options, OPTION_PRESET);
    return plan_read_preset(plan, options, preset != NULL ? preset : "full", error);
}

enum status plan_read_preset(struct plan *plan, const struct options *options, const char *preset,
                             struct error *error) {
    *plan = (struct plan){.preset = "full"};
    if (strcmp(preset, "full") != 0)
        return error_set(error, STATUS_USAGE, "--preset %.40s: this build has only: full", preset);
    plan->k_type = kv_type_of_choice(option_count(options, OPTION_CACHE_K));
    plan->v_type = kv_type_of_choice(option_count(options, OPTION_CACHE_V));
    if (option_text(options, OPTION_SET) != NULL)
        TRY(read_set(plan, option_text(options, OPTION_SET), error));
    if (option_text(options, OPTION_KEEP) != NULL) TRY(read_keep(option_text(options, OPTION_KEEP), error));
    if (option_given(options, OPTION_KV_DISK))
        return error_set(
            error, STATUS_USAGE,
            "--kv-disk: preset full keeps the context in memory; this build has no other preset");
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

enum status plan_context(const struct plan *plan, const struct options *options,
                         const struct model_config *config, size_t sequence_count, uint64_t *context_size,
                         struct error *error) {
    struct kv_cache_config cache = model_cache_config(config, plan->k_type, plan->v_type);
    uint64_t wanted = option_count(options, OPTION_CONTEXT);
    *context_size = wanted != 0 ? wanted : config->context_length;
    if (!plan->has_budget) return STATUS_OK;
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

enum status plan_check_memory(const struct plan *plan, const struct model_config *config,
                              uint64_t token_count, struct error *error) {
    struct kv_cache_config cache = model_cache_config(config, plan->k_type, plan->v_type);
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

json_t *plan_json(const struct plan *plan) {
    json_t *object = json_object();
    for (size_t i = 0; i < AXIS_COUNT; i++)
        if (strcmp(axes[i].name, "codec") != 0) json_add(object, axes[i].name, json_string(axes[i].methods));
    json_add(object, "codec_k", json_string(kv_type_name(plan->k_type)));
    json_add(object, "codec_v", json_string(kv_type_name(plan->v_type)));
    return object;
}

#include "cli/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "cli/kv_disk.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "measure/auto.h"
#include "server/json_text.h"

enum kv_type kv_type_of_choice(uint64_t choice) { return choice == 0 ? KV_F16 : KV_Q8; }

const char *kv_type_name(enum kv_type type) { return type == KV_F16 ? "f16" : "q8_0"; }

enum status plan_read_disk(struct plan *plan, const struct options *options, struct error *error) {
    struct kv_disk disk;
    TRY(kv_disk_parse(&disk, option_text(options, OPTION_KV_DISK), error));
    enum status status = plan_set_disk(plan, disk.directory, strlen(disk.directory), disk.limit_bytes, error);
    kv_disk_deinit(&disk);
    return status;
}

enum status plan_read_budgets(struct plan *plan, const struct options *options, struct error *error) {
    if (option_given(options, OPTION_KV_DISK)) TRY(plan_read_disk(plan, options, error));
    static const enum option_id budgets[] = {OPTION_KV_DEVICE, OPTION_KV_HOST};
    for (size_t i = 0; i < 2; i++) {
        if (!option_given(options, budgets[i])) continue;
        plan->has_budget = true;
        if (budgets[i] == OPTION_KV_DEVICE) plan->device_budget_bytes = option_count(options, budgets[i]);
        if (__builtin_add_overflow(plan->budget_bytes, option_count(options, budgets[i]), &plan->budget_bytes))
            plan->budget_bytes = UINT64_MAX;
    }
    if (option_given(options, OPTION_KV_DEVICE) && option_count(options, OPTION_KV_DEVICE) == 0 &&
        !option_given(options, OPTION_KV_HOST))
        return error_set(error, STATUS_USAGE,
                         "--kv-device 0: expected a size above 0, or --kv-host SIZE beside it, where all K and V then "
                         "lie");
    return STATUS_OK;
}

size_t plan_read_batch_size(const struct options *options) {
    return min_size(option_count(options, OPTION_BATCH), option_count(options, OPTION_UBATCH));
}

void plan_read_sizes(struct plan *plan, const struct options *options) {
    plan->batch_size = plan_read_batch_size(options);
    plan->segment_size = option_count(options, OPTION_SEGMENT);
    plan->suffix = (enum plan_suffix)option_count(options, OPTION_SUFFIX);
}

enum status plan_read(struct plan *plan, const struct options *options, struct error *error) {
    *plan = (struct plan){.sequence_capacity = 1};
    plan->k_type = kv_type_of_choice(option_count(options, OPTION_CACHE_K));
    plan->v_type = kv_type_of_choice(option_count(options, OPTION_CACHE_V));
    TRY(plan_read_budgets(plan, options, error));
    return plan_read_axes(plan, options, error);
}

/* --set, --loss and --kld as one text for plan_set_axes; "": none of them. */
static enum status read_settings(char *settings, size_t settings_bytes, const char *set, const struct options *options,
                                 struct error *error) {
    const char *parts[] = {set, option_text(options, OPTION_LOSS), option_text(options, OPTION_KLD)};
    static const char *const names[] = {"", "loss=", "kld="};
    size_t used = 0;
    settings[0] = '\0';
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i] == NULL) continue;
        const size_t length = strlen(names[i]) + strlen(parts[i]) + 2;
        if (length > settings_bytes - used)
            return error_set(error, STATUS_USAGE, "--set, --loss, --kld: found %zu characters, expected fewer than %zu",
                             used + length, settings_bytes);
        used +=
            (size_t)snprintf(settings + used, settings_bytes - used, "%s%s%s", used > 0 ? "," : "", names[i], parts[i]);
    }
    return STATUS_OK;
}

enum status plan_read_auto(struct plan *plan, const struct options *options, struct error *error) {
    char settings[128];
    TRY(read_settings(settings, sizeof settings, NULL, options, error));
    return plan_set_axes(plan, "auto", settings[0] != '\0' ? settings : NULL, NULL, error);
}

enum status plan_take_auto(struct plan *plan, const struct options *options, struct session *session, uint64_t depth,
                           size_t *sequences, struct error *error) {
    struct auto_choice choice;
    struct progress_parts shown = {.quiet = session->quiet};
    const struct auto_request request = {
        .machine = {.measure = {.thread_count = session->thread_count,
                                .mask = session->mask,
                                .progress = progress_part,
                                .context = &shown}},
        .depth = depth,
        .is_default = !option_given(options, OPTION_PRESET),
        .thread_count = option_count(options, OPTION_THREADS),
        .sequences = sequences != NULL ? *sequences : 1,
        .keeps_weights = device_memory_free(session->device) != UINT64_MAX, /* it holds them all */
        .weights_host_bytes =
            option_given(options, OPTION_WEIGHTS_HOST) ? option_count(options, OPTION_WEIGHTS_HOST) : 0};
    const enum status status = auto_choose(plan, session->model, &request, &choice, error);
    progress_parts_end(&shown);
    TRY(status);
    if (choice.note[0] != '\0' && !session->quiet) fprintf(stderr, "loam: note: %s\n", choice.note);
    if (sequences != NULL && choice.sequences > 0) *sequences = choice.sequences;
    return session_take_choice(session, &choice, error);
}

enum status plan_read_preset(struct plan *plan, const struct options *options, const char *label, bool is_compared,
                             struct error *error) {
    char parts[160], set[1024] = "";
    if (strlen(label) >= sizeof parts) return error_set(error, STATUS_USAGE, "--preset %.40s...: too long", label);
    memcpy(parts, label, strlen(label) + 1);
    char *rest = parts, *name = strsep(&rest, ":");
    const char *keep = NULL;
    if (!is_compared || strcmp(name, "full") != 0) {
        keep = option_text(options, OPTION_KEEP);
        TRY(read_settings(set, sizeof set - sizeof parts, option_text(options, OPTION_SET), options, error));
    }
    for (char *part; (part = strsep(&rest, ":")) != NULL;) {
        const size_t used = strlen(set);
        if (strchr(part, '=') == NULL)
            keep = part;
        else
            snprintf(set + used, sizeof set - used, "%s%s", used > 0 ? "," : "", part);
    }
    TRY(plan_set_axes(plan, name, set[0] != '\0' ? set : NULL, keep, error));
    if (option_flag(options, OPTION_RECEIPT)) plan->select.receipt = true;
    return STATUS_OK;
}

enum status plan_read_axes(struct plan *plan, const struct options *options, struct error *error) {
    const bool changes = option_given(options, OPTION_SET) || option_text(options, OPTION_KEEP) != NULL;
    const char *preset = option_text(options, OPTION_PRESET);
    if (!option_given(options, OPTION_PRESET) && changes) preset = "full"; /* that is what they change */
    return plan_read_preset(plan, options, preset, false, error);
}

json_t *plan_json(const struct plan *plan) {
    json_t *object = json_object();
    char text[32];
    for (enum axis axis = 0; axis < AXIS_COUNT; axis++)
        if (axis != AXIS_CODEC)
            json_put(object, axis_table[axis].name, json_string(plan_method(plan, axis, text, sizeof text)));
    JSON_PUT(object, {"codec_k", json_string(kv_type_name(plan->k_type))},
             {"codec_v", json_string(kv_type_name(plan->v_type))});
    if (plan->quantized_pages) json_put(object, "codec_disk", json_string(plan->mixes_pages ? "dynamic" : "q4"));
    if (plan->fixes_fractions) json_put_uint(object, "quantized_of_16", plan->quantized_of_16);
    if (plan->select.loss > 0) json_put(object, "loss", json_real(plan->select.loss));
    json_put(object, "keep", json_string(select_keep_text(plan->select.keep, text, sizeof text)));
    return object;
}

json_t *tree_counts_json(const struct tree_counts *counts) {
    if (counts->searches == 0) return NULL;
    json_t *levels = json_array();
    uint64_t evaluated = 0;
    for (enum tree_level level = 0; level < TREE_LEVEL_COUNT; level++) {
        evaluated += counts->evaluated[level];
        json_array_append_new(levels, JSON({"node_tokens", json_uint(tree_tokens(level))},
                                           {"nodes", json_uint(counts->nodes[level])},
                                           {"evaluated", json_uint(counts->evaluated[level])},
                                           {"opened", json_uint(counts->opened[level])},
                                           {"taken_whole", json_uint(counts->whole[level])}));
    }
    json_t *object = JSON({"searches", json_uint(counts->searches)}, {"evaluated", json_uint(evaluated)},
                          {"lower_bounds", json_uint(counts->lower)});
    json_put_uint(object, "tokens", counts->tokens); /* evaluations by token, and by chunk */
    JSON_PUT(object, {"leaves", json_uint(counts->leaves)}, {"levels", levels});
    return object;
}

json_t *reuse_json(const struct reuse_counts *counts, uint64_t row_bytes) {
    const uint64_t lookups = counts->hits + counts->misses;
    json_t *object =
        JSON({"hit_ratio", lookups > 0 ? json_real((double)counts->hits / (double)lookups) : json_null()},
             {"hits", json_uint(counts->hits)}, {"misses", json_uint(counts->misses)},
             {"age_mean", json_number(counts->hits > 0 ? (double)counts->age_sum / (double)counts->hits : 0)},
             {"age_max", json_uint(counts->age_max)}, {"bytes_kept", json_uint(counts->rows * row_bytes)});
    const bool is_known = counts->estimated > 0; /* with --receipt */
    JSON_PUT(object,
             {"left_out_mean", is_known ? json_real(counts->left_out / (double)counts->estimated) : json_null()},
             {"left_out_worst", is_known ? json_real(counts->worst.left_out) : json_null()},
             {"left_out_worst_error", is_known ? json_real(counts->worst.error) : json_null()});
    return object;
}

json_t *receipt_json(const struct mass_receipt *receipt) {
    const struct mass_estimate mean = mass_receipt_mean(receipt);
    return JSON({"mean", json_number(mean.left_out)}, {"mean_error", json_number(mean.error)},
                {"worst_step", json_number(receipt->step_worst)}, {"worst_head", json_number(receipt->worst.left_out)},
                {"worst_head_error", json_number(receipt->worst.error)}, {"count", json_uint(receipt->count)},
                {"seconds", json_number((double)receipt->time_ns * 1e-9)});
}

const char *receipt_text(const struct select_statistics *statistics, char *buffer, size_t buffer_bytes) {
    const struct mass_receipt *receipt = &statistics->receipt;
    const struct mass_bounds *bounds = &statistics->mass_bound;
    const struct mass_estimate mean = mass_receipt_mean(receipt);
    if (receipt->count == 0) {
        snprintf(buffer, buffer_bytes, "no attention was left out");
        return buffer;
    }
    const struct reuse_counts *reuse = &statistics->reuse;
    int used =
        snprintf(buffer, buffer_bytes,
                 "left out %.2f ± %.2f%% of the attention, by a sample; worst step %.2f%%, worst head %.1f%%",
                 100 * mean.left_out, 100 * mean.error, 100 * receipt->step_worst, 100 * receipt->worst.left_out);
    if (reuse->estimated > 0 && used > 0 && (size_t)used < buffer_bytes)
        used += snprintf(buffer + used, buffer_bytes - (size_t)used, "; while reusing %.2f%%, worst head %.1f%%",
                         100 * reuse->left_out / (double)reuse->estimated, 100 * reuse->worst.left_out);
    if (bounds->count > 0 && used > 0 && (size_t)used < buffer_bytes)
        snprintf(buffer + used, buffer_bytes - (size_t)used, "; certainly caught %.2f%%",
                 100 * bounds->sum / (double)bounds->count);
    return buffer;
}

json_t *mass_bounds_json(const struct mass_bounds *bounds) {
    if (bounds->count == 0) return NULL;
    return JSON({"mean", json_number(bounds->sum / (double)bounds->count)}, {"min", json_number(bounds->min)},
                {"count", json_uint(bounds->count)});
}

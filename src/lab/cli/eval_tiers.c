#include "lab/cli/eval_tiers.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/size.h"
#include "cli/interrupt.h"
#include "lab/cli/eval.h"
#include "lab/replay/copy.h"
#include "model/model_size.h"
#include "platform/clock.h"
#include "server/json_text.h"

enum { BLOCK_ROWS = 256 }; /* of the questions, which are read after what was copied */

enum status eval_budget_parse(struct eval_budget *budget, const char *text, struct error *error) {
    char first[32];
    const char *slash = strchr(text, '/');
    size_t length = slash != NULL ? (size_t)(slash - text) : 0;
    *budget = (struct eval_budget){0};
    if (slash == NULL && size_parse(text, &budget->bytes) && budget->bytes > 0) return STATUS_OK;
    if (slash != NULL && length < sizeof first) {
        memcpy(first, text, length);
        first[length] = '\0';
        if (size_parse(first, &budget->numerator) && size_parse(slash + 1, &budget->divisor) && budget->numerator > 0 &&
            budget->divisor > 0 && budget->numerator <= budget->divisor && budget->divisor <= 1 << 20)
            return STATUS_OK;
    }
    return error_set(error, STATUS_USAGE, "--kv-host: found '%.40s', expected bytes or a fraction such as 1/8", text);
}

enum status eval_tiers_read(struct eval_tiers *tiers, const struct evaluation *evaluation, struct error *error) {
    const char *disk = option_text(evaluation->options, OPTION_KV_DISK),
               *host = option_text(evaluation->options, OPTION_KV_HOST);
    if ((disk == NULL) != (host == NULL))
        return error_set(error, STATUS_USAGE, "eval: --kv-host and --kv-disk belong together");
    tiers->used = disk != NULL;
    if (!tiers->used) return STATUS_OK;
    TRY(kv_disk_parse(&tiers->disk, disk, error));
    return eval_budget_parse(&tiers->budget, host, error);
}

static enum status budget_of(const struct evaluation *evaluation, const struct plan *plan, uint64_t *bytes,
                             struct error *error) {
    const struct model *model = evaluation->session.model;
    const struct eval_budget *budget = &evaluation->tiers.budget;
    *bytes = budget->bytes;
    if (budget->divisor == 0) return STATUS_OK;
    struct kv_cache_config cache = model_cache_config(&model->config, plan->k_type, plan->v_type);
    uint64_t all;
    if (!checked_multiply(kv_cache_bytes_per_token(&cache), plan->context_size, &all) ||
        !checked_multiply(all, budget->numerator, &all))
        return error_set(error, STATUS_MEMORY, "--kv-host: a fraction of more KV than fits any memory");
    return plan_host_bytes_around(plan, &model->config, all / budget->divisor, bytes, error);
}

static enum status open_preset(struct evaluation *evaluation, size_t preset, struct error *error) {
    struct eval_tiers *tiers = &evaluation->tiers;
    struct plan plan = evaluation->plans[preset];
    plan.context_size = tiers->context_size;
    plan.sequence_capacity = 1;
    plan.batch_size = plan.segment_size = BLOCK_ROWS;
    plan.document_name = "eval";
    plan.disk_directory = tiers->scratch.path;
    plan.disk_bytes = tiers->disk_bytes;
    TRY(budget_of(evaluation, &plan, &plan.host_bytes, error));
    tiers->budget_bytes[preset] = plan.host_bytes;
    enum status status = engine_create(&tiers->engines[preset], evaluation->session.model, &plan, NULL, error);
    if (status != STATUS_OK && error != NULL) error_prefix(error, evaluation->labels[preset]);
    return status;
}

enum status eval_tiers_open(struct evaluation *evaluation, uint64_t context_size, struct error *error) {
    struct eval_tiers *tiers = &evaluation->tiers;
    if (tiers->engines != NULL && tiers->context_size == context_size) return STATUS_OK;
    eval_tiers_close(evaluation);
    if (tiers->scratch.path == NULL) { /* once: the rest of the limit is measured then */
        tiers->disk_bytes = tiers->disk.limit_bytes;
        TRY(kv_scratch_open(&tiers->scratch, tiers->disk.directory, &tiers->disk_bytes, error));
    }
    tiers->context_size = context_size;
    tiers->engines = calloc(evaluation->preset_count, sizeof *tiers->engines);
    tiers->sequences = calloc(evaluation->preset_count, sizeof *tiers->sequences);
    tiers->budget_bytes = calloc(evaluation->preset_count, sizeof *tiers->budget_bytes);
    if (tiers->engines == NULL || tiers->sequences == NULL || tiers->budget_bytes == NULL)
        return error_set(error, STATUS_MEMORY, "out of memory");
    for (size_t i = 0; i < evaluation->preset_count; i++) TRY(open_preset(evaluation, i, error));
    return STATUS_OK;
}

enum status eval_tiers_fill(struct evaluation *evaluation, size_t preset, uint64_t token_count, struct error *error) {
    struct eval_tiers *tiers = &evaluation->tiers;
    sequence_destroy(tiers->sequences[preset]);
    tiers->sequences[preset] = NULL;
    TRY(sequence_create(&tiers->sequences[preset], tiers->engines[preset], error));
    return copy_kv(evaluation->session.model, tiers->engines[preset], tiers->sequences[preset], evaluation->sequence,
                   token_count, error);
}

static void add_work(struct eval_tier_work *work, const struct kv_tier_statistics *before,
                     const struct kv_tier_statistics *after, size_t step_count) {
    work->tokens += step_count;
    work->resident_heads = after->resident_heads;
    work->read_bytes += after->read_bytes - before->read_bytes;
    work->hits += after->hits - before->hits;
    work->misses += after->misses - before->misses;
    work->prefetched += after->prefetched - before->prefetched;
    work->prefetched_used += after->prefetch_hits - before->prefetch_hits;
}

enum status eval_tiers_decode(struct evaluation *evaluation, size_t preset, const struct eval_tier_steps *steps,
                              struct eval_tier_work *work, struct error *error) {
    TRY(eval_tiers_fill(evaluation, preset, steps->prefix_tokens, error));
    struct engine *engine = evaluation->tiers.engines[preset];
    struct kv_tier_statistics before = {0}, after;
    const size_t count = steps->count, uncounted = count / 4;
    double seconds = 0;
    for (size_t i = 0; i < count; i++) {
        const float *logits;
        if (interrupt_requested()) return error_set(error, STATUS_INTERRUPTED, "interrupted");
        if (i == uncounted) before = engine_tier_statistics(engine);
        double began = clock_seconds();
        TRY(engine_step(engine, &evaluation->tiers.sequences[preset], &steps->tokens[i], 1, &logits, error));
        if (i >= uncounted) seconds += clock_seconds() - began;
        TRY(steps->each(steps->context, i, logits, error));
    }
    after = engine_tier_statistics(engine);
    add_work(work, &before, &after, count - uncounted);
    work->seconds += seconds;
    return STATUS_OK;
}

void eval_tiers_close(struct evaluation *evaluation) {
    struct eval_tiers *tiers = &evaluation->tiers;
    for (size_t i = 0; i < evaluation->preset_count; i++) {
        if (tiers->sequences != NULL) sequence_destroy(tiers->sequences[i]);
        if (tiers->engines != NULL) engine_destroy(tiers->engines[i]);
    }
    free(tiers->engines);
    free(tiers->sequences);
    free(tiers->budget_bytes);
    tiers->engines = NULL;
    tiers->sequences = NULL;
    tiers->budget_bytes = NULL;
}

void eval_tiers_deinit(struct evaluation *evaluation) {
    eval_tiers_close(evaluation);
    kv_scratch_close(&evaluation->tiers.scratch);
    kv_disk_deinit(&evaluation->tiers.disk);
}

json_t *eval_tiers_json(const struct evaluation *evaluation, size_t preset) {
    const struct eval_tiers *tiers = &evaluation->tiers;
    const struct kv_tier_statistics statistics = engine_tier_statistics(tiers->engines[preset]);
    json_t *object = json_object();
    json_put_uint(object, "context_tokens", tiers->context_size);
    json_put_uint(object, "budget_bytes", tiers->budget_bytes[preset]);
    json_put_uint(object, "host_bytes", statistics.host_bytes);
    json_put_uint(object, "read_bytes", statistics.read_bytes);
    json_put_uint(object, "write_bytes", statistics.write_bytes);
    json_put_uint(object, "hits", statistics.hits);
    json_put_uint(object, "misses", statistics.misses);
    json_put_uint(object, "resident_layers", statistics.resident_layers);
    json_put_uint(object, "resident_heads", statistics.resident_heads);
    return object;
}

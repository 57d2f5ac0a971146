#include "measure/probe.h"

#include <stdio.h>
#include <unistd.h>

#include "platform/clock.h"

enum { SEED = 1 };

enum status probe_open_model(struct probe *probe, struct error *error) {
    char path[4096];
    snprintf(path, sizeof path, "%s/probe.gguf", probe->measurement->folder.path);
    TRY(probe_model_write(path, probe->layers, probe->group, error));
    enum status status = model_load(&probe->model, path, probe->measurement->device, error);
    unlink(path); /* it stays mapped */
    return status;
}

struct plan probe_plan(const struct probe *probe) {
    struct plan plan = {
        .sequence_capacity = 3, .context_size = probe->deep_tokens + 2 * PROBE_PROMPT, .batch_size = PROBE_PROMPT};
    plan_bound_device(&plan, probe->measurement->device);
    return plan;
}

enum status probe_select(struct plan *plan, const struct machine_selection *selection, uint32_t keep,
                         struct error *error) {
    char set[64], keep_text[24];
    snprintf(set, sizeof set, "%s%sdense=0", selection->set != NULL ? selection->set : "",
             selection->set != NULL ? "," : "");
    snprintf(keep_text, sizeof keep_text, "%u", keep);
    return plan_set_axes(plan, selection->preset, set, keep_text, error);
}

uint32_t probe_selections(const struct device *device, uint32_t selections) {
    const struct select_shape shape = {.layer_count = PROBE_LAYERS,
                                       .head_count = PROBE_KV_HEADS,
                                       .kv_head_count = PROBE_KV_HEADS,
                                       .k_dimension = PROBE_DIMENSION,
                                       .v_dimension = PROBE_DIMENSION};
    struct machine names;
    struct error ignored;
    machine_init(&names);
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++) {
        struct plan plan = {.sequence_capacity = 1};
        if (names.selections[i].name == NULL ||
            probe_select(&plan, &names.selections[i], PROBE_PROMPT, &ignored) != STATUS_OK ||
            select_options_run_on(&plan.select, &shape, device, &ignored) != STATUS_OK)
            selections &= ~(UINT32_C(1) << i);
    }
    return selections;
}

static void close_engine(struct probe *probe) {
    sequence_destroy(probe->deep);
    sequence_destroy(probe->shallow);
    sequence_destroy(probe->empty);
    engine_destroy(probe->engine);
    probe->deep = probe->shallow = probe->empty = NULL;
    probe->engine = NULL;
}

void probe_close(struct probe *probe) {
    close_engine(probe);
    model_destroy(probe->model);
    probe->model = NULL;
}

static enum status add_sequence(struct probe *probe, struct sequence **sequence, uint64_t tokens, struct error *error) {
    TRY(sequence_create(sequence, probe->engine, error));
    return tokens > 0 ? engine_fill_random(probe->engine, *sequence, tokens, SEED, error) : STATUS_OK;
}

enum status probe_open_engine(struct probe *probe, const struct plan *plan, struct error *error) {
    struct plan whole = *plan;
    close_engine(probe);
    whole.keeps_rows = true;
    TRY(engine_create(&probe->engine, probe->model, &whole, NULL, error));
    TRY(add_sequence(probe, &probe->deep, probe->deep_tokens, error));
    if (plan->sequence_capacity == 1) return STATUS_OK;
    TRY(add_sequence(probe, &probe->shallow, probe->shallow_tokens, error));
    return add_sequence(probe, &probe->empty, 0, error);
}

enum status probe_step_of(struct probe *probe, struct sequence *sequence, int32_t token, double *seconds,
                          struct error *error) {
    const uint64_t length = sequence_length(sequence);
    const float *logits;
    measure_empty_caches(probe->measurement);
    const uint64_t began = clock_ns();
    TRY(engine_step(probe->engine, &sequence, &token, 1, &logits, error));
    *seconds = (double)(clock_ns() - began) * 1e-9;
    sequence_truncate(sequence, length);
    return STATUS_OK;
}

enum status probe_step_once(struct probe *probe, struct sequence *sequence, struct quickest *quickest,
                            struct error *error) {
    double seconds;
    TRY(probe_step_of(probe, sequence, 1, &seconds, error));
    quickest_add(quickest, seconds);
    return STATUS_OK;
}

enum status probe_step(struct probe *probe, struct sequence *sequence, double *seconds, struct error *error) {
    struct quickest quickest = {0};
    while (quickest_is_open(&quickest, probe->measurement)) TRY(probe_step_once(probe, sequence, &quickest, error));
    *seconds = quickest.seconds;
    return STATUS_OK;
}

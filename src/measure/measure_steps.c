/* Steps of an engine over the probe model: what layers, attention and selections take. */
#include <math.h>
#include <stdio.h>

#include "engine/engine.h"
#include "measure/measure_internal.h"
#include "measure/probe.h"
#include "platform/clock.h"

enum {
    DEEP = 6144, /* tokens of the two contexts that are compared; caches are emptied before each step */
    SHALLOW = 1536,
    DEEP_SHORT = 2048, /* with measurement.is_short */
    SHALLOW_SHORT = 768,
    KEEP_MANY = 3072,
    KEEP_FEW = 256,
    KEEP_MANY_SHORT = 704,
    DEEP_TEST = 640, /* with options.is_short */
    SHALLOW_TEST = 320,
    KEEP_MANY_TEST = 384,
    GROUPS = 2,
    ATTENDING = 192, /* rows of a prompt behind the shallow context: a block of the kernels */
};

static enum status prefill(struct probe *probe, struct sequence *sequence, size_t token_count, double *seconds,
                           struct error *error) {
    static const int32_t tokens[PROBE_PROMPT] = {1};
    const struct prefill_request request = {.tokens = tokens, .token_count = token_count};
    const uint64_t length = sequence_length(sequence);
    const float *logits;
    struct quickest quickest = {0};
    while (quickest_is_open(&quickest, probe->measurement)) {
        const uint64_t began = clock_ns();
        TRY(engine_prefill(probe->engine, sequence, &request, &logits, error));
        quickest_add(&quickest, (double)(clock_ns() - began) * 1e-9);
        sequence_truncate(sequence, length);
    }
    *seconds = quickest.seconds;
    return STATUS_OK;
}

/* What its two lengths differ by; at least a little, so that a rate is a number. */
static double difference(double more, double less) { return fmax(more - less, more * 1e-3); }

static void set_group(struct machine_by_group *numbers, uint32_t group, double value) {
    *(group == 1 ? &numbers->one : &numbers->many) = value;
}

/* ---- everything ---- */

static enum status full_attention(struct probe *probe, struct machine_by_group *rate, struct error *error) {
    const struct measurement *measurement = probe->measurement;
    struct quickest deep = {0}, empty = {0};
    TRY(measure_part(measurement, "attention", error));
    while (quickest_is_open(&deep, measurement) || quickest_is_open(&empty, measurement)) { /* in turns */
        TRY(probe_step_once(probe, probe->deep, &deep, error));
        TRY(probe_step_once(probe, probe->empty, &empty, error));
    }
    const double bytes = (double)engine_kv_bytes_per_token(probe->engine) * probe->deep_tokens;
    set_group(rate, probe->group, bytes / difference(deep.seconds, empty.seconds));
    probe->empty_seconds = empty.seconds;
    return STATUS_OK;
}

/* Elements of the matrices of all layers. */
static double layer_elements(const struct probe *probe) {
    const double kv = PROBE_KV_HEADS * PROBE_DIMENSION, hidden = PROBE_HIDDEN;
    return probe->layers * hidden * (2 * kv * probe->group + 2 * kv + 3 * hidden);
}

/* What is left of a step, and of a prompt's token, beside the matrices: of the group whose matrices are small. */
static enum status layers(struct probe *probe, struct error *error) {
    struct machine *machine = probe->measurement->machine;
    const double elements = layer_elements(probe), block = machine_matrix_block(machine, TENSOR_Q8_0);
    const double bytes = (elements + PROBE_VOCABULARY * PROBE_HIDDEN) * 34 / 32; /* Q8_0 */
    const double seconds = probe->empty_seconds;
    double prompt, rows, shallow;
    const double rest = seconds - bytes / machine_matrix_rate(machine, TENSOR_Q8_0, PROBE_HIDDEN);
    machine->layer_seconds = fmax(rest, seconds / 8) / probe->layers;
    TRY(prefill(probe, probe->empty, PROBE_PROMPT, &prompt, error));
    TRY(prefill(probe, probe->empty, ATTENDING, &rows, error));
    TRY(prefill(probe, probe->shallow, ATTENDING, &shallow, error));
    const double products = 2.0 * PROBE_DIMENSION * probe->layers * PROBE_KV_HEADS * probe->group; /* a row, a key */
    machine->attend_block = products * ATTENDING * probe->shallow_tokens / difference(shallow, rows);
    const double left =
        prompt - elements * PROBE_PROMPT / block - products * PROBE_PROMPT * PROBE_PROMPT / 2 / machine->attend_block;
    machine->layer_token_seconds = fmax(left, prompt / 16) / PROBE_PROMPT / probe->layers;
    return STATUS_OK;
}

/* ---- selections ---- */

struct selection_steps {
    struct quickest many, few, shallow; /* keep_many of the deep one, KEEP_FEW of it and of the shallow one */
};

static enum status keep_step(struct probe *probe, struct sequence *sequence, const struct plan *plan, uint64_t keep,
                             struct quickest *quickest, struct error *error) {
    TRY(sequence_set_select(sequence, plan->select.method, (struct select_keep){.tokens = keep}, error));
    return probe_step_once(probe, sequence, quickest, error);
}

/* In turns, so that what else the machine does is not in one of them alone. */
static enum status selection_steps(struct probe *probe, const struct plan *plan, struct selection_steps *steps,
                                   struct error *error) {
    const struct measurement *measurement = probe->measurement;
    *steps = (struct selection_steps){0};
    while (quickest_is_open(&steps->many, measurement) || quickest_is_open(&steps->few, measurement) ||
           quickest_is_open(&steps->shallow, measurement)) {
        TRY(keep_step(probe, probe->deep, plan, probe->keep_many, &steps->many, error));
        TRY(keep_step(probe, probe->deep, plan, KEEP_FEW, &steps->few, error));
        TRY(keep_step(probe, probe->shallow, plan, KEEP_FEW, &steps->shallow, error));
    }
    return STATUS_OK;
}

static enum status select_with(struct probe *probe, const struct machine_selection *selection, struct plan *plan,
                               struct error *error) {
    *plan = probe_plan(probe);
    TRY(probe_select(plan, selection, probe->keep_many, error));
    return engine_set_select(probe->engine, &plan->select, error);
}

static enum status selection(struct probe *probe, const struct plan *plan, struct machine_selection *selection,
                             struct error *error) {
    struct selection_steps steps;
    TRY(selection_steps(probe, plan, &steps, error));
    const double heads = probe->layers * PROBE_KV_HEADS;
    /* Chosen rows are not read faster than twice as fast as rows in order: less is noise. */
    const double in_order = 2.0 * PROBE_DIMENSION * sizeof(uint16_t) /
                            machine_by_group_at(probe->measurement->machine->attend_f16, probe->group);
    const double row =
        fmax(difference(steps.many.seconds, steps.few.seconds) / (heads * (probe->keep_many - KEEP_FEW)), in_order / 2);
    const double score =
        fmax(steps.few.seconds - steps.shallow.seconds, 0) / (heads * (probe->deep_tokens - probe->shallow_tokens));
    const double rest =
        steps.shallow.seconds - probe->empty_seconds - heads * (row * KEEP_FEW + score * probe->shallow_tokens);
    set_group(&selection->rows, probe->group, row);
    set_group(&selection->score, probe->group, fmax(score, 1e-13));
    selection->seconds = fmax(fmax(rest, 0) / probe->layers, selection->seconds);
    return STATUS_OK;
}

/* ---- fewer threads: the same engine, groups of 1 ---- */

static enum status attention_of_count(void *context, struct thread_numbers *numbers, struct error *error) {
    struct probe *probe = context;
    const double empty = probe->empty_seconds;
    enum status status = full_attention(probe, &numbers->machine.attend_f16, error);
    if (status == STATUS_OK) status = layers(probe, error);
    numbers->empty_seconds = probe->empty_seconds;
    probe->empty_seconds = empty;
    return status;
}

struct compared {
    struct probe *probe;
    const struct plan *plan;
};

static enum status selection_of_count(void *context, struct thread_numbers *numbers, struct error *error) {
    const struct compared *compared = context;
    struct probe probe = *compared->probe;
    probe.empty_seconds = numbers->empty_seconds;
    if (!(numbers->empty_seconds > 0)) return STATUS_OK; /* it was late then */
    return selection(&probe, compared->plan, &numbers->machine.selections[measure_threads_selection()], error);
}

/* ---- both groups ---- */

/* Of all groups, one selection after the other: each is whole, or not measured. */
static enum status selections(struct probe *probes, struct error *error) {
    struct measurement *measurement = probes->measurement;
    bool can_wait = !measurement->adds; /* a plan that adds gets on by one at least */
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++) {
        const bool is_used = (measurement->use.selections >> i & 1) != 0,
                   is_compared = measurement->threads != NULL && i == measure_threads_selection();
        struct machine_selection *measured = &measurement->machine->selections[i];
        if ((!is_used && !is_compared) || (can_wait && measure_is_late(measurement))) continue;
        can_wait = true;
        for (size_t group = 0; group < (is_used ? GROUPS : 1); group++) {
            struct probe *probe = &probes[group];
            struct plan plan;
            TRY(measure_part(measurement, measured->name, error));
            if (!(probe->empty_seconds > 0)) TRY(probe_step(probe, probe->empty, &probe->empty_seconds, error));
            TRY(select_with(probe, measured, &plan, error));
            if (is_used) TRY(selection(probe, &plan, measured, error));
            struct compared compared = {probe, &plan};
            if (is_compared && group == 0) TRY(measure_each_count(measurement, selection_of_count, &compared, error));
        }
    }
    return STATUS_OK;
}

/* Leaves the engine open whose K and V are in f16, which selections are of. */
static enum status attention(struct probe *probe, struct error *error) {
    struct measurement *measurement = probe->measurement;
    struct machine *machine = measurement->machine;
    struct plan q8 = probe_plan(probe), f16 = probe_plan(probe);
    q8.k_type = q8.v_type = KV_Q8;
    TRY(plan_set_axes(&q8, "full", NULL, NULL, error));
    TRY(plan_set_axes(&f16, "full", NULL, NULL, error));
    if (measurement->use.q8) {
        TRY(probe_open_engine(probe, &q8, error));
        TRY(full_attention(probe, &machine->attend_q8, error));
        probe->empty_seconds = 0;
    }
    if (measurement->adds && measurement->use.selections == 0 && measurement->threads == NULL) return STATUS_OK;
    TRY(probe_open_engine(probe, &f16, error));
    if (!measurement->adds) TRY(full_attention(probe, &machine->attend_f16, error));
    if (probe->group != 1) return STATUS_OK;
    if (!measurement->adds) TRY(layers(probe, error));
    return measure_each_count(measurement, attention_of_count, probe, error);
}

/* Of the two contexts, and of the longer list. */
static struct probe lengths_of(const struct measurement *measurement) {
    if (measurement->options->is_short)
        return (struct probe){
            .layers = 1, .deep_tokens = DEEP_TEST, .shallow_tokens = SHALLOW_TEST, .keep_many = KEEP_MANY_TEST};
    if (measurement->is_short || measure_is_late(measurement))
        return (struct probe){.layers = PROBE_LAYERS,
                              .deep_tokens = DEEP_SHORT,
                              .shallow_tokens = SHALLOW_SHORT,
                              .keep_many = KEEP_MANY_SHORT};
    return (struct probe){
        .layers = PROBE_LAYERS, .deep_tokens = DEEP, .shallow_tokens = SHALLOW, .keep_many = KEEP_MANY};
}

enum status measure_steps(struct measurement *measurement, struct error *error) {
    static const uint32_t groups[GROUPS] = {1, MACHINE_GROUP};
    const struct probe lengths = lengths_of(measurement);
    struct probe probes[GROUPS] = {{.measurement = measurement}};
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < GROUPS; i++) {
        probes[i] = lengths;
        probes[i].measurement = measurement;
        if (i > 0) probes[i].layers = (lengths.layers + 1) / 2; /* no step is taken apart */
        probes[i].group = groups[i];
        status = probe_open_model(&probes[i], error);
        if (status == STATUS_OK) status = attention(&probes[i], error);
    }
    if (status == STATUS_OK) status = selections(probes, error);
    for (size_t i = 0; i < GROUPS; i++) probe_close(&probes[i]);
    return status;
}

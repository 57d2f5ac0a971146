/* Steps of an engine over the probe model: what layers, attention and selections take. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "measure/measure_internal.h"
#include "measure/probe.h"
#include "plan/cost.h"
#include "platform/clock.h"

enum {
    DEEP = 8192, /* tokens of the two contexts that are compared; caches are emptied before each step */
    SHALLOW = 2048,
    DEEP_SHORT = 2048, /* with measure_options.is_short */
    SHALLOW_SHORT = 768,
    KEEP_MANY = 3072,
    KEEP_FEW = 256,
    KEEP_MANY_SHORT = 704,
    ATTENDING = 192, /* rows of a prompt behind the shallow context: a block of the kernels */
};

static enum status prefill(struct probe *probe, struct sequence *sequence, size_t token_count, double *seconds,
                           struct error *error) {
    static const int32_t tokens[PROBE_PROMPT] = {1};
    const struct prefill_request request = {.tokens = tokens, .token_count = token_count};
    const uint64_t length = sequence_length(sequence);
    const float *logits;
    struct quickest quickest = {0};
    while (quickest_is_open(&quickest)) {
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

static enum status full_attention(struct probe *probe, const struct plan *plan, struct machine_by_group *rate,
                                  struct error *error) {
    struct quickest deep = {0}, empty = {0};
    TRY(probe_open_engine(probe, plan, error));
    while (quickest_is_open(&deep) || quickest_is_open(&empty)) { /* in turns, as selections */
        TRY(probe_step_once(probe, probe->deep, &deep, error));
        TRY(probe_step_once(probe, probe->empty, &empty, error));
    }
    const double bytes = (double)engine_kv_bytes_per_token(probe->engine) * probe->deep_tokens;
    set_group(rate, probe->group, bytes / difference(deep.seconds, empty.seconds));
    return STATUS_OK;
}

/* Elements of the matrices of all layers. */
static double layer_elements(uint32_t group) {
    const double kv = PROBE_KV_HEADS * PROBE_DIMENSION, hidden = PROBE_HIDDEN;
    return PROBE_LAYERS * hidden * (2 * kv * group + 2 * kv + 3 * hidden);
}

/* What is left of a step, and of a prompt's token, beside the matrices: of the group whose matrices are small. */
static enum status layers(struct probe *probe, struct error *error) {
    struct machine *machine = probe->measurement->machine;
    const double elements = layer_elements(probe->group), block = machine_matrix_block(machine, TENSOR_Q8_0);
    const double bytes = (elements + PROBE_VOCABULARY * PROBE_HIDDEN) * 34 / 32; /* Q8_0 */
    double seconds, prompt, rows, shallow;
    TRY(probe_step(probe, probe->empty, &seconds, error));
    const double rest = seconds - bytes / machine_matrix_rate(machine, TENSOR_Q8_0, PROBE_HIDDEN);
    machine->layer_seconds = fmax(rest, seconds / 8) / PROBE_LAYERS;
    TRY(prefill(probe, probe->empty, PROBE_PROMPT, &prompt, error));
    TRY(prefill(probe, probe->empty, ATTENDING, &rows, error));
    TRY(prefill(probe, probe->shallow, ATTENDING, &shallow, error));
    const double products = 2.0 * PROBE_DIMENSION * PROBE_LAYERS * PROBE_KV_HEADS * probe->group; /* a row, a key */
    machine->attend_block = products * ATTENDING * probe->shallow_tokens / difference(shallow, rows);
    const double left = prompt - elements * PROBE_PROMPT / block -
                        products * PROBE_PROMPT * PROBE_PROMPT / 2 / machine->attend_block;
    machine->layer_token_seconds = fmax(left, prompt / 16) / PROBE_PROMPT / PROBE_LAYERS;
    return STATUS_OK;
}

/* ---- selections ---- */

struct selection_steps {
    struct quickest many, few, shallow; /* keep_many of the deep one, KEEP_FEW of it and of the shallow one */
};

static enum status keep_step(struct probe *probe, struct sequence *sequence, const struct plan *plan,
                             uint64_t keep, struct quickest *quickest, struct error *error) {
    TRY(sequence_set_select(sequence, plan->select.method, (struct select_keep){.tokens = keep}, error));
    return probe_step_once(probe, sequence, quickest, error);
}

/* In turns, so that what else the machine does is not in one of them alone. */
static enum status selection_steps(struct probe *probe, const struct plan *plan,
                                   struct selection_steps *steps, struct error *error) {
    *steps = (struct selection_steps){0};
    while (quickest_is_open(&steps->many) || quickest_is_open(&steps->few) ||
           quickest_is_open(&steps->shallow)) {
        TRY(keep_step(probe, probe->deep, plan, probe->keep_many, &steps->many, error));
        TRY(keep_step(probe, probe->deep, plan, KEEP_FEW, &steps->few, error));
        TRY(keep_step(probe, probe->shallow, plan, KEEP_FEW, &steps->shallow, error));
    }
    return STATUS_OK;
}

static enum status selection(struct probe *probe, struct machine_selection *selection, double empty,
                             struct error *error) {
    struct plan plan = probe_plan(probe);
    struct selection_steps steps;
    char set[64], keep[24];
    snprintf(set, sizeof set, "%s%sdense=0", selection->set != NULL ? selection->set : "",
             selection->set != NULL ? "," : "");
    snprintf(keep, sizeof keep, "%u", probe->keep_many);
    TRY(measure_part(probe->measurement, selection->name, error));
    TRY(plan_set_axes(&plan, selection->preset, set, keep, error));
    TRY(engine_set_select(probe->engine, &plan.select, error));
    TRY(selection_steps(probe, &plan, &steps, error));
    const double heads = PROBE_LAYERS * PROBE_KV_HEADS;
    /* Chosen rows are not read faster than twice as fast as rows in order: less is noise. */
    const double in_order = 2.0 * PROBE_DIMENSION * sizeof(uint16_t) /
                            machine_by_group_at(probe->measurement->machine->attend_f16, probe->group);
    const double row =
        fmax(difference(steps.many.seconds, steps.few.seconds) / (heads * (probe->keep_many - KEEP_FEW)),
             in_order / 2);
    const double score = fmax(steps.few.seconds - steps.shallow.seconds, 0) /
                         (heads * (probe->deep_tokens - probe->shallow_tokens));
    const double rest =
        steps.shallow.seconds - empty - heads * (row * KEEP_FEW + score * probe->shallow_tokens);
    set_group(&selection->rows, probe->group, row);
    set_group(&selection->score, probe->group, fmax(score, 1e-13));
    selection->seconds = fmax(fmax(rest, 0) / PROBE_LAYERS, selection->seconds);
    return STATUS_OK;
}

static enum status selections(struct probe *probe, struct error *error) {
    struct machine *machine = probe->measurement->machine;
    double empty;
    if (probe->measurement->use.selections == 0) return STATUS_OK;
    TRY(probe_step(probe, probe->empty, &empty, error));
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++)
        if ((probe->measurement->use.selections >> i & 1) != 0)
            TRY(selection(probe, &machine->selections[i], empty, error));
    return STATUS_OK;
}

/* ---- both groups ---- */

static enum status one_group(struct probe *probe, struct error *error) {
    struct machine *machine = probe->measurement->machine;
    struct plan q8 = probe_plan(probe), f16 = probe_plan(probe);
    q8.k_type = q8.v_type = KV_Q8;
    TRY(plan_set_axes(&q8, "full", NULL, NULL, error));
    TRY(plan_set_axes(&f16, "full", NULL, NULL, error));
    if (probe->measurement->steps == STEPS_SELECTIONS) {
        TRY(probe_open_engine(probe, &f16, error));
    } else {
        TRY(measure_part(probe->measurement, "attention", error));
        if (probe->measurement->steps == STEPS_ALL)
            TRY(full_attention(probe, &q8, &machine->attend_q8, error));
        TRY(full_attention(probe, &f16, &machine->attend_f16, error));
        if (probe->group == 1) TRY(layers(probe, error));
    }
    return selections(probe, error);
}

enum status measure_steps(struct measurement *measurement, struct error *error) {
    static const uint32_t groups[] = {1, MACHINE_GROUP};
    for (size_t i = 0; i < (measurement->steps == STEPS_BRIEF ? 1 : 2); i++) {
        const bool is_short = measurement->options->is_short;
        struct probe probe = {.measurement = measurement,
                              .group = groups[i],
                              .deep_tokens = is_short ? DEEP_SHORT : DEEP,
                              .shallow_tokens = is_short ? SHALLOW_SHORT : SHALLOW,
                              .keep_many = is_short ? KEEP_MANY_SHORT : KEEP_MANY};
        enum status status = probe_open_model(&probe, error);
        if (status == STATUS_OK) status = one_group(&probe, error);
        probe_close(&probe);
        TRY(status);
    }
    return STATUS_OK;
}

/* Steps of an engine over the probe model: what layers, attention and selections take. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "measure/measure_internal.h"
#include "measure/probe_model.h"
#include "plan/cost.h"
#include "platform/clock.h"

enum {
    DEEP = 24576, /* tokens of the two contexts that are compared */
    SHALLOW = 4096,
    DEEP_SHORT = 2048, /* with measure_options.is_short */
    SHALLOW_SHORT = 768,
    KEEP_MANY = 3072,
    KEEP_FEW = 256,
    KEEP_MANY_SHORT = 704,
    PROMPT = 512, /* a prefill block */
    DISK_STEPS = 4,
    SEED = 1,
};

/* An engine and three sequences, one of them empty. */
struct probe {
    struct measurement *measurement;
    struct model *model; /* owned */
    uint32_t group, deep_tokens, shallow_tokens, keep_many;
    struct engine *engine; /* owned, as are its sequences */
    struct sequence *deep, *shallow, *empty;
};

static void close_engine(struct probe *probe) {
    sequence_destroy(probe->deep);
    sequence_destroy(probe->shallow);
    sequence_destroy(probe->empty);
    engine_destroy(probe->engine);
    probe->deep = probe->shallow = probe->empty = NULL;
    probe->engine = NULL;
}

static enum status add_sequence(struct probe *probe, struct sequence **sequence, uint64_t tokens,
                                struct error *error) {
    TRY(sequence_create(sequence, probe->engine, error));
    return tokens > 0 ? engine_fill_random(probe->engine, *sequence, tokens, SEED, error) : STATUS_OK;
}

static struct plan probe_plan(const struct probe *probe) {
    return (struct plan){
        .sequence_capacity = 3, .context_size = probe->deep_tokens + 2 * PROMPT, .batch_size = PROMPT};
}

static enum status open_engine(struct probe *probe, const struct plan *plan, struct error *error) {
    close_engine(probe);
    TRY(engine_create(&probe->engine, probe->model, plan, NULL, error));
    TRY(add_sequence(probe, &probe->deep, probe->deep_tokens, error));
    if (plan->sequence_capacity == 1) return STATUS_OK;
    TRY(add_sequence(probe, &probe->shallow, probe->shallow_tokens, error));
    return add_sequence(probe, &probe->empty, 0, error);
}

/* A step from memory. */
static enum status step_once(struct probe *probe, struct sequence *sequence, struct quickest *quickest,
                             struct error *error) {
    static const int32_t token = 1;
    const uint64_t length = sequence_length(sequence);
    const float *logits;
    measure_empty_caches(probe->measurement);
    const uint64_t began = clock_ns();
    TRY(engine_step(probe->engine, &sequence, &token, 1, &logits, error));
    quickest_add(quickest, (double)(clock_ns() - began) * 1e-9);
    sequence_truncate(sequence, length);
    return STATUS_OK;
}

static enum status step(struct probe *probe, struct sequence *sequence, double *seconds,
                        struct error *error) {
    struct quickest quickest = {0};
    while (quickest_is_open(&quickest)) TRY(step_once(probe, sequence, &quickest, error));
    *seconds = quickest.seconds;
    return STATUS_OK;
}

static enum status prefill(struct probe *probe, struct sequence *sequence, double *seconds,
                           struct error *error) {
    static const int32_t tokens[PROMPT] = {1};
    const struct prefill_request request = {.tokens = tokens, .token_count = PROMPT};
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
    double deep, empty;
    TRY(open_engine(probe, plan, error));
    TRY(step(probe, probe->deep, &deep, error));
    TRY(step(probe, probe->empty, &empty, error));
    const double bytes = (double)engine_kv_bytes_per_token(probe->engine) * probe->deep_tokens;
    set_group(rate, probe->group, bytes / difference(deep, empty));
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
    double seconds, prompt, deep;
    TRY(step(probe, probe->empty, &seconds, error));
    const double rest = seconds - bytes / machine_matrix_rate(machine, TENSOR_Q8_0, PROBE_HIDDEN);
    machine->layer_seconds = fmax(rest, seconds / 8) / PROBE_LAYERS;
    TRY(prefill(probe, probe->empty, &prompt, error));
    TRY(prefill(probe, probe->deep, &deep, error));
    const double products = 2.0 * PROBE_DIMENSION * PROBE_LAYERS * PROBE_KV_HEADS * probe->group * PROMPT;
    machine->attend_block = products * probe->deep_tokens / difference(deep, prompt);
    const double left = prompt - elements * PROMPT / block - products * PROMPT / 2 / machine->attend_block;
    machine->layer_token_seconds = fmax(left, prompt / 16) / PROMPT / PROBE_LAYERS;
    return STATUS_OK;
}

/* ---- selections ---- */

struct selection_steps {
    struct quickest many, few, shallow; /* keep_many of the deep one, KEEP_FEW of it and of the shallow one */
};

static enum status keep_step(struct probe *probe, struct sequence *sequence, const struct plan *plan,
                             uint64_t keep, struct quickest *quickest, struct error *error) {
    TRY(sequence_set_select(sequence, plan->select.method, (struct select_keep){.tokens = keep}, error));
    return step_once(probe, sequence, quickest, error);
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
    TRY(step(probe, probe->empty, &empty, error));
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++)
        if (machine->selections[i].name != NULL) TRY(selection(probe, &machine->selections[i], empty, error));
    return STATUS_OK;
}

/* ---- KV on disk ---- */

/* Where `seconds` lie between reading beside computing and reading, then computing; 0 to 1. */
static double serial_share(double seconds, double reading, double handling, double computing) {
    const double beside = cost_overlapped(0, reading, handling, computing, PROBE_LAYERS),
                 after = cost_overlapped(1, reading, handling, computing, PROBE_LAYERS);
    return after > beside ? fmin(fmax((seconds - beside) / (after - beside), 0), 1) : 0;
}

/* Steps that read most of the KV, of which RAM holds a quarter: the processor's part of a page, beside what the same
 * step takes in RAM, and how far reading and computing go on at once. */
static enum status pages(struct probe *probe, double in_memory, struct error *error) {
    struct machine *machine = probe->measurement->machine;
    struct plan plan = probe_plan(probe);
    const uint64_t kv_bytes = engine_kv_bytes_per_token(probe->engine) * probe->deep_tokens;
    const char *directory = probe->measurement->folder.path;
    TRY(measure_part(probe->measurement, "pages", error));
    close_engine(probe);
    plan.sequence_capacity = 1;
    plan.document_name = "measure";
    TRY(plan_set_disk(&plan, directory, strlen(directory), 0, error));
    enum status status = plan_set_axes(&plan, "full", NULL, NULL, error);
    if (status == STATUS_OK)
        status = plan_host_bytes_around(&plan, &probe->model->config, kv_bytes / 4, &plan.host_bytes, error);
    if (status == STATUS_OK) status = open_engine(probe, &plan, error);
    plan_deinit(&plan);
    TRY(status);
    struct quickest page = {0}, whole = {0};
    double reading = 0, handling = 0;
    for (int i = 0; i < DISK_STEPS; i++) {
        const struct kv_tier_statistics before = engine_tier_statistics(probe->engine);
        static const int32_t token = 1;
        const float *logits;
        const uint64_t began = clock_ns();
        TRY(engine_step(probe->engine, &probe->deep, &token, 1, &logits, error));
        const double seconds = (double)(clock_ns() - began) * 1e-9;
        const struct kv_tier_statistics after = engine_tier_statistics(probe->engine);
        const double read = (double)(after.read_pages - before.read_pages),
                     waited = (double)(after.wait_ns - before.wait_ns) * 1e-9;
        if (read < 1) continue;
        const double bytes = (double)(after.read_bytes - before.read_bytes),
                     checksum = bytes / read / machine->copy;
        quickest_add(&page, fmax((seconds - waited - in_memory) / read - checksum, 1e-9));
        if (quickest_add(&whole, seconds)) {
            reading = bytes / machine_disk_rate(machine, bytes / read * COST_SEGMENT_CHUNKS);
            handling = fmax(seconds - waited - in_memory, 0);
        }
    }
    machine->tier_page_seconds = page.seconds;
    if (whole.rounds > 0)
        machine->disk_serial = serial_share(whole.seconds, reading, handling, in_memory);
    return STATUS_OK;
}

/* ---- both groups ---- */

static enum status one_group(struct probe *probe, struct error *error) {
    struct machine *machine = probe->measurement->machine;
    struct plan q8 = probe_plan(probe), f16 = probe_plan(probe);
    double in_memory;
    q8.k_type = q8.v_type = KV_Q8;
    TRY(measure_part(probe->measurement, "attention", error));
    TRY(plan_set_axes(&q8, "full", NULL, NULL, error));
    TRY(plan_set_axes(&f16, "full", NULL, NULL, error));
    TRY(full_attention(probe, &q8, &machine->attend_q8, error));
    TRY(full_attention(probe, &f16, &machine->attend_f16, error));
    if (probe->group == 1) TRY(layers(probe, error));
    TRY(step(probe, probe->deep, &in_memory, error));
    TRY(selections(probe, error));
    return probe->group == 1 ? pages(probe, in_memory, error) : STATUS_OK;
}

static enum status open_model(struct probe *probe, struct error *error) {
    const struct measure_options *options = probe->measurement->options;
    char path[4096];
    snprintf(path, sizeof path, "%s/probe.gguf", probe->measurement->folder.path);
    TRY(probe_model_write(path, probe->group, options->mask, error));
    enum status status = model_load(&probe->model, path, probe->measurement->device, error);
    unlink(path); /* it stays mapped */
    return status;
}

/* For a number of threads: the least that says how fast they are. */
static enum status brief(struct probe *probe, struct error *error) {
    struct machine *machine = probe->measurement->machine;
    struct plan f16 = probe_plan(probe);
    double empty;
    TRY(plan_set_axes(&f16, "full", NULL, NULL, error));
    TRY(full_attention(probe, &f16, &machine->attend_f16, error));
    TRY(layers(probe, error));
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++) {
        struct machine_selection *hata = &machine->selections[i];
        if (hata->name == NULL || strcmp(hata->name, "hata") != 0) continue;
        TRY(step(probe, probe->empty, &empty, error));
        TRY(selection(probe, hata, empty, error));
    }
    return STATUS_OK;
}

enum status measure_steps(struct measurement *measurement, struct error *error) {
    static const uint32_t groups[] = {1, MACHINE_GROUP};
    for (size_t i = 0; i < (measurement->is_brief ? 1 : 2); i++) {
        const bool is_short = measurement->options->is_short;
        struct probe probe = {.measurement = measurement,
                              .group = groups[i],
                              .deep_tokens = is_short ? DEEP_SHORT : DEEP,
                              .shallow_tokens = is_short ? SHALLOW_SHORT : SHALLOW,
                              .keep_many = is_short ? KEEP_MANY_SHORT : KEEP_MANY};
        enum status status = open_model(&probe, error);
        if (status == STATUS_OK) status = measurement->is_brief ? brief(&probe, error) : one_group(&probe, error);
        close_engine(&probe);
        model_destroy(probe.model);
        TRY(status);
    }
    return STATUS_OK;
}

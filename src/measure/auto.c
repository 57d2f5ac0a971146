#include "measure/auto.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/size.h"
#include "model/calibration.h"
#include "model/model_size.h"
#include "plan/choose.h"
#include "platform/memory.h"

static const double MEMORY_SHARE = 15. / 16, MEMORY_MAX = (double)(UINT64_C(1) << 62); /* beyond it: not known */

struct choosing {
    struct machine machine;
    struct cost_models models;
    struct choices choices;
    struct plan sizes; /* borrows what the plan owns */
    struct kld_table losses;
    const struct device *device; /* borrowed; the model's */
    uint64_t depth;
};

static enum status take_full(struct plan *plan, struct error *error) {
    return plan_set_axes(plan, "full", NULL, NULL, error);
}

uint64_t auto_memory_bytes(double ram_bytes) {
    return ram_bytes < MEMORY_MAX ? (uint64_t)(ram_bytes * MEMORY_SHARE) : 0;
}

static uint64_t memory_of(const struct auto_request *request) {
    return request->memory_bytes != 0 ? request->memory_bytes : auto_memory_bytes((double)memory_available_bytes());
}

/* "; 1 thread; 8 sequences together; 2.0 GiB of weights in RAM": what is not as it would be anyway. */
static void say_settings(char *text, size_t text_bytes, const struct candidate *choice,
                         const struct auto_request *request, const struct machine *machine) {
    char threads[40] = "", sequences[48] = "", weights[80] = "", size[32];
    if (request->thread_count == 0 && choice->thread_count != machine->thread_count)
        snprintf(threads, sizeof threads, "; %zu of %u threads", choice->thread_count, machine->thread_count);
    if (request->sequences == 0 && choice->sequences > 1)
        snprintf(sequences, sizeof sequences, "; %zu sequences together", choice->sequences);
    if (choice->weights_host_bytes > 0 && request->weights_host_bytes == 0)
        snprintf(weights, sizeof weights, "; %s for weights, %zu %s stay",
                 bytes_text(choice->weights_host_bytes, size, sizeof size),
                 choice->resident_experts > 0 ? choice->resident_experts : choice->resident_layers,
                 choice->resident_experts > 0 ? "experts" : "layers");
    snprintf(text, text_bytes, "%s%s%s", threads, sequences, weights);
}

/* The choice becomes the plan's axes. */
static enum status take(struct plan *plan, const struct choosing *choosing, const struct auto_request *request,
                        struct auto_choice *taken, struct error *error) {
    const struct candidate *choice = &choosing->choices.list[0];
    char below[64] = "", settings[160], when[MACHINE_WHEN_BYTES];
    TRY(plan_set_axes(plan, choice->preset, choice->set[0] != '\0' ? choice->set : NULL, NULL, error));
    if (!choice->is_exact) plan->select.exact_below = choice->exact_below;
    if (!choice->is_exact && choice->exact_below > 0)
        snprintf(below, sizeof below, ", exact below %" PRIu64 " tokens", choice->exact_below);
    if (request->thread_count == 0) taken->thread_count = choice->thread_count;
    if (request->sequences == 0) taken->sequences = choice->sequences;
    if (!request->keeps_weights && request->weights_host_bytes == 0)
        taken->weights_host_bytes = choice->weights_host_bytes;
    if (taken->weights_host_bytes > 0 && plan->disk_directory != NULL && !plan->has_budget) {
        plan->has_budget = true; /* what was left for the KV */
        plan->budget_bytes = choice->host_bytes;
    }
    say_settings(settings, sizeof settings, choice, request, &choosing->machine);
    int used = snprintf(taken->note, AUTO_NOTE_BYTES, "--preset auto: %s%s%s; %.3g tokens a second are predicted",
                        choice->text, below, settings, candidate_rate(choice));
    if (machine_when(&choosing->machine, when)[0] != '\0' && used > 0 && used < AUTO_NOTE_BYTES)
        snprintf(taken->note + used, (size_t)(AUTO_NOTE_BYTES - used), ", by numbers %s%s", when,
                 machine_load_is_busy(choosing->machine.load) ? ": loam plan --measure, once others rest" : "");
    return STATUS_OK;
}

static double kld_of(void *context, const char *text) {
    const struct choosing *choosing = context;
    return kld_table_at(&choosing->losses, text, choosing->depth);
}

enum status auto_load_losses(struct kld_table *losses, const struct gguf *gguf, const struct model_config *config,
                             struct error *error) {
    char fingerprint[CALIBRATION_FINGERPRINT_BYTES], *path;
    TRY(model_companion_path(gguf->path, ".kld.json", &path, error));
    calibration_fingerprint(gguf, config, fingerprint);
    enum status status = kld_table_load(losses, path, fingerprint, error);
    free(path);
    return status;
}

static struct choose_question question_of(struct choosing *choosing, const struct plan *plan,
                                          const struct auto_request *request) {
    return (struct choose_question){.models = choosing->models.list,
                                    .model_count = choosing->models.count,
                                    .plan = &choosing->sizes,
                                    .device = choosing->device,
                                    .depth = request->depth,
                                    .sequences = request->sequences,
                                    .memory_bytes = request->keeps_weights ? 0 : memory_of(request),
                                    .weights_host_bytes = request->weights_host_bytes,
                                    .loss = plan->select.loss,
                                    .kld_max = plan->kld_max,
                                    .kld = plan->kld_max > 0 ? kld_of : NULL,
                                    .kld_context = choosing};
}

/* In the memory there is; if nothing fits that, as if there were more: a context is seldom used up. */
static enum status choose_within(struct choosing *choosing, const struct plan *plan, const struct auto_request *request,
                                 struct error *error) {
    struct choose_question question = question_of(choosing, plan, request);
    enum status status = plan_choose(&choosing->choices, &question, error);
    if (status != STATUS_MEMORY || question.memory_bytes == 0) return status;
    question.memory_bytes = 0;
    return plan_choose(&choosing->choices, &question, error);
}

/* Of the model's device; memory that is free there is what there is beside the weights. */
static enum status open_machine(struct choosing *choosing, const struct model *model,
                                const struct machine_request *request, char path[MACHINE_PATH_BYTES], char note[400],
                                struct error *error) {
    struct machine_request on = *request;
    if (request->given == NULL && device_memory_free(model->device) != UINT64_MAX) on.measure.device = model->device;
    TRY(machine_open(&choosing->machine, &on, path, note, error));
    if (on.measure.device != NULL)
        choosing->machine.device_bytes += (double)weight_sizes_on_card(&model->gguf, &model->config).all;
    return STATUS_OK;
}

static enum status choose(struct choosing *choosing, struct plan *plan, const struct model *model,
                          const struct auto_request *request, struct auto_choice *choice, struct error *error) {
    char path[MACHINE_PATH_BYTES], *note = choice->note;
    struct error missing = {0};
    struct machine_request machine = request->machine;
    machine.measure.use.types = cost_matrix_types(&model->config, &model->gguf);
    machine.measure.use.q8 = plan->k_type != KV_F16;
    machine.measure.use.threads = request->thread_count == 0;
    if (plan->select.loss > 0 || plan->kld_max > 0)
        machine.measure.use.selections = machine_use_planned(plan->kld_max == 0);
    choosing->sizes = *plan;
    const struct choose_question question = question_of(choosing, plan, request);
    const struct weight_sizes weights = weight_sizes_of(&model->gguf, &model->config);
    machine.measure.use.disk = plan_may_read_disk(&question, &model->config, &weights);
    enum status status = open_machine(choosing, model, &machine, path, note, &missing);
    if (status == STATUS_INTERRUPTED || (status != STATUS_OK && device_state(model->device, NULL) != STATUS_OK)) {
        *error = missing;
        return status;
    }
    if (status == STATUS_OK &&
        !cost_models_init(&choosing->models, &choosing->machine, request->thread_count, &model->config, &model->gguf))
        status =
            error_set(&missing, STATUS_UNSUPPORTED, "%.200s: no numbers of %zu threads", path, request->thread_count);
    if (status != STATUS_OK) {
        snprintf(note, AUTO_NOTE_BYTES, "--preset auto: full, since the machine's numbers are not there: %.300s",
                 missing.message);
        return take_full(plan, error);
    }
    choosing->depth = request->depth;
    choosing->device = model->device;
    if (plan->kld_max > 0 && auto_load_losses(&choosing->losses, &model->gguf, &model->config, &missing) != STATUS_OK) {
        snprintf(note, AUTO_NOTE_BYTES, "--preset auto: exact, since what plans lose is not known: %.300s",
                 missing.message);
        if (plan->select.loss == 0) return take_full(plan, error);
    }
    choosing->sizes = *plan;
    TRY(choose_within(choosing, plan, request, error));
    if (choosing->choices.left_out.status != STATUS_OK)
        snprintf(note, AUTO_NOTE_BYTES, "--preset auto: %.300s", choosing->choices.left_out.message);
    return take(plan, choosing, request, choice, error);
}

/* By sizes alone: weights that do not fit the memory are read, as far as they do not fit beside the KV. */
static enum status place_weights(const struct plan *plan, const struct model *model, const struct auto_request *request,
                                 struct auto_choice *choice, struct error *error) {
    const struct weight_sizes weights = weight_sizes_of(&model->gguf, &model->config);
    const uint64_t memory = memory_of(request);
    struct plan sized = *plan;
    if (request->keeps_weights || request->weights_host_bytes != 0 || weights.all <= memory || memory == 0)
        return STATUS_OK;
    sized.context_size = request->depth + 1;
    sized.memory_bytes = memory;
    TRY(plan_set_host_bytes(&sized, &model->config, error));
    uint64_t kv = sized.host_bytes;
    if (kv == 0) {
        kv = plan_sequence_bytes(&model->config, plan->k_type, plan->v_type, request->depth) * plan->sequence_capacity;
        if (plan->has_budget && plan->budget_bytes < kv) kv = plan->budget_bytes;
    }
    char all[32], size[32];
    choice->weights_host_bytes = plan_weights_host_bytes(&weights, memory, kv);
    if (choice->weights_host_bytes > 0)
        snprintf(choice->note, AUTO_NOTE_BYTES,
                 "the weights take %s, more than there is: %s of them stay in RAM (--weights-host)",
                 bytes_text(weights.all, all, sizeof all), bytes_text(choice->weights_host_bytes, size, sizeof size));
    return STATUS_OK;
}

/* Nothing may be lost, and KV is in RAM or nobody asked: full.  With numbers that are there anyway who asked gets
 * threads and sequences. */
static enum status choose_full(struct choosing *choosing, struct plan *plan, const struct model *model,
                               const struct auto_request *request, struct auto_choice *choice, struct error *error) {
    struct auto_request known = *request;
    struct error missing;
    char path[MACHINE_PATH_BYTES];
    known.machine.never_measures = true;
    if (request->is_default ||
        open_machine(choosing, model, &known.machine, path, choice->note, &missing) != STATUS_OK) {
        choice->note[0] = '\0';
        TRY(take_full(plan, error));
        return place_weights(plan, model, request, choice, error);
    }
    return choose(choosing, plan, model, &known, choice, error);
}

enum status auto_choose(struct plan *plan, const struct model *model, const struct auto_request *request,
                        struct auto_choice *choice, struct error *error) {
    *choice = (struct auto_choice){.thread_count = 0};
    if (!plan->is_auto) return STATUS_OK;
    const bool receipt = plan->select.receipt, is_full = plan->select.loss == 0 && plan->kld_max == 0 &&
                                                         (plan->disk_directory == NULL || request->is_default);
    struct choosing *choosing = calloc(1, sizeof *choosing);
    if (choosing == NULL) return error_set(error, STATUS_MEMORY, "--preset auto: out of memory");
    enum status status = is_full ? choose_full(choosing, plan, model, request, choice, error)
                                 : choose(choosing, plan, model, request, choice, error);
    free(choosing);
    if (receipt) plan->select.receipt = true;
    return status;
}

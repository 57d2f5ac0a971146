#include "measure/auto.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/calibration.h"
#include "plan/choose.h"

struct choosing {
    struct machine machine;
    struct cost_model model;
    struct choices choices;
    struct plan sizes; /* borrows what the plan owns */
    struct kld_table losses;
    uint64_t depth;
};

static enum status take_full(struct plan *plan, struct error *error) {
    return plan_set_axes(plan, "full", NULL, NULL, error);
}

/* The choice becomes the plan's axes. */
static enum status take(struct plan *plan, const struct choosing *choosing, char note[AUTO_NOTE_BYTES],
                        struct error *error) {
    const struct candidate *choice = &choosing->choices.list[0];
    char below[64] = "";
    TRY(plan_set_axes(plan, choice->preset, choice->set[0] != '\0' ? choice->set : NULL, NULL, error));
    if (!choice->is_exact) plan->select.exact_below = choice->exact_below;
    if (!choice->is_exact && choice->exact_below > 0)
        snprintf(below, sizeof below, ", exact below %" PRIu64 " tokens", choice->exact_below);
    snprintf(note, AUTO_NOTE_BYTES, "--preset auto: %s%s; %.3g tokens a second are predicted", choice->text,
             below, 1 / choice->cost.step_seconds);
    return STATUS_OK;
}

static double kld_of(void *context, const char *text) {
    const struct choosing *choosing = context;
    return kld_table_at(&choosing->losses, text, choosing->depth);
}

enum status auto_load_losses(struct kld_table *losses, const struct gguf *gguf,
                             const struct model_config *config, struct error *error) {
    char fingerprint[CALIBRATION_FINGERPRINT_BYTES], *path;
    TRY(model_companion_path(gguf->path, ".kld.json", &path, error));
    calibration_fingerprint(gguf, config, fingerprint);
    enum status status = kld_table_load(losses, path, fingerprint, error);
    free(path);
    return status;
}

static enum status choose(struct choosing *choosing, struct plan *plan, const struct model *model,
                          const struct auto_request *request, char note[AUTO_NOTE_BYTES],
                          struct error *error) {
    char path[MACHINE_PATH_BYTES];
    struct error missing = {0};
    const struct choose_question question = {.model = &choosing->model,
                                             .plan = &choosing->sizes,
                                             .depth = request->depth,
                                             .loss = plan->select.loss,
                                             .kld_max = plan->kld_max,
                                             .kld = plan->kld_max > 0 ? kld_of : NULL,
                                             .kld_context = choosing};
    enum status status = machine_open(&choosing->machine, &request->machine, path, note, &missing);
    if (status == STATUS_INTERRUPTED) {
        *error = missing;
        return status;
    }
    if (status != STATUS_OK) {
        snprintf(note, AUTO_NOTE_BYTES,
                 "--preset auto: full, since the machine's numbers are not there: %.300s", missing.message);
        return take_full(plan, error);
    }
    choosing->depth = request->depth;
    if (plan->kld_max > 0 &&
        auto_load_losses(&choosing->losses, &model->gguf, &model->config, &missing) != STATUS_OK) {
        snprintf(note, AUTO_NOTE_BYTES, "--preset auto: exact, since what plans lose is not known: %.300s",
                 missing.message);
        if (plan->select.loss == 0) return take_full(plan, error);
    }
    cost_model_init(&choosing->model, &choosing->machine, &model->config, &model->gguf);
    choosing->sizes = *plan;
    TRY(plan_choose(&choosing->choices, &question, error));
    return take(plan, choosing, note, error);
}

enum status auto_choose(struct plan *plan, const struct model *model, const struct auto_request *request,
                        char note[AUTO_NOTE_BYTES], struct error *error) {
    note[0] = '\0';
    if (!plan->is_auto) return STATUS_OK;
    const bool receipt = plan->select.receipt;
    if (plan->select.loss == 0 && plan->kld_max == 0 &&
        (plan->disk_directory == NULL || request->is_default)) {
        TRY(take_full(plan, error));
        plan->select.receipt = receipt;
        return STATUS_OK;
    }
    struct choosing *choosing = calloc(1, sizeof *choosing);
    if (choosing == NULL) return error_set(error, STATUS_MEMORY, "--preset auto: out of memory");
    enum status status = choose(choosing, plan, model, request, note, error);
    free(choosing);
    if (receipt) plan->select.receipt = true;
    return status;
}

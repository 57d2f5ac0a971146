#include "plan/choose.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct row {
    const char *preset, *set;
    bool is_exact, needs_disk;
    bool dials; /* with a loss it is considered with the dial; the others are there to compare */
} rows[] = {
    {.preset = "full", .is_exact = true},
    {.preset = "kvpr", .is_exact = true, .needs_disk = true},
    {.preset = "full", .set = "codec=q8"},
    {.preset = "streaming"},
    {.preset = "quest", .dials = true},
    {.preset = "quest", .set = "select=meanstd", .dials = true},
    {.preset = "hata", .dials = true},
    {.preset = "leoam", .dials = true},
    {.preset = "leoam", .set = "codec=f16", .needs_disk = true, .dials = true},
    {.preset = "clo"},
    {.preset = "retroinfer"},
    {.preset = "pqcache"},
};
enum { ROW_COUNT = sizeof rows / sizeof *rows };
_Static_assert((int)ROW_COUNT <= (int)CANDIDATES_MAX, "each has a place");

/* The row's changes, with the dial if it selects. */
static void set_text(const struct row *row, const struct choose_question *question,
                     char set[CANDIDATE_SET_BYTES]) {
    const char *changes = row->set != NULL ? row->set : "";
    const bool dials = question->loss > 0 && row->dials;
    if (!dials)
        snprintf(set, CANDIDATE_SET_BYTES, "%s", changes);
    else
        snprintf(set, CANDIDATE_SET_BYTES, "%s%sloss=%g", changes, changes[0] != '\0' ? "," : "",
                 question->loss);
}

/* The plan of a row, within the question's tiers and sizes.  Borrows what the question's plan owns. */
static enum status row_plan(const struct row *row, const char *set, const struct choose_question *question,
                            struct plan *plan, struct error *error) {
    const struct model_config *config = question->model->config;
    *plan = *question->plan;
    if (plan->context_size < question->depth + 1) plan->context_size = question->depth + 1;
    TRY(plan_set_axes(plan, row->preset, set[0] != '\0' ? set : NULL, NULL, error));
    TRY(plan_set_host_bytes(plan, config, error));
    return plan_check_budget(plan, config, question->depth, error);
}

uint64_t plan_exact_below(const struct cost_model *model, const struct plan *plan, uint64_t context) {
    struct plan full = *plan;
    struct cost selected, everything;
    uint64_t below = 0;
    if (plan->select.method == NULL || plan->select.method == &select_all || plan->host_bytes > 0) return 0;
    if (plan_set_axes(&full, "full", NULL, NULL, NULL) != STATUS_OK) return 0;
    for (uint64_t depth = KV_CHUNK_TOKENS; depth <= context; depth += depth / 8 < 64 ? 64 : depth / 8) {
        if (cost_of_plan(&selected, model, plan, depth, NULL) != STATUS_OK ||
            cost_of_plan(&everything, model, &full, depth, NULL) != STATUS_OK ||
            everything.step_seconds > selected.step_seconds * CHOOSE_MARGIN)
            return below;
        below = depth;
    }
    return below;
}

static enum status add_row(struct choices *choices, const struct row *row,
                           const struct choose_question *question, struct error *error) {
    struct candidate *candidate = &choices->list[choices->count];
    struct plan plan;
    char set[CANDIDATE_SET_BYTES];
    if (row->needs_disk && question->plan->disk_directory == NULL) return STATUS_OK;
    *candidate =
        (struct candidate){.preset = row->preset, .is_exact = row->is_exact, .kld = row->is_exact ? 0 : NAN};
    set_text(row, question, set);
    memcpy(candidate->set, set, sizeof set);
    TRY(row_plan(row, set, question, &plan, error));
    candidate->host_bytes = plan.host_bytes;
    snprintf(candidate->text, sizeof candidate->text, "%s%s%s", row->preset, set[0] != '\0' ? " " : "", set);
    TRY(cost_of_plan(&candidate->cost, question->model, &plan, question->depth, error));
    if (!row->is_exact && question->kld != NULL)
        candidate->kld = question->kld(question->kld_context, candidate->text);
    candidate->loss = plan.select.loss;
    /* A dial does not see what 4-bit pages lose. */
    const bool is_held = plan.select.loss > 0 && !plan.quantized_pages;
    candidate->is_allowed = row->is_exact || is_held || candidate->kld <= question->kld_max;
    candidate->row = (size_t)(row - rows);
    candidate->exact_below = plan_exact_below(question->model, &plan, question->depth);
    if (candidate->exact_below > question->depth) candidate->exact_below = question->depth;
    choices->count++;
    return STATUS_OK;
}

/* What loses something must be worth it. */
static double key_of(const struct candidate *candidate) {
    return candidate->cost.step_seconds * (candidate->is_exact ? 1 : CHOOSE_MARGIN);
}

/* Of equal ones the exact one; then as in the list. */
static int by_seconds(const void *first, const void *second) {
    const struct candidate *a = first, *b = second;
    if (a->is_allowed != b->is_allowed) return a->is_allowed ? -1 : 1;
    if (key_of(a) != key_of(b)) return key_of(a) < key_of(b) ? -1 : 1;
    if (a->is_exact != b->is_exact) return a->is_exact ? -1 : 1;
    return a->row < b->row ? -1 : a->row > b->row;
}

enum status plan_choose(struct choices *choices, const struct choose_question *question,
                        struct error *error) {
    struct error full_error = {0};
    *choices = (struct choices){.count = 0};
    for (size_t i = 0; i < ROW_COUNT; i++) {
        struct error refused;
        if (add_row(choices, &rows[i], question, &refused) == STATUS_OK) continue;
        choices->refused = refused;
        if (i == 0) full_error = refused;
    }
    qsort(choices->list, choices->count, sizeof *choices->list, by_seconds);
    if (choices->count > 0 && choices->list[0].is_allowed) return STATUS_OK;
    if (error != NULL) *error = full_error.status != STATUS_OK ? full_error : choices->refused;
    return error != NULL ? error->status : STATUS_FAILED;
}

#include "plan/choose.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

struct row {
    const char *preset, *set;
    bool is_exact, needs_disk;
    bool dials; /* with a loss it is considered with the dial; the others are there to compare */
};

/* The exact ones first, then changes of presets, then the presets that are planned (presets.h). */
static const struct row rows[] = {
    {.preset = "full", .is_exact = true},
    {.preset = "kvpr", .is_exact = true, .needs_disk = true},
    {.preset = "full", .set = "codec=q8"},
    {.preset = "leoam", .set = "codec=f16", .needs_disk = true, .dials = true},
};
enum { ROW_COUNT = sizeof rows / sizeof *rows };
_Static_assert((int)ROW_COUNT + (int)PRESETS_MAX <= (int)CANDIDATES_MAX, "each has a place");

/* false: there are no more, or the preset is not planned. */
static bool row_at(size_t index, struct row *row) {
    if (index < ROW_COUNT) {
        *row = rows[index];
        return true;
    }
    const struct preset *preset = preset_table[index - ROW_COUNT];
    *row = (struct row){.preset = preset->name, .dials = preset->planning == PRESET_DIALS};
    return preset->planning != PRESET_IS_NOT_PLANNED;
}

bool cost_models_init(struct cost_models *models, const struct machine *machine, size_t thread_count,
                      const struct model_config *config, const struct gguf *gguf) {
    const size_t all = thread_count != 0 ? thread_count : machine->thread_count;
    models->count = 0;
    for (size_t count = all, power = (size_t)1 << (MACHINE_THREAD_COUNTS - 1); count > 0;) {
        struct machine *fewer = &models->machines[models->count];
        if (machine_with_threads(fewer, machine, count))
            cost_model_init(&models->list[models->count++], fewer, config, gguf);
        while (power >= count) power /= 2;
        count = thread_count != 0 ? 0 : power;
    }
    return models->count > 0;
}

/* The row's changes, with the dial if it selects. */
static void set_text(const struct row *row, const struct choose_question *question, char set[CANDIDATE_SET_BYTES]) {
    const char *changes = row->set != NULL ? row->set : "";
    const bool dials = question->loss > 0 && row->dials;
    if (!dials)
        snprintf(set, CANDIDATE_SET_BYTES, "%s", changes);
    else
        snprintf(set, CANDIDATE_SET_BYTES, "%s%sloss=%g", changes, changes[0] != '\0' ? "," : "", question->loss);
}

/* ---- what a plan runs with ---- */

/* One way to run a row of the list. */
struct setting {
    const struct cost_model *model; /* of a number of threads */
    size_t sequences;
    uint64_t budget_bytes; /* of KV, where the question has no budget; 0: what plan_set_host_bytes takes */
};

/* Of a device with memory of its own: as the engine will, beside the weights. */
static enum status place_on_device(struct plan *plan, const struct cost_model *model, struct error *error) {
    const double all = model->machine->device_bytes, weights = (double)model->device_weight_bytes;
    char needed[32], has[32];
    if (!(model->machine->device_link > 0)) return STATUS_OK;
    if (weights > all)
        return error_set(error, STATUS_MEMORY,
                         "the weights need %s, the device has %s: try -ngl N, or --device cpu; loam inspect says N",
                         bytes_text(model->device_weight_bytes, needed, sizeof needed),
                         bytes_text((uint64_t)all, has, sizeof has));
    plan_bound_memory(plan, (uint64_t)(all - weights));
    return plan->disk_directory == NULL ? plan_fit_context(plan, model->config, error) : STATUS_OK;
}

/* The plan of a row, within the question's tiers and sizes.  Borrows what the question's plan owns. */
static enum status row_plan(const struct row *row, const char *set, const struct choose_question *question,
                            const struct setting *setting, struct plan *plan, struct error *error) {
    const struct model_config *config = setting->model->config;
    *plan = *question->plan;
    if (plan->context_size < question->depth + 1) plan->context_size = question->depth + 1;
    if (question->sequences == 0 || plan->sequence_capacity < setting->sequences)
        plan->sequence_capacity = setting->sequences;
    plan->memory_bytes = question->memory_bytes;
    if (setting->budget_bytes > 0) {
        plan->has_budget = true;
        plan->budget_bytes = setting->budget_bytes;
    }
    TRY(plan_set_axes(plan, row->preset, set[0] != '\0' ? set : NULL, NULL, error));
    TRY(place_on_device(plan, setting->model, error));
    TRY(plan_set_host_bytes(plan, config, error));
    return plan_check_budget(plan, config, question->depth, error);
}

bool plan_may_read_disk(const struct choose_question *question, const struct model_config *config,
                        const struct weight_sizes *weights) {
    const struct plan *plan = question->plan;
    uint64_t kv_bytes;
    if (plan->disk_directory != NULL || question->weights_host_bytes > 0) return true;
    if (question->memory_bytes == 0) return false; /* not known: there is enough */
    if (!checked_multiply(plan_sequence_bytes(config, plan->k_type, plan->v_type, question->depth), 2, &kv_bytes))
        return true;
    return kv_bytes > question->memory_bytes || question->memory_bytes - kv_bytes < weights->all;
}

uint64_t plan_weights_host_bytes(const struct weight_sizes *weights, uint64_t memory_bytes, uint64_t kv_bytes) {
    const uint64_t spare = memory_bytes > kv_bytes ? memory_bytes - kv_bytes : 0;
    if (memory_bytes == 0 || spare >= weights->all) return 0;
    return weight_sizes_host_bytes(weights, spare);
}

/* What there is of the weights in RAM beside the KV of a plan whose cost is known. */
static enum status place_weights(const struct choose_question *question, const struct setting *setting,
                                 const struct cost *cost, uint64_t *host_bytes, struct error *error) {
    const struct weight_sizes *weights = &setting->model->weights;
    const uint64_t kv = cost->host_bytes, memory = question->memory_bytes;
    *host_bytes = question->weights_host_bytes;
    if (setting->model->machine->device_link > 0) { /* a device has memory of its own, and all weights there */
        if (memory == 0 || kv <= memory) return STATUS_OK;
        return error_set(error, STATUS_MEMORY, "%llu MiB of memory: KV takes %llu MiB beside what the device has",
                         (unsigned long long)memory >> 20, (unsigned long long)kv >> 20);
    }
    if (*host_bytes > 0) {
        if (weight_sizes_host_bytes(weights, *host_bytes) > 0) return STATUS_OK;
        return error_set(error, STATUS_MEMORY, "--weights-host: %llu MiB, %s need more",
                         (unsigned long long)*host_bytes >> 20,
                         weights->mixture.count > 0 ? "all but the experts, and those of a token,"
                                                    : "the output matrix and two layers");
    }
    *host_bytes = plan_weights_host_bytes(weights, memory, kv);
    if (memory == 0 || *host_bytes > 0 || (memory > kv && memory - kv >= weights->all)) return STATUS_OK;
    return error_set(error, STATUS_MEMORY,
                     "%llu MiB of memory: KV takes %llu MiB of it, and the least of the weights do not fit "
                     "beside it",
                     (unsigned long long)memory >> 20, (unsigned long long)kv >> 20);
}

/* The row run in one way, into *candidate, whose names are set. */
static enum status try_setting(struct candidate *candidate, struct plan *plan, const struct row *row,
                               const struct choose_question *question, const struct setting *setting,
                               struct error *error) {
    struct cost_work work = {.depth = question->depth, .sequences = setting->sequences};
    TRY(row_plan(row, candidate->set, question, setting, plan, error));
    TRY(cost_of_plan(&candidate->cost, setting->model, plan, &work, error));
    TRY(place_weights(question, setting, &candidate->cost, &work.weights_host_bytes, error));
    if (work.weights_host_bytes > 0) TRY(cost_of_plan(&candidate->cost, setting->model, plan, &work, error));
    candidate->host_bytes = plan->host_bytes;
    candidate->thread_count = setting->model->machine->thread_count;
    candidate->sequences = setting->sequences;
    candidate->weights_host_bytes = work.weights_host_bytes;
    candidate->resident_experts = weight_sizes_experts(
        &setting->model->weights, work.weights_host_bytes > 0 ? work.weights_host_bytes : UINT64_MAX);
    candidate->resident_layers = work.weights_host_bytes > 0
                                     ? weight_sizes_resident(&setting->model->weights, work.weights_host_bytes)
                                     : setting->model->config->layer_count;
    return STATUS_OK;
}

/* The quickest division of the memory between KV and weights, where there is a choice.  KV that fits beside all
 * weights is not divided. */
static enum status try_divisions(struct candidate *best, struct plan *best_plan, const struct row *row,
                                 const struct choose_question *question, struct setting setting, struct error *error) {
    const struct plan *sizes = question->plan;
    const enum status whole = try_setting(best, best_plan, row, question, &setting, error);
    if (sizes->disk_directory == NULL || sizes->has_budget || question->memory_bytes == 0 ||
        (whole == STATUS_OK && best->weights_host_bytes == 0))
        return whole;
    bool found = whole == STATUS_OK;
    for (uint64_t i = 1; i < CHOOSE_DIVISIONS; i++) {
        struct candidate candidate = *best;
        struct plan plan;
        struct error refused;
        setting.budget_bytes = question->memory_bytes / CHOOSE_DIVISIONS * i;
        if (try_setting(&candidate, &plan, row, question, &setting, &refused) != STATUS_OK) continue;
        if (found && candidate.cost.step_seconds >= best->cost.step_seconds) continue;
        *best = candidate;
        *best_plan = plan;
        found = true;
    }
    return found ? STATUS_OK : whole;
}

static bool is_better_with_fewer(const struct candidate *fewer, const struct candidate *all) {
    return fewer->cost.step_seconds * CHOOSE_MARGIN < all->cost.step_seconds &&
           fewer->cost.prompt_seconds <= all->cost.prompt_seconds * CHOOSE_MARGIN;
}

/* With each number of threads. */
static enum status try_threads(struct candidate *best, struct plan *best_plan, const struct row *row,
                               const struct choose_question *question, size_t sequences, struct error *error) {
    struct setting setting = {.model = &question->models[0], .sequences = sequences};
    TRY(try_divisions(best, best_plan, row, question, setting, error));
    const struct candidate all = *best;
    for (size_t i = 1; i < question->model_count; i++) {
        struct candidate candidate = all;
        struct plan plan;
        struct error refused;
        setting.model = &question->models[i];
        if (try_divisions(&candidate, &plan, row, question, setting, &refused) != STATUS_OK) continue;
        if (!is_better_with_fewer(&candidate, &all) || candidate.cost.step_seconds >= best->cost.step_seconds) continue;
        *best = candidate;
        *best_plan = plan;
    }
    return STATUS_OK;
}

/* With each number of sequences, if that is a choice: the fewest that are about as quick as any. */
static enum status try_sequences(struct candidate *best, struct plan *best_plan, const struct row *row,
                                 const struct choose_question *question, struct error *error) {
    struct candidate tried[8];
    struct plan plans[8];
    size_t count = 0, chosen = 0;
    double most = 0;
    if (question->sequences > 0) return try_threads(best, best_plan, row, question, question->sequences, error);
    for (size_t sequences = 1; sequences <= PLAN_SEQUENCES_MAX; sequences *= 2) {
        struct error refused;
        tried[count] = *best;
        enum status status = try_threads(&tried[count], &plans[count], row, question, sequences, &refused);
        if (status != STATUS_OK && count == 0) {
            *error = refused;
            return status;
        }
        if (status != STATUS_OK) break; /* more do not fit either */
        most = fmax(most, candidate_rate(&tried[count++]));
    }
    while (candidate_rate(&tried[chosen]) * CHOOSE_MARGIN < most) chosen++;
    *best = tried[chosen];
    *best_plan = plans[chosen];
    return STATUS_OK;
}
_Static_assert(PLAN_SEQUENCES_MAX < 1 << 8, "1, 2, 4 .. are at most eight");

/* ---- the choice ---- */

uint64_t plan_exact_below(const struct cost_model *model, const struct plan *plan, uint64_t context) {
    struct plan full = *plan;
    struct cost selected, everything;
    uint64_t below = 0;
    if (plan->select.method == NULL || plan->select.method == &select_all || plan->host_bytes > 0) return 0;
    if (plan_set_axes(&full, "full", NULL, NULL, NULL) != STATUS_OK) return 0;
    for (uint64_t depth = KV_CHUNK_TOKENS; depth <= context; depth += depth / 8 < 64 ? 64 : depth / 8) {
        const struct cost_work work = {.depth = depth};
        if (cost_of_plan(&selected, model, plan, &work, NULL) != STATUS_OK ||
            cost_of_plan(&everything, model, &full, &work, NULL) != STATUS_OK ||
            everything.step_seconds > selected.step_seconds * CHOOSE_MARGIN)
            return below;
        below = depth;
    }
    return below;
}

static const struct cost_model *model_of(const struct choose_question *question, size_t thread_count) {
    size_t i = 0;
    while (question->models[i].machine->thread_count != thread_count) i++;
    return &question->models[i];
}

static enum status add_row(struct choices *choices, size_t index, const struct row *row,
                           const struct choose_question *question, struct error *error) {
    struct candidate *candidate = &choices->list[choices->count];
    struct plan plan;
    char set[CANDIDATE_SET_BYTES];
    if (row->needs_disk && question->plan->disk_directory == NULL) return STATUS_OK;
    *candidate = (struct candidate){.preset = row->preset, .is_exact = row->is_exact, .kld = row->is_exact ? 0 : NAN};
    set_text(row, question, set);
    memcpy(candidate->set, set, sizeof set);
    snprintf(candidate->text, sizeof candidate->text, "%s%s%s", row->preset, set[0] != '\0' ? " " : "", set);
    TRY(try_sequences(candidate, &plan, row, question, error));
    if (!row->is_exact && question->kld != NULL) candidate->kld = question->kld(question->kld_context, candidate->text);
    candidate->loss = plan.select.loss;
    /* A dial does not see what 4-bit pages lose. */
    const bool is_held = plan.select.loss > 0 && !plan.quantized_pages;
    candidate->is_allowed = row->is_exact || is_held || candidate->kld <= question->kld_max;
    candidate->row = index;
    candidate->exact_below = plan_exact_below(model_of(question, candidate->thread_count), &plan, question->depth);
    if (candidate->exact_below > question->depth) candidate->exact_below = question->depth;
    choices->count++;
    return STATUS_OK;
}

/* Seconds of a token; what loses something must be worth it. */
static double key_of(const struct candidate *candidate) {
    return (candidate->is_exact ? 1 : CHOOSE_MARGIN) / candidate_rate(candidate);
}

/* Of equal ones the exact one; then as in the list. */
static int by_seconds(const void *first, const void *second) {
    const struct candidate *a = first, *b = second;
    if (a->is_allowed != b->is_allowed) return a->is_allowed ? -1 : 1;
    if (key_of(a) != key_of(b)) return key_of(a) < key_of(b) ? -1 : 1;
    if (a->is_exact != b->is_exact) return a->is_exact ? -1 : 1;
    return a->row < b->row ? -1 : a->row > b->row;
}

/* The device cannot run it, for the reason in *why. */
static bool is_left_out(const struct row *row, const struct choose_question *question, struct error *why) {
    const struct select_shape shape = plan_select_shape(question->models[0].config);
    struct plan plan = *question->plan;
    char set[CANDIDATE_SET_BYTES];
    set_text(row, question, set);
    if (plan_set_axes(&plan, row->preset, set[0] != '\0' ? set : NULL, NULL, NULL) != STATUS_OK) return false;
    struct error found;
    if (select_options_run_on(&plan.select, &shape, question->device, &found) == STATUS_OK) return false;
    *why = found;
    return true;
}

enum status plan_choose(struct choices *choices, const struct choose_question *question, struct error *error) {
    struct error full_error = {0};
    *choices = (struct choices){.count = 0};
    for (size_t i = 0; i < ROW_COUNT + preset_count; i++) {
        struct error refused;
        struct row row;
        if (!row_at(i, &row) || is_left_out(&row, question, &choices->left_out)) continue;
        if (add_row(choices, i, &row, question, &refused) == STATUS_OK) continue;
        choices->refused = refused;
        if (i == 0) full_error = refused;
    }
    qsort(choices->list, choices->count, sizeof *choices->list, by_seconds);
    if (choices->count > 0 && choices->list[0].is_allowed) return STATUS_OK;
    if (error != NULL) *error = full_error.status != STATUS_OK ? full_error : choices->refused;
    return error != NULL ? error->status : STATUS_FAILED;
}

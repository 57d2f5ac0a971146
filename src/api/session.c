/* loam.h: sessions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/checked.h"
#include "measure/auto.h"
#include "platform/pool.h"

static void tell(const struct loam_session *session, const char *line) {
    if (session->options.note != NULL && line != NULL) session->options.note(session->options.context, line);
}

/* ---- what the generation hears ---- */

static bool hear_progress(void *context, uint64_t done, uint64_t total) {
    struct loam_session *session = context;
    const struct loam_session_options *options = &session->options;
    bool stops = options->progress != NULL && options->progress(options->context, done, total);
    return stops || atomic_load(&session->cancelled);
}

static bool hear_stops(void *context) {
    struct loam_session *session = context;
    const struct loam_session_options *options = &session->options;
    return atomic_load(&session->cancelled) || (options->cancels != NULL && options->cancels(options->context));
}

static void hear_note(void *context, const char *line, bool amid_answer) {
    (void)amid_answer;
    tell(context, line);
}

/* ---- the engine ---- */

/* Adds up what the disk and the selection did, before the engine goes. */
static void keep_statistics(struct loam_session *session) {
    if (session->engine == NULL) return;
    const struct kv_tier_statistics tier = engine_tier_statistics(session->engine);
    counters_add(&kv_tier_counters, &session->tier, &tier);
    if (engine_select(session->engine) == NULL) return;
    const struct select_statistics select = attention_statistics(engine_attention(session->engine));
    select_statistics_add(&session->select, &select);
}

/* The contents of the sequences are gone with the engine. */
static void forget_sequences(struct loam_session *session) {
    for (struct loam_sequence *s = session->sequences; s != NULL; s = s->next) {
        sequence_destroy(s->answer.sequence);
        s->answer.sequence = NULL;
        s->pending = TOKEN_NONE;
        s->has_logits = s->counted = false;
    }
}

static void note_resident_layers(const struct loam_session *session) {
    const struct plan *plan = &session->plan;
    size_t wanted = min_size(plan->resident_layers, session->model->model->config.layer_count),
           resident = engine_tier_statistics(session->engine).resident_layers;
    char line[160];
    if (plan->disk_directory == NULL || resident >= wanted) return;
    snprintf(line, sizeof line, "of the first %zu layers, which are to stay in RAM, the budget holds %zu", wanted,
             resident);
    tell(session, line);
}

static void note_context(const struct loam_session *session) {
    const struct model_config *config = &session->model->model->config;
    char line[120];
    if (session->plan.context_size <= config->context_length) return;
    snprintf(line, sizeof line, "a context of %llu tokens, the model was trained for %llu",
             (unsigned long long)session->plan.context_size, (unsigned long long)config->context_length);
    tell(session, line);
}

/* Creates the engine from the plan and replaces the current one.  Sequences are empty afterwards. */
static enum status replace_engine(struct loam_session *session, bool found_damage, struct error *error) {
    const struct engine_options options = {.found_damage = found_damage, .trace = session->trace};
    keep_statistics(session);
    forget_sequences(session);
    engine_destroy(session->engine);
    session->engine = session->generation.engine = NULL;
    TRY(plan_set_host_bytes(&session->plan, &session->model->model->config, error));
    if (session->plan.disk_directory != NULL) session->plan.read_gap_bytes = machine_file_read_gap();
    TRY(engine_create(&session->engine, session->model->model, &session->plan, &options, error));
    session->generation.engine = session->engine;
    tell(session, engine_documents_warning(session->engine));
    note_resident_layers(session);
    tell(session, plan_caveat(&session->plan));
    tell(session, loam_session_note(session));
    if (!found_damage) note_context(session);
    return STATUS_OK;
}

static enum status make_again(void *context, struct engine **engine, struct error *error) {
    struct loam_session *session = context;
    enum status status = replace_engine(session, true, error);
    *engine = session->engine;
    return status;
}

/* ---- life ---- */

static enum status add_budget(struct plan *plan, uint64_t bytes, struct error *error) {
    if (bytes == 0) return STATUS_OK;
    plan->has_budget = true;
    if (!__builtin_add_overflow(plan->budget_bytes, bytes, &plan->budget_bytes)) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "the budgets of KV are more than any memory");
}

/* Threads and weights are of the model: its first session chooses them, before it runs. */
static enum status settle_model(struct loam_model *model, const struct auto_choice *choice, struct error *error) {
    if (model->is_settled) return STATUS_OK;
    model->is_settled = true;
    if (choice->thread_count != 0 && choice->thread_count != pool_thread_count(device_pool(model->device)))
        TRY(device_set_threads(model->device, choice->thread_count, error));
    if (choice->weights_host_bytes == 0) return STATUS_OK;
    model->weights_host_bytes = choice->weights_host_bytes;
    return model_limit_weights(model->model, choice->weights_host_bytes, NULL, error);
}

/* What "auto" stands for.  Its note is heard as others are. */
static enum status take_auto(struct loam_session *session, bool is_default, struct error *error) {
    struct auto_choice choice;
    struct plan *plan = &session->plan;
    struct loam_model *model = session->model;
    const bool chooses_sequences = session->options.sequence_capacity == LOAM_SEQUENCES_AUTO;
    const size_t threads = model->is_settled ? pool_thread_count(device_pool(model->device)) : model->thread_count;
    const struct auto_request request = {
        .machine = {.measure = {.thread_count = model->thread_count, .mask = model->mask}},
        .is_default = is_default,
        .thread_count = threads,
        .weights_host_bytes = model->weights_host_bytes,
        .keeps_weights = model->is_settled || device_memory_free(model->device) != UINT64_MAX,
        .sequences = chooses_sequences ? 0 : 1,
        .memory_bytes = session->options.memory_bytes,
        .depth = plan->wanted_tokens != 0 ? plan->wanted_tokens : plan_context_size(plan, &model->model->config)};
    TRY(auto_choose(plan, model->model, &request, &choice, error));
    if (choice.note[0] != '\0') tell(session, choice.note);
    if (chooses_sequences && choice.sequences > 0) plan->sequence_capacity = choice.sequences;
    return settle_model(model, &choice, error);
}

static enum status read_plan(struct loam_session *session, struct error *error) {
    struct plan *plan = &session->plan;
    const struct loam_session_options *options = &session->options;
    const struct model_config *config = &session->model->model->config;
    static const enum plan_suffix suffixes[] = {[LOAM_SUFFIX_DEFAULT] = SUFFIX_DENSE,
                                                [LOAM_SUFFIX_DENSE] = SUFFIX_DENSE,
                                                [LOAM_SUFFIX_SELECT] = SUFFIX_SELECTS,
                                                [LOAM_SUFFIX_AUTO] = SUFFIX_CHEAPER};
    if ((size_t)options->suffix >= sizeof suffixes / sizeof suffixes[0] || (size_t)options->k_type > LOAM_KV_Q8 ||
        (size_t)options->v_type > LOAM_KV_Q8)
        return error_set(error, STATUS_USAGE, "struct loam_session_options: suffix %d, k_type %d, v_type %d",
                         (int)options->suffix, (int)options->k_type, (int)options->v_type);
    plan->suffix = suffixes[options->suffix];
    plan->k_type = options->k_type == LOAM_KV_Q8 ? KV_Q8 : KV_F16;
    plan->v_type = options->v_type == LOAM_KV_Q8 ? KV_Q8 : KV_F16;
    plan->context_size = options->context_size;
    plan->sequence_capacity = options->sequence_capacity == LOAM_SEQUENCES_AUTO
                                  ? 1 /* until it is chosen */
                                  : max_size(options->sequence_capacity, 1);
    plan->batch_size = options->batch_size;
    plan->segment_size = options->segment_size;
    plan->wanted_tokens = options->wanted_tokens;
    if (options->disk_directory != NULL)
        TRY(plan_set_disk(plan, options->disk_directory, strlen(options->disk_directory), options->disk_bytes, error));
    TRY(add_budget(plan, options->kv_device_bytes, error));
    plan->device_budget_bytes = options->kv_device_bytes;
    TRY(add_budget(plan, options->kv_host_bytes, error));
    const char *preset = options->preset != NULL ? options->preset : plan_default_preset(options->set, options->keep);
    TRY(plan_set_axes(plan, preset, options->set, options->keep, error));
    TRY(take_auto(session, options->preset == NULL, error));
    if (plan->sequence_capacity > PLAN_SEQUENCES_MAX) return plan_check(plan, config, error);
    plan_bound_device(plan, session->model->device);
    return plan_fit_context(plan, config, error);
}

/* ---- the timeline ---- */

static enum status open_trace(struct loam_session *session, const char *path, struct error *error) {
    if (path == NULL) return STATUS_OK;
    session->trace_file = fopen(path, "we");
    if (session->trace_file == NULL) return error_set_os(error, STATUS_IO, errno, "%s", path);
    return trace_create(&session->trace, session->trace_file, error);
}

static void end_trace(struct loam_session *session) {
    struct error error;
    if (session->trace_file == NULL) return;
    enum status status = session->trace != NULL ? trace_finish(session->trace, &error) : STATUS_OK;
    if (fclose(session->trace_file) != 0 && status == STATUS_OK)
        status = error_set_os(&error, STATUS_IO, errno, "the timeline");
    trace_destroy(session->trace);
    if (status != STATUS_OK) tell(session, error.message);
}

/* ---- opening ---- */

static enum status session_open(struct loam_session *session, struct error *error) {
    struct loam_session_options *options = &session->options;
    TRY(open_trace(session, options->trace_path, error));
    TRY(read_plan(session, error));
    if (options->document_name != NULL) {
        session->document_name = strdup(options->document_name);
        if (session->document_name == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    }
    session->plan.document_name = session->document_name;
    options->preset = options->set = options->keep = NULL; /* borrowed until here */
    options->disk_directory = options->document_name = options->trace_path = NULL;
    session->generation = (struct generation){
        .tokenizer = session->model->tokenizer,
        .listener = {.context = session, .progress = hear_progress, .stops = hear_stops, .note = hear_note},
        .make_engine = make_again,
        .make_engine_context = session};
    return replace_engine(session, false, error);
}

enum loam_status loam_session_create(struct loam_session **session, struct loam_model *model,
                                     const struct loam_session_options *options, struct loam_error *error) {
    API_NEED(session, error);
    *session = NULL;
    API_NEED(model, error);
    struct error reason = {.message = "no memory for the session"};
    struct loam_session *made = calloc(1, sizeof *made);
    if (made == NULL) return api_report(STATUS_MEMORY, &reason, error);
    made->model = model;
    enum status status =
        api_read_options(&made->options, sizeof made->options, options, "loam_session_options", &reason);
    if (status == STATUS_OK) status = session_open(made, &reason);
    if (status == STATUS_OK)
        *session = made;
    else
        loam_session_destroy(made);
    return api_report(status, &reason, error);
}

void loam_session_destroy(struct loam_session *session) {
    if (session == NULL) return;
    engine_destroy(session->engine);
    end_trace(session);
    plan_deinit(&session->plan);
    free(session->document_name);
    free(session);
}

uint64_t loam_session_context_size(const struct loam_session *session) {
    if (session == NULL) return 0;
    return session->plan.context_size;
}

size_t loam_session_sequence_capacity(const struct loam_session *session) {
    if (session == NULL) return 0;
    return session->plan.sequence_capacity;
}

size_t loam_session_thread_count(const struct loam_session *session) {
    if (session == NULL) return 0;
    return pool_thread_count(device_pool(session->model->device));
}

const char *loam_session_note(const struct loam_session *session) {
    if (session == NULL) return NULL;
    const struct select *select = session->engine != NULL ? engine_select(session->engine) : NULL;
    return select != NULL ? select_fallback(select) : NULL;
}

void loam_session_cancel(struct loam_session *session) {
    if (session == NULL) return;
    atomic_store(&session->cancelled, true);
}

enum loam_status loam_session_receipt(const struct loam_session *session, struct loam_receipt *receipt,
                                      struct loam_error *error) {
    API_NEED(session, error);
    API_NEED(receipt, error);
    const struct generation_figures *figures = &session->generation.figures;
    struct loam_session sum = *session; /* with what the engine did so far */
    struct error reason = {0};
    keep_statistics(&sum);
    const struct kv_tier_statistics *tier = &sum.tier;
    const struct select_statistics *select = &sum.select;
    const struct mass_receipt *receipt_sum = &select->receipt;
    const struct mass_estimate left_out = mass_receipt_mean(receipt_sum);
    struct loam_receipt own = {.wait_seconds = (double)tier->wait_ns * 1e-9,
                               .read_bytes = tier->read_bytes,
                               .read_pages = tier->read_pages,
                               .write_bytes = tier->write_bytes,
                               .cache_hits = tier->hits,
                               .cache_misses = tier->misses,
                               .prefill_tokens = figures->prefill_tokens,
                               .reused_tokens = session->reused,
                               .decode_tokens = figures->step_tokens,
                               .prefill_seconds = figures->prefill_seconds,
                               .decode_seconds = figures->decode_seconds,
                               .kept_ratio = select->visible > 0 ? (double)select->kept / (double)select->visible : 1,
                               .left_out_count = receipt_sum->count,
                               .left_out = left_out.left_out,
                               .left_out_error = left_out.error,
                               .left_out_worst_step = receipt_sum->step_worst,
                               .left_out_worst_head = receipt_sum->worst.left_out};
    if (select->mass_bound.count > 0) own.mass_caught_min = select->mass_bound.sum / (double)select->mass_bound.count;
    if (session->engine != NULL)
        own.host_bytes = session->plan.host_bytes > 0 ? engine_tier_statistics(session->engine).host_bytes
                                                      : engine_kv_used_bytes(session->engine);
    return api_report(api_write(receipt, &own, sizeof own, "loam_receipt", &reason), &reason, error);
}

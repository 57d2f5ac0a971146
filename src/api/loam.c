/* loam: the public header over model, tokenizer, engine and sampler. */
#include "loam.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/engine.h"
#include "generate/sampler.h"
#include "plan/plan.h"
#include "token/tokenizer.h"

struct loam_model {
    struct device *device;
    struct model *model;
    struct tokenizer *tokenizer;
};

struct loam_session {
    struct loam_model *model;
    struct loam_session_options options;
    struct engine *engine;
    struct sequence *sequence;
    struct sampler *sampler;
    const float *logits; /* after the last token; NULL: none to sample from */
    int32_t pending;     /* sampled, but not yet in the sequence; -1: none */
};

static enum loam_status status_public(enum status status) {
    switch (status) {
    case STATUS_OK: return LOAM_OK;
    case STATUS_FAILED:
    case STATUS_UNSUPPORTED: return LOAM_FAILED;
    case STATUS_USAGE: return LOAM_USAGE;
    case STATUS_MODEL: return LOAM_BAD_MODEL;
    case STATUS_DOCUMENT: return LOAM_DOCUMENT;
    case STATUS_MEMORY:
    case STATUS_FULL: return LOAM_MEMORY;
    case STATUS_IO: return LOAM_IO;
    case STATUS_INTERRUPTED: return LOAM_INTERRUPTED;
    }
    return LOAM_FAILED;
}

static enum loam_status report(enum status status, const struct error *error, struct loam_error *target) {
    enum loam_status result = status_public(status);
    if (target == NULL) return result;
    *target = (struct loam_error){.status = result};
    if (status == STATUS_OK) return result;
    size_t length = min_size(strlen(error->message), sizeof target->message - 1);
    memcpy(target->message, error->message, length);
    return result;
}

struct loam_model_options loam_model_options_default(void) {
    return (struct loam_model_options){0};
}

struct loam_session_options loam_session_options_default(void) {
    const struct sampler_options sampler = sampler_options_default();
    return (struct loam_session_options){.temperature = sampler.temperature,
                                         .top_k = sampler.top_k,
                                         .top_p = sampler.top_p,
                                         .min_p = sampler.min_p,
                                         .repeat_penalty = sampler.repeat_penalty,
                                         .repeat_last = sampler.repeat_last};
}

static enum status model_open(struct loam_model *model, const char *path,
                              const struct loam_model_options *options, struct error *error) {
    struct device_options device = {.thread_count = options->thread_count, .mask = cpu_features()};
    if (options->cpu_mask != NULL) TRY(cpu_mask_parse(options->cpu_mask, &device.mask, error));
    TRY(device_cpu_create(&model->device, &device, error));
    TRY(model_load(&model->model, path, model->device, error));
    return tokenizer_create(&model->tokenizer, &model->model->gguf, options->force_pre, error);
}

enum loam_status loam_model_open(struct loam_model **model, const char *path,
                                 const struct loam_model_options *options, struct loam_error *error) {
    const struct loam_model_options usual = loam_model_options_default();
    struct error reason = {.message = "no memory for the model"};
    *model = NULL;
    struct loam_model *made = calloc(1, sizeof *made);
    enum status status =
        made == NULL ? STATUS_MEMORY : model_open(made, path, options != NULL ? options : &usual, &reason);
    if (status == STATUS_OK)
        *model = made;
    else
        loam_model_close(made);
    return report(status, &reason, error);
}

void loam_model_close(struct loam_model *model) {
    if (model == NULL) return;
    tokenizer_destroy(model->tokenizer);
    model_destroy(model->model);
    device_destroy(model->device);
    free(model);
}

const char *loam_model_name(const struct loam_model *model) { return model->model->config.name; }
uint64_t loam_model_context_length(const struct loam_model *model) {
    return model->model->config.context_length;
}
size_t loam_model_vocabulary_size(const struct loam_model *model) {
    return model->model->config.vocabulary_size;
}

enum loam_status loam_tokenize(const struct loam_model *model, const char *text, size_t length,
                               bool add_special, int32_t *ids, size_t capacity, size_t *count,
                               struct loam_error *error) {
    struct error reason = {0};
    struct token_list list = {0};
    const struct tokenize_options options = {.add_special = add_special};
    enum status status = tokenizer_encode(model->tokenizer, text, length, options, &list, &reason);
    *count = status == STATUS_OK ? list.count : 0;
    if (*count > 0 && capacity > 0) memcpy(ids, list.ids, min_size(*count, capacity) * sizeof *ids);
    token_list_deinit(&list);
    return report(status, &reason, error);
}

size_t loam_token_text(const struct loam_model *model, int32_t token, char *buffer, size_t capacity) {
    if (token < 0 || (size_t)token >= tokenizer_vocabulary_size(model->tokenizer)) return 0;
    return tokenizer_piece(model->tokenizer, token, false, buffer, capacity);
}

bool loam_token_is_end(const struct loam_model *model, int32_t token) {
    if (token < 0 || (size_t)token >= tokenizer_vocabulary_size(model->tokenizer)) return false;
    return tokenizer_is_end(model->tokenizer, token);
}

static enum status session_open(struct loam_session *session, struct error *error) {
    const struct loam_session_options *options = &session->options;
    struct model *model = session->model->model;
    const enum kv_type type = options->q8_kv ? KV_Q8 : KV_F16;
    struct plan plan = {.context_size = options->context_size,
                        .sequence_capacity = 1,
                        .batch_size = options->batch_size,
                        .k_type = type,
                        .v_type = type};
    TRY(plan_set_axes(&plan, options->preset, options->set, options->keep, error));
    const struct sampler_options sampler = {.temperature = options->temperature,
                                            .top_k = options->top_k,
                                            .top_p = options->top_p,
                                            .min_p = options->min_p,
                                            .repeat_penalty = options->repeat_penalty,
                                            .repeat_last = options->repeat_last,
                                            .seed = options->seed};
    TRY(sampler_create(&session->sampler, &sampler, model->config.vocabulary_size, error));
    TRY(engine_create(&session->engine, model, &plan, NULL, error));
    return sequence_create(&session->sequence, session->engine, error);
}

enum loam_status loam_session_create(struct loam_session **session, struct loam_model *model,
                                     const struct loam_session_options *options, struct loam_error *error) {
    struct error reason = {.message = "no memory for the session"};
    *session = NULL;
    struct loam_session *made = calloc(1, sizeof *made);
    if (made == NULL) return report(STATUS_MEMORY, &reason, error);
    made->model = model;
    made->options = options != NULL ? *options : loam_session_options_default();
    made->pending = -1;
    enum status status = session_open(made, &reason);
    made->options.preset = made->options.set = made->options.keep = NULL; /* borrowed until here */
    if (status == STATUS_OK)
        *session = made;
    else
        loam_session_destroy(made);
    return report(status, &reason, error);
}

void loam_session_destroy(struct loam_session *session) {
    if (session == NULL) return;
    sequence_destroy(session->sequence);
    engine_destroy(session->engine);
    sampler_destroy(session->sampler);
    free(session);
}

/* Puts the sampled token into the sequence, with the logits after it. */
static enum status settle(struct loam_session *session, struct error *error) {
    if (session->pending < 0) return STATUS_OK;
    session->logits = NULL;
    TRY(engine_step(session->engine, &session->sequence, &session->pending, 1, &session->logits, error));
    session->pending = -1;
    return STATUS_OK;
}

static enum status feed(struct loam_session *session, const int32_t *tokens, size_t count,
                        struct error *error) {
    const struct prefill_request request = {.tokens = tokens,
                                            .token_count = count,
                                            .progress = session->options.progress,
                                            .progress_context = session->options.progress_context};
    TRY(settle(session, error));
    uint64_t before = sequence_length(session->sequence);
    const float *logits = NULL;
    enum status status = engine_prefill(session->engine, session->sequence, &request, &logits, error);
    uint64_t stored = sequence_length(session->sequence) - before;
    if (stored > 0 || status == STATUS_OK) session->logits = logits;
    for (uint64_t i = 0; i < stored; i++) sampler_accept(session->sampler, tokens[i]);
    return status;
}

enum loam_status loam_session_feed(struct loam_session *session, const int32_t *tokens, size_t count,
                                   struct loam_error *error) {
    struct error reason = {0};
    enum status status = feed(session, tokens, count, &reason);
    if (status != STATUS_OK && status != STATUS_USAGE) session->logits = NULL;
    return report(status, &reason, error);
}

static enum status next(struct loam_session *session, int32_t *token, struct error *error) {
    if (loam_session_length(session) >= engine_context_size(session->engine))
        return error_set(error, STATUS_USAGE, "the context of %llu tokens is full",
                         (unsigned long long)engine_context_size(session->engine));
    TRY(settle(session, error));
    if (session->logits == NULL)
        return error_set(error, STATUS_USAGE, "nothing to go on from: feed tokens first");
    TRY(sampler_pick(session->sampler, session->logits, &session->pending, error));
    sampler_accept(session->sampler, session->pending);
    *token = session->pending;
    return STATUS_OK;
}

enum loam_status loam_session_next(struct loam_session *session, int32_t *token, struct loam_error *error) {
    struct error reason = {0};
    return report(next(session, token, &reason), &reason, error);
}

double loam_session_kept_ratio(const struct loam_session *session) {
    const struct select *select = engine_select(session->engine);
    if (select == NULL) return 1;
    struct select_statistics statistics = select_statistics(select);
    return statistics.visible > 0 ? (double)statistics.kept / (double)statistics.visible : 1;
}

const char *loam_session_note(const struct loam_session *session) {
    const struct select *select = engine_select(session->engine);
    return select != NULL ? select_fallback(select) : NULL;
}

uint64_t loam_session_length(const struct loam_session *session) {
    return sequence_length(session->sequence) + (session->pending >= 0 ? 1 : 0);
}

void loam_session_truncate(struct loam_session *session, uint64_t length) {
    if (length >= loam_session_length(session)) return;
    session->pending = -1;
    session->logits = NULL;
    sequence_truncate(session->sequence, length);
}

const char *loam_version(void) { return LOAM_VERSION; }

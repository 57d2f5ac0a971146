/* loam.h: sequences and answers. */
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/checked.h"
#include "grammar/json_answers.h"
#include "platform/clock.h"

_Static_assert(sizeof(struct loam_likely_token) == sizeof(struct token_probability) &&
                   offsetof(struct loam_likely_token, log_probability) ==
                       offsetof(struct token_probability, log_probability),
               "answers show them as they are");
_Static_assert(sizeof(struct loam_token_bias) == sizeof(struct token_bias) &&
                   offsetof(struct loam_token_bias, bias) == offsetof(struct token_bias, bias),
               "the sampler reads them as they are");

struct loam_sampling loam_sampling_default(void) {
    const struct sampler_options usual = sampler_options_default();
    return (struct loam_sampling){.temperature = usual.temperature,
                                  .top_k = usual.top_k,
                                  .top_p = usual.top_p,
                                  .min_p = usual.min_p,
                                  .repeat_penalty = usual.repeat_penalty,
                                  .repeat_last = usual.repeat_last};
}

static struct sampler_options sampling_of(const struct loam_sampling *given) {
    static const struct loam_sampling greedy;
    if (given == NULL) given = &greedy;
    return (struct sampler_options){.temperature = given->temperature,
                                    .top_k = given->top_k,
                                    .top_p = given->top_p == 0 ? 1 : given->top_p,
                                    .min_p = given->min_p,
                                    .repeat_penalty = given->repeat_penalty == 0 ? 1 : given->repeat_penalty,
                                    .repeat_last = given->repeat_last,
                                    .presence_penalty = given->presence_penalty,
                                    .frequency_penalty = given->frequency_penalty,
                                    .biases = (const struct token_bias *)given->biases,
                                    .bias_count = given->bias_count,
                                    .seed = given->seed};
}

/* ---- life ---- */

static enum status check_engine(const struct loam_session *session, struct error *error) {
    if (session->engine != NULL) return STATUS_OK;
    return error_set(error, STATUS_FAILED, "the session has failed: create another one");
}

/* Creates an engine sequence for a sequence that has none. */
static enum status revive(struct loam_sequence *sequence, struct error *error) {
    TRY(check_engine(sequence->session, error));
    if (sequence->answer.sequence != NULL) return STATUS_OK;
    sequence->answer.stored.count = sequence->answer.origins.count = 0;
    return sequence_create(&sequence->answer.sequence, sequence->session->engine, error);
}

static enum status sequence_open(struct loam_sequence *sequence, const struct loam_sampling *sampling,
                                 struct error *error) {
    struct loam_session *session = sequence->session;
    const struct sampler_options options = sampling_of(sampling);
    TRY(check_engine(session, error));
    sequence->logits = calloc(session->model->model->config.vocabulary_size, sizeof *sequence->logits);
    if (sequence->logits == NULL) return error_set(error, STATUS_MEMORY, "no memory for a sequence");
    return answer_create(&sequence->answer, &session->generation, &options, error);
}

enum loam_status loam_sequence_create(struct loam_sequence **sequence, struct loam_session *session,
                                      const struct loam_sampling *sampling, struct loam_error *error) {
    API_NEED(sequence, error);
    *sequence = NULL;
    API_NEED(session, error);
    struct error reason = {.message = "no memory for a sequence"};
    struct loam_sequence *made = calloc(1, sizeof *made);
    if (made == NULL) return api_report(STATUS_MEMORY, &reason, error);
    made->session = session;
    made->pending = TOKEN_NONE;
    made->next = session->sequences;
    session->sequences = made;
    enum status status = sequence_open(made, sampling, &reason);
    if (status == STATUS_OK)
        *sequence = made;
    else
        loam_sequence_destroy(made);
    return api_report(status, &reason, error);
}

void loam_sequence_destroy(struct loam_sequence *sequence) {
    if (sequence == NULL) return;
    struct loam_sequence **link = &sequence->session->sequences;
    while (*link != sequence) link = &(*link)->next;
    *link = sequence->next;
    answer_destroy(&sequence->answer);
    free(sequence->logits);
    free(sequence);
}

uint64_t loam_sequence_length(const struct loam_sequence *sequence) {
    if (sequence == NULL) return 0;
    const struct sequence *held = sequence->answer.sequence;
    return (held != NULL ? sequence_length(held) : 0) + (sequence->pending != TOKEN_NONE ? 1 : 0);
}

void loam_sequence_truncate(struct loam_sequence *sequence, uint64_t length) {
    if (sequence == NULL) return;
    if (length >= loam_sequence_length(sequence)) return;
    sequence->pending = TOKEN_NONE;
    sequence->has_logits = false;
    answer_truncate(&sequence->answer, (size_t)length);
}

enum loam_status loam_sequence_save(struct loam_sequence *sequence, struct loam_error *error) {
    API_NEED(sequence, error);
    struct error reason = {0};
    struct sequence *held = sequence->answer.sequence;
    return api_report(held != NULL ? sequence_flush(held, &reason) : STATUS_OK, &reason, error);
}

/* Once its first prompt is in. */
static void count_reused(struct loam_sequence *sequence) {
    const struct sequence *held = sequence->answer.sequence;
    if (sequence->counted || held == NULL || sequence_length(held) == 0) return;
    sequence->counted = true;
    sequence->session->reused += sequence_reused_tokens(held);
}

/* Of one session, each of them once. */
static enum status check_sequences(const struct loam_session *session, struct loam_sequence *const *sequences,
                                   size_t count, struct error *error) {
    if (count == 0 || count > session->plan.sequence_capacity)
        return error_set(error, STATUS_USAGE, "%zu sequences: expected 1 to %zu", count,
                         session->plan.sequence_capacity);
    for (size_t i = 0; i < count; i++) {
        if (sequences[i] == NULL || sequences[i]->session != session)
            return error_set(error, STATUS_USAGE, "sequence %zu is not of this session", i);
        for (size_t j = 0; j < i; j++)
            if (sequences[j] == sequences[i])
                return error_set(error, STATUS_USAGE, "sequences %zu and %zu are the same", j, i);
    }
    return STATUS_OK;
}

/* ---- token by token ---- */

static void take_logits(struct loam_sequence *sequence, const float *logits) {
    const struct model_config *config = &sequence->session->model->model->config;
    memcpy(sequence->logits, logits, config->vocabulary_size * sizeof *logits);
    sequence->has_logits = true;
}

/* Appends sampled tokens to their sequences and stores the logits after them. */
static enum status settle(struct loam_session *session, struct loam_sequence *const *sequences, size_t count,
                          struct error *error) {
    struct answer *answers[ENGINE_SEQUENCES_MAX] = {NULL};
    struct loam_sequence *pending[ENGINE_SEQUENCES_MAX] = {NULL};
    token_id tokens[ENGINE_SEQUENCES_MAX] = {0};
    size_t wanted = 0;
    for (size_t i = 0; i < count; i++) {
        if (sequences[i]->pending == TOKEN_NONE) continue;
        pending[wanted] = sequences[i];
        answers[wanted] = &sequences[i]->answer;
        tokens[wanted++] = sequences[i]->pending;
    }
    if (wanted == 0) return STATUS_OK;
    const float *logits;
    double began = clock_seconds();
    enum status status = generation_step(&session->generation, answers, tokens, wanted, &logits, error);
    session->generation.figures.decode_seconds += clock_seconds() - began;
    for (size_t i = 0; i < wanted; i++) pending[i]->has_logits = false;
    TRY(status);
    for (size_t i = 0; i < wanted; i++) {
        pending[i]->pending = TOKEN_NONE;
        take_logits(pending[i], logits + i * session->model->model->config.vocabulary_size);
    }
    return STATUS_OK;
}

static enum status feed(struct loam_sequence *sequence, const int32_t *tokens, size_t token_count,
                        struct error *error) {
    struct loam_session *session = sequence->session;
    const float *logits = NULL;
    atomic_store(&session->cancelled, false);
    TRY(revive(sequence, error));
    TRY(settle(session, &sequence, 1, error));
    sequence->prompt = (struct token_list){.ids = (token_id *)tokens, .count = token_count};
    sequence->answer.prompt = &sequence->prompt;
    enum status status = generation_feed(&session->generation, &sequence->answer, &logits, error);
    sequence->answer.prompt = NULL;
    count_reused(sequence);
    if (status == STATUS_OK)
        take_logits(sequence, logits);
    else if (status != STATUS_USAGE) /* nothing was done */
        sequence->has_logits = false;
    return status;
}

enum loam_status loam_sequence_feed(struct loam_sequence *sequence, const int32_t *tokens, size_t token_count,
                                    struct loam_error *error) {
    API_NEED(sequence, error);
    if (token_count > 0) API_NEED(tokens, error);
    struct error reason = {0};
    return api_report(feed(sequence, tokens, token_count, &reason), &reason, error);
}

static enum status next(struct loam_session *session, struct loam_sequence *const *sequences, size_t count,
                        int32_t *tokens, struct error *error) {
    TRY(check_engine(session, error));
    TRY(check_sequences(session, sequences, count, error));
    for (size_t i = 0; i < count; i++) {
        if (loam_sequence_length(sequences[i]) >= session->plan.context_size)
            return error_set(error, STATUS_USAGE, "the context of %llu tokens is full",
                             (unsigned long long)session->plan.context_size);
        if (!sequences[i]->has_logits && sequences[i]->pending == TOKEN_NONE)
            return error_set(error, STATUS_USAGE, "nothing to go on from: feed tokens first");
    }
    TRY(settle(session, sequences, count, error));
    for (size_t i = 0; i < count; i++) {
        struct loam_sequence *sequence = sequences[i];
        enum status status = sampler_pick(sequence->answer.sampler, sequence->logits, &sequence->pending, error);
        if (status == STATUS_FAILED) TRY(engine_check_weights(session->engine, error));
        TRY(status);
        sampler_accept(sequence->answer.sampler, sequence->pending);
        tokens[i] = sequence->pending;
    }
    return STATUS_OK;
}

enum loam_status loam_session_next(struct loam_session *session, struct loam_sequence *const *sequences,
                                   size_t sequence_count, int32_t *tokens, struct loam_error *error) {
    API_NEED(session, error);
    API_NEED(sequences, error);
    API_NEED(tokens, error);
    struct error reason = {0};
    return api_report(next(session, sequences, sequence_count, tokens, &reason), &reason, error);
}

/* ---- whole answers ---- */

static enum status sink(void *context, const char *bytes, size_t length, struct error *error) {
    const struct loam_sequence *sequence = context;
    const struct loam_generate_options *options = sequence->session->generating;
    if (!options->text(options->context, sequence->index, bytes, length)) return STATUS_OK;
    return error_set(error, STATUS_INTERRUPTED, "interrupted");
}

/* The sequence keeps the prefix that it shares with the prompt, and must be fed the rest. */
static enum status begin_answer(const struct loam_prompt *prompt, size_t index, struct error *error) {
    struct loam_sequence *sequence = prompt->sequence;
    struct answer *answer = &sequence->answer;
    TRY(revive(sequence, error));
    size_t shared = answer_keep_shared(answer, prompt->tokens, prompt->token_count);
    sequence->prompt =
        (struct token_list){.ids = (token_id *)prompt->tokens + shared, .count = prompt->token_count - shared};
    sequence->pending = TOKEN_NONE;
    sequence->has_logits = false;
    sequence->index = index;
    answer_begin(answer);
    answer->prompt = &sequence->prompt;
    answer->sink = sequence->session->generating->text != NULL ? sink : NULL;
    answer->sink_context = sequence;
    return STATUS_OK;
}

static enum status set_form(struct loam_session *session, struct answer *const *answers, size_t count,
                            struct json_answers *forms, const char *schema, struct error *error) {
    if (schema == NULL) return STATUS_OK;
    TRY(json_answers_open(forms, schema, strlen(schema), "json_schema", error));
    for (size_t i = 0; i < count; i++)
        TRY(json_answers_mask(forms, session->model->tokenizer, answers[i]->sampler, error));
    return STATUS_OK;
}

static enum status generate(struct loam_session *session, const struct loam_prompt *prompts, size_t count,
                            const struct loam_generate_options *options, struct json_answers *forms,
                            struct error *error) {
    struct generation *generation = &session->generation;
    struct loam_sequence *sequences[ENGINE_SEQUENCES_MAX] = {NULL};
    struct answer *answers[ENGINE_SEQUENCES_MAX] = {NULL};
    atomic_store(&session->cancelled, false);
    for (size_t i = 0; i < count && i < ENGINE_SEQUENCES_MAX; i++) sequences[i] = prompts[i].sequence;
    TRY(check_sequences(session, sequences, count, error));
    for (size_t i = 0; i < count; i++)
        if (prompts[i].tokens == NULL)
            return error_set(error, STATUS_USAGE, "loam_generate: prompts[%zu].tokens is NULL", i);
    if (options->stop_count > 0 && options->stops == NULL)
        return error_set(error, STATUS_USAGE, "loam_generate: stops is NULL");
    if (options->top_count > GENERATION_TOP_MAX)
        return error_set(error, STATUS_USAGE, "top_count: found %zu, expected at most %d", options->top_count,
                         GENERATION_TOP_MAX);
    for (size_t i = 0; i < options->stop_count; i++)
        if (options->stops[i] == NULL || options->stops[i][0] == '\0')
            return error_set(error, STATUS_USAGE, "stops[%zu]: found nothing, expected a text", i);
    generation->stops = options->stops;
    generation->stop_count = options->stop_count;
    generation->token_max = options->token_max > 0 ? (int64_t)min_size(options->token_max, INT64_MAX) : -1;
    generation->ignore_end = options->ignore_end;
    generation->top_count = options->top_count;
    generation->draft_max = DRAFT_MAX;
    for (size_t i = 0; i < count; i++) TRY(begin_answer(&prompts[i], i, error));
    for (size_t i = 0; i < count; i++) answers[i] = &sequences[i]->answer;
    enum status status = set_form(session, answers, count, forms, options->json_schema, error);
    if (status == STATUS_OK) status = generation_run(generation, answers, count, error);
    for (size_t i = 0; i < count; i++) {
        sampler_set_mask(answers[i]->sampler, NULL);
        answers[i]->prompt = NULL;
        answers[i]->sink = NULL;
        count_reused(sequences[i]);
    }
    generation->stops = NULL; /* the caller's */
    generation->stop_count = 0;
    return status;
}

enum loam_status loam_generate(struct loam_session *session, const struct loam_prompt *prompts, size_t prompt_count,
                               const struct loam_generate_options *options, struct loam_error *error) {
    API_NEED(session, error);
    API_NEED(prompts, error);
    struct loam_generate_options own;
    struct error reason = {0};
    enum status status = api_read_options(&own, sizeof own, options, "loam_generate_options", &reason);
    struct json_answers forms = {.schema = NULL};
    session->generating = &own;
    if (status == STATUS_OK) status = generate(session, prompts, prompt_count, &own, &forms, &reason);
    json_answers_close(&forms);
    session->generating = NULL;
    return api_report(status, &reason, error);
}

static enum loam_stop stop_public(enum stop_reason reason) {
    switch (reason) {
    case STOP_NONE: return LOAM_STOP_NONE;
    case STOP_END: return LOAM_STOP_END;
    case STOP_STRING: return LOAM_STOP_STRING;
    case STOP_LENGTH: return LOAM_STOP_LENGTH;
    case STOP_CONTEXT: return LOAM_STOP_CONTEXT;
    case STOP_LOOP: return LOAM_STOP_LOOP;
    case STOP_INTERRUPTED: return LOAM_STOP_INTERRUPTED;
    case STOP_FAILED: return LOAM_STOP_FAILED;
    }
    return LOAM_STOP_FAILED;
}

enum loam_status loam_sequence_answer(const struct loam_sequence *sequence, struct loam_answer *answer,
                                      struct loam_error *error) {
    API_NEED(sequence, error);
    API_NEED(answer, error);
    const struct answer *last = &sequence->answer;
    struct error reason = {0};
    const struct loam_answer own = {.stop = stop_public(last->stop),
                                    .tokens = last->tokens.ids,
                                    .token_count = last->tokens.count,
                                    .top = last->tokens.count > 0 ? (const struct loam_likely_token *)last->top : NULL,
                                    .reused_tokens =
                                        last->sequence != NULL ? sequence_reused_tokens(last->sequence) : 0};
    return api_report(api_write(answer, &own, sizeof own, "loam_answer", &reason), &reason, error);
}

#include "cli/generate.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "cli/interrupt.h"
#include "cli/json_file.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "platform/clock.h"

const char *stop_reason_name(enum stop_reason reason) {
    switch (reason) {
    case STOP_NONE: return "none";
    case STOP_END: return "end";
    case STOP_LENGTH: return "length";
    case STOP_CONTEXT: return "context";
    case STOP_INTERRUPTED: return "interrupted";
    case STOP_FAILED: return "failed";
    }
    return "none";
}

enum status answer_create(struct answer *answer, const struct generation *generation,
                          const struct options *options, uint64_t seed, struct error *error) {
    *answer = (struct answer){.seed = seed};
    const struct session *session = generation->session;
    struct sampler_options sampling = {
        .temperature = (float)option_number(options, OPTION_TEMPERATURE),
        .top_k = (uint32_t)option_count(options, OPTION_TOP_K),
        .top_p = (float)option_number(options, OPTION_TOP_P),
        .min_p = (float)option_number(options, OPTION_MIN_P),
        .repeat_penalty = (float)option_number(options, OPTION_REPEAT_PENALTY),
        .repeat_last = (uint32_t)option_count(options, OPTION_REPEAT_LAST),
        .seed = seed,
    };
    size_t vocabulary = session->model->config.vocabulary_size;
    TRY(sampler_create(&answer->sampler, &sampling, vocabulary, error));
    if (generation->top_count > 0) answer->top_logprobs = json_array();
    return sequence_create(&answer->sequence, session->engine, error);
}

void answer_destroy(struct answer *answer) {
    sequence_destroy(answer->sequence);
    sampler_destroy(answer->sampler);
    token_list_deinit(&answer->tokens);
    token_list_deinit(&answer->stored);
    token_list_deinit(&answer->origins);
    json_decref(answer->top_logprobs);
    *answer = (struct answer){0};
}

static json_t *top_json(const float *logits, size_t vocabulary_size, size_t count) {
    struct token_probability top[100];
    if (count > sizeof top / sizeof top[0]) count = sizeof top / sizeof top[0];
    sampler_top(logits, vocabulary_size, top, count);
    json_t *list = json_array();
    for (size_t i = 0; i < count && top[i].id >= 0; i++) {
        json_t *item = json_object();
        json_add(item, "id", json_integer(top[i].id));
        json_add_number(item, "logprob", (double)top[i].log_probability);
        json_array_append_new(list, item);
    }
    return list;
}

static enum status emit(const struct generation *generation, struct answer *answer, token_id id,
                        struct error *error) {
    const struct tokenizer *tokenizer = generation->session->tokenizer;
    if (tokenizer == NULL || answer->sink == NULL) return STATUS_OK;
    char small[256], *piece = small;
    size_t length = tokenizer_piece(tokenizer, id, false, small, sizeof small);
    if (length > sizeof small) {
        piece = malloc(length);
        if (piece == NULL)
            return error_set(error, STATUS_MEMORY, "no memory for a token of %zu bytes", length);
        length = tokenizer_piece(tokenizer, id, false, piece, length);
    }
    for (size_t done = 0; done < length; done += sizeof small) {
        char shown[3 * (sizeof small + UTF8_BYTES_MOST)]; /* utf8_stream_bound(sizeof small) */
        size_t count =
            utf8_stream_push(&answer->utf8, piece + done, min_size(sizeof small, length - done), shown);
        if (count > 0) answer->sink(answer->sink_context, shown, count);
    }
    if (piece != small) free(piece);
    return answer->streams ? output_flush(error) : STATUS_OK;
}

static void finish(struct answer *answer, enum stop_reason reason) {
    answer->stop = reason;
    char shown[3 * UTF8_BYTES_MOST]; /* utf8_stream_bound(0) */
    size_t count = utf8_stream_finish(&answer->utf8, shown);
    if (answer->sink != NULL && count > 0) answer->sink(answer->sink_context, shown, count);
}

/* Samples the next token of one answer from its row of logits and decides whether it goes on. */
static enum status take(const struct generation *generation, struct answer *answer, const float *logits,
                        struct error *error) {
    const struct session *session = generation->session;
    token_id id;
    TRY(sampler_pick(answer->sampler, logits, &id, error));
    sampler_accept(answer->sampler, id);
    TRY(token_list_append(&answer->tokens, id, error));
    if (answer->top_logprobs != NULL)
        json_array_append_new(answer->top_logprobs, top_json(logits, session->model->config.vocabulary_size,
                                                             generation->top_count));
    bool is_end = session->tokenizer != NULL && tokenizer_is_end(session->tokenizer, id);
    if (is_end && !generation->ignore_end) {
        finish(answer, STOP_END);
        return STATUS_OK;
    }
    TRY(emit(generation, answer, id, error));
    if (generation->token_most >= 0 && answer->tokens.count >= (uint64_t)generation->token_most)
        finish(answer, STOP_LENGTH);
    else if (sequence_length(answer->sequence) >= engine_context_size(session->engine))
        finish(answer, STOP_CONTEXT);
    return STATUS_OK;
}

static enum status note_stored(struct answer *answer, token_id id, enum token_origin origin,
                               struct error *error) {
    TRY(token_list_append(&answer->stored, id, error));
    return token_list_append(&answer->origins, (token_id)origin, error);
}

void answer_truncate(struct answer *answer, size_t token_count) {
    sequence_truncate(answer->sequence, token_count);
    if (answer->stored.count > token_count) answer->stored.count = answer->origins.count = token_count;
}

/* What a prefill of tokens has stored.  Behind a document that was opened the last ones may have selected. */
static enum status note_prefill(struct answer *answer, const token_id *tokens, struct error *error) {
    size_t before = answer->stored.count, length = (size_t)sequence_length(answer->sequence);
    size_t selected = before == 0 ? (size_t)sequence_selected_tokens(answer->sequence) : 0;
    for (size_t i = before; i < length; i++)
        TRY(note_stored(answer, tokens[i - before], i + selected >= length ? ORIGIN_SELECTS : ORIGIN_DENSE,
                        error));
    return STATUS_OK;
}

enum status generation_prefill(struct generation *generation, struct answer *answer, const token_id *tokens,
                               size_t token_count, struct error *error) {
    struct progress progress;
    progress_begin(&progress, "prefill", generation->quiet);
    struct prefill_request request = {.tokens = tokens,
                                      .token_count = token_count,
                                      .progress = progress_engine,
                                      .progress_context = &progress};
    for (size_t i = 0; i < token_count && !answer->accepted; i++) sampler_accept(answer->sampler, tokens[i]);
    uint64_t length = sequence_length(answer->sequence);
    double began = clock_seconds();
    const float *logits = NULL;
    enum status status =
        engine_prefill(generation->session->engine, answer->sequence, &request, &logits, error);
    generation->prefill_seconds += clock_seconds() - began;
    if (length == 0) length = sequence_reused_tokens(answer->sequence);
    if (sequence_length(answer->sequence) > length) /* not after a failure */
        generation->prefill_tokens += sequence_length(answer->sequence) - length;
    progress_end(&progress);
    answer->accepted = status == STATUS_DOCUMENT;
    if (!answer->accepted) TRY(note_prefill(answer, tokens, error));
    if (status == STATUS_OK && interrupt_requested())
        status = error_set(error, STATUS_INTERRUPTED, "interrupted");
    if (status != STATUS_OK) {
        finish(answer, status == STATUS_INTERRUPTED ? STOP_INTERRUPTED : STOP_FAILED);
        return status;
    }
    if (generation->token_most == 0) {
        finish(answer, STOP_LENGTH);
        return STATUS_OK;
    }
    return take(generation, answer, logits, error);
}

static enum status step(struct generation *generation, struct answer *const *active, size_t count,
                        struct error *error) {
    struct sequence *sequences[ENGINE_SEQUENCES_MOST];
    token_id tokens[ENGINE_SEQUENCES_MOST];
    for (size_t i = 0; i < count; i++) {
        sequences[i] = active[i]->sequence;
        tokens[i] = active[i]->tokens.ids[active[i]->tokens.count - 1];
    }
    const float *logits;
    TRY(engine_step(generation->session->engine, sequences, tokens, count, &logits, error));
    generation->step_tokens += count;
    for (size_t i = 0; i < count; i++) TRY(note_stored(active[i], tokens[i], ORIGIN_STEP, error));
    size_t vocabulary = generation->session->model->config.vocabulary_size;
    for (size_t i = 0; i < count; i++) TRY(take(generation, active[i], logits + i * vocabulary, error));
    return STATUS_OK;
}

enum status generation_decode(struct generation *generation, struct answer *answers, size_t answer_count,
                              struct error *error) {
    enum status status = STATUS_OK;
    double began = clock_seconds();
    while (status == STATUS_OK) {
        struct answer *active[ENGINE_SEQUENCES_MOST];
        size_t count = 0;
        for (size_t i = 0; i < answer_count; i++)
            if (answers[i].stop == STOP_NONE) active[count++] = &answers[i];
        if (count == 0) break;
        if (interrupt_requested())
            status = error_set(error, STATUS_INTERRUPTED, "interrupted");
        else
            status = step(generation, active, count, error);
    }
    generation->decode_seconds += clock_seconds() - began;
    if (status != STATUS_DOCUMENT)
        generation_abandon(answers, answer_count,
                           status == STATUS_INTERRUPTED ? STOP_INTERRUPTED : STOP_FAILED);
    return status;
}

void generation_abandon(struct answer *answers, size_t answer_count, enum stop_reason reason) {
    for (size_t i = 0; i < answer_count; i++)
        if (answers[i].stop == STOP_NONE) finish(&answers[i], reason);
}

void generation_tell_notice(const struct generation *generation, const struct answer *answer) {
    const char *notice = sequence_notice(answer->sequence);
    if (notice[0] != '\0' && !generation->quiet) fprintf(stderr, "loam: note: %s\n", notice);
}

/* stored[first, end), of one origin, once more. */
static enum status replay(struct generation *generation, struct answer *answer, size_t first, size_t end,
                          struct error *error) {
    struct engine *engine = generation->session->engine;
    const token_id *tokens = answer->stored.ids + first;
    enum token_origin origin = (enum token_origin)answer->origins.ids[first];
    struct progress progress;
    for (size_t i = 0; i < end - first && origin == ORIGIN_STEP; i++) {
        const float *logits;
        TRY(engine_step(engine, &answer->sequence, &tokens[i], 1, &logits, error));
    }
    if (origin == ORIGIN_STEP) return STATUS_OK;
    progress_begin(&progress, "prefill", generation->quiet);
    const struct prefill_request request = {.tokens = tokens,
                                            .token_count = end - first,
                                            .selects = origin == ORIGIN_SELECTS,
                                            .progress = progress_engine,
                                            .progress_context = &progress};
    enum status status = engine_prefill(engine, answer->sequence, &request, NULL, error);
    progress_end(&progress);
    generation->prefill_tokens += end - first - (first == 0 ? sequence_reused_tokens(answer->sequence) : 0);
    return status;
}

/* Its prefill came upon the damage, or was never begun. */
static bool lacks_prompt(const struct answer *answer) {
    return answer->accepted || answer->stored.count == 0;
}

static enum status recover(struct generation *generation, struct answer *answer,
                           const struct token_list *prompt, struct error *error) {
    double began = clock_seconds();
    enum status status = sequence_create(&answer->sequence, generation->session->engine, error);
    for (size_t first = 0, end; first < answer->stored.count && status == STATUS_OK; first = end) {
        for (end = first + 1; end < answer->stored.count; end++)
            if (answer->origins.ids[end] != answer->origins.ids[first]) break;
        status = replay(generation, answer, first, end, error);
    }
    generation->prefill_seconds += clock_seconds() - began;
    if (status != STATUS_OK) { /* Ctrl-C: it has less */
        size_t length = answer->sequence != NULL ? (size_t)sequence_length(answer->sequence) : 0;
        if (length < answer->stored.count) answer->stored.count = answer->origins.count = length;
        return status;
    }
    if (lacks_prompt(answer)) {
        answer->stop = STOP_NONE;
        status = generation_prefill(generation, answer, prompt->ids, prompt->count, error);
    }
    generation_tell_notice(generation, answer);
    return status;
}

enum status generation_compute_again(struct generation *generation, struct answer *answers,
                                     size_t answer_count, const struct token_list *prompt, engine_maker *make,
                                     void *context, const struct error *reason, struct error *error) {
    if (!generation->quiet)
        fprintf(stderr, "%sloam: note: %s; computed anew%s\n", output_can_draw() ? "\n" : "", reason->message,
                answers[0].tokens.count > 0 ? ", and the answer so far" : "");
    for (size_t i = 0; i < answer_count; i++) {
        sequence_destroy(answers[i].sequence);
        answers[i].sequence = NULL;
    }
    TRY(make(context, error));
    for (size_t i = 0; i < answer_count; i++)
        if (answers[i].stop == STOP_NONE || lacks_prompt(&answers[i]))
            TRY(recover(generation, &answers[i], prompt, error));
    return STATUS_OK;
}

double generation_decode_rate(const struct generation *generation) {
    return generation->decode_seconds > 0 ? (double)generation->step_tokens / generation->decode_seconds : 0;
}

double generation_prefill_rate(const struct generation *generation) {
    return generation->prefill_seconds > 0 ? (double)generation->prefill_tokens / generation->prefill_seconds
                                           : 0;
}

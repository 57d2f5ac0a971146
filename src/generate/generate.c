#include "base/assert.h"
#include "generate/generate_internal.h"
#include "platform/clock.h"

static enum status interrupted(struct error *error) {
    return error_set(error, STATUS_INTERRUPTED, "interrupted");
}

static bool stops(const struct generation *generation) {
    const struct generation_listener *listener = &generation->listener;
    return listener->stops != NULL && listener->stops(listener->context);
}

void generation_note(const struct generation *generation, struct answer *answer) {
    const struct generation_listener *listener = &generation->listener;
    const char *notice = answer->sequence != NULL ? sequence_notice(answer->sequence) : "";
    if (notice[0] == '\0' || answer->noted) return;
    answer->noted = true;
    if (listener->note != NULL) listener->note(listener->context, notice, false);
}

/* What a prefill of tokens has stored; the sampler sees it.  Behind a document that was opened the last ones may have
 * selected. */
static enum status note_prefill(struct answer *answer, const token_id *tokens, struct error *error) {
    size_t before = answer->stored.count, length = (size_t)sequence_length(answer->sequence);
    size_t selected = before == 0 ? (size_t)sequence_selected_tokens(answer->sequence) : 0;
    for (size_t i = before; i < length; i++) {
        sampler_accept(answer->sampler, tokens[i - before]);
        TRY(answer_note_stored(answer, tokens[i - before],
                               i + selected >= length ? ORIGIN_SELECTS : ORIGIN_DENSE, error));
    }
    return STATUS_OK;
}

/* Ended before it began: its status is what is told, not the sink's. */
static enum status refuse(struct answer *answer, enum status status) {
    struct error unused;
    (void)!answer_finish(answer, status == STATUS_INTERRUPTED ? STOP_INTERRUPTED : STOP_FAILED, &unused);
    return status;
}

enum status generation_feed(struct generation *generation, struct answer *answer, const float **logits,
                            struct error *error) {
    const struct generation_listener *listener = &generation->listener;
    const struct token_list *prompt = answer->prompt;
    struct generation_figures *figures = &generation->figures;
    struct prefill_request request = {.tokens = prompt->ids,
                                      .token_count = prompt->count,
                                      .progress = listener->progress,
                                      .progress_context = listener->context};
    uint64_t length = sequence_length(answer->sequence);
    if (listener->prefill_begins != NULL) listener->prefill_begins(listener->context);
    double began = clock_seconds();
    enum status status = engine_prefill(generation->engine, answer->sequence, &request, logits, error);
    figures->prefill_seconds += clock_seconds() - began;
    if (listener->prefill_ends != NULL) listener->prefill_ends(listener->context);
    if (length == 0) length = sequence_reused_tokens(answer->sequence);
    if (sequence_length(answer->sequence) > length) /* not after a failure */
        figures->prefill_tokens += sequence_length(answer->sequence) - length;
    answer->lacks_prompt = status == STATUS_DOCUMENT;
    if (!answer->lacks_prompt) TRY(note_prefill(answer, prompt->ids, error));
    return status;
}

enum status generation_step(struct generation *generation, struct answer *const *answers,
                            const token_id *tokens, size_t answer_count, const float **logits,
                            struct error *error) {
    struct sequence *sequences[ENGINE_SEQUENCES_MAX] = {NULL};
    ASSERT(answer_count <= ENGINE_SEQUENCES_MAX);
    for (size_t i = 0; i < answer_count; i++) sequences[i] = answers[i]->sequence;
    TRY(engine_step(generation->engine, sequences, tokens, answer_count, logits, error));
    generation->figures.step_tokens += answer_count;
    for (size_t i = 0; i < answer_count; i++)
        TRY(answer_note_stored(answers[i], tokens[i], ORIGIN_STEP, error));
    return STATUS_OK;
}

enum status generation_prefill(struct generation *generation, struct answer *answer, struct error *error) {
    const float *logits = NULL;
    enum status status = generation_feed(generation, answer, &logits, error);
    if (status == STATUS_OK && stops(generation)) status = interrupted(error);
    if (status != STATUS_OK) return refuse(answer, status);
    if (generation->token_max == 0) return answer_finish(answer, STOP_LENGTH, error);
    return answer_take(answer, generation, logits, error);
}

static enum status step(struct generation *generation, struct answer *const *active, size_t count,
                        struct error *error) {
    token_id tokens[ENGINE_SEQUENCES_MAX];
    const float *logits;
    for (size_t i = 0; i < count; i++) tokens[i] = active[i]->tokens.ids[active[i]->tokens.count - 1];
    TRY(generation_step(generation, active, tokens, count, &logits, error));
    size_t vocabulary = engine_config(generation->engine)->vocabulary_size;
    for (size_t i = 0; i < count; i++)
        TRY(answer_take(active[i], generation, logits + i * vocabulary, error));
    return STATUS_OK;
}

static enum status decode(struct generation *generation, struct answer *const *answers, size_t answer_count,
                          struct error *error) {
    enum status status = STATUS_OK;
    double began = clock_seconds();
    while (status == STATUS_OK) {
        struct answer *active[ENGINE_SEQUENCES_MAX];
        size_t count = 0;
        for (size_t i = 0; i < answer_count; i++)
            if (answers[i]->stop == STOP_NONE) active[count++] = answers[i];
        if (count == 0) break;
        status = stops(generation) ? interrupted(error) : step(generation, active, count, error);
    }
    generation->figures.decode_seconds += clock_seconds() - began;
    return status;
}

static enum status prefill_all(struct generation *generation, struct answer *const *answers,
                               size_t answer_count, struct error *error) {
    for (size_t i = 0; i < answer_count; i++) {
        enum status status = generation_prefill(generation, answers[i], error);
        generation_note(generation, answers[i]);
        for (size_t j = i + 1; status != STATUS_OK && j < answer_count; j++)
            answers[j]->stop = STOP_INTERRUPTED;
        TRY(status);
    }
    return STATUS_OK;
}

enum status generation_run(struct generation *generation, struct answer *const *answers, size_t answer_count,
                           struct error *error) {
    ASSERT(answer_count <= ENGINE_SEQUENCES_MAX && generation->top_count <= GENERATION_TOP_MAX);
    enum status status = prefill_all(generation, answers, answer_count, error);
    if (status == STATUS_OK) status = decode(generation, answers, answer_count, error);
    if (status == STATUS_DOCUMENT && generation->make_engine != NULL) {
        const struct error reason = *error;
        status = generation_recover(generation, answers, answer_count, &reason, error);
        if (status == STATUS_OK) status = decode(generation, answers, answer_count, error);
    }
    for (size_t i = 0; i < answer_count; i++)
        if (answers[i]->stop == STOP_NONE) (void)refuse(answers[i], status);
    return status;
}

double generation_prefill_rate(const struct generation_figures *figures) {
    return figures->prefill_seconds > 0 ? (double)figures->prefill_tokens / figures->prefill_seconds : 0;
}

double generation_decode_rate(const struct generation_figures *figures) {
    return figures->decode_seconds > 0 ? (double)figures->step_tokens / figures->decode_seconds : 0;
}

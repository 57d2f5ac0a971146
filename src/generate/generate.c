#include "base/assert.h"
#include "generate/generate_internal.h"
#include "platform/clock.h"

enum status generation_step(struct generation *generation, struct answer *const *answers, const token_id *tokens,
                            size_t answer_count, const float **logits, struct error *error) {
    struct sequence *sequences[ENGINE_SEQUENCES_MAX] = {NULL};
    ASSERT(answer_count <= ENGINE_SEQUENCES_MAX);
    for (size_t i = 0; i < answer_count; i++) sequences[i] = answers[i]->sequence;
    TRY(engine_step(generation->engine, sequences, tokens, answer_count, logits, error));
    generation->figures.step_tokens += answer_count;
    for (size_t i = 0; i < answer_count; i++) TRY(answer_note_stored(answers[i], tokens[i], ORIGIN_STEP, error));
    return STATUS_OK;
}

static enum status step_all(struct generation *generation, struct answer *const *active, size_t count,
                            struct error *error) {
    token_id tokens[ENGINE_SEQUENCES_MAX] = {0};
    const float *logits;
    for (size_t i = 0; i < count; i++) tokens[i] = active[i]->tokens.ids[active[i]->tokens.count - 1];
    TRY(generation_step(generation, active, tokens, count, &logits, error));
    size_t vocabulary = engine_config(generation->engine)->vocabulary_size;
    for (size_t i = 0; i < count; i++) TRY(answer_take(active[i], generation, logits + i * vocabulary, error));
    return STATUS_OK;
}

static enum status step_alone(struct generation *generation, struct answer *answer, struct error *error) {
    struct generation_figures *figures = &generation->figures;
    token_id tokens[ENGINE_AHEAD_MAX];
    const float *logits;
    const size_t count = answer_draft(answer, generation, tokens),
                 vocabulary = engine_config(generation->engine)->vocabulary_size;
    const double began = clock_seconds();
    if (count == 1)
        TRY(generation_step(generation, &answer, tokens, 1, &logits, error));
    else
        TRY(engine_step_ahead(generation->engine, answer->sequence, tokens, count, &logits, error));
    const double seconds = clock_seconds() - began;
    if (count == 1) draft_learn(&answer->draft, 0, 0, seconds);
    if (count == 1) return answer_take(answer, generation, logits, error);
    for (size_t kept = 1;; kept++, logits += vocabulary) {
        figures->step_tokens++;
        TRY(answer_note_stored(answer, tokens[kept - 1], ORIGIN_STEP, error));
        TRY(answer_take(answer, generation, logits, error));
        if (!answer_goes_on(answer, tokens, count, kept)) {
            draft_learn(&answer->draft, count - 1, kept - 1, seconds);
            figures->drafted_tokens += count - 1;
            figures->accepted_tokens += kept - 1;
            return STATUS_OK;
        }
        TRY(sequence_keep_next(answer->sequence, error));
    }
}

static enum status step(struct generation *generation, struct answer *const *active, size_t count,
                        struct error *error) {
    return count == 1 ? step_alone(generation, active[0], error) : step_all(generation, active, count, error);
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
        status = generation_stops(generation) ? generation_interrupted(error) : step(generation, active, count, error);
    }
    generation->figures.decode_seconds += clock_seconds() - began;
    return status;
}

static enum status prefill_all(struct generation *generation, struct answer *const *answers, size_t answer_count,
                               struct error *error) {
    for (size_t i = 0; i < answer_count; i++) {
        enum status status = generation_prefill(generation, answers[i], error);
        generation_note(generation, answers[i]);
        for (size_t j = i + 1; status != STATUS_OK && j < answer_count; j++) answers[j]->stop = STOP_INTERRUPTED;
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
        if (answers[i]->stop == STOP_NONE) (void)generation_refuse(answers[i], status);
    return status;
}

double generation_prefill_rate(const struct generation_figures *figures) {
    return figures->prefill_seconds > 0 ? (double)figures->prefill_tokens / figures->prefill_seconds : 0;
}

double generation_decode_rate(const struct generation_figures *figures) {
    return figures->decode_seconds > 0 ? (double)figures->step_tokens / figures->decode_seconds : 0;
}

/* recover: recomputes answers whose saved document is damaged.  Damage costs time, not the answers. */
#include <stdio.h>

#include "generate/generate_internal.h"
#include "platform/clock.h"

/* stored[first, end), of one origin, once more. */
static enum status replay(struct generation *generation, struct answer *answer, size_t first, size_t end,
                          struct error *error) {
    const struct generation_listener *listener = &generation->listener;
    const token_id *tokens = answer->stored.ids + first;
    enum token_origin origin = (enum token_origin)answer->origins.ids[first];
    for (size_t i = 0; i < end - first && origin == ORIGIN_STEP; i++) {
        const float *logits;
        TRY(engine_step(generation->engine, &answer->sequence, &tokens[i], 1, &logits, error));
    }
    if (origin == ORIGIN_STEP) return STATUS_OK;
    const struct prefill_request request = {.tokens = tokens,
                                            .token_count = end - first,
                                            .selects = origin == ORIGIN_SELECTS,
                                            .progress = listener->progress,
                                            .progress_context = listener->context};
    if (listener->prefill_begins != NULL) listener->prefill_begins(listener->context);
    enum status status = engine_prefill(generation->engine, answer->sequence, &request, NULL, error);
    if (listener->prefill_ends != NULL) listener->prefill_ends(listener->context);
    generation->figures.prefill_tokens += end - first - (first == 0 ? sequence_reused_tokens(answer->sequence) : 0);
    return status;
}

/* Its prefill came upon the damage, or was never begun. */
static bool lacks_prompt(const struct answer *answer) { return answer->lacks_prompt || answer->stored.count == 0; }

static enum status recover(struct generation *generation, struct answer *answer, struct error *error) {
    double began = clock_seconds();
    enum status status = sequence_create(&answer->sequence, generation->engine, error);
    for (size_t first = 0, end; first < answer->stored.count && status == STATUS_OK; first = end) {
        for (end = first + 1; end < answer->stored.count; end++)
            if (answer->origins.ids[end] != answer->origins.ids[first]) break;
        status = replay(generation, answer, first, end, error);
    }
    generation->figures.prefill_seconds += clock_seconds() - began;
    if (status != STATUS_OK) { /* stopped: it has less */
        size_t length = answer->sequence != NULL ? (size_t)sequence_length(answer->sequence) : 0;
        if (length < answer->stored.count) answer->stored.count = answer->origins.count = length;
        return status;
    }
    if (lacks_prompt(answer)) {
        answer->stop = STOP_NONE;
        status = generation_prefill(generation, answer, error);
    }
    generation_note(generation, answer);
    return status;
}

static void note_reason(const struct generation *generation, bool amid_answer, const struct error *reason) {
    const struct generation_listener *listener = &generation->listener;
    char line[sizeof reason->message + 64];
    if (listener->note == NULL) return;
    snprintf(line, sizeof line, "%s; computed anew%s", reason->message, amid_answer ? ", and the answer so far" : "");
    listener->note(listener->context, line, amid_answer);
}

enum status generation_recover(struct generation *generation, struct answer *const *answers, size_t answer_count,
                               const struct error *reason, struct error *error) {
    note_reason(generation, answers[0]->tokens.count > 0, reason);
    for (size_t i = 0; i < answer_count; i++) {
        sequence_destroy(answers[i]->sequence);
        answers[i]->sequence = NULL;
        answers[i]->noted = false;
    }
    TRY(generation->make_engine(generation->make_engine_context, &generation->engine, error));
    for (size_t i = 0; i < answer_count; i++)
        if (answers[i]->stop == STOP_NONE || lacks_prompt(answers[i])) TRY(recover(generation, answers[i], error));
    return STATUS_OK;
}

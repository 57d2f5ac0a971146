/* prefill: the prompt of an answer, and its first token. */
#include "generate/generate_internal.h"
#include "platform/clock.h"

enum status generation_interrupted(struct error *error) { return error_set(error, STATUS_INTERRUPTED, "interrupted"); }

bool generation_stops(const struct generation *generation) {
    const struct generation_listener *listener = &generation->listener;
    return listener->stops != NULL && listener->stops(listener->context);
}

enum status generation_refuse(struct answer *answer, enum status status) {
    struct error unused;
    (void)!answer_finish(answer, status == STATUS_INTERRUPTED ? STOP_INTERRUPTED : STOP_FAILED, &unused);
    return status;
}

void generation_note(const struct generation *generation, struct answer *answer) {
    const struct generation_listener *listener = &generation->listener;
    const char *notice = answer->sequence != NULL ? sequence_notice(answer->sequence) : "";
    if (notice[0] == '\0' || answer->noted) return;
    answer->noted = true;
    if (listener->note != NULL) listener->note(listener->context, notice, false);
}

/* Counts the tokens that a prefill stored; the sampler sees them.  Behind an opened document the last of them may
 * have selected. */
static enum status note_prefill(struct answer *answer, const token_id *tokens, struct error *error) {
    size_t before = answer->stored.count, length = (size_t)sequence_length(answer->sequence);
    size_t selected = before == 0 ? (size_t)sequence_selected_tokens(answer->sequence) : 0;
    for (size_t i = before; i < length; i++) {
        sampler_accept(answer->sampler, tokens[i - before]);
        TRY(answer_note_stored(answer, tokens[i - before], i + selected >= length ? ORIGIN_SELECTS : ORIGIN_DENSE,
                               error));
    }
    return STATUS_OK;
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

enum status generation_prefill(struct generation *generation, struct answer *answer, struct error *error) {
    const float *logits = NULL;
    enum status status = generation_feed(generation, answer, &logits, error);
    if (status == STATUS_OK && generation_stops(generation)) status = generation_interrupted(error);
    if (status != STATUS_OK) return generation_refuse(answer, status);
    if (generation->token_max == 0) return answer_finish(answer, STOP_LENGTH, error);
    return answer_take(answer, generation, logits, error);
}

#include "lab/eval/answer.h"

#include <string.h>

#include "base/assert.h"
#include "lab/eval/divergence.h"

enum status answer_prefill(struct engine *engine, struct sequence *sequence, const struct prefill_request *prompt,
                           struct error *error) {
    struct prefill_request rest = *prompt;
    size_t held = (size_t)sequence_length(sequence);
    ASSERT(prompt->token_count >= 2 && held <= prompt->token_count - 1);
    if (held == prompt->token_count - 1) return STATUS_OK;
    rest.tokens += held;
    rest.token_count -= 1 + held;
    return engine_prefill(engine, sequence, &rest, NULL, error);
}

/* Appends a token's bytes up to a line end; false: there was one. */
static bool append_piece(const struct tokenizer *tokenizer, token_id id, struct text *text) {
    char piece[256];
    size_t length = tokenizer_piece(tokenizer, id, false, piece, sizeof piece);
    if (length > sizeof piece) length = sizeof piece; /* a token that long is no part of an answer */
    const char *end = memchr(piece, '\n', length);
    text_append(text, piece, end != NULL ? (size_t)(end - piece) : length);
    return end == NULL;
}

static enum status decode(const struct answer_request *request, struct text *text, uint64_t *step_count,
                          struct error *error) {
    size_t vocabulary_size = engine_config(request->engine)->vocabulary_size;
    token_id token = request->last_token;
    for (size_t i = 0; i < request->token_budget; i++) {
        if (request->stop_asked != NULL && request->stop_asked())
            return error_set(error, STATUS_INTERRUPTED, "interrupted");
        const float *logits;
        TRY(engine_step(request->engine, &(struct sequence *){request->sequence}, &token, 1, &logits, error));
        ++*step_count;
        token = (token_id)top_of(logits, vocabulary_size);
        if (tokenizer_is_end(request->tokenizer, token)) break;
        if (!append_piece(request->tokenizer, token, text)) break;
    }
    return STATUS_OK;
}

enum status answer_greedy(const struct answer_request *request, struct text *text, uint64_t *step_count,
                          struct error *error) {
    uint64_t length = sequence_length(request->sequence);
    text_clear(text);
    text_append(text, "", 0);
    *step_count = 0;
    enum status status = decode(request, text, step_count, error);
    sequence_truncate(request->sequence, length);
    if (status == STATUS_OK && text->failed) return error_set(error, STATUS_MEMORY, "out of memory for an answer");
    return status;
}

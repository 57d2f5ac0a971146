/* answer: a model's greedy answer to a prompt, as the tasks score it.
 *
 * A prompt is prefilled once, without its last token.  Each answer begins by decoding that token, so every token of the
 * answer uses the attention of decoding.  Then the sequence is cut back to the prompt.  Thread: the engine's. */
#pragma once

#include "base/text.h"
#include "engine/engine.h"
#include "token/tokenizer.h"

/* Puts all but the last of the prompt's tokens, 2 at least, into the sequence, which holds none or the first of
 * them. */
enum status answer_prefill(struct engine *engine, struct sequence *sequence, const struct prefill_request *prompt,
                           struct error *error) STATUS_CHECKED;

struct answer_request {
    struct engine *engine;
    struct sequence *sequence; /* holds the prompt without its last token, before and after */
    const struct tokenizer *tokenizer;
    token_id last_token;      /* of the prompt */
    size_t token_budget;      /* of the answer, at most */
    bool (*stop_asked)(void); /* may be NULL; true: STATUS_INTERRUPTED */
};
/* Greedy, until the budget, an end token, or a token with a line end in it (which is not part of the answer).
 * *text: the answer's bytes; cleared first.  *step_count: decode steps made. */
enum status answer_greedy(const struct answer_request *request, struct text *text, uint64_t *step_count,
                          struct error *error) STATUS_CHECKED;

#ifndef LOAM_GENERATE_GENERATE_INTERNAL_H
#define LOAM_GENERATE_GENERATE_INTERNAL_H

#include "generate/generate.h"

/* How the KV of a token came to be: computing it again in another way would give other bits. */
enum token_origin {
    ORIGIN_DENSE,   /* prefilled, attending to everything */
    ORIGIN_SELECTS, /* prefilled, selecting (struct prefill_request.selects) */
    ORIGIN_STEP,    /* engine_step */
};

/* The sequence now holds this token too. */
enum status answer_note_stored(struct answer *answer, token_id id, enum token_origin origin,
                               struct error *error) STATUS_CHECKED;
/* Samples the next token from its row of logits and decides whether the answer goes on. */
enum status answer_take(struct answer *answer, const struct generation *generation, const float *logits,
                        struct error *error) STATUS_CHECKED;
/* What text is left goes to the sink. */
enum status answer_finish(struct answer *answer, enum stop_reason reason, struct error *error) STATUS_CHECKED;

/* generation_feed, then the first token. */
enum status generation_prefill(struct generation *generation, struct answer *answer, struct error *error)
    STATUS_CHECKED;
/* What the sequence has to say, once. */
void generation_note(const struct generation *generation, struct answer *answer);

/* After STATUS_DOCUMENT for `reason`.  The document has been flagged, so, with a new engine, what the sequences of
 * answers that have not stopped, or not begun, held is computed anew, in the way it was; the tokens that were sampled,
 * all of them from pages that were right, are fed again.  Then the steps may go on. */
enum status generation_recover(struct generation *generation, struct answer *const *answers,
                               size_t answer_count, const struct error *reason, struct error *error)
    STATUS_CHECKED;

#endif

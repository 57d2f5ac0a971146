#pragma once

#include "generate/generate.h"

/* The listener wants to stop. */
bool generation_stops(const struct generation *generation);
enum status generation_interrupted(struct error *error) STATUS_CHECKED; /* STATUS_INTERRUPTED */
/* The answer ends before it began.  Returns status: that is told, not what the sink returns. */
enum status generation_refuse(struct answer *answer, enum status status);

/* generation_feed, then the first token. */
enum status generation_prefill(struct generation *generation, struct answer *answer, struct error *error)
    STATUS_CHECKED;
/* Sends the sequence's notice to the listener, once. */
void generation_note(const struct generation *generation, struct answer *answer);

/* Recovers from STATUS_DOCUMENT, whose error is `reason`.  The document is already flagged.  A new engine recomputes
 * the KV of all answers that have not stopped, each token in its recorded way.  Sampled tokens are fed again: they came
 * from pages without damage.  After success the steps can continue. */
enum status generation_recover(struct generation *generation, struct answer *const *answers, size_t answer_count,
                               const struct error *reason, struct error *error) STATUS_CHECKED;

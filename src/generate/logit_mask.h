/* logit_mask: rules out tokens while an answer is sampled, for answers that must have a given form.
 *
 * The sampler calls apply before every pick and accept after it (sampler_set_mask), on the thread that samples. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct logit_mask {
    void *context;
    /* Sets the logits of tokens that may not come next to -INFINITY; leaves the others.  End tokens too: they stay
     * where the answer may end.  logits: [vocabulary_size], the sampler's own copy. */
    enum status (*apply)(void *context, float *logits, size_t vocabulary_size, struct error *error);
    /* The token that was picked; an end token too. */
    enum status (*accept)(void *context, int32_t token, struct error *error);
    /* May be NULL.  Asked after accept; true: nothing but an end token could follow, so the answer ends here
     * (STOP_END). */
    bool (*is_complete)(void *context);
    void (*destroy)(void *context); /* may be NULL */
};

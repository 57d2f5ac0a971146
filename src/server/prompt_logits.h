/* prompt_logits: the logits behind prompts that were asked of late.  A prompt that is asked again (another answer, more
 * choices, a retry after a lost connection) has its first token without a pass over the weights, once its KV is there.
 * Thread: the service's.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "server/service.h"
#include "token/tokenizer.h"

enum { PROMPT_LOGITS_MAX = 8 }; /* prompts */

struct prompt_logits_entry {
    char owner[SERVICE_OWNER_MAX];
    token_id *tokens; /* owned, [token_count]; NULL: the entry is free */
    size_t token_count;
    float *logits; /* owned, [vocabulary_size] */
    uint64_t used;
};

/* Zeros: empty. */
struct prompt_logits {
    struct prompt_logits_entry entries[PROMPT_LOGITS_MAX];
    uint64_t clock;
};

void prompt_logits_deinit(struct prompt_logits *prompts);
/* Copies both.  The prompt that was asked longest ago goes.  Where memory lacks nothing is noted. */
void prompt_logits_note(struct prompt_logits *prompts, const char *owner, const token_id *tokens, size_t token_count,
                        const float *logits, size_t vocabulary_size);
/* Of exactly this prompt of this owner, until the next note; NULL: there are none. */
const float *prompt_logits_find(struct prompt_logits *prompts, const char *owner, const token_id *tokens,
                                size_t token_count);

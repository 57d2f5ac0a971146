/* draft: what an answer may go on with, by what followed the same tokens before: answers quote the document that they
 * are about, and themselves (prompt lookup decoding, Saxena 2023; n-gram drafts of llama.cpp).
 *
 * A draft costs no model, and its tokens are checked in one pass of the model: those that the sampler picks itself
 * stay, with the logits of steps, so a draft changes no answer.  How long it is follows from how many of late were
 * right, and from what rows cost on this machine beside a step (0097): an answer that never goes on as before loses
 * half a step and a hundredth of its time at most, as far as the times of steps and passes are what they were. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "rates/rates.h"
#include "token/tokenizer.h"

/* Counted on 200 tokens of three answers (0097): grams of 4 find a little more in quotes, of 8 as much as of 6. */
enum { DRAFT_MAX = 7, DRAFT_GRAM = 6 };

/* Zeros: nothing was seen. */
struct draft {
    uint32_t *ends;    /* owned, [slot_count]: the position behind the last gram of this hash; 0: none */
    size_t slot_count; /* a power of two */
    size_t seen;       /* tokens of the sequence whose grams are there */
    size_t length;     /* of the next draft, if there are so many tokens */
    struct rate step;  /* a step's time */
    struct rate row;   /* a drafted row's: of a pass, beside a step's */
    double gained;     /* steps by drafts, but for what rows cost */
};

void draft_deinit(struct draft *draft);
/* Writes up to `most` tokens that may follow `last`, which follows the tokens, and returns how many; 0: none, or there
 * is no memory for what was seen. */
size_t draft_next(struct draft *draft, const struct token_list *tokens, token_id last, size_t most,
                  token_id drafted[DRAFT_MAX]);
/* A pass took so long, and of the drafted ones so many were right; 0: it was a step. */
void draft_learn(struct draft *draft, size_t drafted, size_t right, double seconds);

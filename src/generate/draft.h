/* draft: what an answer may go on with, by what followed the same tokens before: answers quote the document that they
 * are about, and themselves (prompt lookup decoding, Saxena 2023; n-gram drafts of llama.cpp).
 *
 * A draft costs no model, and its tokens are checked in one pass of the model: those that the sampler picks itself
 * stay, with the logits of steps, so a draft changes no answer.  How long it is follows from how many of late were
 * right. */
#ifndef LOAM_GENERATE_DRAFT_H
#define LOAM_GENERATE_DRAFT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "token/tokenizer.h"

/* On two cores a row of a small model costs up to 0.7 of a step: drafts pay where nearly all of them is right. */
enum { DRAFT_MAX = 7, DRAFT_GRAM = 8, DRAFT_REST_MAX = 64 };

/* Zeros: nothing was seen. */
struct draft {
    uint32_t *ends;    /* owned, [slot_count]: the position behind the last gram of this hash; 0: none */
    size_t slot_count; /* a power of two */
    size_t seen;       /* tokens of the sequence whose grams are there */
    size_t length;     /* of the next draft, if there are so many tokens */
    size_t misses;     /* drafts in a row of which not all was right */
    size_t rest;       /* steps to go without a draft */
};

void draft_deinit(struct draft *draft);
/* Writes up to `most` tokens that may follow `last`, which follows the tokens, and returns how many; 0: none, or there
 * is no memory for what was seen. */
size_t draft_next(struct draft *draft, const struct token_list *tokens, token_id last, size_t most,
                  token_id drafted[DRAFT_MAX]);
/* Of the drafted ones so many were right. */
void draft_learn(struct draft *draft, size_t drafted, size_t right);

#endif

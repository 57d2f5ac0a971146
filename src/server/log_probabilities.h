/* log_probabilities: what /v1/completions and /v1/chat/completions tell about the tokens of a choice.
 *
 * A token and the same token among the likeliest ones have the same float, and so the same text.  -infinity, which JSON
 * does not have, is -9999 as at OpenAI. */
#pragma once

#include "server/ask.h"

/* {tokens, token_logprobs, top_logprobs, text_offset} of tokens [first, end).  *characters: of the tokens before, and
 * then of these too. */
json_t *log_probabilities_completion(const struct ask_choice *choice, size_t first, size_t end, size_t *characters);
/* {content: [{token, logprob, bytes, top_logprobs}]} */
json_t *log_probabilities_chat(const struct ask_choice *choice, size_t first, size_t end);

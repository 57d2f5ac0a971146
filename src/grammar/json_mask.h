/* json_mask: a matcher as the mask of a sampler, for one answer at a time. */
#pragma once

#include "generate/logit_mask.h"
#include "grammar/json_matcher.h"

/* mask->destroy frees the matcher; schema and trie must live longer. */
enum status json_mask_create(struct logit_mask *mask, const struct json_schema *schema, const struct token_trie *trie,
                             struct error *error) STATUS_CHECKED;

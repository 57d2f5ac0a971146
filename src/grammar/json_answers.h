/* json_answers: one schema for several answers that are sampled together. */
#pragma once

#include "engine/engine.h"
#include "generate/sampler.h"
#include "grammar/json_mask.h"

struct json_answers {
    struct json_schema *schema; /* owned; NULL: answers are any text */
    struct token_trie *trie;    /* owned */
    struct logit_mask masks[ENGINE_SEQUENCES_MAX];
    size_t mask_count;
};

/* answers: zeroed.  name: of the schema, for messages. */
enum status json_answers_open(struct json_answers *answers, const char *schema, size_t length, const char *name,
                              struct error *error) STATUS_CHECKED;
/* The sampler gets a mask of its own; nothing without a schema.  At most ENGINE_SEQUENCES_MAX. */
enum status json_answers_mask(struct json_answers *answers, const struct tokenizer *tokenizer, struct sampler *sampler,
                              struct error *error) STATUS_CHECKED;
void json_answers_close(struct json_answers *answers); /* when no sampler has a mask of it any more */

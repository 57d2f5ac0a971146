/* json_answers: --json-schema and --json-schema-file: answers that are JSON of a given form. */
#ifndef LOAM_CLI_JSON_ANSWERS_H
#define LOAM_CLI_JSON_ANSWERS_H

#include "cli/option.h"
#include "engine/engine.h"
#include "generate/generate.h"
#include "grammar/json_mask.h"

struct json_answers {
    struct json_schema *schema; /* owned; NULL: answers are any text */
    struct token_trie *trie;    /* owned */
    struct logit_mask masks[ENGINE_SEQUENCES_MAX];
    size_t mask_count;
};

/* Reads the schema; the message names what is not understood.  answers: zeroed. */
enum status json_answers_read(struct json_answers *answers, const struct options *options,
                              struct error *error) STATUS_CHECKED;
/* The answer's sampler gets a mask of its own; nothing without a schema. */
enum status json_answers_mask(struct json_answers *answers, const struct tokenizer *tokenizer,
                              struct answer *answer, struct error *error) STATUS_CHECKED;
void json_answers_close(struct json_answers *answers); /* after the samplers */

#endif

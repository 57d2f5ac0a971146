#include "grammar/json_answers.h"

#include "base/assert.h"

enum status json_answers_open(struct json_answers *answers, const char *schema, size_t length, const char *name,
                              struct error *error) {
    return json_schema_compile(&answers->schema, schema, length, name, error);
}

enum status json_answers_mask(struct json_answers *answers, const struct tokenizer *tokenizer, struct sampler *sampler,
                              struct error *error) {
    if (answers->schema == NULL) return STATUS_OK;
    ASSERT(answers->mask_count < ENGINE_SEQUENCES_MAX);
    if (answers->trie == NULL) TRY(token_trie_create(&answers->trie, tokenizer, error));
    struct logit_mask *mask = &answers->masks[answers->mask_count];
    TRY(json_mask_create(mask, answers->schema, answers->trie, error));
    answers->mask_count++;
    sampler_set_mask(sampler, mask);
    return STATUS_OK;
}

void json_answers_close(struct json_answers *answers) {
    for (size_t i = 0; i < answers->mask_count; i++) answers->masks[i].destroy(answers->masks[i].context);
    token_trie_destroy(answers->trie);
    json_schema_destroy(answers->schema);
}

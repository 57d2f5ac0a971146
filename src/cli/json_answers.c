#include "cli/json_answers.h"

#include <stdlib.h>
#include <string.h>

#include "cli/prompt.h"

enum status json_answers_read(struct json_answers *answers, const struct options *options,
                              struct error *error) {
    const char *text = option_text(options, OPTION_JSON_SCHEMA);
    const char *path = option_text(options, OPTION_JSON_SCHEMA_FILE);
    if (text != NULL && path != NULL)
        return error_set(error, STATUS_USAGE, "--json-schema and --json-schema-file: expected one of them");
    if (text != NULL)
        return json_schema_compile(&answers->schema, text, strlen(text), "--json-schema", error);
    if (path == NULL) return STATUS_OK;
    char *bytes;
    size_t length;
    TRY(prompt_read_file(path, &bytes, &length, error));
    enum status status = json_schema_compile(&answers->schema, bytes, length, path, error);
    free(bytes);
    return status;
}

enum status json_answers_mask(struct json_answers *answers, const struct tokenizer *tokenizer,
                              struct answer *answer, struct error *error) {
    if (answers->schema == NULL) return STATUS_OK;
    if (answers->trie == NULL) TRY(token_trie_create(&answers->trie, tokenizer, error));
    struct logit_mask *mask = &answers->masks[answers->mask_count];
    TRY(json_mask_create(mask, answers->schema, answers->trie, error));
    answers->mask_count++;
    sampler_set_mask(answer->sampler, mask);
    return STATUS_OK;
}

void json_answers_close(struct json_answers *answers) {
    for (size_t i = 0; i < answers->mask_count; i++) answers->masks[i].destroy(answers->masks[i].context);
    token_trie_destroy(answers->trie);
    json_schema_destroy(answers->schema);
}

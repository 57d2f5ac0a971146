/* token_text: tokens in requests and responses. */
#pragma once

#include <jansson.h>

#include "server/api_error.h"
#include "token/tokenizer.h"

/* A token's text, or "bytes:\xe2\x96" where it is not whole characters. */
json_t *token_text_json(const struct tokenizer *tokenizer, token_id id);
/* Always "bytes:\x...", for texts that would otherwise be equal. */
json_t *token_bytes_json(const struct tokenizer *tokenizer, token_id id);
/* Its bytes as numbers. */
json_t *token_byte_list_json(const struct tokenizer *tokenizer, token_id id);
/* Characters that the token begins. */
size_t token_character_count(const struct tokenizer *tokenizer, token_id id);

/* Appends the ids of an array; name is for messages. */
bool token_ids_read(const json_t *array, const char *name, size_t vocabulary_size, struct token_list *list,
                    struct api_error *error);

/* Whether all are in the vocabulary. */
bool token_ids_check(const struct token_list *list, const char *name, size_t vocabulary_size, struct api_error *error);

/* Ids to text. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "token/tokenizer_internal.h"

static bool is_hidden(const struct tokenizer *t, token_id id) {
    return t->tokens[id].type == TOKEN_CONTROL || t->tokens[id].type == TOKEN_UNKNOWN;
}

bool tokenizer_is_control(const struct tokenizer *tokenizer, token_id id) {
    return id >= 0 && (size_t)id < tokenizer->token_count && tokenizer->tokens[id].type == TOKEN_CONTROL;
}

size_t tokenizer_piece(const struct tokenizer *tokenizer, token_id id, bool special, char *buffer, size_t capacity) {
    if (id < 0 || (size_t)id >= tokenizer->token_count) return 0;
    if (!special && is_hidden(tokenizer, id)) return 0;
    size_t length = tokenizer->tokens[id].byte_length;
    size_t copied = min_size(length, capacity);
    if (copied > 0) memcpy(buffer, token_bytes(tokenizer, id), copied);
    return length;
}

/* Decoding removes the space that SentencePiece puts before a text (at the start and after a token): the inverse of
 * space_text in encode.c. */
enum status tokenizer_decode(const struct tokenizer *tokenizer, const token_id *ids, size_t count, bool special,
                             char **text, size_t *length, struct error *error) {
    *text = NULL;
    uint64_t total = 1;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= tokenizer->token_count)
            return error_set(error, STATUS_USAGE, "token %d: the vocabulary has %zu", ids[i], tokenizer->token_count);
        if (!checked_add(total, tokenizer->tokens[ids[i]].byte_length, &total)) total = SIZE_MAX;
    }
    char *out = malloc(total);
    if (!out) return error_set(error, STATUS_MEMORY, "no memory for the text of %zu tokens", count);
    size_t used = 0;
    bool prefix = tokenizer->model == TOKENIZER_SPM && tokenizer->rules.adds_space_prefix;
    bool after_special = true;
    for (size_t i = 0; i < count; i++) {
        size_t size = tokenizer_piece(tokenizer, ids[i], special, out + used, total - used);
        bool as_such = is_hidden(tokenizer, ids[i]) || tokenizer->tokens[ids[i]].type == TOKEN_USER_DEFINED;
        if (prefix && after_special && !as_such && size > 0 && out[used] == ' ')
            memmove(out + used, out + used + 1, --size);
        used += size;
        after_special = as_such;
    }
    out[used] = '\0';
    *text = out;
    if (length) *length = used;
    return STATUS_OK;
}

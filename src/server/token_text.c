#include "server/token_text.h"

#include <stdio.h>

#include "server/fields.h"
#include "token/unicode.h"

enum { PIECE_BYTES_MAX = 512 };

static size_t piece_of(const struct tokenizer *tokenizer, token_id id, char piece[PIECE_BYTES_MAX]) {
    const size_t length = tokenizer_piece(tokenizer, id, true, piece, PIECE_BYTES_MAX);
    return length < PIECE_BYTES_MAX ? length : PIECE_BYTES_MAX;
}

static bool is_text(const char *bytes, size_t length) {
    for (size_t at = 0, step; at < length; at += step) {
        step = utf8_sequence_length((const uint8_t *)bytes, length, at);
        if (step == 0) return false;
    }
    return true;
}

json_t *token_bytes_json(const struct tokenizer *tokenizer, token_id id) {
    char piece[PIECE_BYTES_MAX], text[8 + 4 * PIECE_BYTES_MAX] = "bytes:";
    const size_t length = piece_of(tokenizer, id, piece);
    for (size_t i = 0; i < length; i++) sprintf(text + 6 + 4 * i, "\\x%02x", (unsigned char)piece[i]);
    return json_string(text);
}

json_t *token_text_json(const struct tokenizer *tokenizer, token_id id) {
    char piece[PIECE_BYTES_MAX];
    const size_t length = piece_of(tokenizer, id, piece);
    return is_text(piece, length) ? json_stringn(piece, length) : token_bytes_json(tokenizer, id);
}

json_t *token_byte_list_json(const struct tokenizer *tokenizer, token_id id) {
    char piece[PIECE_BYTES_MAX];
    const size_t length = piece_of(tokenizer, id, piece);
    json_t *bytes = json_array();
    for (size_t i = 0; i < length; i++) json_array_append_new(bytes, json_integer((unsigned char)piece[i]));
    return bytes;
}

size_t token_character_count(const struct tokenizer *tokenizer, token_id id) {
    char piece[PIECE_BYTES_MAX];
    const size_t length = piece_of(tokenizer, id, piece);
    size_t count = 0;
    for (size_t i = 0; i < length; i++) count += ((unsigned char)piece[i] & 0xC0) != 0x80;
    return count;
}

static bool check_id(long long id, const char *name, size_t index, size_t vocabulary_size, struct api_error *error) {
    if (id >= 0 && (unsigned long long)id < vocabulary_size) return true;
    return api_error_set(error, 400, name, "'%s'[%zu]: found %lld, expected a token id below %zu", name, index, id,
                         vocabulary_size);
}

bool token_ids_read(const json_t *array, const char *name, size_t vocabulary_size, struct token_list *list,
                    struct api_error *error) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *id = json_array_get(array, i);
        struct error reason;
        if (!json_is_integer(id))
            return api_error_set(error, 400, name, "'%s'[%zu]: found %s, expected a token id", name, i, json_kind(id));
        if (!check_id(json_integer_value(id), name, i, vocabulary_size, error)) return false;
        if (token_list_append(list, (token_id)json_integer_value(id), &reason) != STATUS_OK)
            return api_error_from(error, &reason);
    }
    return true;
}

bool token_ids_check(const struct token_list *list, const char *name, size_t vocabulary_size, struct api_error *error) {
    for (size_t i = 0; i < list->count; i++)
        if (!check_id(list->ids[i], name, i, vocabulary_size, error)) return false;
    return true;
}

#include "testing.h"

#include "vocabularies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "token/tokenizer_internal.h"

char *read_whole(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = size < 0 ? NULL : malloc((size_t)size + 1);
    if (text && fread(text, 1, (size_t)size, file) != (size_t)size) {
        free(text);
        text = NULL;
    }
    fclose(file);
    if (!text) return NULL;
    text[size] = '\0';
    if (length) *length = (size_t)size;
    return text;
}

struct tokenizer *open_vocabulary(const char *path) {
    struct gguf gguf;
    struct error error;
    struct tokenizer *tokenizer = NULL;
    assert_ok(gguf_open(&gguf, path, &error), error);
    assert_ok(tokenizer_create(&tokenizer, &gguf, false, &error), error);
    gguf_close(&gguf);
    return tokenizer;
}

struct token_list encode(const struct tokenizer *t, const char *text, size_t length, bool special) {
    struct token_list list = {0};
    struct error error;
    struct tokenize_options options = {.parse_special = special};
    assert_ok(tokenizer_encode(t, text, length, options, &list, &error), error);
    return list;
}

char *decode(const struct tokenizer *t, const struct token_list *list, bool special, size_t *length) {
    char *text = NULL;
    struct error error;
    assert_ok(tokenizer_decode(t, list->ids, list->count, special, &text, length, &error), error);
    return text;
}

void assert_round_trip(const struct tokenizer *t, const char *text, size_t length) {
    struct token_list list = encode(t, text, length, false);
    size_t decoded_length = 0;
    char *decoded = decode(t, &list, false, &decoded_length);
    if (decoded_length != length || memcmp(decoded, text, length) != 0)
        fail_msg("'%.*s' (%zu bytes) came back as '%.*s' (%zu bytes)", (int)length, text, length,
                 (int)decoded_length, decoded, decoded_length);
    free(decoded);
    token_list_deinit(&list);
}

static token_id add(struct gguf_string *tokens, uint8_t *types, size_t *count, const char *text) {
    if (!text || !*text) return TOKEN_NONE;
    for (size_t i = 256; i < *count; i++)
        if (tokens[i].length == strlen(text) && memcmp(tokens[i].text, text, strlen(text)) == 0)
            return (token_id)i;
    tokens[*count] = (struct gguf_string){text, strlen(text)};
    types[*count] = TOKEN_CONTROL;
    return (token_id)(*count)++;
}

struct tokenizer *byte_vocabulary(const char *pre, const char *const *controls, size_t control_count,
                                  const char *bos, const char *eos) {
    enum { COUNT_MAX = 512 };
    static uint8_t texts[256][4];
    struct gguf_string tokens[COUNT_MAX];
    uint8_t types[COUNT_MAX];
    size_t count = 256;
    assert_true(control_count + 2 < COUNT_MAX - count);
    for (size_t b = 0; b < 256; b++) {
        tokens[b] = (struct gguf_string){(const char *)texts[b], byte_level_encode((uint8_t)b, texts[b])};
        types[b] = TOKEN_NORMAL;
    }
    for (size_t i = 0; i < control_count; i++) add(tokens, types, &count, controls[i]);
    struct tokenizer_source source = {.model = TOKENIZER_BPE,
                                      .tokens = tokens,
                                      .types = types,
                                      .pre = pre_tokenizer_find(pre, strlen(pre)),
                                      .rules.unknown = TOKEN_NONE};
    source.rules.bos = add(tokens, types, &count, bos);
    source.rules.eos = add(tokens, types, &count, eos);
    source.token_count = count;
    struct tokenizer *tokenizer = NULL;
    struct error error;
    assert_ok(tokenizer_build(&tokenizer, &source, &error), error);
    return tokenizer;
}

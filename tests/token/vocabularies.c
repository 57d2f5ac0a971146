#include "testing.h"

#include "vocabularies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *shared_path(const char *name, char path[512]) {
    const char *roots[] = {getenv("LOAM_SHARED"), LOAM_SOURCE_DIR "/../shared",
                           LOAM_SOURCE_DIR "/../../shared"};
    for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++) {
        if (!roots[i]) continue;
        snprintf(path, 512, "%s/data/%s", roots[i], name);
        if (access(path, R_OK) == 0) return path;
    }
    return NULL;
}

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

/* Token ids recorded from Hugging Face tokenizers and from SentencePiece (tools/make_token_fixtures.py). */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "records.h"
#include "token/tokenizer_internal.h"
#include "vocabularies.h"

enum { TOKENS_MAX = 4096, COLUMNS_MAX = 16 };

struct fixture {
    struct tokenizer_source source;
    struct gguf_string tokens[TOKENS_MAX], merges[TOKENS_MAX];
    uint8_t types[TOKENS_MAX];
    float scores[TOKENS_MAX];
    char memory[1 << 16]; /* the texts of merged tokens */
    size_t used;
    char columns[COLUMNS_MAX][32];
    struct tokenizer *tokenizers[COLUMNS_MAX]; /* one per column */
    size_t column_count;
    struct record text;
    unsigned seen; /* columns that had ids for the text */
    size_t cases;
};

static void add_token(struct fixture *f, const char *text, size_t length) {
    assert_true(f->source.token_count < TOKENS_MAX && f->used + length <= sizeof f->memory);
    memcpy(f->memory + f->used, text, length);
    f->tokens[f->source.token_count++] = (struct gguf_string){f->memory + f->used, length};
    f->used += length;
}

static void read_bpe(struct fixture *f, struct record *record) {
    bool merges = strcmp(record->kind, "merges") == 0;
    for (size_t b = 0; merges && b < 256; b++) {
        uint8_t text[4];
        size_t length = byte_level_encode((uint8_t)b, text);
        add_token(f, (const char *)text, length);
    }
    for (char *line = record->text, *end; *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        size_t length = (size_t)(end - line);
        if (!merges) {
            add_token(f, line, length);
            continue;
        }
        f->merges[f->source.merge_count++] = (struct gguf_string){line, length};
        char joined[256];
        const char *space = memchr(line, ' ', length);
        assert_true(space && length < sizeof joined);
        size_t left = (size_t)(space - line);
        memcpy(joined, line, left);
        memcpy(joined + left, space + 1, length - left - 1);
        add_token(f, joined, length - 1);
    }
}

static void read_spm(struct fixture *f, struct record *record) {
    for (char *line = record->text, *end; *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        char *rest;
        f->types[f->source.token_count] = (uint8_t)strtoul(line, &rest, 10);
        f->scores[f->source.token_count] = strtof(rest, &rest);
        assert_int_equal(*rest, ' ');
        add_token(f, rest + 1, (size_t)(end - rest - 1));
    }
}

/* Tokens, or merges, of a BPE of characters; U+240A stands for a line end. */
static void read_characters(struct fixture *f, struct record *record) {
    const bool merges = strcmp(record->kind, "merges") == 0;
    for (char *line = record->text, *end; *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        char text[256];
        size_t length = 0;
        assert_true((size_t)(end - line) < sizeof text);
        for (const char *at = line; at < end;) {
            const bool is_line_end = end - at >= 3 && memcmp(at, "\xE2\x90\x8A", 3) == 0;
            text[length++] = is_line_end ? '\n' : *at;
            at += is_line_end ? 3 : 1;
        }
        assert_true(f->source.token_count + f->source.merge_count < TOKENS_MAX);
        if (!merges) f->types[f->source.token_count] = strncmp(text, "<0x", 3) == 0 ? TOKEN_BYTE : TOKEN_NORMAL;
        if (!merges) add_token(f, text, length);
        if (!merges) continue;
        assert_true(f->used + length <= sizeof f->memory);
        memcpy(f->memory + f->used, text, length);
        f->merges[f->source.merge_count++] = (struct gguf_string){f->memory + f->used, length};
        f->used += length;
    }
}

static void build_bpe(struct fixture *f, size_t column) {
    f->source.pre = pre_tokenizer_find(f->columns[column], strlen(f->columns[column]));
    if (!f->source.pre) fail_msg("no pre-tokenizer %s", f->columns[column]);
}

static void build_spm(struct fixture *f, size_t column) {
    f->source.types = f->types;
    f->source.scores = f->scores;
    f->source.rules.unknown = 0;
    f->source.rules.adds_space_prefix = true;
    f->source.rules.removes_extra_spaces = strcmp(f->columns[column], "single-spaces") == 0;
    for (size_t i = 0; strcmp(f->columns[column], "no-bytes") == 0 && i < f->source.token_count; i++)
        if (f->types[i] == TOKEN_BYTE) f->types[i] = TOKEN_UNUSED;
}

static void read_columns(struct fixture *f, struct record *record, enum tokenizer_model model) {
    char *rest = NULL;
    for (char *name = strtok_r(record->text, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
        size_t column = f->column_count++;
        assert_true(column < COLUMNS_MAX);
        snprintf(f->columns[column], sizeof f->columns[column], "%s", name);
        f->source.model = model;
        f->source.tokens = f->tokens;
        f->source.merges = f->merges;
        f->source.rules.bos = f->source.rules.eos = f->source.rules.unknown = TOKEN_NONE;
        if (model == TOKENIZER_SPM)
            build_spm(f, column);
        else
            build_bpe(f, column);
        if (model == TOKENIZER_CHARACTER_BPE) f->source.types = f->types;
        struct error error;
        assert_ok(tokenizer_build(&f->tokenizers[column], &f->source, &error), error);
    }
}

static void check_ids(struct fixture *f, const struct record *record) {
    unsigned mask = (unsigned)strtoul(record->argument, NULL, 16);
    for (size_t column = 0; column < f->column_count; column++) {
        if (!(mask >> column & 1)) continue;
        struct token_list list = encode(f->tokenizers[column], f->text.text, f->text.length, false);
        char got[4096] = "";
        size_t used = 0;
        for (size_t i = 0; i < list.count && used < sizeof got - 16; i++)
            used += (size_t)snprintf(got + used, sizeof got - used, i ? " %d" : "%d", list.ids[i]);
        if (strcmp(got, record->text) != 0)
            fail_msg("%s: '%s':\n%s\nexpected:\n%s", f->columns[column], f->text.text, got, record->text);
        token_list_deinit(&list);
        if (f->source.model != TOKENIZER_SPM)
            assert_round_trip(f->tokenizers[column], f->text.text, f->text.length);
        f->cases++;
    }
    f->seen |= mask;
}

static size_t check_file(const char *path, enum tokenizer_model model) {
    struct fixture *f = calloc(1, sizeof *f);
    char *file = read_whole(path, NULL), *at = file;
    assert_non_null(f);
    assert_non_null(file);
    struct record record;
    size_t texts = 0;
    while (record_next(&at, &record)) {
        const bool is_merges = strcmp(record.kind, "merges") == 0;
        if (strcmp(record.kind, "tokens") == 0 || (is_merges && model == TOKENIZER_CHARACTER_BPE)) {
            read_characters(f, &record);
        } else if (is_merges || strcmp(record.kind, "extra") == 0) {
            read_bpe(f, &record);
        } else if (strcmp(record.kind, "pieces") == 0) {
            read_spm(f, &record);
        } else if (strcmp(record.kind, "columns") == 0) {
            read_columns(f, &record, model);
            f->seen = (1U << f->column_count) - 1;
        } else if (strcmp(record.kind, "text") == 0) {
            assert_int_equal(f->seen, (1U << f->column_count) - 1);
            f->seen = 0;
            f->text = record;
            texts++;
        } else {
            assert_string_equal(record.kind, "ids");
            check_ids(f, &record);
        }
    }
    print_message("%zu texts, %zu comparisons over %zu columns\n", texts, f->cases, f->column_count);
    assert_int_equal(f->cases, texts * f->column_count);
    for (size_t c = 0; c < f->column_count; c++) tokenizer_destroy(f->tokenizers[c]);
    free(f);
    free(file);
    return texts;
}

static void hugging_face_bpe(void **state) {
    (void)state;
    assert_true(check_file(LOAM_SOURCE_DIR "/tests/token/fixtures/bpe.txt", TOKENIZER_BPE) >= 1000);
}

static void sentencepiece_bpe(void **state) {
    (void)state;
    assert_true(check_file(LOAM_SOURCE_DIR "/tests/token/fixtures/spm.txt", TOKENIZER_SPM) >= 250);
}

static void hugging_face_bpe_of_characters(void **state) {
    (void)state;
    assert_true(check_file(LOAM_SOURCE_DIR "/tests/token/fixtures/characters.txt", TOKENIZER_CHARACTER_BPE) >= 300);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(hugging_face_bpe), cmocka_unit_test(sentencepiece_bpe),
                                       cmocka_unit_test(hugging_face_bpe_of_characters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

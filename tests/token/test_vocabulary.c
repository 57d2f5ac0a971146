/* Vocabularies that are refused, each with the key at fault; tokens that stand in the text; the UTF-8 stream. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "token/chat_template.h"
#include "token/tokenizer_internal.h"
#include "token/unicode.h"
#include "vocabularies.h"

#define KEY(name) "tokenizer.ggml." name

enum { BYTES = 256, COUNT = BYTES + 6 };

/* A small sound file, and one thing wrong with it. */
struct fault {
    const char *name;
    enum status status; /* STATUS_OK: accepted */
    const char *says;   /* what the message must hold */
    const char *model, *pre;
    int32_t token, type; /* tokens[token] gets this type */
    const char *text;    /* or this text */
    const char *merge;   /* one more merge */
    bool no_merges;      /* an array without elements */
    const char *id_key;  /* this key gets id */
    uint32_t id;
    int missing_types, missing_scores; /* so many elements too few; -1: no such array */
    bool nan_score, tokens_are_numbers;
};

static const struct fault faults[] = {
    {.name = "sound BPE", .status = STATUS_OK},
    {.name = "sound SPM", .status = STATUS_OK, .model = "llama"},
    {.name = "model", .status = STATUS_UNSUPPORTED, .model = "bert", .says = "'bert'"},
    {.name = "pre", .status = STATUS_MODEL, .pre = "never-heard-of", .says = "'never-heard-of'"},
    {.name = "no pre", .status = STATUS_MODEL, .pre = "", .says = KEY("pre")},
    {.name = "type", .status = STATUS_MODEL, .token = 3, .type = 7, .says = KEY("token_type") "[3]"},
    {.name = "negative type",
     .status = STATUS_MODEL,
     .token = 3,
     .type = -1,
     .says = KEY("token_type") "[3]"},
    {.name = "few types", .status = STATUS_MODEL, .missing_types = 1, .says = KEY("token_type")},
    {.name = "no types", .status = STATUS_OK, .missing_types = -1},
    {.name = "few scores",
     .status = STATUS_MODEL,
     .model = "llama",
     .missing_scores = 2,
     .says = KEY("scores")},
    {.name = "no scores",
     .status = STATUS_MODEL,
     .model = "llama",
     .missing_scores = -1,
     .says = KEY("scores")},
    {.name = "score NaN", .status = STATUS_MODEL, .model = "llama", .nan_score = true, .says = KEY("scores")},
    {.name = "byte -1",
     .status = STATUS_MODEL,
     .model = "llama",
     .token = 9,
     .text = "<0x-1>",
     .says = "<0x-1>"},
    {.name = "byte zz",
     .status = STATUS_MODEL,
     .model = "llama",
     .token = 9,
     .text = "<0xzz>",
     .says = "[9]"},
    {.name = "byte short",
     .status = STATUS_MODEL,
     .model = "llama",
     .token = 9,
     .text = "<0x",
     .says = "[9]"},
    {.name = "byte long",
     .status = STATUS_MODEL,
     .model = "llama",
     .token = 9,
     .text = "<0x000>",
     .says = "[9]"},
    {.name = "byte empty", .status = STATUS_MODEL, .model = "llama", .token = 9, .text = "", .says = "[9]"},
    {.name = "byte twice", .status = STATUS_OK, .model = "llama", .token = 9, .text = "<0x00>"},
    {.name = "token twice", .status = STATUS_OK, .token = 261, .text = "aa"},
    {.name = "merge of one", .status = STATUS_MODEL, .merge = "a", .says = KEY("merges")},
    {.name = "merge empty", .status = STATUS_MODEL, .merge = "", .says = KEY("merges")},
    {.name = "merge half", .status = STATUS_MODEL, .merge = "a ", .says = KEY("merges")},
    {.name = "merge of none", .status = STATUS_MODEL, .merge = "xyz a", .says = "xyz a"},
    {.name = "merge to none", .status = STATUS_MODEL, .merge = "b b", .says = "b b"},
    {.name = "merge twice",
     .status = STATUS_MODEL,
     .merge = "a a",
     .says = KEY("merges") "[2]: 'a a' is entry 0"},
    {.name = "no merge", .status = STATUS_MODEL, .no_merges = true, .says = KEY("merges") ": found none"},
    {.name = "bos",
     .status = STATUS_MODEL,
     .id_key = KEY("bos_token_id"),
     .id = COUNT,
     .says = "bos_token_id"},
    {.name = "eot",
     .status = STATUS_MODEL,
     .id_key = KEY("eot_token_id"),
     .id = 1 << 30,
     .says = "eot_token_id"},
    {.name = "pad",
     .status = STATUS_MODEL,
     .id_key = KEY("padding_token_id"),
     .id = COUNT,
     .says = "padding"},
    {.name = "pad -1", .status = STATUS_OK, .id_key = KEY("padding_token_id"), .id = UINT32_MAX},
    {.name = "tokens", .status = STATUS_MODEL, .tokens_are_numbers = true, .says = KEY("tokens")},
};

#define WRITE(call) assert_ok(call, error)

static void write_file(const struct fault *fault, const char *path) {
    struct gguf_writer *w;
    struct error error;
    bool spm = fault->model && strcmp(fault->model, "llama") == 0;
    const char *model = fault->model ? fault->model : "gpt2", *pre = fault->pre ? fault->pre : "gpt-2";
    static char texts[BYTES][8];
    struct gguf_string tokens[COUNT];
    int32_t types[COUNT];
    float scores[COUNT];
    for (size_t i = 0; i < BYTES; i++) {
        size_t length = byte_level_encode((uint8_t)i, (uint8_t *)texts[i]);
        texts[i][length] = '\0';
        if (spm) snprintf(texts[i], sizeof texts[i], "<0x%02X>", (unsigned)i);
        types[i] = spm ? TOKEN_BYTE : TOKEN_NORMAL;
        tokens[i] = (struct gguf_string){texts[i], strlen(texts[i])};
    }
    static const char *const more[] = {"aa", "<s>", "</s>", "<tool>", "aab", "<|im_end|>"};
    static const int32_t more_types[] = {TOKEN_NORMAL,       TOKEN_CONTROL, TOKEN_CONTROL,
                                         TOKEN_USER_DEFINED, TOKEN_NORMAL,  TOKEN_USER_DEFINED};
    for (size_t i = 0; i < COUNT; i++) {
        if (i >= BYTES) tokens[i] = (struct gguf_string){more[i - BYTES], strlen(more[i - BYTES])};
        if (i >= BYTES) types[i] = more_types[i - BYTES];
        scores[i] = fault->nan_score && i == 77 ? __builtin_nanf("") : -(float)i;
    }
    if (fault->type) types[fault->token] = fault->type;
    if (fault->text) tokens[fault->token] = (struct gguf_string){fault->text, strlen(fault->text)};
    struct gguf_string merges[3] = {{"a a", 3}, {"aa b", 4}};
    if (fault->merge) merges[2] = (struct gguf_string){fault->merge, strlen(fault->merge)};
    WRITE(gguf_writer_create(&w, path, &error));
    WRITE(gguf_writer_add_string(w, KEY("model"), model, strlen(model), &error));
    if (*pre) WRITE(gguf_writer_add_string(w, KEY("pre"), pre, strlen(pre), &error));
    if (fault->tokens_are_numbers)
        WRITE(gguf_writer_add_ints(w, KEY("tokens"), types, COUNT, &error));
    else
        WRITE(gguf_writer_add_strings(w, KEY("tokens"), tokens, COUNT, &error));
    if (fault->missing_types >= 0)
        WRITE(gguf_writer_add_ints(w, KEY("token_type"), types, COUNT - (uint64_t)fault->missing_types,
                                   &error));
    if (fault->missing_scores >= 0)
        WRITE(gguf_writer_add_floats(w, KEY("scores"), scores, COUNT - (uint64_t)fault->missing_scores,
                                     &error));
    WRITE(gguf_writer_add_strings(w, KEY("merges"), merges,
                                  fault->no_merges ? 0
                                  : fault->merge   ? 3
                                                   : 2,
                                  &error));
    if (fault->id_key) WRITE(gguf_writer_add_uint(w, fault->id_key, fault->id, &error));
    WRITE(gguf_writer_begin_data(w, &error));
    WRITE(gguf_writer_commit(w, &error));
    gguf_writer_destroy(w);
}

static enum status open_fault(const struct fault *fault, bool force_pre, struct tokenizer **t,
                              struct error *error) {
    char path[64];
    snprintf(path, sizeof path, "test_vocabulary.%d.gguf", (int)getpid());
    write_file(fault, path);
    struct gguf gguf;
    assert_ok(gguf_open(&gguf, path, error), *error);
    enum status status = tokenizer_create(t, &gguf, force_pre, error);
    gguf_close(&gguf);
    unlink(path);
    return status;
}

static void faults_are_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct tokenizer *t = NULL;
        struct error error = {0};
        enum status status = open_fault(&faults[i], false, &t, &error);
        if (status != faults[i].status) fail_msg("%s: status %d, %s", faults[i].name, status, error.message);
        if (status == STATUS_OK) {
            assert_round_trip(t, "aaab b\xFF", 7);
        } else {
            assert_null(t);
            if (!strstr(error.message, faults[i].says) || !strstr(error.message, "test_vocabulary."))
                fail_msg("%s: '%s' does not say '%s' and the file", faults[i].name, error.message,
                         faults[i].says);
        }
        tokenizer_destroy(t);
    }
}

static void pre_can_be_forced(void **state) {
    (void)state;
    for (size_t i = 3; i < 5; i++) { /* unknown and missing */
        struct tokenizer *t = NULL;
        struct error error;
        assert_ok(open_fault(&faults[i], true, &t, &error), error);
        assert_string_equal(t->pre_tokenizer->family, "default");
        tokenizer_destroy(t);
    }
}

static void assert_ids(const struct tokenizer *t, const char *text, bool special, const token_id *ids,
                       size_t count) {
    struct token_list list = encode(t, text, strlen(text), special);
    assert_int_equal(list.count, count);
    assert_memory_equal(list.ids, ids, count * sizeof *ids);
    token_list_deinit(&list);
}

static void tokens_in_the_text(void **state) {
    (void)state;
    struct tokenizer *t = NULL;
    struct error error;
    assert_ok(open_fault(&faults[0], false, &t, &error), error);
    assert_ids(t, "aab<tool>aa", false, (token_id[]){260, 259, 256}, 3);
    assert_ids(t, "<s>aa", true, (token_id[]){257, 256}, 2);
    assert_ids(t, "<s>", false, (token_id[]){'<', 's', '>'}, 3);
    /* typed as user-defined in the file, and yet a control token: it structures conversations */
    assert_true(tokenizer_is_control(t, 261));
    assert_ids(t, "<|im_end|>", true, (token_id[]){261}, 1);
    struct token_list typed = encode(t, "<|im_end|>", 10, false);
    assert_int_equal(typed.count, 10);
    token_list_deinit(&typed);
    assert_true(tokenizer_is_end(t, 261));
    char piece[2];
    assert_int_equal(tokenizer_piece(t, 260, false, piece, 2), 3);
    assert_int_equal(tokenizer_piece(t, 257, false, piece, 2), 0);
    assert_int_equal(tokenizer_piece(t, 257, true, piece, 0), 3);
    assert_int_equal(tokenizer_piece(t, COUNT, true, piece, 2), 0);
    char *text = NULL;
    assert_int_equal(tokenizer_decode(t, (token_id[]){COUNT}, 1, true, &text, NULL, &error), STATUS_USAGE);
    tokenizer_destroy(t);
}

static void utf8_sequences(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t expected;
    } cases[] = {{"a", 1},        {"\xc3\xa4", 2},     {"\xc0\x80", 0},     {"\xed\xa0\x80", 0},
                 {"\xed", 0},     {"\xf4\x90", 0},     {"\xf4\x8f\xbf", 0}, {"\xf4\x8f\xbf\xbf", 4},
                 {"\x80", 0},     {"\xe0\x9f\xbf", 0}, {"\xef\xbf\xbd", 3}, {"\xf5\x80\x80\x80", 0},
                 {"\xe2\x28", 0}, {"\xe2\x82\x28", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(utf8_sequence_length((const uint8_t *)cases[i].bytes, strlen(cases[i].bytes), 0),
                         cases[i].expected);
}

/* Whatever the cut, the same characters leave, and never a part of one. */
static void stream_holds_back_parts(void **state) {
    (void)state;
    static const char text[] = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80\xFFz\xE2\x82\xF0\x9F\x98";
    static const char shown[] = "aé中😀\uFFFDz\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD";
    size_t length = sizeof text - 1;
    for (size_t cut = 1; cut <= length; cut++) {
        struct utf8_stream raw = {0}, replaced = {.replace = true};
        char out[256], *to = out, clean[256], *clean_to = clean;
        for (size_t at = 0; at < length; at += cut) {
            size_t part = length - at < cut ? length - at : cut;
            to += utf8_stream_push(&raw, text + at, part, to);
            clean_to += utf8_stream_push(&replaced, text + at, part, clean_to);
            for (const char *p = clean; p < clean_to;) {
                size_t step = utf8_sequence_length((const uint8_t *)p, (size_t)(clean_to - p), 0);
                assert_true(step > 0);
                p += step;
            }
        }
        to += utf8_stream_finish(&raw, to);
        clean_to += utf8_stream_finish(&replaced, clean_to);
        assert_int_equal(to - out, length);
        assert_memory_equal(out, text, length);
        assert_int_equal(clean_to - clean, sizeof shown - 1);
        assert_memory_equal(clean, shown, sizeof shown - 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(faults_are_named),
                                       cmocka_unit_test(pre_can_be_forced),
                                       cmocka_unit_test(tokens_in_the_text), cmocka_unit_test(utf8_sequences),
                                       cmocka_unit_test(stream_holds_back_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

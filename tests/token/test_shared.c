/* Exact against the vocabularies of Llama 2 (SentencePiece) and GPT-2 (byte-level BPE) with the token ids
 * that their authors' tokenizers give; both lie in the shared data, and the test skips where that is absent. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared_data.h"
#include "vocabularies.h"

/* NAME.inp: texts, each ended by this line; NAME.out: a line of ids for each. */
static const char separator[] = "\n__ggml_vocab_test__\n";

static size_t check_line(const struct tokenizer *t, const char *text, size_t length, char *line) {
    struct token_list list = encode(t, text, length, false);
    size_t i = 0;
    for (char *end; *line; line = end) {
        long id = strtol(line, &end, 10);
        if (end == line) break;
        if (i >= list.count || list.ids[i] != id)
            fail_msg("'%.*s': token %zu is %d, expected %ld", (int)length, text, i,
                     i < list.count ? list.ids[i] : TOKEN_NONE, id);
        i++;
    }
    if (i != list.count) fail_msg("'%.*s': %zu tokens, expected %zu", (int)length, text, list.count, i);
    token_list_deinit(&list);
    assert_round_trip(t, text, length);
    return i;
}

static void check_vocabulary(const char *name) {
    char path[512], input_path[520], output_path[520];
    char file[128];
    snprintf(file, sizeof file, "vocab/%s.gguf", name);
    if (!shared_path(file, path)) skip();
    snprintf(input_path, sizeof input_path, "%s.inp", path);
    snprintf(output_path, sizeof output_path, "%s.out", path);
    size_t length = 0;
    char *input = read_whole(input_path, &length), *output = read_whole(output_path, NULL);
    assert_non_null(input);
    assert_non_null(output);
    struct tokenizer *t = open_vocabulary(path);
    size_t cases = 0, tokens = 0;
    char *line = output;
    for (char *text = input, *end; (end = strstr(text, separator)); text = end + strlen(separator)) {
        char *line_end = strchr(line, '\n');
        assert_non_null(line_end);
        *line_end = '\0';
        tokens += check_line(t, text, (size_t)(end - text), line);
        line = line_end + 1;
        cases++;
    }
    assert_int_equal(cases, 46);
    print_message("%s: %zu texts, %zu tokens\n", name, cases, tokens);
    tokenizer_destroy(t);
    free(input);
    free(output);
}

static void llama_spm(void **state) {
    (void)state;
    check_vocabulary("ggml-vocab-llama-spm");
}

static void gpt2_bpe(void **state) {
    (void)state;
    check_vocabulary("ggml-vocab-gpt-2");
}

/* BPE decodes every byte string to itself.  So does SentencePiece for valid text, and for other bytes, since each has
 * a byte token. */
static void book_round_trips(void **state) {
    (void)state;
    static const char *const books[] = {"text/the-adventures-of-sherlock-holmes.txt", "text/the-diary.txt"};
    static const char *const names[] = {"vocab/ggml-vocab-llama-spm.gguf", "vocab/ggml-vocab-gpt-2.gguf"};
    char path[512];
    for (size_t n = 0; n < 2; n++) {
        if (!shared_path(names[n], path)) skip();
        struct tokenizer *t = open_vocabulary(path);
        for (size_t b = 0; b < 2; b++) {
            size_t length = 0;
            char *text = shared_path(books[b], path) ? read_whole(path, &length) : NULL;
            assert_non_null(text);
            assert_round_trip(t, text, length < 700000 ? length : 700000);
            free(text);
        }
        tokenizer_destroy(t);
    }
}

static void special_tokens(void **state) {
    (void)state;
    char path[512];
    if (!shared_path("vocab/ggml-vocab-llama-spm.gguf", path)) skip();
    struct tokenizer *t = open_vocabulary(path);
    struct error error;
    struct token_list list = {0};
    struct tokenize_options options = {.add_special = true, .parse_special = true};
    assert_ok(tokenizer_encode(t, "Hello</s>Hello", 14, options, &list, &error), error);
    static const token_id expected[] = {1, 15043, 2, 15043};
    assert_int_equal(list.count, 4);
    assert_memory_equal(list.ids, expected, sizeof expected);
    size_t length;
    char *text = decode(t, &list, false, &length);
    assert_string_equal(text, "HelloHello");
    free(text);
    text = decode(t, &list, true, &length);
    assert_string_equal(text, "<s>Hello</s>Hello");
    free(text);
    token_list_deinit(&list);
    list = encode(t, "</s>", 4, false);
    for (size_t i = 0; i < list.count; i++) assert_true(list.ids[i] > 2);
    token_list_deinit(&list);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_true(tokenizer_is_end(t, 2));
    assert_false(tokenizer_is_end(t, 1));
    assert_true(tokenizer_adds_bos(t));
    tokenizer_destroy(t);
}

int main(void) {
    char path[512];
    if (!shared_path("vocab/ggml-vocab-gpt-2.gguf", path)) {
        puts("skipped: no shared vocabularies (set LOAM_SHARED to the folder that holds data/vocab)");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(llama_spm), cmocka_unit_test(gpt2_bpe),
                                       cmocka_unit_test(book_round_trips), cmocka_unit_test(special_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* import: tokenizer.json and the files beside it, as tokenizer.ggml.*. */
#include "testing.h"

#include <stdio.h>
#include <string.h>

#include "format/gguf.h"
#include "lab/import/hf_folder.h"
#include "lab/import/import.h"

static enum status import_folder(struct hf_folder *folder, const char *pre, struct import_report *report,
                                 struct error *error) {
    char output[128];
    struct import_options options = {.pre = pre};
    hf_folder_write(folder);
    snprintf(output, sizeof output, "%s/out.gguf", folder->path);
    *error = (struct error){0};
    return model_import(folder->path, output, &options, report, error);
}

static void import_and_open(struct hf_folder *folder, struct import_report *report, struct gguf *gguf) {
    char path[128];
    struct error error;
    assert_ok(import_folder(folder, NULL, report, &error), error);
    snprintf(path, sizeof path, "%s/out.gguf", folder->path);
    assert_ok(gguf_open(gguf, path, &error), error);
}

static void check_text(const struct gguf *gguf, const char *key, const char *expected) {
    struct error error;
    struct gguf_string text = {"", 0};
    assert_ok(gguf_get_string(gguf, key, &text, &error), error);
    if (text.length != strlen(expected) || memcmp(text.text, expected, text.length) != 0)
        fail_msg("%s: found '%.*s', expected '%s'", key, (int)text.length, text.text, expected);
}

/* -1: the key must be absent */
static void check_id(const struct gguf *gguf, const char *name, int64_t expected) {
    struct error error;
    char key[64];
    uint64_t id = 0;
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    bool found = gguf_find(gguf, key) != NULL;
    assert_ok(gguf_get_uint(gguf, key, UINT32_MAX, &id, &error), error);
    if (found != (expected >= 0) || (found && (int64_t)id != expected))
        fail_msg("%s: found %d (%d), expected %d", name, (int)id, found, (int)expected);
}

static void check_flag(const struct gguf *gguf, const char *name, bool expected) {
    struct error error;
    char key[64];
    bool value = !expected;
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    assert_ok(gguf_get_bool(gguf, key, &value, &error), error);
    if (value != expected) fail_msg("%s: expected %d", name, expected);
}

static const struct gguf_entry *array_of(const struct gguf *gguf, const char *name, enum gguf_type type) {
    struct error error;
    char key[64];
    const struct gguf_entry *array;
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    assert_ok(gguf_get_array(gguf, key, type, &array, &error), error);
    return array;
}

static void check_string(struct gguf_string found, const char *expected) {
    if (found.length != strlen(expected) || memcmp(found.text, expected, found.length) != 0)
        fail_msg("found '%.*s', expected '%s'", (int)found.length, found.text, expected);
}

static void byte_level(void **state) {
    (void)state;
    struct hf_folder folder;
    struct import_report report;
    struct gguf gguf;
    hf_folder_init(&folder, "llama");
    import_and_open(&folder, &report, &gguf);
    check_text(&gguf, "tokenizer.ggml.model", "gpt2");
    check_text(&gguf, "tokenizer.ggml.pre", "gpt-2");
    assert_string_equal(report.warning, "");
    const struct gguf_entry *tokens = array_of(&gguf, "tokens", GGUF_STRING);
    const struct gguf_entry *types = array_of(&gguf, "token_type", GGUF_INT32);
    const struct gguf_entry *merges = array_of(&gguf, "merges", GGUF_STRING);
    assert_null(array_of(&gguf, "scores", GGUF_FLOAT32));
    assert_int_equal(tokens->count, HF_VOCABULARY);
    assert_int_equal(types->count, HF_VOCABULARY);
    assert_int_equal(merges->count, 3);
    check_string(tokens->strings[6], "the");
    check_string(tokens->strings[20], "[PAD20]");
    check_string(tokens->strings[37], "<|begin|>");
    check_string(merges->strings[0], "t h");
    check_string(merges->strings[1], "th e");
    check_string(merges->strings[2], "\xc4\xa0 a");
    const int64_t expected[] = {1, 5, 3, 3, 4};
    const uint64_t ids[] = {6, 20, 37, 38, 39};
    for (size_t i = 0; i < 5; i++) assert_int_equal(gguf_array_int(types, ids[i]), expected[i]);
    check_flag(&gguf, "add_bos_token", false);
    gguf_close(&gguf);
    hf_folder_remove(&folder);
}

static void sentencepiece(void **state) {
    (void)state;
    struct hf_folder folder;
    struct import_report report;
    struct gguf gguf;
    hf_folder_init(&folder, "mistral");
    json_decref(folder.tokenizer);
    folder.tokenizer = hf_sentencepiece_tokenizer();
    import_and_open(&folder, &report, &gguf);
    check_text(&gguf, "tokenizer.ggml.model", "llama");
    check_text(&gguf, "tokenizer.ggml.pre", "default");
    assert_string_equal(report.warning, ""); /* every way to every token is a merge */
    const struct gguf_entry *types = array_of(&gguf, "token_type", GGUF_INT32);
    const struct gguf_entry *scores = array_of(&gguf, "scores", GGUF_FLOAT32);
    assert_null(array_of(&gguf, "merges", GGUF_STRING));
    assert_int_equal(scores->count, HF_VOCABULARY);
    /* unk, bos, eos, three bytes, "▁" t h e, the (3rd merge), th, he, "▁t", and "[more]" */
    const int64_t expected_types[] = {2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 5};
    const double expected_scores[] = {0, 0, 0, 0, 0, 0, -5, -5, -5, -5, -2, 0, -1, -4, 0};
    for (uint64_t i = 0; i < 15; i++) {
        assert_int_equal(gguf_array_int(types, i), expected_types[i]);
        assert_true(gguf_array_float(scores, i) == expected_scores[i]);
    }
    assert_int_equal(gguf_array_int(types, 39), 4);
    check_flag(&gguf, "add_space_prefix", true);
    check_id(&gguf, "unknown_token_id", 0);
    gguf_close(&gguf);
    hf_folder_remove(&folder);
}

static void sentencepiece_variants(void **state) {
    (void)state;
    static const struct {
        const char *patch;
        bool prefix;
    } cases[] = {
        {"{\"normalizer\":{\"type\":\"Replace\"}}", false},
        {"{\"normalizer\":null}", false},
        {"{\"normalizer\":{\"type\":\"Prepend\"}}", true},
        {"{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"first\"}}",
         true},
        {"{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"never\"}}",
         false},
        {"{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\",\"add_prefix_space\":true}}", true},
        {"{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\",\"add_prefix_space\":false}}",
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hf_folder folder;
        struct gguf gguf;
        hf_folder_init(&folder, "llama");
        json_decref(folder.tokenizer);
        folder.tokenizer = hf_sentencepiece_tokenizer();
        hf_patch(folder.tokenizer, cases[i].patch);
        import_and_open(&folder, NULL, &gguf);
        check_flag(&gguf, "add_space_prefix", cases[i].prefix);
        gguf_close(&gguf);
        hf_folder_remove(&folder);
    }
}

/* "the" is a token, "t" + "he" are tokens, and that merge is not listed: SentencePiece would do it all the same. */
static void unlisted_merges_warn(void **state) {
    (void)state;
    struct hf_folder folder;
    struct import_report report;
    struct gguf gguf;
    hf_folder_init(&folder, "llama");
    json_decref(folder.tokenizer);
    folder.tokenizer = hf_sentencepiece_tokenizer();
    hf_patch(json_object_get(folder.tokenizer, "model"),
             "{\"merges\":[\"t h\",\"h e\",\"th e\",\"\\u2581 t\"]}");
    import_and_open(&folder, &report, &gguf);
    assert_non_null(strstr(report.warning, "1 tokens can come about in ways that its merges do not list"));
    gguf_close(&gguf);
    hf_folder_remove(&folder);
}

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LETTERS      "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define TAIL         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

struct pre_case {
    const char *patterns[4]; /* of Split steps before ByteLevel; none: ByteLevel with its own pattern */
    bool has_digits, ignores_merges;
    const char *pre; /* NULL: refused */
};

static const struct pre_case pre_cases[] = {
    {{NULL}, false, false, "gpt-2"},
    {{NULL}, true, false, "smollm"},
    {{CONTRACTIONS LETTERS "|\\p{N}{1,3}" TAIL}, false, true, "llama-bpe"},
    {{CONTRACTIONS LETTERS "|\\p{N}{1,3}" TAIL}, false, false, "smaug-bpe"},
    {{CONTRACTIONS LETTERS "|\\p{N}" TAIL}, false, false, "qwen2"},
    {{CONTRACTIONS LETTERS "|\\p{N}" TAIL}, false, true, NULL},
    {{"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| "
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
     false,
     true,
     "tekken"},
    {{"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+"}, true, false, "deepseek-coder"},
    {{"[a-z]+"}, false, false, NULL},
};

static void set_pre(struct hf_folder *folder, const struct pre_case *c) {
    json_t *steps = json_array();
    for (size_t i = 0; i < 4 && c->patterns[i] != NULL; i++)
        json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern",
                                               "Regex", c->patterns[i], "behavior", "Isolated", "invert", 0));
    if (c->has_digits)
        json_array_append_new(steps, json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1));
    json_array_append_new(steps, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                                           "use_regex", c->patterns[0] == NULL));
    json_object_set_new(folder->tokenizer, "pre_tokenizer",
                        json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps));
    json_object_set_new(json_object_get(folder->tokenizer, "model"), "ignore_merges",
                        json_boolean(c->ignores_merges));
}

static void pre_tokenizers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof pre_cases / sizeof pre_cases[0]; i++) {
        struct hf_folder folder;
        struct import_report report;
        struct error error;
        hf_folder_init(&folder, "qwen2");
        set_pre(&folder, &pre_cases[i]);
        enum status status = import_folder(&folder, NULL, &report, &error);
        if (pre_cases[i].pre == NULL) {
            assert_int_equal(status, STATUS_MODEL);
            assert_non_null(strstr(error.message, "--pre NAME decides"));
            hf_folder_remove(&folder);
            hf_folder_init(&folder, "qwen2"); /* ... and it does */
            set_pre(&folder, &pre_cases[i]);
            assert_ok(import_folder(&folder, "mine", &report, &error), error);
            assert_string_equal(report.pre, "mine");
        } else {
            assert_ok(status, error);
            assert_string_equal(report.pre, pre_cases[i].pre);
        }
        hf_folder_remove(&folder);
    }
}

struct special_case {
    const char *tokenizer, *config, *tokenizer_config, *generation; /* patches; NULL: no file */
    bool adds_bos, adds_eos;
    int64_t bos, eos, eot, eom;
};

static const struct special_case special_cases[] = {
    {NULL, NULL, NULL, NULL, false, false, -1, -1, -1, -1},
    {NULL, "{\"bos_token_id\":37,\"eos_token_id\":38}", NULL, NULL, false, false, 37, 38, -1, -1},
    /* a default id of the class that is an ordinary word here does not end an answer */
    {NULL, "{\"eos_token_id\":2}", "{\"eos_token\":\"<|end|>\"}", NULL, false, false, -1, 38, -1, -1},
    {NULL, "{\"eos_token_id\":[38,37]}", NULL, NULL, false, false, -1, 38, 37, -1},
    {NULL, "{\"eos_token_id\":38}", NULL, "{\"eos_token_id\":[37,38]}", false, false, -1, 37, 38, -1},
    {NULL, "{\"eos_token_id\":99}", NULL, NULL, false, false, -1, -1, -1, -1},
    {"{\"added_tokens\":[{\"id\":36,\"content\":\"<|eom_id|>\",\"special\":true},{\"id\":37,\"content\":\"<|"
     "begin|>\","
     "\"special\":true},{\"id\":38,\"content\":\"<|end|>\",\"special\":true}]}",
     "{\"eos_token_id\":[37,36,38]}", "{\"eos_token\":{\"content\":\"<|end|>\"},\"bos_token\":\"<|begin|>\"}",
     NULL, false, false, 37, 38, 37, 36},
    {NULL, NULL,
     "{\"add_bos_token\":true,\"bos_token\":\"<|begin|>\",\"eos_token\":\"<|end|>\",\"add_eos_token\":true}",
     NULL, true, true, 37, 38, -1, -1},
    {NULL, NULL, "{\"add_bos_token\":true}", NULL, false, false, -1, -1, -1, -1}, /* no such token */
    {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<|begin|>"
     "\"}},"
     "{\"Sequence\":{\"id\":\"A\"}}]}}",
     NULL, "{\"add_bos_token\":false}", NULL, true, false, 37, -1, -1, -1},
    {"{\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
     "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<|begin|>\"}},{\"Sequence\":{\"id\":"
     "\"A\"}},"
     "{\"SpecialToken\":{\"id\":\"<|end|>\"}}]}]}}",
     NULL, "{\"eos_token\":\"<|end|>\"}", NULL, true, true, 37, 38, -1, -1},
};

static void special_tokens(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof special_cases / sizeof special_cases[0]; i++) {
        const struct special_case *c = &special_cases[i];
        struct hf_folder folder;
        struct gguf gguf;
        hf_folder_init(&folder, "llama");
        if (c->tokenizer != NULL) hf_patch(folder.tokenizer, c->tokenizer);
        if (c->config != NULL) hf_patch(folder.config, c->config);
        if (c->tokenizer_config != NULL)
            hf_patch(folder.tokenizer_config = json_object(), c->tokenizer_config);
        if (c->generation != NULL) hf_patch(folder.generation = json_object(), c->generation);
        import_and_open(&folder, NULL, &gguf);
        check_id(&gguf, "bos_token_id", c->bos);
        check_id(&gguf, "eos_token_id", c->eos);
        check_id(&gguf, "eot_token_id", c->eot);
        check_id(&gguf, "eom_token_id", c->eom);
        check_flag(&gguf, "add_bos_token", c->adds_bos);
        check_flag(&gguf, "add_eos_token", c->adds_eos);
        gguf_close(&gguf);
        hf_folder_remove(&folder);
    }
}

static void chat_templates(void **state) {
    (void)state;
    static const struct {
        const char *tokenizer_config, *file, *expected; /* expected NULL: no key */
    } cases[] = {
        {NULL, NULL, NULL},
        {"{}", NULL, NULL},
        {"{\"chat_template\":\"{{ a }}\"}", NULL, "{{ a }}"},
        {"{\"chat_template\":\"{{ a }}\"}", "{{ b }}\n", "{{ b }}\n"},
        {"{\"chat_template\":[{\"name\":\"tool\",\"template\":\"x\"},{\"name\":\"default\",\"template\":"
         "\"y\"}]}",
         NULL, "y"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hf_folder folder;
        struct gguf gguf;
        hf_folder_init(&folder, "llama");
        if (cases[i].tokenizer_config != NULL)
            hf_patch(folder.tokenizer_config = json_object(), cases[i].tokenizer_config);
        folder.chat_template = cases[i].file;
        import_and_open(&folder, NULL, &gguf);
        if (cases[i].expected == NULL)
            assert_null(gguf_find(&gguf, "tokenizer.chat_template"));
        else
            check_text(&gguf, "tokenizer.chat_template", cases[i].expected);
        gguf_close(&gguf);
        hf_folder_remove(&folder);
    }
}

struct bad_tokenizer {
    bool sentencepiece;
    const char *patch, *model_patch, *found;
};

static const struct bad_tokenizer bad_tokenizers[] = {
    {false, "{\"model\":null}", NULL, "model.vocab: expected an object"},
    {false, NULL, "{\"type\":\"Unigram\"}", "model.type: found 'Unigram', only BPE"},
    {false, NULL, "{\"vocab\":[]}", "model.vocab: expected an object"},
    {false, NULL, "{\"vocab\":{\"a\":\"0\"}}", "model.vocab: token 'a' has id 0"},
    {false, NULL, "{\"vocab\":{\"a\":-1}}", "model.vocab: token 'a' has id -1, expected 0 to 39"},
    {false, NULL, "{\"vocab\":{\"a\":40}}", "model.vocab: token 'a' has id 40, expected 0 to 39"},
    {false, NULL, "{\"vocab\":{\"a\":3,\"b\":3}}", "tokens 'a' and 'b' have the same id 3"},
    {false, NULL, "{\"merges\":null}", "model.merges: expected an array"},
    {false, NULL, "{\"merges\":[\"th\"]}", "model.merges: 'th' has no space"},
    {false, NULL, "{\"merges\":[[\"t\"]]}", "model.merges: expected pairs"},
    {false, NULL, "{\"merges\":[[\"t\",1]]}", "model.merges: expected pairs"},
    {false, NULL, "{\"merges\":[[\"t \",\"h\"]]}", "a space inside cannot be written"},
    {false, "{\"added_tokens\":{}}", NULL, "added_tokens: expected an array"},
    {false, "{\"added_tokens\":[3]}", NULL, "added_tokens: entry 0 has no content"},
    {false, "{\"added_tokens\":[{\"content\":\"x\"}]}", NULL, "added_tokens: token 'x' has id 0"},
    {false, "{\"normalizer\":{\"type\":\"Lowercase\"}}", NULL,
     "normalizer: found Lowercase, which GGUF cannot say"},
    {false, "{\"pre_tokenizer\":{\"type\":\"Whitespace\"}}", NULL, "pre_tokenizer: expected ByteLevel"},
    {false, "{\"pre_tokenizer\":null}", NULL, "pre_tokenizer: expected ByteLevel"},
    {false, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}}", NULL,
     "not one that loam knows (ByteLevel regex add_prefix_space)"},
    {true, "{\"normalizer\":{\"type\":\"NFKC\"}}", NULL,
     "normalizer: found a step that is not Prepend or Replace"},
    {true, "{\"pre_tokenizer\":{\"type\":\"Split\"}}", NULL, "pre_tokenizer: expected Metaspace or none"},
    {true, NULL, "{\"merges\":[\"t t\"]}", "model.merges: 't t' makes no token"},
};

static void refused_tokenizers(void **state) {
    (void)state;
    size_t wrong = 0;
    for (size_t i = 0; i < sizeof bad_tokenizers / sizeof bad_tokenizers[0]; i++) {
        const struct bad_tokenizer *c = &bad_tokenizers[i];
        struct hf_folder folder;
        struct error error;
        hf_folder_init(&folder, "llama");
        if (c->sentencepiece) {
            json_decref(folder.tokenizer);
            folder.tokenizer = hf_sentencepiece_tokenizer();
        }
        if (c->patch != NULL) hf_patch(folder.tokenizer, c->patch);
        if (c->model_patch != NULL) hf_patch(json_object_get(folder.tokenizer, "model"), c->model_patch);
        enum status status = import_folder(&folder, NULL, NULL, &error);
        if (status != STATUS_MODEL || strstr(error.message, "/tokenizer.json: ") == NULL ||
            strstr(error.message, c->found) == NULL) {
            print_error("tokenizer %zu: expected '%s' in (%s): %s\n", i, c->found, status_name(status),
                        error.message);
            wrong++;
        }
        hf_folder_remove(&folder);
    }
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level),
        cmocka_unit_test(sentencepiece),
        cmocka_unit_test(sentencepiece_variants),
        cmocka_unit_test(unlisted_merges_warn),
        cmocka_unit_test(pre_tokenizers),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(chat_templates),
        cmocka_unit_test(refused_tokenizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "testing.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/process.h"
#include "cli/tiny_model.h"
#include "cli/utf8.h"
#include "device/cuda/images.h"

static char model_path[200], vocabulary_path[200], broken_path[200];

static int setup(void **state) {
    (void)state;
    snprintf(model_path, sizeof model_path, "%s", scratch_path("tiny.gguf"));
    snprintf(vocabulary_path, sizeof vocabulary_path, "%s", scratch_path("vocabulary.gguf"));
    snprintf(broken_path, sizeof broken_path, "%s", scratch_path("broken.gguf"));
    tiny_model_write(model_path, &(struct tiny_model){.seed = 1});
    tiny_model_write(vocabulary_path, &(struct tiny_model){.vocabulary_only = true});
    FILE *file = fopen(broken_path, "wb");
    assert_non_null(file);
    fputs("GGUF and nothing that follows", file);
    fclose(file);
    return 0;
}

static void tables_name_everything(void **state) {
    (void)state;
    struct process_result result = LOAM("inspect", model_path);
    assert_int_equal(result.code, 0);
    static const char *const expected[] = {"GGUF v3",
                                           "llama.context_length",
                                           "\"tiny\"",
                                           "blk.1.ffn_down.weight",
                                           "64 x 320",
                                           "2 layers",
                                           "KV cache per token: 512 bytes in f16",
                                           "1048576",
                                           "(beyond training)",
                                           "string[320]"};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        if (strstr(result.output, expected[i]) == NULL)
            fail_msg("no '%s' in\n%s", expected[i], result.output);
    process_deinit(&result);
}

static json_t *inspect_json(const char *path) {
    struct process_result result = LOAM("inspect", path, "--json");
    assert_int_equal(result.code, 0);
    json_error_t why;
    json_t *root = json_loads(result.output, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) fail_msg("%s", why.text);
    process_deinit(&result);
    return root;
}

static void json_has_the_same(void **state) {
    (void)state;
    json_t *root = inspect_json(model_path);
    json_t *model = json_object_get(root, "model"), *tensors = json_object_get(root, "tensors");
    assert_int_equal(json_array_size(tensors), 9 * TINY_LAYERS + 3);
    /* 2 layers * 2 KV heads * (32 + 32) elements * 2 bytes */
    json_t *per_token = json_object_get(model, "kv_bytes_per_token");
    assert_int_equal(json_integer_value(json_object_get(per_token, "f16")), 512);
    /* a block of 8 tokens: K and V of 8 * (32 + 2) bytes, to a multiple of 64 */
    assert_int_equal(json_integer_value(json_object_get(per_token, "q8_0")), 2 * 2 * 576 / 8);
    json_t *need = json_array_get(json_object_get(model, "needs"), 3);
    assert_int_equal(json_integer_value(json_object_get(need, "context")), 1 << 20);
    assert_int_equal(json_integer_value(json_object_get(need, "kv_bytes_f16")), 512 << 20);
    json_t *metadata = json_object_get(root, "metadata");
    assert_string_equal(json_string_value(json_object_get(metadata, "general.name")), "tiny");
    json_decref(root);
}

/* All layers attend to a window of 100 tokens: of a long context a sequence has five of those, in 3 chunks each, and
 * the chunks of a segment of a prompt, of 8,192 tokens. */
static void windows_are_counted(void **state) {
    (void)state;
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("windows.gguf"));
    tiny_model_write(path, &(struct tiny_model){.seed = 1, .window = 100});
    json_t *root = inspect_json(path), *model = json_object_get(root, "model");
    assert_int_equal(json_integer_value(json_object_get(model, "window_tokens")), 100);
    json_t *need = json_array_get(json_object_get(model, "needs"), 3);
    assert_int_equal(json_integer_value(json_object_get(need, "kv_bytes_f16")), (5 * 3 + 8192 / 64 + 1) * 64 * 512);
    json_decref(root);
    struct process_result result = LOAM("inspect", path);
    assert_non_null(strstr(result.output, "of layers with windows of 100 tokens"));
    process_deinit(&result);
}

/* What a card holds of a model of 2 layers. */
static void expect_card(const char *card, const char *path, json_int_t layers, json_int_t f16, json_int_t q8) {
    char line[200] = "\n";
    assert_int_equal(setenv("FAKE_CUDA", card, 1), 0);
    json_t *root = inspect_json(path), *cards = json_object_get(json_object_get(root, "model"), "cards"),
           *last = json_array_get(cards, json_array_size(cards) - 1);
    assert_int_equal(json_array_size(cards), 2);
    assert_string_equal(json_string_value(json_object_get(last, "name")), "cuda:1");
    assert_int_equal(json_integer_value(json_object_get(last, "layers")), layers);
    assert_int_equal(json_integer_value(json_object_get(last, "context_f16")), f16);
    assert_int_equal(json_integer_value(json_object_get(last, "context_q8_0")), q8);
    json_decref(root);
    struct process_result result = LOAM("inspect", path);
    if (layers > 0)
        snprintf(line, sizeof line, " %lld tokens of context in f16, %lld in q8_0\n", (long long)f16,
                 (long long)q8);
    if (strstr(result.output, line) == NULL) fail_msg("no '%s' in\n%s", line, result.output);
    snprintf(line, sizeof line, "weights of %lld of 2 layers", (long long)layers);
    if (strstr(result.output, line) == NULL) fail_msg("no '%s' in\n%s", line, result.output);
    process_deinit(&result);
}

/* Of 600 MiB the weights take 0.5 MB and a pass an eighth of the rest: 550.05 MB are left for K and V, of 512 or
 * 288 bytes a token, in chunks of 64. */
static void cards_are_named_with_what_they_hold(void **state) {
    (void)state;
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("long.gguf"));
    tiny_model_write(path, &(struct tiny_model){.seed = 1, .context = 2 << 20});
    assert_int_equal(setenv("LD_LIBRARY_PATH", FAKE_FOLDER, 1), 0);
    if (cuda_image_count > 0) {
        expect_card("devices=2,memory=4G", path, 2, 2 << 20, 2 << 20);
        expect_card("devices=2,memory=600M", path, 2, 1074304, 1909888);
        expect_card("devices=2,memory=262500K", path, 1, 393280, 699136);
        expect_card("devices=2,memory=200M", path, 0, 0, 0);
    }
    assert_int_equal(setenv("FAKE_CUDA", "devices=0", 1), 0);
    json_t *root = inspect_json(model_path);
    assert_int_equal(json_array_size(json_object_get(json_object_get(root, "model"), "cards")), 0);
    json_decref(root);
    assert_int_equal(unsetenv("LD_LIBRARY_PATH"), 0);
}

static void a_vocabulary_is_enough(void **state) {
    (void)state;
    json_t *root = inspect_json(vocabulary_path);
    assert_true(json_is_null(json_object_get(root, "model")));
    assert_int_equal(json_array_size(json_object_get(root, "tensors")), 0);
    json_decref(root);
    struct process_result result = LOAM("inspect", "-m", vocabulary_path);
    assert_int_equal(result.code, 0);
    assert_non_null(strstr(result.output, "a vocabulary only"));
    process_deinit(&result);
}

static void failures(void **state) {
    (void)state;
    struct process_result nothing = LOAM("inspect"), missing = LOAM("inspect", "/nonexistent.gguf"),
                          broken = LOAM("inspect", broken_path), wrong = LOAM("inspect", "--jsn", model_path);
    assert_int_equal(nothing.code, 0); /* the bundled model */
    assert_non_null(strstr(nothing.complaints, "/models/loam-nano.gguf\n"));
    assert_non_null(strstr(nothing.output, "blk.0.attn_q.weight"));
    assert_int_equal(missing.code, 6);
    assert_int_equal(broken.code, 3);
    assert_non_null(strstr(broken.complaints, "broken.gguf: "));
    assert_int_equal(wrong.code, 2);
    assert_non_null(strstr(wrong.complaints, "did you mean '--json'?"));
    process_deinit(&nothing);
    process_deinit(&missing);
    process_deinit(&broken);
    process_deinit(&wrong);
}

static void what_a_terminal_would_obey_is_escaped(void **state) {
    (void)state;
    char text[64];
    assert_string_equal(utf8_escape("a\n\x1b[2J\xc2\x9b\xff\xc3\xa4", 11, text, sizeof text),
                        "a\\n\\x1b[2J\\x9b\\xff\xc3\xa4");
    assert_string_equal(utf8_escape("abcdefgh", 8, text, 8), "abcd...");
    assert_string_equal(utf8_escape("abcdefg", 7, text, 8), "abcdefg");
    for (size_t size = 1; size < 12; size++) {
        utf8_escape("abc\xff\xff", 5, text, size);
        assert_true(strlen(text) < size);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_name_everything),
        cmocka_unit_test(json_has_the_same),
        cmocka_unit_test(windows_are_counted),
        cmocka_unit_test(cards_are_named_with_what_they_hold),
        cmocka_unit_test(a_vocabulary_is_enough),
        cmocka_unit_test(failures),
        cmocka_unit_test(what_a_terminal_would_obey_is_escaped),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

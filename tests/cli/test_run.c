/* loam run, tokenize and detokenize on a tiny model with random weights: what is printed, when it stops,
 * what the JSON says, how it fails. */
#include "testing.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/process.h"
#include "cli/tiny_model.h"

static char empty_path[200], model_path[200], ending_path[200], bare_path[200], long_path[200],
    text_path[200], json_path[200];

static int setup(void **state) {
    (void)state;
    snprintf(model_path, sizeof model_path, "%s", scratch_path("tiny.gguf"));
    snprintf(ending_path, sizeof ending_path, "%s", scratch_path("ending.gguf"));
    snprintf(bare_path, sizeof bare_path, "%s", scratch_path("bare.gguf"));
    snprintf(long_path, sizeof long_path, "%s", scratch_path("long.gguf"));
    snprintf(text_path, sizeof text_path, "%s", scratch_path("text.txt"));
    snprintf(json_path, sizeof json_path, "%s", scratch_path("run.json"));
    tiny_model_write(model_path, &(struct tiny_model){.seed = 1});
    tiny_model_write(ending_path, &(struct tiny_model){.seed = 1, .always_ends = true});
    tiny_model_write(bare_path, &(struct tiny_model){.seed = 1, .without_tokenizer = true});
    tiny_model_write(long_path, &(struct tiny_model){.seed = 2, .context = 1 << 20});
    snprintf(empty_path, sizeof empty_path, "%s", scratch_path("empty.gguf"));
    FILE *file = fopen(empty_path, "w");
    assert_non_null(file);
    fclose(file);
    file = fopen(text_path, "w");
    assert_non_null(file);
    fputs("once upon", file);
    fclose(file);
    return 0;
}

static json_t *load_json(void) {
    json_error_t why;
    json_t *root = json_load_file(json_path, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) fail_msg("%s: %s", json_path, why.text);
    return root;
}

static double number_at(json_t *root, const char *outer, const char *inner) {
    json_t *value = json_object_get(json_object_get(root, outer), inner);
    if (!json_is_number(value)) fail_msg("no number %s.%s", outer, inner);
    return json_number_value(value);
}

static char *compact(json_t *value) { return json_dumps(value, JSON_COMPACT); }

/* Fewer bytes than the model has: the same tokens, and what was read; too few: how many are needed. */
static void weights_beyond_a_budget(void **state) {
    (void)state;
    const char *real = LOAM_SOURCE_DIR "/models/loam-nano.gguf";
    struct process_result all = LOAM("run", "-m", real, "--raw", "-p", "hello", "-n", "6", "--temp", "0");
    struct process_result few = LOAM("run", "-m", real, "--raw", "-p", "hello", "-n", "6", "--temp", "0",
                                     "--weights-host", "6M", "--json", json_path);
    assert_int_equal(few.code, 0);
    assert_string_equal(few.output, all.output);
    assert_non_null(strstr(few.complaints, "layers stay in RAM"));
    json_t *root = load_json();
    assert_true(number_at(root, "weights", "host_bytes") <= 6 << 20);
    assert_true(number_at(root, "weights", "read_bytes") >= 6 * number_at(root, "weights", "pass_bytes"));
    json_decref(root);
    struct process_result none = LOAM("run", "-m", real, "-p", "hello", "--weights-host", "64K");
    assert_int_equal(none.code, 5);
    assert_non_null(strstr(none.complaints, "--weights-host: 65536 bytes, at least "));
    process_deinit(&all), process_deinit(&few), process_deinit(&none);
}

static void json_has_the_fields_of_the_contract(void **state) {
    (void)state;
    struct process_result result = LOAM("run", "-m", model_path, "-p", "hello", "-n", "6", "--temp", "0",
                                        "--json", json_path, "--top-logprobs", "3");
    assert_int_equal(result.code, 0);
    json_t *root = load_json();
    assert_string_equal(json_string_value(json_object_get(root, "preset")), "full");
    assert_string_equal(json_string_value(json_object_get(root, "model")), "tiny");
    assert_true(json_is_object(json_object_get(root, "plan")));
    double prompt = number_at(root, "prefill", "tokens");
    assert_int_equal(number_at(root, "prefill", "reused_tokens"), 0);
    assert_true(number_at(root, "prefill", "seconds") > 0);
    assert_true(number_at(root, "prefill", "tokens_per_second") > 0);
    assert_int_equal(number_at(root, "decode", "tokens"), 6);
    assert_true(number_at(root, "decode", "seconds") > 0);
    assert_true(number_at(root, "decode", "tokens_per_second") > 0);
    /* one chunk of 64 tokens: the prompt and 6 tokens fit in it */
    assert_true(prompt + 6 <= 64);
    assert_int_equal(number_at(root, "kv", "host_bytes_peak"), 512 * 64);
    assert_int_equal(number_at(root, "kv", "device_bytes_peak"), 0);
    assert_int_equal(number_at(root, "kv", "disk_bytes"), 0);
    assert_int_equal(number_at(root, "io", "read_bytes"), 0);
    assert_int_equal(number_at(root, "io", "write_bytes"), 0);
    assert_int_equal(number_at(root, "io", "read_ops"), 0);
    assert_true(number_at(root, "io", "wait_seconds") == 0);
    assert_true(number_at(root, "selection", "kept_ratio") == 1);
    assert_true(json_is_null(json_object_get(json_object_get(root, "reuse"), "hit_ratio")));
    assert_true(json_integer_value(json_object_get(root, "peak_rss_bytes")) > 1 << 20);
    json_t *tokens = json_object_get(root, "output_tokens"), *top = json_object_get(root, "top_logprobs");
    assert_int_equal(json_array_size(tokens), 6);
    assert_int_equal(json_array_size(top), 6);
    for (size_t i = 0; i < 6; i++) {
        json_t *row = json_array_get(top, i);
        assert_int_equal(json_array_size(row), 3);
        double last = 0;
        for (size_t j = 0; j < 3; j++) {
            double p = json_number_value(json_object_get(json_array_get(row, j), "logprob"));
            assert_true(p <= last && isfinite(p));
            last = p;
        }
        /* greedy: the token is the likeliest */
        assert_int_equal(json_integer_value(json_object_get(json_array_get(row, 0), "id")),
                         json_integer_value(json_array_get(tokens, i)));
    }
    json_decref(root);
    process_deinit(&result);
}

/* The output tokens of a run with these arguments more, as JSON text. */
static char *output_tokens(const char *const *more) {
    const char *arguments[40] = {"run", "-q", "--json", json_path};
    size_t count = 4;
    while (*more != NULL) arguments[count++] = *more++;
    struct process_result result = process_run(&(struct process_request){.arguments = arguments});
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.complaints);
    assert_string_equal(result.complaints, ""); /* -q */
    process_deinit(&result);
    json_t *root = load_json();
    char *text = compact(json_object_get(root, "output_tokens"));
    json_decref(root);
    return text;
}

#define TOKENS(...) output_tokens((const char *const[]){__VA_ARGS__, NULL})

static void the_same_seed_gives_the_same_tokens(void **state) {
    (void)state;
    char *a = TOKENS("-m", model_path, "-p", "hello", "-n", "12", "-s", "7", "-t", "1");
    char *b = TOKENS("-m", model_path, "-p", "hello", "-n", "12", "-s", "7", "-t", "2");
    char *c = TOKENS("-m", model_path, "-p", "hello", "-n", "12", "-s", "8", "-t", "1");
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    free(a);
    free(b);
    free(c);
}

static void prompts_join_and_ids_stand_for_text(void **state) {
    (void)state;
    struct process_result ids =
        LOAM("tokenize", "-m", model_path, "-f", text_path, "-p", "a time", "--json", "--bos");
    assert_int_equal(ids.code, 0);
    ids.output[strlen(ids.output) - strlen("]}\n")] = '\0'; /* {"ids":[1,2]} -> 1,2 */
    char *joined = TOKENS("-m", model_path, "-f", text_path, "-p", "a time", "-n", "5", "--temp", "0");
    char *whole = TOKENS("-m", model_path, "-p", "once upon\na time", "-n", "5", "--temp", "0");
    char *by_ids =
        TOKENS("-m", model_path, "--ids", ids.output + strlen("{\"ids\":["), "-n", "5", "--temp", "0");
    char *bare =
        TOKENS("-m", bare_path, "--ids", ids.output + strlen("{\"ids\":["), "-n", "5", "--temp", "0");
    assert_string_equal(joined, whole);
    assert_string_equal(joined, by_ids);
    assert_string_equal(joined, bare); /* the same weights without a vocabulary */
    const char *arguments[] = {"run",    "-m", model_path, "-f",     "-",       "-n", "5",
                               "--temp", "0",  "-q",       "--json", json_path, NULL};
    struct process_result piped =
        process_run(&(struct process_request){.arguments = arguments, .input = "once upon\na time"});
    json_t *root = load_json();
    char *from_pipe = compact(json_object_get(root, "output_tokens"));
    assert_string_equal(joined, from_pipe);
    json_decref(root);
    process_deinit(&piped);
    process_deinit(&ids);
    free(joined);
    free(whole);
    free(by_ids);
    free(bare);
    free(from_pipe);
}

static void check_finish(const char *model, const char *n, const char *more, const char *reason,
                         size_t count) {
    const char *arguments[] = {"run", "-m",     model, "--ids",  "1,70,80", "-n", n,
                               "-q",  "--temp", "0",   "--json", json_path, more, NULL};
    struct process_result result = process_run(&(struct process_request){.arguments = arguments});
    assert_int_equal(result.code, 0);
    json_t *root = load_json();
    assert_string_equal(json_string_value(json_object_get(root, "finish_reason")), reason);
    assert_int_equal(json_array_size(json_object_get(root, "output_tokens")), count);
    if (strcmp(reason, "end") == 0) assert_string_equal(result.output, ""); /* the end token has no text */
    json_decref(root);
    process_deinit(&result);
}

static void answers_end_where_they_should(void **state) {
    (void)state;
    check_finish(model_path, "4", NULL, "length", 4);
    check_finish(model_path, "0", NULL, "length", 0);
    check_finish(ending_path, "9", NULL, "end", 1);
    check_finish(ending_path, "9", "--ignore-eos", "length", 9);
    /* 3 tokens of prompt, 8 of context: the 6th token comes from the full context and is not stored */
    check_finish(model_path, "-1", "--ctx-size=8", "context", 6);
}

/* The text of an answer to hello, with or without a stop string. */
static struct process_result answer_until(const char *stop, const char *option, const char *value) {
    const char *arguments[] = {"run", "-m",     model_path, "-p",     "hello", "-n",   "12",  "-q", "--temp",
                               "0",   "--json", json_path,  "--stop", stop,    option, value, NULL};
    struct process_result result = process_run(&(struct process_request){.arguments = arguments});
    assert_int_equal(result.code, 0);
    return result;
}

static void stop_strings_end_the_answer(void **state) {
    (void)state;
    struct process_result whole = answer_until("no such text", "--seed", "1");
    json_t *root = load_json();
    assert_string_equal(json_string_value(json_object_get(root, "finish_reason")), "length");
    json_decref(root);
    size_t length = strlen(whole.output);
    assert_true(length > 8);
    char stop[4] = {whole.output[length / 2], whole.output[length / 2 + 1], whole.output[length / 2 + 2]};
    const char *first = strstr(whole.output, stop);
    struct process_result cut = answer_until(stop, "--stop", "no such text");
    assert_int_equal(strlen(cut.output), (size_t)(first - whole.output) + 1); /* and the line's end */
    assert_memory_equal(cut.output, whole.output, strlen(cut.output) - 1);
    root = load_json();
    assert_string_equal(json_string_value(json_object_get(root, "finish_reason")), "string");
    assert_true(json_array_size(json_object_get(root, "output_tokens")) < 12);
    json_decref(root);
    process_deinit(&cut);
    process_deinit(&whole);
}

/* A token that is never sampled, and one that always is. */
static void biases_move_tokens(void **state) {
    (void)state;
    char *free_choice = TOKENS("-m", model_path, "-p", "hello", "-n", "6", "--temp", "0");
    int first = atoi(free_choice + 1);
    char never[32], always[32];
    snprintf(never, sizeof never, "%d-inf", first);
    snprintf(always, sizeof always, "%d+1000", first);
    char *without = TOKENS("-m", model_path, "-p", "hello", "-n", "6", "--temp", "0", "--logit-bias", never);
    char *only = TOKENS("-m", model_path, "-p", "hello", "-n", "3", "-s", "3", "--logit-bias", always);
    char expected[64];
    snprintf(expected, sizeof expected, "[%d,%d,%d]", first, first, first);
    assert_int_not_equal(atoi(without + 1), first);
    assert_string_equal(only, expected);
    char *varied =
        TOKENS("-m", model_path, "-p", "hello", "-n", "3", "-s", "3", "--logit-bias", always,
               "--frequency-penalty", "100", "--presence-penalty", "100", "--repeat-penalty", "100");
    assert_string_not_equal(varied, expected); /* 1000 / 100 - 200 is little */
    free(free_choice);
    free(without);
    free(only);
    free(varied);
}

static void several_answers_decode_together(void **state) {
    (void)state;
    char *third = TOKENS("-m", model_path, "-p", "hello", "-n", "6", "-s", "5");
    struct process_result result = LOAM("run", "-m", model_path, "-p", "hello", "-n", "6", "-s", "3", "-np",
                                        "3", "-q", "--json", json_path);
    assert_int_equal(result.code, 0);
    assert_non_null(strstr(result.output, "--- answer 3, seed 5 ---\n"));
    json_t *root = load_json();
    json_t *answers = json_object_get(root, "answers");
    assert_int_equal(json_array_size(answers), 3);
    char *together = compact(json_object_get(json_array_get(answers, 2), "output_tokens"));
    assert_string_equal(together, third);
    assert_int_equal(number_at(root, "decode", "tokens"), 18);
    json_decref(root);
    process_deinit(&result);
    free(third);
    free(together);
}

static void tokens_and_back(void **state) {
    (void)state;
    static const char text[] = "hello w\xc3\xb6rld \xf0\x9f\x8c\x8d\n\n  x";
    struct process_result ids = LOAM("tokenize", "-m", model_path, "-p", text, "--json");
    assert_int_equal(ids.code, 0);
    json_t *root = json_loads(ids.output, 0, NULL);
    assert_int_equal(json_object_size(root), 1);
    assert_true(json_array_size(json_object_get(root, "ids")) > 10);
    const char *arguments[] = {"detokenize", "-m", model_path, "-f", "-", NULL};
    struct process_result back =
        process_run(&(struct process_request){.arguments = arguments, .input = ids.output});
    assert_int_equal(back.code, 0);
    assert_string_equal(back.output, text);
    struct process_result shown = LOAM("tokenize", "-m", model_path, "-p", "\x1b");
    assert_null(strchr(shown.output, '\x1b')); /* nothing a terminal obeys */
    assert_non_null(strstr(shown.output, "\\x1b"));
    json_decref(root);
    process_deinit(&ids);
    process_deinit(&back);
    process_deinit(&shown);
}

/* Every file of several: as loam run reads them, and ids one file behind the other. */
static void several_files(void **state) {
    (void)state;
    char first[200], second[200];
    snprintf(first, sizeof first, "%s", scratch_path("first.txt"));
    snprintf(second, sizeof second, "%s", scratch_path("second.txt"));
    const char *const paths[] = {first, second};
    static const char *const texts[] = {"12", "13 14"};
    for (size_t i = 0; i < 2; i++) {
        FILE *file = fopen(paths[i], "w");
        assert_non_null(file);
        fputs(texts[i], file);
        assert_int_equal(fclose(file), 0);
    }
    struct process_result tokens = LOAM("tokenize", "-m", model_path, "-f", first, "-f", second),
                          joined = LOAM("tokenize", "-m", model_path, "-p", "12\n==> second.txt <==\v\n13 14"),
                          text = LOAM("detokenize", "-m", model_path, "-f", first, "-f", second),
                          named = LOAM("detokenize", "-m", model_path, "--ids", "12,13,14");
    assert_int_equal(tokens.code | joined.code | text.code | named.code, 0);
    assert_string_equal(tokens.output, joined.output);
    assert_string_equal(text.output, named.output);
    process_deinit(&tokens);
    process_deinit(&joined);
    process_deinit(&text);
    process_deinit(&named);
}

/* An answer that a full context cuts short does not look like one that the model ended. */
static void a_full_context_is_said(void **state) {
    (void)state;
    struct process_result full =
        LOAM("run", "-m", model_path, "-p", "x", "-c", "64", "--ignore-eos", "--temp", "0");
    struct process_result cut =
        LOAM("run", "-m", model_path, "-p", "x", "--kv-host", "64K", "--ignore-eos", "--temp", "0");
    struct process_result asked =
        LOAM("run", "-m", model_path, "-p", "x", "-c", "64", "--ignore-eos", "--temp", "0", "-n", "3");
    assert_int_equal(full.code | cut.code | asked.code, 0);
    assert_non_null(strstr(full.complaints, "the context of 64 tokens is full: -c\n"));
    assert_non_null(strstr(cut.complaints, "the context of 128 tokens is full: -c, --kv-host\n"));
    assert_null(strstr(asked.complaints, "is full"));
    process_deinit(&full);
    process_deinit(&cut);
    process_deinit(&asked);
}

struct failure {
    const char *arguments[14];
    int code;
    const char *says;
};

static void failures_have_their_codes(void **state) {
    (void)state;
    process_binary = LOAM_LAB_BINARY;
    const struct failure cases[] = {
        {{"run"}, 2, "a prompt is needed"},
        {{"run", "-m", model_path, "-p", "x", "--tmep", "1"}, 2, "did you mean '--temp'?"},
        {{"run", "-m", model_path, "-p", "x", "--temp", "hot"}, 2, "--temp: found 'hot', expected a number"},
        {{"run", "-m", model_path, "-p", "x", "--top-p", "1.5"}, 2, "expected 0 to 1"},
        {{"run", "-m", model_path, "-p", "x", "-n", "-2"},
         2,
         "-n: found -2, expected -1 to 1000000000000000"},
        {{"run", "-m", model_path, "-p"}, 2, "-p needs TEXT"},
        {{"run", "-m", model_path, "-p", "x", "--stop", ""}, 2, "--stop: found nothing, expected a text"},
        {{"run", "-m", model_path, "-p", "x", "--logit-bias", "5"}, 2, "--logit-bias: found \"5\""},
        {{"run", "-m", model_path, "-p", "x", "--logit-bias", "-5+1"}, 2, "--logit-bias: found \"-5+1\""},
        {{"run", "-m", model_path, "-p", "x", "--logit-bias", "5+nan"}, 2, "logit bias of token 5: nan"},
        {{"run", "-m", model_path, "-p", "x", "--logit-bias", "9999999+1"}, 2, "expected a token from 0 to"},
        {{"run", "-m", model_path, "-p", "x", "--presence-penalty", "101"}, 2, "expected -100 to 100"},
        {{"run", "-m", model_path, "-p", "x", "-ctk", "q3"}, 2, "-ctk: found 'q3', expected f16|q8_0"},

        {{"run", "-m", model_path, "-p", "x", "--preset", "auto", "--keep", "64"},
         2,
         "--preset auto chooses axes, settings and keep itself"},
        {{"run", "-m", model_path, "-p", "x", "--preset", "fast"},
         2,
         "no preset 'fast'; there are full"},
        {{"run", "-m", model_path, "-p", "x", "--set", "scan=2"},
         2,
         "--set scan: found '2', expected 0 or 1"},
        {{"run", "-m", model_path, "-p", "x", "--set", "bits=-1"},
         2,
         "--set bits: found '-1', expected a number"},
        {{"run", "-m", model_path, "-p", "x", "--set", "eta=nan"}, 2, "--set eta: found 'nan', expected"},
        {{"run", "-m", model_path, "-p", "x", "--set", "bits=0000000000000000000000000000x"},
         2,
         "--set bits: found '0000000000000000000000000000x', expected a number"},
        {{"run", "-m", model_path, "-p", "x", "--set", "select=best"},
         2,
         "no method 'best'; there are all, window"},
        {{"run", "-m", model_path, "-p", "x", "--set", "select=pq,bits=12"}, 2, "bits=12, expected 1 to 8"},
        {{"run", "-m", model_path, "-p", "x", "--set", "select=pq,bits=3"}, 2, "codebook=1024, expected"},
        {{"run", "-m", model_path, "-p", "x", "--set", "select=pq,partitions=3"},
         2,
         "partitions=3, expected"},
        {{"run", "-m", model_path, "-p", "x", "--set", "select=pq,group=max"}, 2, "expected sum or softmax"},
        {{"run", "-m", model_path, "-p", "x", "--preset", "pqcache", "--loss", "0.1"},
         2,
         "recent_fraction=0"},
        {{"run", "-m", model_path, "-p", "x", "--set", "select=tree,leaf=12"}, 2, "leaf=12, expected 8, 16"},
        {{"run", "-m", model_path, "-p", "x", "--set", "rank=best"}, 2, "'best', expected bound or meanstd"},
        {{"run", "-m", model_path, "-p", "x", "--set", "bits=many"}, 2, "--set bits: found 'many'"},
        {{"run", "-m", model_path, "-p", "x", "--set", "select=hash,bits=100"}, 2, "bits=100, expected"},
        {{"run", "-m", model_path, "-p", "x", "--preset", "hata", "--keep", "110%"}, 2, "found '110%'"},
        {{"run", "-m", model_path, "-p", "x", "--preset", "infinigen", "--set", "dense=0"},
         2,
         "needs skewing matrices"},
        {{"run", "-m", model_path, "-p", "x", "--set", "colour=red"}, 2, "those that loam help run lists"},
        {{"run", "-m", model_path, "-p", "x", "--keep", "10%"}, 2, "select=all keeps 100%"},
        {{"run", "-m", model_path, "-p", "x", "--kv-disk", ":8G"}, 2, "--kv-disk: found"},
        {{"run", "-m", model_path, "-p", "x", "--kv-disk", "/tmp"}, 6, "writable by others"},
        {{"run", "-m", model_path, "-p", "x", "--cpu-mask", "mmx"}, 2, "--cpu-mask: found 'mmx'"},
        {{"run", "-m", model_path, "--ids", "1,x"}, 2, "--ids: found 'x'"},
        {{"run", "-m", model_path, "--ids", "1,320"}, 2, "the vocabulary has 320"},
        {{"run", "-m", model_path, "--ids", "1", "-p", "x"}, 2, "--ids stands alone"},
        {{"run", "-m", model_path, "-c", "4", "-p", "hello there"}, 2, "the context holds 4"},
        {{"run", "-m", text_path, "-p", "x"}, 3, "text.txt: "},
        {{"run", "-m", bare_path, "-p", "x"}, 3, "tokenizer.ggml.model"},
        {{"run", "-m", model_path, "-p", "x", "--kv-host", "1K"}, 5, "the budget is 1.00 KiB"},
        {{"run", "-m", model_path, "-p", "x", "-c", "256", "--kv-host", "64K"},
         5,
         "holds 128 tokens: try a larger --kv-host, -ctk q8_0 -ctv q8_0 or --kv-disk DIR"},
        {{"run", "-q", "-m", model_path, "-p", "x", "-c", "64G", "-n", "63G"}, 5, "the system has"},
        {{"run", "-m", "/nonexistent", "-p", "x"}, 6, "/nonexistent"},
        {{"run", "-m", model_path, "-f", "/nonexistent"}, 6, "/nonexistent"},
        {{"run", "-m", model_path, "-p", "x", "--json", "/nonexistent/x"}, 6, "/nonexistent/x"},
        {{"run", "-m", model_path, "-q", "-p", "x", "-n", "1", "--json", "/dev/full"}, 6, "/dev/full"},
        {{"run", "-m", empty_path, "-p", "x"}, 3, "empty.gguf: the file is empty, expected a GGUF file"},
        {{"run", "-m", "/tmp", "-p", "x"}, 3, "/tmp: not a regular file, expected a GGUF file"},
        {{"tokenize", "-m", model_path}, 2, "a text is needed"},
        {{"detokenize", "-m", model_path, "--ids", "99999"}, 2, "the vocabulary has"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct process_result r = process_run(&(struct process_request){.arguments = cases[i].arguments});
        const char *end = strchr(r.complaints, '\n');
        if (r.code != cases[i].code || strstr(r.complaints, cases[i].says) == NULL || end == NULL ||
            end[1] != '\0' || strncmp(r.complaints, "loam-lab: ", 10) != 0)
            fail_msg("case %zu (%s): exit %d, '%s'", i, cases[i].says, r.code, r.complaints);
        process_deinit(&r);
    }
    struct stat info;
    assert_int_equal(stat("/dev/full", &info), 0);
    assert_true(S_ISCHR(info.st_mode)); /* still a device */
    process_binary = LOAM_BINARY;
}

static void selection_is_reported(void **state) {
    (void)state;
    process_binary = LOAM_LAB_BINARY;
    char *full = TOKENS("-m", long_path, "-p", "once upon a time there was", "-n", "40", "--ignore-eos",
                        "--temp", "0");
    char *same = TOKENS("-m", long_path, "-p", "once upon a time there was", "-n", "40", "--ignore-eos",
                        "--temp", "0", "--preset", "hata", "--keep", "100%", "--set", "dense=0");
    assert_string_equal(full, same);
    free(full);
    free(same);
    free(TOKENS("-m", long_path, "-p", "once upon a time there was", "-n", "40", "--ignore-eos", "--temp",
                "0", "--preset", "hata", "--set", "dense=0,recent=4,sinks=2,select=quest,page=8,mass_bound=1",
                "--keep", "24", "--receipt"));
    json_t *root = load_json(), *selection = json_object_get(root, "selection");
    double kept = json_number_value(json_object_get(selection, "kept_ratio"));
    assert_true(kept > 0.2 && kept < 0.9);
    assert_true(json_is_null(json_object_get(selection, "recall")));
    json_t *bound = json_object_get(selection, "mass_bound");
    double mean = json_number_value(json_object_get(bound, "mean"));
    double min = json_number_value(json_object_get(bound, "min"));
    assert_true(mean > 0 && mean < 1 && min > 0 && min <= mean);
    assert_true(json_integer_value(json_object_get(bound, "count")) > 0);
    json_t *left_out = json_object_get(selection, "left_out");
    double worst = json_number_value(json_object_get(left_out, "worst_step"));
    mean = json_number_value(json_object_get(left_out, "mean"));
    assert_true(mean > 0 && mean <= worst &&
                worst <= json_number_value(json_object_get(left_out, "worst_head")));
    assert_true(json_number_value(json_object_get(left_out, "mean_error")) > 0);
    assert_int_equal(json_integer_value(json_object_get(left_out, "count")),
                     json_integer_value(json_object_get(bound, "count")));
    json_t *plan = json_object_get(root, "plan");
    assert_string_equal(json_string_value(json_object_get(root, "preset")), "hata");
    assert_string_equal(json_string_value(json_object_get(plan, "select")), "quest");
    assert_string_equal(json_string_value(json_object_get(plan, "keep")), "24");
    json_decref(root);
    /* a line, unless -q */
    struct process_result told =
        LOAM("run", "-m", model_path, "-p", "x", "-n", "1", "--preset", "hata", "--set", "dense=0,code=sign");
    assert_int_equal(told.code, 0);
    assert_non_null(strstr(told.complaints, "random hyperplanes"));
    assert_null(strstr(told.complaints, "receipt"));
    process_deinit(&told);
    told = LOAM("run", "-m", model_path, "-p", "x", "-n", "1", "--receipt");
    assert_non_null(strstr(told.complaints, "receipt: no attention was left out\n"));
    process_deinit(&told);
    told = LOAM("run", "-m", long_path, "-p", "once upon a time there was", "-n", "40", "--ignore-eos",
                "--preset", "streaming", "--keep", "8", "--set", "dense=0,recent=4,sinks=2", "--receipt");
    assert_int_equal(told.code, 0);
    assert_non_null(strstr(told.complaints, "receipt: left out "));
    process_deinit(&told);
    told = LOAM("run", "-m", model_path, "-p", "x", "-n", "1", "--preset", "hata", "--loss", "2");
    assert_int_equal(told.code, 2);
    assert_non_null(strstr(told.complaints, "a share of the attention"));
    process_deinit(&told);
    free(TOKENS("-m", long_path, "-p", "once upon a time there was", "-n", "40", "--ignore-eos", "--temp",
                "0", "--preset", "hata", "--set", "dense=0,recent=4,sinks=2", "--loss", "0.3"));
    root = load_json();
    kept = json_number_value(json_object_get(json_object_get(root, "selection"), "kept_ratio"));
    assert_true(kept > 0.2 && kept < 1);
    assert_true(json_number_value(json_object_get(json_object_get(root, "plan"), "loss")) == 0.3);
    json_decref(root);
    process_binary = LOAM_BINARY;
}

/* --preset clo: every query alike, so that only age and the first step choose; above 1 nothing is reused. */
static void reuse_is_reported(void **state) {
    (void)state;
    process_binary = LOAM_LAB_BINARY;
    free(TOKENS("-m", long_path, "-p", "once upon a time there was", "-n", "60", "--ignore-eos", "--temp",
                "0", "--preset", "clo", "--keep", "16", "--set",
                "bits=32,dense=0,recent=4,sinks=2,eta=-1,power=0,reused=0,age=9"));
    json_t *root = load_json();
    const double hits = number_at(root, "reuse", "hits"), misses = number_at(root, "reuse", "misses");
    assert_true(misses > 0 && hits > 5 * misses && hits <= 9 * misses); /* of ten steps one chooses */
    assert_true(fabs(number_at(root, "reuse", "hit_ratio") - hits / (hits + misses)) < 1e-9);
    assert_int_equal(number_at(root, "reuse", "age_max"), 9);
    assert_true(number_at(root, "reuse", "bytes_kept") > 0);
    json_decref(root);
    free(TOKENS("-m", long_path, "-p", "once upon a time there was", "-n", "60", "--ignore-eos", "--temp",
                "0", "--preset", "clo", "--keep", "16", "--set", "bits=32,dense=0,recent=4,sinks=2,eta=1.5"));
    root = load_json();
    assert_true(number_at(root, "reuse", "hit_ratio") == 0 && number_at(root, "reuse", "misses") > 0);
    json_decref(root);
    struct process_result refused =
        LOAM("run", "-m", model_path, "-p", "x", "-n", "1", "--preset", "clo", "--set", "eta=3");
    assert_int_equal(refused.code, 2);
    assert_non_null(strstr(refused.complaints, "--set eta: found '3', expected a number from -1 to 2"));
    process_deinit(&refused);
    /* No similarity is safe on every model: without a measurement there are no lists to keep. */
    refused = LOAM("run", "-m", model_path, "-p", "x", "-n", "1", "--preset", "clo");
    assert_int_equal(refused.code, 2);
    assert_non_null(strstr(refused.complaints,
                           "reused=0.5 keeps lists by what loam-lab calibrate measured that reuse "
                           "loses, and there is no calibration of this model: try loam-lab "
                           "calibrate MODEL TEXT"));
    process_deinit(&refused);
    process_binary = LOAM_BINARY;
}

static void budgets_cut_the_context(void **state) {
    (void)state;
    /* 64K at 512 bytes a token: 128 tokens */
    free(TOKENS("-m", model_path, "-p", "x", "-n", "1", "--kv-host", "32K", "--kv-device", "32K"));
    json_t *root = load_json();
    assert_int_equal(number_at(root, "plan", "context_size"), 128);
    json_decref(root);
    free(TOKENS("-m", model_path, "-p", "x", "-n", "1", "--set", "codec=q8", "--set", "select=all"));
    root = load_json();
    assert_string_equal(json_string_value(json_object_get(json_object_get(root, "plan"), "codec_k")), "q8_0");
    json_decref(root);
    /* What is too small is named as it was given. */
    static const struct {
        const char *option, *size, *expected;
        int code;
    } small[] = {{"--kv-host", "0", "try a larger --kv-host", 5},
                 {"--kv-host", "1K", "try a larger --kv-host", 5},
                 {"--kv-device", "1K", "try a larger --kv-device", 5},
                 {"--kv-device", "0", "--kv-device 0: expected a size above 0, or --kv-host SIZE beside it", 2}};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        struct process_result result =
            LOAM("run", "-m", model_path, "-p", "x", "-n", "1", small[i].option, small[i].size);
        assert_int_equal(result.code, small[i].code);
        if (strstr(result.complaints, small[i].expected) == NULL)
            fail_msg("%s %s: %s", small[i].option, small[i].size, result.complaints);
        process_deinit(&result);
    }
    free(TOKENS("-m", model_path, "-p", "x", "-n", "1", "--kv-device", "0", "--kv-host", "64K"));
}

static void unwritable_output_stops_the_run(void **state) {
    (void)state;
    const char *arguments[] = {"run", "-m", long_path, "-p", "x", "-q", "--ignore-eos", NULL};
    struct process_result full =
        process_run(&(struct process_request){.arguments = arguments, .output_path = "/dev/full"});
    struct process_result closed =
        process_run(&(struct process_request){.arguments = arguments, .close_output = 1});
    assert_int_equal(full.code, 6);
    assert_non_null(strstr(full.complaints, "standard output: No space left"));
    assert_int_equal(closed.code, 6);
    process_deinit(&full);
    process_deinit(&closed);
}

static void ctrl_c_ends_the_answer_cleanly(void **state) {
    (void)state;
    const char *arguments[] = {"run", "-m", long_path, "-p", "x", "--ignore-eos", "--json", json_path, NULL};
    struct process_result result = process_run(
        &(struct process_request){.arguments = arguments, .interrupt_after = "", .interrupt_count = 1});
    assert_int_equal(result.code, 130);
    json_t *root = load_json();
    assert_string_equal(json_string_value(json_object_get(root, "finish_reason")), "interrupted");
    size_t count = json_array_size(json_object_get(root, "output_tokens"));
    assert_true(count > 0);
    assert_true(result.output_bytes > 0);
    static const char told[] = "loam: stopping when this step is done; once more ends it at once\n";
    assert_int_equal(strncmp(result.complaints, told, strlen(told)), 0);
    assert_int_equal(strncmp(result.complaints + strlen(told), "loam: prompt ", 13), 0); /* and no complaint */
    json_decref(root);
    process_deinit(&result);
}

static void a_second_ctrl_c_leaves_at_once(void **state) {
    (void)state;
    /* Reading a pipe that nobody closes: the first one cannot be heard. */
    const char *arguments[] = {"run", "-m", model_path, "-f", "-", NULL};
    struct process_result result = process_run(&(struct process_request){
        .arguments = arguments, .hold_input = 1, .interrupt_after_ms = 300, .interrupt_count = 2});
    assert_int_equal(result.code, 130);
    process_deinit(&result);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_beyond_a_budget),
        cmocka_unit_test(json_has_the_fields_of_the_contract),
        cmocka_unit_test(the_same_seed_gives_the_same_tokens),
        cmocka_unit_test(prompts_join_and_ids_stand_for_text),
        cmocka_unit_test(answers_end_where_they_should),
        cmocka_unit_test(stop_strings_end_the_answer),
        cmocka_unit_test(biases_move_tokens),
        cmocka_unit_test(several_answers_decode_together),
        cmocka_unit_test(tokens_and_back),
        cmocka_unit_test(several_files),
        cmocka_unit_test(a_full_context_is_said),
        cmocka_unit_test(failures_have_their_codes),
        cmocka_unit_test(selection_is_reported),
        cmocka_unit_test(reuse_is_reported),
        cmocka_unit_test(budgets_cut_the_context),
        cmocka_unit_test(unwritable_output_stops_the_run),
        cmocka_unit_test(ctrl_c_ends_the_answer_cleanly),
        cmocka_unit_test(a_second_ctrl_c_leaves_at_once),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

/* `loam-lab eval ruler` and `kl` with an eighth of the KV in RAM: answers and probabilities are those of all of it
 * there, from the disk and within its budget. */
#include "testing.h"

#include <dirent.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/process.h"

#define MODEL LOAM_SOURCE_DIR "/models/loam-nano.gguf"
#define RULER(...)                                                                                     \
    {                                                                                                  \
        "eval", "ruler", "-m", MODEL, "--tasks", "niah_single_2,niah_multiquery", "--lengths", "4608", \
            "--samples", "1", "--shared-text", "niah", "-q", "-o", "jsonl", __VA_ARGS__, NULL          \
    }

enum { PRESETS = 3, ANSWERS = 2 * PRESETS /* tasks */, LENGTH = 4608, LAYERS = 9 };

struct answer {
    char preset[40], task[40], text[300];
};

static void take_answers(const char *const *arguments, struct answer *answers) {
    struct process_result result = process_run(&(struct process_request){.arguments = arguments});
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.complaints);
    char *rest = result.output;
    size_t count = 0;
    for (char *line; (line = strsep(&rest, "\n")) != NULL && *line != '\0'; count++) {
        json_t *row = json_loads(line, 0, NULL);
        assert_true(count < ANSWERS && row != NULL);
        struct answer *answer = &answers[count];
        snprintf(answer->preset, sizeof answer->preset, "%s",
                 json_string_value(json_object_get(row, "preset")));
        snprintf(answer->task, sizeof answer->task, "%s", json_string_value(json_object_get(row, "task")));
        snprintf(answer->text, sizeof answer->text, "%s", json_string_value(json_object_get(row, "answer")));
        json_decref(row);
    }
    assert_int_equal(count, ANSWERS);
    process_deinit(&result);
}

static json_int_t number(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

/* The last preset keeps everything, and answers as full attention does, which chooses nothing and has it all in RAM. */
static void an_eighth_in_ram_answers_the_same(void **state) {
    (void)state;
    struct answer in_ram[ANSWERS], in_tiers[ANSWERS];
    char folder[200], json[200];
    snprintf(folder, sizeof folder, "%s", scratch_path("kv"));
    snprintf(json, sizeof json, "%s", scratch_path("tiers.json"));
    mkdir(folder, 0700);
    take_answers((const char *const[])RULER(
                     "--preset", "leoam:dense=0:leaf=64:units_min=20:group=softmax:5%,hata:300,full"),
                 in_ram);
    take_answers((const char *const[])RULER("--preset", "leoam:5%:codec=f16,hata:300,leoam:100%:codec=f16",
                                            "--kv-host", "1/8", "--kv-disk", folder, "--json", json),
                 in_tiers);
    for (size_t i = 0; i < ANSWERS; i++) {
        assert_string_equal(in_tiers[i].task, in_ram[i].task);
        assert_string_equal(in_tiers[i].text, in_ram[i].text);
        assert_true(strlen(in_tiers[i].text) > 5);
    }
    assert_string_equal(in_tiers[0].preset, "leoam:5%:codec=f16");
    json_t *root = json_load_file(json, 0, NULL), *tiers = json_object_get(root, "tiers"), *row;
    const char *preset;
    assert_int_equal(json_object_size(tiers), PRESETS);
    json_object_foreach(tiers, preset, row) {
        const json_int_t kv = LENGTH * LAYERS * 2 * 2 * 64 * 2; /* heads, K and V, dimension, bytes */
        assert_in_range(number(row, "budget_bytes"), kv / 8 + 1, kv / 8 + LAYERS * (512 << 10));
        assert_in_range(number(row, "host_bytes"), kv / 8, number(row, "budget_bytes"));
        assert_true(number(row, "read_bytes") > kv / 8); /* more than fits */
        assert_in_range(number(row, "write_bytes"), kv * 9 / 10, kv * 3 / 2);
    }
    json_decref(root);
}

/* The lines of `eval kl` over 64 tokens before 1,024 of a window, for each of two presets and two windows. */
enum { KL_ROWS = 4 };
static void measure_kl(const char *share, json_t *rows[KL_ROWS]) {
    char folder[200];
    snprintf(folder, sizeof folder, "%s", scratch_path("kl"));
    mkdir(folder, 0700);
    struct process_result result = process_run(&(struct process_request){
        .arguments = (const char *const[]){
            "eval",      "kl",        "-m",        MODEL,      "--lengths",
            "1024",      "--stretch", "32",        "--chunks", "2",
            "-q",        "-o",        "jsonl",     "--preset", "full,quest:160:dense=0:list_buffer=0",
            "--kv-host", share,       "--kv-disk", folder,     NULL}});
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.complaints);
    char *rest = result.output;
    for (size_t i = 0; i < KL_ROWS; i++) {
        char *line = strsep(&rest, "\n");
        if (line == NULL || (rows[i] = json_loads(line, 0, NULL)) == NULL) fail_msg("line %zu: %s", i, line);
        assert_int_equal(number(rows[i], "window"), i / 2);
        assert_int_equal(number(rows[i], "tokens"), 32);
        assert_int_equal(number(rows[i], "decoded_tokens"), 24); /* RAM is filled by the others */
        assert_true(json_number_value(json_object_get(rows[i], "decode_seconds")) > 0);
    }
    assert_string_equal(rest, "");
    process_deinit(&result);
}

/* Presets are read from the last to the first. */
static void probabilities_come_from_the_disk_too(void **state) {
    (void)state;
    json_t *quarter[KL_ROWS], *all[KL_ROWS];
    measure_kl("1/4", quarter);
    measure_kl("1/1", all);
    for (size_t i = 0; i < KL_ROWS; i++) {
        double kld = json_number_value(json_object_get(quarter[i], "kld"));
        bool full = strcmp(json_string_value(json_object_get(quarter[i], "preset")), "full") == 0;
        assert_int_equal(full, i % 2);
        assert_true(kld == json_number_value(json_object_get(all[i], "kld"))); /* bit for bit */
        assert_true(full ? kld < 0.01 : kld > 0.01);
        const json_int_t chunk = 64 * 2 * 64 * 2, chunks = 16 * LAYERS * 2;
        if (full) assert_true(number(quarter[i], "disk_bytes") > 24 * chunks / 2 * chunk);
        assert_true(number(quarter[i], "misses") > 0 && number(all[i], "misses") == 0);
        assert_true(number(quarter[i], "hits") + number(quarter[i], "misses") ==
                    number(all[i], "hits") + number(all[i], "misses"));
        json_decref(quarter[i]);
        json_decref(all[i]);
    }
}

static size_t entries_of(const char *path) {
    size_t count = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder) != NULL) count++;
    closedir(folder);
    return count;
}

/* A saved prompt of 8.5 MiB and a sample of 5 MiB: a limit of 10 MiB would remove the prompt, one of 24 need not. */
static void saved_documents_stay(void **state) {
    (void)state;
    char folder[200], limited[220], prompt[200];
    snprintf(folder, sizeof folder, "%s", scratch_path("kept"));
    snprintf(prompt, sizeof prompt, "%s", scratch_path("prompt.txt"));
    FILE *file = fopen(prompt, "w");
    assert_non_null(file);
    for (int i = 0; i < 400; i++) fprintf(file, "the %d fox\n", i);
    fclose(file);
    struct process_result saved = LOAM("run", "-m", MODEL, "-f", prompt, "--raw", "-n", "1", "-q",
                                       "--kv-host", "64M", "--kv-disk", folder);
    if (saved.code != 0) fail_msg("%s", saved.complaints);
    process_deinit(&saved);
    char *before = process_listing(folder);
    const size_t entries = entries_of(folder);
    for (int fits = 0; fits < 2; fits++) {
        snprintf(limited, sizeof limited, "%s:%s", folder, fits ? "24M" : "10M");
        struct process_result result =
            LOAM("eval", "ruler", "-m", MODEL, "--tasks", "niah_single_2", "--lengths", "1024", "--samples",
                 "1", "-q", "--kv-host", "1/4", "--kv-disk", limited);
        if (result.code != (fits ? 0 : 5)) fail_msg("exit %d: %s", result.code, result.complaints);
        char *after = process_listing(folder);
        assert_string_equal(after, before);
        assert_int_equal(entries_of(folder), entries);
        free(after);
        process_deinit(&result);
    }
    free(before);
}

static void what_cannot_be_is_said(void **state) {
    (void)state;
    char folder[200];
    snprintf(folder, sizeof folder, "%s", scratch_path("none"));
    const struct {
        const char *const *arguments;
        int code;
        const char *says;
    } cases[] = {
        {(const char *const[])RULER("--kv-host", "1/8"), 2, "belong together"},
        {(const char *const[])RULER("--kv-host", "9/8", "--kv-disk", "/nonexistent"), 2,
         "a fraction such as 1/8"},
        {(const char *const[])RULER("--kv-host", "1/8", "--kv-disk", "/nonexistent", "--preset", "h2o"), 2,
         "watches prompts"},
        {(const char *const[])RULER("--kv-host", "100K", "--kv-disk", folder), 5, "at least"},
        {(const char *const[]){"eval", "recall", "-m", MODEL, "--kv-host", "1M", NULL}, 2,
         "another evaluation"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct process_result result =
            process_run(&(struct process_request){.arguments = cases[i].arguments});
        if (result.code != cases[i].code || strstr(result.complaints, cases[i].says) == NULL)
            fail_msg("exit %d, expected %d and '%s': %s", result.code, cases[i].code, cases[i].says,
                     result.complaints);
        process_deinit(&result);
    }
}

int main(void) {
    process_binary = LOAM_LAB_BINARY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_eighth_in_ram_answers_the_same),
        cmocka_unit_test(probabilities_come_from_the_disk_too),
        cmocka_unit_test(saved_documents_stay),
        cmocka_unit_test(what_cannot_be_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

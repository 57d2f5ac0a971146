/* loam bench: which tests are run and what the table, JSON and CSV say; not how fast anything is. */
#include "testing.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/bench_result.h"
#include "cli/process.h"
#include "cli/tiny_model.h"

static char model_path[200];

static int setup(void **state) {
    (void)state;
    snprintf(model_path, sizeof model_path, "%s", scratch_path("tiny.gguf"));
    tiny_model_write(model_path, &(struct tiny_model){.seed = 1});
    return 0;
}

static void the_table_is_llama_benchs(void **state) {
    (void)state;
    struct process_result result = LOAM("bench", "-m", model_path, "-p", "16,8", "-n", "4", "-pg", "4,2",
                                        "-d", "0,32", "-npl", "3", "-r", "2");
    if (result.code != 0) fail_msg("%s", result.complaints);
    static const char *const tests[] = {" pp16 |",          " pp8 |",         " tg4 |",       " pp4+tg2 |",
                                        " tg4 x3 |",        " pp16 @ d32 |",  " pp8 @ d32 |", " tg4 @ d32 |",
                                        " pp4+tg2 @ d32 |", " tg4 x3 @ d32 |"};
    const char *place = result.output;
    const char *line_end = place + strcspn(place, "\n");
    assert_non_null(strstr(place, "| model "));
    assert_true(strstr(place, "| backend ") < line_end);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        const char *found = strstr(place, tests[i]); /* in this order */
        if (found == NULL) fail_msg("no '%s' (in order) in\n%s", tests[i], result.output);
        assert_non_null(strstr(found, "\xc2\xb1"));
        place = found;
    }
    size_t rows = 0;
    for (const char *c = result.output; (c = strstr(c, "| llama 0.1M F32")) != NULL; c++) rows++;
    assert_int_equal(rows, 10);
    process_deinit(&result);
}

static json_t *bench_json(const char *const *arguments) {
    struct process_result result = process_run(&(struct process_request){.arguments = arguments});
    if (result.code != 0) fail_msg("%s", result.complaints);
    json_error_t why;
    json_t *rows = json_loads(result.output, JSON_REJECT_DUPLICATES, &why);
    if (rows == NULL) fail_msg("%s in %s", why.text, result.output);
    process_deinit(&result);
    return rows;
}

/* Every query alike, so that lists are reused; the table says what JSON says. */
static void the_table_has_what_was_reused(void **state) {
    (void)state;
    process_binary = LOAM_LAB_BINARY;
    static const char set[] = "bits=32,dense=0,recent=4,sinks=2,eta=-1,power=0,reused=0,age=9";
    const char *json[] = {"bench", "-m",       model_path, "-p",     "0",  "-n",    "40", "-d", "100",  "-r",
                          "1",     "--preset", "clo",      "--keep", "16", "--set", set,  "-o", "json", NULL};
    struct process_result with = LOAM("bench", "-m", model_path, "-p", "0", "-n", "40", "-d", "100", "-r",
                                      "1", "--preset", "clo", "--keep", "16", "--set", set),
                          without = LOAM("bench", "-m", model_path, "-p", "0", "-n", "2", "-r", "1");
    if (with.code != 0) fail_msg("%s", with.complaints);
    json_t *rows = bench_json(json), *reuse = json_object_get(json_array_get(rows, 0), "reuse");
    const double ratio = json_number_value(json_object_get(reuse, "hit_ratio")),
                 age = json_number_value(json_object_get(reuse, "age_mean")),
                 bytes = json_number_value(json_object_get(reuse, "bytes_kept"));
    char expected[80];
    snprintf(expected, sizeof expected, "| %6.1f %% | %6.1f | %9.3f |", 100 * ratio, age, bytes / 40 * 1e-6);
    assert_true(ratio > 0.8 && ratio < 0.95 && age > 3 && age <= 5 && bytes > 0);
    assert_non_null(strstr(with.output, "|   reused |    age |   MB kept |\n"));
    if (strstr(with.output, expected) == NULL) fail_msg("no '%s' in\n%s", expected, with.output);
    assert_null(strstr(without.output, "reused"));
    json_decref(rows);
    process_deinit(&with);
    process_deinit(&without);
    process_binary = LOAM_BINARY;
}

/* How many heads stay is said where some may, and not elsewhere. */
static void the_table_has_the_heads_that_stay(void **state) {
    (void)state;
    process_binary = LOAM_LAB_BINARY;
    static const char set[] = "bits=32,dense=0,recent=4,sinks=2,power=0,reused=0,place=persistent";
    struct process_result with = LOAM("bench", "-m", model_path, "-p", "0", "-n", "2", "-d", "100", "-r", "1",
                                      "--preset", "clo", "--keep", "16", "--set", set, "--kv-disk",
                                      scratch_path("heads.kv")),
                          without = LOAM("bench", "-m", model_path, "-p", "0", "-n", "2", "-d", "100", "-r",
                                         "1", "--preset", "clo", "--keep", "16", "--set", set);
    if (with.code != 0) fail_msg("%s", with.complaints);
    assert_non_null(strstr(with.output, "| heads stay |"));
    assert_null(strstr(without.output, "heads stay"));
    const char *json[] = {"bench",
                          "-m",
                          model_path,
                          "-p",
                          "0",
                          "-n",
                          "2",
                          "-d",
                          "100",
                          "-r",
                          "1",
                          "--preset",
                          "clo",
                          "--keep",
                          "16",
                          "--set",
                          set,
                          "--kv-disk",
                          scratch_path("heads.kv"),
                          "-o",
                          "json",
                          NULL};
    json_t *rows = bench_json(json);
    assert_true(json_is_integer(json_object_get(json_array_get(rows, 0), "kv_resident_heads")));
    json_decref(rows);
    process_deinit(&with);
    process_deinit(&without);
    process_binary = LOAM_BINARY;
}

static json_int_t integer(json_t *row, const char *key) {
    json_t *value = json_object_get(row, key);
    if (!json_is_integer(value)) fail_msg("no integer %s", key);
    return json_integer_value(value);
}

static void json_rows_add_up(void **state) {
    (void)state;
    const char *arguments[] = {"bench",         "-m",   model_path, "-p", "8",   "-n", "3", "-d", "16",
                               "--fill-random", "-ctk", "f16,q8_0", "-t", "1,2", "-r", "3", "-o", "json",
                               "--floor",       NULL};
    json_t *rows = bench_json(arguments);
    assert_int_equal(json_array_size(rows), 2 * 2 * 2);
    for (size_t i = 0; i < 8; i++) {
        json_t *row = json_array_get(rows, i);
        bool generates = i % 2 == 1, q8 = i / 2 % 2 == 1;
        assert_int_equal(integer(row, "n_threads"), i < 4 ? 1 : 2);
        assert_int_equal(integer(row, "n_prompt"), generates ? 0 : 8);
        assert_int_equal(integer(row, "n_gen"), generates ? 3 : 0);
        assert_int_equal(integer(row, "n_depth"), 16);
        assert_true(json_is_true(json_object_get(row, "depth_random")));
        assert_string_equal(json_string_value(json_object_get(row, "type_k")), q8 ? "q8_0" : "f16");
        assert_int_equal(json_array_size(json_object_get(row, "samples_ns")), 3);
        double mean = 0;
        for (size_t s = 0; s < 3; s++)
            mean += json_number_value(json_array_get(json_object_get(row, "samples_ts"), s)) / 3;
        double avg = json_number_value(json_object_get(row, "avg_ts"));
        assert_true(avg > 0 && fabs(avg - mean) < 1e-3 * mean);
        json_t *bandwidth = json_object_get(row, "read_bandwidth");
        json_t *share = json_object_get(row, "bandwidth_fraction"),
               *shares = json_object_get(row, "samples_fraction");
        assert_int_equal(json_array_size(shares), generates ? 3 : 0);
        if (generates) { /* of each repetition by its own reads; the median of three is one of them */
            assert_true(json_real_value(bandwidth) > 1e7 && json_real_value(bandwidth) < 1e13);
            size_t below = 0, above = 0;
            for (size_t s = 0; s < 3; s++) {
                double sample = json_number_value(json_array_get(shares, s));
                assert_true(sample > 0);
                below += sample < json_real_value(share);
                above += sample > json_real_value(share);
            }
            assert_true(below <= 1 && above <= 1);
        } else {
            assert_true(json_is_null(bandwidth) && json_is_null(share));
        }
    }
    json_decref(rows);
}

/* What a receipt took is a fraction of the steps of all repetitions; what a step reads of KV follows from what it
 * keeps, and full attention reads all of it. */
static void a_receipt_says_what_it_took(void **state) {
    (void)state;
    const char *with[] = {"bench",
                          "-m",
                          model_path,
                          "-p",
                          "0",
                          "-n",
                          "20",
                          "-d",
                          "100",
                          "-r",
                          "2",
                          "--preset",
                          "hata",
                          "--keep",
                          "40",
                          "--set",
                          "bits=32,dense=0,recent=4,sinks=2",
                          "--receipt",
                          "-o",
                          "json",
                          NULL},
               *full[] = {"bench", "-m",  model_path, "-p", "0",  "-n",   "20",
                          "-d",    "100", "-r",       "1",  "-o", "json", NULL};
    json_t *rows = bench_json(with), *row = json_array_get(rows, 0), *all = bench_json(full);
    json_t *left_out = json_object_get(row, "select_left_out"), *samples = json_object_get(row, "samples_ns");
    double ns = 0;
    for (size_t i = 0; i < 2; i++) ns += json_number_value(json_array_get(samples, i));
    const double seconds = json_number_value(json_object_get(left_out, "seconds")),
                 fraction = json_number_value(json_object_get(left_out, "time_fraction"));
    assert_true(seconds > 0 && fraction < 1);
    assert_true(fabs(fraction - seconds / (ns * 1e-9)) < 1e-6);
    assert_null(json_object_get(json_array_get(all, 0), "select_left_out"));
    const json_int_t all_bytes = integer(json_array_get(all, 0), "kv_bytes_per_step");
    assert_int_equal(all_bytes, 110 * integer(json_array_get(all, 0), "kv_bytes_per_token"));
    const json_int_t bytes = integer(row, "kv_bytes_per_step"); /* 40 tokens, and the codes of all */
    assert_true(bytes > all_bytes * 40 / 110 && bytes < all_bytes);
    json_decref(rows);
    json_decref(all);
}

/* --set codec=q8: K and V, the bytes that a step reads of them, and the table say so. */
static void a_codec_that_is_set_is_measured(void **state) {
    (void)state;
    const char *arguments[] = {"bench", "-m", model_path,      "-p", "0",    "-n", "2",  "-d", "64",
                               "-r",    "1",  "--fill-random", "-o", "json", NULL, NULL, NULL},
               *codec[] = {NULL, "codec=f16", "codec=q8"};
    json_int_t bytes[3];
    for (size_t i = 0; i < 3; i++) {
        arguments[14] = i > 0 ? "--set" : NULL;
        arguments[15] = codec[i];
        json_t *rows = bench_json(arguments), *row = json_array_get(rows, 0);
        assert_string_equal(json_string_value(json_object_get(row, "type_k")), i == 2 ? "q8_0" : "f16");
        assert_string_equal(json_string_value(json_object_get(row, "type_v")), i == 2 ? "q8_0" : "f16");
        bytes[i] = integer(row, "kv_bytes_per_token");
        json_decref(rows);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_true(bytes[2] < bytes[0]);
    struct process_result table =
        LOAM("bench", "-m", model_path, "-p", "4", "-n", "0", "-r", "1", "--set", "codec=q8");
    assert_non_null(strstr(table.output, "type_k"));
    process_deinit(&table);
}

/* Each its own row; --keep is not for full, with which others are compared. */
static void presets_are_compared(void **state) {
    (void)state;
    static const char list[] = "full,meanstd,meanstd:16:page=8";
    const char *arguments[] = {"bench", "-m", model_path, "-p", "0",    "-n",       "2",  "-d",     "64", "-r",
                               "1",     "-q", "-o",       "json", "--preset", list, "--keep", "32", NULL};
    json_t *rows = bench_json(arguments);
    static const char *const expected[][2] = {{"full", "100%"}, {"meanstd", "32"}, {"meanstd", "16"}};
    assert_int_equal(json_array_size(rows), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_string_equal(json_string_value(json_object_get(row, "preset")), expected[i][0]);
        assert_string_equal(json_string_value(json_object_get(row, "keep")), expected[i][1]);
    }
    json_decref(rows);
}

static void csv_has_a_head_and_rows_of_its_width(void **state) {
    (void)state;
    struct process_result result =
        LOAM("bench", "-m", model_path, "-p", "4", "-n", "2", "-r", "1", "-o", "csv", "--no-warmup");
    assert_int_equal(result.code, 0);
    size_t lines = 0, width = 0;
    for (char *line = strtok(result.output, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++) {
        size_t commas = 0;
        for (char *c = line; *c != '\0'; c++) commas += *c == ',';
        if (lines == 0) width = commas;
        assert_int_equal(commas, width);
    }
    assert_int_equal(lines, 3);
    process_deinit(&result);
}

static void statistics(void **state) {
    (void)state;
    static struct bench_test test = {.prompt_count = 0,
                                     .generate_count = 10,
                                     .sequence_count = 2,
                                     .depth = 100,
                                     .kv_bytes = {.step = 105 * 7},
                                     .sample_count = 2,
                                     .samples_ns = {1000000000, 3000000000}};
    struct bench_statistics s = bench_statistics(&test);
    assert_true(fabs(s.mean_rate - (20.0 + 20.0 / 3) / 2) < 1e-9);
    assert_true(fabs(s.deviation_rate - (20.0 - 20.0 / 3) / sqrt(2)) < 1e-9);
    assert_true(fabs(s.mean_ns - 2e9) < 1);
    /* weights once, KV of both sequences at the middle of the test */
    struct bench_model model = {.weight_bytes_per_token = 1000};
    assert_int_equal(bench_step_bytes(&model, &test), 1000 + 2 * 105 * 7);
}

static void failures(void **state) {
    (void)state;
    static const struct {
        const char *arguments[8];
        int code;
    } cases[] = {
        {{"bench", "-m"}, 2},
        {{"bench", "-m", "/nonexistent"}, 6},
        {{"bench", "-m", "x", "-p", "0", "-n", "0"}, 2},
        {{"bench", "-m", "x", "-pg", "1,2,3"}, 2},
        {{"bench", "-m", "x", "-npl", "65"}, 2},
        {{"bench", "-m", "x", "-o", "sql"}, 2},
        {{"bench", "-m", "x", "-p", "1,,2"}, 2},
        {{"bench", "-m", "x", "--set", "codec=q8", "-ctk", "q8_0,f16"}, 2},
        {{"bench", "-m", "x", "--preset", "full,nope"}, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct process_result r = process_run(&(struct process_request){.arguments = cases[i].arguments});
        if (r.code != cases[i].code) fail_msg("case %zu: exit %d, %s", i, r.code, r.complaints);
        assert_string_equal(r.output, "");
        process_deinit(&r);
    }
    const char *arguments[] = {"bench", "-m", model_path, "-n", "4",     "-p",
                               "0",     "-r", "1000",     "-o", "jsonl", NULL};
    struct process_result interrupted = process_run(
        &(struct process_request){.arguments = arguments, .interrupt_after_ms = 300, .interrupt_count = 1});
    assert_true(interrupted.code == 130 || interrupted.code == 0); /* a fast machine may be done */
    process_deinit(&interrupted);
}

/* ---- KV on disk ---- */

static size_t files_in(const char *path) {
    size_t count = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

/* A folder in which a prompt is saved. */
static void save_prompt(const char *folder) {
    static char prompt[181];
    memset(prompt, 'a', sizeof prompt - 1);
    struct process_result result =
        LOAM("run", "-m", model_path, "-p", prompt, "-n", "1", "--kv-host", "16M", "--kv-disk", folder);
    if (result.code != 0) fail_msg("%s", result.complaints);
    process_deinit(&result);
}

static void saved_documents_stay(void **state) {
    (void)state;
    char folder[160], limited[180], stale[200], inner[220];
    snprintf(folder, sizeof folder, "%s", scratch_path("kept"));
    save_prompt(folder);
    char *before = process_listing(folder);
    const size_t files = files_in(folder);
    /* Left by one that was killed; and one of another's making. */
    snprintf(stale, sizeof stale, "%s/bench.abc123", folder);
    snprintf(inner, sizeof inner, "%s/1.pages", stale);
    assert_int_equal(mkdir(stale, 0700), 0);
    fclose(fopen(inner, "w"));
    snprintf(limited, sizeof limited, "%s:3M", folder); /* by which the prompt would have to go */
    const char *arguments[] = {"bench",     "-m",  model_path,  "-p",    "64", "-n", "8",
                               "-d",        "192", "-r",        "2",     "-q", "-t", "1",
                               "--kv-host", "16M", "--kv-disk", limited, NULL};
    for (int interrupted = 0; interrupted < 2; interrupted++) {
        if (interrupted) arguments[4] = "1", arguments[6] = "512", arguments[10] = "1000"; /* a row soon, one late */
        struct process_result result = process_run(&(struct process_request){.arguments = arguments,
                                                                             .interrupt_signal = SIGTERM,
                                                                             .interrupt_after = "pp1 @",
                                                                             .interrupt_count = interrupted});
        if (result.code != (interrupted ? 130 : 0)) fail_msg("exit %d: %s", result.code, result.complaints);
        char *after = process_listing(folder);
        assert_string_equal(after, before);
        assert_int_equal(files_in(folder), files);
        free(after);
        process_deinit(&result);
    }
    snprintf(limited, sizeof limited, "%s:64K", folder);
    struct process_result full = process_run(&(struct process_request){.arguments = arguments});
    assert_int_equal(full.code, 5);
    assert_non_null(strstr(full.complaints, "this command removes nothing"));
    process_deinit(&full);
    free(before);
}

/* The folder was not there before: it is not after. */
static void nothing_is_left(void **state) {
    (void)state;
    char folder[160];
    struct stat info;
    snprintf(folder, sizeof folder, "%s", scratch_path("fresh"));
    struct process_result result = LOAM("bench", "-m", model_path, "-p", "64", "-n", "8", "-r", "1", "-q",
                                        "--kv-host", "16M", "--kv-disk", folder);
    if (result.code != 0) fail_msg("%s", result.complaints);
    process_deinit(&result);
    assert_int_not_equal(stat(folder, &info), 0);
}

/* In RAM and over a disk; a chosen depth is longer than the recording. */
static void recorded_rows_are_replayed(void **state) {
    (void)state;
    process_binary = LOAM_LAB_BINARY;
    char text[200], rows[200], folder[200];
    snprintf(text, sizeof text, "%s", scratch_path("text.txt"));
    snprintf(rows, sizeof rows, "%s", scratch_path("rows.qkv"));
    snprintf(folder, sizeof folder, "%s", scratch_path("replay.kv"));
    FILE *file = fopen(text, "w");
    assert_non_null(file);
    for (int i = 0; i < 200; i++) fprintf(file, "the %d fox jumps over it\n", i);
    fclose(file);
    struct process_result recorded =
        LOAM("trace", "record", "-m", model_path, "-f", text, "-c", "600", "-o", rows, "-q");
    if (recorded.code != 0) fail_msg("%s", recorded.complaints);
    process_deinit(&recorded);
    const char *in_ram[] = {"bench", "-m", model_path, "-p", "0",        "-n",    "3",  "-d",   "100,900",
                            "-r",    "2",  "--replay", rows, "--preset", "quest", "-o", "json", NULL},
               *on_disk[] = {"bench", "-m",        model_path, "-p", "0",        "-n",    "3",
                             "-d",    "900",       "--replay", rows, "--preset", "leoam", "--kv-disk",
                             folder,  "--kv-host", "3300K",    "-o", "json",     NULL};
    json_t *ram = bench_json(in_ram), *disk = bench_json(on_disk), *row = json_array_get(disk, 0);
    for (size_t i = 0; i < 2; i++) {
        assert_true(json_is_true(json_object_get(json_array_get(ram, i), "replayed")));
        assert_true(json_is_false(json_object_get(json_array_get(ram, i), "depth_random")));
    }
    assert_non_null(strstr(json_string_value(json_object_get(row, "test")), "@ d900 (recorded KV) leoam"));
    assert_int_equal(integer(row, "kv_prefetched"), 0); /* nothing is known of the next layer's queries */
    json_decref(ram);
    json_decref(disk);
    const struct {
        struct process_result result;
        int code;
        const char *says;
    } cases[] = {
        {LOAM("bench", "-m", model_path, "--replay", rows), 2, "-p 0"},
        {LOAM("bench", "-m", model_path, "-p", "0", "--replay", rows, "--fill-random"), 2, "one of them"},
        {LOAM("bench", "-m", model_path, "-p", "0", "-n", "580", "--replay", rows), 2,
         "80 more than the 580"},
        {LOAM("bench", "-m", model_path, "-p", "0", "--replay", text), 4, "not a recording"},
        {LOAM("trace", "record", "-m", model_path, "-f", text), 2, "-o FILE"},
        {LOAM("trace", "record", "-m", model_path, "-f", text, "-o", text), 2, "overwrite"},
        {LOAM("trace", "record", "-m", model_path, "-f", text, "-o", rows, "-c", "1M"), 2, "the text has"},
        {LOAM("trace", "record", "-m", model_path, "-f", text, "-o", rows, "--layers", "1,0"), 2,
         "ascending"},
        {LOAM("trace", "play", "-m", model_path), 2, "expected record"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct process_result result = cases[i].result;
        if (result.code != cases[i].code || strstr(result.complaints, cases[i].says) == NULL)
            fail_msg("case %zu: exit %d: %s", i, result.code, result.complaints);
        process_deinit(&result);
    }
    process_binary = LOAM_BINARY;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_llama_benchs),
        cmocka_unit_test(the_table_has_what_was_reused),
        cmocka_unit_test(the_table_has_the_heads_that_stay),
        cmocka_unit_test(json_rows_add_up),
        cmocka_unit_test(a_receipt_says_what_it_took),
        cmocka_unit_test(a_codec_that_is_set_is_measured),
        cmocka_unit_test(presets_are_compared),
        cmocka_unit_test(csv_has_a_head_and_rows_of_its_width),
        cmocka_unit_test(statistics),
        cmocka_unit_test(failures),
        cmocka_unit_test(saved_documents_stay),
        cmocka_unit_test(nothing_is_left),
        cmocka_unit_test(recorded_rows_are_replayed),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

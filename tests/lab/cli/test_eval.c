/* loam-lab eval as a user runs it: exit codes, files, the same samples and answers every time. */
#include "testing.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/process.h"
#include "cli/tiny_model.h"

static char model_path[200], vocabulary_path[200], text_path[200], jsonl_path[200], json_path[200],
    svg_path[200];

static int setup(void **state) {
    (void)state;
    snprintf(model_path, sizeof model_path, "%s", scratch_path("tiny.gguf"));
    snprintf(vocabulary_path, sizeof vocabulary_path, "%s", scratch_path("vocabulary.gguf"));
    snprintf(text_path, sizeof text_path, "%s", scratch_path("text.txt"));
    snprintf(jsonl_path, sizeof jsonl_path, "%s", scratch_path("out.jsonl"));
    snprintf(json_path, sizeof json_path, "%s", scratch_path("out.json"));
    snprintf(svg_path, sizeof svg_path, "%s", scratch_path("out.svg"));
    tiny_model_write(model_path, &(struct tiny_model){.seed = 1, .context = 2048});
    tiny_model_write(vocabulary_path, &(struct tiny_model){.seed = 1, .vocabulary_only = true});
    FILE *file = fopen(text_path, "w");
    assert_non_null(file);
    for (int i = 0; i < 200; i++) fprintf(file, "Line %d tells of fox number %d. ", i, i * 7 % 31);
    fclose(file);
    return 0;
}

static char *read_file(const char *path) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
    fclose(file);
    return text;
}

static json_t *read_json(const char *path) {
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL) fail_msg("%s: %s", path, error.text);
    return root;
}

static void check(struct process_result result, int code, const char *says) {
    if (result.code != code || strstr(result.complaints, says) == NULL)
        fail_msg("exit %d, expected %d and '%s': %s", result.code, code, says, result.complaints);
    if (code == 2 && strncmp(result.complaints, "loam-lab: ", 10) != 0)
        fail_msg("not said as loam-lab: %s", result.complaints);
    process_deinit(&result);
}

static void usage(void **state) {
    (void)state;
    check(LOAM("eval"), 2, "too few arguments");
    check(LOAM("eval", "rulr", "-m", model_path), 2, "expected ruler");
    check(LOAM("eval", "ruler", "-m", model_path, "--tasks", "niah_single_9"), 2, "niah_single_1|");
    check(LOAM("eval", "ruler", "-m", model_path, "--lengths", "100"), 2, "needs a length of");
    check(LOAM("eval", "ruler", "-m", model_path, "--preset", "ful"), 2, "no preset 'ful'");
    check(LOAM("eval", "ruler", "-m", model_path, "--preset", "full,full"), 2, "there twice");
    check(LOAM("eval", "ruler", "-m", model_path, "--stretch", "3"), 2, "belongs to another");
    check(LOAM("eval", "ruler", "-m", "/nonexistent"), 6, "/nonexistent");
    check(LOAM("eval", "ruler", "-m", text_path), 3, "");
    check(LOAM("eval", "ruler", "-m", model_path, "--svg", "/nonexistent/x.svg"), 6, "/nonexistent/x.svg");
    check(LOAM("eval", "ruler", "-m", model_path, "--text", "/nonexistent/t"), 6, "/nonexistent/t");
    check(LOAM("eval", "ruler", "-m", model_path, "--lengths", "1T"), 2, "--lengths");
}

static void samples_without_a_model(void **state) {
    (void)state;
    struct process_result made = LOAM("eval", "ruler", "-m", vocabulary_path, "--emit", jsonl_path,
                                      "--samples", "2", "--lengths", "2048", "--seed", "9");
    if (made.code != 0) fail_msg("%s", made.complaints);
    char *first = read_file(jsonl_path), *rest = first;
    struct process_result again = LOAM("eval", "ruler", "-m", vocabulary_path, "--emit", "/dev/stdout",
                                       "--samples", "2", "--lengths", "2048", "--seed", "9");
    assert_string_equal(again.output, first);
    size_t lines = 0;
    for (char *line; (line = strsep(&rest, "\n")) != NULL && *line != '\0'; lines++) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        json_int_t used = json_integer_value(json_object_get(object, "prompt_tokens")) +
                          json_integer_value(json_object_get(object, "token_budget"));
        assert_in_range(used, 1000, 2048);
        assert_true(json_array_size(json_object_get(object, "answers")) > 0);
        assert_true(json_string_length(json_object_get(object, "prompt")) > 500);
        json_decref(object);
    }
    assert_int_equal(lines, 13 * 2);
    free(first);
    process_deinit(&made);
    process_deinit(&again);
}

/* A model of random weights finds nothing; everything around it is as with any model. */
static void a_run_reports(void **state) {
    (void)state;
    struct process_result run = LOAM(
        "eval", "ruler", "-m", model_path, "--tasks", "niah_single_1,niah_multivalue,qa_1", "--samples", "2",
        "--lengths", "700,1024", "--jsonl", jsonl_path, "--json", json_path, "--svg", svg_path, "-q");
    if (run.code != 0) fail_msg("%s", run.complaints);
    assert_string_equal(run.complaints, "");
    assert_non_null(strstr(run.output, "| niah_multivalue |   1024 |       2 | 0.0 [0.0, 65.8] |"));
    assert_non_null(strstr(run.output, "| mean            |    700 |       2 |       0.0 ± 0.0 |"));
    assert_non_null(strstr(run.output, "seed 42"));
    json_t *root = read_json(json_path);
    assert_int_equal(json_array_size(json_object_get(root, "results")), 3 * 2);
    const json_t *mean = json_array_get(json_object_get(root, "means"), 1);
    assert_int_equal(json_array_size(json_object_get(root, "means")), 2);
    assert_int_equal(json_integer_value(json_object_get(mean, "length")), 1024);
    assert_int_equal(json_integer_value(json_object_get(mean, "tasks")), 3);
    assert_true(json_is_real(json_object_get(mean, "error")));
    assert_string_equal(json_string_value(json_object_get(root, "evaluation")), "ruler");
    json_decref(root);
    char *lines = read_file(jsonl_path), *svg = read_file(svg_path);
    size_t count = 0;
    for (const char *c = lines; (c = strchr(c, '\n')) != NULL; c++) count++;
    assert_int_equal(count, 3 * 2 * 2);
    assert_non_null(strstr(lines, "\"preset\":\"full\""));
    assert_non_null(strstr(lines, "\"score\":0.0"));
    assert_memory_equal(svg, "<?xml", 5);
    assert_non_null(strstr(svg, "700 tokens, depth "));
    struct process_result again =
        LOAM("eval", "ruler", "-m", model_path, "--tasks", "niah_single_1,niah_multivalue,qa_1", "--samples",
             "2", "--lengths", "700,1024", "-o", "jsonl", "-t", "1", "-ub", "64");
    assert_int_equal(again.code, 0);
    assert_string_equal(again.output, lines); /* the answers, too: on another number of threads */
    assert_non_null(strstr(again.complaints, "| task"));
    free(lines);
    free(svg);
    process_deinit(&run);
    process_deinit(&again);
}

static void what_was_measured_is_reported_after_an_interrupt(void **state) {
    (void)state;
    struct process_result run = process_run(&(struct process_request){
        .arguments = (const char *const[]){"eval", "ruler", "-m", model_path, "--tasks", "niah_single_1,vt",
                                           "--samples", "100000", "--lengths", "512", "-o", "jsonl", NULL},
        .interrupt_after = "\"index\":1,",
        .interrupt_count = 1});
    assert_int_equal(run.code, 130);
    assert_non_null(strstr(run.complaints, "| niah_single_1 |"));
    process_deinit(&run);
}

static size_t count_lines(const char *path, bool *whole) {
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    size_t count = 0;
    char line[20000];
    *whole = true;
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *object = json_loads(line, 0, NULL);
        *whole = *whole && object != NULL && line[strlen(line) - 1] == '\n';
        json_decref(object);
        count++;
    }
    fclose(file);
    return count;
}

/* SIGTERM after the first samples: the table and the lines of all that was measured; SIGKILL: the lines still. */
static void nothing_measured_is_lost(void **state) {
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT, SIGKILL};
    static const int codes[] = {130, 130, 128 + SIGKILL};
    for (size_t i = 0; i < 3; i++) {
        char path[200], json[200];
        bool whole = false;
        snprintf(path, sizeof path, "%s", scratch_path("lines.jsonl"));
        snprintf(json, sizeof json, "%s", scratch_path("figures.json"));
        unlink(json);
        struct process_result run = process_run(&(struct process_request){
            .arguments = (const char *const[]){"eval", "ruler", "-m", model_path, "--tasks",
                                               "niah_single_1,vt", "--samples", "100000", "--lengths", "512",
                                               "-o", "jsonl", "--jsonl", path, "--json", json, NULL},
            .interrupt_signal = signals[i],
            .interrupt_after = "\"index\":1,",
            .interrupt_count = 1});
        assert_int_equal(run.code, codes[i]);
        size_t printed = 0, kept = count_lines(path, &whole);
        for (const char *c = run.output; (c = strchr(c, '\n')) != NULL; c++) printed++;
        assert_true(printed >= 3 && kept >= printed && kept <= printed + 1 && whole);
        bool reports = signals[i] != SIGKILL;
        assert_true((strstr(run.complaints, "| niah_single_1 |") != NULL) == reports);
        assert_true((access(json, F_OK) == 0) == reports);
        process_deinit(&run);
        unlink(path);
        unlink(json);
    }
}

#define SHARED                                                                                          \
    "eval", "ruler", "-m", model_path, "--tasks", "niah_single_2,niah_multikey_1,qa_1,vt", "--lengths", \
        "1500", "--samples", "3", "-q", "--set", "dense=0", "--preset", "full,h2o:100%"

/* The samples of a text are answered from one prefill; h2o, which reads each prompt itself and keeps all of it here,
 * must give the same answers. */
static void a_shared_text_is_read_once(void **state) {
    (void)state;
    struct process_result run =
        LOAM(SHARED, "--shared-text", "all", "--jsonl", jsonl_path, "--json", json_path);
    if (run.code != 0) fail_msg("%s", run.complaints);
    char *lines = read_file(jsonl_path), *rest = lines;
    json_t *rows[24];
    size_t count = 0, answered = 0;
    for (char *line; (line = strsep(&rest, "\n")) != NULL && *line != '\0';) {
        assert_true(count < 24);
        rows[count++] = json_loads(line, 0, NULL);
    }
    assert_int_equal(count, 4 * 3 * 2);
    for (size_t i = 0; i < count; i++) {
        const char *task = json_string_value(json_object_get(rows[i], "task"));
        assert_true(json_boolean_value(json_object_get(rows[i], "shared_text")) ==
                    (strcmp(task, "qa_1") != 0));
        if (strcmp(json_string_value(json_object_get(rows[i], "preset")), "full") != 0) continue;
        size_t same = 0;
        for (size_t j = 0; j < count; j++)
            same += j != i &&
                    json_equal(json_object_get(rows[i], "task"), json_object_get(rows[j], "task")) &&
                    json_equal(json_object_get(rows[i], "index"), json_object_get(rows[j], "index")) &&
                    json_equal(json_object_get(rows[i], "answer"), json_object_get(rows[j], "answer"));
        assert_int_equal(same, 1);
        answered += json_string_length(json_object_get(rows[i], "answer")) > 0;
    }
    assert_true(answered > 6);
    for (size_t i = 0; i < count; i++) json_decref(rows[i]);
    json_t *root = read_json(json_path); /* h2o reads twelve prompts, full nine questions */
    assert_in_range(json_integer_value(json_object_get(json_object_get(root, "prefill"), "tokens")), 12 * 900,
                    12 * 1372 + 9 * 200);
    json_decref(root);
    free(lines);
    process_deinit(&run);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static size_t sorted_lines(char *text, char **lines, size_t lines_max) {
    size_t count = 0;
    for (char *line; (line = strsep(&text, "\n")) != NULL && *line != '\0';) {
        assert_true(count < lines_max);
        lines[count++] = line;
    }
    qsort(lines, count, sizeof *lines, by_text);
    return count;
}

/* The file of a run that was cut short, then the rest of it: the same lines and the same table. */
static void a_run_goes_on_after_its_lines(void **state) {
    (void)state;
    struct process_result run = LOAM(SHARED, "--shared-text", "niah", "--jsonl", jsonl_path);
    char *whole = read_file(jsonl_path), *cut = strdup(whole), *end = cut, *a[30], *b[30];
    for (int i = 0; i < 7; i++) end = strchr(end, '\n') + 1;
    end[40] = '\0'; /* and part of the eighth */
    FILE *file = fopen(jsonl_path, "w");
    fputs(cut, file);
    fclose(file);
    struct process_result rest =
        LOAM(SHARED, "--shared-text", "niah", "--jsonl", jsonl_path, "--resume", "-o", "jsonl");
    if (rest.code != 0) fail_msg("%s", rest.complaints);
    size_t printed = 0;
    for (const char *c = rest.output; (c = strchr(c, '\n')) != NULL; c++) printed++;
    assert_int_equal(printed, 24 - 7);
    char *resumed = read_file(jsonl_path);
    assert_memory_equal(resumed, cut, (size_t)(end - cut));
    size_t count = sorted_lines(whole, a, 30);
    assert_int_equal(sorted_lines(resumed, b, 30), count);
    for (size_t i = 0; i < count; i++) assert_string_equal(a[i], b[i]);
    struct process_result again = LOAM(SHARED, "--shared-text", "niah", "--jsonl", jsonl_path, "--resume");
    const char *table = strstr(run.output, "\n\n");
    assert_non_null(table);
    assert_memory_equal(again.output, run.output, (size_t)(table - run.output));
    check(LOAM(SHARED, "--shared-text", "all", "--jsonl", jsonl_path, "--resume"), 2, "of another run");
    check(LOAM(SHARED, "--jsonl", jsonl_path, "--resume", "--seed", "4"), 2, "line 1 is of another run");
    check(LOAM(SHARED, "--resume"), 2, "--jsonl FILE");
    check(LOAM(SHARED, "--jsonl", text_path, "--resume"), 2, "its last line is none");
    free(whole), free(cut), free(resumed);
    process_deinit(&run), process_deinit(&rest), process_deinit(&again);
}

/* The same of `eval ask`, whose table tells how many it has asked. */
static void answers_are_reported_after_an_interrupt(void **state) {
    (void)state;
    char questions[200];
    snprintf(questions, sizeof questions, "%s", scratch_path("many.jsonl"));
    FILE *file = fopen(questions, "w");
    for (int i = 0; i < 900; i++)
        fprintf(file, "{\"question\": \"Which %d:\", \"answers\": [\"nobody\"]}\n", i);
    fclose(file);
    struct process_result run = process_run(&(struct process_request){
        .arguments = (const char *const[]){"eval", "ask", "-m", model_path, "-f", text_path, "--questions",
                                           questions, "-o", "jsonl", NULL},
        .interrupt_signal = SIGTERM,
        .interrupt_after = "Which 1:",
        .interrupt_count = 1});
    assert_int_equal(run.code, 130);
    size_t printed = 0, asked = 0;
    for (const char *c = run.output; (c = strchr(c, '\n')) != NULL; c++) printed++;
    const char *said = strstr(run.complaints, "full 0 of ");
    assert_non_null(said);
    assert_int_equal(sscanf(said, "full 0 of %zu", &asked), 1);
    assert_true(printed >= 2 && printed < 900);
    assert_int_equal(asked, printed);
    process_deinit(&run);
    unlink(questions);
}

/* A model of random weights knows no answer, but what it does say is right when that is what was expected. */
static void questions_about_a_document(void **state) {
    (void)state;
    char questions[200], expected[100];
    snprintf(questions, sizeof questions, "%s", scratch_path("questions.jsonl"));
    FILE *file = fopen(questions, "w");
    fputs("{\"question\": \"Which\\nfox is it:\", \"answers\": [\"nobody said so\"]}\n", file);
    fclose(file);
    struct process_result run = LOAM("eval", "ask", "-m", model_path, "-f", text_path, "--questions",
                                     questions, "-o", "jsonl", "--preset", "full,hata:200:dense=0");
    if (run.code != 0) fail_msg("%s", run.complaints);
    assert_non_null(strstr(run.complaints, "full 0 of 1, hata:200:dense=0 0 of 1"));
    json_t *line = json_loads(run.output, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(line);
    assert_false(json_boolean_value(json_object_get(line, "right")));
    assert_true(json_real_value(json_object_get(line, "mass")) == 1);
    const char *answer = json_string_value(json_object_get(line, "answer"));
    assert_non_null(answer);
    char known[2] = ""; /* a letter of it: its bytes are not always text */
    for (size_t i = 0; known[0] == '\0' && answer[i] != '\0'; i++)
        if (answer[i] > ' ' && answer[i] < 127) known[0] = answer[i];
    assert_true(known[0] != '\0');
    json_t *selected = json_loads(strchr(run.output, '\n'), JSON_DISABLE_EOF_CHECK, NULL);
    double mass = json_real_value(json_object_get(selected, "mass"));
    if (!(mass > 0 && mass < 0.999)) fail_msg("the mass caught is %g", mass);
    assert_true(json_integer_value(json_object_get(selected, "step_bytes")) <
                json_integer_value(json_object_get(line, "step_bytes")));
    file = fopen(questions, "w");
    json_t *object = json_pack("{s:s, s:[s]}", "question", "Which\nfox is it:", "answers", known);
    json_dumpf(object, file, 0);
    fclose(file);
    struct process_result again =
        LOAM("eval", "ask", "-m", model_path, "-f", text_path, "--questions", questions, "-t", "1");
    snprintf(expected, sizeof expected, "full %d of 1", 1);
    if (again.code != 0 || strstr(again.output, expected) == NULL)
        fail_msg("expected '%s': %s%s", expected, again.output, again.complaints);
    json_decref(object), json_decref(line), json_decref(selected);
    process_deinit(&run);
    process_deinit(&again);
}

static void questions_that_are_none(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "no questions"},
        {"{", "line 1: not a line of JSON"},
        {"{\"answers\": [\"a\"]}", "line 1: question: expected a text"},
        {"\n{\"question\": \"q\", \"answers\": []}", "line 2: answers: found 0"},
        {"{\"question\": \"q\", \"answers\": [1]}", "line 1: answers[0]: expected a text"},
    };
    char questions[200];
    snprintf(questions, sizeof questions, "%s", scratch_path("questions.jsonl"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        FILE *file = fopen(questions, "w");
        fputs(cases[i].text, file);
        fclose(file);
        check(LOAM("eval", "ask", "-m", model_path, "-f", text_path, "--questions", questions), 2,
              cases[i].says);
    }
    check(LOAM("eval", "ask", "-m", model_path), 2, "which questions?");
    check(LOAM("eval", "ruler", "-m", model_path, "--questions", questions), 2, "belongs to another");
}

static double column(const char *row, size_t index) {
    for (size_t i = 0; i <= index && row != NULL; i++) row = strchr(row, '|') + 1;
    return strtod(row, NULL);
}

/* Full attention against itself, and the perplexity that loam-lab perplexity finds at the same places: windows of 65
 * tokens whose last 32 are predicted. */
static void kl_of_full(void **state) {
    (void)state;
    struct process_result kl = LOAM("eval", "kl", "-m", model_path, "-f", text_path, "--lengths", "64",
                                    "--stretch", "32", "--json", json_path, "-q"),
                          same = LOAM("perplexity", "-m", model_path, "-f", text_path, "-c", "65", "-q");
    if (kl.code != 0) fail_msg("%s", kl.complaints);
    const char *row = strstr(kl.output, "| full");
    assert_non_null(row);
    assert_true(column(row, 5) == 0 && column(row, 6) == 0 && column(row, 7) == 100);
    double expected = strtod(strstr(same.output, "n_ctx=65 = ") + 11, NULL), found = column(row, 3);
    if (!(found > expected - 2e-4 && found < expected + 2e-4))
        fail_msg("PPL %f, expected %f", found, expected);
    json_t *root = read_json(json_path), *result = json_array_get(json_object_get(root, "results"), 0);
    assert_int_equal(json_integer_value(json_object_get(result, "length")), 64);
    assert_int_equal(json_integer_value(json_object_get(result, "tokens")) % 32, 0);
    assert_true(json_real_value(json_object_get(result, "same_top")) == 1);
    json_decref(root);
    process_deinit(&kl);
    process_deinit(&same);
    check(LOAM("eval", "kl", "-m", model_path, "-f", text_path, "--lengths", "1M"), 2,
          "the longest of --lengths");
    check(LOAM("eval", "kl", "-m", model_path, "-f", text_path, "--lengths", "64,64", "--stretch", "8"), 2,
          "--lengths");
    check(LOAM("eval", "kl", "-m", model_path, "-f", text_path, "--lengths", "64"), 2, "above --stretch 64");
    check(LOAM("eval", "kl", "-m", model_path, "--samples", "3"), 2, "belongs to another");
}

/* 100% is full exactly; a window of 36 of 128 tokens is not. */
static void kl_of_presets(void **state) {
    (void)state;
    struct process_result kl =
        LOAM("eval", "kl", "-m", model_path, "-f", text_path, "--lengths", "128", "--stretch", "16",
             "--chunks", "3", "--set", "dense=0,recent=16", "--preset",
             "full,quest:100%,hata:100%,h2o:100%,streaming:36,hata:48", "-q");
    if (kl.code != 0) fail_msg("%s", kl.complaints);
    static const char *const same[] = {"| full", "| quest:100%", "| hata:100%", "| h2o:100%"};
    for (size_t i = 0; i < 4; i++) assert_true(column(strstr(kl.output, same[i]), 5) == 0);
    assert_true(column(strstr(kl.output, "| streaming:36"), 5) > 1e-5);
    assert_true(column(strstr(kl.output, "| hata:48"), 5) > 0);
    process_deinit(&kl);
    check(LOAM("eval", "kl", "-m", model_path, "--preset", "infinigen:dense=0"), 2, "loam-lab calibrate");
    check(LOAM("eval", "kl", "-m", model_path, "--preset", "full,hata:bits=x"), 2, "bits");
    check(LOAM("eval", "kl", "-m", model_path, "--preset", "full,hata:codec=q8"), 2, "one KV cache");
    check(LOAM("eval", "recall", "-m", model_path), 2, "name presets that select");
}

static void recall_of_presets(void **state) {
    (void)state;
    struct process_result recall =
        LOAM("eval", "recall", "-m", model_path, "-f", text_path, "--lengths", "128,256", "--stretch", "8",
             "--chunks", "2", "--set", "dense=1,recent=16", "--preset", "full,streaming:40,hata:40:code=sign",
             "--json", json_path, "-q");
    if (recall.code != 0) fail_msg("%s", recall.complaints);
    json_t *root = read_json(json_path), *results = json_object_get(root, "results"), *result;
    assert_int_equal(json_array_size(results), 2 * 2 * TINY_LAYERS * TINY_HEADS);
    double window = 0, hash = 0;
    size_t index;
    json_array_foreach(results, index, result) {
        double kept = json_number_value(json_object_get(result, "kept")),
               mass = json_number_value(json_object_get(result, "mass"));
        json_int_t length = json_integer_value(json_object_get(result, "length"));
        bool dense = json_integer_value(json_object_get(result, "layer")) < 1;
        assert_int_equal(json_integer_value(json_object_get(result, "tokens")), dense ? 0 : 2 * 8);
        if (dense)
            assert_true(kept == 1 && mass == 1);
        else { /* 40 of the tokens seen, which are up to 8 fewer than the length (codes by level: and the last chunk) */
            assert_true(kept > 39.0 / (double)length && kept < 40.0 / (double)(length - 8));
            assert_true(mass > 0 && mass < 1);
            bool is_hash =
                strcmp(json_string_value(json_object_get(result, "preset")), "hata:40:code=sign") == 0;
            *(is_hash ? &hash : &window) += mass;
        }
    }
    assert_true(hash > window); /* chosen rows beat the last ones, even with random weights */
    json_decref(root);
    assert_non_null(strstr(recall.output, "| hata:40"));
    assert_null(strstr(recall.output, "| full"));
    process_deinit(&recall);
}

/* There is a column for mass bounds, with figures where a preset computes them. */
static void recall_of_mass_bounds(void **state) {
    (void)state;
    struct process_result recall =
        LOAM("eval", "recall", "-m", model_path, "-f", text_path, "--lengths", "256", "--stretch", "8",
             "--set", "dense=1,recent=16", "--preset",
             "leoam:80:mass_bound=1:rank=meanstd:heads=even,leoam:80:rank=meanstd:heads=even", "--json",
             json_path, "-q");
    if (recall.code != 0) fail_msg("%s", recall.complaints);
    json_t *root = read_json(json_path), *results = json_object_get(root, "results"), *result;
    double mass[2] = {0}, bound = 0;
    size_t index, heads = TINY_LAYERS * TINY_HEADS;
    assert_int_equal(json_array_size(results), 2 * heads);
    json_array_foreach(results, index, result) {
        double caught = json_number_value(json_object_get(result, "mass"));
        mass[index / heads] += caught;
        if (index >= heads) {
            assert_null(json_object_get(result, "mass_bound"));
            continue;
        }
        double share = json_number_value(json_object_get(result, "mass_bound"));
        double share_min = json_number_value(json_object_get(result, "mass_bound_min"));
        assert_true(share >= share_min && share_min >= 0 && share <= caught);
        assert_true(json_number_value(json_object_get(result, "mass_bound_excess")) <= 1e-12);
        bool dense = json_integer_value(json_object_get(result, "layer")) < 1;
        assert_true(dense ? share == 1 : share > 0 && share < caught);
        bound += share;
    }
    assert_true(mass[0] == mass[1] && bound < mass[0]); /* what is chosen is the same */
    json_decref(root);
    assert_non_null(strstr(recall.output, "bound %"));
    process_deinit(&recall);
    check(LOAM("eval", "recall", "-m", model_path, "--preset", "hata:40:mass_bound=1"), 2,
          "needs bounds of keys");
}

int main(void) {
    process_binary = LOAM_LAB_BINARY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage),
        cmocka_unit_test(samples_without_a_model),
        cmocka_unit_test(a_run_reports),
        cmocka_unit_test(kl_of_full),
        cmocka_unit_test(kl_of_presets),
        cmocka_unit_test(recall_of_presets),
        cmocka_unit_test(recall_of_mass_bounds),
        cmocka_unit_test(what_was_measured_is_reported_after_an_interrupt),
        cmocka_unit_test(nothing_measured_is_lost),
        cmocka_unit_test(a_shared_text_is_read_once),
        cmocka_unit_test(a_run_goes_on_after_its_lines),
        cmocka_unit_test(answers_are_reported_after_an_interrupt),
        cmocka_unit_test(questions_about_a_document),
        cmocka_unit_test(questions_that_are_none),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

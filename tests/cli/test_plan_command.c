/* `loam plan`, as a user runs it, for a machine whose numbers are given. */
#include "testing.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/process.h"
#include "plan/sample_machine.h"
#include "platform/cpu.h"

static char machine_path[200], damaged_path[200];

static double one(void *context) {
    (void)context;
    return 1;
}

static int setup(void **state) {
    (void)state;
    struct error error;
    const struct machine machine = sample_machine(one, NULL);
    snprintf(machine_path, sizeof machine_path, "%s", scratch_path("machine.json"));
    snprintf(damaged_path, sizeof damaged_path, "%s", scratch_path("damaged.json"));
    assert_ok(machine_save(&machine, machine_path, &error), error);
    FILE *file = fopen(damaged_path, "wb");
    assert_non_null(file);
    fputs("{\"loam_machine\": 1, \"processor\": \"x\"", file);
    fclose(file);
    return 0;
}

static json_t *planned(const char *const *arguments) {
    struct process_result result = process_run(&(struct process_request){.arguments = arguments});
    json_error_t error;
    if (result.code != 0) fail_msg("%d: %s", result.code, result.complaints);
    json_t *root = json_loads(result.output, 0, &error);
    if (root == NULL) fail_msg("%s: %s", error.text, result.output);
    process_deinit(&result);
    return root;
}
#define PLANNED(...) \
    planned((const char *const[]){"plan", "--machine", machine_path, "--json", __VA_ARGS__, NULL})

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("%s: no number", key);
    return json_number_value(value);
}

static const char *choice_text(const json_t *root) {
    return json_string_value(json_object_get(json_object_get(root, "choice"), "plan"));
}

static void the_table_and_the_choice_are_printed(void **state) {
    (void)state;
    struct process_result first = LOAM("plan", "--machine", machine_path, "-c", "16K"),
                          second = LOAM("plan", "--machine", machine_path, "-c", "16K");
    assert_int_equal(first.code, 0);
    static const char *const expected[] = {"16384 tokens", "sample, 4 threads", "| full ",
                                           "choice: full", "limited by ",       "t/s",
                                           "RAM: ",        "a step of "};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (strstr(first.output, expected[i]) == NULL) fail_msg("no \"%s\": %s", expected[i], first.output);
    size_t rows = 0; /* the choice and the five next best, under a head and a line */
    for (const char *at = first.output; (at = strstr(at, "\n|")) != NULL; at++) rows++;
    assert_int_equal(rows, 2 + 6);
    assert_string_equal(first.output, second.output);
    process_deinit(&first);
    process_deinit(&second);
}

/* The command line that is printed runs, and runs that plan. */
static void the_choice_is_a_command(void **state) {
    (void)state;
    const char *model = LOAM_SOURCE_DIR "/models/loam-nano.gguf";
    json_t *root = PLANNED("-m", model, "-c", "2K", "--loss", "0.05", "-ctk", "q8_0");
    const char *command = json_string_value(json_object_get(root, "command"));
    const json_t *choice = json_object_get(root, "choice");
    char wanted[200];
    assert_non_null(command);
    snprintf(wanted, sizeof wanted, " -c 2048 --preset %s",
             json_string_value(json_object_get(choice, "preset")));
    if (strstr(command, wanted) == NULL || strstr(command, " -ctk q8_0") == NULL) fail_msg("%s", command);
    char line[1000], text[200];
    snprintf(text, sizeof text, "%s", scratch_path("text"));
    FILE *file = fopen(text, "w");
    assert_non_null(file);
    fputs("The report of the first day.", file);
    fclose(file);
    const char *rest = strstr(command, " -m ");
    assert_non_null(rest);
    snprintf(line, sizeof line, LOAM_BINARY " run -f %s -p x -n 2 -q%s >/dev/null", text, rest);
    assert_int_equal(system(line), 0);
    json_decref(root);
    struct process_result printed =
        LOAM("plan", "--machine", machine_path, "-c", "16K", "--kv-disk", "a folder's", "-np", "2");
    if (strstr(printed.output, "loam batch -i REQUESTS -o ANSWERS -c 16384 -np 2 --preset full") == NULL ||
        strstr(printed.output, " --kv-disk 'a folder'\\''s'") == NULL ||
        strstr(printed.output, "loam-lab eval kl -f TEXT ") == NULL)
        fail_msg("%s", printed.output);
    process_deinit(&printed);
}

/* The other command measures what each preset of the table loses, at a length that the table takes. */
static void what_is_lost_is_a_command(void **state) {
    (void)state;
    char model[200], calibration[200], line[1000];
    snprintf(model, sizeof model, "%s", scratch_path("nano.gguf"));
    snprintf(calibration, sizeof calibration, "%s", scratch_path("nano.calib.gguf"));
    assert_int_equal(symlink(LOAM_SOURCE_DIR "/models/loam-nano.gguf", model), 0);
    assert_int_equal(symlink(LOAM_SOURCE_DIR "/models/loam-nano.calib.gguf", calibration), 0);
    struct process_result printed = LOAM("plan", "--machine", machine_path, "-m", model, "-c", "16K");
    if (strstr(printed.output, " --lengths 8192 --stretch 64 --chunks 2 --preset full,meanstd,hata,leoam,clo ") == NULL)
        fail_msg("%s", printed.output);
    process_deinit(&printed);
    printed = LOAM("plan", "--machine", machine_path, "-m", model, "-c", "256");
    const char *command = strstr(printed.output, "loam-lab eval kl -m "), *text = strstr(command, " -f TEXT ");
    assert_non_null(text);
    snprintf(line, sizeof line, LOAM_LAB_BINARY "%.*s -f " LOAM_SOURCE_DIR "/tests/data/a-scandal-in-bohemia.txt%s",
             (int)(text - command - 8), command + 8, text + strlen(" -f TEXT"));
    process_deinit(&printed);
    line[strcspn(line, "\n")] = '\0';
    assert_int_equal(system(strcat(line, " -q >/dev/null")), 0);
    json_t *root = PLANNED("-m", model, "-c", "256");
    const json_t *plan;
    size_t i, known = 0;
    json_array_foreach(json_object_get(root, "others"), i, plan) {
        if (strchr(json_string_value(json_object_get(plan, "plan")), ' ') != NULL) continue;
        if (!json_is_number(json_object_get(plan, "kld"))) fail_msg("%s", json_dumps(plan, 0));
        known++;
    }
    assert_true(known >= 4);
    json_decref(root);
}

/* When the machine was measured and beside what is kept with its numbers, and said. */
static void a_busy_machine_is_doubted(void **state) {
    (void)state;
    struct machine machine;
    struct error error;
    const char *path = scratch_path("busy.json");
    assert_int_equal(machine_load(&machine, machine_path, &error), STATUS_OK);
    machine.measured = 1800000000;
    machine.load = 0.04;
    assert_int_equal(machine_save(&machine, path, &error), STATUS_OK);
    struct process_result idle = LOAM("plan", "--machine", path, "-c", "16K");
    if (strstr(idle.output, "measured 2027-01-15 08:00 UTC, beside a load of 0.0\n") == NULL)
        fail_msg("%s", idle.output);
    machine.load = 7.5;
    assert_int_equal(machine_save(&machine, path, &error), STATUS_OK);
    struct process_result busy = LOAM("plan", "--machine", path, "-c", "16K");
    if (strstr(busy.output, "a load of 7.5: its numbers are too low; loam plan --measure") == NULL)
        fail_msg("%s", busy.output);
    process_deinit(&idle);
    process_deinit(&busy);
    static const struct {
        double spread;
        const char *says;
    } disks[] = {{0.12, "a load of 0.0, the disk within 12%\n"},
                 {23, "a load of 0.0, the disk unsteady: loam plan --measure, once others rest\n"}};
    machine.load = 0.04;
    for (size_t i = 0; i < sizeof disks / sizeof *disks; i++) {
        machine.disk.spread = disks[i].spread;
        assert_int_equal(machine_save(&machine, path, &error), STATUS_OK);
        struct process_result said = LOAM("plan", "--machine", path, "-c", "16K");
        if (strstr(said.output, disks[i].says) == NULL) fail_msg("%s", said.output);
        process_deinit(&said);
    }
}

static void nothing_is_lost_unless_it_is_allowed(void **state) {
    (void)state;
    json_t *exact = PLANNED("-c", "64K"), *lossy = PLANNED("-c", "64K", "--loss", "0.05");
    assert_true(json_is_true(json_object_get(json_object_get(exact, "choice"), "exact")));
    assert_true(json_is_false(json_object_get(json_object_get(lossy, "choice"), "exact")));
    assert_true(json_array_size(json_object_get(exact, "others")) >= 5);
    const json_t *choice = json_object_get(lossy, "choice");
    assert_true(number(choice, "tokens_per_second") >
                number(json_object_get(exact, "choice"), "tokens_per_second"));
    assert_true(number(choice, "first_token_seconds") > 0);
    assert_true(number(choice, "kv_bytes") > 0 && number(choice, "key_index_bytes") > 0);
    json_decref(exact);
    json_decref(lossy);
}

/* Only planned: the folder is not made. */
static void tiers_are_filled(void **state) {
    (void)state;
    char folder[200];
    snprintf(folder, sizeof folder, "%s", scratch_path("kv"));
    json_t *root = PLANNED("-c", "128K", "--kv-host", "64M", "--kv-disk", folder);
    const json_t *choice = json_object_get(root, "choice");
    assert_int_equal(number(choice, "host_bytes"), 64 << 20);
    assert_true(number(choice, "disk_bytes") > 64 << 20);
    assert_true(number(choice, "held") < 1 && number(choice, "step_read_bytes") > 0);
    assert_true(number(json_object_get(choice, "parts_seconds"), "disk") > 0);
    assert_int_equal(access(folder, F_OK), -1);
    json_decref(root);
    struct process_result result =
        LOAM("plan", "--machine", machine_path, "-c", "128K", "--kv-host", "64M", "--kv-disk", folder);
    assert_int_equal(result.code, 0);
    assert_non_null(strstr(result.output, "disk: "));
    process_deinit(&result);
}

static json_t *choice_of(const json_t *root) { return json_object_get(root, "choice"); }

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    if (text == NULL) fail_msg("%s: no text", key);
    return text;
}

/* Threads, schedule and the weights in RAM: chosen and said; what is given stays. */
static void what_a_plan_runs_with_is_said(void **state) {
    (void)state;
    struct error error;
    struct machine machine = sample_machine(one, NULL);
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("small.json"));
    machine.threads[1] = sample_machine_threads(2, 2); /* two threads are the quickest */
    assert_ok(machine_save(&machine, path, &error), error);
    json_t *chosen = planned((const char *const[]){"plan", "--machine", path, "--json", "-c", "1K", NULL}),
           *given = planned((const char *const[]){"plan", "--machine", path, "--json", "-c", "1K", "-t", "1", NULL}),
           *together = planned(
               (const char *const[]){"plan", "--machine", path, "--json", "-c", "1K", "-np", "0", NULL}),
           *eight = planned(
               (const char *const[]){"plan", "--machine", path, "--json", "-c", "1K", "-np", "8", NULL});
    assert_int_equal(number(choice_of(chosen), "threads"), 2);
    assert_string_equal(text_of(choice_of(chosen), "schedule"), "row");
    assert_true(json_is_null(json_object_get(choice_of(chosen), "weights_host_bytes")));
    assert_int_equal(number(choice_of(given), "threads"), 1);
    assert_string_equal(text_of(choice_of(together), "schedule"), "column");
    assert_true(number(choice_of(together), "tokens_per_second") >
                number(choice_of(chosen), "tokens_per_second"));
    assert_int_equal(number(choice_of(eight), "sequences"), 8);
    json_decref(chosen);
    json_decref(given);
    json_decref(together);
    json_decref(eight);
    struct process_result shown = LOAM("plan", "--machine", path, "-c", "1K");
    assert_int_equal(shown.code, 0);
    assert_non_null(strstr(shown.output, "2 of 4 threads; schedule row, 1 sequence a pass"));
    assert_non_null(strstr(shown.output, "weights: "));
    process_deinit(&shown);
}

/* A machine with less RAM than the model takes: as much stays as there is memory for, and it says what to give. */
static void weights_that_do_not_fit(void **state) {
    (void)state;
    struct error error;
    struct machine machine = sample_machine(one, NULL);
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("little-ram.json"));
    json_t *all = PLANNED("-c", "64");
    const double weights = number(all, "weight_bytes"), kv = number(choice_of(all), "kv_bytes");
    machine.memory.bytes = (weights + kv) * 0.98 * 16 / 15;
    assert_ok(machine_save(&machine, path, &error), error);
    json_t *some = planned((const char *const[]){"plan", "--machine", path, "--json", "-c", "64", NULL});
    const double chosen = number(choice_of(some), "weights_host_bytes");
    assert_true(chosen > 0 && chosen < weights);
    assert_true(number(choice_of(some), "pass_read_bytes") > 0);
    assert_true(number(json_object_get(choice_of(some), "parts_seconds"), "weights") > 0);
    assert_true(number(choice_of(some), "tokens_per_second") <
                number(choice_of(all), "tokens_per_second"));
    json_decref(some);
    json_decref(all);
    struct process_result shown = LOAM("plan", "--machine", path, "-c", "64");
    assert_int_equal(shown.code, 0);
    assert_non_null(strstr(shown.output, "--weights-host "));
    process_deinit(&shown);
}

/* A step of a device with memory of its own: what it does not hold comes over the link. */
static void another_machine_has_another_limit(void **state) {
    (void)state;
    struct error error;
    struct machine machine = sample_machine(one, NULL);
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("device.json"));
    machine.attend_f16 = (struct machine_by_group){4e11, 4e11};
    for (uint32_t i = 0; i < MACHINE_TYPES; i++) {
        machine.matrices[i].narrow *= 30;
        machine.matrices[i].wide *= 30;
    }
    machine.device_bytes = 64 << 20;
    machine.device_link = 1e10;
    assert_ok(machine_save(&machine, path, &error), error);
    json_t *root = planned((const char *const[]){"plan", "--machine", path, "--json", "-c", "128K", NULL});
    const json_t *choice = json_object_get(root, "choice");
    assert_string_equal(choice_text(root), "full");
    assert_string_equal(json_string_value(json_object_get(choice, "limit")), "link");
    assert_true(number(choice, "device_bytes") > 0 && number(choice, "device_bytes") < 64 << 20);
    json_decref(root);
}

/* A cache folder with the numbers of this machine, as if they had been measured. */
static const char *cache_variable(const char *name) {
    static char variable[400];
    struct error error;
    struct machine machine = sample_machine(one, NULL);
    char path[300];
    snprintf(machine.processor, sizeof machine.processor, "%s", cpu_model_name());
    cpu_mask_text(cpu_default(), machine.kernels, sizeof machine.kernels);
    machine.thread_count = 2;
    machine.memory.all = 0; /* by which the others would be found wrong */
    machine.threads[0] = sample_machine_threads(2, 2); /* one thread is the quicker number */
    machine.threads[1] = (struct machine_threads){0};
    snprintf(path, sizeof path, "%s", scratch_path(name));
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(variable, sizeof variable, "XDG_CACHE_HOME=%s", path);
    snprintf(path + strlen(path), sizeof path - strlen(path), "/loam");
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path + strlen(path), sizeof path - strlen(path), "/machine.json");
    assert_ok(machine_save(&machine, path, &error), error);
    return variable;
}

static struct process_result run_with(const char *environment, const char *const *arguments) {
    struct process_result result =
        process_run(&(struct process_request){.arguments = arguments, .environment = environment});
    if (result.code != 0) fail_msg("%d: %s", result.code, result.complaints);
    return result;
}
#define RUN_WITH(environment, ...)                                                                  \
    run_with(environment, (const char *const[]){"run", "-p", "once", "-n", "3", "-t", "2", "--raw", \
                                                "--temp", "0", __VA_ARGS__, NULL})

static void what_is_refused_is_not_measured_for(void **state) {
    (void)state;
    static const char *const arguments[] = {"plan", "-q", "--loss", "7", NULL};
    char nowhere[400], folder[200];
    snprintf(folder, sizeof folder, "%s", scratch_path("refused"));
    snprintf(nowhere, sizeof nowhere, "XDG_CACHE_HOME=%s", folder);
    struct process_result result =
        process_run(&(struct process_request){.arguments = arguments, .environment = nowhere});
    assert_int_equal(result.code, 2);
    assert_non_null(strstr(result.complaints, "loss: found '7'"));
    assert_int_equal(access(folder, F_OK), -1);
    process_deinit(&result);
}

/* `run` takes what auto stands for: exactly what full says, without a word, unless a loss is allowed. */
static void a_run_takes_the_choice(void **state) {
    (void)state;
    char nowhere[400], folder[200];
    snprintf(folder, sizeof folder, "%s", scratch_path("no-cache"));
    snprintf(nowhere, sizeof nowhere, "XDG_CACHE_HOME=%s", folder);
    struct process_result full = RUN_WITH(nowhere, "--preset", "full"),
                          plain = RUN_WITH(nowhere, "-ub", "512"),
                          named = RUN_WITH(nowhere, "--preset", "auto");
    assert_string_equal(plain.output, full.output);
    assert_string_equal(named.output, full.output);
    assert_null(strstr(plain.complaints, "auto"));
    assert_int_equal(access(folder, F_OK), -1); /* nothing was measured */
    struct process_result lossy = RUN_WITH(cache_variable("cache"), "--loss", "0.05", "-n", "40");
    if (strstr(lossy.complaints, "note: --preset auto: ") == NULL) fail_msg("%s", lossy.complaints);
    assert_null(strstr(lossy.complaints, "measuring"));
    assert_null(strstr(lossy.complaints, "threads")); /* -t is given */
    process_deinit(&full);
    process_deinit(&plain);
    process_deinit(&named);
    process_deinit(&lossy);
}

/* ... its number of threads, too, with the same answer. */
static void a_run_takes_the_threads(void **state) {
    (void)state;
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("run.json"));
    const char *const arguments[] = {"run",    "-p",       "once", "-n",     "3",  "--raw", "--temp", "0",
                                     "--json", path, "--preset", "auto", NULL};
    if (cpu_count() != 2) skip(); /* the numbers are those of two threads */
    struct process_result chosen = run_with(cache_variable("threads"), arguments),
                          full = LOAM("run", "-p", "once", "-n", "3", "--raw", "--temp", "0");
    if (strstr(chosen.complaints, "1 of 2 threads") == NULL) fail_msg("%s", chosen.complaints);
    assert_string_equal(chosen.output, full.output);
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL) fail_msg("%s", error.text);
    assert_int_equal(number(json_object_get(root, "plan"), "threads"), 1);
    json_decref(root);
    process_deinit(&chosen);
    process_deinit(&full);
}

/* Bytes that steps read from a disk with so many bytes a second of 16 KiB for one of 4 KiB. */
static double bytes_read(const char *name, double faster) {
    char folder[200], path[300];
    struct error error;
    struct machine machine = sample_machine(one, NULL);
    const char *variable = cache_variable(name);
    for (size_t i = 0; i < MACHINE_DISK_DEPTHS; i++)
        machine.disk.read[1][i] = faster * machine.disk.read[0][i];
    snprintf(path, sizeof path, "%s/loam/machine.json", strchr(variable, '=') + 1);
    assert_ok(machine_save(&machine, path, &error), error);
    snprintf(folder, sizeof folder, "%s-kv", scratch_path(name));
    const char *const arguments[] = {"bench", "-p",       "0",      "-n",    "3",         "-d",
                                     "4000",  "-r",       "1",      "-t",    "1",         "--no-warmup",
                                     "-q",    "--preset", "hata",   "--keep", "256",      "--set",
                                     "list_buffer=0", "--fill-random", "--kv-host", "6M", "--kv-disk", folder,
                                     "-o",    "json",     NULL};
    struct process_result result = run_with(variable, arguments);
    json_error_t bad;
    json_t *root = json_loads(result.output, 0, &bad);
    if (root == NULL) fail_msg("%s: %s", bad.text, result.output);
    const double bytes = number(json_array_get(root, 0), "kv_read_bytes");
    json_decref(root);
    process_deinit(&result);
    return bytes;
}

/* What lies between two wanted parts of a page is read where this machine's disk takes longer for a request. */
static void reads_go_by_the_machines_disk(void **state) {
    (void)state;
    process_binary = LOAM_LAB_BINARY;
    const double apart = bytes_read("free-requests", 1), together = bytes_read("free-bytes", 4);
    if (!(apart > 0 && together > 1.1 * apart)) fail_msg("%.0f and %.0f bytes", apart, together);
    process_binary = LOAM_BINARY;
}

enum { REQUESTS = 3 };

static void write_requests(const char *path) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < REQUESTS; i++)
        fprintf(file,
                "{\"custom_id\": \"%d\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "
                "{\"prompt\": \"The king number %d\", \"max_tokens\": 8, \"temperature\": 0}}\n",
                i, i);
    assert_int_equal(fclose(file), 0);
}

/* The text of each answer, by its id; the caller frees. */
static void read_answers(const char *path, char *texts[REQUESTS]) {
    char line[4096];
    size_t count = 0;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    for (; fgets(line, sizeof line, file) != NULL; count++) {
        json_t *root = json_loads(line, 0, NULL);
        const json_t *body = json_object_get(json_object_get(root, "response"), "body");
        const char *text = text_of(json_array_get(json_object_get(body, "choices"), 0), "text");
        texts[text_of(root, "custom_id")[0] - '0'] = strdup(text);
        json_decref(root);
    }
    fclose(file);
    assert_int_equal(count, REQUESTS);
}

/* ... and `batch` how many requests go together, unless -np says it. */
static void a_batch_takes_the_sequences(void **state) {
    (void)state;
    char requests[200], auto_path[200], given_path[200], plain_path[200], *texts[3][REQUESTS] = {{NULL}};
    snprintf(requests, sizeof requests, "%s", scratch_path("requests.jsonl"));
    snprintf(auto_path, sizeof auto_path, "%s", scratch_path("auto.jsonl"));
    snprintf(given_path, sizeof given_path, "%s", scratch_path("given.jsonl"));
    snprintf(plain_path, sizeof plain_path, "%s", scratch_path("plain.jsonl"));
    write_requests(requests);
    const char *cache = cache_variable("batch");
    struct process_result chosen = run_with(
        cache, (const char *const[]){"batch", "-i", requests, "-o", auto_path, "-c", "256", "-t", "2", "--preset",
                                     "auto", NULL});
    if (strstr(chosen.complaints, "sequences together") == NULL) fail_msg("%s", chosen.complaints);
    struct process_result given = run_with(
        cache, (const char *const[]){"batch", "-i", requests, "-o", given_path, "-c", "256", "-t", "2", "--preset",
                                     "auto", "-np", "2", NULL});
    assert_null(strstr(given.complaints, "together"));
    struct process_result plain =
        run_with(cache, (const char *const[]){"batch", "-i", requests, "-o", plain_path, "-c", "256", NULL});
    assert_null(strstr(plain.complaints, "auto"));
    read_answers(auto_path, texts[0]);
    read_answers(given_path, texts[1]);
    read_answers(plain_path, texts[2]);
    for (size_t i = 0; i < REQUESTS; i++) {
        assert_string_equal(texts[0][i], texts[2][i]);
        assert_string_equal(texts[1][i], texts[2][i]);
        for (size_t j = 0; j < 3; j++) free(texts[j][i]);
    }
    process_deinit(&chosen);
    process_deinit(&given);
    process_deinit(&plain);
}

/* The example in the source: of data sheets.  The whole of a long context does not fit its device. */
static void the_example_can_be_planned_for(void **state) {
    (void)state;
    static const char path[] = LOAM_SOURCE_DIR "/bench/machines/gpu-8gb.json";
    json_t *root = planned((const char *const[]){"plan", "--machine", path, "--json", "-c", "128K", NULL});
    assert_string_equal(choice_text(root), "full");
    const json_t *choice = json_object_get(root, "choice");
    assert_true(number(choice, "device_bytes") > 0 && number(choice, "device_bytes") < 8e9);
    json_decref(root);
}

static void what_cannot_be_is_one_line(void **state) {
    (void)state;
    process_binary = LOAM_LAB_BINARY;
    static const struct {
        const char *arguments[10];
        int code;
        const char *expected;
    } cases[] = {
        {{"plan", "--machine", "no-such-file.json"}, 6, "no-such-file.json"},
        {{"plan", "--machine", damaged_path}, 2, "damaged.json"},
        {{"plan", "--machine", machine_path, "--measure"}, 2, "--machine and --measure"},
        {{"plan", "--machine", machine_path, "--measure-disk"}, 2, "--measure-disk: expected --kv-disk"},
        {{"plan", "--machine", machine_path, "-m", "no-such.gguf"}, 6, "no-such.gguf"},
        {{"plan", "-q", "--machine", machine_path, "-c", "128K", "--kv-host", "1M"}, 5, "131072"},
        {{"plan", "--machine", machine_path, "-c", "-1"}, 2, "-c"},
        {{"plan", "-q", "--machine", machine_path, "-t", "3"}, 2, "numbers of 4 threads, none of 3"},
        {{"plan", "-q", "--machine", machine_path, "--weights-host", "1K"}, 5, "--weights-host: 0 MiB"},
        {{"plan", "-q", "--machine", machine_path, "--loss", "7"}, 2, "loss: found '7'"},
        {{"plan", "-q", "--machine", machine_path, "--kld", "x"}, 2, "--kld: found 'x', expected nats"},
        {{"run", "-q", "-p", "x", "--preset", "hata", "--kld", "0.1"}, 2, "--kld: found --preset hata"},
        {{"perplexity", "-q", "-f", machine_path, "--preset", "auto"}, 2, "--preset auto: this command"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct process_result result =
            process_run(&(struct process_request){.arguments = cases[i].arguments});
        if (result.code != cases[i].code || strstr(result.complaints, cases[i].expected) == NULL)
            fail_msg("case %zu: %d: %s", i, result.code, result.complaints);
        const char *end = strchr(result.complaints, '\n');
        if (end == NULL || end[1] != 0) fail_msg("case %zu: %s", i, result.complaints);
        assert_int_equal(result.output_bytes, 0);
        process_deinit(&result);
    }
    process_binary = LOAM_BINARY;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_and_the_choice_are_printed),
        cmocka_unit_test(the_choice_is_a_command),
        cmocka_unit_test(what_is_lost_is_a_command),
        cmocka_unit_test(a_busy_machine_is_doubted),
        cmocka_unit_test(nothing_is_lost_unless_it_is_allowed),
        cmocka_unit_test(tiers_are_filled),
        cmocka_unit_test(another_machine_has_another_limit),
        cmocka_unit_test(what_a_plan_runs_with_is_said),
        cmocka_unit_test(weights_that_do_not_fit),
        cmocka_unit_test(what_is_refused_is_not_measured_for),
        cmocka_unit_test(a_run_takes_the_choice),
        cmocka_unit_test(a_run_takes_the_threads),
        cmocka_unit_test(reads_go_by_the_machines_disk),
        cmocka_unit_test(a_batch_takes_the_sequences),
        cmocka_unit_test(the_example_can_be_planned_for),
        cmocka_unit_test(what_cannot_be_is_one_line),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

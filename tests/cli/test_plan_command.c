/* `loam plan`, as a user runs it, for a machine whose numbers are given. */
#include "testing.h"

#include <jansson.h>
#include <stdio.h>
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
static const char *cache_variable(void) {
    static char variable[400];
    struct error error;
    struct machine machine = sample_machine(one, NULL);
    char path[300];
    snprintf(machine.processor, sizeof machine.processor, "%s", cpu_model_name());
    cpu_mask_text(cpu_features(), machine.kernels, sizeof machine.kernels);
    machine.thread_count = 2;
    snprintf(path, sizeof path, "%s", scratch_path("cache"));
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
    struct process_result lossy = RUN_WITH(cache_variable(), "--loss", "0.05", "-n", "40");
    if (strstr(lossy.complaints, "note: --preset auto: ") == NULL) fail_msg("%s", lossy.complaints);
    assert_null(strstr(lossy.complaints, "measuring"));
    process_deinit(&full);
    process_deinit(&plain);
    process_deinit(&named);
    process_deinit(&lossy);
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
    static const struct {
        const char *arguments[10];
        int code;
        const char *expected;
    } cases[] = {
        {{"plan", "--machine", "no-such-file.json"}, 6, "no-such-file.json"},
        {{"plan", "--machine", damaged_path}, 2, "damaged.json"},
        {{"plan", "--machine", machine_path, "--measure"}, 2, "--machine and --measure"},
        {{"plan", "--machine", machine_path, "-m", "no-such.gguf"}, 6, "no-such.gguf"},
        {{"plan", "-q", "--machine", machine_path, "-c", "128K", "--kv-host", "1M"}, 5, "131072"},
        {{"plan", "--machine", machine_path, "-c", "-1"}, 2, "-c"},
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
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_and_the_choice_are_printed),
        cmocka_unit_test(nothing_is_lost_unless_it_is_allowed),
        cmocka_unit_test(tiers_are_filled),
        cmocka_unit_test(another_machine_has_another_limit),
        cmocka_unit_test(a_run_takes_the_choice),
        cmocka_unit_test(the_example_can_be_planned_for),
        cmocka_unit_test(what_cannot_be_is_one_line),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

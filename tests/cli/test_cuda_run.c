/* loam run --device, on cards that the fake driver has, or has not (docs/fake_driver.md). */
#include "testing.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/process.h"
#include "device/cuda/images.h"
#include "plan/sample_machine.h"

#define MODEL LOAM_SOURCE_DIR "/models/loam-nano.gguf"

/* card: FAKE_CUDA's; NULL: there is no driver. */
static struct process_result run_on(const char *card, const char *device, const char *more) {
    assert_int_equal(setenv("LD_LIBRARY_PATH", card != NULL ? FAKE_FOLDER : "/nonexistent", 1), 0);
    assert_int_equal(setenv("FAKE_CUDA", card != NULL ? card : "", 1), 0);
    return LOAM("run", "-m", MODEL, "--device", device, "-t", "1", "-c", "128", "--raw", "--temp", "0", "-n",
                "6", "-p", "The river is", "--quiet", more);
}

static void expect_failure(const char *card, const char *device, const char *more, int code,
                           const char *line) {
    struct process_result result = run_on(card, device, more);
    if (result.code != code)
        fail_msg("%s: exit code %d, expected %d: %s", card, result.code, code, result.complaints);
    const char *end = strchr(result.complaints, '\n');
    if (strncmp(result.complaints, "loam: ", 6) != 0 || end == NULL || end[1] != '\0')
        fail_msg("%s: expected one line, found: %s", card, result.complaints);
    if (strstr(result.complaints, line) == NULL)
        fail_msg("%s: no '%s' in: %s", card, line, result.complaints);
    process_deinit(&result);
}

static char *text_of(const char *card, const char *device) {
    struct process_result result = run_on(card, device, NULL);
    if (result.code != 0) fail_msg("%s: exit code %d: %s", device, result.code, result.complaints);
    assert_string_equal(result.complaints, "");
    char *text = strdup(result.output);
    process_deinit(&result);
    return text;
}

static void test_nothing_there(void **state) {
    (void)state;
    expect_failure(NULL, "cuda", NULL, 1, "cuda: no NVIDIA driver: libcuda.so.1");
    expect_failure("devices=0", "cuda", NULL, 1, "cuda: no NVIDIA GPU was found");
    expect_failure("seed=1", "cuda:1", NULL, 2, "cuda: there is no device 1, expected one of 1");
    expect_failure("seed=1", "cuda", "--n-gpu-layers=x", 2, "found 'x', expected a whole number or all");
    expect_failure("seed=1", "gpu", NULL, 2, "device gpu: expected auto, cpu, cuda or cuda:N");
    if (cuda_image_count == 0)
        expect_failure("seed=1", "cuda", NULL, 1, "cuda: this build has no kernels: there was no clang-19");
    /* who asks for layers there is told why there are none */
    assert_int_equal(setenv("LD_LIBRARY_PATH", FAKE_FOLDER, 1), 0);
    assert_int_equal(setenv("FAKE_CUDA", "version=11080", 1), 0);
    struct process_result old =
        LOAM("run", "-m", MODEL, "-ngl", "9", "-t", "1", "-c", "128", "--raw", "-n", "1", "-p", "The");
    assert_int_equal(old.code, 0);
    assert_true(strncmp(old.complaints, "loam: note: cuda: the NVIDIA driver is of CUDA 11.8, expected", 61) == 0);
    process_deinit(&old);
    char *none = text_of(NULL, "auto"), *cpu = text_of(NULL, "cpu");
    assert_string_equal(none, cpu);
    assert_int_equal(setenv("LD_LIBRARY_PATH", FAKE_FOLDER, 1), 0);
    assert_int_equal(setenv("FAKE_CUDA", "memory=64M", 1), 0);
    struct process_result small =
        LOAM("run", "-m", MODEL, "--device", "auto", "-t", "1", "-c", "128", "--raw", "--temp", "0", "-n", "6",
             "-p", "The river is");
    assert_string_equal(small.output, cpu);
    if (cuda_image_count > 0) /* what the weights need is not what all needs */
        assert_true(strncmp(small.complaints,
                            "loam: note: cuda:0 is not used: 64.00 MiB of its memory are free, the weights need 10.7",
                            87) == 0 &&
                    strstr(small.complaints, " MiB, all else at least 256.00 MiB\n") != NULL);
    process_deinit(&small);
    free(none), free(cpu);
}

static void test_same_text(void **state) {
    (void)state;
    if (cuda_image_count == 0) skip();
    char *cpu = text_of(NULL, "cpu"), *cuda = text_of("seed=2,capability=90", "cuda");
    assert_true(strlen(cpu) > 5);
    assert_string_equal(cuda, cpu);
    /* K and V that the card does not hold are in RAM. */
    struct process_result in_ram = run_on("memory=64M", "cuda", "--ctx-size=32768");
    if (in_ram.code != 0) fail_msg("exit code %d: %s", in_ram.code, in_ram.complaints);
    assert_string_equal(in_ram.output, cpu);
    process_deinit(&in_ram);
    static const char *const layers[] = {"--n-gpu-layers=1", "--n-gpu-layers=all", "--n-gpu-layers=-1"};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        struct process_result split = run_on("memory=64M", i == 0 ? "cuda" : "CUDA0", layers[i]);
        assert_string_equal(split.output, cpu);
        process_deinit(&split);
    }
    struct process_result none = run_on("fail=any:1:999", "cuda", "--n-gpu-layers=0"); /* no call was made */
    assert_string_equal(none.output, cpu);
    process_deinit(&none);
    free(cpu), free(cuda);
}

static void test_faults(void **state) {
    (void)state;
    if (cuda_image_count == 0) skip();
    /* auto takes the card, for one that fails is noticed; but not where the preset chooses */
    expect_failure("fail=kernel:60:719", "auto", NULL, 1, "CUDA_ERROR_LAUNCH_FAILED");
    struct process_result result = run_on("fail=kernel:60:719", "auto", "--preset=meanstd");
    assert_int_equal(result.code, 0);
    process_deinit(&result);
    /* while the weights are on their way: the processor has them */
    char *cpu = text_of(NULL, "cpu"), *left = text_of("fail=cuEventRecord:59:999", "auto");
    assert_string_equal(left, cpu);
    free(cpu), free(left);
    expect_failure("fail=cuEventRecord:59:999", "cuda", NULL, 1, "weights: cuda: a ticket: CUDA_ERROR_UNKNOWN");
    expect_failure("fail=any:900:999", "cuda", NULL, 1, "CUDA_ERROR_UNKNOWN"); /* off the bus */
    expect_failure("memory=2M", "cuda", NULL, 5, "weights: cuda: ");
    expect_failure("memory=2M", "cuda", NULL, 5, "layers it has room for 0: -ngl 0");
    expect_failure("memory=13M", "cuda", NULL, 5, "of 13.00 MiB are free, device memory of");
    expect_failure("memory=14M", "cuda", NULL, 5, "of 14.00 MiB are free, device memory of");
    expect_failure("memory=13500K", "cuda", NULL, 5, "KV cache: cuda: ");
    expect_failure("memory=13500K", "cuda", NULL, 5, "try a smaller -c, or fewer layers on cuda (-ngl)");
    /* a context that was not given is cut to the card; one that is given may lie in RAM */
    assert_int_equal(setenv("LOAM_ARG_KV_DEVICE", "64K", 1), 0);
    expect_failure("seed=1", "cuda", "--ctx-size=0", 5, "which hold 0 tokens: try -c 64 or more, which RAM holds");
    assert_int_equal(unsetenv("LOAM_ARG_KV_DEVICE"), 0);
    expect_failure("seed=1", "cuda", "--preset=hata", 1,
                   "select=hash: the cuda device cannot choose so: try --set page=8");
    expect_failure("seed=1", "cuda", "--weights-host=1M", 1,
                   "--weights-host: this device holds all weights itself");
}

/* The number behind "name": in what was printed. */
static uint64_t number_of(const struct process_result *result, const char *name) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(result->output, key);
    if (at == NULL) fail_msg("no %s in: %s", key, result->output);
    return strtoull(at + strlen(key), NULL, 10);
}

#define CARD       "seed=7,capability=90"
#define INTEGRATED ",integrated=1"

/* Steps that choose are graphs from end to end: two steps are two launches of one, of so many kernels a layer, and the
 * host has asked for no verdict.  nodes: with 7 of a layer that attends to everything, and 3 beside the layers.  In RAM
 * there are slots for units, unless the card's memory is RAM. */
static void steps_check(const char *card, const char *preset, const char *settings, bool in_ram, uint64_t nodes) {
    enum { LAYERS = 9, BESIDE = 3, STEPS = 2 };
    assert_int_equal(setenv("LD_LIBRARY_PATH", FAKE_FOLDER, 1), 0);
    assert_int_equal(setenv("FAKE_CUDA", card, 1), 0);
    struct process_result result = LOAM("bench", "-m", MODEL, "--device", "cuda", "-t", "1", "--fill-random", "-o",
                                        "jsonl", "-q", "-p", "0", "-n", "2", "-r", "1", "-d", "160", "--keep", "64",
                                        "--preset", preset, "--set", settings, "--kv-device", in_ram ? "600K" : "16M");
    if (result.code != 0) fail_msg("%s: exit code %d: %s", preset, result.code, result.complaints);
    assert_int_equal(number_of(&result, "device_replays"), STEPS);
    assert_int_equal(number_of(&result, "device_captures"), 1);
    assert_int_equal(number_of(&result, "device_launches"), STEPS * (nodes * LAYERS + BESIDE));
    assert_int_equal(number_of(&result, "select_verdicts_read"), 0);
    assert_int_equal(number_of(&result, "select_lists_read"), 0);
    if (in_ram) {
        const bool has_slots = strstr(card, INTEGRATED) == NULL;
        assert_int_equal(number_of(&result, "kv_unit_bytes") > 0, has_slots);
        assert_int_equal(number_of(&result, "kv_unit_hits") > 0, has_slots);
        assert_int_equal(number_of(&result, "kv_unit_misses") > 0, has_slots);
        assert_int_equal(number_of(&result, "kv_unit_absent"), 0);
    } else { /* lists that were taken once more, as the card has counted them */
        assert_true(number_of(&result, "hits") > 0 && number_of(&result, "misses") > 0);
    }
    process_deinit(&result);
}

static void test_selections(void **state) {
    (void)state;
    if (cuda_image_count == 0) skip();
    steps_check(CARD, "clo", "planes=1,page=8,sinks=8,recent=16,dense=0,reused=0", false, 12);
    steps_check(CARD, "meanstd", "page=16,sinks=16,recent=16,dense=0", true, 11); /* behind slots */
}

/* ---- budgets ---- */

enum { CHUNK = 64, CONTEXT = 6 * CHUNK, ROW_BYTES = 9 * 512 /* of all layers, K and V */ };

/* What the driver has given at any instant of a command; of the command's own figures: a token's K, V and key index. */
struct held {
    unsigned long long device, pinned, in_steps; /* in_steps: of the card's, up to the last one */
    uint64_t token_bytes;
    bool has_slots;
};

static struct held held_by(const char *card, const char *device_bytes, const char *host_bytes) {
    char settings[300], folder[200];
    struct held held = {.device = 0};
    snprintf(settings, sizeof settings, "%s,held=%s", card, scratch_path("held"));
    snprintf(folder, sizeof folder, "%s", scratch_path("kv"));
    assert_int_equal(setenv("LD_LIBRARY_PATH", FAKE_FOLDER, 1), 0);
    assert_int_equal(setenv("FAKE_CUDA", settings, 1), 0);
    const bool on_disk = host_bytes != NULL;
    struct process_result result =
        LOAM("bench", "-m", MODEL, "--device", "cuda", "-t", "1", "--fill-random", "-o", "jsonl", "-q", "-p", "0", "-n",
             "2", "-r", "1", "-d", "380", "--keep", "64", "--preset", "meanstd", "--set",
             "page=16,sinks=16,recent=16,dense=0", "--kv-device", device_bytes, on_disk ? "--kv-disk" : NULL, folder,
             "--kv-host", host_bytes);
    if (result.code != 0)
        fail_msg("%s, %s: exit code %d: %s", device_bytes, on_disk ? host_bytes : "", result.code, result.complaints);
    held.token_bytes = number_of(&result, "kv_bytes_per_token");
    held.has_slots = strstr(result.output, "kv_unit_bytes") != NULL;
    FILE *file = fopen(scratch_path("held"), "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu %llu %llu", &held.device, &held.pinned, &held.in_steps), 3);
    assert_int_equal(fclose(file), 0);
    process_deinit(&result);
    return held;
}

/* What the driver gives beyond that of a command which has all K and V on the card, be it for an instant: of the card's
 * memory --kv-device, of pinned memory --kv-host, and of either not much less.  A part of the latter is not pinned.
 * Above a disk there is one more stream, which has a ring of the card's memory and one that is pinned (another one once
 * a run of the key index comes back to be written, for which these contexts are too short). */
static void test_budgets(void **state) {
    (void)state;
    enum { K = 1 << 10, RING = 1 << 20, PAGES = 4 * 4096 };
    static const struct {
        const char *device, *host;
        uint64_t device_bytes, host_bytes; /* host_bytes 0: no disk */
    } plans[] = {{"1M", NULL, 1024 * K, 0},
                 {"600K", NULL, 600 * K, 0},
                 {"600K", "3400K", 600 * K, 3400 * K},
                 {"700K", "4M", 700 * K, 4096 * K}};
    uint64_t pinned_before = 0, bytes_before = 0;
    if (cuda_image_count == 0) skip();
    const struct held all = held_by(CARD, "16M", NULL);
    const uint64_t all_bytes = all.token_bytes * CONTEXT;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        const struct held held = held_by(CARD, plans[i].device, plans[i].host);
        const bool on_disk = plans[i].host_bytes > 0;
        const uint64_t most = plans[i].device_bytes + (on_disk ? RING : 0) - all_bytes, /* fewer, as it were */
                       rings = all.pinned + (on_disk ? RING : 0);
        printf("%s, %s: %lld and %lld bytes are left of the card's, %llu pinned\n", plans[i].device,
               on_disk ? plans[i].host : "RAM", (long long)(all.device + most - held.device),
               (long long)(all.in_steps + most - held.in_steps), held.pinned - (unsigned long long)rings);
        assert_in_range(held.device, all.device + most - 32 * K, all.device + most);
        assert_in_range(held.in_steps, all.in_steps + most - 32 * K, all.in_steps + most);
        if (!on_disk) { /* all rows of the context, and what becomes of them */
            assert_in_range(held.pinned, rings + ROW_BYTES * CONTEXT, rings + ROW_BYTES * CONTEXT + RING / 2);
            continue;
        }
        assert_in_range(held.pinned, rings + plans[i].host_bytes / 4, rings + plans[i].host_bytes);
        if (pinned_before > 0)
            assert_in_range(held.pinned - pinned_before, 1, plans[i].host_bytes - bytes_before + PAGES);
        pinned_before = held.pinned, bytes_before = plans[i].host_bytes;
    }
}

/* Where the card's memory is the host's nothing in RAM has slots, which would be copies of it: K and V are read where
 * they lie, also those that came from a disk. */
static void test_integrated(void **state) {
    (void)state;
    enum { SLOTS = 64 << 10 }; /* at least, with 700K */
    if (cuda_image_count == 0) skip();
    steps_check(CARD INTEGRATED, "meanstd", "page=16,sinks=16,recent=16,dense=0", true, 10);
    const struct held apart = held_by(CARD, "700K", "4M"), shared = held_by(CARD INTEGRATED, "700K", "4M");
    assert_true(apart.has_slots && !shared.has_slots);
    assert_true(shared.device + SLOTS < apart.device);
    assert_true(shared.pinned <= apart.pinned);
    char *cpu = text_of(NULL, "cpu");
    struct process_result in_ram = run_on("memory=64M" INTEGRATED, "cuda", "--ctx-size=32768");
    assert_string_equal(in_ram.output, cpu);
    process_deinit(&in_ram);
    free(cpu);
}

static double one(void *context) {
    (void)context;
    return 1;
}

/* A folder with the card's numbers, as if they had been measured, and none of the processor's. */
static void give_numbers(void) {
    char path[300], command[400];
    struct error error;
    struct machine machine = sample_machine(one, NULL);
    snprintf(machine.processor, sizeof machine.processor, "Fake GPU 0");
    machine.device_link = 1e9;
    snprintf(command, sizeof command, "mkdir -p %s", scratch_path("loam"));
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s", scratch_path("loam/machine-Fake-GPU-0.json"));
    assert_ok(machine_save(&machine, path, &error), error);
    snprintf(path, sizeof path, "%s", scratch_path("loam"));
    *strrchr(path, '/') = '\0';
    assert_int_equal(setenv("XDG_CACHE_HOME", path, 1), 0);
}

static struct process_result plan_on(const char *card, const char *more) {
    assert_int_equal(setenv("LD_LIBRARY_PATH", FAKE_FOLDER, 1), 0);
    assert_int_equal(setenv("FAKE_CUDA", card, 1), 0);
    return LOAM("plan", "-q", "-m", MODEL, "--device", "cuda", "-c", "8K", "--json", "--kv-device", "4M", more);
}

/* Three tiers, of which the card's is what it has now, and the plan within what was given for each. */
static void test_plan(void **state) {
    (void)state;
    if (cuda_image_count == 0) skip();
    give_numbers();
    struct process_result result = plan_on("memory=1G", "--kv-host=64M");
    if (result.code != 0) fail_msg("exit code %d: %s", result.code, result.complaints);
    assert_int_equal(number_of(&result, "device_bytes"), 1 << 30);
    assert_non_null(strstr(result.output, "\"processor\": \"Fake GPU 0\""));
    assert_non_null(strstr(result.output, " -c 8192 --preset full --device cuda --kv-device 4M --kv-host 64M -t "));
    struct process_result choice = result;
    choice.output = strstr(result.output, "\"choice\"");
    const uint64_t near = number_of(&choice, "device_bytes"), far = number_of(&choice, "host_bytes");
    assert_true(near > 2 << 20 && near <= 4 << 20 && far > 0 && far <= 64 << 20);
    assert_true(near + far >= number_of(&choice, "kv_bytes"));
    assert_null(strstr(choice.output, "hata")); /* which a card cannot choose by */
    process_deinit(&result);
    static const struct {
        const char *card, *more;
        int code;
        const char *line;
    } refused[] = {{"memory=1G", "--kv-host=1M", 5, "the budget is 1.00 MiB"},
                   {"memory=4M", "--kv-host=64M", 5, "loam: the weights need "},
                   {"memory=1G", "--machine=x", 2, "plan: --machine and --device: expected one of them"},
                   {"fail=cuMemcpyAsync:1:700", "--measure", 1, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        result = plan_on(refused[i].card, refused[i].more);
        const char *end = strchr(result.complaints, '\n');
        if (result.code != refused[i].code || strstr(result.complaints, refused[i].line) == NULL || end == NULL ||
            end[1] != '\0')
            fail_msg("case %zu: exit code %d: %s", i, result.code, result.complaints);
        process_deinit(&result);
    }
    assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_there), cmocka_unit_test(test_same_text),
                                       cmocka_unit_test(test_selections), cmocka_unit_test(test_budgets),
                                       cmocka_unit_test(test_integrated),
                                       cmocka_unit_test(test_plan), cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Every call that the device makes fails once, and what can happen to a card happens: one line, no crash, no leak, no
 * hang. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/cuda/fake/cuda_programs.h"
#include "platform/clock.h"
#include "seed.h"

enum { ROUNDS = 6, WAIT_LIMIT_NS = 50000000, END_SECONDS = 60 };

typedef enum status program_function(const struct program_options *options, struct program_result *result,
                                     struct error *error);
static program_function *const programs[] = {program_pipeline, program_step};
enum { PROGRAM_COUNT = 2 };

/* The limit is short only where it is to pass. */
static enum status run(program_function *program, const char *settings, enum bug bug,
                       struct program_result *result, struct error *error) {
    char text[200];
    const bool is_limited = bug == BUG_FLAG_NEVER_RAISED || strstr(settings, "stuck") != NULL;
    const struct program_options options = {.driver_file = FAKE_LIBRARY,
                                            .bug = bug,
                                            .seed = test_seed(1),
                                            .rounds = ROUNDS,
                                            .wait_limit_ns = is_limited ? WAIT_LIMIT_NS : 0};
    snprintf(text, sizeof text, "seed=%llu,%s", (unsigned long long)options.seed, settings);
    (void)setenv("FAKE_CUDA", text, 1);
    *error = (struct error){STATUS_OK, 0, ""};
    return program(&options, result, error);
}

static void expect_line(const struct error *error, const char *text, const char *settings) {
    if (strncmp(error->message, "cuda: ", 6) != 0 || strchr(error->message, '\n') != NULL ||
        strstr(error->message, text) == NULL)
        fail_msg("FAKE_CUDA=%s: \"%s\", expected one line with \"%s\"", settings, error->message, text);
}

static const char without_waits[] = "cuda: Fake GPU 0: a recorded step cannot wait for the host";

/* ---- calls ---- */

/* What gives something back: nothing can be done about a failure, which then leaves it behind. */
static bool gives_back(const char *symbol) {
    static const char *const parts[] = {"Free",       "Destroy", "Unload",
                                        "Unregister", "Release", "cuCtxSetCurrent"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strstr(symbol, parts[i]) != NULL) return true;
    return false;
}

/* Without memory of its own that the card takes, a program has the driver's; a step that is not changed is made
 * anew; where a stream cannot wait, which its first waits show, the host does. */
static bool is_done_without(const char *symbol, uint64_t number) {
    static const char *const symbols[] = {"cuStreamQuery", "cuDriverGetVersion", "cuMemHostRegister_v2",
                                          "cuMemHostGetDevicePointer_v2",
                                          "cuGraphExecKernelNodeSetParams_v2"};
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        if (strcmp(symbol, symbols[i]) == 0) return true;
    static const char *const probed[] = {"cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2", "cuGraphCreate",
                                         "cuGraphAddBatchMemOpNode"};
    for (size_t i = 0; i < sizeof probed / sizeof probed[0]; i++)
        if (number == 1 && strcmp(symbol, probed[i]) == 0) return true;
    return false;
}

static void fail_call(program_function *program, const char *symbol, uint64_t number, int code,
                      const char *name) {
    char settings[120];
    struct program_result result;
    struct error error;
    snprintf(settings, sizeof settings, "capability=90,fail=%s:%llu:%d", symbol, (unsigned long long)number,
             code);
    const enum status status = run(program, settings, BUG_NONE, &result, &error);
    if (status == STATUS_OK && !result.is_right)
        fail_msg("FAKE_CUDA=%s: a wrong result and no error", settings);
    if (status == STATUS_UNSUPPORTED && is_done_without(symbol, number)) name = without_waits;
    if (status != STATUS_OK) expect_line(&error, name, settings);
    if (status == STATUS_OK && !gives_back(symbol) && !is_done_without(symbol, number))
        fail_msg("FAKE_CUDA=%s: no error", settings);
    /* a context that met a fatal error gives back nothing but itself */
    if (code < 700 && !gives_back(symbol) && result.leak_count != 0)
        fail_msg("FAKE_CUDA=%s: %llu left behind", settings, (unsigned long long)result.leak_count);
    assert_false(result.was_stuck);
}

static void test_calls(void **state) {
    (void)state;
    bool is_called[PROGRAM_SYMBOL_COUNT] = {false};
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        struct program_result clean;
        struct error error;
        assert_ok(run(programs[p], "capability=90", BUG_NONE, &clean, &error), error);
        assert_true(clean.is_right);
        for (int i = 0; i < PROGRAM_SYMBOL_COUNT; i++) {
            const uint64_t count = clean.calls[i], numbers[] = {1, count / 2, count};
            is_called[i] = is_called[i] || count > 0;
            for (int n = 0; n < 3; n++) {
                if (numbers[n] == 0 || numbers[n] > count || (n > 0 && numbers[n] <= numbers[n - 1]))
                    continue;
                fail_call(programs[p], program_symbols[i], numbers[n], 1, "CUDA_ERROR_INVALID_VALUE");
                fail_call(programs[p], program_symbols[i], numbers[n], 719, "CUDA_ERROR_LAUNCH_FAILED");
            }
        }
    }
    for (int i = 0; i < PROGRAM_SYMBOL_COUNT; i++) { /* the programs leave nothing out */
        const char *symbol = program_symbols[i];
        if (strcmp(symbol, "cuGetErrorName") == 0 ||
            strcmp(symbol, "cuGetErrorString") == 0 || /* after errors */
            strcmp(symbol, "cuMemGetInfo_v2") == 0)
            continue;
        if (!is_called[i]) fail_msg("%s is never called", symbol);
    }
}

/* The n-th call, whatever it is, for one n in STRIDE: with each, something else is under way. */
static void test_any_call(void **state) {
    (void)state;
    enum { STRIDE = 7 };
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        struct program_result clean, result;
        struct error error;
        uint64_t count = 0;
        assert_ok(run(programs[p], "", BUG_NONE, &clean, &error), error);
        for (int i = 0; i < PROGRAM_SYMBOL_COUNT; i++) count += clean.calls[i];
        for (uint64_t n = 1 + test_seed(1) % STRIDE; n <= count; n += STRIDE)
            for (int code = 1; code <= 999; code += 998) {
                char settings[80];
                snprintf(settings, sizeof settings, "fail=any:%llu:%d", (unsigned long long)n, code);
                const enum status status = run(programs[p], settings, BUG_NONE, &result, &error);
                if (status == STATUS_OK && !result.is_right)
                    fail_msg("FAKE_CUDA=%s: a wrong result and no error", settings);
                if (status != STATUS_OK)
                    expect_line(&error, status == STATUS_UNSUPPORTED ? without_waits : "CUDA_ERROR_", settings);
                assert_false(result.was_stuck);
            }
    }
}

/* ---- the card ---- */

static void expect_failure(program_function *program, const char *settings, enum bug bug,
                           enum status expected, const char *text, bool is_clean) {
    struct program_result result;
    struct error error;
    const uint64_t begin_ns = clock_ns();
    assert_int_equal(run(program, settings, bug, &result, &error), expected);
    expect_line(&error, text, settings);
    if (is_clean) assert_int_equal(result.leak_count, 0);
    assert_false(result.was_stuck);
    assert_true(clock_ns() - begin_ns < (uint64_t)30000000000u);
}

static void test_card(void **state) {
    (void)state;
    expect_failure(program_pipeline, "memory=8K", BUG_NONE, STATUS_MEMORY,
                   "cuda: 0 B of 8.00 KiB are free, device memory of 384 B: CUDA_ERROR_OUT_OF_MEMORY", true);
    expect_failure(program_pipeline, "capability=75", BUG_NONE, STATUS_UNSUPPORTED,
                   "device 0, Fake GPU 0, has compute capability 7.5, expected 8.0 or newer", true);
    /* a kernel fails while the host goes on */
    expect_failure(program_pipeline, "fail=kernel:5:719", BUG_NONE, STATUS_FAILED, "CUDA_ERROR_LAUNCH_FAILED",
                   false);
    expect_failure(program_step, "fail=kernel:9:700", BUG_NONE, STATUS_FAILED, "CUDA_ERROR_ILLEGAL_ADDRESS",
                   false);
    /* the card is gone: whatever call comes next */
    expect_failure(program_pipeline, "fail=any:300:999", BUG_NONE, STATUS_FAILED, "CUDA_ERROR_UNKNOWN",
                   false);
    /* a page that never comes: the watchdog raises its flag, and the stream runs dry */
    expect_failure(program_step, "", BUG_FLAG_NEVER_RAISED, STATUS_FAILED, "a flag is at 0, expected 1",
                   true);
}

/* A word of the probe that is lost, or a call of it that fails, and nothing else with it: the device does without. */
static void test_without_waits(void **state) {
    (void)state;
    static const char *const ways[] = {"lose=1", "waits=0", "fail=cuStreamWriteValue32_v2:1:1",
                                       "fail=cuStreamWriteValue32_v2:1:800", "fail=cuStreamWaitValue32_v2:1:2",
                                       "fail=cuGraphAddBatchMemOpNode:1:801"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct program_result result;
        struct error error;
        assert_ok(run(program_pipeline, ways[i], BUG_NONE, &result, &error), error);
        assert_true(result.is_right);
        assert_int_equal(run(program_step, ways[i], BUG_NONE, &result, &error), STATUS_UNSUPPORTED);
        assert_string_equal(error.message, without_waits);
        assert_int_equal(result.leak_count, 0);
    }
    expect_failure(program_pipeline, "fail=cuStreamWriteValue32_v2:1:999", BUG_NONE, STATUS_FAILED,
                   "opening a device: CUDA_ERROR_UNKNOWN", false);
}

/* A kernel that never ends: the program comes back, and leaves the card alone, since every call that frees would wait
 * for it.  In a process of its own, which ends with the card in that state. */
static void test_stuck(void **state) {
    (void)state;
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        fflush(stdout);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct program_result result;
            struct error error;
            end_at_failure();
            (void)alarm(END_SECONDS);
            const enum status status = run(programs[p], "stuck=3", BUG_NONE, &result, &error);
            _exit(status == STATUS_FAILED && result.was_stuck &&
                          strstr(error.message, "no progress for") != NULL
                      ? 0
                      : 1);
        }
        int end = 0;
        assert_int_equal(waitpid(child, &end, 0), child);
        assert_true(WIFEXITED(end) && WEXITSTATUS(end) == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls), cmocka_unit_test(test_any_call),
                                       cmocka_unit_test(test_card), cmocka_unit_test(test_without_waits),
                                       cmocka_unit_test(test_stuck)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

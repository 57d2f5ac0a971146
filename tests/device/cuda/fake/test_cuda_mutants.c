/* Bugs that were put into the example programs on purpose: the fake driver shows each of them, with whatever seed. */
#include "testing.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/cuda/fake/cuda_programs.h"
#include "seed.h"

enum { SEEDS = 20, WAIT_LIMIT_NS = 20000000, END_SECONDS = 60 };

static const char *const names[BUG_COUNT] = {
    [BUG_NONE] = "none",
    [BUG_INPUT_OVERWRITTEN] = "input overwritten",
    [BUG_SLOT_EVICTED] = "slot evicted",
    [BUG_UPLOAD_NOT_AWAITED] = "upload not awaited",
    [BUG_OUTPUT_OVERWRITTEN] = "output overwritten",
    [BUG_KERNEL_NOT_AWAITED] = "kernel not awaited",
    [BUG_RESULT_READ_EARLY] = "result read early",
    [BUG_TICKET_TOO_EARLY] = "ticket too early",
    [BUG_TICKET_OF_ANOTHER] = "ticket of another",
    [BUG_WAIT_ON_WRONG_STREAM] = "wait on wrong stream",
    [BUG_COPY_TOO_SHORT] = "copy too short",
    [BUG_GRID_TOO_SHORT] = "grid too short",
    [BUG_WRONG_SLOT] = "wrong slot",
    [BUG_NOT_CLEARED] = "not cleared",
    [BUG_HOST_TOUCHES_DEVICE] = "host touches device",
    [BUG_FREED_TOO_EARLY] = "freed too early",
    [BUG_COPY_FROM_STACK] = "copy from stack",
    [BUG_BEYOND_THE_END] = "beyond the end",
    [BUG_FLAG_RAISED_EARLY] = "flag raised early",
    [BUG_FLAG_NEVER_RAISED] = "flag never raised",
    [BUG_FLAG_NOT_LOWERED] = "flag not lowered",
    [BUG_FLAG_NOT_AWAITED] = "flag not awaited",
    [BUG_NO_DEPENDENCY_WAIT] = "no dependency wait",
    [BUG_FORK_NOT_AWAITED] = "fork not awaited",
    [BUG_JOIN_NOT_AWAITED] = "join not awaited",
    [BUG_BLOCK_OVERWRITTEN] = "block overwritten",
    [BUG_ANSWER_FLAG_EARLY] = "answer flag early",
    [BUG_ANSWER_FLAG_MISSING] = "answer flag missing",
    [BUG_NOT_REPLAYED] = "not replayed",
    [BUG_TURN_ANSWERED_EARLY] = "turn answered early",
    [BUG_TURN_NOT_AWAITED] = "turn not awaited",
    [BUG_TURN_NOT_LOWERED] = "turn not lowered",
};

/* In a process of its own, since some end with a signal. */
static bool is_right(enum bug bug, uint64_t seed) {
    char text[40];
    snprintf(text, sizeof text, "seed=%llu,capability=90", (unsigned long long)seed);
    (void)setenv("FAKE_CUDA", text, 1);
    fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct program_result result;
        struct error error;
        const struct program_options options = {.driver_file = FAKE_LIBRARY,
                                                .bug = bug,
                                                .seed = seed,
                                                .wait_limit_ns =
                                                    bug == BUG_FLAG_NEVER_RAISED ? WAIT_LIMIT_NS : 0};
        const int nowhere = open("/dev/null", O_WRONLY);
        (void)dup2(nowhere, STDERR_FILENO);
        (void)alarm(END_SECONDS);
        end_at_failure();
        (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer's takes its time */
        const bool is_step = bug >= BUG_FLAG_RAISED_EARLY;
        const enum status status = (is_step ? program_step : program_pipeline)(&options, &result, &error);
        _exit(status == STATUS_OK && result.is_right ? 0 : 1);
    }
    int state = 0;
    assert_int_equal(waitpid(child, &state, 0), child);
    if (WIFSIGNALED(state) && WTERMSIG(state) == SIGALRM) fail_msg("%s: hung with %s", names[bug], text);
    return WIFEXITED(state) && WEXITSTATUS(state) == 0;
}

static void test_mutants(void **state) {
    (void)state;
    const uint64_t first = test_seed(1);
    for (uint64_t seed = first; seed < first + SEEDS; seed++) assert_true(is_right(BUG_NONE, seed));
    int missed = 0;
    for (int bug = BUG_NONE + 1; bug < BUG_COUNT; bug++) {
        uint64_t green = 0;
        for (uint64_t seed = first; seed < first + SEEDS; seed++) green += is_right((enum bug)bug, seed);
        if (green > 0)
            printf("%s: not seen with %llu of %d seeds\n", names[bug], (unsigned long long)green, SEEDS);
        missed += green > 0;
    }
    assert_int_equal(missed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

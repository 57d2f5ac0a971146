/* Under ThreadSanitizer, with which this test is built in every build, a fibre is a thread: a race between
 * threads of a block is named by the lines of the kernel, and a kernel without one is quiet. */
#include "seed.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/cuda/executor.h"
#include "device/cuda/planted.h"

/* A child of this test has no threads to wait for at its end. */
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void) {
    return "atexit_sleep_ms=0";
}

static _Alignas(16) uint16_t a[16 * PLANTED_K], b[16 * PLANTED_K];
static float d[16 * 16], sums[16], input;
static char text[65536];
static _Alignas(16) uint16_t tiles_x[TILES_ROWS * TILES_K], tiles_w[TILES_OUTPUTS * TILES_K];
static float tiles_d[TILES_ROWS * TILES_OUTPUTS];

static void tiles_run(void) {
    struct planted_tiles_args args = {.w = (uintptr_t)tiles_w, .d = (uintptr_t)tiles_d};
    const uint32_t grid[3] = {1, 1, 1}, block[3] = {TILES_THREADS, 1, 1};
    executor_tensor_map(&args.x, tiles_x, TILES_K, TILES_ROWS, TILES_ROWS);
    executor_launch(executor_find("planted_tiles"), grid, block, TILES_SHARED, &args, test_seed(1));
}

static void product_run(enum planted_bug bug, uint64_t seed) {
    struct planted_args args = {
        (uintptr_t)a, (uintptr_t)b, (uintptr_t)d, (uintptr_t)sums, (uintptr_t)&input, bug, 0};
    const uint32_t grid[3] = {2, 1, 1}, block[3] = {PLANTED_THREADS, 1, 1};
    executor_launch(executor_find("planted_product"), grid, block, 2304, &args, seed);
}

/* What the sanitizer says, in `text`. */
static void run_apart(enum planted_bug bug, uint64_t seed) {
    int ends[2], result;
    size_t length = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        product_run(bug, seed);
        if (bug == PLANTED_NONE) tiles_run();
        exit(0);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)got;
    text[length] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &result, 0), child);
}

static void races_are_named(void **state) {
    (void)state;
    static const enum planted_bug bugs[] = {PLANTED_BARRIER, PLANTED_REUSE};
    for (size_t i = 0; i < sizeof bugs / sizeof bugs[0]; i++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            run_apart(bugs[i], test_seed(1) + seed);
            if (strstr(text, "data race") == NULL || strstr(text, "planted.cu:") == NULL)
                fail_msg("bug %d, seed %llu: %s", bugs[i], (unsigned long long)seed, text);
        }
}

static void right_ones_are_quiet(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        run_apart(PLANTED_NONE, test_seed(1) + seed);
        if (strstr(text, "data race") != NULL) fail_msg("seed %llu: %s", (unsigned long long)seed, text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(races_are_named),
        cmocka_unit_test(right_ones_are_quiet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

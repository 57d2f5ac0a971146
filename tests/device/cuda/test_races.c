/* Under ThreadSanitizer, with which this test is built in every build, a fibre is a thread: a race between
 * threads of a block is named by the lines of the kernel, and a kernel without one is quiet. */
#define RACES_ARE_NAMED
#include "planted_runs.h"

#include <stdlib.h>

#include "device/cuda/kernels_sm90a.h"
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

/* Products of experts by wgmma (plant.py): a tile of 65 rows, whose stages go round. */
enum { EXPERTS_COLUMNS = 512, EXPERTS_ROWS = 65, EXPERTS_OUTPUTS = 128 };
static struct {
    _Alignas(16) uint16_t x[EXPERTS_ROWS * EXPERTS_COLUMNS], w[EXPERTS_OUTPUTS * EXPERTS_COLUMNS];
    float scales[EXPERTS_ROWS], y[EXPERTS_ROWS * EXPERTS_OUTPUTS];
    uint32_t places[EXPERTS_ROWS];
} experts;

static void experts_run(enum planted_text_bug bug, uint64_t seed) {
    const struct expert_tile tile = {.end = EXPERTS_ROWS};
    const struct cuda_matmul_experts_args args = {.matmul = {.part = {{.weight = {.codes = (uintptr_t)experts.w},
                                                                       .y = (uintptr_t)experts.y,
                                                                       .rows = EXPERTS_OUTPUTS,
                                                                       .y_stride = EXPERTS_OUTPUTS}},
                                                             .x = (uintptr_t)experts.x,
                                                             .scales = (uintptr_t)experts.scales,
                                                             .columns = EXPERTS_COLUMNS,
                                                             .accumulate = true},
                                                  .places = (uintptr_t)experts.places,
                                                  .tiles = (uintptr_t)&tile,
                                                  .used = 1,
                                                  .expert_rows = EXPERTS_OUTPUTS};
    const uint32_t grid[3] = {1, 1, 1}, block[3] = {MATMUL_WGMMA_THREADS, 1, 1};
    for (uint32_t i = 0; i < EXPERTS_ROWS; i++) experts.places[i] = i;
    planted_bug = (uint32_t)bug;
    executor_launch(executor_find("planted_experts"), grid, block, matmul_wgmma_experts_shared(), &args, seed);
}

/* Products by mma.sync, added to an output that is the first of a tile's second warp: the others there have none. */
enum { MMA_COLUMNS = 64, MMA_OUTPUTS = 33 };
static struct {
    _Alignas(16) uint16_t x[MATMUL_ROWS * MMA_COLUMNS], w[MMA_OUTPUTS * MMA_COLUMNS];
    float scales[MATMUL_ROWS], y[MATMUL_ROWS * MMA_OUTPUTS];
} mma;

static void mma_run(enum planted_text_bug bug, uint64_t seed) {
    const struct cuda_matmul_args args = {.part = {{.weight = {.codes = (uintptr_t)mma.w},
                                                    .y = (uintptr_t)mma.y,
                                                    .rows = MMA_OUTPUTS,
                                                    .y_stride = MMA_OUTPUTS}},
                                          .x = (uintptr_t)mma.x,
                                          .scales = (uintptr_t)mma.scales,
                                          .columns = MMA_COLUMNS,
                                          .row_count = MATMUL_ROWS,
                                          .accumulate = true};
    const uint32_t grid[3] = {1, 1, 1}, block[3] = {256, 1, 1};
    planted_bug = (uint32_t)bug;
    executor_launch(executor_find("planted_matmul"), grid, block, MATMUL_SHARED, &args, seed);
}

static void product_run(enum planted_bug bug, uint64_t seed) {
    struct planted_args args = {
        (uintptr_t)a, (uintptr_t)b, (uintptr_t)d, (uintptr_t)sums, (uintptr_t)&input, bug, 0};
    const uint32_t grid[3] = {2, 1, 1}, block[3] = {PLANTED_THREADS, 1, 1};
    executor_launch(executor_find("planted_product"), grid, block, 2304, &args, seed);
}

/* One kernel with a bug. */
static const struct {
    enum planted_bug bug;
    /* Two warpgroups store the same outputs; lanes behind the last row, and of no output, read what is added to. */
    enum planted_text_bug text_bug;
    const char *file;
} cases[] = {{PLANTED_BARRIER, TEXT_RIGHT, "planted.cu:"},
             {PLANTED_REUSE, TEXT_RIGHT, "planted.cu:"},
             {PLANTED_NONE, EXPERTS_WARPGROUP, "matmul_wgmma.h:"},
             {PLANTED_NONE, RACE_BEHIND, "matmul_wgmma.h:"},
             {PLANTED_NONE, RACE_LAST, "matmul.h:"}};
enum { CASES = sizeof cases / sizeof *cases };

/* Of CASES: all kernels as they are.  The sanitizer's code is that of an exit. */
static int run(int which, uint64_t seed) {
    const enum planted_bug bug = which < CASES ? cases[which].bug : PLANTED_NONE;
    const enum planted_text_bug text_bug = which < CASES ? cases[which].text_bug : TEXT_RIGHT;
    if (text_bug == TEXT_RIGHT) product_run(bug, seed);
    if (bug == PLANTED_NONE) experts_run(text_bug, seed), mma_run(text_bug, seed);
    if (bug == PLANTED_NONE && text_bug == TEXT_RIGHT) tiles_run();
    exit(0);
}

static void races_are_named(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            const int result = run_apart(run, i, test_seed(1) + seed, text, sizeof text);
            if (result == 0 || strstr(text, "data race") == NULL || strstr(text, cases[i].file) == NULL)
                fail_msg("case %d, seed %llu: %s", i, (unsigned long long)seed, text);
        }
}

static void right_ones_are_quiet(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++)
        if (run_apart(run, CASES, test_seed(1) + seed, text, sizeof text) != 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(races_are_named),
        cmocka_unit_test(right_ones_are_quiet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The example programs, right: over seeds, over cards that can less, and what was counted. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/fake/cuda_programs.h"
#include "seed.h"

enum { SEEDS = 20 };

static void expect_right(bool is_step, const char *settings, uint64_t seed, bool no_edges,
                         struct program_result *result) {
    char text[200];
    struct error error;
    const struct program_options options = {.driver_file = FAKE_LIBRARY, .seed = seed, .no_edges = no_edges};
    snprintf(text, sizeof text, "seed=%llu,capability=90%s", (unsigned long long)seed, settings);
    (void)setenv("FAKE_CUDA", text, 1);
    assert_ok((is_step ? program_step : program_pipeline)(&options, result, &error), error);
    if (!result->is_right) fail_msg("wrong with FAKE_CUDA=%s", text);
    assert_int_equal(result->leak_count, 0);
    assert_false(result->was_stuck);
}

static void test_pipeline(void **state) {
    (void)state;
    const uint64_t seed = test_seed(1);
    struct program_result result;
    for (uint64_t i = 0; i < SEEDS; i++) expect_right(false, "", seed + i, false, &result);
    assert_int_equal(result.counts.launches, 2 * PROGRAM_ROUNDS);
    assert_int_equal(result.counts.copies, 4 * PROGRAM_ROUNDS);
    assert_int_equal(result.counts.copied_bytes, PROGRAM_ROUNDS * (2 * 96 + 2) * 4);
    assert_int_equal(result.counts.graph_launches, 0);
    expect_right(false, ",register=0", seed, false, &result);
    expect_right(false, ",waits=0", seed, false, &result);
    expect_right(false, ",capability=80", seed, false, &result);
    expect_right(false, ",capability=120", seed, false, &result);
}

static void test_step(void **state) {
    (void)state;
    const uint64_t seed = test_seed(1);
    struct program_result result;
    for (uint64_t i = 0; i < SEEDS; i++) expect_right(true, "", seed + i, false, &result);
    assert_int_equal(result.early_count, 2); /* of three kernels: the first is behind a copy */
    assert_int_equal(result.counts.launches, 4 * PROGRAM_ROUNDS);
    assert_int_equal(result.counts.graph_launches, PROGRAM_ROUNDS);
    assert_int_equal(result.counts.graphs, 1);
    assert_int_equal(result.counts.graph_changes, 1);
    assert_int_equal(result.counts.waits, 2 * PROGRAM_ROUNDS);
    assert_int_equal(result.counts.copied_bytes, PROGRAM_ROUNDS * (2 * 96 + 3) * 4);
    for (uint64_t i = 0; i < SEEDS; i++) expect_right(true, "", seed + i, true, &result);
    assert_int_equal(result.early_count, 0);
}

/* A card that cannot wait for the host says so when the step is recorded. */
static void test_no_waits(void **state) {
    (void)state;
    struct program_result result;
    struct error error;
    const struct program_options options = {.driver_file = FAKE_LIBRARY, .seed = 1};
    (void)setenv("FAKE_CUDA", "waits=0", 1);
    assert_int_equal(program_step(&options, &result, &error), STATUS_UNSUPPORTED);
    assert_string_equal(error.message, "cuda: Fake GPU 0: a recorded step cannot wait for the host");
    assert_int_equal(result.leak_count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pipeline), cmocka_unit_test(test_step),
                                       cmocka_unit_test(test_no_waits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

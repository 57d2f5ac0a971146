/* Staging: host arrays of any size that change as soon as a call returns, over a ring that is much smaller. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "device/cuda/fake/fake_examples.h"
#include "device/cuda/staging.h"
#include "seed.h"

enum { SEEDS = 20, ROUNDS = 120, COUNT_MAX = 700, RING_BYTES = 4096, RESULTS = 40 };

struct rig {
    struct cuda_driver driver;
    struct cuda_context context;
    struct cuda_modules modules;
    struct cuda_kernel add;
    struct cuda_stream stream;
    struct cuda_staging staging;
    struct cuda_buffer x, y;
    struct random chance;
    uint32_t expected[RESULTS][COUNT_MAX], results[RESULTS][COUNT_MAX], counts[RESULTS];
};

static const struct cuda_image images[] = {{"examples", 80, EXAMPLE_PTX}};

static void rig_open(struct rig *rig, uint64_t seed) {
    struct error error;
    char settings[40];
    snprintf(settings, sizeof settings, "seed=%llu", (unsigned long long)seed);
    (void)setenv("FAKE_CUDA", settings, 1);
    random_init(&rig->chance, seed);
    assert_ok(cuda_driver_open(&rig->driver, FAKE_LIBRARY, &error), error);
    assert_ok(cuda_context_open(&rig->context, &rig->driver, 0, &(struct cuda_options){0}, &error), error);
    assert_ok(cuda_modules_open(&rig->modules, &rig->context, images, 1, &error), error);
    assert_ok(cuda_kernel_find(&rig->add, &rig->modules, "example_add", 0, &error), error);
    assert_ok(cuda_stream_create(&rig->stream, &rig->context, &error), error);
    assert_ok(cuda_staging_create(&rig->staging, &rig->stream, RING_BYTES, &error), error);
    assert_ok(cuda_buffer_create(&rig->x, &rig->context, COUNT_MAX * sizeof(uint32_t), &error), error);
    assert_ok(cuda_buffer_create(&rig->y, &rig->context, COUNT_MAX * sizeof(uint32_t), &error), error);
}

static void rig_close(struct rig *rig) {
    cuda_stream_drain(&rig->stream);
    cuda_staging_destroy(&rig->staging);
    cuda_buffer_destroy(&rig->x);
    cuda_buffer_destroy(&rig->y);
    cuda_stream_destroy(&rig->stream);
    cuda_modules_close(&rig->modules);
    cuda_context_close(&rig->context);
    cuda_driver_close(&rig->driver);
}

/* results[at] = x + addend, of arrays that are gone when the function returns. */
static void round_put(struct rig *rig, size_t at) {
    uint32_t x[COUNT_MAX];
    const uint32_t count =
        1 + (uint32_t)random_below(&rig->chance, random_below(&rig->chance, 2) ? COUNT_MAX : 110);
    uint32_t addend = (uint32_t)random_next(&rig->chance);
    for (uint32_t i = 0; i < count; i++) {
        x[i] = (uint32_t)random_next(&rig->chance);
        rig->expected[at][i] = x[i] + addend;
    }
    rig->counts[at] = count;
    uint64_t address = rig->x.address;
    if (count * sizeof *x + sizeof addend <=
        rig->staging.part_bytes - 64) /* both may be put for one launch */
        address = cuda_staging_put(&rig->staging, x, count * sizeof *x);
    else
        cuda_staging_upload(&rig->staging, address, x, count * sizeof *x);
    const uint64_t addend_address = cuda_staging_put(&rig->staging, &addend, sizeof addend);
    const struct example_add_arguments arguments = {
        .x = address, .y = rig->y.address, .addend = addend_address, .count = count};
    cuda_stream_launch(&rig->stream,
                       &(struct cuda_launch){.kernel = &rig->add,
                                             .grid = {(count + EXAMPLE_THREADS - 1) / EXAMPLE_THREADS, 1, 1},
                                             .block = {EXAMPLE_THREADS, 1, 1},
                                             .arguments = &arguments});
    cuda_staging_download(&rig->staging, rig->results[at], rig->y.address, count * sizeof *x);
    memset(x, 0, sizeof x);
    addend = 0;
}

static void results_check(struct rig *rig, size_t count) {
    struct error error;
    assert_ok(cuda_staging_synchronize(&rig->staging, &error), error);
    assert_int_equal(rig->staging.result_count, 0);
    for (size_t at = 0; at < count; at++)
        assert_memory_equal(rig->results[at], rig->expected[at], rig->counts[at] * sizeof(uint32_t));
}

static void test_arrays(void **state) {
    (void)state;
    static struct rig rig;
    const uint64_t first = test_seed(1);
    for (uint64_t seed = first; seed < first + SEEDS; seed++) {
        rig_open(&rig, seed);
        size_t count = 0;
        for (int round = 0; round < ROUNDS; round++) {
            round_put(&rig, count++);
            if (count < RESULTS && random_below(&rig.chance, 10) > 0) continue;
            results_check(&rig, count);
            count = 0;
        }
        results_check(&rig, count);
        rig_close(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_arrays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

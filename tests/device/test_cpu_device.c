/* What is not an operation: memory, streams, copies, scratch. */
#include "testing.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "device/cpu/cpu_device_internal.h"
#include "device/host_turns.h"
#include "host_span.h"
#include "seed.h"

static struct device *make_device(size_t thread_count) {
    struct device *device;
    struct error error;
    const struct device_options options = {thread_count, cpu_features()};
    assert_ok(device_cpu_create(&device, &options, &error), error);
    return device;
}

static struct stream *make_stream(struct device *device) {
    struct stream *stream;
    struct error error;
    assert_ok(device->operations->stream_create(device, &stream, &error), error);
    return stream;
}

static void memory_is_aligned_and_zero(void **state) {
    (void)state;
    struct device *device = make_device(2);
    const size_t sizes[] = {0, 1, 64, 1000, (1 << 20) - 1, 1 << 20, (2 << 20) + 1, (9 << 20) + 4097};
    for (enum memory_kind kind = MEMORY_DEVICE; kind <= MEMORY_SHARED; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct buffer buffer;
            struct error error;
            assert_ok(device->operations->allocate(device, kind, sizes[i], &buffer, &error), error);
            assert_true(buffer_exists(&buffer));
            assert_int_equal(buffer.address % 64, 0);
            assert_int_equal(buffer.host != NULL, kind == MEMORY_SHARED);
            uint8_t *bytes = (uint8_t *)(uintptr_t)buffer.address;
            for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(bytes[j], 0);
            if (sizes[i] > 0) memset(bytes, 0xff, sizes[i]);
            device->operations->release(device, &buffer);
            assert_false(buffer_exists(&buffer));
            device->operations->release(device, &buffer); /* of nothing */
        }
    struct buffer buffer;
    struct error error;
    assert_int_equal(device->operations->allocate(device, MEMORY_DEVICE, SIZE_MAX - 100, &buffer, &error),
                     STATUS_MEMORY);
    device_destroy(device);
}

static size_t resident_bytes(void) {
    size_t total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%zu %zu", &total, &resident), 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void untouched_slabs_cost_nothing(void **state) {
    (void)state;
    struct device *device = make_device(1);
    const size_t size_bytes = (size_t)64 << 30;
    struct buffer buffer;
    struct error error;
    size_t before = resident_bytes();
    assert_ok(device->operations->allocate(device, MEMORY_SHARED, size_bytes, &buffer, &error), error);
    ((uint8_t *)buffer.host)[size_bytes - 1] = 1;
    ((uint8_t *)buffer.host)[size_bytes / 2] = 1;
    assert_true(resident_bytes() < before + (16u << 20));
    device->operations->release(device, &buffer);
    device_destroy(device);
}

static void copies_of_any_size(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(7));
    enum { BYTES = 3 << 20 };
    uint8_t *source = malloc(BYTES), *target = malloc(BYTES + 2);
    for (size_t i = 0; i < BYTES; i++) source[i] = (uint8_t)random_next(&random);
    for (size_t threads = 1; threads <= 3; threads++) {
        struct device *device = make_device(threads);
        struct stream *stream = make_stream(device);
        for (int round = 0; round < 20; round++) {
            size_t first = random_below(&random, 1000), size = random_below(&random, BYTES - first);
            if (round % 2 == 0) size = size % 5000;
            memset(target, 0xaa, BYTES + 2);
            switch (round % 3) {
            case 0:
                device->operations->copy(stream, host_span(target + 1), host_span(source + first), size);
                break;
            case 1: device->operations->upload(stream, host_span(target + 1), source + first, size); break;
            default: device->operations->download(stream, target + 1, host_span(source + first), size);
            }
            assert_memory_equal(target + 1, source + first, size);
            assert_int_equal(target[0], 0xaa);
            assert_int_equal(target[size + 1], 0xaa);
        }
        device->operations->stream_destroy(stream);
        device_destroy(device);
    }
    free(source);
    free(target);
}

/* Of pools of one buffer and of many, in any order: each place's own slot. */
static void chunks_are_where_places_say(void **state) {
    (void)state;
    enum { BUFFERS = 8, SLOT_BYTES = 64, PLACES = 200 };
    static uint8_t memory[PLACE_POOLS][BUFFERS][4 * SLOT_BYTES];
    struct buffer buffers[PLACE_POOLS][BUFFERS];
    struct kv_pools pools;
    struct random random;
    random_init(&random, test_seed(20261126));
    for (size_t round = 0; round < 200; round++) {
        unsigned shifts[PLACE_POOLS];
        for (size_t pool = 0; pool < PLACE_POOLS; pool++) {
            shifts[pool] = (unsigned)random_below(&random, 3);
            for (size_t i = 0; i < BUFFERS; i++) /* not in order */
                buffers[pool][i] = (struct buffer){.kind = MEMORY_DEVICE,
                                                   .address = (uintptr_t)memory[pool][(5 * i + 3) % BUFFERS]};
            pools.list[pool] = (struct kv_pool){.buffers = buffers[pool],
                                                .buffer_count = BUFFERS,
                                                .buffer_shift = shifts[pool],
                                                .slot_bytes = SLOT_BYTES >> pool};
        }
        uint32_t places[PLACES];
        void *chunks[PLACES];
        const uint64_t mixed = random_below(&random, 4);
        enum place_pool pool = POOL_ROWS;
        for (size_t i = 0; i < PLACES; i++) {
            if (random_below(&random, 4) < mixed) pool = (enum place_pool)(1 + random_below(&random, 3));
            places[i] = random_below(&random, 10) == 0
                            ? PLACE_NOWHERE
                            : place_make(pool, random_below(&random, BUFFERS << shifts[pool]));
        }
        cpu_find_chunks(&pools, places, PLACES, chunks);
        for (size_t i = 0; i < PLACES; i++) {
            const enum place_pool own = place_pool(places[i]);
            const uint32_t slot = place_slot(places[i]), slots = 1U << shifts[own];
            const void *expected = (uint8_t *)(uintptr_t)buffers[own][slot / slots].address +
                                   slot % slots * ((size_t)SLOT_BYTES >> own);
            assert_ptr_equal(chunks[i], places[i] == PLACE_NOWHERE ? NULL : expected);
        }
    }
}

static void scratch_grows_only_for_larger_shapes(void **state) {
    (void)state;
    struct device *base = make_device(2);
    struct cpu_device *device = (struct cpu_device *)base;
    assert_non_null(cpu_scratch_reserve(device, 5 << 20));
    uint64_t growths = device->scratch_growths;
    for (size_t bytes = 0; bytes < 5 << 20; bytes += 65537)
        assert_non_null(cpu_scratch_reserve(device, bytes));
    assert_int_equal(device->scratch_growths, growths);
    for (size_t bytes = 5 << 20; bytes < 80 << 20; bytes += 1 << 20)
        assert_non_null(cpu_scratch_reserve(device, bytes));
    assert_true(device->scratch_growths <= growths + 5); /* doubling */
    assert_null(cpu_scratch_reserve(device, (size_t)1 << 60));
    struct stream *stream = make_stream(base);
    struct error error;
    assert_int_equal(base->operations->stream_synchronize(stream, &error), STATUS_MEMORY);
    base->operations->stream_destroy(stream);
    device_destroy(base);
}

struct overlap {
    pthread_t caller;
    size_t calls;
};

static void count_call(void *context) {
    struct overlap *overlap = context;
    assert_true(pthread_equal(overlap->caller, pthread_self()));
    overlap->calls++;
}

/* Once, by the caller, with the next operation that wakes threads, and at the latest when the stream is waited for. */
static void work_beside_an_operation_is_done_once(void **state) {
    (void)state;
    enum { BYTES = 8 << 20 };
    struct device *device = make_device(2);
    struct stream *stream = make_stream(device);
    struct error error;
    struct overlap overlap = {.caller = pthread_self()};
    uint8_t *source = calloc(1, BYTES), *target = calloc(1, BYTES);
    for (size_t i = 0; i < BYTES; i++) source[i] = (uint8_t)(i * 31);
    device->operations->overlap(stream, count_call, &overlap);
    device->operations->upload(stream, host_span(target), source,
                               64); /* alone: there is nothing to be beside */
    assert_int_equal(overlap.calls, 0);
    device->operations->upload(stream, host_span(target), source, BYTES);
    assert_int_equal(overlap.calls, 1);
    assert_memory_equal(target, source, BYTES);
    device->operations->upload(stream, host_span(target), source, BYTES);
    assert_ok(device->operations->stream_synchronize(stream, &error), error);
    assert_int_equal(overlap.calls, 1);
    device->operations->overlap(stream, count_call, &overlap);
    assert_ok(device->operations->stream_synchronize(stream, &error), error);
    assert_int_equal(overlap.calls, 2);
    device->operations->stream_destroy(stream);
    free(source);
    free(target);
    device_destroy(device);
}

static void weights_without_kernels_are_refused(void **state) {
    (void)state;
    struct device *device = make_device(1);
    struct error error;
    struct weight weight = {.matrix = {TENSOR_Q8_0, NULL, 1, 32, 34}};
    assert_ok(device->operations->weight_load(device, &weight, &error), error);
    device->operations->weight_release(device, &weight);
    assert_false(buffer_exists(&weight.memory));
    weight.matrix.type = TENSOR_I32;
    assert_int_equal(device->operations->weight_load(device, &weight, &error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "I32"));
    assert_int_equal(pool_thread_count(device_pool(device)), 1);
    device_destroy(device);
    device_destroy(NULL);
}

static void host_has_turns(void **state) {
    (void)state;
    struct device *device = make_device(2);
    struct stream *stream = make_stream(device);
    struct host_turns turns;
    host_turns_open(&turns, device, stream);
    for (size_t round = 0; round < 3; round++) {
        host_turns_launch(&turns);
        host_turns_check(&turns);
        if (round == 1) host_turns_capture(&turns);
    }
    host_turns_close(&turns);
    device->operations->stream_destroy(stream);
    device_destroy(device);
}

/* What only methods of the lab ask for is not in a program without them. */
static void the_lab_is_not_in_it(void **state) {
    (void)state;
    struct device *device = make_device(1);
    assert_int_equal(device->key_indexes, 1U << KEY_INDEX_NONE | 1U << KEY_INDEX_ABSTRACT | 1U << KEY_INDEX_HASH |
                                              1U << KEY_INDEX_LEVEL | 1U << KEY_INDEX_TREE);
    assert_null(device->operations->add_mass);
    assert_null(device->operations->mass_bound);
    assert_null(device->operations->attend_rest);
    device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_aligned_and_zero),
        cmocka_unit_test(untouched_slabs_cost_nothing),
        cmocka_unit_test(copies_of_any_size),
        cmocka_unit_test(chunks_are_where_places_say),
        cmocka_unit_test(scratch_grows_only_for_larger_shapes),
        cmocka_unit_test(work_beside_an_operation_is_done_once),
        cmocka_unit_test(weights_without_kernels_are_refused),
        cmocka_unit_test(host_has_turns),
        cmocka_unit_test(the_lab_is_not_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

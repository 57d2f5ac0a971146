/* io_queue on both back ends: random transfers against a copy in memory (seed printed, LOAM_TEST_SEED repeats
 * one), every call failing once and for ever, flushes, bounds. */
#include "testing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "platform/clock.h"
#include "platform/fault_plan.h"
#include "platform/io_link.h"
#include "platform/io_queue.h"
#include "platform/scratch.h"
#include "seed.h"

enum { BLOCK = IO_ALIGNMENT, BLOCKS = 64, DEPTH = 16, REQUEST_BLOCKS = 5 };

struct bench {
    struct scratch scratch;
    struct fault_plan plan;
    struct io_folder folder;
    struct io_file file;
    struct io_queue *queue;
    uint8_t *memory; /* [DEPTH][REQUEST_BLOCKS * BLOCK] */
};

static void open_bench(struct bench *bench, enum io_backend backend, bool direct, size_t depth) {
    struct error error;
    scratch_create(&bench->scratch, SCRATCH_DISK);
    fault_plan_init(&bench->plan, FAULT_NONE, 0, false, 0);
    assert_ok(
        io_folder_open(&bench->folder, bench->scratch.path, IO_FOLDER_READ, &bench->plan.faults, &error),
        error);
    assert_ok(io_file_open(&bench->file, &bench->folder, "data", IO_FILE_CREATE, direct, &error), error);
    const struct io_queue_options options = {.backend = backend, .depth = depth, .thread_count = 4};
    assert_ok(io_queue_create(&bench->queue, &options, &error), error);
    bench->memory = aligned_alloc(BLOCK, DEPTH * REQUEST_BLOCKS * BLOCK);
    assert_non_null(bench->memory);
}

static void close_bench(struct bench *bench) {
    io_queue_destroy(bench->queue);
    io_file_close(&bench->file);
    io_folder_close(&bench->folder);
    scratch_destroy(&bench->scratch);
    free(bench->memory);
}

static struct io_request request_of(struct bench *bench, enum io_operation operation, size_t slot,
                                    size_t block, size_t blocks) {
    return (struct io_request){operation,      &bench->file,
                               block * BLOCK,  bench->memory + slot * REQUEST_BLOCKS * BLOCK,
                               blocks * BLOCK, slot};
}

/* The only request in flight; its completion. */
static struct io_completion run_one(struct bench *bench, const struct io_request *request) {
    struct io_completion completion;
    assert_int_equal(io_queue_submit(bench->queue, request), STATUS_OK);
    assert_int_equal(io_queue_wait(bench->queue, &completion, 1, 1), 1);
    assert_int_equal(completion.request.tag, request->tag);
    assert_int_equal(io_queue_in_flight(bench->queue), 0);
    return completion;
}

/* Writes to disjoint ranges, reads of anything that no write under way touches. */
static void random_transfers(enum io_backend backend, bool direct, bool registered, uint64_t seed) {
    struct bench bench;
    open_bench(&bench, backend, direct, DEPTH);
    if (registered && io_queue_register_memory(bench.queue, bench.memory, DEPTH * REQUEST_BLOCKS * BLOCK))
        assert_int_equal(backend, IO_BACKEND_URING);
    static uint8_t model[BLOCKS * BLOCK];
    memset(model, 0, sizeof model);
    struct error error;
    assert_ok(io_file_write(&bench.file, 0, memset(bench.memory, 0, BLOCK), BLOCK, &error), error);
    assert_ok(io_file_truncate(&bench.file, sizeof model, &error), error);
    struct random random;
    random_init(&random, seed);
    bool busy[DEPTH] = {0};
    struct io_request under_way[DEPTH];
    size_t finished = 0, submitted = 0, goal = 2000;
    while (finished < goal) {
        size_t slot = random_below(&random, DEPTH);
        size_t block = random_below(&random, BLOCKS), blocks = 1 + random_below(&random, REQUEST_BLOCKS);
        if (block + blocks > BLOCKS) blocks = BLOCKS - block;
        enum io_operation operation = random_below(&random, 2) == 0 ? IO_READ : IO_WRITE;
        bool clash = busy[slot];
        for (size_t i = 0; i < DEPTH; i++)
            clash |= busy[i] && under_way[i].offset < (block + blocks) * BLOCK &&
                     block * BLOCK < under_way[i].offset + under_way[i].bytes;
        if (!clash && submitted < goal) {
            struct io_request request = request_of(&bench, operation, slot, block, blocks);
            if (operation == IO_WRITE) {
                for (size_t i = 0; i < request.bytes; i++)
                    ((uint8_t *)request.memory)[i] = (uint8_t)random_next(&random);
                memcpy(model + request.offset, request.memory, request.bytes);
            }
            assert_int_equal(io_queue_submit(bench.queue, &request), STATUS_OK);
            busy[slot] = true;
            under_way[slot] = request;
            submitted++;
            if (random_below(&random, 3) > 0) continue;
        }
        struct io_completion completions[4];
        size_t count_min = random_below(&random, 3);
        size_t count = count_min == 0 ? io_queue_poll(bench.queue, completions, 4)
                                      : io_queue_wait(bench.queue, completions, 4, count_min);
        for (size_t i = 0; i < count; i++) {
            assert_ok(io_completion_error(&completions[i], &error), error);
            const struct io_request *request = &completions[i].request;
            assert_true(busy[request->tag]);
            busy[request->tag] = false;
            if (memcmp(model + request->offset, request->memory, request->bytes) != 0)
                fail_msg("seed %llu: %zu bytes at %llu differ", (unsigned long long)seed, request->bytes,
                         (unsigned long long)request->offset);
        }
        finished += count;
    }
    assert_int_equal(io_queue_in_flight(bench.queue), 0);
    close_bench(&bench);
}

static void test_random(void **state) {
    (void)state;
    uint64_t seed = test_seed(20261122);
    for (enum io_backend backend = IO_BACKEND_URING; backend <= IO_BACKEND_THREADS; backend++) {
        struct io_queue *queue;
        struct error error;
        const struct io_queue_options options = {.backend = backend};
        enum status status = io_queue_create(&queue, &options, &error);
        if (status == STATUS_UNSUPPORTED) {
            printf("%s\n", error.message);
            continue;
        }
        assert_ok(status, error);
        assert_int_equal(io_queue_backend(queue), backend);
        io_queue_destroy(queue);
        for (int way = 0; way < 4; way++)
            if (test_takes_next())
                random_transfers(backend, (way & 1) != 0, (way & 2) != 0, seed + (uint64_t)way);
    }
}

/* Runs body on every back end that works here. */
static void on_each(void (*body)(enum io_backend backend)) {
    body(IO_BACKEND_THREADS);
    struct io_queue *queue;
    struct error error;
    const struct io_queue_options options = {.backend = IO_BACKEND_URING};
    if (io_queue_create(&queue, &options, &error) != STATUS_OK) return;
    io_queue_destroy(queue);
    body(IO_BACKEND_URING);
}

static void full_body(enum io_backend backend) {
    struct bench bench;
    struct error error;
    open_bench(&bench, backend, false, 4);
    memset(bench.memory, 1, DEPTH * REQUEST_BLOCKS * BLOCK);
    for (size_t i = 0; i < 4; i++) {
        struct io_request request = request_of(&bench, IO_WRITE, i, i, 1);
        assert_int_equal(io_queue_free_count(bench.queue), 4 - i);
        assert_int_equal(io_queue_submit(bench.queue, &request), STATUS_OK);
    }
    struct io_request request = request_of(&bench, IO_WRITE, 4, 4, 1);
    assert_int_equal(io_queue_submit(bench.queue, &request), STATUS_FULL);
    struct io_completion completions[8];
    assert_int_equal(io_queue_wait(bench.queue, completions, 3, 8), 3); /* cut to the capacity */
    assert_int_equal(io_queue_submit(bench.queue, &request), STATUS_OK);
    assert_int_equal(io_queue_wait(bench.queue, completions, 8, 8), 2); /* cut to what is in flight */
    assert_int_equal(io_queue_poll(bench.queue, completions, 8), 0);
    uint64_t size;
    assert_ok(io_file_size(&bench.file, &size, &error), error);
    assert_int_equal(size, 5 * BLOCK);
    request = request_of(&bench, IO_READ, 0, 4, 2); /* one block more than there is */
    struct io_completion completion = run_one(&bench, &request);
    assert_int_equal(io_completion_error(&completion, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "/data: reading 8192 bytes at 16384: the file ends before"));
    request.bytes = 0; /* nothing is nothing, anywhere */
    assert_int_equal(run_one(&bench, &request).status, STATUS_OK);
    /* Completions nobody takes are waited for by destroy. */
    request = request_of(&bench, IO_WRITE, 0, 0, 1);
    assert_int_equal(io_queue_submit(bench.queue, &request), STATUS_OK);
    close_bench(&bench);
}

static void test_full_and_short(void **state) {
    (void)state;
    on_each(full_body);
}

/* Writes, a flush, reads, with one fault.  Returns whether that many calls were made. */
static bool faults_once(enum io_backend backend, enum fault_kind kind, uint64_t first, bool for_ever,
                        bool direct) {
    struct bench bench;
    struct error error;
    open_bench(&bench, backend, direct, DEPTH);
    fault_plan_init(&bench.plan, kind, first, for_ever,
                    1u << IO_CALL_READ | 1u << IO_CALL_WRITE | 1u << IO_CALL_SYNC);
    bool failed = false;
    struct io_completion completions[DEPTH];
    for (int round = 0; round < 3; round++) { /* write, flush, read */
        enum io_operation operation = round == 0 ? IO_WRITE : round == 1 ? IO_SYNC : IO_READ;
        size_t requests = operation == IO_SYNC ? 1 : 2;
        for (size_t i = 0; i < requests; i++) {
            struct io_request request = request_of(&bench, operation, i, i * 3, operation == IO_SYNC ? 0 : 1);
            if (operation != IO_SYNC)
                memset(request.memory, operation == IO_WRITE ? (int)i + 1 : 0, request.bytes);
            assert_int_equal(io_queue_submit(bench.queue, &request), STATUS_OK);
        }
        assert_int_equal(io_queue_wait(bench.queue, completions, DEPTH, requests), requests);
        for (size_t i = 0; i < requests; i++) {
            const struct io_request *request = &completions[i].request;
            if (io_completion_error(&completions[i], &error) != STATUS_OK) {
                failed = true;
                assert_non_null(strstr(error.message, "/data: "));
            } else if (operation == IO_READ && !failed) {
                for (size_t b = 0; b < request->bytes; b++)
                    assert_int_equal(((uint8_t *)request->memory)[b], request->tag + 1);
            }
        }
    }
    bool hit = bench.plan.hits > 0, reached = bench.plan.count > first;
    bool passes = kind == FAULT_SHORT_ONE || kind == FAULT_SHORT_HALF ||
                  ((kind == FAULT_EINTR || kind == FAULT_EAGAIN) && !for_ever);
    assert_int_equal(failed, hit && !passes);
    close_bench(&bench);
    return reached;
}

static void faults_body(enum io_backend backend) {
    for (enum fault_kind kind = FAULT_EIO; kind < FAULT_KILL; kind++)
        for (int way = 0; way < 4; way++) {
            if (!test_takes_next()) continue;
            uint64_t first = 0;
            while (faults_once(backend, kind, first, (way & 1) != 0, (way & 2) != 0)) first++;
            assert_true(first >= 5);
        }
}

static void test_faults(void **state) {
    (void)state;
    on_each(faults_body);
}

static void flush_body(enum io_backend backend) {
    struct bench bench;
    struct error error;
    open_bench(&bench, backend, false, DEPTH);
    fault_plan_init(&bench.plan, FAULT_EIO, 0, false, 1u << IO_CALL_SYNC);
    struct io_request flush = {.operation = IO_SYNC, .file = &bench.file};
    struct io_completion completion = run_one(&bench, &flush);
    assert_int_equal(io_completion_error(&completion, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "flushing"));
    completion = run_one(&bench, &flush); /* the fault is over, the file's flush is not */
    assert_int_equal(completion.status, STATUS_IO);
    assert_int_equal(completion.os_error, EIO);
    memset(bench.memory, 0, BLOCK);
    struct io_request write = request_of(&bench, IO_WRITE, 0, 0, 1);
    assert_int_equal(run_one(&bench, &write).status, STATUS_IO);
    assert_int_equal(bench.plan.count, 1);
    close_bench(&bench);
}

static void test_flush_failure_is_final(void **state) {
    (void)state;
    on_each(flush_body);
}

/* The kernel's own refusal, not one of ours. */
static void real_error_body(enum io_backend backend) {
    struct bench bench;
    struct error error;
    struct io_file reader;
    open_bench(&bench, backend, false, DEPTH);
    assert_ok(io_file_open(&reader, &bench.folder, "data", IO_FILE_READ, false, &error), error);
    memset(bench.memory, 0, BLOCK);
    struct io_request write = request_of(&bench, IO_WRITE, 0, 0, 1);
    write.file = &reader;
    struct io_completion completion = run_one(&bench, &write);
    assert_int_equal(io_completion_error(&completion, &error), STATUS_IO);
    assert_int_equal(completion.os_error, EBADF);
    io_file_close(&reader);
    close_bench(&bench);
}

static void test_real_error(void **state) {
    (void)state;
    on_each(real_error_body);
}

/* One after the other, from when the link is free. */
static void link_moves_in_turn(void **state) {
    (void)state;
    uint64_t free_ns = 0;
    assert_int_equal(io_link_move(&free_ns, 1000, 500, 1000000), 1000 + 500000);
    assert_int_equal(io_link_move(&free_ns, 2000, 250, 1000000), 1000 + 750000); /* behind the first */
    assert_int_equal(io_link_move(&free_ns, 5000000, 1000, 1000000), 6000000);   /* it was idle */
    assert_int_equal(io_link_move(&free_ns, 0, UINT64_C(3) << 40, UINT64_C(1) << 40), 6000000 + 3000000000);
}

/* No completion is early, none is lost, and a poll does not wait for one. */
static void link_delays_reads(void **state) {
    (void)state;
    enum { RATE = 20 << 20 };
    for (enum io_backend backend = IO_BACKEND_AUTOMATIC; backend <= IO_BACKEND_THREADS; backend += 2) {
        struct bench bench;
        struct io_completion done[DEPTH];
        open_bench(&bench, backend, false, DEPTH);
        for (size_t slot = 0; slot < DEPTH; slot++) {
            const struct io_request write = request_of(&bench, IO_WRITE, slot, slot * 4, 4);
            memset(write.memory, (int)slot + 1, write.bytes);
            assert_int_equal(run_one(&bench, &write).status, STATUS_OK);
            memset(write.memory, 0, write.bytes);
        }
        io_link_limit(RATE);
        const uint64_t began = clock_ns();
        for (size_t slot = 0; slot < DEPTH; slot++) {
            const struct io_request read = request_of(&bench, IO_READ, slot, slot * 4, 4);
            assert_int_equal(io_queue_submit(bench.queue, &read), STATUS_OK);
        }
        for (size_t count = 0, bytes = 0; count < DEPTH;) {
            size_t got = io_queue_poll(bench.queue, done, DEPTH);
            if (got == 0) got = io_queue_wait(bench.queue, done, DEPTH, 1);
            const uint64_t took = clock_ns() - began;
            assert_true(got > 0);
            count += got;
            for (size_t i = 0; i < got; i++) {
                const uint8_t *memory = done[i].request.memory;
                assert_int_equal(done[i].status, STATUS_OK);
                assert_int_equal(memory[done[i].request.bytes - 1], done[i].request.tag + 1);
                bytes += done[i].request.bytes;
            }
            assert_true((double)took >= (double)bytes / RATE * 1e9 - 1000); /* a nanosecond lost per read */
        }
        io_link_limit(0);
        assert_int_equal(io_queue_in_flight(bench.queue), 0);
        close_bench(&bench);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),       cmocka_unit_test(test_full_and_short),
        cmocka_unit_test(test_faults),       cmocka_unit_test(test_flush_failure_is_final),
        cmocka_unit_test(test_real_error),   cmocka_unit_test(link_moves_in_turn),
        cmocka_unit_test(link_delays_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

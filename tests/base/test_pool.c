#include "testing.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>

#include "platform/clock.h"
#include "platform/pool.h"

struct shared {
    _Atomic size_t count;
    size_t phase[64];
    _Atomic int wrong;
};

static void check_phases(void *context, const struct pool_worker *worker) {
    struct shared *shared = context;
    for (size_t phase = 1; phase <= 50; phase++) {
        shared->phase[worker->index] = phase;
        pool_barrier(worker);
        for (size_t i = 0; i < worker->count; i++)
            if (shared->phase[i] != phase) atomic_store(&shared->wrong, 1);
        pool_barrier(worker);
    }
    while (pool_ticket(worker) < 1000) atomic_fetch_add(&shared->count, 1);
}

static void runs_barriers_and_tickets(void **state) {
    (void)state;
    size_t counts[] = {1, 2, 3, 7};
    for (size_t c = 0; c < 4; c++) {
        struct pool *pool;
        struct error error;
        assert_ok(pool_create(&pool, counts[c], &error), error);
        for (int round = 0; round < 20; round++) {
            struct shared shared = {0};
            pool_run(pool, check_phases, &shared);
            assert_int_equal(shared.count, 1000);
            assert_false(shared.wrong);
        }
        pool_destroy(pool);
    }
}

static void ranges_cover_everything_once(void **state) {
    (void)state;
    for (size_t total = 0; total < 300; total += 7)
        for (size_t count = 1; count < 9; count++) {
            size_t next = 0;
            for (size_t i = 0; i < count; i++) {
                struct pool_worker worker = {i, count, NULL};
                struct range range = pool_range(&worker, total, 16);
                assert_int_equal(range.begin, next);
                assert_true(range.begin % 16 == 0 || range.begin == total);
                next = range.end;
            }
            assert_int_equal(next, total);
        }
}

static void check_mask(void *context, const struct pool_worker *worker) {
    _Atomic size_t *right = context;
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    int caller = worker->index == 0;
    if (sigismember(&mask, SIGINT) == !caller && sigismember(&mask, SIGWINCH) == !caller &&
        !sigismember(&mask, SIGBUS))
        atomic_fetch_add(right, 1);
}

static void signals_are_for_the_caller(void **state) {
    (void)state;
    struct pool *pool;
    struct error error;
    assert_ok(pool_create(&pool, 3, &error), error);
    _Atomic size_t right = 0;
    pool_run(pool, check_mask, &right);
    assert_int_equal(right, 3);
    pool_destroy(pool);
}

static void nothing(void *context, const struct pool_worker *worker) {
    (void)context;
    (void)worker;
}

static void fork_join_time(void **state) {
    (void)state;
    struct pool *pool;
    struct error error;
    assert_ok(pool_create(&pool, 0, &error), error);
    uint64_t begin = clock_ns();
    for (int i = 0; i < 10000; i++) pool_run(pool, nothing, NULL);
    printf("fork-join: %.2f us on %zu threads\n", (double)(clock_ns() - begin) / 1e7,
           pool_thread_count(pool));
    pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_barriers_and_tickets),
        cmocka_unit_test(ranges_cover_everything_once),
        cmocka_unit_test(signals_are_for_the_caller),
        cmocka_unit_test(fork_join_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Design.  A run is announced by raising `generation`; workers spin on it for
 * SPIN_ROUNDS and then sleep on it as a futex.  The end of a run is a counter
 * that workers lower and the caller spins on: the caller is itself computing, so
 * waiting is short.  A barrier is sense-reversing: the last to arrive opens it
 * by raising `barrier_phase`.
 *
 * With more threads than processors spinning would steal the time of the thread
 * that everyone waits for, so then it yields.
 *
 * Workers are pinned, the caller is not: it is somebody else's thread, and what it starts would inherit that.  When it
 * has slept, on the disk, the kernel likes to wake it where the interrupt came in, which may be a worker's processor:
 * then the two share it, by time slices, while another one is idle (every run took some 200 us longer).  So a run
 * begins by moving away from there. */
#include "platform/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/checked.h"
#include "platform/cpu.h"
#include "platform/trace.h"

enum { SPIN_ROUNDS = 20000, PATIENT_ROUNDS = 4000, THREADS_MAX = 512 };

struct pool_thread {
    pthread_t handle;
    struct pool_worker worker;
    int processor;               /* pinned to this one, or -1 */
    uint64_t began_ns, ended_ns; /* of its part of a run, where there is a trace */
};

struct pool {
    size_t thread_count;
    bool crowded; /* more threads than processors */
    bool stopping;
    pool_task *task;
    void *context;
    struct trace *trace;                      /* borrowed; NULL: none; changes between runs */
    cpu_set_t taken;                          /* processors that workers are pinned to; empty where nobody is pinned */
    _Alignas(64) _Atomic uint32_t generation; /* release by the caller, acquire by workers */
    _Alignas(64) _Atomic uint32_t running;    /* workers still in this run */
    _Alignas(64) _Atomic uint32_t sleepers;
    _Alignas(64) _Atomic uint32_t barrier_arrived;
    _Alignas(64) _Atomic uint32_t barrier_phase;
    _Alignas(64) _Atomic size_t ticket;
    struct pool_thread threads[]; /* [thread_count]; entry 0 is the caller */
};

static void relax(const struct pool *pool, unsigned round) {
    /* Whoever has waited this long waits for a thread that the system has put aside. */
    if (round % 64 == 63 && (pool->crowded || round > PATIENT_ROUNDS)) {
        sched_yield();
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void sleep_while(struct pool *pool, uint32_t seen) {
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->generation) == seen)
        syscall(SYS_futex, &pool->generation, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void run_part(const struct pool *pool, struct pool_thread *thread, pool_task *task, void *context) {
    thread->began_ns = trace_clock(pool->trace);
    task(context, &thread->worker);
    thread->ended_ns = trace_clock(pool->trace);
}

static void *worker_main(void *argument) {
    struct pool_thread *self = argument;
    struct pool *pool = self->worker.pool;
    if (self->processor >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)self->processor, &set);
        /* Pinning is a wish: without it the run is slower, never wrong. */
        (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }
    uint32_t seen = 0;
    for (;;) {
        unsigned round = 0;
        while (atomic_load_explicit(&pool->generation, memory_order_acquire) == seen) {
            if (round++ < SPIN_ROUNDS)
                relax(pool, round);
            else
                sleep_while(pool, seen);
        }
        seen++; /* runs do not overlap, so no generation is ever skipped */
        if (pool->stopping) return NULL;
        run_part(pool, self, pool->task, pool->context);
        atomic_fetch_sub_explicit(&pool->running, 1, memory_order_release); /* pairs with pool_run */
    }
}

static void pool_choose_processors(struct pool *pool) {
    cpu_set_t set;
    for (size_t i = 0; i < pool->thread_count; i++) pool->threads[i].processor = -1;
    if (pool->crowded || sched_getaffinity(0, sizeof set, &set) != 0) return;
    size_t next = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && next < pool->thread_count; cpu++)
        if (CPU_ISSET((size_t)cpu, &set)) pool->threads[next++].processor = cpu;
    for (size_t i = 1; i < next; i++) CPU_SET((size_t)pool->threads[i].processor, &pool->taken);
}

/* The caller leaves a worker's processor for its own.  It may be anywhere again afterwards, and mostly stays. */
static void leave_workers_processor(const struct pool *pool) {
    int here = sched_getcpu();
    cpu_set_t own, before;
    if (here < 0 || !CPU_ISSET((size_t)here, &pool->taken) || pool->threads[0].processor < 0) return;
    CPU_ZERO(&own);
    CPU_SET((size_t)pool->threads[0].processor, &own);
    if (sched_getaffinity(0, sizeof before, &before) != 0) return;
    if (sched_setaffinity(0, sizeof own, &own) == 0) (void)sched_setaffinity(0, sizeof before, &before);
}

/* Signals from outside are for the thread that called: a handler on a compute thread would not wake the
 * caller's poll, and two could run at once.  What a thread causes itself (SIGBUS of a file cut short) stays
 * its own. */
static int thread_start(struct pool_thread *thread) {
    sigset_t outside, before;
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigfillset(&outside);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) sigdelset(&outside, own[i]);
    pthread_sigmask(SIG_BLOCK, &outside, &before);
    int failed = pthread_create(&thread->handle, NULL, worker_main, thread); /* inherits the mask */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

enum status pool_create(struct pool **result, size_t thread_count, struct error *error) {
    size_t processors = cpu_count();
    if (thread_count == 0) thread_count = processors;
    if (thread_count > THREADS_MAX)
        return error_set(error, STATUS_USAGE, "threads: found %zu, expected at most %d", thread_count, THREADS_MAX);
    size_t bytes = align_up(sizeof(struct pool) + thread_count * sizeof(struct pool_thread), 64);
    struct pool *pool = aligned_alloc(64, bytes);
    if (pool == NULL) return error_set(error, STATUS_MEMORY, "thread pool: out of memory");
    __builtin_memset(pool, 0, bytes);
    pool->thread_count = thread_count;
    pool->crowded = thread_count > processors;
    pool_choose_processors(pool);
    for (size_t i = 0; i < thread_count; i++) {
        struct pool_thread *thread = &pool->threads[i];
        thread->worker = (struct pool_worker){i, thread_count, pool};
        if (i == 0) continue;
        int failed = thread_start(thread);
        if (failed != 0) {
            pool->thread_count = i;
            pool_destroy(pool);
            return error_set_os(error, STATUS_MEMORY, failed, "starting compute thread %zu", i);
        }
    }
    *result = pool;
    return STATUS_OK;
}

static void announce(struct pool *pool) {
    /* seq_cst here and in sleep_while: either the sleeper sees the new generation
     * or we see the sleeper, so that no wake-up is lost. */
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->sleepers) > 0)
        syscall(SYS_futex, &pool->generation, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void pool_destroy(struct pool *pool) {
    if (pool == NULL) return;
    pool->stopping = true;
    announce(pool);
    for (size_t i = 1; i < pool->thread_count; i++) pthread_join(pool->threads[i].handle, NULL);
    free(pool);
}

size_t pool_thread_count(const struct pool *pool) { return pool->thread_count; }

void pool_run(struct pool *pool, pool_task *task, void *context) {
    atomic_store_explicit(&pool->ticket, 0, memory_order_relaxed);
    if (pool->thread_count > 1) {
        ASSERT(atomic_load(&pool->running) == 0);
        leave_workers_processor(pool);
        pool->task = task;
        pool->context = context;
        atomic_store_explicit(&pool->running, (uint32_t)(pool->thread_count - 1), memory_order_relaxed);
        announce(pool);
    }
    run_part(pool, &pool->threads[0], task, context);
    unsigned round = 0;
    while (atomic_load_explicit(&pool->running, memory_order_acquire) != 0) relax(pool, round++);
    for (size_t i = 0; pool->trace != NULL && i < pool->thread_count; i++)
        trace_thread(pool->trace, i, pool->threads[i].began_ns, pool->threads[i].ended_ns);
}

void pool_set_trace(struct pool *pool, struct trace *trace) { pool->trace = trace; }

void pool_barrier(const struct pool_worker *worker) {
    struct pool *pool = worker->pool;
    if (worker->count == 1) return;
    uint32_t phase = atomic_load_explicit(&pool->barrier_phase, memory_order_relaxed);
    uint32_t arrived = atomic_fetch_add_explicit(&pool->barrier_arrived, 1, memory_order_acq_rel);
    if (arrived + 1 == worker->count) {
        atomic_store_explicit(&pool->barrier_arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->barrier_phase, phase + 1, memory_order_release);
        return;
    }
    unsigned round = 0;
    while (atomic_load_explicit(&pool->barrier_phase, memory_order_acquire) == phase) relax(pool, round++);
}

size_t pool_ticket(const struct pool_worker *worker) {
    return atomic_fetch_add_explicit(&worker->pool->ticket, 1, memory_order_relaxed);
}

struct range pool_range(const struct pool_worker *worker, size_t total, size_t granule) {
    size_t pieces = (total + granule - 1) / granule;
    size_t begin = pieces * worker->index / worker->count * granule;
    size_t end = pieces * (worker->index + 1) / worker->count * granule;
    return (struct range){min_size(begin, total), min_size(end, total)};
}

/* pool: a fixed set of pinned compute threads with fork-join in microseconds.
 *
 * pool_run runs one function on every thread and returns when all are done; the
 * caller is thread 0.  Threads spin a short while between runs, then sleep on a
 * futex, so that an idle engine costs nothing.  One caller at a time.  Signals
 * from outside (SIGINT, SIGTERM, SIGWINCH ...) never run on the other threads.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct pool;
struct trace;

/* One thread's part of a run. */
struct pool_worker {
    size_t index, count; /* this thread, of how many */
    struct pool *pool;
};

typedef void pool_task(void *context, const struct pool_worker *worker);

/* thread_count 0 means one per processor this process may run on. */
enum status pool_create(struct pool **pool, size_t thread_count, struct error *error) STATUS_CHECKED;
void pool_destroy(struct pool *pool); /* NULL is allowed */
size_t pool_thread_count(const struct pool *pool);

void pool_run(struct pool *pool, pool_task *task, void *context);
/* Between runs: from now on a trace (platform/trace.h) is told when each thread was busy; NULL: no more. */
void pool_set_trace(struct pool *pool, struct trace *trace);

/* Inside a task: nobody passes before all threads have come.  Everything written
 * before it is seen by everyone after it. */
void pool_barrier(const struct pool_worker *worker);

/* Inside a task: hands out 0, 1, 2, ... over all threads (uneven work), from zero on in each pool_run. */
size_t pool_ticket(const struct pool_worker *worker);

struct range {
    size_t begin, end; /* [begin, end) */
};

/* This worker's contiguous range of total items, cut at multiples of granule. */
struct range pool_range(const struct pool_worker *worker, size_t total, size_t granule);

#include "moved_clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

int __real_clock_gettime(clockid_t id, struct timespec *now);
int __wrap_clock_gettime(clockid_t id, struct timespec *now);

static _Atomic uint64_t skipped_ns, stopped_ns; /* stopped_ns 0: it runs */

int __wrap_clock_gettime(clockid_t id, struct timespec *now) {
    const int failed = __real_clock_gettime(id, now);
    if (failed != 0 || id != CLOCK_MONOTONIC) return failed;
    const uint64_t stopped = atomic_load(&stopped_ns);
    const uint64_t ns = atomic_load(&skipped_ns) +
                        (stopped > 0 ? stopped : (uint64_t)now->tv_sec * SECOND + (uint64_t)now->tv_nsec);
    now->tv_sec = (time_t)(ns / SECOND);
    now->tv_nsec = (long)(ns % SECOND);
    return 0;
}

/* The service's waits.  What was skipped before one began is no time that it waits. */
int __real_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until);

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until) {
    const uint64_t skipped = atomic_load(&skipped_ns),
                   at = (uint64_t)until->tv_sec * SECOND + (uint64_t)until->tv_nsec,
                   real = at > skipped ? at - skipped : 0;
    const struct timespec end = {(time_t)(real / SECOND), (long)(real % SECOND)};
    return __real_pthread_cond_timedwait(condition, mutex, &end);
}

void clock_skip(uint64_t ns) { atomic_fetch_add(&skipped_ns, ns); }

void stop_clock(void) {
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    atomic_store(&stopped_ns, (uint64_t)now.tv_sec * SECOND);
}

void start_clock(void) {
    atomic_store(&stopped_ns, 0);
    atomic_store(&skipped_ns, 0);
}

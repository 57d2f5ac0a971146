#include "platform/io_link.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "platform/clock.h"

static const uint64_t SECOND_NS = 1000000000;

static struct {
    pthread_mutex_t lock;
    uint64_t free_ns;
    _Atomic uint64_t bytes_per_second;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t io_link_move(uint64_t *free_ns, uint64_t now_ns, uint64_t bytes, uint64_t bytes_per_second) {
    const uint64_t begin = *free_ns > now_ns ? *free_ns : now_ns;
    const uint64_t whole = bytes / bytes_per_second, rest = bytes % bytes_per_second;
    *free_ns = begin + whole * SECOND_NS + (uint64_t)((double)rest * 1e9 / (double)bytes_per_second);
    return *free_ns;
}

void io_link_limit(uint64_t bytes_per_second) { atomic_store(&shared.bytes_per_second, bytes_per_second); }

uint64_t io_link_read(uint64_t bytes) {
    const uint64_t rate = atomic_load(&shared.bytes_per_second);
    if (rate == 0) return 0;
    pthread_mutex_lock(&shared.lock);
    const uint64_t due = io_link_move(&shared.free_ns, clock_ns(), bytes, rate);
    pthread_mutex_unlock(&shared.lock);
    return due;
}

void io_link_wait_until(uint64_t due_ns) {
    const struct timespec until = {.tv_sec = (time_t)(due_ns / SECOND_NS), .tv_nsec = (long)(due_ns % SECOND_NS)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) continue;
}

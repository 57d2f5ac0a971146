/* clock: monotonic time. */
#ifndef LOAM_PLATFORM_CLOCK_H
#define LOAM_PLATFORM_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline double clock_seconds(void) { return (double)clock_ns() * 1e-9; }

#endif

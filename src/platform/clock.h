/* clock: monotonic time, and what of it this process had of the processors. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
static inline uint64_t clock_ns(void) { return clock_ns_of(CLOCK_MONOTONIC); }
static inline uint64_t clock_processor_ns(void) { return clock_ns_of(CLOCK_PROCESS_CPUTIME_ID); } /* all threads' */

static inline double clock_seconds(void) { return (double)clock_ns() * 1e-9; }

/* moved_clock: a clock that a test stops and moves.  The test is linked with --wrap=clock_gettime and
 * --wrap=pthread_cond_timedwait, so that loam's code calls what is here. */
#pragma once

#include <stdint.h>

#define SECOND UINT64_C(1000000000)

void clock_skip(uint64_t ns);
void stop_clock(void); /* at a whole second; it moves by skips alone */
void start_clock(void);

/* fake_control: what tests ask the fake driver, by dlsym on its library. */
#pragma once

#include <stdint.h>

/* Calls of a symbol since the driver was started; of all: NULL. */
typedef uint64_t fake_call_count_function(const char *symbol);
/* What the last context left behind when it was released: streams, events, modules, graphs, allocations. */
typedef uint64_t fake_leak_count_function(void);
/* Nothing is open any more, as where a process has ended: the next cuInit reads its settings. */
typedef void fake_start_anew_function(void);
/* From here on calls, kernels and words are counted anew, and the faults of before are gone.  One may be given, a
 * setting of FAKE_CUDA, whose calls are counted from here.  "": none. */
typedef void fake_count_from_here_function(const char *setting);

/* process: whether another process is still there. */
#ifndef LOAM_PLATFORM_PROCESS_H
#define LOAM_PLATFORM_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* False only when it is certain: there is none of that id here, or it has ended and nobody has asked how yet.  An id
 * may have been given to another process since; then this says true. */
bool process_is_running(uint64_t id);

#endif

/* process: whether another process is still running. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* False only if no process has this id, or it is a zombie.  If the id was given to another process since, this returns
 * true. */
bool process_is_running(uint64_t id);

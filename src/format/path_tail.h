/* path_tail: paths in messages, whose length is bounded. */
#pragma once

#include <stddef.h>
#include <string.h>

enum { PATH_TAIL_BYTES = 140 }; /* leaves space for a field and the value found */

/* The last bytes of a long path, which say more than its first ones; all of a short one. */
static inline const char *path_tail(const char *path, size_t length_max) {
    size_t length = strlen(path);
    return length <= length_max ? path : path + length - length_max;
}

/* path_tail: paths in messages, whose length is bounded. */
#ifndef LOAM_FORMAT_PATH_TAIL_H
#define LOAM_FORMAT_PATH_TAIL_H

#include <stddef.h>
#include <string.h>

enum { PATH_TAIL_BYTES = 140 }; /* leaves room for a field and what was found of it */

/* The last bytes of a path, which tell more than its first; all of a short one. */
static inline const char *path_tail(const char *path, size_t most) {
    size_t length = strlen(path);
    return length <= most ? path : path + length - most;
}

#endif

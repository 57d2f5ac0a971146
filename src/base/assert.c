#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void assert_failed(const char *expression, const char *file, int line) {
    /* The only place where a library prints: the process is about to die of a bug of its own. */
    fprintf(stderr, "loam: bug: %s does not hold at %s:%d\n", expression, file, line);
    abort();
}

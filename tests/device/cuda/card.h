/* card: where a test of the cuda device runs.  As a rule over the fake driver in its build folder.  LOAM_TEST_DRIVER
 * names another one, as the system's loader finds it (libcuda.so.1: the machine's own), and LOAM_TEST_SOURCE another
 * folder that has models/, where the test was brought to a machine without the source. */
#pragma once

#include <stdlib.h>

static inline const char *card_driver(const char *fake) {
    const char *named = getenv("LOAM_TEST_DRIVER");
    return named != NULL ? named : fake;
}

static inline const char *card_source(void) {
    const char *named = getenv("LOAM_TEST_SOURCE");
    return named != NULL ? named : LOAM_SOURCE_DIR;
}

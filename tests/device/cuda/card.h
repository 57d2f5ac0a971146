/* card: where a test of the cuda device runs.  As a rule over the fake driver in its build folder.  LOAM_TEST_DRIVER
 * names another one, as the system's loader finds it (libcuda.so.1: the machine's own), and LOAM_TEST_SOURCE another
 * folder that has models/, where the test was brought to a machine without the source. */
#pragma once

#include <dlfcn.h>
#include <stdlib.h>

#include "device/cuda/fake/fake_control.h"

static inline const char *card_driver(const char *fake) {
    const char *named = getenv("LOAM_TEST_DRIVER");
    return named != NULL ? named : fake;
}

/* A test begins: what one that failed has left open over the fake driver is not there for it. */
static inline void card_start_anew(const char *fake) {
    void *library = dlopen(fake, RTLD_NOW | RTLD_NOLOAD);
    fake_start_anew_function *start_anew;
    if (library == NULL) return; /* none has begun */
    *(void **)&start_anew = dlsym(library, "fake_start_anew");
    if (start_anew != NULL) start_anew();
    (void)dlclose(library);
}

static inline const char *card_source(void) {
    const char *named = getenv("LOAM_TEST_SOURCE");
    return named != NULL ? named : LOAM_SOURCE_DIR;
}

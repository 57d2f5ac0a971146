/* real_model: the language model that `./do model` fetches, for tests that need one.  They are REAL_MODEL in loam_test,
 * which defines the path.  LOAM_TEST_REAL_MODEL=none: as if it were not there. */
#pragma once

#ifndef REAL_MODEL
#error "this test's loam_test lacks REAL_MODEL"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What main returns where the model is absent (77: skipped), having said so; else 0. */
static inline int real_model_missing(void) {
    const char *wanted = getenv("LOAM_TEST_REAL_MODEL");
    if ((wanted == NULL || strcmp(wanted, "none") != 0) && access(REAL_MODEL, R_OK) == 0) return 0;
    puts("skipped: without models/SmolLM2-135M-Instruct.Q4_1.gguf (./do model brings it)");
    return 77;
}

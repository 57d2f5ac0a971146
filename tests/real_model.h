/* real_model: the language model that `./do model` fetches, for tests that need one.  They are REAL_MODEL in loam_test,
 * which defines the path.  LOAM_TEST_REAL_MODEL=none: as if it were not there; none,looks: and of a program that has
 * cases of both kinds only those that look for it, whose names end in _a_real_model: the others do the same with it. */
#pragma once

#ifndef REAL_MODEL
#error "this test's loam_test lacks REAL_MODEL"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline int real_model_is_hidden(void) {
    const char *wanted = getenv("LOAM_TEST_REAL_MODEL");
    return wanted != NULL && (strcmp(wanted, "none") == 0 || strcmp(wanted, "none,looks") == 0);
}

/* Whether only those are to run that look for it. */
static inline int real_model_looks_alone(void) {
    const char *wanted = getenv("LOAM_TEST_REAL_MODEL");
    return wanted != NULL && strcmp(wanted, "none,looks") == 0;
}

/* What main returns where the model is absent (77: skipped), having said so; else 0. */
static inline int real_model_missing(void) {
    if (!real_model_is_hidden() && access(REAL_MODEL, R_OK) == 0) return 0;
    puts("skipped: without models/SmolLM2-135M-Instruct.Q4_1.gguf (./do model brings it)");
    return 77;
}

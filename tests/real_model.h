/* real_model: the language model that `./do model` fetches, for tests that need one. */
#ifndef LOAM_TESTS_REAL_MODEL_H
#define LOAM_TESTS_REAL_MODEL_H

#include <stdio.h>
#include <unistd.h>

#define REAL_MODEL LOAM_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"

/* What main returns where the model is absent (77: skipped), having said so; else 0. */
static inline int real_model_missing(void) {
    if (access(REAL_MODEL, R_OK) == 0) return 0;
    puts("skipped: models/SmolLM2-135M-Instruct.Q4_1.gguf is not here (./do model brings it)");
    return 77;
}

#endif

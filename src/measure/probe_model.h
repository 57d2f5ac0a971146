/* probe_model: a model of random weights to measure steps with: 4 layers of 8 KV heads of 64, and little else. */
#pragma once

#include <stdint.h>

#include "base/status.h"

enum {
    PROBE_LAYERS = 4, /* at most */
    PROBE_KV_HEADS = 8,
    PROBE_DIMENSION = 64,
    PROBE_HIDDEN = 256,
    PROBE_VOCABULARY = 512,
    PROBE_CONTEXT = 1 << 20,
};

/* Writes a GGUF file of so many layers, whose KV heads have so many query heads each. */
enum status probe_model_write(const char *path, uint32_t layers, uint32_t group, struct error *error) STATUS_CHECKED;

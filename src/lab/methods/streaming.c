/* streaming: StreamingLLM's first and last tokens, by the product's method window. */
#include "plan/presets.h"

static const struct preset streaming = {
    .name = "streaming",
    .summary = "the first and the last tokens (StreamingLLM)",
    .methods = {"window", "none", "none", "even", "f16", "none"},
    .keep = "2048",
    .planning = PRESET_IS_PLANNED,
    .measured = "streaming",
};

__attribute__((constructor)) static void add(void) { preset_add(&streaming); }

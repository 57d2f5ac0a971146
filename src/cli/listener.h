/* listener: how a terminal follows a generation: progress and notes on standard error; Ctrl-C stops it. */
#pragma once

#include "cli/progress.h"
#include "generate/generate.h"

/* Must not move during the generation. */
struct listener {
    struct progress progress;
    bool quiet;
};

struct generation_listener listener_of(struct listener *listener);

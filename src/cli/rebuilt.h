/* rebuilt: reports what was computed again instead of read (--set rebuild=recompute). */
#pragma once

#include <jansson.h>

#include "attention/attention.h"
#include "engine/engine.h"

/* A line for the user: how much was computed again, or why nothing was; nothing where nobody asked for it. */
void rebuilt_print(const struct engine *engine);
/* The same for --json; NULL: nobody asked. */
json_t *rebuilt_json(const struct rebuild_statistics *statistics);

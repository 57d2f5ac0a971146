/* bench_replay: contexts of `bench` that a program adds: loam-lab's --replay (lab/replay). */
#pragma once

#include "engine/engine.h"

/* Sequence `index` at a depth, for so many steps behind it. */
struct replay_place {
    struct sequence *sequence;
    size_t index;
    uint64_t depth, step_count;
};

struct bench_replay {
    enum status (*open)(void **state, const char *path, struct error *error);
    /* The sequence is depth tokens long then, and the engine's steps go on as what was opened says. */
    enum status (*fill)(void *state, struct engine *engine, const struct replay_place *place, struct error *error);
    void (*forget)(void *state); /* the engine and its sequences go */
    void (*close)(void *state);
};
extern const struct bench_replay *bench_replay; /* NULL, unless the program sets it */

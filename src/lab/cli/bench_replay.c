/* loam-lab bench --replay: contexts and steps of a recording (lab/replay/recording.h). */
#include "cli/bench_replay.h"

#include <stdlib.h>

#include "lab/replay/recording.h"

enum { FILL_SEED = 1 };

struct replays {
    struct recording recording;
    struct replay list[ENGINE_SEQUENCES_MAX];
    struct replay_steps steps;
    struct step_replay given;
};

static void forget(void *state) {
    struct replays *replays = state;
    for (size_t i = 0; i < ENGINE_SEQUENCES_MAX; i++) replay_destroy(&replays->list[i]);
}

static void close_replays(void *state) {
    struct replays *replays = state;
    recording_close(&replays->recording);
    free(replays->steps.floats);
    free(replays);
}

static enum status open_replays(void **state, const char *path, struct error *error) {
    struct replays *replays = calloc(1, sizeof *replays);
    if (replays == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    replays->steps.replays = replays->list;
    replays->given = (struct step_replay){replay_steps_rows, &replays->steps};
    const enum status status = recording_open(&replays->recording, path, error);
    if (status == STATUS_OK)
        *state = replays;
    else
        close_replays(replays);
    return status;
}

/* Each sequence has different pieces in the middle. */
static enum status fill(void *state, struct engine *engine, const struct replay_place *place, struct error *error) {
    struct replays *replays = state;
    struct replay *replay = &replays->list[place->index];
    const bool made = replay->source != NULL && replay->depth == place->depth &&
                      replay->first + place->step_count == replays->recording.shape.token_count;
    if (made && sequence_length(place->sequence) >= place->depth) {
        sequence_truncate(place->sequence, place->depth);
        if (sequence_length(place->sequence) == place->depth) return STATUS_OK;
    }
    replay_destroy(replay);
    TRY(replay_create(replay, &replays->recording, place->depth, place->step_count, FILL_SEED + place->index, error));
    TRY(replay_fit(replay, engine_config(engine), error));
    engine_replay_steps(engine, &replays->given);
    sequence_truncate(place->sequence, 0);
    return engine_fill(engine, place->sequence, replay_rows, replay, place->depth, error);
}

const struct bench_replay lab_bench_replay = {open_replays, fill, forget, close_replays};

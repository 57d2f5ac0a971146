/* decode_rig: a small random model with a calibration on a device, tokens for a prompt and its decode steps.  For tests
 * that compare the logits of decode steps between engines: over tiers, with presets, on other devices. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

enum { DECODE_RIG_LAYERS = 4 };

struct decode_rig {
    struct device *device; /* owned */
    struct model *model;   /* owned */
    char *calibration;     /* owned: its path */
    int32_t *tokens;       /* owned */
    size_t width;          /* of a row of logits */
    struct error error;
};

/* DECODE_RIG_LAYERS layers, but for families with states.  name: of the model's file, the test program's own.  device:
 * taken over; NULL: the cpu device. */
void decode_rig_open(struct decode_rig *rig, const char *name, const char *architecture,
                     struct device *device, size_t token_count, uint64_t seed);
/* The same of a model of other shapes, of f32. */
struct tiny_model;
void decode_rig_open_model(struct decode_rig *rig, const char *name, const struct tiny_model *tiny,
                           struct device *device, size_t token_count, uint64_t seed);
/* Of a file that is there. */
void decode_rig_open_file(struct decode_rig *rig, const char *path, struct device *device, size_t token_count,
                          uint64_t seed);
void decode_rig_close(struct decode_rig *rig);

/* A plan of one sequence with KV in f16, over a folder with no budget yet, or with folder NULL in RAM.  Pages are of
 * both forms, where the preset mixes them, independent of what this machine would choose.  The caller deinits it. */
struct plan decode_rig_plan(struct decode_rig *rig, const char *preset, const char *set, const char *keep,
                            const char *folder);
/* A sequence of the first tokens, prefilled. */
struct sequence *decode_rig_prompt(struct decode_rig *rig, struct engine *engine, size_t token_count);
/* The sequence's next token: its logits, [width], valid until the next step. */
const float *decode_rig_step(struct decode_rig *rig, struct engine *engine, struct sequence *sequence);
/* The logits of so many steps, [count][width]; the caller frees. */
float *decode_rig_steps(struct decode_rig *rig, struct engine *engine, struct sequence *sequence,
                        size_t count);

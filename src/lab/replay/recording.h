/* recording: a file with queries, keys and values of a real run, and contexts of any length and shape made from it.
 *
 * `loam-lab trace record` writes the rows of chosen layers for a text, after rotation.  `loam-lab bench --replay`
 * attends with them.  Random keys are no substitute: no key stands out, neighbours have nothing in
 * common, and every step selects other chunks.  So cache hits, bytes read and prefetching differ from those of text.
 *
 * The file, little-endian:
 *
 *   8 bytes  "LOAMQKV1"
 *   u32      tokens T, query heads H, KV heads G, dimension of K and of V, pairs P that are rotated (0: no rotation),
 *            order of the pairs (enum rope_order), layers L
 *   u32[L]   which layers of the model they are
 *   f32[P]   angle per position of each pair
 *   per layer, halves: K [T][G][dimension], V [T][G][dimension], Q [T][H][dimension]
 *   u64      fnv1a-64 of all before it, by words of 8 bytes, the last one padded with zeros
 *
 * The tiling makes a context of another length, for a decode that begins at depth D.  The recording's last rows are the
 * steps; F is the first of them.
 *   sinks    the first REPLAY_SINKS positions are the recording's
 *   recent   the last min(D, F) - REPLAY_SINKS positions are the recording's rows before F, unchanged
 *   between  pieces of 64 to 575 rows from random places of the recording, one after another: text continues within a
 *            piece, nothing repeats periodically, and no piece keeps its place within a chunk
 * A key that moved is rotated by the distance, so that a query sees it at its new position.  If D exceeds the
 * recording's length, content repeats: a token occurs several times.  Layers and heads of a larger model take those of
 * the recording in turn.  Attention's outputs go into the model as usual and do not change what is attended to next.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/engine.h"
#include "model/model.h"
#include "platform/file.h"

struct recording_shape {
    uint32_t token_count, head_count, kv_head_count, k_dimension, v_dimension, pair_count, rope_order, layer_count;
};

/* ---- writing ---- */

struct recorder;
/* layers: [layer_count] of the model, ascending.  Keeps the whole recording in memory until it is written. */
enum status recorder_create(struct recorder **recorder, const struct model *model, const size_t *layers,
                            size_t layer_count, size_t token_count, struct error *error) STATUS_CHECKED;
void recorder_destroy(struct recorder *recorder); /* NULL allowed */
/* An attention_observer (model.h); context: the recorder.  Rows behind token_count are dropped. */
void recorder_observe(void *context, const struct attention_event *event);
enum status recorder_write(const struct recorder *recorder, const char *path, struct error *error) STATUS_CHECKED;

/* ---- reading ---- */

struct recording {
    struct file_map map;
    struct recording_shape shape;
    const uint32_t *layers;   /* [layer_count]; as the next two, borrowed from the map */
    const float *frequencies; /* [pair_count] */
    const uint16_t *rows;     /* of the first layer */
};
/* STATUS_DOCUMENT, naming the field: the file is not a recording, or it is damaged. */
enum status recording_open(struct recording *recording, const char *path, struct error *error) STATUS_CHECKED;
void recording_close(struct recording *recording);

/* ---- contexts ---- */

enum { REPLAY_SINKS = 16 };

struct replay_shape {
    size_t layer_count, head_count, kv_head_count;
};
struct replay {
    const struct recording *recording; /* borrowed */
    uint64_t depth;
    uint32_t first;            /* the row decoded at position depth */
    uint32_t *source;          /* owned, [depth]: the row at each position */
    struct replay_shape shape; /* of the model that replay_fit was called for */
};
/* STATUS_USAGE: the recording is too short for a context and step_count steps. */
enum status replay_create(struct replay *replay, const struct recording *recording, uint64_t depth, uint64_t step_count,
                          uint64_t seed, struct error *error) STATUS_CHECKED;
void replay_destroy(struct replay *replay);

/* The rows of one position for one layer of a model of this shape; heads have the recording's dimensions.  Positions
 * from depth on are steps.  k, v: [kv_head_count][dimension]; q: [head_count][dimension]. */
void replay_keys_values(const struct replay *replay, const struct replay_shape *shape, size_t layer, uint64_t position,
                        float *k, float *v);
void replay_queries(const struct replay *replay, const struct replay_shape *shape, size_t layer, uint64_t position,
                    float *q);
/* For a model of this shape.  STATUS_USAGE: the dimensions of its heads differ.  STATUS_UNSUPPORTED: layers keep a
 * state. */
enum status replay_fit(struct replay *replay, const struct model_config *config, struct error *error) STATUS_CHECKED;
/* The context's rows (engine_fill); context: the replay. */
enum status replay_rows(void *context, size_t layer, uint64_t position, const struct rows_target *target,
                        struct error *error);
/* What sequences attend with in their steps, each from its replay (struct step_replay). */
struct replay_steps {
    const struct replay *replays; /* borrowed; [rows of a step] */
    float *floats;                /* owned: queries, keys and values of every layer; NULL before the first step */
};
enum status replay_steps_rows(void *context, const uint64_t *positions, size_t count, struct forward_replay *rows,
                              struct error *error);

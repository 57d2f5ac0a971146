/* recording: queries, keys and values of a real run, in a file, and a context of any length and shape made of them.
 *
 * `loam trace record` writes what chosen layers computed for a text, after rotation; `loam bench --replay` attends with
 * it.  Normal values as keys are no keys: nothing stands out among them, neighbours have nothing in common, and a query
 * asks for other chunks at every step, so hits, bytes read and prefetching are not those of text.
 *
 * The file, little-endian:
 *
 *   8 bytes  "LOAMQKV1"
 *   u32      tokens T, query heads H, KV heads G, dimension of K and of V, pairs P that are rotated (0: no rotation),
 *            order of the pairs (enum rope_order), layers L
 *   u32[L]   which layers of the model they are
 *   f32[P]   angle per position of each pair
 *   per layer, halves: K [T][G][dimension], V [T][G][dimension], Q [T][H][dimension]
 *   u64      fnv1a-64 of all that, by words of 8 bytes, the last one filled up with zeros
 *
 * A context of another length (the tiling), for a decode that begins at depth D: with F the first row that is decoded,
 * so that the recording's last rows are the steps,
 *   sinks    the first REPLAY_SINKS positions are the recording's
 *   recent   the last min(D, F) - REPLAY_SINKS positions are the recording's rows before F, as they were
 *   between  pieces of 64 to 575 rows from random places of the recording, behind one another: text goes on within a
 *            piece, nothing repeats with a period, and no piece keeps its place within a chunk
 * Keys that stand elsewhere than in the recording are rotated on by the distance, so that a query meets them as far
 * away as they are.  Content repeats all the same when D is longer than the recording: the same token is there several
 * times.  Layers and heads of a larger model take those of the recording in turn.  The values that a step computes from
 * attention go into the model as always and change nothing of what is attended to next.
 */
#ifndef LOAM_ENGINE_RECORDING_H
#define LOAM_ENGINE_RECORDING_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/model.h"
#include "platform/file.h"

struct recording_shape {
    uint32_t token_count, head_count, kv_head_count, k_dimension, v_dimension, pair_count, rope_order,
        layer_count;
};

/* ---- writing ---- */

struct recorder;
/* layers: [layer_count] of the model, ascending.  Holds all of it in memory until it is written. */
enum status recorder_create(struct recorder **recorder, const struct model *model, const size_t *layers,
                            size_t layer_count, size_t token_count, struct error *error) STATUS_CHECKED;
void recorder_destroy(struct recorder *recorder); /* NULL allowed */
/* An attention_observer (model.h); context: the recorder.  Rows past token_count are left out. */
void recorder_observe(void *context, const struct attention_event *event);
enum status recorder_write(const struct recorder *recorder, const char *path, struct error *error)
    STATUS_CHECKED;

/* ---- reading ---- */

struct recording {
    struct file_map map;
    struct recording_shape shape;
    const uint32_t *layers;   /* [layer_count], borrowed from the map as the rest */
    const float *frequencies; /* [pair_count] */
    const uint16_t *rows;     /* of the first layer */
};
/* STATUS_DOCUMENT, naming the field: it is none, or damaged. */
enum status recording_open(struct recording *recording, const char *path, struct error *error) STATUS_CHECKED;
void recording_close(struct recording *recording);

/* ---- a context made of it ---- */

enum { REPLAY_SINKS = 16 };

struct replay {
    const struct recording *recording; /* borrowed */
    uint64_t depth;
    uint32_t first;   /* row that is decoded at position depth */
    uint32_t *source; /* owned, [depth]: the row that stands at a position */
};
/* STATUS_USAGE: step_count steps leave no context of the recording. */
enum status replay_create(struct replay *replay, const struct recording *recording, uint64_t depth,
                          uint64_t step_count, uint64_t seed, struct error *error) STATUS_CHECKED;
void replay_destroy(struct replay *replay);

/* The model's rows of one position: of layer `layer` of layer_count, of kv_head_count KV heads (and head_count query
 * heads) of the recording's dimensions.  Positions from depth on are steps. */
struct replay_shape {
    size_t layer_count, head_count, kv_head_count;
};
void replay_keys_values(const struct replay *replay, const struct replay_shape *shape, size_t layer,
                        uint64_t position, float *k, float *v);
void replay_queries(const struct replay *replay, const struct replay_shape *shape, size_t layer,
                    uint64_t position, float *q);

#endif

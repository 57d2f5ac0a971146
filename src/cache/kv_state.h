/* kv_state (decision 0090): what a sequence has of layers that keep a state in place of K and V: the state behind its
 * last token, those that a batch is about to leave, and snapshots of earlier ones, to which it may be cut back.
 *
 * Slots hold the states of all such layers of a model behind one position.  A batch reads the state of the sequence's
 * length and writes others, so that one that fails, pauses or is dropped leaves the sequence as it was:
 *
 *   plan    positions whose states are to be kept, of a prompt that is about to be read
 *   begin   a batch of rows [length, end): slots for the planned positions within it, and for end
 *   part    of rows of a layer, the first ones that share a slot
 *   commit  kv_sequence_set_length: the rows are the sequence's
 *
 *   1  A slot with a position has the state behind that many tokens of the sequence.
 *   2  The state at the length is in a slot, or is all zeros (of no token).
 *   3  A snapshot is a slot that no batch writes; where slots run short kv_snapshots.h says which goes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cache/kv_snapshots.h"
#include "device/device.h"

/* Snapshots of a sequence, at most; slots beside them: of the length, and of a batch. */
enum { KV_STATE_SNAPSHOTS_MAX = KV_SNAPSHOTS_MAX, KV_STATE_SLOTS_BESIDE = 2 };

struct kv_state;

/* float_count: of a state, all layers; slot_count: at least KV_STATE_SLOTS_BESIDE + 1. */
enum status kv_state_create(struct kv_state **state, struct device *device, size_t float_count, size_t slot_count,
                            struct error *error) STATUS_CHECKED;
void kv_state_destroy(struct kv_state *state); /* NULL allowed */

size_t kv_state_snapshots(const struct kv_state *state); /* at most */
/* kv_snapshots_plan, of as many as there may be snapshots at most. */
void kv_state_plan(struct kv_state *state, const uint64_t *positions, size_t count, uint64_t turn);
/* May be called again for the same batch. */
void kv_state_begin(struct kv_state *state, uint64_t end);
/* Of rows [position, end) of the batch: up to where the first ones go, and the states before and behind those. */
struct kv_state_part {
    uint64_t end;
    struct span from, to; /* of all layers; from none: zeros */
};
struct kv_state_part kv_state_part(struct kv_state *state, uint64_t position, uint64_t end);

/* The sequence is so long.  Longer: by the batch, or, where that wrote nothing (fill.c), by rows without a state,
 * behind which it is zeros.  As long: the batch is dropped.  Shorter: kv_state_longest of it. */
void kv_state_set_length(struct kv_state *state, uint64_t length);
/* The longest length up to `length` whose state is there. */
uint64_t kv_state_longest(const struct kv_state *state, uint64_t length);
/* For a sequence without tokens: the state of another one at such a length. */
void kv_state_copy(struct kv_state *state, const struct kv_state *other, uint64_t length, struct stream *stream);

/* ---- saved ones ---- */

/* Positions whose states are in memory, ascending: snapshots, and the length; none where that state is zeros. */
enum { KV_STATE_POSITIONS_MAX = KV_STATE_SNAPSHOTS_MAX + 1 };
size_t kv_state_positions(const struct kv_state *state, uint64_t positions[KV_STATE_POSITIONS_MAX]);
struct span kv_state_at(const struct kv_state *state, uint64_t position); /* of these; [float_count] */
struct span kv_state_spare(const struct kv_state *state); /* of a slot that is free until a batch begins */
/* kv_snapshots_thin. */
size_t kv_state_thin(const struct kv_state *state, uint64_t *positions, size_t count, size_t most);
/* For a sequence without tokens: where the state of such a length is to be filled in; and the sequence is so long.
 * Without the latter, kv_state_set_length to 0 drops it. */
struct span kv_state_begin_load(struct kv_state *state, uint64_t length);
void kv_state_end_load(struct kv_state *state, uint64_t length);

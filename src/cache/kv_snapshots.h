/* kv_snapshots: which lengths of a sequence it may be cut back to, where what it has behind a token cannot all be kept:
 * states of layers that have no K and V (kv_state.h), K and V of layers that attend to a window (kv_windows.h).  Those
 * go first whose neighbours are closest, as seen from the end: distances of those that stay double backwards. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KV_SNAPSHOTS_MAX = 8,
    KV_STEPS_BETWEEN = 256, /* tokens between two of an answer */
};

/* Of a prompt that is about to be read. */
struct kv_snapshot_plan {
    uint64_t positions[KV_SNAPSHOTS_MAX]; /* ascending */
    size_t count;
    uint64_t prompt_end, turn; /* of the last plan: its last position, and the other one that goes last */
};

/* In place of what was planned and not reached: ascending positions.  The last one and `turn`, one of them or 0, go
 * last. */
void kv_snapshots_plan(struct kv_snapshot_plan *plan, const uint64_t *positions, size_t count, uint64_t turn);
/* Where other answers begin, and other prompts: what goes last. */
static inline bool kv_snapshot_is_wanted(const struct kv_snapshot_plan *plan, uint64_t position) {
    return position == plan->prompt_end || position == plan->turn;
}
/* How far from each other a position's neighbours are, as seen from the end. */
static inline double kv_snapshot_gap(uint64_t before, uint64_t position, uint64_t behind, uint64_t end) {
    return (double)(behind - before) / (double)(end - position + 1);
}
/* Leaves `most` of ascending positions: the last one, those that go last, and those that would be missed most. */
size_t kv_snapshots_thin(const struct kv_snapshot_plan *plan, uint64_t *positions, size_t count, size_t most);

/* kv_windows (decision 0106): of layers whose rows attend to a window, a sequence has no K and V that no row to come
 * will read: chunks are kept that the windows of its next row see, or of the row behind a snapshot (kv_snapshots.h), to
 * which it may be cut back.  They lie in columns of their own, which are given back as the sequence goes on.
 *
 *   plan    positions that a prompt may be cut back to (kv_sequence_plan_snapshots)
 *   begin   a batch of rows [length, end): columns for its chunks
 *   commit  kv_sequence_set_length: those that no window sees are given back
 *
 *   1  The chunks of rows [p + 1 - tokens, p) are there, p the length or a snapshot; and those of a batch.
 *   2  A sequence never has more than kv_window_columns: no batch lacks memory.
 *
 * With a tier (kv_tier.h) these chunks have slots and pages as others do, and no columns: a sequence knows which it
 * has, and the tier forgets the others, in RAM and on disk.  Where K and V lie in the host's memory without one, all
 * stay. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache/kv_groups.h"
#include "kernels/attention/kv_layout.h"

/* Snapshots of a sequence, at most. */
enum { KV_WINDOW_SNAPSHOTS = 4 };

struct kv_windows {
    uint64_t tokens; /* of the largest window: the row at position p sees those from p + 1 - tokens on */
    bool slides[KV_GROUPS_LAYERS_MAX]; /* of the layers that store K and V: all that read these attend to windows */
};

/* The first chunk that the window of the row at a position sees; and whether it sees one, but for the row's own. */
static inline uint64_t kv_window_begin(uint64_t tokens, uint64_t position) {
    return position + 1 > tokens ? (position + 1 - tokens) / KV_CHUNK_TOKENS : 0;
}
static inline bool kv_window_sees(uint64_t tokens, uint64_t position, uint64_t chunk) {
    return chunk >= kv_window_begin(tokens, position) && chunk * KV_CHUNK_TOKENS < position;
}

/* kv_layer_behind, of layers that attend to everything; windows NULL: all do. */
size_t kv_full_layer_behind(const struct kv_groups *groups, const struct kv_windows *windows, size_t layer_count,
                            size_t count);
static inline bool kv_layer_slides(const struct kv_groups *groups, const struct kv_windows *windows, size_t layer) {
    return windows != NULL && windows->slides[kv_layer_source(groups, layer)];
}

/* Columns of a sequence, at most, where a batch has so many rows of it. */
uint64_t kv_window_columns(const struct kv_windows *windows, size_t batch_rows);

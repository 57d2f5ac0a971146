/* rebuild: part of a layer's K and V computed again from its inputs while the rest is read (KVPR).
 *
 * Of the chunks that a layer attends to and RAM does not hold, a run of neighbours is computed again, as long as
 * attention/rebuild_rates.h says by what the last steps measured.  A layer goes
 *
 *   plan     which chunks; none: the layer goes its usual way (tiered.c)
 *   begin    the reading of their inputs (cache/inputs.h), before K and V of all others are asked for
 *   run      tile by tile as they arrive: K and V of all heads into a workspace, by the model's own operations
 *            (layer_math), while the others are on their way; a run that the workspace does not hold begins and ends
 *            where ranges of attention do, and each range is attended to as soon as it is computed
 *   view     what a head attends to: the workspace's chunks in place of those that were not read
 *   ranges   what has been attended to already
 *
 * Where the tier has room for all that the layer lacks, the run needs no workspace: its chunks are computed to where
 * they would be read to, and stay ("compute or load", decision 0050).
 *
 * While a layer is rebuilt nothing is prefetched for it, which costs what else a layer computes.  So it is rebuilt only
 * where that takes a tenth less than reading all of it beside that computation.
 *
 * So attention sees one context, in ranges that follow from lengths alone.  The rows have the bits of the stored ones:
 * the operations and their order are those of the step that stored them, whose sums do not depend on how many rows go
 * together (decision 0026; not with --cpu-mask amx, nor with NEON).  Inputs that cannot be read, or are not what
 * was written, are not asked for again, and the layer reads its KV.  One sequence at a time.  Thread: the engine's.
 */
#pragma once

#include "attention/attention.h"
#include "attention/fetch.h"
#include "cache/inputs.h"
#include "cache/page_table.h"
#include "cache/slab.h"

struct rebuild;

uint64_t rebuild_bytes(const struct attention_options *options);
enum status rebuild_create(struct rebuild **rebuild, struct device *device, const struct attention_options *options,
                           struct error *error) STATUS_CHECKED;
void rebuild_destroy(struct rebuild *rebuild); /* NULL is allowed */

/* Whether chunks of the layer (of its one item, whose view need not be up to date) are computed again. */
bool rebuild_plan(struct rebuild *rebuild, const struct attention_layer *layer);
/* Whether chunks of this coming layer would be computed again, so that nothing is prefetched for it; its operation is
 * another layer's.  rebuild NULL: no. */
bool rebuild_expects(struct rebuild *rebuild, const struct attention_layer *layer);
/* The chunks of every head that are read, not computed: [*count], valid until the next plan. */
const uint32_t *rebuild_others(const struct rebuild *rebuild, size_t *count);
/* Begins to read the inputs.  others: the chunks that are read beside the rebuilding, planned but not begun. */
enum status rebuild_begin(struct rebuild *rebuild, struct fetch *others, struct error *error) STATUS_CHECKED;
enum status rebuild_run(struct rebuild *rebuild, struct stream *stream, const struct attention_layer *layer,
                        struct fetch *others, struct error *error) STATUS_CHECKED;
/* Tells that inputs failed: those of this sequence are not used any more. */
void rebuild_refuse(struct rebuild *rebuild, const struct error *why);
/* The view of head_count heads from the head of `first` on, for operations that follow on the stream: rebuilt chunks,
 * and those that are in memory.  Heads count from 0. */
struct kv_view rebuild_view(struct rebuild *rebuild, struct stream *stream, const struct kv_view *view,
                            const struct kv_fetch *first, size_t head_count);
/* The ranges that the run has attended to, for the heads from head_first on; NULL: none.  Valid until the next call. */
const struct attend_ranges *rebuild_ranges(struct rebuild *rebuild, size_t head_first);
/* What a layer that has attended, rebuilt or not, did between two clock_ns. */
struct rebuild_layer {
    size_t index;
    size_t row_count;
    uint64_t begin_ns, end_ns;
    uint64_t wait_ns;     /* of them, for reads that came behind the rebuilding */
    uint64_t read_end_ns; /* when the last of the reads had been waited for */
    uint64_t kv_bytes;    /* that were read for it */
    bool is_rebuilt;      /* in part, after rebuild_plan */
};
void rebuild_note(struct rebuild *rebuild, const struct rebuild_layer *layer);
/* All layers have attended, or one of them has failed. */
void rebuild_end_step(struct rebuild *rebuild);
/* Sets the link's rate, measured while nothing else was under way. */
void rebuild_set_link(struct rebuild *rebuild, double bytes_per_second);

/* bus_rebuild's, too: floats of the partials of query heads, whatever groups they are in; a view of what `others` shows
 * and of chunks of a workspace, which are POOL_OTHER of pools; and rows that were computed again, stored where the
 * item's view shows them. */
size_t rebuild_partial_floats(const struct device *device, size_t head_count, size_t v_dimension);
struct kv_view rebuild_view_of(struct kv_pools *pools, const struct slab *chunks, const struct page_table *table,
                               const struct kv_view *others);
void rebuild_append(struct device *device, struct stream *stream, const struct rebuild_rows *rows, size_t kv_head_count,
                    const struct attend_item *item);

/* For tests and benchmarks, as attention_force_rebuild. */
void rebuild_force(struct rebuild *rebuild, size_t chunks);

struct rebuild_statistics rebuild_statistics(const struct rebuild *rebuild);

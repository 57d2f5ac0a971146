/* bus_rebuild: of K and V that lie in RAM behind a device's bus, a first part is computed again on the device from the
 * inputs of its rows, while attention reads the rest over the bus (KVPR; attention/split.h).
 *
 *   keep      rows of a prompt: their inputs, as halves, into pinned RAM, which cost half of the bytes of K and V
 *             without grouped queries
 *   prepare   before a step: how many chunks of each sequence, by what was measured in the first steps
 *   attend    of a layer: the runs of all sequences, one behind the other, are computed into a workspace of the device,
 *             by tiles, beside the ranges of attention behind the runs, over the bus; then those of the runs, and all
 *             are merged in their order
 *
 * So attention has the bits that it has without: rows are multiplied again as they were, a run is whole ranges.  A
 * layer is operations alone that graphs have; the graph is captured anew where a run or its ranges change, so the runs
 * of a step grow together.  Layers before layer_first lie on the device or have no inputs.  Thread: the engine's. */
#pragma once

#include "attention/attention.h"

struct bus_rebuild;

uint64_t bus_rebuild_row_bytes(size_t hidden_size); /* of a token and layer, in pinned RAM */
/* The workspace is what options.unit_bytes of the device's memory hold.  *bus NULL: they hold no tile of a head. */
enum status bus_rebuild_create(struct bus_rebuild **bus, struct device *device, const struct attention_options *options,
                               struct error *error) STATUS_CHECKED;
void bus_rebuild_destroy(struct bus_rebuild *bus); /* NULL is allowed */

void bus_rebuild_keep(struct bus_rebuild *bus, struct stream *stream, const struct attention_inputs *inputs);
void bus_rebuild_truncate(struct bus_rebuild *bus, struct kv_sequence *sequence, uint64_t token_count);
/* runs: out, [row_count]: what a graph cannot differ in. *fits is cleared for a step that is timed: it is no graph. */
void bus_rebuild_prepare(struct bus_rebuild *bus, struct stream *stream, const struct attention_step *step,
                         uint64_t *runs, bool *fits);
void bus_rebuild_end_step(struct bus_rebuild *bus);
/* Whether this layer of the prepared step is computed again in part. */
bool bus_rebuild_takes(const struct bus_rebuild *bus, const struct attention_layer *layer);
enum status bus_rebuild_attend(struct bus_rebuild *bus, struct stream *stream, const struct attention_layer *layer,
                               struct error *error) STATUS_CHECKED;

void bus_rebuild_force(struct bus_rebuild *bus, size_t chunks); /* as attention_force_rebuild */
struct rebuild_statistics bus_rebuild_statistics(const struct bus_rebuild *bus);

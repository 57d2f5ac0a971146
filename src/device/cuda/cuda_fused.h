/* cuda_fused: operations of a graph that are one node together.
 *
 * A layer's decode step is seven nodes for one row (docs/cuda.md), with the bits of its operations.  Operations that
 * follow each other are known by their shapes and spans; what they leave for each other is not written, so none behind
 * them in the graph may read it. */
#pragma once

#include "device/cuda/cuda_device_internal.h"
#include "device/operation_list.h"

/* Launches the operations from this one on that go together; how many.  0: none, this one goes alone. */
size_t cuda_fused_launch(struct stream *stream, const struct operation *first);

/* cuda_attend.c.  attend, whose outputs are made as inputs of 8 bits, input_row_bytes apart, good until the next
 * operation that takes scratch.  Their address; 0: the device is broken. */
uint64_t cuda_attend_inputs(struct stream *stream, const struct attend_operation *operation);
uint64_t cuda_attend_rows_inputs(struct stream *stream, const struct attend_rows_operation *operation);

/* Norms of heads, rotation and append.  A norm without weights: there is none. */
struct rope_append {
    const struct rope_operation *q; /* in place */
    const struct append_operation *append;
    struct span q_norm, k_norm;
    float epsilon;
};
void cuda_rope_append(struct stream *stream, const struct rope_append *heads);

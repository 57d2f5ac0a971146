/* cuda_capture: operations that are captured become one graph of the driver (graph.h).
 *
 * The operations are kept as they come (operation_list.h).  At the end they are put on the stream while it records, so
 * that a node is what a launch would be. */
#pragma once

#include "device/cuda/cuda_device_internal.h"
#include "device/cuda/cuda_graph_memory.h"
#include "device/cuda/graph.h"
#include "device/operation_list.h"

struct graph {
    struct stream *stream; /* borrowed: that captured it, and launches it */
    struct operation_list list;
    struct cuda_graph nodes;
    struct graph_memory memory;
    struct host_turn_operation *turns; /* owned, [turn_count] */
    size_t turn_count, turn;           /* turn: that comes next in the launch under way */
};

enum status cuda_capture_begin(struct stream *stream, struct error *error);
enum status cuda_capture_end(struct stream *stream, struct graph **graph, struct error *error);
void cuda_capture_launch(struct stream *stream, struct graph *graph);
void cuda_capture_destroy(struct graph *graph);

/* The device's operations: they are launched, unless the stream captures. */
#define DECLARE_CAPTURED(KIND, name) \
    void cuda_captured_##name(struct stream *stream, const struct name##_operation *operation);
OPERATIONS_OF_GRAPHS(DECLARE_CAPTURED)
DECLARE_CAPTURED(KEEP_ROWS, keep_rows)
#undef DECLARE_CAPTURED
void cuda_captured_beside(struct stream *stream, const struct beside_operation *operation);
void cuda_captured_host_turn(struct stream *stream, const struct host_turn_operation *operation);

/* cuda_capture: operations that are captured become one graph of the driver (graph.h).
 *
 * The operations are kept as they come (operation_list.h).  At the end they are put on the stream while it records, so
 * that a node is what a launch would be.  Host arrays are staged once, in memory of the graph's own, and sent when it
 * is made; scratch is its own too: the stream's may grow, and then moves. */
#ifndef LOAM_DEVICE_CUDA_CAPTURE_H
#define LOAM_DEVICE_CUDA_CAPTURE_H

#include "device/cuda/cuda_device_internal.h"
#include "device/cuda/graph.h"
#include "device/operation_list.h"

enum { GRAPH_AREAS_MAX = 32, GRAPH_SCRATCH_MAX = 24 };

struct graph_area {
    struct cuda_buffer host, card;
    size_t used;
};

struct graph {
    struct stream *stream; /* borrowed: that captured it, and launches it */
    struct operation_list list;
    struct cuda_graph nodes;
    struct graph_area areas[GRAPH_AREAS_MAX];
    size_t area_count;
    struct cuda_buffer scratch[GRAPH_SCRATCH_MAX]; /* each larger than the one before */
    size_t scratch_count;
    enum status status; /* of making it: the first failure, which is no failure of the device */
    struct error error;
};

enum status cuda_capture_begin(struct stream *stream, struct error *error);
enum status cuda_capture_end(struct stream *stream, struct graph **graph, struct error *error);
void cuda_capture_launch(struct stream *stream, struct graph *graph);
void cuda_capture_destroy(struct graph *graph);

/* For cuda_work.c, while a graph is made: memory that lasts as long as it. */
bool graph_staging_take(struct graph *graph, size_t size_bytes, struct staged *staged);
uint64_t graph_scratch(struct graph *graph, size_t size_bytes);

/* The device's operations: they are launched, unless the stream captures. */
#define DECLARE_CAPTURED(KIND, name) \
    void cuda_captured_##name(struct stream *stream, const struct name##_operation *operation);
OPERATIONS_OF_GRAPHS(DECLARE_CAPTURED)
#undef DECLARE_CAPTURED

#endif

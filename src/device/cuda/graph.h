/* graph: a step, recorded once and replayed.
 *
 * Nodes are added one by one, with the edges that the streams' order and tickets give; the driver's stream capture is
 * not used, since any call that it forbids ends a recording.  Parameters of kernels are frozen: what differs from
 * replay to replay lies in memory (the step block).
 *
 * A kernel that may start early has a programmatic edge from the kernel in front of it, where that is all it comes
 * after and the driver knows such edges; else an ordinary one.
 */
#pragma once

#include "device/cuda/stream.h"

enum { CUDA_GRAPH_STREAMS_MAX = 8 };

struct cuda_graph {
    struct cuda_context *context;
    struct cu_graph *graph;                              /* NULL: none */
    struct cu_graph_exec *exec;                          /* NULL: not recorded yet */
    struct cuda_stream *streams[CUDA_GRAPH_STREAMS_MAX]; /* borrowed: those that record */
    size_t stream_count;
    uint64_t node_count, kernel_count, copy_count, copied_bytes, wait_count;
    uint64_t early_count; /* programmatic edges */
};

/* From now on the stream records. */
enum status cuda_graph_begin(struct cuda_graph *graph, struct cuda_stream *stream, struct error *error) STATUS_CHECKED;
/* Its streams run again. */
enum status cuda_graph_end(struct cuda_graph *graph, struct error *error) STATUS_CHECKED;
/* Zeros: allowed.  No replay is under way. */
void cuda_graph_destroy(struct cuda_graph *graph);

/* A replay comes after those before it, on whatever stream. */
void cuda_graph_launch(struct cuda_graph *graph, struct cuda_stream *stream);

/* For stream.c: a stream joins; nodes. */
void cuda_graph_join(struct cuda_graph *graph, struct cuda_stream *stream);
void cuda_graph_add_launch(struct cuda_stream *stream, const struct cuda_launch *launch);
void cuda_graph_add_copy(struct cuda_stream *stream, uint64_t target, uint64_t source, size_t size_bytes);
void cuda_graph_add_fill(struct cuda_stream *stream, uint64_t target, uint8_t value, size_t size_bytes);
void cuda_graph_add_operations(struct cuda_stream *stream, struct cu_memory_operation *operations, uint32_t count);

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

/* What a node cannot differ in when its graph is changed. */
struct cuda_node {
    struct cu_graph_node *node;
    const struct cu_function *function; /* NULL: no kernel */
    uint64_t same[3]; /* of others than kernels: what they do, and where */
    struct cuda_needed needed;
    bool is_early;
};

struct cuda_graph {
    struct cuda_context *context;
    struct cu_graph *graph;                              /* NULL: none */
    struct cu_graph_exec *exec;                          /* NULL: not recorded yet */
    struct cuda_stream *streams[CUDA_GRAPH_STREAMS_MAX]; /* borrowed: those that record */
    size_t stream_count;
    struct cuda_node *nodes; /* owned, [node_count], room for node_room */
    size_t node_room;
    bool is_changed;  /* what is added are its nodes once more, kernels with other arguments and grids */
    uint64_t changed; /* of them so far */
    bool differs;     /* they are others: it is of no use */
    uint64_t node_count, kernel_count, copy_count, copied_bytes, wait_count;
    uint64_t early_count; /* programmatic edges */
};

/* From now on the stream records. */
enum status cuda_graph_begin(struct cuda_graph *graph, struct cuda_stream *stream, struct error *error) STATUS_CHECKED;
/* The same of one that was recorded: the driver gives its kernels other arguments and grids, which costs it a part of
 * what making them does.  With other nodes than it has, or where the driver refuses, cuda_graph_end says `differs`, and
 * it can but be destroyed.  No replay is under way. */
enum status cuda_graph_begin_change(struct cuda_graph *graph, struct cuda_stream *stream, struct error *error)
    STATUS_CHECKED;
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

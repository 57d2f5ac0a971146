#include "device/cuda/graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

/* ---- nodes ---- */

/* The node is the stream's last: what comes next comes after it. */
static void follow(struct cuda_stream *stream, struct cu_graph_node *node, bool is_kernel) {
    stream->needed = (struct cuda_needed){.nodes = {node}, .count = 1, .is_kernel = is_kernel};
}

static void node_added(struct cuda_stream *stream, enum cu_result result, const struct cuda_node *node) {
    struct cuda_graph *graph = stream->graph;
    if (result == CU_SUCCESS && graph->node_count == graph->node_room) {
        const size_t room = 2 * graph->node_room + 64;
        struct cuda_node *nodes = realloc(graph->nodes, room * sizeof *nodes);
        if (nodes == NULL) result = CU_OUT_OF_MEMORY;
        if (nodes != NULL) graph->nodes = nodes, graph->node_room = room;
    }
    if (!cuda_context_check(stream->context, result, "recording a step")) return;
    graph->nodes[graph->node_count++] = *node;
    follow(stream, node->node, node->function != NULL);
}

static bool is_same(const struct cuda_node *a, const struct cuda_node *b) {
    bool same = a->function == b->function && a->is_early == b->is_early && a->needed.count == b->needed.count &&
                memcmp(a->same, b->same, sizeof a->same) == 0;
    for (size_t i = 0; i < a->needed.count && same; i++) same = a->needed.nodes[i] == b->needed.nodes[i];
    return same;
}

/* Where the graph is changed: the next one of its own nodes.  kernel NULL: it is none, and stays what it is. */
static bool node_is_changed(struct cuda_stream *stream, const struct cuda_node *node,
                            const struct cu_kernel_node *kernel) {
    struct cuda_graph *graph = stream->graph;
    if (!graph->is_changed) return false;
    const struct cuda_node *own = &graph->nodes[graph->changed];
    graph->differs = graph->differs || graph->changed == graph->node_count || !is_same(own, node);
    if (graph->differs) return true;
    graph->changed++;
    if (kernel != NULL)
        graph->differs =
            stream->context->driver->cuGraphExecKernelNodeSetParams(graph->exec, own->node, kernel) != CU_SUCCESS;
    follow(stream, own->node, kernel != NULL);
    return true;
}

void cuda_graph_add_launch(struct cuda_stream *stream, const struct cuda_launch *launch) {
    const struct cuda_driver *driver = stream->context->driver;
    const struct cuda_needed needed = stream->needed;
    const bool is_early = launch->is_early && needed.is_kernel && driver->cuGraphAddDependencies != NULL &&
                          cuda_starts_early(stream->context);
    void *parameters[] = {(void *)(uintptr_t)launch->arguments};
    struct cu_kernel_node kernel = {.function = launch->kernel->function,
                                    .grid = {launch->grid[0], launch->grid[1], launch->grid[2]},
                                    .block = {launch->block[0], launch->block[1], launch->block[2]},
                                    .shared_bytes = launch->shared_bytes,
                                    .parameters = parameters};
    struct cuda_node node = {.function = kernel.function, .needed = needed, .is_early = is_early};
    if (node_is_changed(stream, &node, &kernel)) return;
    enum cu_result result = driver->cuGraphAddKernelNode(&node.node, stream->graph->graph, needed.nodes,
                                                         is_early ? 0 : needed.count, &kernel);
    if (result == CU_SUCCESS && is_early) {
        const struct cu_edge edge = {.from_port = CU_PORT_PROGRAMMATIC, .type = CU_EDGE_PROGRAMMATIC};
        result = driver->cuGraphAddDependencies(stream->graph->graph, needed.nodes, &node.node, &edge, 1);
        stream->graph->early_count++;
    }
    node_added(stream, result, &node);
    stream->graph->kernel_count++;
}

static struct cu_copy_side side(uint64_t address, size_t size_bytes) {
    return (struct cu_copy_side){.memory = CU_MEMORY_UNIFIED, .device = address, .pitch = size_bytes, .height = 1};
}

void cuda_graph_add_copy(struct cuda_stream *stream, uint64_t target, uint64_t source, size_t size_bytes) {
    const struct cu_copy_node copy = {.source = side(source, size_bytes),
                                      .target = side(target, size_bytes),
                                      .width_bytes = size_bytes,
                                      .height = 1,
                                      .depth = 1};
    struct cuda_node node = {.needed = stream->needed, .same = {target, source, size_bytes}};
    if (node_is_changed(stream, &node, NULL)) return;
    enum cu_result result = stream->context->driver->cuGraphAddMemcpyNode(
        &node.node, stream->graph->graph, stream->needed.nodes, stream->needed.count, &copy, stream->context->handle);
    node_added(stream, result, &node);
    stream->graph->copy_count++;
    stream->graph->copied_bytes += size_bytes;
}

void cuda_graph_add_fill(struct cuda_stream *stream, uint64_t target, uint8_t value, size_t size_bytes) {
    const struct cu_fill_node fill = {
        .target = target, .pitch = size_bytes, .value = value, .element_bytes = 1, .width = size_bytes, .height = 1};
    struct cuda_node node = {.needed = stream->needed, .same = {target, value, size_bytes}};
    if (node_is_changed(stream, &node, NULL)) return;
    enum cu_result result = stream->context->driver->cuGraphAddMemsetNode(
        &node.node, stream->graph->graph, stream->needed.nodes, stream->needed.count, &fill, stream->context->handle);
    node_added(stream, result, &node);
}

void cuda_graph_add_operations(struct cuda_stream *stream, struct cu_memory_operation *operations, uint32_t count) {
    const struct cu_memory_operations_node list = {
        .context = stream->context->handle, .count = count, .operations = operations};
    struct cuda_node node = {.needed = stream->needed,
                             .same = {operations->address, operations->operation, operations->value}};
    if (node_is_changed(stream, &node, NULL)) return;
    enum cu_result result = stream->context->driver->cuGraphAddBatchMemOpNode(
        &node.node, stream->graph->graph, stream->needed.nodes, stream->needed.count, &list);
    node_added(stream, result, &node);
    for (uint32_t i = 0; i < count; i++)
        if (operations[i].operation == CU_OPERATION_WAIT_VALUE_32) stream->graph->wait_count++;
}

/* ---- recording ---- */

void cuda_graph_join(struct cuda_graph *graph, struct cuda_stream *stream) {
    ASSERT(stream->graph == NULL && stream->context == graph->context);
    ASSERT(graph->stream_count < CUDA_GRAPH_STREAMS_MAX);
    graph->streams[graph->stream_count++] = stream;
    stream->graph = graph;
    stream->needed = (struct cuda_needed){.count = 0};
    stream->recorded = 0;
}

enum status cuda_graph_begin(struct cuda_graph *graph, struct cuda_stream *stream, struct error *error) {
    struct cuda_context *context = stream->context;
    *graph = (struct cuda_graph){.context = context};
    TRY(cuda_context_status(context, error));
    enum cu_result result = context->driver->cuGraphCreate(&graph->graph, 0);
    if (result != CU_SUCCESS) {
        graph->graph = NULL;
        return cuda_driver_error(context->driver, result, error, "recording a step");
    }
    cuda_graph_join(graph, stream);
    return STATUS_OK;
}

enum status cuda_graph_begin_change(struct cuda_graph *graph, struct cuda_stream *stream, struct error *error) {
    TRY(cuda_context_status(stream->context, error));
    graph->is_changed = true;
    graph->changed = 0;
    cuda_graph_join(graph, stream);
    return STATUS_OK;
}

static void streams_leave(struct cuda_graph *graph) {
    for (size_t i = 0; i < graph->stream_count; i++) graph->streams[i]->graph = NULL;
    graph->stream_count = 0;
}

enum status cuda_graph_end(struct cuda_graph *graph, struct error *error) {
    struct cuda_context *context = graph->context;
    streams_leave(graph);
    TRY(cuda_context_status(context, error));
    if (graph->is_changed) {
        graph->differs = graph->differs || graph->changed < graph->node_count;
        graph->is_changed = false;
        context->counts.graph_changes += !graph->differs;
        return STATUS_OK;
    }
    enum cu_result result = context->driver->cuGraphInstantiate(&graph->exec, graph->graph, 0);
    context->counts.graphs += result == CU_SUCCESS;
    if (result == CU_SUCCESS) return STATUS_OK;
    graph->exec = NULL;
    return cuda_driver_error(context->driver, result, error, "making a recorded step ready");
}

void cuda_graph_destroy(struct cuda_graph *graph) {
    free(graph->nodes);
    graph->nodes = NULL;
    if (graph->graph == NULL) return;
    streams_leave(graph);
    const struct cuda_driver *driver = graph->context->driver;
    if (!graph->context->is_stuck) {
        if (graph->exec != NULL) (void)driver->cuGraphExecDestroy(graph->exec);
        (void)driver->cuGraphDestroy(graph->graph);
    }
    *graph = (struct cuda_graph){.context = NULL};
}

void cuda_graph_launch(struct cuda_graph *graph, struct cuda_stream *stream) {
    struct cuda_context *context = graph->context;
    ASSERT(graph->stream_count == 0 && stream->graph == NULL);
    if (!cuda_context_works(context)) return;
    ASSERT(graph->exec != NULL);
    if (!cuda_context_check(context, context->driver->cuGraphLaunch(graph->exec, stream->handle),
                            "launching a recorded step"))
        return;
    context->counts.graph_launches++;
    context->counts.launches += graph->kernel_count;
    context->counts.copies += graph->copy_count;
    context->counts.copied_bytes += graph->copied_bytes;
    context->counts.waits += graph->wait_count;
}

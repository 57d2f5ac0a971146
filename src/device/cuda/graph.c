#include "device/cuda/graph.h"

#include "base/assert.h"

/* ---- nodes ---- */

/* The node is the stream's last: what comes next comes after it. */
static void node_added(struct cuda_stream *stream, enum cu_result result, struct cu_graph_node *node, bool is_kernel) {
    if (!cuda_context_check(stream->context, result, "recording a step")) return;
    stream->needed = (struct cuda_needed){.nodes = {node}, .count = 1, .is_kernel = is_kernel};
    stream->graph->node_count++;
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
    struct cu_graph_node *node = NULL;
    enum cu_result result =
        driver->cuGraphAddKernelNode(&node, stream->graph->graph, needed.nodes, is_early ? 0 : needed.count, &kernel);
    if (result == CU_SUCCESS && is_early) {
        const struct cu_edge edge = {.from_port = CU_PORT_PROGRAMMATIC, .type = CU_EDGE_PROGRAMMATIC};
        result = driver->cuGraphAddDependencies(stream->graph->graph, needed.nodes, &node, &edge, 1);
        stream->graph->early_count++;
    }
    node_added(stream, result, node, true);
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
    struct cu_graph_node *node = NULL;
    enum cu_result result = stream->context->driver->cuGraphAddMemcpyNode(
        &node, stream->graph->graph, stream->needed.nodes, stream->needed.count, &copy, stream->context->handle);
    node_added(stream, result, node, false);
    stream->graph->copy_count++;
    stream->graph->copied_bytes += size_bytes;
}

void cuda_graph_add_fill(struct cuda_stream *stream, uint64_t target, uint8_t value, size_t size_bytes) {
    const struct cu_fill_node fill = {
        .target = target, .pitch = size_bytes, .value = value, .element_bytes = 1, .width = size_bytes, .height = 1};
    struct cu_graph_node *node = NULL;
    enum cu_result result = stream->context->driver->cuGraphAddMemsetNode(
        &node, stream->graph->graph, stream->needed.nodes, stream->needed.count, &fill, stream->context->handle);
    node_added(stream, result, node, false);
}

void cuda_graph_add_operations(struct cuda_stream *stream, struct cu_memory_operation *operations, uint32_t count) {
    const struct cu_memory_operations_node list = {
        .context = stream->context->handle, .count = count, .operations = operations};
    struct cu_graph_node *node = NULL;
    enum cu_result result = stream->context->driver->cuGraphAddBatchMemOpNode(
        &node, stream->graph->graph, stream->needed.nodes, stream->needed.count, &list);
    node_added(stream, result, node, false);
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

static void streams_leave(struct cuda_graph *graph) {
    for (size_t i = 0; i < graph->stream_count; i++) graph->streams[i]->graph = NULL;
    graph->stream_count = 0;
}

enum status cuda_graph_end(struct cuda_graph *graph, struct error *error) {
    struct cuda_context *context = graph->context;
    streams_leave(graph);
    TRY(cuda_context_status(context, error));
    enum cu_result result = context->driver->cuGraphInstantiate(&graph->exec, graph->graph, 0);
    context->counts.graphs += result == CU_SUCCESS;
    if (result == CU_SUCCESS) return STATUS_OK;
    graph->exec = NULL;
    return cuda_driver_error(context->driver, result, error, "making a recorded step ready");
}

void cuda_graph_destroy(struct cuda_graph *graph) {
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

#include "device/cuda/cuda_capture.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cuda/cuda_fused.h"

/* ---- making one ---- */

enum status cuda_capture_begin(struct stream *stream, struct error *error) {
    ASSERT(stream->captured == NULL && stream->made == NULL);
    stream->captured = calloc(1, sizeof *stream->captured);
    if (stream->captured == NULL) return error_set(error, STATUS_MEMORY, "cuda: no memory for a graph");
    stream->captured->stream = stream->captured->memory.stream = stream;
    stream->graph_count++;
    return STATUS_OK;
}

/* The operations' nodes, one after the other, while the stream records. */
static enum status nodes_put(struct graph *graph, struct error *error) {
    struct stream *stream = graph->stream;
    const bool lacked = stream->lack.status != STATUS_OK;
    stream->made = &graph->memory;
    const struct operation *operation = graph->list.first;
    while (operation != NULL && graph->memory.status == STATUS_OK) {
        size_t count = cuda_fused_launch(stream, operation);
        if (count == 0) {
            operation_launch(operation, stream->device->device.operations, stream);
            count = 1;
        }
        for (; count > 0; count--) operation = operation->next;
    }
    stream->made = NULL;
    TRY(cuda_graph_end(&graph->nodes, error));
    if (stream->lack.status != STATUS_OK) { /* nodes are missing */
        *error = stream->lack;
        if (!lacked) stream->lack = (struct error){.status = STATUS_OK};
        return error->status;
    }
    if (graph->memory.status != STATUS_OK) *error = graph->memory.error;
    return graph->memory.status;
}

/* Of nodes that are there already, as far as they are the same ones, or of new ones. */
static enum status nodes_make(struct graph *graph, struct error *error) {
    struct stream *stream = graph->stream;
    struct graph_memory *memory = &graph->memory;
    cuda_device_enter(stream->device);
    if (graph->list.failed) return error_set(error, STATUS_MEMORY, "cuda: no memory for a graph");
    if (graph->nodes.exec != NULL) {
        TRY(cuda_graph_begin_change(&graph->nodes, &stream->queue, error));
        TRY(nodes_put(graph, error));
        if (graph->nodes.differs) cuda_graph_destroy(&graph->nodes);
    }
    if (graph->nodes.exec == NULL) {
        graph_memory_rewind(memory);
        TRY(cuda_graph_begin(&graph->nodes, &stream->queue, error));
        TRY(nodes_put(graph, error));
    }
    for (size_t i = 0; i < memory->area_count; i++)
        if (memory->areas[i].used > 0)
            cuda_stream_copy(&stream->queue, memory->areas[i].card.address, memory->areas[i].host.address,
                             memory->areas[i].used);
    return cuda_context_status(&stream->device->context, error);
}

/* The nodes only ask: whom, the graph knows. */
static enum status turns_keep(struct graph *graph, struct error *error) {
    size_t count = 0;
    for (const struct operation *o = graph->list.first; o != NULL; o = o->next) count += o->kind == OPERATION_HOST_TURN;
    if (count == 0) return STATUS_OK;
    graph->turns = calloc(count, sizeof *graph->turns);
    if (graph->turns == NULL) return error_set(error, STATUS_MEMORY, "cuda: no memory for a graph");
    for (const struct operation *o = graph->list.first; o != NULL; o = o->next)
        if (o->kind == OPERATION_HOST_TURN) graph->turns[graph->turn_count++] = o->as.host_turn;
    return STATUS_OK;
}

static void turn_take(void *context) {
    struct graph *graph = context;
    ASSERT(graph->turn < graph->turn_count);
    const struct host_turn_operation *turn = &graph->turns[graph->turn++];
    turn->take(turn->context, turn->number);
}

enum status cuda_capture_end(struct stream *stream, struct graph **result, struct error *error) {
    struct graph *graph = stream->captured, *before = *result;
    stream->captured = NULL;
    *result = NULL;
    if (before != NULL) { /* its copies of what is staged have been made */
        cuda_device_enter(stream->device);
        cuda_stream_drain(&stream->queue);
        graph->nodes = before->nodes;
        graph->memory = before->memory;
        before->nodes = (struct cuda_graph){.context = NULL};
        before->memory = (struct graph_memory){.stream = stream};
        graph_memory_rewind(&graph->memory);
        cuda_capture_destroy(before);
    }
    struct error reason;
    enum status status = cuda_device_failed(stream->device, nodes_make(graph, &reason), &reason);
    if (status == STATUS_OK) status = turns_keep(graph, &reason);
    if (status != STATUS_OK && error != NULL) *error = reason;
    operation_list_clear(&graph->list);
    if (status == STATUS_OK)
        *result = graph;
    else
        cuda_capture_destroy(graph);
    return status;
}

void cuda_capture_launch(struct stream *stream, struct graph *graph) {
    ASSERT(stream == graph->stream && stream->captured == NULL);
    cuda_device_enter(stream->device);
    if (stream->lack.status == STATUS_OK) {
        cuda_stream_turns_expect(&stream->queue, graph->turn_count, turn_take, graph);
        graph->turn = 0;
        cuda_graph_launch(&graph->nodes, &stream->queue);
    }
    cuda_work_lacks(stream);
    cuda_work_done(stream);
}

void cuda_capture_destroy(struct graph *graph) {
    if (graph == NULL) return;
    cuda_device_enter(graph->stream->device);
    cuda_stream_drain(&graph->stream->queue);
    cuda_graph_destroy(&graph->nodes);
    graph_memory_destroy(&graph->memory);
    operation_list_clear(&graph->list);
    free(graph->turns);
    if (--graph->stream->graph_count == 0) graph_scratch_destroy(graph->stream);
    free(graph);
}

#define CAPTURED(KIND, name)                                                                     \
    void cuda_captured_##name(struct stream *stream, const struct name##_operation *operation) { \
        if (stream->captured != NULL)                                                            \
            operation_list_add(&stream->captured->list, OPERATION_##KIND, operation);            \
        else                                                                                     \
            cuda_##name(stream, operation);                                                      \
    }
OPERATIONS_OF_GRAPHS(CAPTURED)
CAPTURED(KEEP_ROWS, keep_rows)

/* Outside of graphs one operation runs after the other.  The two ways have scratch of their own. */
void cuda_captured_beside(struct stream *stream, const struct beside_operation *operation) {
    struct cuda_needed *needed = &stream->queue.needed;
    struct graph_memory *memory = stream->made;
    if (stream->captured != NULL) operation_list_add(&stream->captured->list, OPERATION_BESIDE, operation);
    if (memory == NULL) return;
    needed->is_kernel = false; /* an early start is for the one that comes next alone */
    if (operation->mark == BESIDE_BEGIN) {
        memory->fork = *needed;
    } else if (operation->mark == BESIDE_END) {
        memory->beside = *needed;
        *needed = memory->fork;
    } else {
        ASSERT(needed->count + memory->beside.count <= CUDA_NEEDED_MAX);
        for (size_t i = 0; i < memory->beside.count; i++) needed->nodes[needed->count++] = memory->beside.nodes[i];
    }
    memory->is_beside = operation->mark == BESIDE_BEGIN;
}

void cuda_captured_host_turn(struct stream *stream, const struct host_turn_operation *operation) {
    if (stream->captured != NULL) operation_list_add(&stream->captured->list, OPERATION_HOST_TURN, operation);
    if (stream->made != NULL) cuda_stream_turn(&stream->queue);
}

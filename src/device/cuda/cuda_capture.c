#include "device/cuda/cuda_capture.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cuda/cuda_fused.h"

enum { AREA_BYTES = 256 << 10, AREA_ALIGN = 64 };

/* ---- memory of a graph ---- */

static struct graph_area *area_add(struct graph *graph, size_t size_bytes) {
    struct cuda_context *context = &graph->stream->device->context;
    struct graph_area *area = &graph->areas[graph->area_count];
    if (graph->area_count == GRAPH_AREAS_MAX) {
        graph->status = error_set(&graph->error, STATUS_MEMORY,
                                  "cuda: a graph of more than %d areas of items", GRAPH_AREAS_MAX);
        return NULL;
    }
    graph->area_count++;
    graph->status = cuda_buffer_create_host(&area->host, context, size_bytes, &graph->error);
    if (graph->status == STATUS_OK)
        graph->status = cuda_buffer_create(&area->card, context, size_bytes, &graph->error);
    return graph->status == STATUS_OK ? area : NULL;
}

bool graph_staging_take(struct graph *graph, size_t size_bytes, struct staged *staged) {
    const size_t bytes = align_up(max_size(size_bytes, 1), AREA_ALIGN);
    struct graph_area *area = graph->area_count > 0 ? &graph->areas[graph->area_count - 1] : NULL;
    if (area == NULL || area->used + bytes > area->host.size_bytes)
        area = area_add(graph, max_size(bytes, AREA_BYTES));
    if (area == NULL) return false;
    *staged = (struct staged){.host = (uint8_t *)area->host.host + area->used,
                              .pinned = area->host.address + area->used,
                              .card = area->card.address + area->used,
                              .size_bytes = size_bytes};
    area->used += bytes;
    return true;
}

/* Nodes that have an address keep it: more is another buffer. */
uint64_t graph_scratch(struct graph *graph, size_t size_bytes) {
    for (size_t i = 0; i < graph->scratch_count; i++)
        if (graph->scratch[i].size_bytes >= size_bytes) return graph->scratch[i].address;
    ASSERT(graph->scratch_count < GRAPH_SCRATCH_MAX); /* each is more than twice the one before */
    struct cuda_buffer *own = &graph->scratch[graph->scratch_count];
    graph->status = cuda_buffer_create(own, &graph->stream->device->context,
                                       2 * max_size(size_bytes, AREA_BYTES), &graph->error);
    if (graph->status != STATUS_OK) return 0;
    graph->scratch_count++;
    return own->address;
}

/* ---- making one ---- */

enum status cuda_capture_begin(struct stream *stream, struct error *error) {
    ASSERT(stream->captured == NULL && stream->made == NULL);
    stream->captured = calloc(1, sizeof *stream->captured);
    if (stream->captured == NULL) return error_set(error, STATUS_MEMORY, "cuda: no memory for a graph");
    stream->captured->stream = stream;
    return STATUS_OK;
}

static enum status nodes_make(struct graph *graph, struct error *error) {
    struct stream *stream = graph->stream;
    cuda_device_enter(stream->device);
    if (graph->list.failed) return error_set(error, STATUS_MEMORY, "cuda: no memory for a graph");
    TRY(cuda_graph_begin(&graph->nodes, &stream->queue, error));
    stream->made = graph;
    const struct operation *operation = graph->list.first;
    while (operation != NULL && graph->status == STATUS_OK) {
        size_t count = cuda_fused_launch(stream, operation);
        if (count == 0) {
            operation_launch(operation, stream->device->device.operations, stream);
            count = 1;
        }
        for (; count > 0; count--) operation = operation->next;
    }
    stream->made = NULL;
    TRY(cuda_graph_end(&graph->nodes, error));
    if (graph->status != STATUS_OK) {
        if (error != NULL) *error = graph->error;
        return graph->status;
    }
    for (size_t i = 0; i < graph->area_count; i++)
        cuda_stream_copy(&stream->queue, graph->areas[i].card.address, graph->areas[i].host.address,
                         graph->areas[i].used);
    return cuda_context_status(&stream->device->context, error);
}

enum status cuda_capture_end(struct stream *stream, struct graph **result, struct error *error) {
    struct graph *graph = stream->captured;
    stream->captured = NULL;
    *result = NULL;
    const enum status status = nodes_make(graph, error);
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
    cuda_graph_launch(&graph->nodes, &stream->queue);
    cuda_work_done(stream);
}

void cuda_capture_destroy(struct graph *graph) {
    if (graph == NULL) return;
    cuda_device_enter(graph->stream->device);
    cuda_stream_drain(&graph->stream->queue);
    cuda_graph_destroy(&graph->nodes);
    for (size_t i = 0; i < graph->area_count; i++) {
        cuda_buffer_destroy(&graph->areas[i].host);
        cuda_buffer_destroy(&graph->areas[i].card);
    }
    for (size_t i = 0; i < graph->scratch_count; i++) cuda_buffer_destroy(&graph->scratch[i]);
    operation_list_clear(&graph->list);
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

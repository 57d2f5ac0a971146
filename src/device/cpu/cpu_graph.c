/* A graph of the cpu device: a list of operations, and a launch of it a loop. */
#include "device/cpu/cpu_graph.h"

#include <stdlib.h>

#include "base/assert.h"

enum status cpu_graph_begin(struct stream *stream, struct error *error) {
    ASSERT(stream->graph == NULL);
    stream->graph = calloc(1, sizeof *stream->graph);
    if (stream->graph == NULL) return error_set(error, STATUS_MEMORY, "cpu device: no memory for a graph");
    return STATUS_OK;
}

enum status cpu_graph_end(struct stream *stream, struct graph **result, struct error *error) {
    struct graph *graph = stream->graph;
    stream->graph = NULL;
    cpu_graph_destroy(*result);
    *result = graph->list.failed ? NULL : graph;
    if (*result != NULL) return STATUS_OK;
    cpu_graph_destroy(graph);
    return error_set(error, STATUS_MEMORY, "cpu device: no memory for a graph");
}

void cpu_graph_launch(struct stream *stream, struct graph *graph) {
    ASSERT(stream->graph == NULL);
    for (struct operation *operation = graph->list.first; operation != NULL; operation = operation->next)
        operation_launch_now(operation, stream->device->device.operations, stream);
}

void cpu_graph_destroy(struct graph *graph) {
    if (graph == NULL) return;
    operation_list_clear(&graph->list);
    free(graph);
}

#define CAPTURED(KIND, name)                                                                    \
    void cpu_captured_##name(struct stream *stream, const struct name##_operation *operation) { \
        if (stream->graph != NULL)                                                              \
            operation_list_add(&stream->graph->list, OPERATION_##KIND, operation);              \
        else                                                                                    \
            cpu_##name(stream, operation);                                                      \
    }
OPERATIONS_OF_GRAPHS(CAPTURED)

/* The launch is where the host waits. */
void cpu_host_turn(struct stream *stream, const struct host_turn_operation *operation) {
    if (stream->graph != NULL)
        operation_list_add(&stream->graph->list, OPERATION_HOST_TURN, operation);
    else
        operation->take(operation->context, operation->number);
}

/* cpu_graph: what the cpu device captures and launches again. */
#pragma once

#include "device/cpu/cpu_device_internal.h"
#include "device/operation_list.h"

struct graph {
    struct operation_list list;
};

enum status cpu_graph_begin(struct stream *stream, struct error *error);
enum status cpu_graph_end(struct stream *stream, struct graph **graph, struct error *error);
void cpu_graph_launch(struct stream *stream, struct graph *graph);
void cpu_graph_destroy(struct graph *graph);

/* The device's operations: they run, unless the stream captures. */
#define DECLARE_CAPTURED(KIND, name) \
    void cpu_captured_##name(struct stream *stream, const struct name##_operation *operation);
OPERATIONS_OF_GRAPHS(DECLARE_CAPTURED)
#undef DECLARE_CAPTURED
void cpu_host_turn(struct stream *stream, const struct host_turn_operation *operation);

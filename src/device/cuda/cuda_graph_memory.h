/* cuda_graph_memory: what the nodes of a graph read, for as long as it is launched.  Host arrays are staged once, and
 * sent when the graph is made; scratch is its own, since the stream's may grow, and then moves. */
#pragma once

#include "device/cuda/cuda_device_internal.h"

enum { GRAPH_AREAS_MAX = 32, GRAPH_SCRATCH_MAX = 24 };

struct graph_area {
    struct cuda_buffer host, card;
    size_t used;
};

struct graph_memory {
    struct cuda_context *context; /* borrowed */
    struct graph_area areas[GRAPH_AREAS_MAX];
    size_t area_count;
    /* Of the graph's nodes, and of those beside them (beside of device.h); each larger than the one before. */
    struct graph_scratch {
        struct cuda_buffer list[GRAPH_SCRATCH_MAX];
        size_t count;
    } scratch[2];
    bool is_beside;
    struct cuda_needed fork, beside; /* what nodes beside others come after; the last of them */
    enum status status;              /* the first failure, which is none of the device */
    struct error error;
};

/* As staging_take and cuda_scratch. */
bool graph_memory_stage(struct graph_memory *memory, size_t size_bytes, struct staged *staged);
uint64_t graph_memory_scratch(struct graph_memory *memory, size_t size_bytes);
void graph_memory_destroy(struct graph_memory *memory);

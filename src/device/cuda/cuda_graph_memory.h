/* cuda_graph_memory: what the nodes of a graph read, for as long as it is launched.  Host arrays are staged once, and
 * sent when the graph is made or changed; scratch is that of all graphs of the stream, which never moves. */
#pragma once

#include "device/cuda/cuda_device_internal.h"

enum { GRAPH_AREAS_MAX = 32 };

struct graph_area {
    struct cuda_buffer host, card;
    size_t used;
};

struct graph_memory {
    struct stream *stream; /* borrowed */
    struct graph_area areas[GRAPH_AREAS_MAX];
    size_t area_count, area; /* area: that is filled */
    bool is_beside;
    struct cuda_needed fork, beside; /* what nodes beside others come after; the last of them */
    enum status status;              /* the first failure, which is none of the device */
    struct error error;
};

/* As staging_take and cuda_scratch. */
bool graph_memory_stage(struct graph_memory *memory, size_t size_bytes, struct staged *staged);
uint64_t graph_memory_scratch(struct graph_memory *memory, size_t size_bytes);
void graph_memory_rewind(struct graph_memory *memory); /* nothing is staged, all areas stay */
void graph_memory_destroy(struct graph_memory *memory);
/* Of no graph of the stream. */
void graph_scratch_destroy(struct stream *stream);

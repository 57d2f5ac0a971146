#include "device/cuda/cuda_graph_memory.h"

#include "base/assert.h"
#include "base/checked.h"

enum { AREA_BYTES = 256 << 10, AREA_DOUBLINGS = 6, AREA_ALIGN = 64 };

static struct graph_area *area_add(struct graph_memory *memory, size_t size_bytes) {
    struct graph_area *area = &memory->areas[memory->area_count];
    if (memory->area_count == GRAPH_AREAS_MAX) {
        memory->status =
            error_set(&memory->error, STATUS_MEMORY, "cuda: a graph of more than %d areas of items", GRAPH_AREAS_MAX);
        return NULL;
    }
    memory->area_count++;
    struct cuda_context *context = &memory->stream->device->context;
    memory->status = cuda_buffer_create_host(&area->host, context, size_bytes, &memory->error);
    if (memory->status == STATUS_OK)
        memory->status = cuda_buffer_create(&area->card, context, size_bytes, &memory->error);
    return memory->status == STATUS_OK ? area : NULL;
}

bool graph_memory_stage(struct graph_memory *memory, size_t size_bytes, struct staged *staged) {
    const size_t bytes = align_up(max_size(size_bytes, 1), AREA_ALIGN);
    struct graph_area *area = memory->areas + memory->area;
    while (memory->area < memory->area_count && area->used + bytes > area->host.size_bytes) memory->area++, area++;
    if (memory->area == memory->area_count)
        area = area_add(memory, max_size(bytes, (size_t)AREA_BYTES << min_size(memory->area_count, AREA_DOUBLINGS)));
    if (area == NULL) return false;
    *staged = (struct staged){.host = (uint8_t *)area->host.host + area->used,
                              .pinned = area->host.address + area->used,
                              .card = area->card.address + area->used,
                              .size_bytes = size_bytes};
    area->used += bytes;
    return true;
}

/* Nodes that have an address keep it: more is another buffer. */
uint64_t graph_memory_scratch(struct graph_memory *memory, size_t size_bytes) {
    struct graph_scratch *scratch = &memory->stream->graph_scratch[memory->is_beside];
    for (size_t i = 0; i < scratch->count; i++)
        if (scratch->list[i].size_bytes >= size_bytes) return scratch->list[i].address;
    ASSERT(scratch->count < GRAPH_SCRATCH_MAX); /* each is more than twice the one before */
    struct cuda_buffer *own = &scratch->list[scratch->count];
    memory->status = cuda_buffer_create(own, &memory->stream->device->context, 2 * max_size(size_bytes, AREA_BYTES),
                                        &memory->error);
    if (memory->status != STATUS_OK) return 0;
    scratch->count++;
    return own->address;
}

void graph_memory_rewind(struct graph_memory *memory) {
    for (size_t i = 0; i < memory->area_count; i++) memory->areas[i].used = 0;
    memory->area = 0;
    memory->is_beside = false;
    memory->status = STATUS_OK;
}

void graph_memory_destroy(struct graph_memory *memory) {
    for (size_t i = 0; i < memory->area_count; i++) {
        cuda_buffer_destroy(&memory->areas[i].host);
        cuda_buffer_destroy(&memory->areas[i].card);
    }
    *memory = (struct graph_memory){.stream = memory->stream};
}

void graph_scratch_destroy(struct stream *stream) {
    for (size_t way = 0; way < 2; way++) {
        struct graph_scratch *scratch = &stream->graph_scratch[way];
        while (scratch->count > 0) cuda_buffer_destroy(&scratch->list[--scratch->count]);
    }
}

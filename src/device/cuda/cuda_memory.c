#include <stdlib.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cuda/cuda_device_internal.h"

enum { PAGE_BYTES = 4096 };

static enum status area_create(struct cuda_device *device, enum memory_kind kind, size_t size_bytes,
                               struct cuda_buffer *buffer, struct error *error) {
    if (kind == MEMORY_SHARED)
        return cuda_buffer_create_host(buffer, &device->context, align_up(max_size(size_bytes, 1), PAGE_BYTES), error);
    TRY(cuda_buffer_create(buffer, &device->context, max_size(size_bytes, 1), error));
    cuda_stream_fill(&device->loading->queue, buffer->address, 0, buffer->size_bytes);
    return cuda_ticket_wait(&device->loading->queue, cuda_stream_mark(&device->loading->queue), error);
}

enum status cuda_allocate(struct device *base, enum memory_kind kind, size_t size_bytes, struct buffer *buffer,
                          struct error *error) {
    struct cuda_device *device = (struct cuda_device *)base;
    struct cuda_area *area = calloc(1, sizeof *area);
    *buffer = (struct buffer){.device = NULL};
    if (area == NULL) return error_set(error, STATUS_MEMORY, "cuda: no memory for an area");
    struct error reason;
    cuda_device_enter(device);
    const enum status status = area_create(device, kind, size_bytes, &area->buffer, &reason);
    if (cuda_device_failed(device, status, &reason) != STATUS_OK) {
        if (error != NULL) *error = reason;
        cuda_buffer_destroy(&area->buffer);
        free(area);
        return status;
    }
    area->next = device->areas;
    device->areas = area;
    *buffer = (struct buffer){
        .device = base, .kind = kind, .address = area->buffer.address, .host = area->buffer.host, .bytes = size_bytes};
    return STATUS_OK;
}

/* The driver would wait for all work, and not within a limit. */
void cuda_release(struct device *base, struct buffer *buffer) {
    struct cuda_device *device = (struct cuda_device *)base;
    if (!buffer_exists(buffer)) return;
    cuda_device_enter(device);
    for (struct stream *stream = device->streams; stream != NULL; stream = stream->next)
        cuda_stream_drain(&stream->queue);
    struct cuda_area **at = &device->areas;
    while (*at != NULL && (*at)->buffer.address != buffer->address) at = &(*at)->next;
    ASSERT(*at != NULL);
    struct cuda_area *area = *at;
    *at = area->next;
    cuda_buffer_destroy(&area->buffer);
    free(area);
    *buffer = (struct buffer){.device = NULL};
}

uint64_t cuda_memory_free(struct device *base) {
    struct cuda_device *device = (struct cuda_device *)base;
    uint64_t free_bytes = 0, total_bytes = 0;
    struct error reason;
    cuda_device_enter(device);
    const enum status status = cuda_memory_read(&device->context, &free_bytes, &total_bytes, &reason);
    return cuda_device_failed(device, status, &reason) == STATUS_OK ? free_bytes : 0;
}

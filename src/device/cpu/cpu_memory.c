/* Memory of the cpu device.  Large areas are in huge pages (platform/memory.h).  MEMORY_SHARED is mapped whatever its
 * size. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"
#include "platform/memory.h"

enum { SCRATCH_BYTES_MIN = 4 << 20 };

static bool is_mapped(enum memory_kind kind, size_t size_bytes) {
    return kind == MEMORY_SHARED || size_bytes >= MEMORY_AREA_BYTES_MIN;
}

enum status cpu_allocate(struct device *device, enum memory_kind kind, size_t size_bytes, struct buffer *buffer,
                         struct error *error) {
    void *memory = NULL;
    uint64_t heap_bytes = 0;
    errno = ENOMEM;
    if (is_mapped(kind, size_bytes)) {
        memory = memory_area_create(size_bytes);
    } else if (checked_align(max_size(size_bytes, 1), 64, &heap_bytes)) {
        memory = aligned_alloc(64, heap_bytes);
        if (memory != NULL) memset(memory, 0, heap_bytes);
    }
    if (memory == NULL)
        return error_set_os(error, STATUS_MEMORY, errno, "cpu device: cannot allocate %zu bytes", size_bytes);
    *buffer = (struct buffer){.device = device,
                              .kind = kind,
                              .address = (uintptr_t)memory,
                              .host = kind == MEMORY_SHARED ? memory : NULL,
                              .bytes = size_bytes};
    return STATUS_OK;
}

void cpu_release(struct device *device, struct buffer *buffer) {
    (void)device;
    if (!buffer_exists(buffer)) return;
    void *memory = (void *)(uintptr_t)buffer->address;
    if (is_mapped(buffer->kind, buffer->bytes))
        memory_area_destroy(memory, buffer->bytes);
    else
        free(memory);
    *buffer = (struct buffer){.device = NULL};
}

/* Where a failure is kept; NULL: an earlier one is. */
static struct error *first_error(struct cpu_device *device) {
    return device->error.status == STATUS_OK ? &device->error : NULL;
}

uint8_t *cpu_scratch_reserve(struct cpu_device *device, size_t size_bytes) {
    const size_t held = device->scratch.bytes;
    if (size_bytes > held) {
        /* Doubles, so that a context that grows token by token reallocates only a few times. */
        const size_t grown = max_size(max_size(size_bytes, held * 2), SCRATCH_BYTES_MIN);
        cpu_release(&device->device, &device->scratch);
        device->scratch_growths++;
        if (cpu_allocate(&device->device, MEMORY_DEVICE, grown, &device->scratch, first_error(device)) != STATUS_OK)
            return NULL;
    }
    return (uint8_t *)(uintptr_t)device->scratch.address;
}

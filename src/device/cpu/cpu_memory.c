/* Memory of the cpu device.  Large areas are in huge pages (platform/memory.h).  MEMORY_HOST is mapped whatever its
 * size. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"
#include "platform/memory.h"

enum { SCRATCH_BYTES_MIN = 4 << 20 };

static bool is_mapped(enum memory_kind kind, size_t size_bytes) {
    return kind == MEMORY_HOST || size_bytes >= MEMORY_AREA_BYTES_MIN;
}

enum status cpu_allocate(struct device *device, enum memory_kind kind, size_t size_bytes, void **address,
                         struct error *error) {
    (void)device;
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
    *address = memory;
    return STATUS_OK;
}

void cpu_release(struct device *device, enum memory_kind kind, void *address, size_t size_bytes) {
    (void)device;
    if (address == NULL) return;
    if (is_mapped(kind, size_bytes))
        memory_area_destroy(address, size_bytes);
    else
        free(address);
}

size_t cpu_scratch_add(size_t *total_bytes, size_t size_bytes) {
    size_t offset = *total_bytes;
    *total_bytes += align_up(size_bytes, 64);
    return offset;
}

uint8_t *cpu_scratch_reserve(struct cpu_device *device, size_t size_bytes) {
    if (size_bytes <= device->scratch_bytes) return device->scratch;
    /* Doubles, so that a context that grows token by token reallocates only a few times. */
    size_t grown = max_size(max_size(size_bytes, device->scratch_bytes * 2), SCRATCH_BYTES_MIN);
    cpu_release(&device->device, MEMORY_DEVICE, device->scratch, device->scratch_bytes);
    device->scratch = NULL;
    device->scratch_bytes = 0;
    device->scratch_growths++;
    void *memory;
    if (cpu_allocate(&device->device, MEMORY_DEVICE, grown, &memory, cpu_device_error(device)) != STATUS_OK)
        return NULL;
    device->scratch = memory;
    device->scratch_bytes = grown;
    return device->scratch;
}

/* Memory of the cpu device.  Large areas are mapped without a promise of swap, so that a slab for a
 * context of a million tokens costs what is used of it, and ask for huge pages, because decoding streams
 * the whole of them and would miss the TLB every 4 KiB.  MEMORY_HOST is mapped whatever its size. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"

enum {
    MAP_BYTES_MIN = 1 << 20, /* from here on mmap instead of the heap */
    HUGE_PAGE_BYTES = 2 << 20,
    PAGE_BYTES = 4096,
    SCRATCH_BYTES_MIN = 4 << 20,
};

static bool is_mapped(enum memory_kind kind, size_t size_bytes) {
    return kind == MEMORY_HOST || size_bytes >= MAP_BYTES_MIN;
}

static size_t map_alignment(size_t size_bytes) {
    return size_bytes >= MAP_BYTES_MIN ? (size_t)HUGE_PAGE_BYTES : (size_t)PAGE_BYTES;
}

static void *map_aligned(size_t size_bytes, size_t alignment) {
    uint8_t *base = mmap(NULL, size_bytes + alignment, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return NULL;
    size_t before = (size_t)(-(uintptr_t)base & (alignment - 1));
    if (before > 0) (void)munmap(base, before);
    if (alignment > before) (void)munmap(base + before + size_bytes, alignment - before);
    return base + before;
}

enum status cpu_allocate(struct device *device, enum memory_kind kind, size_t size_bytes, void **address,
                         struct error *error) {
    (void)device;
    size_t alignment = map_alignment(size_bytes);
    uint64_t mapped = 0, with_slack = 0;
    bool fits = checked_align(max_size(size_bytes, 1), alignment, &mapped) &&
                checked_add(mapped, alignment, &with_slack);
    void *memory = NULL;
    errno = ENOMEM;
    if (fits && is_mapped(kind, size_bytes)) {
        memory = map_aligned(mapped, alignment);
        /* Huge pages are optional: without them the kernel is slower, never wrong. */
        if (memory != NULL && size_bytes >= MAP_BYTES_MIN) (void)madvise(memory, mapped, MADV_HUGEPAGE);
    } else if (fits) {
        size_t heap_bytes = align_up(max_size(size_bytes, 1), 64);
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
        (void)munmap(address, align_up(max_size(size_bytes, 1), map_alignment(size_bytes)));
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

#include "cache/slab.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/checked.h"

static uint64_t buffer_slots(const struct slab *slab) { return UINT64_C(1) << slab->pool.buffer_shift; }

size_t slab_buffer_count(const struct slab *slab) { return slab_exists(slab) ? slab->pool.buffer_count : 0; }

static size_t buffer_bytes(const struct slab *slab, size_t buffer) {
    const uint64_t left = slab->slot_count - buffer * buffer_slots(slab);
    return (size_t)(left < buffer_slots(slab) ? left : buffer_slots(slab)) * slab->pool.slot_bytes;
}

/* Slots of a buffer, as a power of two. */
static unsigned shift_of(const struct device *device, size_t slot_bytes, uint64_t slot_count) {
    unsigned shift = POOL_ONE_BUFFER;
    if (device->buffer_max == 0 || slot_bytes * slot_count <= device->buffer_max) return shift;
    while (shift > 0 && (uint64_t)slot_bytes << shift > device->buffer_max) shift--;
    return shift;
}

enum status slab_init(struct slab *slab, struct device *device, enum memory_kind kind, size_t slot_bytes,
                      uint64_t slot_count, struct error *error) {
    uint64_t bytes;
    *slab = (struct slab){.device = device, .kind = kind};
    if (slot_count == 0) return STATUS_OK;
    if (slot_count > PLACE_SLOTS_MAX || !checked_multiply(slot_bytes, slot_count, &bytes))
        return error_set(error, STATUS_MEMORY, "%" PRIu64 " slots of %zu bytes do not fit any memory", slot_count,
                         slot_bytes);
    slab->slot_count = slot_count;
    slab->pool.slot_bytes = slot_bytes;
    slab->pool.buffer_shift = shift_of(device, slot_bytes, slot_count);
    const size_t count = (size_t)((slot_count + buffer_slots(slab) - 1) / buffer_slots(slab));
    slab->pool.buffer_count = count;
    struct buffer *buffers = calloc(count, sizeof *buffers);
    slab->pool.buffers = buffers;
    if (buffers == NULL) return error_set(error, STATUS_MEMORY, "no memory for a table of %zu buffers", count);
    for (size_t i = 0; i < count; i++) {
        enum status status = device->operations->allocate(device, kind, buffer_bytes(slab, i), &buffers[i], error);
        if (status != STATUS_OK) {
            slab_deinit(slab);
            return status;
        }
    }
    return STATUS_OK;
}

void slab_deinit(struct slab *slab) {
    struct buffer *buffers = (void *)(uintptr_t)slab->pool.buffers;
    for (size_t i = 0; i < slab_buffer_count(slab); i++) slab->device->operations->release(slab->device, &buffers[i]);
    free(buffers);
    *slab = (struct slab){.device = slab->device, .kind = slab->kind};
}

bool slab_renew(struct slab *slab) {
    struct slab fresh;
    if (!slab_exists(slab)) return true;
    if (slab_init(&fresh, slab->device, slab->kind, slab->pool.slot_bytes, slab->slot_count, NULL) != STATUS_OK)
        return false;
    slab_deinit(slab);
    *slab = fresh;
    return true;
}

/* slab: slots of one size in a device's memory, in as many buffers as its largest one makes necessary. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

struct slab {
    struct device *device; /* borrowed */
    enum memory_kind kind;
    struct kv_pool pool; /* owned: its buffers, and the array that names them; NULL: there is no slab */
    uint64_t slot_count;
};

/* When it fails there is no slab.  slot_count 0: none either. */
enum status slab_init(struct slab *slab, struct device *device, enum memory_kind kind, size_t slot_bytes,
                      uint64_t slot_count, struct error *error) STATUS_CHECKED;
void slab_deinit(struct slab *slab); /* of none, too */
/* Fresh memory in its place, with zeros.  Without memory for both it stays as it is: false. */
bool slab_renew(struct slab *slab);

static inline bool slab_exists(const struct slab *slab) { return slab->pool.buffers != NULL; }
static inline struct span slab_slot(const struct slab *slab, uint64_t slot) {
    return kv_pool_slot(&slab->pool, (uint32_t)slot);
}
size_t slab_buffer_count(const struct slab *slab);

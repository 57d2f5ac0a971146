/* place: where a chunk lies, in one word: which pool, and which of its slots.
 *
 * A page table is an array of places in the device's memory, [kv head][chunk].  The host keeps its own copy and sends
 * what has changed (update_places); operations find a chunk by its place and the pools of their view.
 *
 *   bits 30..31  the pool, 1 to 3; 0: the chunk is nowhere, and the word is PLACE_NOWHERE
 *   bits 0..29   the slot
 */
#pragma once

#include "device/buffer.h"

#define PLACE_NOWHERE   UINT32_C(0)
#define PLACE_SLOTS_MAX (UINT32_C(1) << 30) /* of a pool */
enum place_pool {
    POOL_ROWS = 1,
    POOL_QUANTIZED = 2,              /* chunks in 4 bits, of a cache with a disk */
    POOL_NEAR_ROWS = POOL_QUANTIZED, /* rows in the device's memory, of a cache whose other rows are in the host's */
    POOL_OTHER = 3,
    PLACE_POOLS = 4
};

static inline uint32_t place_make(enum place_pool pool, uint64_t slot) { return (uint32_t)pool << 30 | (uint32_t)slot; }
static inline enum place_pool place_pool(uint32_t place) { return (enum place_pool)(place >> 30); }
static inline uint32_t place_slot(uint32_t place) { return place & (PLACE_SLOTS_MAX - 1); }

/* Slots of one size.  A pool may be larger than a device's largest buffer: it is buffers of 2^buffer_shift slots each,
 * the last of which may have fewer. */
struct kv_pool {
    const struct buffer *buffers; /* [buffer_count] */
    size_t buffer_count;
    unsigned buffer_shift;
    size_t slot_bytes;
};
enum { POOL_ONE_BUFFER = 30 }; /* the shift of a pool that is one buffer */

/* What places are looked up in.  [0] is not used. */
struct kv_pools {
    struct kv_pool list[PLACE_POOLS];
};

/* The only place where a slot becomes one of a buffer. */
static inline struct span kv_pool_slot(const struct kv_pool *pool, uint32_t slot) {
    return span_of(&pool->buffers[slot >> pool->buffer_shift],
                   (slot & ((UINT32_C(1) << pool->buffer_shift) - 1)) * pool->slot_bytes);
}

/* None: nowhere. */
static inline struct span kv_pools_chunk(const struct kv_pools *pools, uint32_t place) {
    if (place == PLACE_NOWHERE) return (struct span){.buffer = NULL};
    return kv_pool_slot(&pools->list[place_pool(place)], place_slot(place));
}

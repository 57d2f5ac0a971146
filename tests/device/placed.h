/* placed: page tables for chunks that a test has allocated one by one.  A pool's buffers are of one slot each, so that
 * the place of an entry is its index. */
#pragma once

#include <stdlib.h>

#include "device/device.h"
#include "host_span.h"
#include "testing.h"

struct placed {
    struct kv_pools pools;
    struct buffer *buffers[PLACE_POOLS]; /* owned */
    uint32_t *tables[PLACE_POOLS];       /* owned */
};

/* A table of addresses as one of places.  NULL: there is none. */
static inline const uint32_t *placed_table(struct placed *placed, enum place_pool pool,
                                           void *const *addresses, size_t count) {
    free(placed->tables[pool]), free(placed->buffers[pool]);
    placed->tables[pool] = NULL;
    placed->buffers[pool] = NULL;
    if (addresses == NULL) return NULL;
    struct buffer *buffers = placed->buffers[pool] = calloc(count + 1, sizeof *buffers);
    uint32_t *table = placed->tables[pool] = calloc(count + 1, sizeof *table);
    assert_true(buffers != NULL && table != NULL);
    placed->pools.list[pool] = (struct kv_pool){.buffers = buffers, .buffer_count = count};
    for (size_t i = 0; i < count; i++) {
        buffers[i] =
            (struct buffer){.kind = MEMORY_SHARED, .address = (uintptr_t)addresses[i], .host = addresses[i]};
        if (addresses[i] != NULL) table[i] = place_make(pool, i);
    }
    return table;
}

/* Tables of addresses, [heads][stride], which last as long as the view does. */
struct addresses {
    void *const *chunks, *const *quantized, *const *key_index;
    size_t heads, stride;
};

static inline struct kv_view placed_view(struct placed *placed, const struct kv_layout *layout,
                                         const struct addresses *addresses) {
    const size_t count = addresses->heads * addresses->stride;
    return (struct kv_view){
        .layout = layout,
        .pools = &placed->pools,
        .chunks = host_span(placed_table(placed, POOL_ROWS, addresses->chunks, count)),
        .quantized = host_span(placed_table(placed, POOL_QUANTIZED, addresses->quantized, count)),
        .chunk_stride = addresses->stride,
        .key_index = host_span(placed_table(placed, POOL_OTHER, addresses->key_index, count))};
}

static inline void placed_free(struct placed *placed) {
    for (size_t pool = 0; pool < PLACE_POOLS; pool++) free(placed->tables[pool]), free(placed->buffers[pool]);
    *placed = (struct placed){0};
}

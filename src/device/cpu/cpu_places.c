/* Page tables on the cpu: their places change in a loop, and units look up the addresses of what they read. */
#include "base/assert.h"
#include "device/cpu/cpu_device_internal.h"

void cpu_update_places(struct stream *stream, const struct update_places_operation *operation) {
    (void)stream;
    uint32_t *table = cpu_address(operation->table);
    const struct place_delta *deltas = operation->deltas;
    size_t count = operation->count;
    if (span_exists(operation->written)) {
        deltas = cpu_address(operation->written);
        ASSERT(deltas->index <= count);
        count = deltas++->index;
    }
    for (size_t i = 0; i < count; i++) table[deltas[i].index] = deltas[i].place;
}

/* Neighbours are mostly in one buffer, whose address is then looked up once. */
void cpu_find_chunks(const struct kv_pools *pools, const uint32_t *places, size_t count, void **chunks) {
    uint32_t first = 0, slots = 0; /* places [first, first + slots) are in `buffer` */
    uint8_t *buffer = NULL;
    size_t slot_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t place = places[i];
        if (place - first >= slots) {
            if (place == PLACE_NOWHERE) {
                chunks[i] = NULL;
                continue;
            }
            const struct kv_pool *pool = &pools->list[place_pool(place)];
            slots = UINT32_C(1) << pool->buffer_shift;
            first = place & ~(slots - 1);
            buffer = cpu_address(kv_pool_slot(pool, place_slot(first)));
            slot_bytes = pool->slot_bytes;
        }
        chunks[i] = buffer + (place - first) * slot_bytes;
    }
}

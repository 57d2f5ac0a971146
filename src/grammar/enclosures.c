/* enclosures: what encloses a value, each once.  Two threads are in the same brackets exactly if they have the same
 * index, so that comparing threads does not walk up from them. */
#include <stdlib.h>

#include "base/assert.h"
#include "grammar/thread_internal.h"

bool enclosures_init(struct enclosures *e, uint32_t capacity) {
    uint32_t bucket_count = 64;
    while (bucket_count < 2 * capacity) bucket_count *= 2;
    *e = (struct enclosures){.capacity = capacity, .bucket_mask = bucket_count - 1};
    e->items = calloc(capacity, sizeof *e->items);
    e->buckets = calloc(bucket_count, sizeof *e->buckets);
    return e->items != NULL && e->buckets != NULL;
}

void enclosures_deinit(struct enclosures *e) {
    free(e->items);
    free(e->buckets);
}

static uint32_t hash_of(uint32_t outer, uint32_t form, uint32_t count) {
    uint64_t hash = (uint64_t)outer * 0x9E3779B97F4A7C15U;
    hash = (hash ^ hash >> 29 ^ form) * 0xBF58476D1CE4E5B9U;
    hash = (hash ^ hash >> 32 ^ count) * 0x94D049BB133111EBU;
    return (uint32_t)(hash >> 32);
}

uint32_t enclosures_intern(struct enclosures *e, uint32_t outer, uint32_t form, uint32_t count) {
    uint32_t bucket = hash_of(outer, form, count) & e->bucket_mask;
    for (; e->buckets[bucket] != 0; bucket = (bucket + 1) & e->bucket_mask) {
        const uint32_t index = e->buckets[bucket] - 1;
        const struct enclosure *known = &e->items[index];
        if (known->outer == outer && known->form == form && known->count == count) return index;
    }
    ASSERT(e->count < e->capacity);
    e->items[e->count] = (struct enclosure){outer, form, count, bucket};
    e->buckets[bucket] = ++e->count;
    return e->count - 1;
}

/* The last come goes first, so that no search for one that stays ever passed its bucket. */
void enclosures_cut(struct enclosures *e, uint32_t count) {
    while (e->count > count) e->buckets[e->items[--e->count].bucket] = 0;
}

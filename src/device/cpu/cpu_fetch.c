/* fetch on the cpu: the definition of the operation, one KV head after the other.  Hits are found first, so that no
 * miss takes the slot of a unit that this step uses; misses then take slots in the order of the list. */
#include <string.h>

#include "base/assert.h"
#include "device/cpu/cpu_device_internal.h"

static const uint64_t UNIT_MISSES = UINT64_MAX; /* in place of a unit's address, between the two rounds */

/* The slots of a KV head of an item. */
struct head_slots {
    int32_t *table;
    uint32_t *owners, *stamps, *hand;
    uint8_t *used, *memory;
    size_t count, block_bytes;
    uint32_t step;  /* this one's number: its position + 1 */
    size_t visited; /* by the hand in this step */
};

static struct head_slots slots_of(const struct unit_slots *slots, const struct rows_item *item, size_t head) {
    const uint32_t *firsts = (const uint32_t *)cpu_address(slots->firsts) + head;
    const size_t first = firsts[0], block_bytes = item->view.layout->block_bytes;
    return (struct head_slots){.table = (int32_t *)cpu_address(slots->tables) + head * slots->unit_stride,
                               .owners = (uint32_t *)cpu_address(slots->owners) + first,
                               .stamps = (uint32_t *)cpu_address(slots->stamps) + first,
                               .hand = (uint32_t *)cpu_address(slots->hands) + head,
                               .used = (uint8_t *)cpu_address(slots->used) + first,
                               .memory = (uint8_t *)cpu_address(slots->memory) + first * block_bytes,
                               .count = firsts[1] - first,
                               .block_bytes = block_bytes,
                               .step = (uint32_t)item->position + 1};
}

static uint64_t slot_address(const struct head_slots *slots, size_t slot) {
    return (uintptr_t)(slots->memory + slot * slots->block_bytes);
}

/* In its chunk; 0: nowhere. */
static uint64_t home_of(const struct rows_item *item, size_t head, uint32_t unit) {
    const struct kv_view *view = &item->view;
    const uint32_t *places = cpu_places(view->chunks) + head * view->chunk_stride;
    const uint8_t *chunk = cpu_chunk(view->pools, places[unit / KV_CHUNK_BLOCKS]);
    return chunk == NULL ? 0 : (uintptr_t)(chunk + unit % KV_CHUNK_BLOCKS * view->layout->block_bytes);
}

/* It is in the device's memory. */
static bool is_near(const struct rows_item *item, size_t head, uint32_t unit) {
    const struct kv_view *view = &item->view;
    const uint32_t place = cpu_places(view->chunks)[head * view->chunk_stride + unit / KV_CHUNK_BLOCKS];
    return place != PLACE_NOWHERE && view->pools->list[place_pool(place)].buffers[0].kind == MEMORY_DEVICE;
}

/* Of a unit whose chunk is no longer written; -1: none. */
static int32_t slot_of(const struct head_slots *slots, const struct rows_item *item, size_t head, uint32_t unit) {
    const bool is_complete = unit / KV_CHUNK_BLOCKS < item->position / KV_CHUNK_TOKENS;
    return is_complete && !is_near(item, head, unit) ? slots->table[unit] : -1;
}

/* CLOCK: the next slot that this step does not use, in the hand's first round also none that was used since its last
 * visit; slots->count: there is none. */
static size_t take_slot(struct head_slots *slots, uint32_t start) {
    for (; slots->visited < 2 * slots->count; slots->visited++) {
        const size_t slot = (start + slots->visited) % slots->count;
        if (slots->stamps[slot] == slots->step) continue;
        if (slots->visited < slots->count && slots->used[slot] != 0) {
            slots->used[slot] = 0;
            continue;
        }
        slots->stamps[slot] = slots->step;
        *slots->hand = (uint32_t)((slot + 1) % slots->count);
        slots->visited++;
        return slot;
    }
    return slots->count;
}

/* Where the unit is to be read, if it is known already; else UNIT_MISSES. */
static uint64_t look_up(struct head_slots *slots, const struct rows_item *item, size_t head, uint32_t unit,
                        struct fetch_counts *counts) {
    const int32_t slot = slot_of(slots, item, head, unit);
    if (slot >= 0) {
        slots->stamps[slot] = slots->step;
        slots->used[slot] = 1;
        counts->hits++;
        return slot_address(slots, (size_t)slot);
    }
    const uint64_t home = home_of(item, head, unit);
    if (home == 0) {
        counts->absent++;
        return 0;
    }
    if (unit / KV_CHUNK_BLOCKS < item->position / KV_CHUNK_TOKENS && !is_near(item, head, unit)) return UNIT_MISSES;
    counts->direct++;
    return home;
}

static uint64_t bring(struct head_slots *slots, uint64_t home, uint32_t unit, uint32_t start,
                      struct fetch_counts *counts) {
    const size_t slot = take_slot(slots, start);
    if (slot == slots->count) {
        counts->direct++;
        return home;
    }
    if (slots->owners[slot] != UINT32_MAX) slots->table[slots->owners[slot]] = -1;
    slots->owners[slot] = unit;
    slots->table[unit] = (int32_t)slot;
    slots->used[slot] = 1;
    counts->misses++;
    const uint64_t address = slot_address(slots, slot);
    memcpy((void *)(uintptr_t)address, (const void *)(uintptr_t)home, slots->block_bytes);
    return address;
}

static void fetch_head(const struct fetch_operation *operation, size_t index, size_t head) {
    const struct rows_item *item = &operation->items[index];
    const struct row_list list = item->lists[head];
    const uint32_t *rows = cpu_rows(list);
    const size_t count = (list.count + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    struct head_slots slots = slots_of(&operation->slots[index], item, head);
    uint64_t *addresses = (uint64_t *)cpu_address(operation->places) +
                          (index * operation->kv_head_count + head) * operation->place_stride;
    struct fetch_counts *counts = (struct fetch_counts *)cpu_address(operation->counts) + head;
    const uint32_t start = *slots.hand;
    ASSERT(count <= operation->place_stride);
    for (size_t i = 0; i < count; i++)
        addresses[i] = look_up(&slots, item, head, rows[i * KV_BLOCK_TOKENS] / KV_BLOCK_TOKENS, counts);
    for (size_t i = 0; i < count; i++) {
        const uint32_t unit = rows[i * KV_BLOCK_TOKENS] / KV_BLOCK_TOKENS;
        if (addresses[i] == UNIT_MISSES) addresses[i] = bring(&slots, home_of(item, head, unit), unit, start, counts);
    }
}

static void say_missing(const struct fetch_operation *operation, size_t index, size_t head) {
    const struct rows_item *item = &operation->items[index];
    const struct head_slots slots = slots_of(&operation->slots[index], item, head);
    const uint32_t *rows = cpu_rows(item->lists[head]);
    const size_t count = (item->lists[head].count + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    uint8_t *missing = (uint8_t *)cpu_address(operation->missing) +
                       (index * operation->kv_head_count + head) * operation->place_stride;
    for (size_t i = 0; i < count; i++) {
        const uint32_t unit = rows[i * KV_BLOCK_TOKENS] / KV_BLOCK_TOKENS;
        missing[i] = slot_of(&slots, item, head, unit) < 0 && !is_near(item, head, unit);
    }
}

/* A KV head of all items: they add to the same counts. */
static void fetch_task(void *context, const struct pool_worker *worker) {
    const struct fetch_operation *operation = context;
    const struct range heads = pool_range(worker, operation->kv_head_count, 1);
    void (*run)(const struct fetch_operation *operation, size_t index, size_t head) =
        span_exists(operation->missing) ? say_missing : fetch_head;
    for (size_t head = heads.begin; head < heads.end; head++)
        for (size_t i = 0; i < operation->item_count; i++) run(operation, i, head);
}

void cpu_fetch(struct stream *stream, const struct fetch_operation *operation) {
    struct fetch_operation own = *operation;
    cpu_run(stream->device, false, fetch_task, &own);
}

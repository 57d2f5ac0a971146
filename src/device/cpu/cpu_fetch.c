/* fetch on the cpu: the definition of the operation, one KV head after the other.  Hits are found first, so that no
 * miss takes the slot of a unit that this step uses; misses then take slots in the order of the list.  Units of chunks
 * in 4 bits are found by their chunk, in slots of their own. */
#include <string.h>

#include "base/assert.h"
#include "device/cpu/cpu_device_internal.h"
#include "kernels/codec/codec.h"

static const uint64_t UNIT_MISSES = UINT64_MAX; /* in place of a unit's address, between the two rounds */

/* The slots of a KV head of an item, of units or of chunks in 4 bits. */
struct head_slots {
    int32_t *table;
    uint32_t *owners, *stamps, *hand;
    uint8_t *used, *memory;
    size_t count, slot_bytes;
    uint32_t step;  /* this one's number: its position + 1 */
    size_t visited; /* by the hand in this step */
    uint32_t start; /* where the hand was */
};

static struct head_slots slots_of(const struct unit_slots *slots, const struct rows_item *item, size_t head,
                                  size_t slot_bytes) {
    const uint32_t *firsts = (const uint32_t *)cpu_address(slots->firsts) + head;
    const size_t first = firsts[0];
    uint32_t *hand = (uint32_t *)cpu_address(slots->hands) + head;
    return (struct head_slots){.table = (int32_t *)cpu_address(slots->tables) + head * slots->unit_stride,
                               .owners = (uint32_t *)cpu_address(slots->owners) + first,
                               .stamps = (uint32_t *)cpu_address(slots->stamps) + first,
                               .hand = hand,
                               .used = (uint8_t *)cpu_address(slots->used) + first,
                               .memory = (uint8_t *)cpu_address(slots->memory) + first * slot_bytes,
                               .count = firsts[1] - first,
                               .slot_bytes = slot_bytes,
                               .step = (uint32_t)item->position + 1,
                               .start = *hand};
}

/* A KV head of an item, and its slots of either kind. */
struct fetched_head {
    const struct rows_item *item;
    size_t head;
    struct head_slots units, chunks;
    const uint32_t *quantized; /* places of its chunks in 4 bits; NULL: it has none */
    struct fetch_counts *counts;
};

static struct fetched_head head_of(const struct fetch_operation *operation, size_t index, size_t head) {
    const struct rows_item *item = &operation->items[index];
    const struct kv_layout *layout = item->view.layout;
    struct fetched_head own = {.item = item,
                               .head = head,
                               .units = slots_of(&operation->slots[index], item, head, layout->block_bytes),
                               .counts = (struct fetch_counts *)cpu_address(operation->counts) + head};
    if (operation->q4_slots == NULL || !span_exists(item->view.quantized)) return own;
    own.chunks = slots_of(&operation->q4_slots[index], item, head, kv_q4_chunk_bytes(layout));
    own.quantized = cpu_places(item->view.quantized) + head * item->view.chunk_stride;
    return own;
}

static uint64_t slot_address(const struct head_slots *slots, size_t slot) {
    return (uintptr_t)(slots->memory + slot * slots->slot_bytes);
}

static uint32_t place_of(const struct fetched_head *of, uint32_t unit) {
    const struct kv_view *view = &of->item->view;
    return cpu_places(view->chunks)[of->head * view->chunk_stride + unit / KV_CHUNK_BLOCKS];
}

/* In its chunk; 0: nowhere. */
static uint64_t home_of(const struct fetched_head *of, uint32_t unit) {
    const struct kv_view *view = &of->item->view;
    const uint8_t *chunk = cpu_chunk(view->pools, place_of(of, unit));
    return chunk == NULL ? 0 : (uintptr_t)(chunk + unit % KV_CHUNK_BLOCKS * view->layout->block_bytes);
}

/* It is in the device's memory. */
static bool is_near(const struct fetched_head *of, uint32_t place) {
    return place != PLACE_NOWHERE && of->item->view.pools->list[place_pool(place)].buffers[0].kind == MEMORY_DEVICE;
}

/* No longer written. */
static bool is_complete(const struct fetched_head *of, size_t chunk) {
    return chunk < of->item->position / KV_CHUNK_TOKENS;
}

/* Of a unit whose chunk is complete; -1: none. */
static int32_t slot_of(const struct fetched_head *of, uint32_t unit) {
    return is_complete(of, unit / KV_CHUNK_BLOCKS) && !is_near(of, place_of(of, unit)) ? of->units.table[unit] : -1;
}

/* The same of a chunk in 4 bits. */
static int32_t chunk_slot_of(const struct fetched_head *of, size_t chunk) {
    if (of->quantized == NULL) return -1;
    return is_complete(of, chunk) && !is_near(of, of->quantized[chunk]) ? of->chunks.table[chunk] : -1;
}

/* The unit is read from its chunk in 4 bits. */
static bool is_q4(const struct fetched_head *of, uint32_t unit) {
    const size_t chunk = unit / KV_CHUNK_BLOCKS;
    return of->quantized != NULL && (chunk_slot_of(of, chunk) >= 0 || of->quantized[chunk] != PLACE_NOWHERE);
}

/* CLOCK: the next slot that this step does not use, in the hand's first round also none that was used since its last
 * visit; slots->count: there is none. */
static size_t take_slot(struct head_slots *slots) {
    for (; slots->visited < 2 * slots->count; slots->visited++) {
        const size_t slot = (slots->start + slots->visited) % slots->count;
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

static uint64_t hit(struct head_slots *slots, int32_t slot) {
    slots->stamps[slot] = slots->step;
    slots->used[slot] = 1;
    return slot_address(slots, (size_t)slot);
}

/* A unit, or a chunk, from its home into a slot; 0: there is none. */
static uint64_t bring(struct head_slots *slots, uint64_t home, uint32_t owner) {
    const size_t slot = take_slot(slots);
    if (slot == slots->count) return 0;
    if (slots->owners[slot] != UINT32_MAX) slots->table[slots->owners[slot]] = -1;
    slots->owners[slot] = owner;
    slots->table[owner] = (int32_t)slot;
    slots->used[slot] = 1;
    const uint64_t address = slot_address(slots, slot);
    memcpy((void *)(uintptr_t)address, (const void *)(uintptr_t)home, slots->slot_bytes);
    return address;
}

/* Where the unit is to be read, if it is known already; else UNIT_MISSES. */
static uint64_t look_up(struct fetched_head *of, uint32_t unit) {
    const int32_t slot = slot_of(of, unit);
    if (slot >= 0) {
        of->counts->hits++;
        return hit(&of->units, slot);
    }
    const uint64_t home = home_of(of, unit);
    if (home == 0) {
        of->counts->absent++;
        return 0;
    }
    if (is_complete(of, unit / KV_CHUNK_BLOCKS) && !is_near(of, place_of(of, unit))) return UNIT_MISSES;
    of->counts->direct++;
    return home;
}

static uint64_t bring_unit(struct fetched_head *of, uint32_t unit) {
    const uint64_t home = home_of(of, unit), address = bring(&of->units, home, unit);
    *(address != 0 ? &of->counts->misses : &of->counts->direct) += 1;
    return address != 0 ? address : home;
}

/* The same two of a chunk in 4 bits. */
static uint64_t look_up_chunk(struct fetched_head *of, uint32_t chunk) {
    const int32_t slot = chunk_slot_of(of, chunk);
    const uint32_t place = of->quantized[chunk];
    if (slot >= 0) {
        of->counts->chunk_hits++;
        return hit(&of->chunks, slot);
    }
    if (is_complete(of, chunk) && !is_near(of, place)) return UNIT_MISSES;
    of->counts->chunk_direct++;
    return (uintptr_t)cpu_chunk(of->item->view.pools, place);
}

static uint64_t bring_chunk(struct fetched_head *of, uint32_t chunk) {
    const uint64_t home = (uintptr_t)cpu_chunk(of->item->view.pools, of->quantized[chunk]),
                   address = bring(&of->chunks, home, chunk);
    *(address != 0 ? &of->counts->chunk_misses : &of->counts->chunk_direct) += 1;
    return address != 0 ? address : home;
}

/* The units of a list that are of one chunk. */
static size_t units_together(const uint32_t *rows, size_t first, size_t count) {
    const uint32_t chunk = rows[first * KV_BLOCK_TOKENS] / KV_CHUNK_TOKENS;
    size_t end = first + 1;
    while (end < count && rows[end * KV_BLOCK_TOKENS] / KV_CHUNK_TOKENS == chunk) end++;
    return end - first;
}

static void mark(uint64_t *addresses, const uint32_t *rows, size_t count, uint64_t chunk) {
    for (size_t i = 0; i < count; i++)
        addresses[i] = chunk | CPU_Q4_UNIT | rows[i * KV_BLOCK_TOKENS] / KV_BLOCK_TOKENS % KV_CHUNK_BLOCKS;
}

static void fetch_head(const struct fetch_operation *operation, size_t index, size_t head) {
    struct fetched_head of = head_of(operation, index, head);
    const struct row_list list = of.item->lists[head];
    const uint32_t *rows = cpu_rows(list);
    const size_t count = (list.count + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    uint64_t *addresses = (uint64_t *)cpu_address(operation->places) +
                          (index * operation->kv_head_count + head) * operation->place_stride;
    ASSERT(count <= operation->place_stride);
    for (size_t round = 0, n; round < 2; round++)
        for (size_t i = 0; i < count; i += n) {
            const uint32_t unit = rows[i * KV_BLOCK_TOKENS] / KV_BLOCK_TOKENS, chunk = unit / KV_CHUNK_BLOCKS;
            const bool q4 = is_q4(&of, unit);
            n = q4 ? units_together(rows, i, count) : 1;
            if (round > 0 && addresses[i] != UNIT_MISSES) continue;
            if (q4)
                addresses[i] = round == 0 ? look_up_chunk(&of, chunk) : bring_chunk(&of, chunk);
            else
                addresses[i] = round == 0 ? look_up(&of, unit) : bring_unit(&of, unit);
            if (q4 && addresses[i] != UNIT_MISSES) mark(addresses + i, rows + i * KV_BLOCK_TOKENS, n, addresses[i]);
        }
}

static void say_missing(const struct fetch_operation *operation, size_t index, size_t head) {
    const struct fetched_head of = head_of(operation, index, head);
    const uint32_t *rows = cpu_rows(of.item->lists[head]);
    const size_t count = (of.item->lists[head].count + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    uint8_t *missing = (uint8_t *)cpu_address(operation->missing) +
                       (index * operation->kv_head_count + head) * operation->place_stride;
    for (size_t i = 0; i < count; i++) {
        const uint32_t unit = rows[i * KV_BLOCK_TOKENS] / KV_BLOCK_TOKENS, chunk = unit / KV_CHUNK_BLOCKS;
        missing[i] = is_q4(&of, unit) ? chunk_slot_of(&of, chunk) < 0 && !is_near(&of, of.quantized[chunk])
                                      : slot_of(&of, unit) < 0 && !is_near(&of, place_of(&of, unit));
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

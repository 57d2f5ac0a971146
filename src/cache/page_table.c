#include "cache/page_table.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/layout.h"

enum { WORD_BITS = 64, DELTAS_MAX = 512 };

static void place(struct page_table *table, struct layout *layout) {
    table->places = layout_take(layout, table->lane_count * table->chunk_capacity, sizeof *table->places);
    table->changed = layout_take(layout, table->lane_count * table->changed_words, sizeof *table->changed);
    table->changed_counts = layout_take(layout, table->lane_count, sizeof *table->changed_counts);
}

static struct page_table of(size_t lane_count, uint64_t chunk_capacity) {
    return (struct page_table){.lane_count = lane_count,
                               .chunk_capacity = (size_t)chunk_capacity,
                               .changed_words = (size_t)((chunk_capacity + WORD_BITS - 1) / WORD_BITS)};
}

uint64_t page_table_device_bytes(uint64_t lane_count, uint64_t chunk_capacity) {
    return lane_count * chunk_capacity * sizeof(uint32_t);
}
static size_t device_bytes(const struct page_table *table) {
    return (size_t)page_table_device_bytes(table->lane_count, table->chunk_capacity);
}

uint64_t page_table_bytes(uint64_t lane_count, uint64_t chunk_capacity) {
    struct page_table table = of(lane_count, chunk_capacity);
    struct layout layout = {0};
    place(&table, &layout);
    return layout.used + device_bytes(&table);
}

enum status page_table_init(struct page_table *table, struct device *device, size_t lane_count, uint64_t chunk_capacity,
                            struct error *error) {
    uint64_t count;
    struct layout layout = {0};
    enum status status = STATUS_MEMORY;
    *table = of(lane_count, chunk_capacity);
    table->device = device;
    if (checked_multiply(lane_count, chunk_capacity, &count) && count <= UINT32_MAX) {
        place(table, &layout);
        layout = (struct layout){.memory = calloc(1, max_size(layout.used, 1))};
        if (layout.memory != NULL) {
            place(table, &layout);
            status = device->operations->allocate(device, MEMORY_DEVICE, device_bytes(table), &table->on_device, NULL);
        }
    }
    if (status == STATUS_OK) return STATUS_OK;
    page_table_deinit(table);
    TRY(device_state(device, error)); /* it gave none, for it broke */
    return error_set(error, STATUS_MEMORY, "no memory for a page table of %llu chunks of %zu heads",
                     (unsigned long long)chunk_capacity, lane_count);
}

void page_table_deinit(struct page_table *table) {
    if (buffer_exists(&table->on_device)) table->device->operations->release(table->device, &table->on_device);
    free(table->places); /* the others lie behind them */
    *table = (struct page_table){0};
}

static void note_change(struct page_table *table, size_t lane, uint64_t chunk) {
    uint64_t *word = &table->changed[lane * table->changed_words + chunk / WORD_BITS];
    const uint64_t bit = UINT64_C(1) << chunk % WORD_BITS;
    table->changed_counts[lane] += (*word & bit) == 0;
    *word |= bit;
}

void page_table_set(struct page_table *table, size_t lane, uint64_t chunk, uint32_t place) {
    ASSERT(lane < table->lane_count && chunk < table->chunk_capacity);
    uint32_t *own = &table->places[lane * table->chunk_capacity + chunk];
    if (*own == place) return;
    *own = place;
    note_change(table, lane, chunk);
}

size_t page_table_cover(struct page_table *table, size_t lane, size_t chunk_end, uint32_t instead,
                        struct place_delta *deltas) {
    for (size_t chunk = 0; chunk < chunk_end; chunk++) {
        const size_t index = lane * table->chunk_capacity + chunk;
        const uint32_t place = table->places[index];
        deltas[chunk] = (struct place_delta){(uint32_t)index, place != PLACE_NOWHERE ? place : instead};
        note_change(table, lane, chunk);
    }
    return chunk_end;
}

/* What has changed of a lane, at most `room` of it. */
static size_t take_lane(struct page_table *table, size_t lane, struct place_delta *deltas, size_t room) {
    size_t count = 0;
    for (size_t i = 0; i < table->changed_words && table->changed_counts[lane] > 0 && count < room; i++) {
        uint64_t *word = &table->changed[lane * table->changed_words + i];
        for (; *word != 0 && count < room; *word &= *word - 1) {
            const size_t chunk = i * WORD_BITS + (size_t)__builtin_ctzll(*word),
                         index = lane * table->chunk_capacity + chunk;
            deltas[count++] = (struct place_delta){(uint32_t)index, table->places[index]};
            table->changed_counts[lane]--;
        }
    }
    return count;
}

size_t page_table_take(struct page_table *table, size_t lane_first, size_t lane_count, struct place_delta *deltas) {
    size_t count = 0;
    ASSERT(lane_first + lane_count <= table->lane_count);
    for (size_t lane = lane_first; lane < lane_first + lane_count; lane++)
        count += take_lane(table, lane, deltas + count, SIZE_MAX);
    return count;
}

void page_table_update(struct page_table *table, struct stream *stream, size_t lane_first, size_t lane_count) {
    struct place_delta deltas[DELTAS_MAX];
    size_t count = 0;
    ASSERT(lane_first + lane_count <= table->lane_count);
    for (size_t lane = lane_first; lane < lane_first + lane_count;) {
        count += take_lane(table, lane, deltas + count, DELTAS_MAX - count);
        const bool is_over = table->changed_counts[lane] == 0 && ++lane == lane_first + lane_count;
        if (count == 0 || (count < DELTAS_MAX && !is_over)) continue;
        table->device->operations->update_places(
            stream, &(struct update_places_operation){
                        .table = span_of(&table->on_device, 0), .deltas = deltas, .count = count});
        count = 0;
    }
}

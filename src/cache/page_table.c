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

void page_table_set(struct page_table *table, size_t lane, uint64_t chunk, uint32_t place) {
    ASSERT(lane < table->lane_count && chunk < table->chunk_capacity);
    uint32_t *own = &table->places[lane * table->chunk_capacity + chunk];
    uint64_t *word = &table->changed[lane * table->changed_words + chunk / WORD_BITS];
    const uint64_t bit = UINT64_C(1) << chunk % WORD_BITS;
    if (*own == place) return;
    *own = place;
    table->changed_counts[lane] += (*word & bit) == 0;
    *word |= bit;
}

/* Deltas on their way to an operation. */
struct delta_batch {
    struct place_delta deltas[DELTAS_MAX];
    size_t count;
};

static void launch(const struct page_table *table, struct stream *stream, struct delta_batch *batch) {
    if (batch->count > 0)
        table->device->operations->update_places(
            stream, &(struct update_places_operation){
                        .table = span_of(&table->on_device, 0), .deltas = batch->deltas, .count = batch->count});
    batch->count = 0;
}

static void update_lane(struct page_table *table, struct stream *stream, size_t lane, struct delta_batch *batch) {
    for (size_t i = 0; i < table->changed_words && table->changed_counts[lane] > 0; i++) {
        uint64_t *word = &table->changed[lane * table->changed_words + i];
        for (; *word != 0; *word &= *word - 1) {
            const size_t chunk = i * WORD_BITS + (size_t)__builtin_ctzll(*word),
                         index = lane * table->chunk_capacity + chunk;
            if (batch->count == DELTAS_MAX) launch(table, stream, batch);
            batch->deltas[batch->count++] = (struct place_delta){(uint32_t)index, table->places[index]};
            table->changed_counts[lane]--;
        }
    }
}

void page_table_update(struct page_table *table, struct stream *stream, size_t lane_first, size_t lane_count) {
    struct delta_batch batch;
    batch.count = 0;
    ASSERT(lane_first + lane_count <= table->lane_count);
    for (size_t lane = lane_first; lane < lane_first + lane_count; lane++)
        if (table->changed_counts[lane] > 0) update_lane(table, stream, lane, &batch);
    launch(table, stream, &batch);
}

/* page_table: where chunks of a sequence lie (device/place.h), by lane (layer and KV head) and chunk.
 *
 * The host's copy is the truth.  The device's copy takes what has changed on a stream, before an operation is launched
 * that reads it (page_table_update): what was launched before sees the table as it was then. */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

struct page_table {
    struct device *device;    /* borrowed */
    uint32_t *places;         /* owned, the next two behind it; [lane][chunk_capacity]; NULL: there is no table */
    struct buffer on_device;  /* owned MEMORY_DEVICE; the same */
    uint64_t *changed;        /* [lane][changed_words]: a bit for each place that the device lacks */
    uint32_t *changed_counts; /* [lane] */
    size_t lane_count, chunk_capacity, changed_words;
};

/* All are nowhere.  When it fails there is no table.  Memory is touched only where places are set. */
enum status page_table_init(struct page_table *table, struct device *device, size_t lane_count, uint64_t chunk_capacity,
                            struct error *error) STATUS_CHECKED;
void page_table_deinit(struct page_table *table); /* of none, too */
/* Memory of both copies. */
uint64_t page_table_bytes(uint64_t lane_count, uint64_t chunk_capacity);
/* Of these, the device's copy. */
uint64_t page_table_device_bytes(uint64_t lane_count, uint64_t chunk_capacity);

static inline uint32_t page_table_place(const struct page_table *table, size_t lane, uint64_t chunk) {
    return table->places[lane * table->chunk_capacity + chunk];
}
/* The device's copy of a lane. */
static inline struct span page_table_lane(const struct page_table *table, size_t lane) {
    return span_of(&table->on_device, lane * table->chunk_capacity * sizeof *table->places);
}
/* The device takes it with the next update, unless it has it. */
void page_table_set(struct page_table *table, size_t lane, uint64_t chunk, uint32_t place);
/* The device's copy of these lanes is up to date for what follows on the stream. */
void page_table_update(struct page_table *table, struct stream *stream, size_t lane_first, size_t lane_count);
/* The same by a caller who sees to it: deltas has room for every place of the lanes.  Returns how many have changed. */
size_t page_table_take(struct page_table *table, size_t lane_first, size_t lane_count, struct place_delta *deltas);
/* Every place of a lane before chunk_end; the device is to read `instead` for those that are nowhere, and has them all
 * to be told again.  Returns chunk_end. */
size_t page_table_cover(struct page_table *table, size_t lane, size_t chunk_end, uint32_t instead,
                        struct place_delta *deltas);

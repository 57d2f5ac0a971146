#include "device/device.h"

#include "base/assert.h"
#include "kernels/attention/attention.h"

void device_destroy(struct device *device) {
    if (device != NULL) device->operations->destroy(device);
}

enum status device_set_threads(struct device *device, size_t thread_count, struct error *error) {
    return device->operations->set_threads(device, thread_count, error);
}

enum status device_read(struct device *device, struct stream *stream, void *target, struct span source,
                        size_t size_bytes, struct error *error) {
    device->operations->download(stream, target, source, size_bytes);
    return device->operations->stream_synchronize(stream, error);
}

enum status device_read_chunk(struct device *device, struct stream *stream, const struct kv_view *view, size_t kv_head,
                              uint64_t chunk, void *target, struct error *error) {
    uint32_t place;
    const size_t index = kv_head * view->chunk_stride + (size_t)chunk;
    TRY(device_read(device, stream, &place, span_behind(view->chunks, index * sizeof place), sizeof place, error));
    ASSERT(place != PLACE_NOWHERE);
    return device_read(device, stream, target, kv_pools_chunk(view->pools, place), view->layout->chunk_bytes, error);
}

uint64_t device_memory_free(struct device *device) {
    return device->operations->memory_free == NULL ? UINT64_MAX : device->operations->memory_free(device);
}

struct range_form device_range_form(const struct device *device) {
    if (device != NULL && device->range_form != NULL) return *device->range_form;
    return (struct range_form){.rows = attention_range_rows, .count_max = ATTENTION_RANGES, .partial_floats = 2};
}

enum status device_state(const struct device *device, struct error *error) {
    return device->operations->state == NULL ? STATUS_OK : device->operations->state(device, error);
}

#define ROW(UNIT, MEMBER, HELP) COUNTER_ROW(TOTAL, UNIT, struct device_counts, MEMBER, #MEMBER, HELP)
static const struct counter counter_rows[] = {
    ROW(ITEMS, launches, "Kernels, of recorded steps too."),
    ROW(ITEMS, captures, "Steps that were recorded."),
    ROW(ITEMS, changes, "Recorded steps that were given other sequences, places or lengths."),
    ROW(ITEMS, replays, "Recorded steps that were launched."),
    ROW(BYTES, copied_bytes, "Copied over the bus and within the device's memory."),
    ROW(ITEMS, products, "Products of prompts' rows with the weights of a type, and their attention."),
    ROW(ITEMS, tuned_products, "Those of them by kernels for this kind of card alone."),
};
#undef ROW
const struct counter_table device_counters = COUNTER_TABLE("device_", struct device_counts, counter_rows);

#define ROW(MEMBER, HELP) COUNTER_ROW(TOTAL, ITEMS, struct fetch_counts, MEMBER, #MEMBER, HELP)
static const struct counter fetch_rows[] = {
    ROW(hits, "Units of 8 tokens that were in the device's slots."),
    ROW(misses, "Units that were read into a slot."),
    ROW(direct, "Units that were read where they lie."),
    ROW(absent, "Units of chunks that are nowhere."),
    ROW(chunk_hits, "Chunks in 4 bits that were in the device's slots."),
    ROW(chunk_misses, "Chunks in 4 bits that were read into a slot."),
    ROW(chunk_direct, "Chunks in 4 bits that were read where they lie."),
};
#undef ROW
const struct counter_table fetch_counters = COUNTER_TABLE("kv_unit_", struct fetch_counts, fetch_rows);

struct device_counts device_counts(const struct device *device) {
    if (device->operations->counts == NULL) return (struct device_counts){.launches = 0};
    return device->operations->counts(device);
}

struct pool *device_pool(struct device *device) {
    return device->operations->pool(device);
}

/* Copies: how fast memory that both reach moves to a device that has its own, and back; what empties caches. */
#include "measure/measure_internal.h"

static const size_t BYTES = (size_t)64 << 20, BYTES_SHORT = (size_t)1 << 20;

void measure_empty_caches(const struct measurement *measurement) {
    const struct buffer *own = &measurement->device_caches;
    if (!buffer_exists(own)) {
        bandwidth_pass_ns(&measurement->caches, device_pool(measurement->device));
        return;
    }
    struct error ignored; /* a device keeps it */
    const struct device_operations *operations = measurement->device->operations;
    operations->copy(measurement->stream, span_of(own, 0), span_of(own, own->bytes / 2), own->bytes / 2);
    (void)!operations->stream_synchronize(measurement->stream, &ignored);
}

static enum status copy_seconds(const struct measurement *measurement, struct span target, struct span source,
                                size_t bytes, double *seconds, struct error *error) {
    const struct device_operations *operations = measurement->device->operations;
    struct quickest copy = {0};
    while (quickest_is_open(&copy, measurement)) {
        const uint64_t began = clock_ns();
        operations->copy(measurement->stream, target, source, bytes);
        TRY(operations->stream_synchronize(measurement->stream, error));
        quickest_add(&copy, (double)(clock_ns() - began) * 1e-9);
    }
    *seconds = copy.seconds;
    return STATUS_OK;
}

static enum status both_ways(const struct measurement *measurement, struct span near, struct span far, size_t bytes,
                             struct error *error) {
    double there, back;
    TRY(copy_seconds(measurement, near, far, bytes, &there, error));
    TRY(copy_seconds(measurement, far, near, bytes, &back, error));
    measurement->machine->device_link = (double)bytes / fmax(there, back);
    return STATUS_OK;
}

enum status measure_link(struct measurement *measurement, struct error *error) {
    struct device *device = measurement->device;
    const size_t bytes = measurement->is_short ? BYTES_SHORT : BYTES;
    struct buffer near = {.device = NULL}, far = {.device = NULL};
    TRY(measure_part(measurement, "link", error));
    enum status status = device->operations->allocate(device, MEMORY_DEVICE, bytes, &near, error);
    if (status == STATUS_OK) status = device->operations->allocate(device, MEMORY_SHARED, bytes, &far, error);
    if (status == STATUS_OK) status = both_ways(measurement, span_of(&near, 0), span_of(&far, 0), bytes, error);
    device->operations->release(device, &near);
    device->operations->release(device, &far);
    return status;
}

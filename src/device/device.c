#include "device/device.h"

const struct buffer kv_view_memory = {.kind = MEMORY_DEVICE, .bytes = SIZE_MAX};

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

struct pool *device_pool(struct device *device) {
    return device->operations->pool(device);
}

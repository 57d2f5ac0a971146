#include "device/device.h"

void device_destroy(struct device *device) {
    if (device != NULL) device->operations->destroy(device);
}

struct pool *device_pool(struct device *device) {
    return device->operations->pool(device);
}

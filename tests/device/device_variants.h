/* device_variants: what tests of the cpu device's selection run on: the reference kernels with two threads, then the
 * fastest ones with 1, 2, ... threads. */
#pragma once

#include "device/device.h"
#include "testing.h"

static inline void device_variants_open(struct device **devices, struct stream **streams, size_t count) {
    struct error error;
    for (size_t i = 0; i < count; i++) {
        const struct device_options options = {.thread_count = i == 0 ? 2 : i,
                                               .mask = i == 0 ? 0 : cpu_features()};
        assert_ok(device_cpu_create(&devices[i], &options, &error), error);
        assert_ok(devices[i]->operations->stream_create(devices[i], &streams[i], &error), error);
    }
}

static inline void device_variants_close(struct device **devices, struct stream **streams, size_t count) {
    for (size_t i = 0; i < count; i++) {
        devices[i]->operations->stream_destroy(streams[i]);
        device_destroy(devices[i]);
    }
}

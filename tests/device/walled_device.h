/* walled_device: the cpu device with walls around its memory, for tests.  It computes what the cpu device computes.  Its
 * MEMORY_DEVICE is open only during an operation; a host access outside of them faults.  Results in host arrays arrive
 * with the next stream_synchronize; until then the arrays hold other bytes. */
#ifndef LOAM_TESTS_WALLED_DEVICE_H
#define LOAM_TESTS_WALLED_DEVICE_H

#include "device/device.h"

/* Fails the test. */
struct device *walled_device_create(const struct device_options *options);

#endif

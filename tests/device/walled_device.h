/* walled_device: the cpu device with walls between the two memories, for tests.  It computes what the cpu device
 * computes.  Its MEMORY_DEVICE is open only during an operation or a copy; a host access outside of them faults.
 * Where operations do not reach the host's memory, MEMORY_HOST is closed during operations (not copies).  Results in
 * host arrays arrive with the next stream_synchronize; until then the arrays hold other bytes. */
#ifndef LOAM_TESTS_WALLED_DEVICE_H
#define LOAM_TESTS_WALLED_DEVICE_H

#include "device/device.h"

/* Fails the test. */
struct device *walled_device_create(const struct device_options *options, bool reaches_host);

#endif

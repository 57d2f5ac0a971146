/* walled_device: the cpu device with walls between the two memories, for tests.  Its MEMORY_DEVICE is open only while
 * an operation or a copy runs; the host that touches it faults.  Where operations do not reach the host's memory
 * either, MEMORY_HOST is closed while one runs (not for copies).  Results in host arrays come with the next
 * stream_synchronize, and before that are not what they will be.  It computes what the cpu device computes. */
#ifndef LOAM_TESTS_WALLED_DEVICE_H
#define LOAM_TESTS_WALLED_DEVICE_H

#include "device/device.h"

/* Fails the test. */
struct device *walled_device_create(const struct device_options *options, bool reaches_host);

#endif

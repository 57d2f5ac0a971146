/* queued_device: the cpu device behind a queue, for tests.  It computes what the cpu device computes, later: a launch
 * records the operation, and one thread runs the records, each stream's in order, and those of different streams in
 * an order that the seed draws.  The host draws how much is run in each of its calls, and waits while it is run, so
 * that a seed gives the same order every time.  Some seeds run nothing before somebody waits for it.
 *
 *   staged     Of what an operation names in the host's memory, the device has a copy when the call returns: items,
 *              views, lists, picks, layouts, weights, the source of an upload; and places as they were.
 *              MEMORY_SHARED is read and written when the operation runs.
 *   late       A result in the host's memory, other than MEMORY_SHARED, holds 0xff bytes until its stream is
 *              synchronised; what is added to (times, counts of trees) does not change until then.
 *   overlap    The host's work is done right behind the next launch, or at the next stream_synchronize.
 *   memory     MEMORY_DEVICE is closed to the host, but for weights, which it may read: to close them with every
 *              operation would take most of a test's time.
 *   release    Memory is gone at once: an operation that still has to read it faults.  A stream that is destroyed has
 *              nothing under way. */
#pragma once

#include "device/device.h"

/* Fails the test. */
struct device *queued_device_create(const struct device_options *options, uint64_t seed);
/* Weights that come are read where the file is mapped; else the device has copies. */
void queued_device_map_weights(struct device *device);

struct queued_device_counts {
    uint64_t launched;
    uint64_t late;  /* run by a later call than the one that launched them */
    uint64_t waits; /* of the host, for a stream or a ticket */
    uint64_t graphs, graph_launches;
};
struct queued_device_counts queued_device_counts(const struct device *device);

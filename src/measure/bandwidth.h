/* bandwidth: measures how fast these threads read memory at this moment.  This limits decoding.
 *
 * Other load on the machine changes from second to second, so one figure for a whole run does not show what a step
 * could reach.  A pass is short: take one next to each step. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "platform/pool.h"

struct bandwidth {
    void *memory; /* [size_bytes] owned; NULL: not open */
    size_t size_bytes;
};

/* Larger than any cache; 5 to 30 ms a pass. */
static const size_t BANDWIDTH_PASS_BYTES = (size_t)512 << 20;

/* Bytes of memory that is so many times the largest cache; most, where the system does not say how large that is. */
size_t bandwidth_beyond_caches(size_t times, size_t most);
enum status bandwidth_open(struct bandwidth *bandwidth, struct pool *pool, size_t size_bytes, struct error *error)
    STATUS_CHECKED;
/* Nanoseconds in which all threads of the pool read all of the memory, each its own part from front to back. */
uint64_t bandwidth_pass_ns(const struct bandwidth *bandwidth, struct pool *pool);
void bandwidth_close(struct bandwidth *bandwidth);

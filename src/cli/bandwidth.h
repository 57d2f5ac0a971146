/* bandwidth: how fast this machine reads memory now, with these threads: the floor under decoding.
 *
 * What else the machine does changes from second to second, so one figure for a whole run is not what a step could
 * have had.  A pass is short and is meant to be taken beside each step. */
#ifndef LOAM_CLI_BANDWIDTH_H
#define LOAM_CLI_BANDWIDTH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "platform/pool.h"

struct bandwidth {
    void *memory; /* [BANDWIDTH_PASS_BYTES] owned; NULL: not open */
};

/* More than any cache; 5 to 30 ms a pass. */
static const size_t BANDWIDTH_PASS_BYTES = (size_t)512 << 20;

enum status bandwidth_open(struct bandwidth *bandwidth, struct pool *pool, struct error *error)
    STATUS_CHECKED;
/* Nanoseconds in which all threads of the pool read BANDWIDTH_PASS_BYTES, each its own part front to back. */
uint64_t bandwidth_pass_ns(const struct bandwidth *bandwidth, struct pool *pool);
void bandwidth_close(struct bandwidth *bandwidth);

#endif

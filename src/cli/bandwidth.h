/* bandwidth: how fast this machine reads memory now, with these threads: the floor under decoding. */
#ifndef LOAM_CLI_BANDWIDTH_H
#define LOAM_CLI_BANDWIDTH_H

#include <stdint.h>

#include "base/status.h"
#include "platform/pool.h"

/* Bytes per second of the fastest of several passes over 512 MiB (each about 20 to 60 ms), every thread of
 * the pool reading its own part front to back.  The fastest: what else runs here can only slow a pass down. */
enum status bandwidth_measure(struct pool *pool, double *bytes_per_second, struct error *error)
    STATUS_CHECKED;

#endif

/* machine: what this machine can do at most, measured in the run that is judged by it. */
#pragma once

#include <stddef.h>

#include "platform/pool.h"

/* Bytes per second of one pass over data[bytes], read in order, each thread its contiguous share. */
double machine_read_bandwidth(struct pool *pool, const void *data, size_t bytes);

/* Single-precision operations per second of independent fused multiply-adds (2 operations each). */
double machine_multiply_add_peak(struct pool *pool);

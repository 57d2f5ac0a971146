/* io_link: a limit on what all queues of the process read together, in bytes a second, as a slower disk or a network
 * would give; for tests and benchmarks.
 *
 * Reads share one link, first come, first served: each begins when the one before has ended and takes as long as its
 * bytes.  They are made at once; io_queue.h hands out a completion when the link would have it.  Any thread.
 */
#pragma once

#include <stdint.h>

/* When a link that is free from *free_ns on has moved the bytes, asked for now; it is free then. */
uint64_t io_link_move(uint64_t *free_ns, uint64_t now_ns, uint64_t bytes, uint64_t bytes_per_second);

/* Limits the reads of the process; 0: no limit, as at the start. */
void io_link_limit(uint64_t bytes_per_second);
/* When (clock_ns) a read that is asked for now ends on it; 0: there is no limit. */
uint64_t io_link_read(uint64_t bytes);
void io_link_wait_until(uint64_t due_ns);

/* flag: a word in pinned memory that streams and the host wait for and raise.
 *
 * It only rises, but for cuda_stream_flag_take (stream.h), which lowers it to 0 for the next replay of a graph.  The
 * one side that raises it does so with values that rise. */
#pragma once

#include "device/cuda/context.h"

struct cuda_flag {
    struct cuda_context *context; /* NULL: none */
    uint32_t index;
};

/* At 0.  STATUS_FULL: CUDA_FLAGS_MAX are in use. */
enum status cuda_flag_create(struct cuda_flag *flag, struct cuda_context *context, struct error *error) STATUS_CHECKED;
void cuda_flag_destroy(struct cuda_flag *flag); /* nobody waits for it; none: allowed */

/* Of any thread.  To at least value; what this thread wrote before is visible to whoever waited. */
void cuda_flag_raise(const struct cuda_flag *flag, uint32_t value);
uint32_t cuda_flag_value(const struct cuda_flag *flag);

/* For the files of this folder: to 0, where nobody else waits or raises; where the card finds it; that a stream will
 * wait for that value. */
void cuda_flag_lower(const struct cuda_flag *flag);
uint64_t cuda_flag_address(const struct cuda_flag *flag);
void cuda_flag_await(const struct cuda_flag *flag, uint32_t value);
/* The watchdog: raises every flag that some stream may wait for, so that the streams run dry.  Whether there was one;
 * found, expected: of the first such flag. */
bool cuda_flags_raise_all(struct cuda_context *context, uint32_t *found, uint32_t *expected);

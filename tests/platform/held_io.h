/* held_io: a back end of the I/O queue in place of io_uring's that a test holds, for programs that are linked with
 * --wrap=io_uring_engine_create.  A request that is handed to it ends when somebody waits, one at a time and the last
 * one first; a poll finds none.  While the gate is closed none ends at all.  So what is on its way at a time is no
 * luck.
 *
 * Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Of all queues. */
struct held_io {
    size_t writes;                /* on their way */
    size_t reads_max, writes_max; /* as many were at once, since held_io_forget */
};

struct held_io held_io_now(void);
void held_io_forget(void);
void held_io_close(bool is_closed);      /* the gate, or opens it */
void held_io_await_writes(size_t count); /* until as many are on their way, at least */

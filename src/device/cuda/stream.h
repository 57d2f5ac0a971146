/* stream: work in order, and tickets to tell when it is done.
 *
 * A ticket is a number that rises: cuda_stream_mark gives one for all that was put on the stream before.  The host
 * asks whether it is done or waits for it, and other streams wait for it.  64 may be under way; the 65th waits for the
 * first.
 *
 * While a stream records (graph.h) the same calls add nodes to a graph and nothing runs.  A stream that waits for a
 * ticket of a recording joins it.  Tickets of a recording are for cuda_stream_wait within it and for nothing else.
 *
 * The host never waits in the driver, which may not come back: it asks again and again.  Where a stream makes no
 * progress for the context's limit, and was asked often in that time, every flag that is waited for is raised, the
 * context is broken and names it; what does not end even then within 2 s is left to itself (is_stuck).  The driver
 * waits for all work when memory is given back, so every stream is drained first.
 *
 * A graph may wait for the host: its turn.  Whoever waits for that stream, or drains it, takes it.  As long as the
 * device waits for the host, and while the host has its turn, no limit counts.
 */
#pragma once

#include "device/cuda/flag.h"
#include "device/cuda/module.h"

enum { CUDA_TICKETS_MAX = 64, CUDA_NEEDED_MAX = 8 };

struct cuda_graph;

/* The nodes that the next one of a recording stream comes after. */
struct cuda_needed {
    struct cu_graph_node *nodes[CUDA_NEEDED_MAX];
    size_t count;
    bool is_kernel; /* count is 1, and the node a kernel of this stream */
};

/* The host's turns (cuda_stream_turn): in which order they come, and what they do, is their caller's to know. */
struct cuda_turns {
    struct cuda_flag asked, answered; /* none: there was no turn yet */
    void (*take)(void *context);
    void *context;
    size_t left; /* of what is under way, that the host has not had */
    bool is_taking;
};

struct cuda_stream {
    struct cuda_context *context;
    struct cu_stream *handle;
    struct cu_event *events[CUDA_TICKETS_MAX]; /* owned; ticket t's is [t % CUDA_TICKETS_MAX] */
    uint64_t last, done;                       /* tickets given; known to be done */
    uint64_t asked_ns;    /* when the host first asked in vain, since the last progress; 0: it did not */
    uint32_t asked_count; /* and how often since */
    struct cuda_turns turns;

    struct cuda_graph *graph; /* NULL: it does not record */
    struct cuda_needed needed;
    struct cuda_needed marks[CUDA_TICKETS_MAX]; /* of tickets of the recording */
    uint64_t recorded;                          /* the last ticket of the recording */
};

struct cuda_launch {
    const struct cuda_kernel *kernel;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    const void *arguments; /* the kernel's one struct, read before the call returns */
    /* It may start before the kernel in front of it on the stream ends, and waits for it by itself (programmatic
     * dependent launch).  Where the card cannot, it starts behind it. */
    bool is_early;
};

enum status cuda_stream_create(struct cuda_stream *stream, struct cuda_context *context, struct error *error)
    STATUS_CHECKED;
void cuda_stream_destroy(struct cuda_stream *stream); /* zeros: allowed; drains it */
/* Before buffers, graphs and modules that its work uses are destroyed: waits until it is empty.  In a broken context
 * raises the flags that it waits for.  Returns in any case. */
void cuda_stream_drain(struct cuda_stream *stream);

/* addresses: the card's, of any buffer; in pinned memory the bytes of source are read when the copy's turn comes */
void cuda_stream_launch(struct cuda_stream *stream, const struct cuda_launch *launch);
void cuda_stream_copy(struct cuda_stream *stream, uint64_t target, uint64_t source, size_t size_bytes);
void cuda_stream_fill(struct cuda_stream *stream, uint64_t target, uint8_t value, size_t size_bytes);

uint64_t cuda_stream_mark(struct cuda_stream *stream);
/* Later work of stream comes after the ticket of other. */
void cuda_stream_wait(struct cuda_stream *stream, const struct cuda_stream *other, uint64_t ticket);
/* In a broken context everything is done: its results do not count.  Where the limit has passed it breaks here. */
bool cuda_ticket_done(struct cuda_stream *stream, uint64_t ticket);
/* The host waits.  The context's first error. */
enum status cuda_ticket_wait(struct cuda_stream *stream, uint64_t ticket, struct error *error) STATUS_CHECKED;

/* Later work waits until the flag has the value.  Without has_stream_waits the host waits here, also in the two calls
 * below, and each of them is an error of the context while the stream records. */
void cuda_stream_flag_wait(struct cuda_stream *stream, const struct cuda_flag *flag, uint32_t value);
/* The same for 1, and then sets it to 0. */
void cuda_stream_flag_take(struct cuda_stream *stream, const struct cuda_flag *flag);
/* Raises it when all before is done. */
void cuda_stream_flag_raise(struct cuda_stream *stream, const struct cuda_flag *flag, uint32_t value);

/* While it records: the host's turn, one node.  When all before is done the host is asked, and what comes later waits
 * until turns.take has returned. */
void cuda_stream_turn(struct cuda_stream *stream);
/* So many turns are in what will be launched next.  Waits until the host has had those that are under way. */
void cuda_stream_turns_expect(struct cuda_stream *stream, size_t count, void (*take)(void *context), void *context);

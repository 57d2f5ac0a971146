/* cuda_programs: two small programs over the device's streams, graphs and flags, which use all of src/device/cuda.
 * Each can be run with one of the bugs that such programs have.
 *
 *   pipeline  three streams (upload, compute, download) over two slots: tickets alone keep them apart
 *   step      a recorded step of two streams: it takes a page that the host hands over by a flag, raises one for its
 *             answer, and then gives the host a turn, to write what it reads next; it is replayed
 */
#pragma once

#include "device/cuda/buffer.h"
#include "device/cuda/graph.h"

enum bug {
    BUG_NONE,
    /* of the pipeline */
    BUG_INPUT_OVERWRITTEN,    /* the host writes the next input while the last one is still being copied */
    BUG_SLOT_EVICTED,         /* an upload into a slot that a kernel reads */
    BUG_UPLOAD_NOT_AWAITED,   /* a kernel reads a slot that is still being filled */
    BUG_OUTPUT_OVERWRITTEN,   /* a kernel writes what a download still reads */
    BUG_KERNEL_NOT_AWAITED,   /* a download of what a kernel still writes */
    BUG_RESULT_READ_EARLY,    /* the host reads results without waiting */
    BUG_TICKET_TOO_EARLY,     /* the ticket is taken before the work is on the stream */
    BUG_TICKET_OF_ANOTHER,    /* the host waits for the round before */
    BUG_WAIT_ON_WRONG_STREAM, /* the ticket of the upload, of another stream */
    BUG_COPY_TOO_SHORT,       /* one element less */
    BUG_GRID_TOO_SHORT,       /* one block less */
    BUG_WRONG_SLOT,           /* a kernel reads the other slot */
    BUG_NOT_CLEARED,          /* a sum over what the last round left */
    BUG_HOST_TOUCHES_DEVICE,  /* the host reads device memory */
    BUG_FREED_TOO_EARLY,      /* a buffer is used after it was given back */
    BUG_COPY_FROM_STACK,      /* of memory that is not pinned */
    BUG_BEYOND_THE_END,       /* a copy larger than its buffer */
    /* of the step */
    BUG_FLAG_RAISED_EARLY,   /* before the page is there */
    BUG_FLAG_NEVER_RAISED,   /* the page does not come, and three replays wait for it */
    BUG_FLAG_NOT_LOWERED,    /* the next replay does not wait */
    BUG_FLAG_NOT_AWAITED,    /* no wait in the step at all */
    BUG_NO_DEPENDENCY_WAIT,  /* a kernel that starts early reads without waiting */
    BUG_FORK_NOT_AWAITED,    /* a node of the second stream does not come after the first's */
    BUG_JOIN_NOT_AWAITED,    /* and the first goes on without it */
    BUG_BLOCK_OVERWRITTEN,   /* the step block of the next replay while this one runs */
    BUG_ANSWER_FLAG_EARLY,   /* the flag of an answer is raised in front of the copy */
    BUG_ANSWER_FLAG_MISSING, /* and not at all */
    BUG_NOT_REPLAYED,        /* recorded, and never launched */
    BUG_TURN_ANSWERED_EARLY, /* the host's turn ends before it has written */
    BUG_TURN_NOT_AWAITED,    /* the step asks the host, and goes on */
    BUG_TURN_NOT_LOWERED,    /* the next replay has its answer already */
    BUG_COUNT,
};

enum { PROGRAM_ROUNDS = 128 };

/* Every call that the device can make. */
enum {
#define CALL(member, symbol, parameters) PROGRAM_SYMBOL_##symbol,
    CUDA_DRIVER_CALLS(CALL) CUDA_DRIVER_CALLS_OPTIONAL(CALL)
#undef CALL
        PROGRAM_SYMBOL_COUNT
};
extern const char *const program_symbols[PROGRAM_SYMBOL_COUNT];

struct program_options {
    const char *driver_file;
    enum bug bug;
    uint64_t seed; /* of what is computed */
    uint64_t wait_limit_ns;
    int rounds;    /* at most PROGRAM_ROUNDS; 0: that many */
    bool no_edges; /* as if the driver had no programmatic edges */
};

struct program_result {
    bool is_right; /* what came out is what should */
    struct cuda_counts counts;
    uint64_t early_count; /* programmatic edges of the recorded step */
    uint64_t leak_count;
    uint64_t calls[PROGRAM_SYMBOL_COUNT]; /* of program_symbols */
    bool was_stuck;
};

/* STATUS_OK: it ran; the result says how. */
enum status program_pipeline(const struct program_options *options, struct program_result *result,
                             struct error *error);
enum status program_step(const struct program_options *options, struct program_result *result,
                         struct error *error);

/* fault_plan: makes the n-th call to the system fail, once or from then on for ever (the way SQLite tests
 * its I/O: raise n until everything goes through). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "platform/io_file.h"

enum fault_kind {
    FAULT_NONE,
    FAULT_EIO,
    FAULT_ENOSPC,
    FAULT_EINTR,
    FAULT_EAGAIN,
    FAULT_SHORT_ONE,  /* reads and writes move one byte (one block with O_DIRECT) */
    FAULT_SHORT_HALF, /* ... half of what was asked for */
    FAULT_KILL,       /* the process ends there, as by kill -9 */
    /* Of some calls alone: others are neither counted nor failed. */
    FAULT_EDQUOT, /* calls that take disk space: opening, writing, flushing, cutting */
    FAULT_EACCES, /* of names: opening, removing */
    FAULT_EROFS,  /* of what changes anything: a file system that went read-only */
    FAULT_EMFILE, /* opening */
    FAULT_CLOSE,  /* EIO when a file is closed, which is closed all the same */
    FAULT_KINDS,
};

struct fault_plan {
    struct io_faults faults; /* hand out &plan->faults */
    enum fault_kind kind;
    uint64_t first;                             /* the call that fails, from 0 */
    bool for_ever;                              /* ... and all after it */
    uint32_t calls;                             /* a set of 1 << enum io_call that count and fail; 0: all */
    _Atomic uint64_t count;                     /* calls so far */
    _Atomic uint64_t hits;                      /* of these the ones that were made to fail */
    _Atomic uint32_t hit_calls;                 /* a set of 1 << enum io_call: which they were */
    _Atomic uint64_t read_bytes, written_bytes; /* asked for */
};

void fault_plan_init(struct fault_plan *plan, enum fault_kind kind, uint64_t first, bool for_ever,
                     uint32_t calls);
struct io_fault fault_plan_decide(struct fault_plan *plan, enum io_call call, size_t bytes);
const char *fault_name(enum fault_kind kind);

/* From now on all threads of the process share one processor: thousands of short runs hand work from thread to thread,
 * and waking another processor is half of the time. */
void fault_stay_here(void);

/* The process ends as by kill -9 that much later, wherever it is then; the kernel's timer, which is not late when the
 * machine is busy. */
void fault_kill_after(uint64_t ns);

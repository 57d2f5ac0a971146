/* What io_queue.c (slots, retries, faults) and its back ends (who moves the bytes) share.
 *
 * A request lives in a slot.  The front starts an attempt: the rest of the request, or a part of it.  A back
 * end hands back the attempt's result, bytes moved or -errno, and knows nothing of retries. */
#pragma once

#include <sys/types.h>

#include "platform/io_queue.h"

struct io_slot {
    struct io_request request;
    size_t done;          /* bytes moved by earlier attempts */
    size_t attempt_bytes; /* of the attempt under way */
    size_t retries;       /* attempts in a row that were interrupted */
    ssize_t result;       /* of the attempt: bytes or -errno */
    uint64_t due_ns;      /* not handed out before (io_link.h); 0: at once */
    struct io_slot *next; /* in whatever list the slot is in */
};

struct io_slot_list { /* first in, first out */
    struct io_slot *first, *last;
};

void io_slot_list_add(struct io_slot_list *list, struct io_slot *slot);
struct io_slot *io_slot_list_take(struct io_slot_list *list); /* NULL: empty */

/* What an engine without a ring does, in this thread: the result, as io_uring's, is a count of bytes or -errno. */
ssize_t io_slot_run(const struct io_slot *slot);

struct io_engine_operations {
    void (*destroy)(void *engine);
    void (*start)(void *engine, struct io_slot *slot); /* may gather; always has space for depth attempts */
    void (*flush)(void *engine);                       /* what was gathered begins now */
    /* Adds finished slots to the list; with wait set, returns only when there is at least one. */
    void (*reap)(void *engine, bool wait, struct io_slot_list *finished);
    bool (*register_memory)(void *engine, void *memory, size_t bytes);
};

struct io_queue {
    const struct io_engine_operations *operations;
    void *engine; /* owned */
    enum io_backend backend;
    size_t depth, in_flight, gathered; /* gathered: started and not flushed */
    struct io_slot *slots;             /* owned; [depth] */
    struct io_slot_list free;
    struct io_slot_list instant; /* attempts that a fault or an earlier failure answered */
};

/* Fill queue->operations and queue->engine. */
enum status io_uring_engine_create(struct io_queue *queue, struct error *error) STATUS_CHECKED;
enum status io_threads_engine_create(struct io_queue *queue, size_t thread_count, struct error *error) STATUS_CHECKED;

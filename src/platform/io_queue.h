/* io_queue: asynchronous reads, writes and flushes of files.
 *
 * Two back ends behind one contract: io_uring (Linux 5.6 or newer; one system call for many submits; O_DIRECT
 * without a copy), and threads that call pread and pwrite, by option or if the kernel or a container refuses io_uring.
 *
 *   submit   takes a request or says STATUS_FULL.  Never waits and mostly calls nothing: requests gather
 *            until flush, poll or wait hands all of them to the kernel at once.
 *   poll     returns what has finished, without waiting.
 *   wait     returns when at least count_min have finished.
 *
 * Requests may finish in any order, also those of one file: a flush covers only writes whose completion has
 * been seen before it was submitted.  Short transfers are continued and EINTR and EAGAIN are repeated inside, so a
 * completion is either whole or an error.  A failed flush is final for its file (io_file.h).
 *
 * io_link.h limits what is read, for tests and benchmarks.
 *
 * Speed as a ratio to fio's: bench/results/2026-11-21-zen3-io.csv.
 *
 * Memory, file and tag belong to the request until its completion has been returned.
 * Thread: one owner at a time; another queue for another thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "platform/io_file.h"

struct io_queue;

enum io_backend {
    IO_BACKEND_AUTOMATIC, /* io_uring where it works, else threads */
    IO_BACKEND_URING,
    IO_BACKEND_THREADS,
};

struct io_queue_options {
    enum io_backend backend;
    size_t depth;        /* requests in flight at most; 0: 64; at most IO_DEPTH_MAX */
    size_t thread_count; /* of the threads back end; 0: as many as the depth, at most 32 */
};

enum { IO_DEPTH_MAX = 4096 };

enum io_operation { IO_READ, IO_WRITE, IO_SYNC };

struct io_request {
    enum io_operation operation;
    struct io_file *file; /* borrowed */
    uint64_t offset;
    void *memory; /* [bytes]; a write only reads it.  NULL for IO_SYNC */
    size_t bytes; /* of an O_DIRECT file: offset, memory and bytes are multiples of IO_ALIGNMENT */
    uint64_t tag; /* the caller's own; comes back in the completion */
};

struct io_completion {
    struct io_request request; /* as submitted */
    enum status status;        /* STATUS_OK: all bytes were moved; else STATUS_IO */
    int os_error;              /* 0 with STATUS_IO: the file ends before the request does */
};

/* STATUS_UNSUPPORTED: io_uring was asked for and is not in this build or refused by the kernel (says which). */
enum status io_queue_create(struct io_queue **queue, const struct io_queue_options *options, struct error *error)
    STATUS_CHECKED;
/* Waits for what is in flight; its completions are lost.  NULL is allowed. */
void io_queue_destroy(struct io_queue *queue);

enum io_backend io_queue_backend(const struct io_queue *queue); /* never AUTOMATIC */

/* Registers memory that many requests will use with io_uring, so that its pages are looked up once.  At most
 * IO_MEMORIES_MAX regions.  Only faster: without it, or after a refusal (lockable memory is limited),
 * everything works the same.  Returns whether the memory was registered.  Nothing may be in flight. */
bool io_queue_register_memory(struct io_queue *queue, void *memory, size_t bytes);
enum { IO_MEMORIES_MAX = 16 };

enum status io_queue_submit(struct io_queue *queue, const struct io_request *request) STATUS_CHECKED;
void io_queue_flush(struct io_queue *queue);
/* Both return how many completions were stored, at most capacity. */
size_t io_queue_poll(struct io_queue *queue, struct io_completion *completions, size_t capacity);
/* Waits for count_min completions, or for as many as capacity and the requests in flight allow. */
size_t io_queue_wait(struct io_queue *queue, struct io_completion *completions, size_t capacity, size_t count_min);

size_t io_queue_in_flight(const struct io_queue *queue);  /* submitted, completion not yet returned */
size_t io_queue_free_count(const struct io_queue *queue); /* submits that will not return STATUS_FULL */

/* The one line for a completion that failed: file, operation, offset, bytes, reason.  Returns its status. */
enum status io_completion_error(const struct io_completion *completion, struct error *error);

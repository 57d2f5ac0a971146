#include "platform/io_queue.h"

#include <errno.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/checked.h"
#include "platform/clock.h"
#include "platform/io_link.h"
#include "platform/io_queue_internal.h"

/* One system call moves less than 2 GiB. */
enum { DEPTH_USUAL = 64, THREADS_USUAL_MAX = 32, ATTEMPT_BYTES_MAX = 1 << 30 };

static enum status engine_create(struct io_queue *queue, const struct io_queue_options *options, size_t depth,
                                 struct error *error) {
    if (options->backend != IO_BACKEND_THREADS) {
        enum status status = io_uring_engine_create(queue, error);
        queue->backend = IO_BACKEND_URING;
        if (status == STATUS_OK || options->backend == IO_BACKEND_URING) return status;
    }
    queue->backend = IO_BACKEND_THREADS;
    size_t threads = options->thread_count > 0 ? options->thread_count : min_size(depth, THREADS_USUAL_MAX);
    return io_threads_engine_create(queue, min_size(threads, depth), error);
}

enum status io_queue_create(struct io_queue **result, const struct io_queue_options *options, struct error *error) {
    size_t depth = options->depth > 0 ? options->depth : DEPTH_USUAL;
    if (depth > IO_DEPTH_MAX)
        return error_set(error, STATUS_USAGE, "I/O queue: depth %zu, at most %d", depth, IO_DEPTH_MAX);
    struct io_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL) return error_set(error, STATUS_MEMORY, "I/O queue: out of memory");
    queue->depth = depth;
    queue->slots = calloc(depth, sizeof *queue->slots);
    enum status status = queue->slots == NULL ? error_set(error, STATUS_MEMORY, "I/O queue: out of memory")
                                              : engine_create(queue, options, depth, error);
    if (status != STATUS_OK) {
        free(queue->slots);
        free(queue);
        return status;
    }
    for (size_t i = 0; i < depth; i++) io_slot_list_add(&queue->free, &queue->slots[i]);
    *result = queue;
    return STATUS_OK;
}

void io_queue_destroy(struct io_queue *queue) {
    if (queue == NULL) return;
    struct io_completion lost[16];
    while (queue->in_flight > 0) (void)io_queue_wait(queue, lost, sizeof lost / sizeof *lost, 1);
    queue->operations->destroy(queue->engine);
    free(queue->slots);
    free(queue);
}

enum io_backend io_queue_backend(const struct io_queue *queue) { return queue->backend; }

bool io_queue_register_memory(struct io_queue *queue, void *memory, size_t bytes) {
    ASSERT(queue->in_flight == 0);
    return queue->operations->register_memory(queue->engine, memory, bytes);
}

size_t io_queue_in_flight(const struct io_queue *queue) { return queue->in_flight; }
size_t io_queue_free_count(const struct io_queue *queue) { return queue->depth - queue->in_flight; }

static enum io_call call_of(enum io_operation operation) {
    switch (operation) {
    case IO_READ: return IO_CALL_READ;
    case IO_WRITE: return IO_CALL_WRITE;
    case IO_SYNC: return IO_CALL_SYNC;
    }
    return IO_CALL_READ;
}

static void attempt_start(struct io_queue *queue, struct io_slot *slot) {
    const struct io_request *request = &slot->request;
    struct io_file *file = request->file;
    slot->attempt_bytes = min_size(request->bytes - slot->done, ATTEMPT_BYTES_MAX);
    int failed = request->operation != IO_READ ? file->sync_error : 0;
    if (failed == 0 && file->faults != NULL) {
        struct io_fault fault =
            io_file_fault(file, call_of(request->operation), request->offset + slot->done, slot->attempt_bytes);
        failed = fault.os_error;
        slot->attempt_bytes = fault.bytes_max;
    }
    if (failed == 0) {
        queue->operations->start(queue->engine, slot);
        queue->gathered++;
    } else {
        slot->result = -failed;
        io_slot_list_add(&queue->instant, slot);
    }
}

enum status io_queue_submit(struct io_queue *queue, const struct io_request *request) {
    struct io_slot *slot = io_slot_list_take(&queue->free);
    if (slot == NULL) return STATUS_FULL;
    ASSERT(request->file->fd >= 0 && (request->operation != IO_SYNC || request->bytes == 0));
    ASSERT(!request->file->direct ||
           ((request->offset | request->bytes | (uintptr_t)request->memory) & (IO_BLOCK_BYTES - 1)) == 0);
    slot->request = *request;
    slot->done = slot->retries = 0;
    slot->due_ns = request->operation == IO_READ ? io_link_read(request->bytes) : 0;
    queue->in_flight++;
    attempt_start(queue, slot);
    return STATUS_OK;
}

void io_queue_flush(struct io_queue *queue) {
    if (queue->gathered == 0) return;
    queue->operations->flush(queue->engine);
    queue->gathered = 0;
}

/* Takes the result of an attempt.  True: the request is over and *completion says how; false: another
 * attempt has been started. */
static bool attempt_finish(struct io_queue *queue, struct io_slot *slot, struct io_completion *completion) {
    struct io_request *request = &slot->request;
    int failed = slot->result < 0 ? (int)-slot->result : 0;
    if ((failed == EINTR || failed == EAGAIN) && slot->retries++ < IO_RETRIES_MAX) {
        attempt_start(queue, slot);
        return false;
    }
    bool ended = false; /* nothing moved although something was asked for */
    if (failed == 0 && request->operation != IO_SYNC) {
        size_t progress = io_file_progress(request->file, (size_t)slot->result, request->bytes - slot->done);
        slot->done += progress;
        slot->retries = 0;
        if (slot->done < request->bytes && progress > 0) {
            attempt_start(queue, slot);
            return false;
        }
        ended = slot->done < request->bytes;
        if (ended && request->operation == IO_WRITE) failed = EIO;
    }
    if (failed != 0 && request->operation == IO_SYNC && request->file->sync_error == 0)
        request->file->sync_error = failed;
    *completion = (struct io_completion){*request, failed != 0 || ended ? STATUS_IO : STATUS_OK, failed};
    io_slot_list_add(&queue->free, slot);
    queue->in_flight--;
    return true;
}

/* The completions of those that are due; the others stay in the list of instant ones, and so does what does not fit. */
static size_t hand_out(struct io_queue *queue, struct io_completion *completions, size_t capacity) {
    struct io_slot_list finished = queue->instant;
    size_t count = 0;
    queue->instant = (struct io_slot_list){0};
    while (finished.first != NULL) {
        struct io_slot *slot = io_slot_list_take(&finished);
        if (count == capacity || (slot->due_ns > 0 && slot->due_ns > clock_ns()))
            io_slot_list_add(&queue->instant, slot);
        else
            count += attempt_finish(queue, slot, &completions[count]);
    }
    return count;
}

/* Until the first of the finished is due; at once where one is, as an attempt that failed at once. */
static void wait_for_link(const struct io_queue *queue) {
    uint64_t first = UINT64_MAX;
    for (const struct io_slot *slot = queue->instant.first; slot != NULL; slot = slot->next)
        if (slot->due_ns < first) first = slot->due_ns;
    if (first > 0) io_link_wait_until(first);
}

/* Returns completions until count_min are there; of those that have finished none is lost. */
static size_t collect(struct io_queue *queue, struct io_completion *completions, size_t capacity, size_t count_min) {
    size_t count = 0;
    for (;;) {
        io_queue_flush(queue);
        if (count >= capacity) return count;
        bool wait = count < count_min && queue->instant.first == NULL;
        if (queue->in_flight > 0) queue->operations->reap(queue->engine, wait, &queue->instant);
        if (queue->instant.first == NULL) return count; /* nothing more has finished */
        const size_t handed = hand_out(queue, completions + count, capacity - count);
        count += handed;
        if (handed > 0 || queue->instant.first == NULL) continue;
        if (count >= count_min) return count;
        wait_for_link(queue);
    }
}

size_t io_queue_poll(struct io_queue *queue, struct io_completion *completions, size_t capacity) {
    return collect(queue, completions, capacity, 0);
}

size_t io_queue_wait(struct io_queue *queue, struct io_completion *completions, size_t capacity, size_t count_min) {
    return collect(queue, completions, capacity, min_size(min_size(count_min, capacity), queue->in_flight));
}

enum status io_completion_error(const struct io_completion *completion, struct error *error) {
    const struct io_request *request = &completion->request;
    if (completion->status == STATUS_OK) return STATUS_OK;
    return io_transfer_error(error, call_of(request->operation), request->file->path, request->offset, request->bytes,
                             completion->os_error);
}

/* io_uring behind io_queue_internal.h.
 *
 * The ring has at least as many entries as the queue has slots, and a slot has at most one attempt under way,
 * so there is always a submission entry and the completion ring cannot overflow.  One thread at a time uses
 * the ring; COOP_TASKRUN spares that thread the interrupts it would otherwise get for completions, since
 * it comes to look anyway. */
#include "platform/io_queue_internal.h"

#ifdef LOAM_HAVE_URING

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

struct uring_engine {
    struct io_uring ring;
    bool memory_refused;
    unsigned memory_count;
    struct iovec memories[IO_MEMORIES_MAX];
};

static void uring_destroy(void *pointer) {
    struct uring_engine *engine = pointer;
    io_uring_queue_exit(&engine->ring);
    free(engine);
}

/* The number of the registered region that holds the whole range, or -1. */
static int memory_index(const struct uring_engine *engine, const uint8_t *memory, size_t bytes) {
    for (unsigned i = 0; i < engine->memory_count; i++) {
        const uint8_t *base = engine->memories[i].iov_base;
        if (memory >= base && memory + bytes <= base + engine->memories[i].iov_len) return (int)i;
    }
    return -1;
}

static void uring_start(void *pointer, struct io_slot *slot) {
    struct uring_engine *engine = pointer;
    const struct io_request *request = &slot->request;
    struct io_uring_sqe *entry = io_uring_get_sqe(&engine->ring);
    ASSERT(entry != NULL);
    uint8_t *memory = (uint8_t *)request->memory + slot->done;
    uint64_t offset = request->offset + slot->done;
    unsigned bytes = (unsigned)slot->attempt_bytes;
    int fd = request->file->fd, index = memory_index(engine, memory, slot->attempt_bytes);
    switch (request->operation) {
    case IO_READ:
        if (index >= 0)
            io_uring_prep_read_fixed(entry, fd, memory, bytes, offset, index);
        else
            io_uring_prep_read(entry, fd, memory, bytes, offset);
        break;
    case IO_WRITE:
        if (index >= 0)
            io_uring_prep_write_fixed(entry, fd, memory, bytes, offset, index);
        else
            io_uring_prep_write(entry, fd, memory, bytes, offset);
        break;
    case IO_SYNC: io_uring_prep_fsync(entry, fd, IORING_FSYNC_DATASYNC); break;
    }
    io_uring_sqe_set_data(entry, slot);
}

static void uring_flush(void *pointer) {
    struct uring_engine *engine = pointer;
    /* EAGAIN and EBUSY: the kernel is short of memory for now; what is not taken stays in the ring and
     * goes with the next call, at the latest the one that waits. */
    int taken = io_uring_submit(&engine->ring);
    ASSERT(taken >= 0 || taken == -EAGAIN || taken == -EBUSY || taken == -EINTR);
}

static void uring_reap(void *pointer, bool wait, struct io_slot_list *finished) {
    struct uring_engine *engine = pointer;
    struct io_uring_cqe *entries[64];
    if (io_uring_sq_ready(&engine->ring) > 0) uring_flush(engine); /* what the kernel did not take before */
    for (;;) {
        unsigned count = io_uring_peek_batch_cqe(&engine->ring, entries, sizeof entries / sizeof *entries);
        for (unsigned i = 0; i < count; i++) {
            struct io_slot *slot = io_uring_cqe_get_data(entries[i]);
            slot->result = entries[i]->res;
            io_slot_list_add(finished, slot);
        }
        io_uring_cq_advance(&engine->ring, count);
        if (count > 0) wait = false;
        if (count == sizeof entries / sizeof *entries) continue;
        if (!wait) return;
        int result = io_uring_submit_and_wait(&engine->ring, 1);
        ASSERT(result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY);
    }
}

static bool uring_register_memory(void *pointer, void *memory, size_t bytes) {
    struct uring_engine *engine = pointer;
    if (engine->memory_refused || engine->memory_count == IO_MEMORIES_MAX) return false;
    if (engine->memory_count > 0) (void)io_uring_unregister_buffers(&engine->ring);
    engine->memories[engine->memory_count] = (struct iovec){memory, bytes};
    unsigned count = engine->memory_count + 1;
    if (io_uring_register_buffers(&engine->ring, engine->memories, count) == 0) {
        engine->memory_count = count;
        return true;
    }
    engine->memory_refused = true; /* go on with those that were taken before */
    if (engine->memory_count > 0 &&
        io_uring_register_buffers(&engine->ring, engine->memories, engine->memory_count) != 0)
        engine->memory_count = 0;
    return false;
}

static const struct io_engine_operations uring_operations = {uring_destroy, uring_start, uring_flush, uring_reap,
                                                             uring_register_memory};

enum status io_uring_engine_create(struct io_queue *queue, struct error *error) {
    struct uring_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) return error_set(error, STATUS_MEMORY, "io_uring: out of memory");
    int failed = io_uring_queue_init((unsigned)queue->depth, &engine->ring,
                                     IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (failed == -EINVAL) failed = io_uring_queue_init((unsigned)queue->depth, &engine->ring, 0);
    if (failed == 0 && (engine->ring.features & IORING_FEAT_NODROP) == 0) { /* older than 5.6: no IORING_OP_READ */
        io_uring_queue_exit(&engine->ring);
        failed = -ENOSYS;
    }
    if (failed != 0) {
        free(engine);
        return error_set_os(error, STATUS_UNSUPPORTED, -failed, "io_uring: refused by the kernel");
    }
    queue->operations = &uring_operations;
    queue->engine = engine;
    return STATUS_OK;
}

#else

enum status io_uring_engine_create(struct io_queue *queue, struct error *error) {
    (void)queue;
    return error_set(error, STATUS_UNSUPPORTED, "io_uring: this build has no liburing");
}

#endif

/* io_slot_run: what back ends of the I/O queue that are tests' own do with a request, in the thread that asks. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <unistd.h>

#include "platform/io_queue_internal.h"

/* Its result is as io_uring's: a count of bytes, or an error's number below 0. */
static inline void io_slot_run(struct io_slot *slot) {
    const struct io_request *request = &slot->request;
    uint8_t *memory = (uint8_t *)request->memory + slot->done;
    const off_t offset = (off_t)(request->offset + slot->done);
    ssize_t result = -1;
    switch (request->operation) {
    case IO_READ: result = pread(request->file->fd, memory, slot->attempt_bytes, offset); break;
    case IO_WRITE: result = pwrite(request->file->fd, memory, slot->attempt_bytes, offset); break;
    case IO_SYNC: result = fdatasync(request->file->fd); break;
    }
    slot->result = result < 0 ? -errno : result;
}

/* As io_engine_operations' member: any memory will do. */
static inline bool io_slot_register_memory(void *engine, void *memory, size_t bytes) {
    (void)engine, (void)memory, (void)bytes;
    return true;
}

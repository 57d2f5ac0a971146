/* buffer: memory of a device, and places in it.  Operations name places (spans), never host pointers, so that a device
 * need not see the host's memory, and the host not the device's.
 *
 *   MEMORY_DEVICE  only operations touch it; the host never reads or writes it, not even on the cpu device, where it
 *                  could (tests/device/queued_device.h faults where it does);
 *   MEMORY_SHARED  the host's memory, in whole pages, that operations read and write too, at the speed of the bus, at
 *                  one address or two.  The host touches what work on a stream reads or writes when that work is done:
 *                  after a stream_synchronize, or when a ticket of it is done.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"

struct device;

enum memory_kind { MEMORY_DEVICE, MEMORY_SHARED };

/* Whoever allocates keeps it where it is: spans point to it.  Zeroed: there is none. */
struct buffer {
    struct device *device;
    enum memory_kind kind;
    uint64_t address; /* for operations */
    void *host;       /* for the host; NULL: MEMORY_DEVICE */
    size_t bytes;
};

/* A place in a buffer; without a buffer: none. */
struct span {
    const struct buffer *buffer;
    size_t offset; /* bytes */
};

static inline bool buffer_exists(const struct buffer *buffer) { return buffer->device != NULL; }
static inline bool span_exists(struct span span) { return span.buffer != NULL; }

static inline struct span span_of(const struct buffer *buffer, size_t offset) {
    return (struct span){.buffer = buffer, .offset = offset};
}

/* So many bytes, or floats, behind it; of none, none. */
static inline struct span span_behind(struct span span, size_t bytes) {
    span.offset += bytes;
    return span;
}
static inline struct span span_floats(struct span span, size_t count) {
    return span_behind(span, count * sizeof(float));
}

/* What the host sees of MEMORY_SHARED. */
static inline void *span_host(struct span span) {
    ASSERT(span.buffer->host != NULL);
    return (uint8_t *)span.buffer->host + span.offset;
}

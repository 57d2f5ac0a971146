/* counted_device: how often the host waits for a device, and how much of the device's memory is held, at most. */
#pragma once

#include <string.h>

#include "device/device.h"

enum { COUNTED_BUFFERS = 256 };

/* Of one device at a time. */
static struct {
    struct device_operations table;
    const struct device_operations *own;
    struct {
        uint64_t address, bytes; /* address 0: free */
    } list[COUNTED_BUFFERS];
    uint64_t waits, now, most; /* the last two: bytes that were allocated since it is counted */
} counted;

static enum status counted_synchronize(struct stream *stream, struct error *error) {
    counted.waits++;
    return counted.own->stream_synchronize(stream, error);
}

static enum status counted_ticket_wait(struct ticket ticket, struct error *error) {
    counted.waits++;
    return counted.own->ticket_wait(ticket, error);
}

static enum status counted_allocate(struct device *device, enum memory_kind kind, size_t size_bytes,
                                    struct buffer *buffer, struct error *error) {
    const enum status status = counted.own->allocate(device, kind, size_bytes, buffer, error);
    size_t i = 0;
    if (status != STATUS_OK || kind != MEMORY_DEVICE) return status;
    while (i < COUNTED_BUFFERS - 1 && counted.list[i].address != 0) i++;
    assert_int_equal(counted.list[i].address, 0);
    counted.list[i].address = buffer->address;
    counted.list[i].bytes = size_bytes;
    counted.now += size_bytes;
    counted.most = counted.now > counted.most ? counted.now : counted.most;
    return status;
}

static void counted_release(struct device *device, struct buffer *buffer) {
    for (size_t i = 0; i < COUNTED_BUFFERS && buffer_exists(buffer); i++)
        if (counted.list[i].address == buffer->address)
            counted.now -= counted.list[i].bytes, counted.list[i].address = 0;
    counted.own->release(device, buffer);
}

static void count_device(struct device *device) {
    memset(&counted, 0, sizeof counted);
    counted.own = device->operations;
    counted.table = *device->operations;
    counted.table.stream_synchronize = counted_synchronize;
    counted.table.ticket_wait = counted_ticket_wait;
    counted.table.allocate = counted_allocate;
    counted.table.release = counted_release;
    device->operations = &counted.table;
}

static void count_no_more(struct device *device) { device->operations = counted.own; }

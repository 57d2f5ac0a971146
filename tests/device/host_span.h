/* host_span: the test's own memory as a place in a buffer, for operations of the cpu device. */
#pragma once

#include "device/device.h"

/* NULL: none. */
static inline struct span host_span(const void *memory) {
    /* All of the address space behind its first bytes: a buffer's host pointer is not NULL. */
    static const struct buffer everything = {
        .kind = MEMORY_SHARED, .address = 16, .host = (void *)16, .bytes = SIZE_MAX};
    if (memory == NULL) return (struct span){.buffer = NULL};
    return span_of(&everything, (size_t)(uintptr_t)memory - 16);
}

/* What a device that is a processor has there. */
static inline void *span_memory(struct span span) {
    return span_exists(span) ? (void *)(uintptr_t)(span.buffer->address + span.offset) : NULL;
}
static inline uint32_t span_place(struct span table, size_t index) {
    return ((const uint32_t *)span_memory(table))[index];
}

/* In the file's form, as the cpu device takes it. */
static inline struct weight host_weight(struct matrix matrix) {
    return (struct weight){.matrix = matrix,
                           .memory = {.kind = MEMORY_SHARED,
                                      .address = (uintptr_t)matrix.data,
                                      .bytes = matrix.rows * matrix.row_bytes}};
}

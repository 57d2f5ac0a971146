/* host_span: the test's own memory as a place in a buffer, for operations of the cpu device. */
#ifndef LOAM_TESTS_HOST_SPAN_H
#define LOAM_TESTS_HOST_SPAN_H

#include "device/device.h"

/* NULL: none. */
static inline struct span host_span(const void *memory) {
    /* All of the address space behind its first bytes: a buffer's host pointer is not NULL. */
    static const struct buffer everything = {
        .kind = MEMORY_SHARED, .address = 16, .host = (void *)16, .bytes = SIZE_MAX};
    if (memory == NULL) return (struct span){.buffer = NULL};
    return span_of(&everything, (size_t)(uintptr_t)memory - 16);
}

/* In the file's form, as the cpu device takes it. */
static inline struct weight host_weight(struct matrix matrix) {
    return (struct weight){.matrix = matrix,
                           .memory = {.kind = MEMORY_SHARED,
                                      .address = (uintptr_t)matrix.data,
                                      .bytes = matrix.rows * matrix.row_bytes}};
}

#endif

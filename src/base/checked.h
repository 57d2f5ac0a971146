/* checked: the only place where sizes from a file are added and multiplied. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each returns false if the true result does not fit; *result must then not be used. */
static inline bool checked_add(uint64_t a, uint64_t b, uint64_t *result) {
    return !__builtin_add_overflow(a, b, result);
}

static inline bool checked_multiply(uint64_t a, uint64_t b, uint64_t *result) {
    return !__builtin_mul_overflow(a, b, result);
}

/* Rounds up to a multiple of alignment, a power of two. */
static inline bool checked_align(uint64_t value, uint64_t alignment, uint64_t *result) {
    if (!checked_add(value, alignment - 1, result)) return false;
    *result &= ~(alignment - 1);
    return true;
}

/* For sizes from our own code that are known to be small. */
static inline size_t align_up(size_t value, size_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

/* layout: where the parts of one block of memory lie.  One routine places them and is run twice: first for the bytes,
 * then with memory.  So what is said to be needed is what is used.
 *
 *   static void place(struct thing *thing, struct layout *layout);   // thing->parts = layout_take(layout, ...)
 *   place(&unused, &counting);  memory = calloc(1, counting.used);  place(thing, &(struct layout){.memory = memory});
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/checked.h"

enum { LAYOUT_ALIGNMENT = 64 };

struct layout {
    uint8_t *memory; /* NULL: bytes are counted, or the memory is a device's */
    size_t used;     /* SIZE_MAX: more than any memory */
};

/* The offset of count times so many bytes. */
static inline size_t layout_offset(struct layout *layout, size_t count, size_t element_bytes) {
    const size_t at = layout->used;
    size_t bytes;
    if (at == SIZE_MAX || __builtin_mul_overflow(count, element_bytes, &bytes) ||
        bytes > SIZE_MAX - LAYOUT_ALIGNMENT - at)
        layout->used = SIZE_MAX;
    else
        layout->used = at + align_up(bytes, LAYOUT_ALIGNMENT);
    return at;
}

/* The same as a pointer; NULL where bytes are counted. */
static inline void *layout_take(struct layout *layout, size_t count, size_t element_bytes) {
    const size_t at = layout_offset(layout, count, element_bytes);
    return layout->memory != NULL ? layout->memory + at : NULL;
}

/* array: an array that grows. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Room for one more than count items.  items: the address of the pointer to [*capacity] of them.  false: no memory, and
 * the array is as it was. */
static inline bool array_reserve(void *items, size_t count, size_t *capacity, size_t item_bytes) {
    void *memory;
    const size_t more = 2 * *capacity + 16;
    if (count < *capacity) return true;
    memcpy(&memory, items, sizeof memory); /* whatever it points to */
    memory = reallocarray(memory, more, item_bytes);
    if (memory == NULL) return false;
    memcpy(items, &memory, sizeof memory);
    *capacity = more;
    return true;
}

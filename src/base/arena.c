#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"

enum { PART_BYTES = 256 * 1024, ALIGNMENT = 64 };

struct arena_part {
    struct arena_part *next;
    size_t capacity, used; /* bytes of memory[] */
    char *memory;          /* aligned to ALIGNMENT, directly behind this header */
};

void arena_init(struct arena *arena) { *arena = (struct arena){0}; }

void arena_deinit(struct arena *arena) {
    while (arena->parts != NULL) {
        struct arena_part *next = arena->parts->next;
        free(arena->parts);
        arena->parts = next;
    }
    arena->used_bytes = 0;
}

static struct arena_part *part_create(size_t capacity) {
    uint64_t total;
    if (!checked_add(capacity, 2 * ALIGNMENT + sizeof(struct arena_part), &total)) return NULL;
    char *memory = aligned_alloc(ALIGNMENT, align_up(total, ALIGNMENT));
    if (memory == NULL) return NULL;
    struct arena_part *part = (struct arena_part *)memory;
    part->capacity = capacity;
    part->used = 0;
    part->memory = memory + align_up(sizeof *part, ALIGNMENT);
    return part;
}

void *arena_allocate(struct arena *arena, size_t size_bytes) {
    uint64_t size;
    if (!checked_align(size_bytes, ALIGNMENT, &size)) return NULL;
    struct arena_part *part = arena->parts;
    if (part == NULL || part->capacity - part->used < size) {
        part = part_create(max_size(size, PART_BYTES));
        if (part == NULL) return NULL;
        /* A large block of its own goes behind the current block, which still has space. */
        if (arena->parts != NULL && size >= PART_BYTES) {
            part->next = arena->parts->next;
            arena->parts->next = part;
        } else {
            part->next = arena->parts;
            arena->parts = part;
        }
    }
    void *result = part->memory + part->used;
    part->used += size;
    arena->used_bytes += size;
    ASSERT(part->used <= part->capacity);
    memset(result, 0, size);
    return result;
}

void *arena_array(struct arena *arena, uint64_t count, size_t element_bytes) {
    uint64_t size;
    if (!checked_multiply(count, element_bytes, &size)) return NULL;
    return arena_allocate(arena, size);
}

char *arena_text(struct arena *arena, const char *text, size_t length) {
    uint64_t size;
    if (!checked_add(length, 1, &size)) return NULL;
    char *copy = arena_allocate(arena, size);
    if (copy != NULL) memcpy(copy, text, length);
    return copy;
}

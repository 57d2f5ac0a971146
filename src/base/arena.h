/* arena: memory for things that die together (a loaded model, a session).
 *
 * Allocation never frees singly; arena_deinit frees all.  Not thread-safe: one
 * owner.  The token loop never allocates: what it needs is taken here before.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct arena_part;

struct arena {
    struct arena_part *parts; /* owned, newest first */
    size_t used_bytes;        /* handed out, over all parts */
};

void arena_init(struct arena *arena);
void arena_deinit(struct arena *arena);

/* Zeroed, aligned to 64 bytes; NULL: no memory. */
void *arena_allocate(struct arena *arena, size_t size_bytes);

/* The same for count elements; also NULL if count * element_bytes overflows. */
void *arena_array(struct arena *arena, uint64_t count, size_t element_bytes);

/* A zero-terminated copy of length bytes of text. */
char *arena_text(struct arena *arena, const char *text, size_t length);

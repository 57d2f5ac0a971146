/* text: a string that grows.  A failed allocation is remembered in `failed`, which its owner checks once at the
 * end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct text {
    char *bytes; /* owned, zero-terminated once something was appended */
    size_t length, capacity;
    bool failed;
};

void text_deinit(struct text *text);
void text_clear(struct text *text);                                    /* keeps the memory */
bool text_append(struct text *text, const char *bytes, size_t length); /* !failed */
void text_drop(struct text *text, size_t count);                       /* the first bytes */
void text_add(struct text *text, const char *string);
void text_format(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_deinit(struct text *text) {
    free(text->bytes);
    *text = (struct text){0};
}

void text_clear(struct text *text) {
    text->length = 0;
    if (text->bytes != NULL) text->bytes[0] = '\0';
}

/* Room for `more` bytes and the zero behind them. */
static bool text_reserve(struct text *text, size_t more) {
    if (text->failed) return false;
    if (text->capacity - text->length > more) return true;
    size_t capacity = text->capacity * 2 + more + 64;
    char *bytes = realloc(text->bytes, capacity);
    if (bytes == NULL) {
        text->failed = true;
        return false;
    }
    text->bytes = bytes;
    text->capacity = capacity;
    return true;
}

bool text_append(struct text *text, const char *bytes, size_t length) {
    if (!text_reserve(text, length)) return false;
    if (length > 0) memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = '\0';
    return true;
}

void text_drop(struct text *text, size_t count) {
    if (count == 0) return;
    text->length -= count;
    memmove(text->bytes, text->bytes + count, text->length + 1);
}

void text_add(struct text *text, const char *string) { (void)text_append(text, string, strlen(string)); }

void text_format(struct text *text, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0)
        text->failed = true;
    else if (text_reserve(text, (size_t)length))
        text->length += (size_t)vsnprintf(text->bytes + text->length, (size_t)length + 1, format, again);
    va_end(again);
}

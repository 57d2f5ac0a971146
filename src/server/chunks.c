#include "server/chunks.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

enum { SIZE_DIGITS_MAX = 8 };

static enum chunks_result refuse(const char **why, const char *what) {
    *why = what;
    return CHUNKS_REFUSED;
}

static unsigned digit_of(char c) { return c <= '9' ? (unsigned)(c - '0') : (unsigned)(c | 32) - 'a' + 10; }

/* The line at *at: its size, and *at behind it. */
static enum chunks_result read_size(const char *bytes, size_t length, size_t *at, uint64_t *size, const char **why) {
    const char *line = bytes + *at, *end = memchr(line, '\n', length - *at);
    const size_t there = end != NULL ? (size_t)(end - line) : length - *at;
    size_t digits = 0;
    for (*size = 0; digits < there && isxdigit((unsigned char)line[digits]); digits++) {
        if (digits == SIZE_DIGITS_MAX) return refuse(why, "has a chunk of a size with more than 8 digits");
        *size = *size * 16 + digit_of(line[digits]);
    }
    if (digits == 0 && there > 0) return refuse(why, "has a chunk without a size");
    if (there > CHUNK_LINE_MAX) return refuse(why, "has a chunk whose size and extensions are longer than 256 bytes");
    if (digits < there && line[digits] != ';' && line[digits] != '\r')
        return refuse(why, "has a chunk with something else behind its size");
    for (size_t i = digits; i + 1 < there; i++)
        if (iscntrl((unsigned char)line[i]) && line[i] != '\t')
            return refuse(why, "has a chunk with a control character behind its size");
    if (end == NULL) return CHUNKS_INCOMPLETE;
    if (there == 0 || end[-1] != '\r') return refuse(why, "has a chunk whose line ends with a bare line feed");
    *at += there + 1;
    return CHUNKS_WHOLE;
}

static enum chunks_result read_trailers(const char *bytes, size_t length, const char **why) {
    if (length >= 2 && memcmp(bytes, "\r\n", 2) == 0) return CHUNKS_WHOLE;
    if (memmem(bytes, length, "\r\n\r\n", 4) != NULL) return CHUNKS_WHOLE;
    if (length > TRAILERS_MAX) return refuse(why, "has more than 8 KiB of trailers");
    return CHUNKS_INCOMPLETE;
}

enum chunks_result chunks_read(const char *bytes, size_t length, const char **why) {
    for (size_t at = 0;;) {
        uint64_t size;
        const enum chunks_result line = read_size(bytes, length, &at, &size, why);
        if (line != CHUNKS_WHOLE) return line;
        if (size == 0) return read_trailers(bytes + at, length - at, why);
        if (size >= length - at) return CHUNKS_INCOMPLETE;
        at += (size_t)size;
        const size_t ending = length - at < 2 ? length - at : 2;
        if (memcmp(bytes + at, "\r\n", ending) != 0) return refuse(why, "has a chunk that does not end where it says");
        if (ending < 2) return CHUNKS_INCOMPLETE;
        at += 2;
    }
}

/* utf8: what the outside may see of bytes that are perhaps no text: a model's tokens, a file's names. */
#ifndef LOAM_CLI_UTF8_H
#define LOAM_CLI_UTF8_H

#include <stddef.h>

enum { UTF8_INVALID = 0, UTF8_CUT = -1 };

/* Bytes of the well-formed sequence that begins at bytes[0..length), 1 to 4; UTF8_INVALID when none can;
 * UTF8_CUT when the bytes so far could become one.  length > 0. */
int utf8_sequence(const char *bytes, size_t length);

/* Holds back the beginning of a sequence until the rest has come (tokens end inside characters).  What
 * can never be well-formed passes as it is. */
struct utf8_stream {
    char held[4];
    size_t held_count;
};

typedef void utf8_sink(void *context, const char *bytes, size_t length);
void utf8_stream_put(struct utf8_stream *stream, const char *bytes, size_t length, utf8_sink *sink,
                     void *context);
void utf8_stream_end(struct utf8_stream *stream, utf8_sink *sink, void *context);

/* A newly allocated, zero-terminated copy with U+FFFD for every byte that is not well-formed, as JSON
 * needs it; NULL without memory. */
char *utf8_repair(const char *bytes, size_t length);

/* Writes bytes into buffer (zero-terminated, cut to fit with "...") so that a terminal shows them and does
 * nothing else: control characters as \n, \t or \xHH, what is not well-formed as \xHH. */
const char *utf8_escape(const char *bytes, size_t length, char *buffer, size_t buffer_bytes);

#endif

#include "cli/utf8.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Table 3-7 of the Unicode standard: the second byte's range depends on the first. */
int utf8_sequence(const char *bytes, size_t length) {
    unsigned char first = (unsigned char)bytes[0];
    if (first < 0x80) return 1;
    if (first < 0xc2 || first > 0xf4) return UTF8_INVALID;
    int expected = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < expected; i++) {
        if ((size_t)i >= length) return UTF8_CUT;
        unsigned char byte = (unsigned char)bytes[i];
        if (byte < least || byte > most) return UTF8_INVALID;
        least = 0x80;
        most = 0xbf;
    }
    return expected;
}

void utf8_stream_put(struct utf8_stream *stream, const char *bytes, size_t length, utf8_sink *sink,
                     void *context) {
    for (size_t i = 0; i < length; i++) {
        stream->held[stream->held_count++] = bytes[i];
        while (stream->held_count > 0) {
            int sequence = utf8_sequence(stream->held, stream->held_count);
            if (sequence == UTF8_CUT) break;
            size_t done = sequence == UTF8_INVALID ? 1 : (size_t)sequence;
            sink(context, stream->held, done);
            stream->held_count -= done;
            memmove(stream->held, stream->held + done, stream->held_count);
        }
    }
}

void utf8_stream_end(struct utf8_stream *stream, utf8_sink *sink, void *context) {
    if (stream->held_count > 0) sink(context, stream->held, stream->held_count);
    stream->held_count = 0;
}

char *utf8_repair(const char *bytes, size_t length) {
    if (length > (SIZE_MAX - 1) / 3) return NULL;
    char *text = malloc(length * 3 + 1);
    if (text == NULL) return NULL;
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        int sequence = utf8_sequence(bytes + i, length - i);
        if (sequence > 0 && bytes[i] != '\0') {
            memcpy(text + used, bytes + i, (size_t)sequence);
            used += (size_t)sequence;
            i += (size_t)sequence;
        } else {
            memcpy(text + used, "\xef\xbf\xbd", 3);
            used += 3;
            i++;
        }
    }
    text[used] = '\0';
    return text;
}

/* One character or stray byte as shown on a terminal; returns how many bytes it took. */
static size_t escape_one(const char *bytes, size_t length, char shown[8]) {
    unsigned char byte = (unsigned char)bytes[0];
    int sequence = utf8_sequence(bytes, length);
    if (byte == '\n')
        snprintf(shown, 8, "\\n");
    else if (byte == '\t')
        snprintf(shown, 8, "\\t");
    else if (byte < 0x20 || byte == 0x7f || sequence <= 0)
        snprintf(shown, 8, "\\x%02x", byte);
    else if (byte == 0xc2 && (unsigned char)bytes[1] < 0xa0) /* C1 controls: terminals obey them */
        snprintf(shown, 8, "\\x%02x", (unsigned char)bytes[1]);
    else
        snprintf(shown, 8, "%.*s", sequence, bytes);
    return sequence > 0 ? (size_t)sequence : 1;
}

const char *utf8_escape(const char *bytes, size_t length, char *buffer, size_t buffer_bytes) {
    size_t used = 0, cut = 0; /* cut: where "..." would still fit */
    for (size_t i = 0; i < length;) {
        char shown[8];
        i += escape_one(bytes + i, length - i, shown);
        size_t shown_length = strlen(shown);
        if (used + 3 < buffer_bytes) cut = used;
        if (used + shown_length >= buffer_bytes) {
            size_t dots = buffer_bytes > 3 ? 3 : 0;
            memcpy(buffer + cut, "...", dots);
            used = cut + dots;
            break;
        }
        memcpy(buffer + used, shown, shown_length);
        used += shown_length;
    }
    if (buffer_bytes > 0) buffer[used] = '\0';
    return buffer;
}

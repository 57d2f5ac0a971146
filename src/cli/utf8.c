#include "cli/utf8.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "token/unicode.h"

/* Bytes of the character at bytes[0..length), length > 0; 0: not a character. */
static size_t character_bytes(const char *bytes, size_t length) {
    return utf8_sequence_length((const uint8_t *)bytes, length, 0);
}

char *utf8_repair(const char *bytes, size_t length) {
    if (length > (SIZE_MAX - 1) / 3) return NULL;
    char *text = malloc(length * 3 + 1);
    if (text == NULL) return NULL;
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        size_t sequence = character_bytes(bytes + i, length - i);
        if (sequence > 0 && bytes[i] != '\0') {
            memcpy(text + used, bytes + i, sequence);
            used += sequence;
            i += sequence;
        } else {
            memcpy(text + used, "\xef\xbf\xbd", 3);
            used += 3;
            i++;
        }
    }
    text[used] = '\0';
    return text;
}

/* Shows one character or stray byte on a terminal; returns how many bytes it took. */
static size_t escape_one(const char *bytes, size_t length, char shown[8]) {
    unsigned char byte = (unsigned char)bytes[0];
    size_t sequence = character_bytes(bytes, length);
    if (byte == '\n')
        snprintf(shown, 8, "\\n");
    else if (byte == '\t')
        snprintf(shown, 8, "\\t");
    else if (byte < 0x20 || byte == 0x7f || sequence == 0)
        snprintf(shown, 8, "\\x%02x", byte);
    else if (byte == 0xc2 && (unsigned char)bytes[1] < 0xa0) /* C1 controls: terminals obey them */
        snprintf(shown, 8, "\\x%02x", (unsigned char)bytes[1]);
    else
        snprintf(shown, 8, "%.*s", (int)sequence, bytes);
    return sequence > 0 ? sequence : 1;
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

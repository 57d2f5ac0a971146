#include "cli/utf8.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "token/unicode.h"

/* Shows one character or stray byte on a terminal; returns how many bytes it took. */
static size_t escape_one(const char *bytes, size_t length, char shown[8]) {
    unsigned char byte = (unsigned char)bytes[0];
    size_t sequence = utf8_sequence_length((const uint8_t *)bytes, length, 0);
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

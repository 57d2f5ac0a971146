#include "server/file_part.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/fields.h"
#include "server/guard.h"

enum { READERS_MAX = 2 };

static const char *text_of(const json_t *object, const char *field) {
    const json_t *value = json_object_get(object, field);
    return json_is_string(value) && json_string_length(value) > 0 ? json_string_value(value) : NULL;
}

const json_t *file_part_data(const json_t *part, const char **name) {
    const char *type = text_of(part, "type");
    const bool is_file = type != NULL && strcmp(type, "file") == 0;
    const json_t *file = is_file ? json_object_get(part, "file") : part, *data = NULL;
    *name = NULL;
    if (type == NULL) return NULL;
    if (is_file || strcmp(type, "input_file") == 0) {
        data = json_object_get(file, "file_data");
        *name = text_of(file, "filename");
    } else if (strcmp(type, "document") == 0) {
        const json_t *source = json_object_get(part, "source");
        const char *kind = text_of(source, "type");
        if (kind != NULL && strcmp(kind, "base64") == 0) data = json_object_get(source, "data");
        *name = text_of(part, "title");
    }
    if (*name == NULL) *name = "file";
    return json_is_string(data) ? data : NULL;
}

static int value_of(char c) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c != '\0' ? strchr(letters, c == '-' ? '+' : c == '_' ? '/' : c) : NULL;
    return found != NULL ? (int)(found - letters) : -1;
}

/* In place of nothing: bytes has length * 3 / 4 + 1.  SIZE_MAX: a character is none of base64. */
static size_t decode(const char *text, size_t length, char *bytes) {
    uint32_t bits = 0;
    size_t count = 0, digits = 0;
    while (length > 0 && text[length - 1] == '=') length--;
    for (size_t i = 0; i < length; i++) {
        if (strchr("\r\n ", text[i]) != NULL && text[i] != '\0') continue;
        const int value = value_of(text[i]);
        if (value < 0) return SIZE_MAX;
        bits = bits << 6 | (uint32_t)value;
        if (++digits % 4 == 1) continue;
        bytes[count++] = (char)(bits >> (6 - 2 * ((digits - 1) % 4)));
    }
    return count;
}

static bool read_bytes(const char *bytes, size_t length, const char *name, const char *encoding, const char *param,
                       struct document *document, struct api_error *error) {
    static _Atomic int readers;
    const struct document_source source = {
        .name = name, .bytes = bytes, .length = length, .encoding = encoding, .text_bytes_max = GUARD_BODY_BYTES_MAX};
    struct error reason = {0};
    bool read = false;
    if (atomic_fetch_add(&readers, 1) >= READERS_MAX) {
        api_error_set(error, 429, param, "'%s': other files are being read", param);
        error->retry_after_seconds = 1;
    } else {
        read = document_read(document, &source, &reason) == STATUS_OK || api_error_from(error, &reason);
        if (!read) snprintf(error->param, sizeof error->param, "%s", param);
    }
    atomic_fetch_sub(&readers, 1);
    return read;
}

bool file_part_read(const json_t *data, const char *name, const char *encoding, const char *param,
                    struct document *document, struct api_error *error) {
    const char *text = json_string_value(data);
    size_t length = json_string_length(data);
    if (length > 5 && memcmp(text, "data:", 5) == 0) { /* data:application/pdf;base64,... */
        const char *comma = memchr(text, ',', length);
        if (comma == NULL || comma - text < 7 || memcmp(comma - 7, ";base64", 7) != 0)
            return field_refuse(error, param, "expected data:TYPE;base64,...");
        length -= (size_t)(comma + 1 - text);
        text = comma + 1;
    }
    char *bytes = malloc(length / 4 * 3 + 4);
    if (bytes == NULL) return api_error_set(error, 503, param, "no memory for the file");
    const size_t count = decode(text, length, bytes);
    const bool read = count != SIZE_MAX ? read_bytes(bytes, count, name, encoding, param, document, error)
                                        : field_refuse(error, param, "%s: expected base64", name);
    free(bytes);
    return read;
}

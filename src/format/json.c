#include "format/json.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "format/path_tail.h"
#include "platform/file.h"

/* Whether brackets outside of strings nest deeper than JSON_DEPTH_MAX. */
static bool is_too_deep(const char *text, uint64_t length) {
    uint64_t depth = 0;
    bool in_string = false;
    for (uint64_t i = 0; i < length; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > JSON_DEPTH_MAX) return true;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return false;
}

enum status json_parse_bytes(const char *text, uint64_t length, const char *path, enum status failed,
                             json_t **value, struct error *error) {
    *value = NULL;
    if (is_too_deep(text, length))
        return error_set(error, failed, "%s: JSON: nested deeper than %d", path_tail(path, PATH_TAIL_BYTES),
                         JSON_DEPTH_MAX);
    json_error_t reason;
    *value = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &reason);
    if (*value == NULL)
        return error_set(error, failed, "%s: JSON: line %d: %s", path_tail(path, PATH_TAIL_BYTES),
                         reason.line, reason.text);
    return STATUS_OK;
}

enum status json_parse_file(const char *path, uint64_t limit_bytes, json_t **value, struct error *error) {
    char *text;
    size_t length;
    *value = NULL;
    TRY(file_read_all(path, limit_bytes, &text, &length, error));
    enum status status = json_parse_bytes(text, length, path, STATUS_MODEL, value, error);
    free(text);
    return status;
}

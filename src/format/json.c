#include "format/json.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "format/path_tail.h"
#include "platform/file.h"

/* How deep brackets outside of strings nest, up to one more than JSON_DEPTH_MAX, and how many values there are, of
 * which jansson's objects and arrays take more memory than others. */
static uint64_t look_through(const char *text, uint64_t length, uint64_t *values) {
    enum { OF_OBJECT = 8, OF_ARRAY = 3 };
    uint64_t depth = 0, depth_max = 0;
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
            *values += c == '{' ? OF_OBJECT : OF_ARRAY;
            if (++depth > depth_max) depth_max = depth;
            if (depth > JSON_DEPTH_MAX) break;
        } else if (c == ',' || c == ':') {
            ++*values;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return depth_max;
}

static enum status check(const char *text, uint64_t length, const char *path, enum status failed, uint64_t values_max,
                         struct error *error) {
    uint64_t values = 1;
    if (look_through(text, length, &values) > JSON_DEPTH_MAX)
        return error_set(error, failed, "%s: JSON: nested deeper than %d", path_tail(path, PATH_TAIL_BYTES),
                         JSON_DEPTH_MAX);
    if (values > values_max)
        return error_set(error, failed,
                         "%s: JSON: found %llu values (an array counts as 3, an object as 8), expected "
                         "at most %llu",
                         path_tail(path, PATH_TAIL_BYTES), (unsigned long long)values, (unsigned long long)values_max);
    return STATUS_OK;
}

static enum status load(const char *text, uint64_t length, const char *path, enum status failed, json_t **value,
                        struct error *error) {
    json_error_t reason;
    *value = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &reason);
    if (*value == NULL)
        return error_set(error, failed, "%s: JSON: line %d: %s", path_tail(path, PATH_TAIL_BYTES), reason.line,
                         reason.text);
    return STATUS_OK;
}

enum status json_parse_bytes(const char *text, uint64_t length, const char *path, enum status failed, json_t **value,
                             struct error *error) {
    *value = NULL;
    TRY(check(text, length, path, failed, JSON_VALUES_MAX, error));
    return load(text, length, path, failed, value, error);
}

enum status json_parse_part(const char *text, uint64_t length, const char *path, enum status failed, json_t **value,
                            struct error *error) {
    *value = NULL;
    TRY(check(text, length, path, failed, JSON_FILE_VALUES_MAX, error));
    return load(text, length, path, failed, value, error);
}

enum status json_parse_file(const char *path, uint64_t limit_bytes, json_t **value, struct error *error) {
    char *text;
    size_t length;
    *value = NULL;
    TRY(file_read_all(path, limit_bytes, &text, &length, error));
    enum status status = json_parse_part(text, length, path, STATUS_MODEL, value, error);
    free(text);
    return status;
}

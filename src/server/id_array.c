#include "server/id_array.h"

#include <stdlib.h>
#include <string.h>

enum { DIGITS_MAX = 9 };

static size_t skip_space(const char *text, size_t length, size_t at) {
    while (at < length && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t')) at++;
    return at;
}

/* Behind the string that begins at `at`; its quotes are those of a key only if a colon follows. */
static size_t skip_string(const char *text, size_t length, size_t at) {
    for (at++; at < length && text[at] != '"'; at++)
        if (text[at] == '\\') at++;
    return at < length ? at + 1 : length;
}

/* Where the array of the outermost object's field begins; SIZE_MAX: there is none. */
static size_t find_array(const char *text, size_t length, const char *name) {
    const size_t name_length = strlen(name);
    size_t depth = 0;
    for (size_t at = 0; at < length;) {
        const char c = text[at];
        if (c != '"') {
            if (c == '{' || c == '[') depth++;
            if ((c == '}' || c == ']') && depth > 0) depth--;
            at++;
            continue;
        }
        const size_t end = skip_string(text, length, at);
        const bool is_named =
            depth == 1 && end - at == name_length + 2 && memcmp(text + at + 1, name, name_length) == 0;
        at = end;
        if (!is_named) continue;
        size_t value = skip_space(text, length, end);
        if (value == length || text[value] != ':') continue;
        value = skip_space(text, length, value + 1);
        return value < length && text[value] == '[' ? value : SIZE_MAX;
    }
    return SIZE_MAX;
}

/* The numbers of the array that begins at `at`; *end: behind it. */
static bool read_array(const char *text, size_t length, size_t at, struct token_list *ids, size_t *end) {
    struct error ignored;
    do {
        at = skip_space(text, length, at + 1);
        const size_t first = at;
        token_id id = 0;
        for (; at < length && at - first < DIGITS_MAX && text[at] >= '0' && text[at] <= '9'; at++)
            id = 10 * id + (text[at] - '0');
        if (at == first || (text[first] == '0' && at - first > 1)) return false;
        if (token_list_append(ids, id, &ignored) != STATUS_OK) return false;
        at = skip_space(text, length, at);
    } while (at < length && text[at] == ',');
    *end = at + 1;
    return at < length && text[at] == ']';
}

bool id_array_take(const char *text, size_t length, const char *name, struct token_list *ids, char **rest,
                   size_t *rest_length) {
    const size_t before = ids->count, begin = find_array(text, length, name);
    size_t end = 0;
    *rest = NULL;
    if (begin == SIZE_MAX) return false;
    if (read_array(text, length, begin, ids, &end)) *rest = malloc(length - (end - begin) + 2);
    if (*rest == NULL) {
        ids->count = before;
        if (before == 0) token_list_deinit(ids); /* who was told that nothing was taken frees nothing */
        return false;
    }
    memcpy(*rest, text, begin);
    memcpy(*rest + begin, "[]", 2);
    memcpy(*rest + begin + 2, text + end, length - end);
    *rest_length = length - (end - begin) + 2;
    return true;
}

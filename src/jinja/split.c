/* Texts cut into lists of texts. */
#include <string.h>

#include "jinja/jinja_internal.h"

static struct jinja_value split_blanks(struct jinja_run *run, const struct jinja_text *text, int64_t count_max) {
    struct jinja_value parts = jinja_list(run, false);
    size_t begin = SIZE_MAX;
    if (!jinja_charge_bytes(run, text->length)) return jinja_undefined(NULL);
    for (size_t at = 0; at < text->length && !jinja_failed(run);) {
        int32_t code;
        const size_t next = at + jinja_character(text, at, &code);
        if (!jinja_is_space(code) && begin == SIZE_MAX) {
            begin = at;
            if (count_max >= 0 && (int64_t)parts.list->count == count_max) break;
        }
        if (jinja_is_space(code) && begin != SIZE_MAX) {
            jinja_list_add(run, parts.list, jinja_text_cut(run, text, begin, at));
            begin = SIZE_MAX;
        }
        at = next;
    }
    if (begin != SIZE_MAX && !jinja_failed(run))
        jinja_list_add(run, parts.list, jinja_text_cut(run, text, begin, text->length));
    return parts;
}

static void reverse(struct jinja_list *list) {
    for (size_t i = 0; 2 * i + 1 < list->count; i++) {
        const struct jinja_value item = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = item;
    }
}

static size_t find_last(const struct jinja_text *text, const struct jinja_text *wanted, size_t end) {
    for (size_t at = end; at >= wanted->length; at--)
        if (memcmp(text->bytes + at - wanted->length, wanted->bytes, wanted->length) == 0) return at - wanted->length;
    return SIZE_MAX;
}

static struct jinja_value split_from_right(struct jinja_run *run, const struct jinja_text *text,
                                           const struct jinja_text *separator, int64_t count_max) {
    struct jinja_value parts = jinja_list(run, false);
    size_t end = text->length;
    if (!jinja_charge(run, text->length + text->length / 64 * separator->length)) return jinja_undefined(NULL);
    for (int64_t n = 0; (count_max < 0 || n < count_max) && !jinja_failed(run); n++) {
        const size_t found = find_last(text, separator, end);
        if (found == SIZE_MAX) break;
        jinja_list_add(run, parts.list, jinja_text_cut(run, text, found + separator->length, end));
        end = found;
    }
    if (jinja_failed(run)) return parts;
    jinja_list_add(run, parts.list, jinja_text_cut(run, text, 0, end));
    if (!jinja_failed(run)) reverse(parts.list);
    return parts;
}

struct jinja_value jinja_text_split(struct jinja_run *run, const struct jinja_text *text,
                                    const struct jinja_text *separator, int64_t count_max, bool from_right) {
    if (separator == NULL && from_right && count_max >= 0)
        return jinja_fail(run, STATUS_UNSUPPORTED, "rsplit needs a separator here");
    if (separator == NULL) return split_blanks(run, text, count_max);
    if (separator->length == 0) return jinja_fail(run, STATUS_UNSUPPORTED, "split: the separator is empty");
    if (from_right && count_max >= 0) return split_from_right(run, text, separator, count_max);
    struct jinja_value parts = jinja_list(run, false);
    size_t at = 0;
    for (int64_t n = 0; (count_max < 0 || n < count_max) && !jinja_failed(run); n++) {
        const size_t found = jinja_text_find(run, text, separator, at);
        if (found == SIZE_MAX) break;
        jinja_list_add(run, parts.list, jinja_text_cut(run, text, at, found));
        at = found + separator->length;
    }
    if (!jinja_failed(run)) jinja_list_add(run, parts.list, jinja_text_cut(run, text, at, text->length));
    return parts;
}

/* Lines end as for Python's splitlines. */
static size_t line_end(const struct jinja_text *text, size_t at) {
    int32_t code;
    const size_t length = jinja_character(text, at, &code);
    if (code == '\r' && at + 1 < text->length && text->bytes[at + 1] == '\n') return 2;
    const bool ends = (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
                      code == 0x2028 || code == 0x2029;
    return ends ? length : 0;
}

struct jinja_value jinja_text_lines(struct jinja_run *run, const struct jinja_text *text, bool keeps_ends) {
    struct jinja_value lines = jinja_list(run, false);
    size_t begin = 0;
    if (!jinja_charge_bytes(run, text->length)) return jinja_undefined(NULL);
    for (size_t at = 0; at < text->length && !jinja_failed(run);) {
        const size_t ends = line_end(text, at);
        if (ends > 0) {
            jinja_list_add(run, lines.list, jinja_text_cut(run, text, begin, keeps_ends ? at + ends : at));
            begin = at + ends;
        }
        at += ends > 0 ? ends : jinja_character_bytes(text, at);
    }
    if (begin < text->length && !jinja_failed(run))
        jinja_list_add(run, lines.list, jinja_text_cut(run, text, begin, text->length));
    return lines;
}

/* As the filter: with a line end behind the text, so an empty last line counts. */
struct jinja_value jinja_text_indent(struct jinja_run *run, const struct jinja_text *text,
                                     const struct jinja_text *indentation, bool first, bool blank) {
    struct jinja_builder builder = {.run = run};
    size_t begin = 0;
    bool is_first = true;
    if (!jinja_charge_bytes(run, text->length)) return jinja_undefined(NULL);
    for (size_t at = 0; at <= text->length && !jinja_failed(run);) {
        const size_t ends = at < text->length ? line_end(text, at) : 0;
        if (at < text->length && ends == 0) {
            at += jinja_character_bytes(text, at);
            continue;
        }
        if (!is_first) jinja_put(&builder, "\n", 1, true);
        if (is_first ? first : blank || at > begin) jinja_put_text(&builder, indentation, 0, indentation->length);
        jinja_put_text(&builder, text, begin, at);
        is_first = false;
        if (at == text->length) break;
        at = begin = at + ends;
    }
    return jinja_built(&builder);
}

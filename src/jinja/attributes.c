/* value.name, value[key], value[a:b:c]. */
#include <string.h>

#include "jinja/jinja_internal.h"

static struct jinja_value method(struct jinja_run *run, const struct jinja_value *self, const char *name,
                                 enum jinja_function function) {
    struct jinja_method *made = jinja_allocate(run, sizeof *made);
    if (made == NULL) return jinja_undefined(name);
    *made = (struct jinja_method){.self = *self, .name = name, .function = function};
    return (struct jinja_value){.kind = JINJA_METHOD, .method = made};
}

static struct jinja_value loop_attribute(struct jinja_run *run, const struct jinja_value *self, const char *name) {
    const struct jinja_loop *loop = self->loop;
    const size_t count = loop->items->count, index = loop->index;
    if (strcmp(name, "index") == 0) return jinja_integer((int64_t)index + 1);
    if (strcmp(name, "index0") == 0) return jinja_integer((int64_t)index);
    if (strcmp(name, "revindex") == 0) return jinja_integer((int64_t)(count - index));
    if (strcmp(name, "revindex0") == 0) return jinja_integer((int64_t)(count - index) - 1);
    if (strcmp(name, "first") == 0) return jinja_bool(index == 0);
    if (strcmp(name, "last") == 0) return jinja_bool(index + 1 == count);
    if (strcmp(name, "length") == 0) return jinja_integer((int64_t)count);
    if (strcmp(name, "depth") == 0) return jinja_integer(1); /* only a recursive loop is deeper */
    if (strcmp(name, "depth0") == 0) return jinja_integer(0);
    if (strcmp(name, "previtem") == 0) return index > 0 ? loop->items->items[index - 1] : jinja_undefined(name);
    if (strcmp(name, "nextitem") == 0) return index + 1 < count ? loop->items->items[index + 1] : jinja_undefined(name);
    if (strcmp(name, "cycle") == 0) return method(run, self, name, JINJA_CYCLE);
    if (strcmp(name, "changed") == 0) return method(run, self, name, JINJA_LOOP_CHANGED);
    return jinja_undefined(name);
}

static struct jinja_value missing(struct jinja_run *run, const struct jinja_value *value, const char *name) {
    if (value->name != NULL)
        return jinja_fail(run, STATUS_UNSUPPORTED, "'%.60s' is not there ('%.60s' of it)", value->name, name);
    return jinja_fail(run, STATUS_UNSUPPORTED, "'%.60s' of nothing", name);
}

/* What Python looks for first differs: an attribute for a dot, an item for brackets. */
struct jinja_value jinja_attribute(struct jinja_run *run, const struct jinja_value *value, const char *name) {
    if (jinja_failed(run)) return jinja_undefined(name);
    if (value->kind == JINJA_UNDEFINED) return missing(run, value, name);
    if (value->kind == JINJA_LOOP) return loop_attribute(run, value, name);
    if (jinja_has_method(value, name)) return method(run, value, name, JINJA_DICT);
    if (value->kind != JINJA_MAP) return jinja_undefined(name);
    const struct jinja_value *member = jinja_map_find_word(run, value->map, name);
    return member != NULL ? *member : jinja_undefined(name);
}

static struct jinja_value text_item(struct jinja_run *run, const struct jinja_text *text, int64_t index) {
    if (!jinja_charge_bytes(run, 2 * text->length)) return jinja_undefined(NULL);
    if (index < 0) index += (int64_t)jinja_text_characters(text);
    if (index < 0) return jinja_undefined(NULL);
    const size_t at = jinja_text_offset(text, (size_t)index);
    if (at >= text->length) return jinja_undefined(NULL);
    return jinja_text_cut(run, text, at, at + jinja_character_bytes(text, at));
}

/* The text with a zero behind it; NULL: failed. */
static const char *word_of(struct jinja_run *run, const struct jinja_text *text) {
    char *word = jinja_allocate(run, text->length + 1);
    if (word != NULL) memcpy(word, text->bytes, text->length);
    return word;
}

struct jinja_value jinja_item(struct jinja_run *run, const struct jinja_value *value, const struct jinja_value *key) {
    if (jinja_failed(run)) return jinja_undefined(NULL);
    if (value->kind == JINJA_MAP) {
        const struct jinja_value *member = jinja_map_find(run, value->map, key);
        if (member != NULL) return *member;
    }
    if (key->kind == JINJA_TEXT) {
        const char *word = word_of(run, key->text);
        return word != NULL ? jinja_attribute(run, value, word) : jinja_undefined(NULL);
    }
    if (value->kind == JINJA_UNDEFINED) return missing(run, value, "an item");
    if (key->kind != JINJA_INTEGER && key->kind != JINJA_BOOL) return jinja_undefined(NULL);
    int64_t index = jinja_as_integer(key);
    if (value->kind == JINJA_TEXT) return text_item(run, value->text, index);
    if (value->kind != JINJA_LIST) return jinja_undefined(NULL);
    if (index < 0) index += (int64_t)value->list->count;
    return index >= 0 && (uint64_t)index < value->list->count ? value->list->items[index] : jinja_undefined(NULL);
}

/* ---- slices ---- */

static bool read_bound(struct jinja_run *run, const struct jinja_value *value, int64_t otherwise, int64_t *bound) {
    *bound = otherwise;
    if (value == NULL || value->kind == JINJA_NONE) return true;
    if (value->kind == JINJA_INTEGER || value->kind == JINJA_BOOL) {
        *bound = jinja_as_integer(value);
        return true;
    }
    jinja_fail(run, STATUS_UNSUPPORTED, "a slice by %s", jinja_kind_name(value));
    return false;
}

static int64_t clamp(int64_t bound, int64_t low, int64_t high) {
    return bound < low ? low : bound > high ? high : bound;
}

struct span {
    int64_t begin, end, step;
};

/* As Python's slice.indices. */
static bool read_span(struct jinja_run *run, const struct jinja_value *begin, const struct jinja_value *end,
                      const struct jinja_value *step, size_t count, struct span *span) {
    const int64_t length = (int64_t)count;
    if (!read_bound(run, step, 1, &span->step)) return false;
    if (span->step == 0 || span->step == INT64_MIN) {
        jinja_fail(run, STATUS_UNSUPPORTED, "a slice with a step of zero");
        return false;
    }
    const int64_t low = span->step > 0 ? 0 : -1, high = span->step > 0 ? length : length - 1;
    if (!read_bound(run, begin, span->step > 0 ? 0 : length - 1, &span->begin)) return false;
    if (!read_bound(run, end, span->step > 0 ? length : -1 - length, &span->end)) return false;
    if (span->begin < 0) span->begin = span->begin < -length ? -1 : span->begin + length;
    if (span->end < 0) span->end = span->end < -length ? -1 : span->end + length;
    span->begin = clamp(span->begin, low, high);
    span->end = clamp(span->end, low, high);
    return true;
}

static bool in_span(const struct span *span, int64_t i) { return span->step > 0 ? i < span->end : i > span->end; }

static struct jinja_value slice_text(struct jinja_run *run, const struct jinja_text *text, const struct span *span) {
    struct jinja_builder builder = {.run = run};
    if (span->step == 1) {
        const size_t begin = jinja_text_offset(text, (size_t)span->begin);
        return jinja_text_cut(run, text, begin, jinja_text_offset(text, (size_t)span->end));
    }
    for (int64_t i = span->begin; in_span(span, i) && jinja_charge_bytes(run, text->length + 64); i += span->step) {
        const size_t at = jinja_text_offset(text, (size_t)i);
        jinja_put_text(&builder, text, at, at + jinja_character_bytes(text, at));
    }
    return jinja_built(&builder);
}

struct jinja_value jinja_slice(struct jinja_run *run, const struct jinja_value *value, const struct jinja_value *begin,
                               const struct jinja_value *end, const struct jinja_value *step) {
    struct span span;
    if (jinja_failed(run)) return jinja_undefined(NULL);
    if (value->kind != JINJA_TEXT && value->kind != JINJA_LIST)
        return jinja_fail(run, STATUS_UNSUPPORTED, "a slice of %s", jinja_kind_name(value));
    if (value->kind == JINJA_TEXT && !jinja_charge_bytes(run, 3 * value->text->length)) return jinja_undefined(NULL);
    const size_t count = value->kind == JINJA_TEXT ? jinja_text_characters(value->text) : value->list->count;
    if (!read_span(run, begin, end, step, count, &span)) return jinja_undefined(NULL);
    if (value->kind == JINJA_TEXT) return slice_text(run, value->text, &span);
    struct jinja_value slice = jinja_list(run, value->list->is_tuple);
    for (int64_t i = span.begin; in_span(&span, i) && !jinja_failed(run); i += span.step)
        jinja_list_add(run, slice.list, value->list->items[i]);
    return slice;
}

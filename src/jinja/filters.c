/* The filters: `value|NAME`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jinja/jinja_internal.h"

struct jinja_filter {
    const char *name;
    jinja_call *call;
};

/* The value as text; of a failure an empty one. */
static const struct jinja_text *text_of(struct jinja_run *run, const struct jinja_value *value) {
    static const struct jinja_text nothing = {.bytes = ""};
    const struct jinja_value text = jinja_to_text(run, value);
    return text.kind == JINJA_TEXT ? text.text : &nothing;
}

/* ---- of texts ---- */

JINJA_CALL(filter_trim) {
    return jinja_text_strip(run, text_of(run, value), jinja_text_argument(run, arguments, 0, "chars"), true, true);
}

JINJA_CALL(filter_upper) { return (void)arguments, jinja_text_case(run, text_of(run, value), JINJA_UPPER); }
JINJA_CALL(filter_lower) { return (void)arguments, jinja_text_case(run, text_of(run, value), JINJA_LOWER); }
JINJA_CALL(filter_title) { return (void)arguments, jinja_text_case(run, text_of(run, value), JINJA_TITLE_WORDS); }
JINJA_CALL(filter_capitalize) { return (void)arguments, jinja_text_case(run, text_of(run, value), JINJA_CAPITALIZE); }
JINJA_CALL(filter_string) { return (void)arguments, jinja_to_text(run, value); }
JINJA_CALL(filter_safe) { return (void)arguments, jinja_to_text(run, value); }
JINJA_CALL(filter_tojson) { return jinja_to_json(run, value, arguments); }

JINJA_CALL(filter_replace) {
    const struct jinja_text *old = jinja_text_argument(run, arguments, 0, "old");
    const struct jinja_text *new_text = jinja_text_argument(run, arguments, 1, "new");
    if (old == NULL || new_text == NULL) return jinja_fail(run, STATUS_UNSUPPORTED, "replace needs two texts");
    return jinja_text_replace(run, text_of(run, value), old, new_text,
                              jinja_integer_argument(run, arguments, 2, "count", -1));
}

JINJA_CALL(filter_indent) {
    const struct jinja_value *width = jinja_argument(arguments, 0, "width");
    struct jinja_builder blanks = {.run = run};
    if (width == NULL || width->kind != JINJA_TEXT) {
        const int64_t count = jinja_integer_argument(run, arguments, 0, "width", 4);
        for (int64_t i = 0; i < count && jinja_charge(run, 1); i++) jinja_put_word(&blanks, " ");
    }
    const struct jinja_value made = jinja_built(&blanks);
    if (jinja_failed(run)) return made;
    return jinja_text_indent(
        run, text_of(run, value), width != NULL && width->kind == JINJA_TEXT ? width->text : made.text,
        jinja_bool_argument(arguments, 1, "first", false), jinja_bool_argument(arguments, 2, "blank", false));
}

/* ---- of numbers ---- */

/* A text as Python's int() or float() reads it, else false. */
static bool read_number(struct jinja_run *run, const struct jinja_value *value, double *real, int64_t *integer,
                        bool *is_integer) {
    char text[64], *end;
    *is_integer = false;
    if (jinja_is_number(value)) {
        *real = jinja_as_real(value);
        *is_integer = value->kind != JINJA_FLOAT;
        if (*is_integer) *integer = jinja_as_integer(value);
        return true;
    }
    if (value->kind != JINJA_TEXT) return false;
    const struct jinja_value stripped = jinja_text_strip(run, value->text, NULL, true, true);
    if (jinja_failed(run) || stripped.text->length == 0 || stripped.text->length >= sizeof text) return false;
    memcpy(text, stripped.text->bytes, stripped.text->length);
    text[stripped.text->length] = '\0';
    if (strpbrk(text, "xXpP") != NULL) return false;
    *real = strtod(text, &end);
    if (*end != '\0') return false;
    *is_integer = strspn(text, "+-0123456789") == strlen(text) && fabs(*real) < 9e18;
    if (*is_integer) *integer = strtoll(text, NULL, 10);
    return true;
}

JINJA_CALL(filter_int) {
    double real;
    int64_t integer = 0;
    bool is_integer;
    const struct jinja_value *otherwise = jinja_argument(arguments, 0, "default");
    if (!read_number(run, value, &real, &integer, &is_integer) || (!is_integer && !(fabs(real) < 9e18)))
        return otherwise != NULL ? *otherwise : jinja_integer(0);
    return jinja_integer(is_integer ? integer : (int64_t)real);
}

JINJA_CALL(filter_float) {
    double real;
    int64_t integer;
    bool is_integer;
    const struct jinja_value *otherwise = jinja_argument(arguments, 0, "default");
    if (!read_number(run, value, &real, &integer, &is_integer)) return otherwise != NULL ? *otherwise : jinja_real(0);
    return jinja_real(real);
}

JINJA_CALL(filter_abs) {
    (void)arguments;
    if (value->kind == JINJA_INTEGER && value->integer != INT64_MIN)
        return jinja_integer(value->integer < 0 ? -value->integer : value->integer);
    if (value->kind == JINJA_FLOAT) return jinja_real(fabs(value->real));
    return jinja_fail(run, STATUS_UNSUPPORTED, "abs of %s", jinja_kind_name(value));
}

JINJA_CALL(filter_round) {
    const int64_t digits = jinja_integer_argument(run, arguments, 0, "precision", 0);
    if (!jinja_is_number(value) || digits < 0 || digits > 15 || jinja_argument(arguments, 1, "method") != NULL)
        return jinja_fail(run, STATUS_UNSUPPORTED, "round of %s", jinja_kind_name(value));
    const double scale = pow(10, (double)digits);
    return jinja_real(nearbyint(jinja_as_real(value) * scale) / scale);
}

/* ---- of anything ---- */

JINJA_CALL(filter_length) {
    (void)arguments;
    switch (value->kind) {
    case JINJA_TEXT:
        if (!jinja_charge_bytes(run, value->text->length)) return jinja_undefined(NULL);
        return jinja_integer((int64_t)jinja_text_characters(value->text));
    case JINJA_LIST: return jinja_integer((int64_t)value->list->count);
    case JINJA_MAP: return jinja_integer((int64_t)value->map->count);
    case JINJA_UNDEFINED: return jinja_integer(0);
    case JINJA_NONE:
    case JINJA_BOOL:
    case JINJA_INTEGER:
    case JINJA_FLOAT:
    case JINJA_LOOP:
    case JINJA_MACRO:
    case JINJA_METHOD:
    case JINJA_FUNCTION: break;
    }
    return jinja_fail(run, STATUS_UNSUPPORTED, "the length of %s", jinja_kind_name(value));
}

JINJA_CALL(filter_default) {
    const struct jinja_value *otherwise = jinja_argument(arguments, 0, "default_value");
    const bool is_absent = value->kind == JINJA_UNDEFINED ||
                           (jinja_bool_argument(arguments, 1, "boolean", false) && !jinja_is_true(value));
    if (!is_absent) return *value;
    return otherwise != NULL ? *otherwise : jinja_text_word(run, "");
}

JINJA_CALL(filter_list) {
    struct jinja_value list = jinja_list(run, false);
    const struct jinja_list *items = jinja_items(run, value);
    (void)arguments;
    for (size_t i = 0; items != NULL && i < items->count && !jinja_failed(run); i++)
        jinja_list_add(run, list.list, items->items[i]);
    return list;
}

JINJA_CALL(filter_first) {
    (void)arguments;
    const struct jinja_list *items = jinja_items(run, value);
    return items != NULL && items->count > 0 ? items->items[0] : jinja_undefined(NULL);
}

JINJA_CALL(filter_last) {
    (void)arguments;
    const struct jinja_list *items = jinja_items(run, value);
    return items != NULL && items->count > 0 ? items->items[items->count - 1] : jinja_undefined(NULL);
}

JINJA_CALL(filter_reverse) {
    (void)arguments;
    struct jinja_value list = jinja_list(run, false);
    struct jinja_builder builder = {.run = run};
    const struct jinja_list *items = jinja_items(run, value);
    for (size_t i = items != NULL ? items->count : 0; i-- > 0 && !jinja_failed(run);) {
        if (value->kind == JINJA_TEXT)
            jinja_print(&builder, &items->items[i]);
        else
            jinja_list_add(run, list.list, items->items[i]);
    }
    return value->kind == JINJA_TEXT ? jinja_built(&builder) : list;
}

JINJA_CALL(filter_items) {
    (void)arguments;
    if (value->kind == JINJA_UNDEFINED) return jinja_list(run, false);
    if (value->kind != JINJA_MAP) return jinja_fail(run, STATUS_UNSUPPORTED, "items of %s", jinja_kind_name(value));
    return jinja_map_pairs(run, value->map);
}

/* item.a.b, or item[0]. */
static struct jinja_value part_of(struct jinja_run *run, const struct jinja_value *item,
                                  const struct jinja_value *attribute) {
    if (attribute == NULL) return *item;
    if (attribute->kind != JINJA_TEXT) return jinja_item(run, item, attribute);
    struct jinja_value part = *item;
    for (size_t at = 0; at <= attribute->text->length && !jinja_failed(run);) {
        const char *dot = memchr(attribute->text->bytes + at, '.', attribute->text->length - at);
        const size_t end = dot != NULL ? (size_t)(dot - attribute->text->bytes) : attribute->text->length;
        const struct jinja_value key = jinja_text_cut(run, attribute->text, at, end);
        part = jinja_item(run, &part, &key);
        at = end + 1;
    }
    return part;
}

JINJA_CALL(filter_join) {
    struct jinja_builder builder = {.run = run};
    const struct jinja_text *between = jinja_text_argument(run, arguments, 0, "d");
    const struct jinja_value *attribute = jinja_argument(arguments, 1, "attribute");
    const struct jinja_list *items = jinja_items(run, value);
    for (size_t i = 0; items != NULL && i < items->count && !jinja_failed(run); i++) {
        const struct jinja_value part = part_of(run, &items->items[i], attribute);
        if (i > 0 && between != NULL) jinja_put_text(&builder, between, 0, between->length);
        jinja_print(&builder, &part);
    }
    return jinja_built(&builder);
}

/* ---- choosing and converting items ---- */

/* The arguments behind the first `count`. */
static struct jinja_arguments rest_of(const struct jinja_arguments *arguments, size_t count) {
    struct jinja_arguments rest = {.count = 0};
    for (size_t i = count; i < arguments->count; i++) {
        rest.values[rest.count] = arguments->values[i];
        rest.names[rest.count++] = arguments->names[i];
    }
    return rest;
}

/* The word of a positional argument in buffer; NULL: there is none. */
static const char *word_at(const struct jinja_arguments *arguments, size_t place, char buffer[32]) {
    const struct jinja_value *value = jinja_argument(arguments, place, NULL);
    if (value == NULL || value->kind != JINJA_TEXT || value->text->length >= 32) return NULL;
    memcpy(buffer, value->text->bytes, value->text->length);
    buffer[value->text->length] = '\0';
    return buffer;
}

static struct jinja_value choose(struct jinja_run *run, const struct jinja_value *value,
                                 const struct jinja_arguments *arguments, bool by_attribute, bool keeps) {
    char word[32];
    const size_t first = by_attribute ? 1 : 0;
    const struct jinja_value *attribute = by_attribute ? jinja_argument(arguments, 0, NULL) : NULL;
    const char *name = word_at(arguments, first, word);
    const struct jinja_check *check = name != NULL ? jinja_find_check(name) : NULL;
    if (arguments->count > first && check == NULL) return jinja_fail(run, STATUS_UNSUPPORTED, "an unknown test");
    const struct jinja_arguments rest = rest_of(arguments, first + 1);
    const struct jinja_list *items = jinja_items(run, value);
    struct jinja_value chosen = jinja_list(run, false);
    for (size_t i = 0; items != NULL && i < items->count && !jinja_failed(run); i++) {
        const struct jinja_value part = part_of(run, &items->items[i], attribute);
        const bool holds = check != NULL ? jinja_call_check(run, check, &part, &rest) : jinja_is_true(&part);
        if (holds == keeps) jinja_list_add(run, chosen.list, items->items[i]);
    }
    return chosen;
}

JINJA_CALL(filter_select) { return choose(run, value, arguments, false, true); }
JINJA_CALL(filter_reject) { return choose(run, value, arguments, false, false); }
JINJA_CALL(filter_selectattr) { return choose(run, value, arguments, true, true); }
JINJA_CALL(filter_rejectattr) { return choose(run, value, arguments, true, false); }

JINJA_CALL(filter_map) {
    char word[32];
    const struct jinja_value *attribute = jinja_argument(arguments, SIZE_MAX, "attribute");
    const struct jinja_value *otherwise = jinja_argument(arguments, SIZE_MAX, "default");
    const char *name = word_at(arguments, 0, word);
    const struct jinja_filter *filter = name != NULL ? jinja_find_filter(name) : NULL;
    if (attribute == NULL && filter == NULL) return jinja_fail(run, STATUS_UNSUPPORTED, "map by an unknown filter");
    const struct jinja_arguments rest = rest_of(arguments, 1);
    const struct jinja_list *items = jinja_items(run, value);
    struct jinja_value mapped = jinja_list(run, false);
    for (size_t i = 0; items != NULL && i < items->count && !jinja_failed(run); i++) {
        struct jinja_value part = attribute != NULL ? part_of(run, &items->items[i], attribute)
                                                    : jinja_call_filter(run, filter, &items->items[i], &rest);
        if (part.kind == JINJA_UNDEFINED && otherwise != NULL) part = *otherwise;
        jinja_list_add(run, mapped.list, part);
    }
    return mapped;
}

/* ---- order ---- */

/* For orders that do not tell upper from lower case. */
static struct jinja_value folded(struct jinja_run *run, struct jinja_value key, bool tells_case) {
    return key.kind == JINJA_TEXT && !tells_case ? jinja_text_case(run, key.text, JINJA_LOWER) : key;
}

/* Merges, so that n items take n log n steps and equal ones keep their order. */
static void sort(struct jinja_run *run, struct jinja_value *keys, struct jinja_value *items, struct jinja_value *spare,
                 size_t count, bool reverses) {
    for (size_t width = 1; width < count && !jinja_failed(run); width *= 2) {
        struct jinja_value *key_to = spare, *item_to = spare + count;
        for (size_t begin = 0; begin < count; begin += 2 * width) {
            const size_t middle = begin + width < count ? begin + width : count;
            const size_t end = begin + 2 * width < count ? begin + 2 * width : count;
            size_t a = begin, b = middle;
            for (size_t to = begin; to < end; to++) {
                bool takes_b = b < end && a >= middle;
                if (b < end && a < middle && jinja_charge(run, 1)) {
                    const int order = jinja_compare(run, &keys[b], &keys[a]);
                    takes_b = reverses ? order > 0 : order < 0;
                }
                const size_t from = takes_b ? b++ : a++;
                key_to[to] = keys[from];
                item_to[to] = items[from];
            }
        }
        memcpy(keys, key_to, count * sizeof *keys);
        memcpy(items, item_to, count * sizeof *items);
    }
}

static struct jinja_value sorted(struct jinja_run *run, const struct jinja_list *list,
                                 const struct jinja_value *attribute, bool tells_case, bool reverses) {
    struct jinja_value result = jinja_list(run, false);
    if (list == NULL || jinja_failed(run) || list->count == 0) return result;
    struct jinja_value *keys = jinja_allocate(run, 4 * list->count * sizeof *keys);
    if (keys == NULL) return result;
    for (size_t i = 0; i < list->count && !jinja_failed(run); i++) {
        keys[i] = folded(run, part_of(run, &list->items[i], attribute), tells_case);
        jinja_list_add(run, result.list, list->items[i]);
    }
    if (!jinja_failed(run)) sort(run, keys, result.list->items, keys + list->count, list->count, reverses);
    return result;
}

JINJA_CALL(filter_sort) {
    return sorted(run, jinja_items(run, value), jinja_argument(arguments, 2, "attribute"),
                  jinja_bool_argument(arguments, 1, "case_sensitive", false),
                  jinja_bool_argument(arguments, 0, "reverse", false));
}

JINJA_CALL(filter_dictsort) {
    const struct jinja_text *by = jinja_text_argument(run, arguments, 1, "by");
    const struct jinja_value place = jinja_integer(by != NULL && jinja_text_is(by, "value") ? 1 : 0);
    if (value->kind != JINJA_MAP) return jinja_fail(run, STATUS_UNSUPPORTED, "dictsort of %s", jinja_kind_name(value));
    const struct jinja_value pairs = jinja_map_pairs(run, value->map);
    if (jinja_failed(run)) return pairs;
    return sorted(run, pairs.list, &place, jinja_bool_argument(arguments, 0, "case_sensitive", false),
                  jinja_bool_argument(arguments, 2, "reverse", false));
}

JINJA_CALL(filter_unique) {
    struct jinja_value kept = jinja_list(run, false), keys = jinja_list(run, false);
    const struct jinja_list *items = jinja_items(run, value);
    const bool tells_case = jinja_bool_argument(arguments, 0, "case_sensitive", false);
    const struct jinja_value *attribute = jinja_argument(arguments, 1, "attribute");
    for (size_t i = 0; items != NULL && i < items->count && !jinja_failed(run); i++) {
        const struct jinja_value key = folded(run, part_of(run, &items->items[i], attribute), tells_case);
        if (jinja_failed(run) || jinja_contains(run, &keys, &key)) continue;
        jinja_list_add(run, keys.list, key);
        jinja_list_add(run, kept.list, items->items[i]);
    }
    return kept;
}

static const struct jinja_filter filters[] = {
    {"trim", filter_trim},
    {"tojson", filter_tojson},
    {"length", filter_length},
    {"count", filter_length},
    {"default", filter_default},
    {"d", filter_default},
    {"join", filter_join},
    {"map", filter_map},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {"list", filter_list},
    {"string", filter_string},
    {"safe", filter_safe},
    {"upper", filter_upper},
    {"lower", filter_lower},
    {"title", filter_title},
    {"capitalize", filter_capitalize},
    {"replace", filter_replace},
    {"indent", filter_indent},
    {"first", filter_first},
    {"last", filter_last},
    {"reverse", filter_reverse},
    {"items", filter_items},
    {"dictsort", filter_dictsort},
    {"sort", filter_sort},
    {"unique", filter_unique},
    {"int", filter_int},
    {"float", filter_float},
    {"abs", filter_abs},
    {"round", filter_round},
};

const struct jinja_filter *jinja_find_filter(const char *name) {
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++)
        if (strcmp(filters[i].name, name) == 0) return &filters[i];
    return NULL;
}

struct jinja_value jinja_call_filter(struct jinja_run *run, const struct jinja_filter *filter,
                                     const struct jinja_value *value, const struct jinja_arguments *arguments) {
    if (jinja_failed(run) || !jinja_charge(run, 1)) return jinja_undefined(NULL);
    return filter->call(run, value, arguments);
}

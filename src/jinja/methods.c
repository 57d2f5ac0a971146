/* The methods of texts, dictionaries and lists that templates call. */
#include <string.h>

#include "jinja/jinja_internal.h"

/* ---- texts ---- */

JINJA_CALL(title) {
    (void)arguments;
    return jinja_text_case(run, value->text, JINJA_TITLE);
}

JINJA_CALL(strip_left) {
    return jinja_text_strip(run, value->text, jinja_text_argument(run, arguments, 0, NULL), true, false);
}

JINJA_CALL(strip_right) {
    return jinja_text_strip(run, value->text, jinja_text_argument(run, arguments, 0, NULL), false, true);
}

JINJA_CALL(split) {
    return jinja_text_split(run, value->text, jinja_text_argument(run, arguments, 0, "sep"),
                            jinja_integer_argument(run, arguments, 1, "maxsplit", -1), false);
}

JINJA_CALL(split_right) {
    return jinja_text_split(run, value->text, jinja_text_argument(run, arguments, 0, "sep"),
                            jinja_integer_argument(run, arguments, 1, "maxsplit", -1), true);
}

JINJA_CALL(split_lines) {
    return jinja_text_lines(run, value->text, jinja_bool_argument(arguments, 0, "keepends", false));
}

static bool begins(const struct jinja_text *text, const struct jinja_value *part) {
    return part->kind == JINJA_TEXT && part->text->length <= text->length &&
           memcmp(text->bytes, part->text->bytes, part->text->length) == 0;
}

static bool ends(const struct jinja_text *text, const struct jinja_value *part) {
    return part->kind == JINJA_TEXT && part->text->length <= text->length &&
           memcmp(text->bytes + text->length - part->text->length, part->text->bytes, part->text->length) == 0;
}

/* A text, or a tuple of them. */
static struct jinja_value with_any(struct jinja_run *run, const struct jinja_value *self,
                                   const struct jinja_arguments *arguments,
                                   bool (*has)(const struct jinja_text *, const struct jinja_value *)) {
    const struct jinja_value *parts = jinja_argument(arguments, 0, NULL);
    if (parts == NULL) return jinja_fail(run, STATUS_UNSUPPORTED, "a method needs a text");
    if (parts->kind != JINJA_LIST) return jinja_bool(has(self->text, parts));
    bool has_any = false;
    for (size_t i = 0; i < parts->list->count && jinja_charge(run, 1); i++)
        has_any = has_any || has(self->text, &parts->list->items[i]);
    return jinja_bool(has_any);
}

JINJA_CALL(starts_with) { return with_any(run, value, arguments, begins); }

JINJA_CALL(ends_with) { return with_any(run, value, arguments, ends); }

JINJA_CALL(remove_prefix) {
    const struct jinja_value *part = jinja_argument(arguments, 0, NULL);
    const bool has = part != NULL && begins(value->text, part);
    return jinja_text_cut(run, value->text, has ? part->text->length : 0, value->text->length);
}

JINJA_CALL(remove_suffix) {
    const struct jinja_value *part = jinja_argument(arguments, 0, NULL);
    const bool has = part != NULL && ends(value->text, part);
    return jinja_text_cut(run, value->text, 0, value->text->length - (has ? part->text->length : 0));
}

JINJA_CALL(find) {
    const struct jinja_text *part = jinja_text_argument(run, arguments, 0, NULL);
    if (part == NULL) return jinja_fail(run, STATUS_UNSUPPORTED, "find needs a text");
    const size_t at = jinja_text_find(run, value->text, part, 0);
    if (at == SIZE_MAX) return jinja_integer(-1);
    const struct jinja_text before = {.bytes = value->text->bytes, .length = at};
    return jinja_integer((int64_t)jinja_text_characters(&before));
}

JINJA_CALL(count) {
    const struct jinja_text *part = jinja_text_argument(run, arguments, 0, NULL);
    if (part == NULL || part->length == 0) return jinja_fail(run, STATUS_UNSUPPORTED, "count needs a text");
    int64_t found = 0;
    for (size_t at = 0; (at = jinja_text_find(run, value->text, part, at)) != SIZE_MAX; at += part->length) found++;
    return jinja_integer(found);
}

JINJA_CALL(join) {
    struct jinja_builder builder = {.run = run};
    const struct jinja_value *parts = jinja_argument(arguments, 0, NULL);
    const struct jinja_list *list = parts != NULL ? jinja_items(run, parts) : NULL;
    for (size_t i = 0; list != NULL && i < list->count && jinja_charge(run, 1); i++) {
        if (list->items[i].kind != JINJA_TEXT) return jinja_fail(run, STATUS_UNSUPPORTED, "join of what is no text");
        if (i > 0) jinja_print(&builder, value);
        jinja_print(&builder, &list->items[i]);
    }
    return jinja_built(&builder);
}

JINJA_CALL(is_digit) {
    bool is_all = value->text->length > 0;
    (void)arguments;
    if (!jinja_charge_bytes(run, value->text->length)) return jinja_undefined(NULL);
    for (size_t i = 0; i < value->text->length; i++)
        is_all = is_all && value->text->bytes[i] >= '0' && value->text->bytes[i] <= '9';
    return jinja_bool(is_all);
}

JINJA_CALL(is_space) {
    (void)arguments;
    const struct jinja_value rest = jinja_text_strip(run, value->text, NULL, true, true);
    return jinja_bool(value->text->length > 0 && !jinja_is_true(&rest));
}

/* ---- dictionaries ---- */

static struct jinja_value column(struct jinja_run *run, const struct jinja_map *map, bool of_keys) {
    struct jinja_value list = jinja_list(run, false);
    for (size_t i = 0; i < map->count && !jinja_failed(run); i++)
        jinja_list_add(run, list.list, of_keys ? map->entries[i].key : map->entries[i].value);
    return list;
}

JINJA_CALL(keys) {
    (void)arguments;
    return column(run, value->map, true);
}

JINJA_CALL(values) {
    (void)arguments;
    return column(run, value->map, false);
}

JINJA_CALL(get) {
    const struct jinja_value *key = jinja_argument(arguments, 0, NULL);
    const struct jinja_value *otherwise = jinja_argument(arguments, 1, "default");
    if (key == NULL) return jinja_fail(run, STATUS_UNSUPPORTED, "get needs a key");
    const struct jinja_value *found = jinja_map_find(run, value->map, key);
    return found != NULL ? *found : otherwise != NULL ? *otherwise : jinja_none();
}

/* ---- lists ---- */

JINJA_CALL(index_of) {
    const struct jinja_value *wanted = jinja_argument(arguments, 0, NULL);
    for (size_t i = 0; wanted != NULL && i < value->list->count && !jinja_failed(run); i++)
        if (jinja_equal(run, &value->list->items[i], wanted)) return jinja_integer((int64_t)i);
    return jinja_fail(run, STATUS_UNSUPPORTED, "index: it is not in the list");
}

/* transformers' templates run in a sandbox in which lists do not change. */
static const struct {
    enum jinja_kind kind;
    const char *name;
    jinja_call *call;   /* NULL: filter */
    const char *filter; /* that does the same */
} methods[] = {
    {JINJA_TEXT, "strip", NULL, "trim"},
    {JINJA_TEXT, "lstrip", strip_left, NULL},
    {JINJA_TEXT, "rstrip", strip_right, NULL},
    {JINJA_TEXT, "split", split, NULL},
    {JINJA_TEXT, "rsplit", split_right, NULL},
    {JINJA_TEXT, "splitlines", split_lines, NULL},
    {JINJA_TEXT, "replace", NULL, "replace"},
    {JINJA_TEXT, "startswith", starts_with, NULL},
    {JINJA_TEXT, "endswith", ends_with, NULL},
    {JINJA_TEXT, "removeprefix", remove_prefix, NULL},
    {JINJA_TEXT, "removesuffix", remove_suffix, NULL},
    {JINJA_TEXT, "upper", NULL, "upper"},
    {JINJA_TEXT, "lower", NULL, "lower"},
    {JINJA_TEXT, "title", title, NULL},
    {JINJA_TEXT, "capitalize", NULL, "capitalize"},
    {JINJA_TEXT, "find", find, NULL},
    {JINJA_TEXT, "count", count, NULL},
    {JINJA_TEXT, "join", join, NULL},
    {JINJA_TEXT, "isdigit", is_digit, NULL},
    {JINJA_TEXT, "isspace", is_space, NULL},
    {JINJA_MAP, "items", NULL, "items"},
    {JINJA_MAP, "keys", keys, NULL},
    {JINJA_MAP, "values", values, NULL},
    {JINJA_MAP, "get", get, NULL},
    {JINJA_LIST, "index", index_of, NULL},
};

enum { METHOD_COUNT = sizeof methods / sizeof methods[0] };

static size_t find_method(const struct jinja_value *self, const char *name) {
    for (size_t i = 0; i < METHOD_COUNT; i++)
        if (methods[i].kind == self->kind && strcmp(methods[i].name, name) == 0) return i;
    return METHOD_COUNT;
}

bool jinja_has_method(const struct jinja_value *self, const char *name) {
    if (self->kind == JINJA_MAP && self->map->is_namespace) return false;
    return find_method(self, name) < METHOD_COUNT;
}

static struct jinja_value call_loop(struct jinja_run *run, const struct jinja_method *method,
                                    const struct jinja_arguments *arguments) {
    struct jinja_loop *loop = method->self.loop;
    if (arguments->count == 0) return jinja_fail(run, STATUS_UNSUPPORTED, "loop.%s needs a value", method->name);
    if (method->function == JINJA_CYCLE) return arguments->values[loop->index % arguments->count];
    const bool changed = !loop->has_changed || !jinja_equal(run, &loop->changed, &arguments->values[0]);
    loop->has_changed = true;
    loop->changed = arguments->values[0];
    return jinja_bool(changed);
}

const char *jinja_method_filter(const struct jinja_method *method) {
    const size_t found = find_method(&method->self, method->name);
    return found < METHOD_COUNT ? methods[found].filter : NULL;
}

struct jinja_value jinja_call_method(struct jinja_run *run, const struct jinja_method *method,
                                     const struct jinja_arguments *arguments) {
    if (jinja_failed(run) || !jinja_charge(run, 1)) return jinja_undefined(NULL);
    if (method->self.kind == JINJA_LOOP) return call_loop(run, method, arguments);
    return methods[find_method(&method->self, method->name)].call(run, &method->self, arguments);
}

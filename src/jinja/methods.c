/* The methods of texts, dictionaries and lists that templates call. */
#include <string.h>

#include "jinja/jinja_internal.h"

typedef struct jinja_value method_call(struct jinja_run *run, const struct jinja_value *self,
                                       const struct jinja_arguments *arguments);

/* ---- texts ---- */

static struct jinja_value upper(struct jinja_run *run, const struct jinja_value *self,
                                const struct jinja_arguments *arguments) {
    (void)arguments;
    return jinja_text_case(run, self->text, JINJA_UPPER);
}

static struct jinja_value lower(struct jinja_run *run, const struct jinja_value *self,
                                const struct jinja_arguments *arguments) {
    (void)arguments;
    return jinja_text_case(run, self->text, JINJA_LOWER);
}

static struct jinja_value title(struct jinja_run *run, const struct jinja_value *self,
                                const struct jinja_arguments *arguments) {
    (void)arguments;
    return jinja_text_case(run, self->text, JINJA_TITLE);
}

static struct jinja_value capitalize(struct jinja_run *run, const struct jinja_value *self,
                                     const struct jinja_arguments *arguments) {
    (void)arguments;
    return jinja_text_case(run, self->text, JINJA_CAPITALIZE);
}

static struct jinja_value strip(struct jinja_run *run, const struct jinja_value *self,
                                const struct jinja_arguments *arguments) {
    return jinja_text_strip(run, self->text, jinja_text_argument(run, arguments, 0, NULL), true, true);
}

static struct jinja_value strip_left(struct jinja_run *run, const struct jinja_value *self,
                                     const struct jinja_arguments *arguments) {
    return jinja_text_strip(run, self->text, jinja_text_argument(run, arguments, 0, NULL), true, false);
}

static struct jinja_value strip_right(struct jinja_run *run, const struct jinja_value *self,
                                      const struct jinja_arguments *arguments) {
    return jinja_text_strip(run, self->text, jinja_text_argument(run, arguments, 0, NULL), false, true);
}

static struct jinja_value split(struct jinja_run *run, const struct jinja_value *self,
                                const struct jinja_arguments *arguments) {
    return jinja_text_split(run, self->text, jinja_text_argument(run, arguments, 0, "sep"),
                            jinja_integer_argument(run, arguments, 1, "maxsplit", -1), false);
}

static struct jinja_value split_right(struct jinja_run *run, const struct jinja_value *self,
                                      const struct jinja_arguments *arguments) {
    return jinja_text_split(run, self->text, jinja_text_argument(run, arguments, 0, "sep"),
                            jinja_integer_argument(run, arguments, 1, "maxsplit", -1), true);
}

static struct jinja_value split_lines(struct jinja_run *run, const struct jinja_value *self,
                                      const struct jinja_arguments *arguments) {
    return jinja_text_lines(run, self->text, jinja_bool_argument(arguments, 0, "keepends", false));
}

static struct jinja_value replace(struct jinja_run *run, const struct jinja_value *self,
                                  const struct jinja_arguments *arguments) {
    const struct jinja_text *old = jinja_text_argument(run, arguments, 0, "old");
    const struct jinja_text *new_text = jinja_text_argument(run, arguments, 1, "new");
    if (old == NULL || new_text == NULL)
        return jinja_fail(run, STATUS_UNSUPPORTED, "replace needs two texts");
    return jinja_text_replace(run, self->text, old, new_text,
                              jinja_integer_argument(run, arguments, 2, "count", -1));
}

static bool begins(const struct jinja_text *text, const struct jinja_value *part) {
    return part->kind == JINJA_TEXT && part->text->length <= text->length &&
           memcmp(text->bytes, part->text->bytes, part->text->length) == 0;
}

static bool ends(const struct jinja_text *text, const struct jinja_value *part) {
    return part->kind == JINJA_TEXT && part->text->length <= text->length &&
           memcmp(text->bytes + text->length - part->text->length, part->text->bytes, part->text->length) ==
               0;
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

static struct jinja_value starts_with(struct jinja_run *run, const struct jinja_value *self,
                                      const struct jinja_arguments *arguments) {
    return with_any(run, self, arguments, begins);
}

static struct jinja_value ends_with(struct jinja_run *run, const struct jinja_value *self,
                                    const struct jinja_arguments *arguments) {
    return with_any(run, self, arguments, ends);
}

static struct jinja_value remove_prefix(struct jinja_run *run, const struct jinja_value *self,
                                        const struct jinja_arguments *arguments) {
    const struct jinja_value *part = jinja_argument(arguments, 0, NULL);
    const bool has = part != NULL && begins(self->text, part);
    return jinja_text_cut(run, self->text, has ? part->text->length : 0, self->text->length);
}

static struct jinja_value remove_suffix(struct jinja_run *run, const struct jinja_value *self,
                                        const struct jinja_arguments *arguments) {
    const struct jinja_value *part = jinja_argument(arguments, 0, NULL);
    const bool has = part != NULL && ends(self->text, part);
    return jinja_text_cut(run, self->text, 0, self->text->length - (has ? part->text->length : 0));
}

static struct jinja_value find(struct jinja_run *run, const struct jinja_value *self,
                               const struct jinja_arguments *arguments) {
    const struct jinja_text *part = jinja_text_argument(run, arguments, 0, NULL);
    if (part == NULL) return jinja_fail(run, STATUS_UNSUPPORTED, "find needs a text");
    const size_t at = jinja_text_find(run, self->text, part, 0);
    if (at == SIZE_MAX) return jinja_integer(-1);
    const struct jinja_text before = {.bytes = self->text->bytes, .length = at};
    return jinja_integer((int64_t)jinja_text_characters(&before));
}

static struct jinja_value count(struct jinja_run *run, const struct jinja_value *self,
                                const struct jinja_arguments *arguments) {
    const struct jinja_text *part = jinja_text_argument(run, arguments, 0, NULL);
    if (part == NULL || part->length == 0) return jinja_fail(run, STATUS_UNSUPPORTED, "count needs a text");
    int64_t found = 0;
    for (size_t at = 0; (at = jinja_text_find(run, self->text, part, at)) != SIZE_MAX; at += part->length)
        found++;
    return jinja_integer(found);
}

static struct jinja_value join(struct jinja_run *run, const struct jinja_value *self,
                               const struct jinja_arguments *arguments) {
    struct jinja_builder builder = {.run = run};
    const struct jinja_value *parts = jinja_argument(arguments, 0, NULL);
    const struct jinja_list *list = parts != NULL ? jinja_items(run, parts) : NULL;
    for (size_t i = 0; list != NULL && i < list->count && jinja_charge(run, 1); i++) {
        if (list->items[i].kind != JINJA_TEXT)
            return jinja_fail(run, STATUS_UNSUPPORTED, "join of what is no text");
        if (i > 0) jinja_print(&builder, self);
        jinja_print(&builder, &list->items[i]);
    }
    return jinja_built(&builder);
}

static struct jinja_value is_digit(struct jinja_run *run, const struct jinja_value *self,
                                   const struct jinja_arguments *arguments) {
    bool is_all = self->text->length > 0;
    (void)arguments;
    if (!jinja_charge_bytes(run, self->text->length)) return jinja_undefined(NULL);
    for (size_t i = 0; i < self->text->length; i++)
        is_all = is_all && self->text->bytes[i] >= '0' && self->text->bytes[i] <= '9';
    return jinja_bool(is_all);
}

static struct jinja_value is_space(struct jinja_run *run, const struct jinja_value *self,
                                   const struct jinja_arguments *arguments) {
    (void)arguments;
    const struct jinja_value rest = jinja_text_strip(run, self->text, NULL, true, true);
    return jinja_bool(self->text->length > 0 && !jinja_is_true(&rest));
}

/* ---- dictionaries ---- */

static struct jinja_value items(struct jinja_run *run, const struct jinja_value *self,
                                const struct jinja_arguments *arguments) {
    (void)arguments;
    return jinja_map_pairs(run, self->map);
}

static struct jinja_value column(struct jinja_run *run, const struct jinja_map *map, bool of_keys) {
    struct jinja_value list = jinja_list(run, false);
    for (size_t i = 0; i < map->count && !jinja_failed(run); i++)
        jinja_list_add(run, list.list, of_keys ? map->entries[i].key : map->entries[i].value);
    return list;
}

static struct jinja_value keys(struct jinja_run *run, const struct jinja_value *self,
                               const struct jinja_arguments *arguments) {
    (void)arguments;
    return column(run, self->map, true);
}

static struct jinja_value values(struct jinja_run *run, const struct jinja_value *self,
                                 const struct jinja_arguments *arguments) {
    (void)arguments;
    return column(run, self->map, false);
}

static struct jinja_value get(struct jinja_run *run, const struct jinja_value *self,
                              const struct jinja_arguments *arguments) {
    const struct jinja_value *key = jinja_argument(arguments, 0, NULL);
    const struct jinja_value *otherwise = jinja_argument(arguments, 1, "default");
    if (key == NULL) return jinja_fail(run, STATUS_UNSUPPORTED, "get needs a key");
    const struct jinja_value *found = jinja_map_find(run, self->map, key);
    return found != NULL ? *found : otherwise != NULL ? *otherwise : jinja_none();
}

/* ---- lists ---- */

static struct jinja_value index_of(struct jinja_run *run, const struct jinja_value *self,
                                   const struct jinja_arguments *arguments) {
    const struct jinja_value *wanted = jinja_argument(arguments, 0, NULL);
    for (size_t i = 0; wanted != NULL && i < self->list->count && !jinja_failed(run); i++)
        if (jinja_equal(run, &self->list->items[i], wanted)) return jinja_integer((int64_t)i);
    return jinja_fail(run, STATUS_UNSUPPORTED, "index: it is not in the list");
}

/* transformers' templates run in a sandbox in which lists do not change. */
static const struct {
    enum jinja_kind kind;
    const char *name;
    method_call *call;
} methods[] = {
    {JINJA_TEXT, "strip", strip},
    {JINJA_TEXT, "lstrip", strip_left},
    {JINJA_TEXT, "rstrip", strip_right},
    {JINJA_TEXT, "split", split},
    {JINJA_TEXT, "rsplit", split_right},
    {JINJA_TEXT, "splitlines", split_lines},
    {JINJA_TEXT, "replace", replace},
    {JINJA_TEXT, "startswith", starts_with},
    {JINJA_TEXT, "endswith", ends_with},
    {JINJA_TEXT, "removeprefix", remove_prefix},
    {JINJA_TEXT, "removesuffix", remove_suffix},
    {JINJA_TEXT, "upper", upper},
    {JINJA_TEXT, "lower", lower},
    {JINJA_TEXT, "title", title},
    {JINJA_TEXT, "capitalize", capitalize},
    {JINJA_TEXT, "find", find},
    {JINJA_TEXT, "count", count},
    {JINJA_TEXT, "join", join},
    {JINJA_TEXT, "isdigit", is_digit},
    {JINJA_TEXT, "isspace", is_space},
    {JINJA_MAP, "items", items},
    {JINJA_MAP, "keys", keys},
    {JINJA_MAP, "values", values},
    {JINJA_MAP, "get", get},
    {JINJA_LIST, "index", index_of},
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
    if (arguments->count == 0)
        return jinja_fail(run, STATUS_UNSUPPORTED, "loop.%s needs a value", method->name);
    if (method->function == JINJA_CYCLE) return arguments->values[loop->index % arguments->count];
    const bool changed = !loop->has_changed || !jinja_equal(run, &loop->changed, &arguments->values[0]);
    loop->has_changed = true;
    loop->changed = arguments->values[0];
    return jinja_bool(changed);
}

struct jinja_value jinja_call_method(struct jinja_run *run, const struct jinja_method *method,
                                     const struct jinja_arguments *arguments) {
    if (jinja_failed(run) || !jinja_charge(run, 1)) return jinja_undefined(NULL);
    if (method->self.kind == JINJA_LOOP) return call_loop(run, method, arguments);
    return methods[find_method(&method->self, method->name)].call(run, &method->self, arguments);
}

/* objects: what several schemas together say about an object's keys and their values. */
#include "grammar/objects.h"

#include <string.h>

#include "base/checked.h"
#include "grammar/strings.h"

enum { KEY_PATTERNS_MAX = 8 };

/* patternProperties of all parts. */
struct key_patterns {
    struct {
        uint32_t part;
        const char *text;
        const json_t *schema;
        struct automaton *automaton; /* NULL: no key is like that */
    } items[KEY_PATTERNS_MAX];
    size_t count;
};

struct object_reader {
    const struct reader *reader;
    struct key_patterns patterns;
    struct automaton *names; /* propertyNames; NULL: any */
    bool has_names, is_closed;
    const json_t *listed_names; /* propertyNames: an enum; borrowed; NULL: none */
    json_t *required;           /* owned: names, each once */
    json_t *listed;             /* owned: names of properties, each once and in their order */
};

static enum status read_count(const struct reader *r, const char *keyword, bool is_least, uint32_t *count,
                              struct error *error) {
    for (uint32_t i = reader_find(r, 0, keyword); i < r->count; i = reader_find(r, i + 1, keyword)) {
        uint32_t here;
        TRY(count_read(r, keyword, reader_get(r, i, keyword), &here, error));
        *count = (uint32_t)(is_least ? max_size(*count, here) : min_size(*count, here));
    }
    return STATUS_OK;
}

/* ---- names ---- */

static enum status add_names(const struct reader *r, json_t *names, const json_t *list, const char *keyword,
                             struct error *error) {
    size_t i;
    json_t *item;
    if (!json_is_array(list))
        return builder_refuse(r->builder, r->place, error, "%s: expected a list of names", keyword);
    json_array_foreach(list, i, item) {
        const char *name = json_string_value(item);
        if (name == NULL || strlen(name) != json_string_length(item))
            return builder_refuse(r->builder, r->place, error, "%s: expected a list of names", keyword);
        if (json_object_set_new(names, name, json_true()) != 0) return builder_no_memory(error);
    }
    return STATUS_OK;
}

/* A part's properties, then those of the parts that it names, as one reads a schema. */
static enum status read_properties(struct object_reader *o, uint32_t part, struct error *error) {
    const struct reader *r = o->reader;
    const json_t *properties = reader_get(r, part, "properties");
    const char *name;
    json_t *value;
    if (properties != NULL && !json_is_object(properties))
        return builder_refuse(r->builder, r->place, error, "properties: expected an object");
    TRY(builder_work(r->builder, r->place, 32 * json_object_size(properties) * r->count, error));
    json_object_foreach((json_t *)properties, name, value) if (json_object_set_new(o->listed, name, json_true()) !=
                                                               0) return builder_no_memory(error);
    for (uint32_t i = part + 1; i < r->count; i++)
        if (r->parts[i].from == part) TRY(read_properties(o, i, error));
    return STATUS_OK;
}

static enum status read_listed(struct object_reader *o, struct error *error) {
    const struct reader *r = o->reader;
    const char *name;
    json_t *value;
    for (uint32_t i = 0; i < r->count; i++) {
        const json_t *required = reader_get(r, i, "required");
        if (required != NULL) TRY(add_names(r, o->required, required, "required", error));
        if (r->parts[i].from == i) TRY(read_properties(o, i, error));
    }
    if (o->listed_names != NULL) TRY(add_names(r, o->listed, o->listed_names, "propertyNames", error));
    json_object_foreach(o->required, name, value) if (json_object_set_new(o->listed, name, json_true()) !=
                                                      0) return builder_no_memory(error);
    return STATUS_OK;
}

/* The automaton of a key. */
static enum status key_automaton(const struct reader *r, struct text_rules *rules, struct automaton **automaton,
                                 struct error *error) {
    struct error reason;
    enum status status = STATUS_OK;
    if (rules->pattern_count == 0) status = text_rules_add_pattern(rules, "", 0, &reason);
    if (status == STATUS_OK)
        status = text_rules_compile(rules, &r->builder->schema->arena, automaton, &r->builder->work, &reason);
    if (status == STATUS_OK || status == STATUS_MEMORY) return status;
    return builder_refuse(r->builder, r->place, error, "keys: %s", reason.message);
}

static enum status read_names(struct object_reader *o, struct error *error) {
    struct reader names = {.builder = o->reader->builder, .place = o->reader->place};
    const struct reader *r = o->reader;
    for (uint32_t i = reader_find(r, 0, "propertyNames"); i < r->count; i = reader_find(r, i + 1, "propertyNames"))
        TRY(reader_add(&names, reader_get(r, i, "propertyNames"), names.count, error));
    if (names.count == 0) return STATUS_OK;
    TRY(reader_expand(&names, error));
    if (reader_find(&names, 0, "anyOf") < names.count || reader_find(&names, 0, "oneOf") < names.count ||
        reader_find(&names, 0, "const") < names.count)
        return builder_refuse(r->builder, r->place, error, "propertyNames: anyOf, oneOf and const are not supported");
    o->has_names = true;
    const uint32_t list = reader_find(&names, 0, "enum");
    if (list < names.count) {
        o->listed_names = reader_get(&names, list, "enum");
        o->is_closed = true;
        if (reader_find(&names, list + 1, "enum") < names.count)
            return builder_refuse(r->builder, r->place, error, "propertyNames: more than one enum is not supported");
    }
    struct text_rules rules = {.length_max = UINT32_MAX};
    enum status status = strings_read(&names, &rules, error);
    if (status == STATUS_OK) status = key_automaton(r, &rules, &o->names, error);
    text_rules_deinit(&rules);
    return status;
}

static enum status read_patterns(struct object_reader *o, struct error *error) {
    const struct reader *r = o->reader;
    struct error reason;
    const char *text;
    json_t *schema;
    for (uint32_t i = 0; i < r->count; i++)
        json_object_foreach((json_t *)reader_get(r, i, "patternProperties"), text, schema) {
            struct key_patterns *p = &o->patterns;
            if (p->count == KEY_PATTERNS_MAX)
                return builder_refuse(r->builder, r->place, error, "patternProperties: more than %d", KEY_PATTERNS_MAX);
            struct text_rules rules = {.length_max = UINT32_MAX};
            enum status status = text_rules_add_pattern(&rules, text, strlen(text), &reason);
            if (status != STATUS_OK)
                return builder_refuse(r->builder, r->place, error, "patternProperties: %s", reason.message);
            p->items[p->count].part = i;
            p->items[p->count].text = text;
            p->items[p->count].schema = schema;
            status = key_automaton(r, &rules, &p->items[p->count++].automaton, error);
            text_rules_deinit(&rules);
            TRY(status);
        }
    return STATUS_OK;
}

/* ---- values ---- */

/* What the value at a key must meet: of each part its property, the patterns that the key matches, or else
 * additionalProperties.  key NULL: one that is not listed, of pattern `only`; SIZE_MAX: of none. */
static enum status value_parts(const struct object_reader *o, const char *name, const struct literal *key, size_t only,
                               struct reader *value, struct error *error) {
    const struct reader *r = o->reader;
    *value = (struct reader){.builder = r->builder, .place = r->place};
    for (uint32_t i = 0; i < r->count; i++) {
        const json_t *own = name != NULL ? json_object_get(reader_get(r, i, "properties"), name) : NULL,
                     *rest = reader_get(r, i, "additionalProperties");
        bool is_known = own != NULL;
        if (own != NULL) TRY(reader_add(value, own, value->count, error));
        for (size_t p = 0; p < o->patterns.count; p++) {
            const struct automaton *pattern = o->patterns.items[p].automaton;
            const bool matches =
                key == NULL ? p == only : pattern != NULL && automaton_accepts(pattern, key->bytes, key->length);
            if (o->patterns.items[p].part != i || !matches) continue;
            TRY(reader_add(value, o->patterns.items[p].schema, value->count, error));
            is_known = true;
        }
        if (!is_known && rest != NULL) TRY(reader_add(value, rest, value->count, error));
    }
    return STATUS_OK;
}

static enum status value_place(const struct object_reader *o, const char *name, const struct literal *key, size_t only,
                               uint32_t *place, struct error *error) {
    struct reader value;
    TRY(value_parts(o, name, key, only, &value, error));
    const char *keyword = key != NULL ? "properties" : only != SIZE_MAX ? "patternProperties" : "additionalProperties";
    const struct site site = {.keyword = keyword, .name = name, .index = SIZE_MAX};
    return reader_place(o->reader, &value, site, place, error);
}

/* ---- forms ---- */

static enum status add_property(const struct object_reader *o, struct form *form, const char *name,
                                struct error *error) {
    const struct reader *r = o->reader;
    json_t *text = json_string(name);
    if (text == NULL) return builder_no_memory(error);
    struct literal *key = &form->literals.items[form->property_count];
    const enum status status = literal_of(&r->builder->schema->arena, text, key, error);
    json_decref(text);
    TRY(status);
    const bool is_required = json_object_get(o->required, name) != NULL;
    bool is_allowed = !o->has_names || (o->names != NULL && automaton_accepts(o->names, key->bytes, key->length));
    if (o->listed_names != NULL) {
        bool is_listed = false;
        for (size_t i = 0; i < json_array_size(o->listed_names) && !is_listed; i++)
            is_listed = strcmp(json_string_value(json_array_get(o->listed_names, i)), name) == 0;
        is_allowed = is_allowed && is_listed;
    }
    if (!is_allowed && is_required)
        return builder_refuse(r->builder, r->place, error, "required: \"%.80s\" is not allowed by propertyNames", name);
    if (!is_allowed) return STATUS_OK;
    uint32_t place; /* whose name outlives the list of this reader */
    const char *kept = arena_text(&r->builder->schema->arena, name, strlen(name));
    if (kept == NULL) return builder_no_memory(error);
    TRY(value_place(o, kept, key, SIZE_MAX, &place, error));
    key->index = form->property_count;
    form->properties[form->property_count++] = (struct property){place, is_required, key->length};
    return STATUS_OK;
}

static enum status add_properties(const struct object_reader *o, struct form *form, struct error *error) {
    const char *name;
    json_t *value;
    json_object_foreach(o->listed, name, value) TRY(add_property(o, form, name, error));
    /* Until here next_required is whether it is required. */
    form->properties[form->property_count].next_required = form->property_count;
    for (uint32_t i = form->property_count; i-- > 0;)
        form->properties[i].next_required =
            form->properties[i].next_required != 0 ? i : form->properties[i + 1].next_required;
    form->literals.count = form->property_count;
    literals_sort(&form->literals);
    return STATUS_OK;
}

/* What is required and what no schema has a place for. */
static enum status check_required(const struct object_reader *o, struct error *error) {
    const struct reader *r = o->reader;
    const char *name;
    json_t *ignored;
    json_object_foreach(
        o->required, name,
        ignored) for (uint32_t i = 0; i < r->count;
                      i++) if (json_is_false(reader_get(r, i, "additionalProperties")) && o->patterns.count == 0 &&
                               json_object_get(reader_get(r, i, "properties"), name) ==
                                   NULL) return builder_refuse(r->builder, r->place, error,
                                                               "required: \"%.80s\" is not in properties, "
                                                               "and additionalProperties is false",
                                                               name);
    return STATUS_OK;
}

static enum status read_form(struct object_reader *o, struct form *form, struct error *error) {
    const struct reader *r = o->reader;
    struct arena *arena = &r->builder->schema->arena;
    uint32_t most = UINT32_MAX;
    for (uint32_t i = reader_find(r, 0, "unevaluatedProperties"); i < r->count;
         i = reader_find(r, i + 1, "unevaluatedProperties")) {
        if (!json_is_boolean(reader_get(r, i, "unevaluatedProperties")))
            return builder_refuse(r->builder, r->place, error, "unevaluatedProperties: a schema is not supported");
        o->is_closed = o->is_closed || json_is_false(reader_get(r, i, "unevaluatedProperties"));
    }
    TRY(read_names(o, error));
    TRY(read_patterns(o, error));
    TRY(read_listed(o, error));
    TRY(check_required(o, error));
    TRY(read_count(r, "minProperties", true, &form->item_min, error));
    TRY(read_count(r, "maxProperties", false, &most, error));
    const size_t listed = json_object_size(o->listed), required = json_object_size(o->required);
    if (form->item_min > max_size(1, required))
        return builder_refuse(r->builder, r->place, error,
                              "minProperties: more than 1, and than those that are required, is not supported");
    form->item_max = most;
    if (listed == 0 && !o->is_closed) {
        form->kind = FORM_MAP;
        form->text = o->names;
        if (o->patterns.count > 1 || (o->patterns.count == 1 && o->has_names))
            return builder_refuse(r->builder, r->place, error,
                                  "patternProperties: several, or beside propertyNames, are not supported");
        if (o->patterns.count == 1) form->text = o->patterns.items[0].automaton;
        if (form->text == NULL && (o->has_names || o->patterns.count > 0)) form->item_max = 0; /* no key is like that */
        return value_place(o, NULL, NULL, o->patterns.count == 1 ? 0 : SIZE_MAX, &form->place, error);
    }
    form->kind = FORM_OBJECT;
    form->properties = arena_array(arena, listed + 1, sizeof *form->properties);
    form->literals.items = arena_array(arena, listed + 1, sizeof *form->literals.items);
    if (form->properties == NULL || form->literals.items == NULL) return builder_no_memory(error);
    TRY(add_properties(o, form, error));
    if (form->property_count > most)
        return builder_refuse(r->builder, r->place, error, "maxProperties: less than there are properties");
    if (required > 0) form->item_min = 0; /* they are there anyway */
    return STATUS_OK;
}

enum status object_read(const struct reader *r, struct form *form, struct error *error) {
    struct object_reader o = {.reader = r, .required = json_object(), .listed = json_object()};
    enum status status = o.required != NULL && o.listed != NULL ? read_form(&o, form, error) : builder_no_memory(error);
    json_decref(o.required);
    json_decref(o.listed);
    return status;
}

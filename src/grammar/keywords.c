/* keywords: reads one schema of a place: which keywords it has, which go together, what they allow. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "grammar/builder_internal.h"

enum {
    TYPE_OBJECT = 1,
    TYPE_ARRAY = 2,
    TYPE_STRING = 4,
    TYPE_NUMBER = 8,
    TYPE_INTEGER = 16,
    TYPE_BOOLEAN = 32,
    TYPE_NULL = 64,
    TYPE_ANY = 127 & ~TYPE_INTEGER,
};

static const struct {
    const char *name;
    unsigned type;
} types[] = {{"object", TYPE_OBJECT}, {"array", TYPE_ARRAY},     {"string", TYPE_STRING},
             {"number", TYPE_NUMBER}, {"integer", TYPE_INTEGER}, {"boolean", TYPE_BOOLEAN},
             {"null", TYPE_NULL}};

/* A schema has the keywords of one group; type goes with two of them. */
enum keyword_group {
    GROUP_ANNOTATION = 0,
    GROUP_REFERENCE = 1,
    GROUP_ANY_OF = 2,
    GROUP_VALUES = 4,
    GROUP_OBJECT = 8,
    GROUP_ARRAY = 16,
    GROUP_TYPE = 32,
};

static const struct {
    const char *name;
    enum keyword_group group;
} keywords[] = {
    {"$ref", GROUP_REFERENCE},
    {"anyOf", GROUP_ANY_OF},
    {"enum", GROUP_VALUES},
    {"const", GROUP_VALUES},
    {"type", GROUP_TYPE},
    {"properties", GROUP_OBJECT},
    {"required", GROUP_OBJECT},
    {"additionalProperties", GROUP_OBJECT},
    {"items", GROUP_ARRAY},
    {"minItems", GROUP_ARRAY},
    {"maxItems", GROUP_ARRAY},
    {"$defs", GROUP_ANNOTATION},
    {"definitions", GROUP_ANNOTATION},
    {"title", GROUP_ANNOTATION},
    {"description", GROUP_ANNOTATION},
    {"default", GROUP_ANNOTATION},
    {"examples", GROUP_ANNOTATION},
    {"$schema", GROUP_ANNOTATION},
    {"$comment", GROUP_ANNOTATION},
    {"deprecated", GROUP_ANNOTATION},
    {"readOnly", GROUP_ANNOTATION},
    {"writeOnly", GROUP_ANNOTATION},
};

struct reader {
    struct builder *builder;
    uint32_t place;
    const json_t *schema;
};

static enum status read_groups(const struct reader *r, unsigned *groups, struct error *error) {
    const char *key;
    json_t *value;
    *groups = 0;
    json_object_foreach((json_t *)r->schema, key, value) {
        size_t i = 0;
        const size_t count = sizeof keywords / sizeof keywords[0];
        while (i < count && strcmp(keywords[i].name, key) != 0) i++;
        if (i < count)
            *groups |= keywords[i].group;
        else if (strcmp(key, "$id") != 0 ||
                 r->schema != r->builder->root) /* elsewhere it moves what $ref names */
            return builder_refuse(r->builder, r->place, error, "\"%.80s\" is not supported", key);
    }
    const char *alone = *groups & GROUP_REFERENCE ? "$ref" : *groups & GROUP_ANY_OF ? "anyOf" : NULL;
    if (alone != NULL && (*groups & (*groups - 1)) != 0)
        return builder_refuse(r->builder, r->place, error, "%s beside other keywords is not supported",
                              alone);
    if (*groups & GROUP_VALUES && *groups & (GROUP_OBJECT | GROUP_ARRAY))
        return builder_refuse(r->builder, r->place, error,
                              "enum and const beside other keywords than type are not supported");
    return STATUS_OK;
}

static enum status add_type(const struct reader *r, const json_t *name, unsigned *found,
                            struct error *error) {
    const char *text = json_string_value(name);
    for (size_t i = 0; text != NULL && i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, text) != 0) continue;
        *found |= types[i].type;
        return STATUS_OK;
    }
    return builder_refuse(r->builder, r->place, error,
                          "type: %.40s: expected object, array, string, number, integer, boolean or null",
                          text != NULL ? text : "no string");
}

static enum status read_types(const struct reader *r, unsigned groups, unsigned *found, struct error *error) {
    const json_t *type = json_object_get(r->schema, "type");
    size_t i;
    json_t *item;
    *found = 0;
    if (type == NULL) {
        if (groups & GROUP_OBJECT) *found |= TYPE_OBJECT;
        if (groups & GROUP_ARRAY) *found |= TYPE_ARRAY;
        if (*found == 0) *found = TYPE_ANY;
        return STATUS_OK;
    }
    if (!json_is_array(type)) return add_type(r, type, found, error);
    json_array_foreach(type, i, item) TRY(add_type(r, item, found, error));
    if (*found == 0) return builder_refuse(r->builder, r->place, error, "type: the list is empty");
    return STATUS_OK;
}

static enum status add_form(const struct reader *r, const struct form *form, struct error *error) {
    uint32_t index;
    TRY(builder_form(r->builder, form, &index, error));
    return builder_entry(r->builder, r->place, index, error);
}

static enum status sub_place(const struct reader *r, const json_t *value, const char *keyword,
                             const char *name, size_t index, uint32_t *place, struct error *error) {
    const struct site site = {
        .value = value, .parent = r->place, .keyword = keyword, .name = name, .index = index};
    return builder_place(r->builder, &site, place, error);
}

/* ---- enum, const, boolean, null ---- */

static bool has_type(const json_t *value, unsigned allowed) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return (allowed & TYPE_OBJECT) != 0;
    case JSON_ARRAY: return (allowed & TYPE_ARRAY) != 0;
    case JSON_STRING: return (allowed & TYPE_STRING) != 0;
    case JSON_INTEGER: return (allowed & (TYPE_INTEGER | TYPE_NUMBER)) != 0;
    case JSON_REAL: {
        const double number = json_real_value(value);
        return (allowed & TYPE_NUMBER) != 0 || ((allowed & TYPE_INTEGER) != 0 && number == floor(number));
    }
    case JSON_TRUE:
    case JSON_FALSE: return (allowed & TYPE_BOOLEAN) != 0;
    case JSON_NULL: return (allowed & TYPE_NULL) != 0;
    }
    return false;
}

/* values[count] as one form; none is none. */
static enum status add_literals(const struct reader *r, const json_t *const *values, size_t count,
                                struct error *error) {
    struct arena *arena = &r->builder->schema->arena;
    struct form form = {.kind = FORM_LITERALS};
    if (count == 0) return STATUS_OK;
    form.literals.items = arena_array(arena, count, sizeof *form.literals.items);
    if (form.literals.items == NULL) return builder_no_memory(error);
    for (size_t i = 0; i < count; i++) {
        TRY(literal_of(arena, values[i], &form.literals.items[i], error));
        form.height = (uint32_t)max_size(form.height, json_height(values[i]));
    }
    form.literals.count = (uint32_t)count;
    literals_sort(&form.literals);
    return add_form(r, &form, error);
}

static enum status read_values(const struct reader *r, unsigned allowed, struct error *error) {
    const json_t *list = json_object_get(r->schema, "enum"), *only = json_object_get(r->schema, "const");
    if (list != NULL && !json_is_array(list))
        return builder_refuse(r->builder, r->place, error, "enum: expected a list");
    const size_t listed = list != NULL ? json_array_size(list) : 1;
    const json_t **values = arena_array(&r->builder->schema->arena, listed + 1, sizeof(json_t *));
    size_t count = 0;
    if (values == NULL) return builder_no_memory(error);
    for (size_t i = 0; i < listed; i++) {
        const json_t *value = list != NULL ? json_array_get(list, i) : only;
        if (has_type(value, allowed) && (only == NULL || json_equal(value, only))) values[count++] = value;
    }
    return add_literals(r, values, count, error);
}

/* ---- object ---- */

/* additionalProperties: *rest is the place of what is not in properties, NOTHING where that is refused. */
static enum status read_additional(const struct reader *r, uint32_t *rest, struct error *error) {
    const json_t *additional = json_object_get(r->schema, "additionalProperties");
    *rest = r->builder->any;
    if (additional == NULL || json_is_true(additional)) return STATUS_OK;
    *rest = NOTHING;
    if (json_is_false(additional)) return STATUS_OK;
    if (json_object_size(json_object_get(r->schema, "properties")) > 0)
        return builder_refuse(r->builder, r->place, error,
                              "additionalProperties: a schema beside properties is not supported");
    return sub_place(r, additional, "additionalProperties", NULL, SIZE_MAX, rest, error);
}

/* The required names as keys of *names, each once and in their order. */
static enum status read_required(const struct reader *r, json_t **names, struct error *error) {
    const json_t *required = json_object_get(r->schema, "required");
    size_t i;
    json_t *item;
    *names = json_object();
    if (*names == NULL) return builder_no_memory(error);
    if (required != NULL && !json_is_array(required))
        return builder_refuse(r->builder, r->place, error, "required: expected a list of names");
    json_array_foreach(required, i, item) {
        const char *name = json_string_value(item);
        if (name == NULL || strlen(name) != json_string_length(item))
            return builder_refuse(r->builder, r->place, error, "required: expected a list of names");
        if (json_object_set_new(*names, name, json_true()) != 0) return builder_no_memory(error);
    }
    return STATUS_OK;
}

static enum status add_property(const struct reader *r, struct form *form, const char *name, uint32_t place,
                                bool is_required, struct error *error) {
    json_t *text = json_string(name);
    if (text == NULL) return builder_no_memory(error);
    struct literal *key = &form->literals.items[form->property_count];
    enum status status = literal_of(&r->builder->schema->arena, text, key, error);
    json_decref(text);
    TRY(status);
    key->index = form->property_count;
    form->properties[form->property_count++] = (struct property){place, is_required, key->length};
    return STATUS_OK;
}

/* The listed ones, then what is required and not listed. */
static enum status add_properties(const struct reader *r, struct form *form, json_t *required, uint32_t rest,
                                  struct error *error) {
    json_t *properties = json_object_get(r->schema, "properties"), *value;
    const char *name;
    uint32_t place;
    json_object_foreach(properties, name, value) {
        TRY(sub_place(r, value, "properties", name, 0, &place, error));
        TRY(add_property(r, form, name, place, json_object_get(required, name) != NULL, error));
    }
    json_object_foreach(required, name, value) {
        if (json_object_get(properties, name) != NULL) continue;
        if (rest == NOTHING)
            return builder_refuse(
                r->builder, r->place, error,
                "required: \"%.80s\" is not in properties, and additionalProperties is false", name);
        TRY(add_property(r, form, name, rest, true, error));
    }
    /* Until here next_required is whether it is required. */
    form->properties[form->property_count].next_required = form->property_count;
    for (uint32_t i = form->property_count; i-- > 0;)
        form->properties[i].next_required =
            form->properties[i].next_required != 0 ? i : form->properties[i + 1].next_required;
    form->literals.count = form->property_count;
    literals_sort(&form->literals);
    return STATUS_OK;
}

static enum status read_object_with(const struct reader *r, json_t *required, struct error *error) {
    const json_t *properties = json_object_get(r->schema, "properties");
    struct arena *arena = &r->builder->schema->arena;
    uint32_t rest;
    if (properties != NULL && !json_is_object(properties))
        return builder_refuse(r->builder, r->place, error, "properties: expected an object");
    TRY(read_additional(r, &rest, error));
    const size_t count_max = json_object_size(properties) + json_object_size(required);
    if (count_max == 0 && rest != NOTHING)
        return add_form(r, &(struct form){.kind = FORM_MAP, .place = rest}, error);
    struct form form = {.kind = FORM_OBJECT};
    form.properties = arena_array(arena, count_max + 1, sizeof *form.properties);
    form.literals.items = arena_array(arena, count_max + 1, sizeof *form.literals.items);
    if (form.properties == NULL || form.literals.items == NULL) return builder_no_memory(error);
    TRY(add_properties(r, &form, required, rest, error));
    return add_form(r, &form, error);
}

static enum status read_object(const struct reader *r, struct error *error) {
    json_t *required;
    enum status status = read_required(r, &required, error);
    if (status == STATUS_OK) status = read_object_with(r, required, error);
    json_decref(required);
    return status;
}

/* ---- array ---- */

static enum status read_count(const struct reader *r, const char *keyword, uint32_t otherwise,
                              uint32_t *count, struct error *error) {
    const json_t *value = json_object_get(r->schema, keyword);
    *count = otherwise;
    if (value == NULL) return STATUS_OK;
    const json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || number > INT32_MAX)
        return builder_refuse(r->builder, r->place, error, "%s: expected a whole number from 0 to %d",
                              keyword, INT32_MAX);
    *count = (uint32_t)number;
    return STATUS_OK;
}

static enum status read_array(const struct reader *r, struct error *error) {
    const json_t *items = json_object_get(r->schema, "items");
    struct form form = {.kind = FORM_ARRAY, .place = r->builder->any};
    if (json_is_array(items))
        return builder_refuse(r->builder, r->place, error, "items: a list of schemas is not supported");
    if (items != NULL) TRY(sub_place(r, items, "items", NULL, SIZE_MAX, &form.place, error));
    TRY(read_count(r, "minItems", 0, &form.item_min, error));
    TRY(read_count(r, "maxItems", UINT32_MAX, &form.item_max, error));
    if (form.item_min > form.item_max)
        return builder_refuse(r->builder, r->place, error, "minItems %u is above maxItems %u", form.item_min,
                              form.item_max);
    return add_form(r, &form, error);
}

/* ---- one schema ---- */

static enum status add_any_of(const struct reader *r, struct error *error) {
    const json_t *list = json_object_get(r->schema, "anyOf");
    size_t i;
    json_t *item;
    if (json_array_size(list) == 0)
        return builder_refuse(r->builder, r->place, error, "anyOf: expected a list of schemas");
    json_array_foreach(list, i, item) {
        uint32_t place;
        TRY(sub_place(r, item, "anyOf", NULL, i, &place, error));
        TRY(builder_entry(r->builder, r->place, place | ENTRY_IS_PLACE, error));
    }
    return STATUS_OK;
}

static enum status add_scalars(const struct reader *r, unsigned allowed, struct error *error) {
    const json_t *values[3];
    size_t count = 0;
    if (allowed & TYPE_STRING) TRY(add_form(r, &(struct form){.kind = FORM_STRING}, error));
    if (allowed & TYPE_NUMBER)
        TRY(add_form(r, &(struct form){.kind = FORM_NUMBER}, error));
    else if (allowed & TYPE_INTEGER)
        TRY(add_form(r, &(struct form){.kind = FORM_INTEGER}, error));
    if (allowed & TYPE_BOOLEAN) {
        values[count++] = json_true();
        values[count++] = json_false();
    }
    if (allowed & TYPE_NULL) values[count++] = json_null();
    return add_literals(r, values, count, error);
}

/* What any value may be; it needs no schema. */
static enum status add_any(const struct reader *r, struct error *error) {
    TRY(add_form(r, &(struct form){.kind = FORM_MAP, .place = r->builder->any}, error));
    TRY(add_form(r, &(struct form){.kind = FORM_ARRAY, .place = r->builder->any, .item_max = UINT32_MAX},
                 error));
    return add_scalars(r, TYPE_ANY, error);
}

enum status builder_read(struct builder *builder, uint32_t place, struct error *error) {
    const struct reader r = {builder, place, builder->sites[place].value};
    unsigned groups, allowed;
    if (r.schema == NULL) return add_any(&r, error); /* builder.any itself */
    if (json_is_true(r.schema)) return builder_entry(builder, place, builder->any | ENTRY_IS_PLACE, error);
    if (json_is_false(r.schema)) return STATUS_OK;
    if (!json_is_object(r.schema))
        return builder_refuse(builder, place, error, "expected a schema: an object, true or false");
    TRY(read_groups(&r, &groups, error));
    if (groups & GROUP_REFERENCE) {
        uint32_t target;
        TRY(builder_reference(builder, place, json_object_get(r.schema, "$ref"), &target, error));
        return builder_entry(builder, place, target | ENTRY_IS_PLACE, error);
    }
    if (groups & GROUP_ANY_OF) return add_any_of(&r, error);
    TRY(read_types(&r, groups, &allowed, error));
    if (groups & GROUP_VALUES) return read_values(&r, groups & GROUP_TYPE ? allowed : TYPE_ANY, error);
    if (groups == 0) return builder_entry(builder, place, builder->any | ENTRY_IS_PLACE, error);
    if (allowed & TYPE_OBJECT) TRY(read_object(&r, error));
    if (allowed & TYPE_ARRAY) TRY(read_array(&r, error));
    return add_scalars(&r, allowed, error);
}

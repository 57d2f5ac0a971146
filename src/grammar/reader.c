/* reader: which keywords there are, and what belongs together. */
#include "grammar/reader.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned type;
} types[] = {{"object", TYPE_OBJECT},   {"array", TYPE_ARRAY},     {"string", TYPE_STRING}, {"number", TYPE_NUMBER},
             {"integer", TYPE_INTEGER}, {"boolean", TYPE_BOOLEAN}, {"null", TYPE_NULL}};

/* type: of what the keyword speaks; 0: of anything, or of nothing (annotations). */
static const struct {
    const char *name;
    unsigned type;
} keywords[] = {
    {"$ref", 0},
    {"allOf", 0},
    {"anyOf", 0},
    {"oneOf", 0},
    {"not", 0},
    {"enum", 0},
    {"const", 0},
    {"type", 0},
    {"properties", TYPE_OBJECT},
    {"required", TYPE_OBJECT},
    {"additionalProperties", TYPE_OBJECT},
    {"unevaluatedProperties", TYPE_OBJECT},
    {"patternProperties", TYPE_OBJECT},
    {"propertyNames", TYPE_OBJECT},
    {"minProperties", TYPE_OBJECT},
    {"maxProperties", TYPE_OBJECT},
    {"items", TYPE_ARRAY},
    {"prefixItems", TYPE_ARRAY},
    {"additionalItems", TYPE_ARRAY},
    {"minItems", TYPE_ARRAY},
    {"maxItems", TYPE_ARRAY},
    {"uniqueItems", TYPE_ARRAY},
    {"minLength", TYPE_STRING},
    {"maxLength", TYPE_STRING},
    {"pattern", TYPE_STRING},
    {"format", 0}, /* of strings and of numbers */
    {"minimum", TYPE_NUMBER},
    {"maximum", TYPE_NUMBER},
    {"exclusiveMinimum", TYPE_NUMBER},
    {"exclusiveMaximum", TYPE_NUMBER},
    {"multipleOf", TYPE_NUMBER},
    {"$defs", 0},
    {"definitions", 0},
    {"title", 0},
    {"description", 0},
    {"default", 0},
    {"example", 0},
    {"examples", 0},
    {"$schema", 0},
    {"$comment", 0},
    {"$anchor", 0}, /* a $ref to it is refused */
    {"id", 0},
    {"deprecated", 0},
    {"readOnly", 0},
    {"writeOnly", 0},
    {"nullable", 0},
    {"discriminator", 0},
    {"propertyOrdering", 0},
    {"contentEncoding", 0},
    {"contentMediaType", 0},
    {"externalDocs", 0},
    {"xml", 0},
    {"enumNames", 0},
    {"markdownDescription", 0},
};
enum { KEYWORD_COUNT = sizeof keywords / sizeof keywords[0], ANNOTATIONS_BEGIN = 31 };

static size_t keyword_find(const char *name) {
    size_t i = 0;
    while (i < KEYWORD_COUNT && strcmp(keywords[i].name, name) != 0) i++;
    return i;
}

/* ---- parts ---- */

const json_t *reader_get(const struct reader *r, uint32_t part, const char *keyword) {
    return json_object_get(r->parts[part].value, keyword);
}

uint32_t reader_find(const struct reader *r, uint32_t from, const char *keyword) {
    while (from < r->count && reader_get(r, from, keyword) == NULL) from++;
    return from;
}

/* Whether part `to` named part `from`, or one that named it. */
static bool comes_from(const struct reader *r, uint32_t from, uint32_t to) {
    while (from != to && r->parts[from].from < from) from = r->parts[from].from;
    return from == to;
}

enum status reader_add(struct reader *r, const json_t *value, uint32_t from, struct error *error) {
    if (json_is_true(value)) return STATUS_OK;
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->parts[i].value != value) continue;
        /* An alternative that is what it is an alternative of adds nothing to the others. */
        if ((r->parts[i].decided & (PART_ANY_OF | PART_ONE_OF)) != 0 && from < r->count && comes_from(r, from, i))
            r->is_impossible = true;
        return STATUS_OK;
    }
    if (r->count == PARTS_MAX)
        return builder_refuse(r->builder, r->place, error, "more than %d schemas at once", PARTS_MAX);
    r->parts[r->count] = (struct part){value, 0, from};
    r->count++;
    return STATUS_OK;
}

enum status reader_place(const struct reader *r, const struct reader *value, struct site site, uint32_t *place,
                         struct error *error) {
    site.parent = r->place;
    return builder_place(r->builder, &site, value->parts, value->count, place, error);
}

static enum status check_keywords(const struct reader *r, const json_t *schema, struct error *error) {
    const char *key;
    json_t *value;
    TRY(builder_work(r->builder, r->place, 16 * json_object_size(schema), error));
    json_object_foreach((json_t *)schema, key, value) {
        if (keyword_find(key) < KEYWORD_COUNT || strncmp(key, "x-", 2) == 0) continue;
        if (strcmp(key, "$id") == 0 && schema == r->builder->root) continue; /* elsewhere it moves what $ref names */
        return builder_refuse(r->builder, r->place, error, "\"%.80s\" is not supported", key);
    }
    return STATUS_OK;
}

/* {"not": {}} is what nothing meets. */
static enum status read_not(struct reader *r, const json_t *value, struct error *error) {
    if (!json_is_true(value) && !(json_is_object(value) && json_object_size(value) == 0))
        return builder_refuse(r->builder, r->place, error, "\"not\" is not supported");
    r->is_impossible = true;
    return STATUS_OK;
}

enum status reader_expand(struct reader *r, struct error *error) {
    size_t index;
    json_t *item;
    for (uint32_t i = 0; i < r->count; i++) { /* the list grows */
        const json_t *schema = r->parts[i].value, *target;
        if (json_is_false(schema)) r->is_impossible = true;
        if (json_is_boolean(schema)) continue;
        if (!json_is_object(schema))
            return builder_refuse(r->builder, r->place, error, "expected a schema: an object, true or false");
        TRY(check_keywords(r, schema, error));
        const json_t *all = json_object_get(schema, "allOf"), *reference = json_object_get(schema, "$ref"),
                     *not = json_object_get(schema, "not");
        if (not != NULL) TRY(read_not(r, not, error));
        if ((r->parts[i].decided & PART_EXPANDED) != 0) continue;
        r->parts[i].decided |= PART_EXPANDED;
        if (reference != NULL) {
            TRY(builder_reference(r->builder, r->place, reference, &target, error));
            TRY(reader_add(r, target, i, error));
        }
        if (all != NULL && json_array_size(all) == 0)
            return builder_refuse(r->builder, r->place, error, "allOf: expected a list of schemas");
        json_array_foreach(all, index, item) TRY(reader_add(r, item, i, error));
    }
    return STATUS_OK;
}

bool reader_is_silent(const struct reader *r, uint32_t part) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)r->parts[part].value, key, value) {
        const size_t index = keyword_find(key);
        if (index >= 4 && index < ANNOTATIONS_BEGIN) return false; /* the first ones name parts */
    }
    return true;
}

/* One schema that has the keyword, and beside it annotations. */
static bool is_alone(const struct reader *r, const char *keyword) {
    const char *key;
    json_t *value;
    if (r->count != 1 || reader_get(r, 0, keyword) == NULL) return false;
    json_object_foreach((json_t *)r->parts[0].value, key, value) {
        const size_t index = keyword_find(key);
        if (index < ANNOTATIONS_BEGIN && strcmp(key, keyword) != 0) return false;
    }
    return true;
}

enum status reader_refer(const struct reader *r, bool *is_reference, struct error *error) {
    *is_reference = is_alone(r, "$ref");
    if (!*is_reference) return STATUS_OK;
    const json_t *reference = reader_get(r, 0, "$ref"), *target;
    TRY(check_keywords(r, r->parts[0].value, error));
    TRY(builder_reference(r->builder, r->place, reference, &target, error));
    const struct site site = {.parent = NOTHING, .keyword = json_string_value(reference), .index = SIZE_MAX};
    const struct part part = {target, 0, 0};
    uint32_t place;
    TRY(builder_place(r->builder, &site, &part, 1, &place, error));
    return builder_entry(r->builder, r->place, place | ENTRY_IS_PLACE, error);
}

/* ---- types ---- */

static enum status add_type(const struct reader *r, const json_t *name, unsigned *found, struct error *error) {
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

enum status reader_types(const struct reader *r, unsigned *found, struct error *error) {
    size_t index;
    json_t *item;
    *found = TYPE_ANY;
    for (uint32_t i = reader_find(r, 0, "type"); i < r->count; i = reader_find(r, i + 1, "type")) {
        const json_t *type = reader_get(r, i, "type");
        unsigned here = 0;
        if (!json_is_array(type)) TRY(add_type(r, type, &here, error));
        json_array_foreach(type, index, item) TRY(add_type(r, item, &here, error));
        if (here == 0) return builder_refuse(r->builder, r->place, error, "type: the list is empty");
        *found &= here;
    }
    return STATUS_OK;
}

unsigned reader_written(const struct reader *r, unsigned named) {
    unsigned spoken = 0;
    const char *key;
    json_t *value;
    if (reader_find(r, 0, "type") < r->count) return named;
    for (uint32_t i = 0; i < r->count; i++) json_object_foreach((json_t *)r->parts[i].value, key, value) {
            const size_t keyword = keyword_find(key);
            if (keyword < KEYWORD_COUNT) spoken |= keywords[keyword].type;
            if (strcmp(key, "format") == 0) spoken |= TYPE_STRING;
        }
    return spoken != 0 ? spoken : TYPE_ANY;
}

bool reader_has_type(const json_t *value, unsigned allowed) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return (allowed & TYPE_OBJECT) != 0;
    case JSON_ARRAY: return (allowed & TYPE_ARRAY) != 0;
    case JSON_STRING: return (allowed & TYPE_STRING) != 0;
    case JSON_INTEGER: return (allowed & TYPE_INTEGER) != 0;
    case JSON_REAL: {
        const double number = json_real_value(value);
        return (allowed & (number == floor(number) ? TYPE_NUMBER : TYPE_FRACTION)) != 0;
    }
    case JSON_TRUE:
    case JSON_FALSE: return (allowed & TYPE_BOOLEAN) != 0;
    case JSON_NULL: return (allowed & TYPE_NULL) != 0;
    }
    return false;
}

/* ---- alternatives ---- */

enum { APART_DEPTH_MAX = 3 };

static bool is_equal(const json_t *a, const json_t *b) {
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

static bool has_equal(const json_t *list, const json_t *value) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (is_equal(json_array_get(list, i), value)) return true;
    return false;
}

/* By enum or const both name their values, and none is the same. */
static bool values_are_apart(const struct reader *a, const struct reader *b) {
    const uint32_t a_list = reader_find(a, 0, "enum"), a_only = reader_find(a, 0, "const"),
                   b_list = reader_find(b, 0, "enum"), b_only = reader_find(b, 0, "const");
    const json_t *list = b_list < b->count ? reader_get(b, b_list, "enum") : NULL,
                 *only = b_only < b->count ? reader_get(b, b_only, "const") : NULL;
    if (list == NULL && only == NULL) return false;
    if (a_only < a->count) {
        const json_t *value = reader_get(a, a_only, "const");
        return only != NULL ? !is_equal(value, only) : !has_equal(list, value);
    }
    if (a_list == a->count) return false;
    const json_t *mine = reader_get(a, a_list, "enum");
    if (only != NULL) return !has_equal(mine, only);
    for (size_t i = 0; i < json_array_size(mine); i++)
        if (has_equal(list, json_array_get(mine, i))) return false;
    return true;
}

static bool requires(const struct reader *r, const char *name) {
    for (uint32_t i = reader_find(r, 0, "required"); i < r->count; i = reader_find(r, i + 1, "required")) {
        const json_t *list = reader_get(r, i, "required");
        for (size_t n = 0; n < json_array_size(list); n++) {
            const char *text = json_string_value(json_array_get(list, n));
            if (text != NULL && strcmp(text, name) == 0) return true;
        }
    }
    return false;
}

static const json_t *property_of(const struct reader *r, const char *name) {
    for (uint32_t i = 0; i < r->count; i++) {
        const json_t *value = json_object_get(reader_get(r, i, "properties"), name);
        if (value != NULL) return value;
    }
    return NULL;
}

static bool forbids(const struct reader *r, const char *name) {
    for (uint32_t i = 0; i < r->count; i++)
        if (json_is_false(reader_get(r, i, "additionalProperties")) &&
            json_object_get(reader_get(r, i, "properties"), name) == NULL &&
            reader_get(r, i, "patternProperties") == NULL)
            return true;
    return false;
}

static bool reader_of(struct reader *r, struct builder *builder, uint32_t place, const json_t *value) {
    struct error ignored;
    *r = (struct reader){.builder = builder, .place = place};
    return reader_add(r, value, 0, &ignored) == STATUS_OK && reader_expand(r, &ignored) == STATUS_OK;
}

static bool are_apart(struct builder *builder, uint32_t place, const json_t *a, const json_t *b, size_t depth);

/* An object that meets one has a name, or at it a value, that the other does not allow. */
static bool objects_are_apart(const struct reader *a, const struct reader *b, size_t depth, bool only_optional,
                              const char **name) {
    const char *key;
    json_t *value;
    for (uint32_t i = 0; i < a->count; i++) json_object_foreach((json_t *)reader_get(a, i, "properties"), key, value) {
            const bool is_required = requires(a, key) || requires(b, key);
            const json_t *other = property_of(b, key);
            if (only_optional && other == NULL) continue;
            *name = key;
            if (!only_optional && requires(a, key) && forbids(b, key)) return true;
            if ((is_required || only_optional) && other != NULL &&
                are_apart(a->builder, a->place, value, other, depth + 1))
                return true;
        }
    return false;
}

/* No value that is written for one meets the other. */
static bool are_apart(struct builder *builder, uint32_t place, const json_t *left, const json_t *right, size_t depth) {
    struct reader a, b;
    struct error ignored;
    unsigned of_a, of_b;
    const char *name;
    if (depth > APART_DEPTH_MAX || !reader_of(&a, builder, place, left) || !reader_of(&b, builder, place, right) ||
        reader_types(&a, &of_a, &ignored) != STATUS_OK || reader_types(&b, &of_b, &ignored) != STATUS_OK)
        return false;
    if (builder_work(builder, place, 64, &ignored) != STATUS_OK) return false;
    if (a.is_impossible || b.is_impossible || values_are_apart(&a, &b)) return true;
    const unsigned both = (reader_written(&a, of_a) & of_b) | (reader_written(&b, of_b) & of_a);
    if (both == 0) return true;
    return both == TYPE_OBJECT &&
           (objects_are_apart(&a, &b, depth, false, &name) || objects_are_apart(&b, &a, depth, false, &name));
}

/* A property by whose values all alternatives are apart, if it is there; NULL: there is none. */
static const char *telling_property(const struct reader *r, const json_t *list) {
    struct reader first, second;
    const char *name = NULL;
    if (json_array_size(list) < 2 || !reader_of(&first, r->builder, r->place, json_array_get(list, 0)) ||
        !reader_of(&second, r->builder, r->place, json_array_get(list, 1)) ||
        !objects_are_apart(&first, &second, 0, true, &name))
        return NULL;
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t j = i + 1; j < json_array_size(list); j++) {
            struct reader a, b;
            if (!reader_of(&a, r->builder, r->place, json_array_get(list, i)) ||
                !reader_of(&b, r->builder, r->place, json_array_get(list, j)))
                return NULL;
            const json_t *mine = property_of(&a, name), *other = property_of(&b, name);
            if (mine == NULL || other == NULL || !are_apart(r->builder, r->place, mine, other, 1)) return NULL;
        }
    return name;
}

/* oneOf is anyOf where no two alternatives hold at once.  *telling: a schema that must hold beside them; NULL: none. */
static enum status check_one_of(const struct reader *r, const json_t *list, const json_t **telling,
                                struct error *error) {
    const size_t count = json_array_size(list);
    size_t i = 0, j = 0;
    bool are_all = count <= JSON_SCHEMA_ALTERNATIVES_MAX;
    *telling = NULL;
    for (i = 0; i < count && are_all; i++)
        for (j = i + 1; j < count && are_all; j++)
            are_all = are_apart(r->builder, r->place, json_array_get(list, i), json_array_get(list, j), 0);
    if (are_all) return STATUS_OK;
    const char *name = telling_property(r, list);
    if (name == NULL)
        return builder_refuse(r->builder, r->place, error,
                              "oneOf: alternatives %zu and %zu may hold at once: expected other types, or a property "
                              "with another const",
                              i - 1, j - 1);
    json_t *made = json_pack("{s:[s]}", "required", name);
    if (r->builder->made == NULL) r->builder->made = json_array();
    if (json_array_append_new(r->builder->made, made) != 0) return builder_no_memory(error);
    *telling = made;
    return STATUS_OK;
}

static enum status split(const struct reader *r, uint32_t part, const char *keyword, uint32_t decided,
                         struct error *error) {
    const json_t *list = reader_get(r, part, keyword), *telling = NULL;
    size_t index;
    json_t *item;
    if (json_array_size(list) == 0)
        return builder_refuse(r->builder, r->place, error, "%s: expected a list of schemas", keyword);
    if (decided == PART_ONE_OF) TRY(check_one_of(r, list, &telling, error));
    json_array_foreach(list, index, item) {
        struct reader alternative = *r;
        uint32_t place;
        if (is_alone(r, keyword)) alternative.count = 0;
        alternative.parts[part].decided |= decided;
        if (telling != NULL) TRY(reader_add(&alternative, telling, part < alternative.count ? part : 0, error));
        TRY(reader_add(&alternative, item, part < alternative.count ? part : alternative.count, error));
        TRY(reader_place(r, &alternative, (struct site){.keyword = keyword, .index = index}, &place, error));
        TRY(builder_entry(r->builder, r->place, place | ENTRY_IS_PLACE, error));
    }
    return STATUS_OK;
}

enum status reader_split(const struct reader *r, bool *is_split, struct error *error) {
    static const struct {
        const char *keyword;
        uint32_t decided;
    } choices[] = {{"anyOf", PART_ANY_OF}, {"oneOf", PART_ONE_OF}};
    *is_split = true;
    for (uint32_t i = 0; i < r->count; i++)
        for (size_t c = 0; c < 2; c++)
            if (reader_get(r, i, choices[c].keyword) != NULL && (r->parts[i].decided & choices[c].decided) == 0)
                return split(r, i, choices[c].keyword, choices[c].decided, error);
    *is_split = false;
    return STATUS_OK;
}

/* keywords: what the schemas of a place allow together, as forms. */
#include <string.h>

#include "base/checked.h"
#include "grammar/objects.h"
#include "grammar/strings.h"

static enum status add_form(const struct reader *r, const struct form *form, struct error *error) {
    uint32_t index;
    TRY(builder_form(r->builder, form, &index, error));
    return builder_entry(r->builder, r->place, index, error);
}

/* ---- enum, const, boolean, null ---- */

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

/* Whether all the other enums and consts have it, too. */
static bool is_listed(const struct reader *r, const json_t *value) {
    for (uint32_t i = 0; i < r->count; i++) {
        const json_t *list = reader_get(r, i, "enum"), *only = reader_get(r, i, "const");
        bool is_here = list == NULL;
        for (size_t n = 0; n < json_array_size(list) && !is_here; n++)
            is_here = json_equal(json_array_get(list, n), value) != 0;
        if (!is_here || (only != NULL && !json_equal(only, value))) return false;
    }
    return true;
}

/* *has_values: there is an enum or const. */
static enum status read_values(const struct reader *r, unsigned allowed, bool *has_values, struct error *error) {
    static const char *const of_containers[] = {"properties",    "patternProperties", "propertyNames", "minProperties",
                                                "maxProperties", "required",          "items",         "prefixItems",
                                                "minItems",      "maxItems",          "uniqueItems"};
    const uint32_t first_list = reader_find(r, 0, "enum"), first_only = reader_find(r, 0, "const");
    *has_values = first_list < r->count || first_only < r->count;
    if (!*has_values) return STATUS_OK;
    for (uint32_t i = first_list; i < r->count; i = reader_find(r, i + 1, "enum"))
        if (!json_is_array(reader_get(r, i, "enum")))
            return builder_refuse(r->builder, r->place, error, "enum: expected a list");
    for (size_t k = 0; k < sizeof of_containers / sizeof *of_containers; k++)
        if (reader_find(r, 0, of_containers[k]) < r->count)
            return builder_refuse(r->builder, r->place, error, "enum and const beside \"%s\" are not supported",
                                  of_containers[k]);
    const json_t *list = first_list < r->count ? reader_get(r, first_list, "enum") : NULL,
                 *only = first_only < r->count ? reader_get(r, first_only, "const") : NULL;
    const size_t listed = only != NULL ? 1 : json_array_size(list);
    const json_t **values = arena_array(&r->builder->schema->arena, listed + 1, sizeof(json_t *));
    size_t count = 0;
    if (values == NULL) return builder_no_memory(error);
    for (size_t i = 0; i < listed; i++) {
        const json_t *value = only != NULL ? only : json_array_get(list, i);
        bool meets = reader_has_type(value, allowed) && is_listed(r, value);
        if (meets) TRY(scalar_meets(r, value, &meets, error));
        if (meets) values[count++] = value;
    }
    return add_literals(r, values, count, error);
}

/* ---- array ---- */

/* The first items of a part: prefixItems, or in older schemas a list of items. */
static const json_t *prefix_of(const struct reader *r, uint32_t part) {
    const json_t *prefix = reader_get(r, part, "prefixItems"), *items = reader_get(r, part, "items");
    return prefix != NULL ? prefix : json_is_array(items) ? items : NULL;
}

/* The place of item `index`; SIZE_MAX: of one behind all prefixes. */
static enum status item_place(const struct reader *r, size_t index, uint32_t *place, struct error *error) {
    struct reader item = {.builder = r->builder, .place = r->place};
    for (uint32_t i = 0; i < r->count; i++) {
        const json_t *prefix = prefix_of(r, i), *items = reader_get(r, i, "items");
        const json_t *rest = json_is_array(items) ? reader_get(r, i, "additionalItems") : items;
        const json_t *own = index < json_array_size(prefix) ? json_array_get(prefix, index) : rest;
        if (own != NULL) TRY(reader_add(&item, own, item.count, error));
    }
    const char *keyword = index == SIZE_MAX ? "items" : "prefixItems";
    return reader_place(r, &item, (struct site){.keyword = keyword, .index = index}, place, error);
}

static enum status read_array(const struct reader *r, struct error *error) {
    struct form form = {.kind = FORM_ARRAY, .item_max = UINT32_MAX};
    for (uint32_t i = 0; i < r->count; i++) {
        const json_t *least = reader_get(r, i, "minItems"), *most = reader_get(r, i, "maxItems"),
                     *unique = reader_get(r, i, "uniqueItems"), *prefix = prefix_of(r, i);
        uint32_t count;
        if (prefix != NULL && !json_is_array(prefix))
            return builder_refuse(r->builder, r->place, error, "prefixItems: expected a list of schemas");
        form.prefix_count = (uint32_t)max_size(form.prefix_count, json_array_size(prefix));
        form.is_unique = form.is_unique || json_is_true(unique);
        if (least != NULL) TRY(count_read(r, "minItems", least, &count, error));
        if (least != NULL) form.item_min = (uint32_t)max_size(form.item_min, count);
        if (most != NULL) TRY(count_read(r, "maxItems", most, &count, error));
        if (most != NULL) form.item_max = (uint32_t)min_size(form.item_max, count);
    }
    if (form.item_min > form.item_max)
        return builder_refuse(r->builder, r->place, error, "minItems %u is above maxItems %u", form.item_min,
                              form.item_max);
    if (form.item_max <= 1) form.is_unique = false; /* anyway */
    if (form.is_unique && form.prefix_count > 0)
        return builder_refuse(r->builder, r->place, error, "uniqueItems beside prefixItems is not supported");
    form.prefix = arena_array(&r->builder->schema->arena, form.prefix_count + 1, sizeof *form.prefix);
    if (form.prefix == NULL) return builder_no_memory(error);
    for (uint32_t i = 0; i < form.prefix_count; i++) TRY(item_place(r, i, &form.prefix[i], error));
    TRY(item_place(r, SIZE_MAX, &form.place, error));
    return add_form(r, &form, error);
}

/* ---- one place ---- */

static enum status add_scalars(const struct reader *r, unsigned allowed, struct error *error) {
    const json_t *values[3];
    struct form form;
    bool is_possible;
    size_t count = 0;
    if (allowed & TYPE_STRING) {
        TRY(string_form(r, &form, &is_possible, error));
        if (is_possible) TRY(add_form(r, &form, error));
    }
    if (allowed & TYPE_NUMBER) {
        TRY(number_form(r, (allowed & TYPE_FRACTION) == 0, &form, &is_possible, error));
        if (is_possible) TRY(add_form(r, &form, error));
    }
    if (allowed & TYPE_BOOLEAN) {
        values[count++] = json_true();
        values[count++] = json_false();
    }
    if (allowed & TYPE_NULL) values[count++] = json_null();
    return add_literals(r, values, count, error);
}

/* What any value may be; it needs no schema. */
static enum status add_any(const struct reader *r, struct error *error) {
    const uint32_t any = r->builder->any;
    TRY(add_form(r, &(struct form){.kind = FORM_MAP, .place = any, .item_max = UINT32_MAX}, error));
    TRY(add_form(r, &(struct form){.kind = FORM_ARRAY, .place = any, .item_max = UINT32_MAX}, error));
    return add_scalars(r, TYPE_ANY, error);
}

/* A form of the place: what is said of numbers says nothing of strings. */
static enum status read_forms(const struct reader *r, struct error *error) {
    unsigned allowed;
    bool has_values;
    TRY(reader_types(r, &allowed, error));
    TRY(read_values(r, allowed, &has_values, error));
    if (has_values) return STATUS_OK;
    allowed = reader_written(r, allowed);
    if (allowed & TYPE_OBJECT) {
        struct form form = {0};
        TRY(object_read(r, &form, error));
        TRY(add_form(r, &form, error));
    }
    if (allowed & TYPE_ARRAY) TRY(read_array(r, error));
    return add_scalars(r, allowed, error);
}

/* No keyword but annotations: any value. */
static bool says_nothing(const struct reader *r) {
    for (uint32_t i = 0; i < r->count; i++)
        if (!reader_is_silent(r, i)) return false;
    return true;
}

enum status builder_read(struct builder *builder, uint32_t place, struct error *error) {
    struct reader r = {.builder = builder, .place = place, .count = builder->sites[place].part_count};
    bool is_done;
    if (r.count > 0) memcpy(r.parts, builder->parts + builder->sites[place].part_begin, r.count * sizeof *r.parts);
    if (place == builder->any) return add_any(&r, error);
    TRY(reader_refer(&r, &is_done, error));
    if (is_done) return STATUS_OK;
    TRY(reader_expand(&r, error));
    if (r.is_impossible) return STATUS_OK;
    TRY(reader_split(&r, &is_done, error));
    if (is_done) return STATUS_OK;
    if (says_nothing(&r)) return builder_entry(builder, place, builder->any | ENTRY_IS_PLACE, error);
    return read_forms(&r, error);
}

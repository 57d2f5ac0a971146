/* Values: what is true, equal, less, in something. */
#include <string.h>

#include "jinja/jinja_internal.h"

struct jinja_value jinja_list(struct jinja_run *run, bool is_tuple) {
    struct jinja_list *list = jinja_allocate(run, sizeof *list);
    if (list == NULL) return jinja_undefined(NULL);
    list->is_tuple = is_tuple;
    return (struct jinja_value){.kind = JINJA_LIST, .list = list};
}

struct jinja_value jinja_map(struct jinja_run *run, bool is_namespace) {
    struct jinja_map *map = jinja_allocate(run, sizeof *map);
    if (map == NULL) return jinja_undefined(NULL);
    map->is_namespace = is_namespace;
    return (struct jinja_value){.kind = JINJA_MAP, .map = map};
}

/* The same items in a larger place; NULL: failed. */
static void *grow(struct jinja_run *run, const void *items, size_t count, size_t *capacity, size_t item_bytes) {
    const size_t wanted = 2 * *capacity + 8;
    void *grown = jinja_allocate(run, wanted * item_bytes);
    if (grown == NULL) return NULL;
    if (count > 0) memcpy(grown, items, count * item_bytes);
    *capacity = wanted;
    return grown;
}

void jinja_list_add(struct jinja_run *run, struct jinja_list *list, struct jinja_value value) {
    if (jinja_failed(run) || !jinja_charge(run, 1)) return;
    if (list->count == list->capacity) {
        struct jinja_value *items = grow(run, list->items, list->count, &list->capacity, sizeof *items);
        if (items == NULL) return;
        list->items = items;
    }
    list->items[list->count++] = value;
}

const struct jinja_value *jinja_map_find(struct jinja_run *run, const struct jinja_map *map,
                                         const struct jinja_value *key) {
    for (size_t i = 0; i < map->count && jinja_charge(run, 1); i++)
        if (jinja_equal(run, &map->entries[i].key, key)) return &map->entries[i].value;
    return NULL;
}

const struct jinja_value *jinja_map_find_word(struct jinja_run *run, const struct jinja_map *map, const char *word) {
    const struct jinja_text text = {.bytes = word, .length = strlen(word)};
    const struct jinja_value key = {.kind = JINJA_TEXT, .text = &text};
    return jinja_map_find(run, map, &key);
}

void jinja_map_set(struct jinja_run *run, struct jinja_map *map, struct jinja_value key, struct jinja_value value) {
    if (jinja_failed(run)) return;
    struct jinja_value *known = (struct jinja_value *)jinja_map_find(run, map, &key);
    if (known != NULL) {
        *known = value;
        return;
    }
    if (map->count == map->capacity) {
        struct jinja_entry *entries = grow(run, map->entries, map->count, &map->capacity, sizeof *entries);
        if (entries == NULL) return;
        map->entries = entries;
    }
    map->entries[map->count++] = (struct jinja_entry){key, value};
}

const char *jinja_kind_name(const struct jinja_value *value) {
    static const char *const names[] = {
        [JINJA_UNDEFINED] = "nothing", [JINJA_NONE] = "none",         [JINJA_BOOL] = "a truth value",
        [JINJA_INTEGER] = "a number",  [JINJA_FLOAT] = "a number",    [JINJA_TEXT] = "a text",
        [JINJA_LIST] = "a list",       [JINJA_MAP] = "a dictionary",  [JINJA_LOOP] = "a loop",
        [JINJA_MACRO] = "a macro",     [JINJA_METHOD] = "a function", [JINJA_FUNCTION] = "a function"};
    return names[value->kind];
}

bool jinja_is_number(const struct jinja_value *value) {
    return value->kind == JINJA_BOOL || value->kind == JINJA_INTEGER || value->kind == JINJA_FLOAT;
}

int64_t jinja_as_integer(const struct jinja_value *value) {
    return value->kind == JINJA_BOOL ? value->boolean : value->integer;
}

double jinja_as_real(const struct jinja_value *value) {
    return value->kind == JINJA_FLOAT ? value->real : (double)jinja_as_integer(value);
}

bool jinja_is_true(const struct jinja_value *value) {
    switch (value->kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: return false;
    case JINJA_BOOL: return value->boolean;
    case JINJA_INTEGER: return value->integer != 0;
    case JINJA_FLOAT: return value->real != 0;
    case JINJA_TEXT: return value->text->length > 0;
    case JINJA_LIST: return value->list->count > 0;
    case JINJA_MAP: return value->map->is_namespace || value->map->count > 0;
    case JINJA_LOOP:
    case JINJA_MACRO:
    case JINJA_METHOD:
    case JINJA_FUNCTION: return true;
    }
    return false;
}

static bool lists_equal(struct jinja_run *run, const struct jinja_list *a, const struct jinja_list *b) {
    if (a == b) return true;
    if (a->count != b->count || a->is_tuple != b->is_tuple) return false;
    for (size_t i = 0; i < a->count && !jinja_failed(run); i++)
        if (!jinja_equal(run, &a->items[i], &b->items[i])) return false;
    return true;
}

static bool maps_equal(struct jinja_run *run, const struct jinja_map *a, const struct jinja_map *b) {
    if (a == b) return true;
    if (a->count != b->count || a->is_namespace || b->is_namespace) return false;
    for (size_t i = 0; i < a->count && !jinja_failed(run); i++) {
        const struct jinja_value *other = jinja_map_find(run, b, &a->entries[i].key);
        if (other == NULL || !jinja_equal(run, &a->entries[i].value, other)) return false;
    }
    return true;
}

/* Values are made once and hold older ones, but for namespaces, which are equal to themselves alone: recursion ends,
 * and its depth is limited. */
bool jinja_equal(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *b) {
    bool equal = false;
    if (!jinja_charge(run, 1)) return false;
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a->kind == JINJA_FLOAT || b->kind == JINJA_FLOAT) return jinja_as_real(a) == jinja_as_real(b);
        return jinja_as_integer(a) == jinja_as_integer(b);
    }
    if (a->kind != b->kind) return false;
    if (++run->depth > JINJA_DEPTH_MAX) jinja_fail(run, STATUS_USAGE, "tokenizer.chat_template nests too deeply");
    switch (a->kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: equal = true; break;
    case JINJA_TEXT:
        if (a->text->length != b->text->length || !jinja_charge_bytes(run, a->text->length)) break;
        equal = memcmp(a->text->bytes, b->text->bytes, a->text->length) == 0;
        break;
    case JINJA_LIST: equal = !jinja_failed(run) && lists_equal(run, a->list, b->list); break;
    case JINJA_MAP: equal = !jinja_failed(run) && maps_equal(run, a->map, b->map); break;
    case JINJA_LOOP: equal = a->loop == b->loop; break;
    case JINJA_MACRO: equal = a->macro == b->macro; break;
    case JINJA_METHOD: equal = a->method == b->method; break;
    case JINJA_FUNCTION: equal = a->function == b->function; break;
    case JINJA_BOOL:
    case JINJA_INTEGER:
    case JINJA_FLOAT: break;
    }
    run->depth--;
    return equal;
}

int jinja_compare(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *b) {
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a->kind == JINJA_FLOAT || b->kind == JINJA_FLOAT) {
            const double x = jinja_as_real(a), y = jinja_as_real(b);
            return (x > y) - (x < y);
        }
        const int64_t x = jinja_as_integer(a), y = jinja_as_integer(b);
        return (x > y) - (x < y);
    }
    if (a->kind == JINJA_TEXT && b->kind == JINJA_TEXT) {
        const size_t shorter = a->text->length < b->text->length ? a->text->length : b->text->length;
        if (!jinja_charge_bytes(run, shorter)) return 0;
        const int order = memcmp(a->text->bytes, b->text->bytes, shorter);
        if (order != 0) return order;
        return (a->text->length > b->text->length) - (a->text->length < b->text->length);
    }
    jinja_fail(run, STATUS_UNSUPPORTED, "%s and %s have no order", jinja_kind_name(a), jinja_kind_name(b));
    return 0;
}

bool jinja_contains(struct jinja_run *run, const struct jinja_value *container, const struct jinja_value *value) {
    switch (container->kind) {
    case JINJA_TEXT:
        if (value->kind != JINJA_TEXT) break;
        return jinja_text_find(run, container->text, value->text, 0) != SIZE_MAX;
    case JINJA_LIST:
        for (size_t i = 0; i < container->list->count && !jinja_failed(run); i++)
            if (jinja_equal(run, &container->list->items[i], value)) return true;
        return false;
    case JINJA_MAP:
        if (container->map->is_namespace) break;
        return jinja_map_find(run, container->map, value) != NULL;
    case JINJA_UNDEFINED: return false;
    case JINJA_NONE:
    case JINJA_BOOL:
    case JINJA_INTEGER:
    case JINJA_FLOAT:
    case JINJA_LOOP:
    case JINJA_MACRO:
    case JINJA_METHOD:
    case JINJA_FUNCTION: break;
    }
    jinja_fail(run, STATUS_UNSUPPORTED, "%s in %s", jinja_kind_name(value), jinja_kind_name(container));
    return false;
}

static const struct jinja_list *characters_of(struct jinja_run *run, const struct jinja_text *text) {
    struct jinja_value list = jinja_list(run, false);
    for (size_t at = 0; at < text->length && !jinja_failed(run);) {
        const size_t length = jinja_character_bytes(text, at);
        jinja_list_add(run, list.list, jinja_text_cut(run, text, at, at + length));
        at += length;
    }
    return jinja_failed(run) ? NULL : list.list;
}

/* NULL: failed. */
const struct jinja_list *jinja_items(struct jinja_run *run, const struct jinja_value *value) {
    if (value->kind == JINJA_LIST) return value->list;
    if (value->kind == JINJA_TEXT) return characters_of(run, value->text);
    if (value->kind != JINJA_UNDEFINED && (value->kind != JINJA_MAP || value->map->is_namespace)) {
        jinja_fail(run, STATUS_UNSUPPORTED, "%s has no items", jinja_kind_name(value));
        return NULL;
    }
    struct jinja_value keys = jinja_list(run, false);
    for (size_t i = 0; value->kind == JINJA_MAP && i < value->map->count && !jinja_failed(run); i++)
        jinja_list_add(run, keys.list, value->map->entries[i].key);
    return jinja_failed(run) ? NULL : keys.list;
}

struct jinja_value jinja_map_pairs(struct jinja_run *run, const struct jinja_map *map) {
    struct jinja_value pairs = jinja_list(run, false);
    for (size_t i = 0; i < map->count && !jinja_failed(run); i++) {
        struct jinja_value pair = jinja_list(run, true);
        if (jinja_failed(run)) break;
        jinja_list_add(run, pair.list, map->entries[i].key);
        jinja_list_add(run, pair.list, map->entries[i].value);
        jinja_list_add(run, pairs.list, pair);
    }
    return pairs;
}

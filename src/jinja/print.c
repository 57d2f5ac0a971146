/* Values as texts: as Python prints them, and as JSON; and values from JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jinja/jinja_internal.h"

/* false: too deep. */
static bool deeper(struct jinja_run *run) {
    if (++run->depth <= JINJA_DEPTH_MAX && jinja_charge(run, 1)) return true;
    jinja_fail(run, STATUS_USAGE, "tokenizer.chat_template nests too deeply");
    run->depth--;
    return false;
}

/* As Python's repr: the fewest digits that give the number back. */
static void put_real(struct jinja_builder *builder, double real) {
    char text[40];
    if (!isfinite(real)) {
        jinja_put_word(builder, isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
        return;
    }
    int digits = 1;
    do snprintf(text, sizeof text, "%.*e", digits - 1, real);
    while (strtod(text, NULL) != real && digits++ < 17);
    const int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        char tail[16];
        jinja_put(builder, text, (size_t)(strchr(text, 'e') - text), true);
        snprintf(tail, sizeof tail, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        jinja_put_word(builder, tail);
        return;
    }
    snprintf(text, sizeof text, "%.*f", digits - 1 - exponent > 0 ? digits - 1 - exponent : 1, real);
    jinja_put_word(builder, text);
}

static void put_number(struct jinja_builder *builder, const struct jinja_value *value) {
    char text[32];
    if (value->kind == JINJA_FLOAT) {
        put_real(builder, value->real);
        return;
    }
    snprintf(text, sizeof text, "%" PRId64, value->integer);
    jinja_put_word(builder, text);
}

/* ---- as Python ---- */

static void put_quoted(struct jinja_builder *builder, const struct jinja_text *text) {
    const bool has_single = memchr(text->bytes, '\'', text->length) != NULL;
    const char quote = has_single && memchr(text->bytes, '"', text->length) == NULL ? '"' : '\'';
    jinja_put(builder, &quote, 1, false);
    for (size_t i = 0; i < text->length && !jinja_failed(builder->run); i++) {
        const char c = text->bytes[i];
        char escaped[8];
        if (c == quote || c == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(escaped, sizeof escaped, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if ((unsigned char)c < ' ' || c == 0x7F)
            snprintf(escaped, sizeof escaped, "\\x%02x", (unsigned char)c);
        else
            snprintf(escaped, sizeof escaped, "%c", c);
        jinja_put(builder, escaped, strlen(escaped), false);
    }
    jinja_put(builder, &quote, 1, false);
}

static void put_repr(struct jinja_builder *builder, const struct jinja_value *value);

static void put_list(struct jinja_builder *builder, const struct jinja_list *list) {
    jinja_put(builder, list->is_tuple ? "(" : "[", 1, false);
    for (size_t i = 0; i < list->count && !jinja_failed(builder->run); i++) {
        if (i > 0) jinja_put(builder, ", ", 2, false);
        put_repr(builder, &list->items[i]);
    }
    if (list->is_tuple && list->count == 1) jinja_put(builder, ",", 1, false);
    jinja_put(builder, list->is_tuple ? ")" : "]", 1, false);
}

static void put_map(struct jinja_builder *builder, const struct jinja_map *map) {
    jinja_put(builder, "{", 1, false);
    for (size_t i = 0; i < map->count && !jinja_failed(builder->run); i++) {
        if (i > 0) jinja_put(builder, ", ", 2, false);
        put_repr(builder, &map->entries[i].key);
        jinja_put(builder, ": ", 2, false);
        put_repr(builder, &map->entries[i].value);
    }
    jinja_put(builder, "}", 1, false);
}

static void put_repr(struct jinja_builder *builder, const struct jinja_value *value) {
    if (value->kind == JINJA_TEXT)
        put_quoted(builder, value->text);
    else if (value->kind == JINJA_UNDEFINED)
        jinja_put(builder, "Undefined", 9, false);
    else
        jinja_print(builder, value);
}

void jinja_print(struct jinja_builder *builder, const struct jinja_value *value) {
    if (jinja_failed(builder->run) || !deeper(builder->run)) return;
    switch (value->kind) {
    case JINJA_UNDEFINED: break;
    case JINJA_NONE: jinja_put_word(builder, "None"); break;
    case JINJA_BOOL: jinja_put_word(builder, value->boolean ? "True" : "False"); break;
    case JINJA_INTEGER:
    case JINJA_FLOAT: put_number(builder, value); break;
    case JINJA_TEXT: jinja_put_text(builder, value->text, 0, value->text->length); break;
    case JINJA_LIST: put_list(builder, value->list); break;
    case JINJA_MAP:
        if (value->map->is_namespace)
            jinja_fail(builder->run, STATUS_UNSUPPORTED, "a namespace is printed");
        else
            put_map(builder, value->map);
        break;
    case JINJA_LOOP:
    case JINJA_MACRO:
    case JINJA_METHOD:
    case JINJA_FUNCTION: jinja_fail(builder->run, STATUS_UNSUPPORTED, "%s is printed", jinja_kind_name(value)); break;
    }
    builder->run->depth--;
}

struct jinja_value jinja_to_text(struct jinja_run *run, const struct jinja_value *value) {
    struct jinja_builder builder = {.run = run};
    if (value->kind == JINJA_TEXT) return *value;
    jinja_print(&builder, value);
    return jinja_built(&builder);
}

/* ---- JSON ---- */

struct json_form {
    struct jinja_builder builder;
    int64_t indent; /* below zero: one line */
    const char *item, *key;
    size_t item_length, key_length;
    bool sorts;
};

static void put_json(struct json_form *form, const struct jinja_value *value, size_t depth);

static void put(struct json_form *form, const char *text, size_t length) {
    jinja_put(&form->builder, text, length, false);
}

static void put_json_text(struct json_form *form, const struct jinja_text *text) {
    static const char names[] = {['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't', ['\b'] = 'b', ['\f'] = 'f'};
    put(form, "\"", 1);
    for (size_t i = 0, begin = 0; i <= text->length && !jinja_failed(form->builder.run); i++) {
        const unsigned char c = i < text->length ? (unsigned char)text->bytes[i] : '"';
        if (c >= ' ' && c != '"' && c != '\\') continue;
        put(form, text->bytes + begin, i - begin);
        begin = i + 1;
        if (i == text->length) break;
        char escaped[8];
        if (c == '"' || c == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", c);
        else if (c < sizeof names && names[c] != 0)
            snprintf(escaped, sizeof escaped, "\\%c", names[c]);
        else
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
        put(form, escaped, strlen(escaped));
    }
    put(form, "\"", 1);
}

static void put_line(struct json_form *form, size_t depth) {
    if (form->indent < 0) return;
    put(form, "\n", 1);
    for (size_t i = 0; i < depth * (size_t)form->indent && !jinja_failed(form->builder.run); i++) put(form, " ", 1);
}

static void put_json_list(struct json_form *form, const struct jinja_list *list, size_t depth) {
    put(form, "[", 1);
    for (size_t i = 0; i < list->count && !jinja_failed(form->builder.run); i++) {
        if (i > 0) put(form, form->item, form->item_length);
        put_line(form, depth + 1);
        put_json(form, &list->items[i], depth + 1);
    }
    if (list->count > 0) put_line(form, depth);
    put(form, "]", 1);
}

static void put_json_key(struct json_form *form, const struct jinja_value *key) {
    if (key->kind == JINJA_TEXT) {
        put_json_text(form, key->text);
    } else {
        put(form, "\"", 1);
        put_json(form, key, 0);
        put(form, "\"", 1);
    }
    put(form, form->key, form->key_length);
}

/* Entry number i, in order or sorted: few keys, so the smallest is looked for again and again. */
static const struct jinja_entry *entry_at(struct json_form *form, const struct jinja_map *map, size_t i,
                                          const struct jinja_entry *before) {
    if (!form->sorts) return &map->entries[i];
    const struct jinja_entry *next = NULL;
    for (size_t n = 0; n < map->count && jinja_charge(form->builder.run, 1); n++) {
        const struct jinja_entry *entry = &map->entries[n];
        if (before != NULL && jinja_compare(form->builder.run, &entry->key, &before->key) <= 0) continue;
        if (next == NULL || jinja_compare(form->builder.run, &entry->key, &next->key) < 0) next = entry;
    }
    return next;
}

static void put_json_map(struct json_form *form, const struct jinja_map *map, size_t depth) {
    const struct jinja_entry *entry = NULL;
    put(form, "{", 1);
    for (size_t i = 0; i < map->count && !jinja_failed(form->builder.run); i++) {
        entry = entry_at(form, map, i, entry);
        if (entry == NULL) break;
        if (i > 0) put(form, form->item, form->item_length);
        put_line(form, depth + 1);
        put_json_key(form, &entry->key);
        put_json(form, &entry->value, depth + 1);
    }
    if (map->count > 0) put_line(form, depth);
    put(form, "}", 1);
}

static void put_json(struct json_form *form, const struct jinja_value *value, size_t depth) {
    if (!deeper(form->builder.run)) return;
    switch (value->kind) {
    case JINJA_NONE: put(form, "null", 4); break;
    case JINJA_BOOL: put(form, value->boolean ? "true" : "false", value->boolean ? 4 : 5); break;
    case JINJA_INTEGER:
    case JINJA_FLOAT: put_number(&form->builder, value); break;
    case JINJA_TEXT: put_json_text(form, value->text); break;
    case JINJA_LIST: put_json_list(form, value->list, depth); break;
    case JINJA_MAP: put_json_map(form, value->map, depth); break;
    case JINJA_UNDEFINED:
    case JINJA_LOOP:
    case JINJA_MACRO:
    case JINJA_METHOD:
    case JINJA_FUNCTION:
        jinja_fail(form->builder.run, STATUS_UNSUPPORTED, "%s is no JSON", jinja_kind_name(value));
        break;
    }
    form->builder.run->depth--;
}

/* As transformers' filter tojson: json.dumps(value, ensure_ascii=False, indent, separators, sort_keys). */
struct jinja_value jinja_to_json(struct jinja_run *run, const struct jinja_value *value,
                                 const struct jinja_arguments *arguments) {
    const struct jinja_value *indent = jinja_argument(arguments, 1, "indent");
    const struct jinja_value *separators = jinja_argument(arguments, 2, "separators");
    struct json_form form = {.builder = {.run = run}, .indent = -1, .item = ", ", .key = ": ", .key_length = 2};
    if (indent != NULL && indent->kind != JINJA_NONE)
        form.indent = jinja_integer_argument(run, arguments, 1, "indent", 0);
    if (form.indent > 64) form.indent = 64;
    if (form.indent >= 0) form.item = ",";
    form.item_length = strlen(form.item);
    form.sorts = jinja_bool_argument(arguments, 3, "sort_keys", false);
    if (separators != NULL && separators->kind == JINJA_LIST && separators->list->count == 2 &&
        separators->list->items[0].kind == JINJA_TEXT && separators->list->items[1].kind == JINJA_TEXT) {
        const struct jinja_text *item = separators->list->items[0].text, *key = separators->list->items[1].text;
        form.item = item->bytes;
        form.item_length = item->length;
        form.key = key->bytes;
        form.key_length = key->length;
    }
    put_json(&form, value, 0);
    return jinja_built(&form.builder);
}

static struct jinja_value from_array(struct jinja_run *run, const json_t *json) {
    struct jinja_value list = jinja_list(run, false);
    for (size_t i = 0; i < json_array_size(json) && !jinja_failed(run); i++)
        jinja_list_add(run, list.list, jinja_from_json(run, json_array_get(json, i)));
    return list;
}

/* Keys differ already: entries are appended, so that large objects take no time squared. */
static struct jinja_value from_object(struct jinja_run *run, const json_t *json) {
    struct jinja_value map = jinja_map(run, false);
    const size_t count = json_object_size(json);
    if (jinja_failed(run) || !jinja_charge(run, count)) return jinja_undefined(NULL);
    map.map->entries = jinja_allocate(run, count * sizeof *map.map->entries);
    if (map.map->entries == NULL) return jinja_undefined(NULL);
    map.map->capacity = count;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value) {
        if (jinja_failed(run)) break;
        map.map->entries[map.map->count++] =
            (struct jinja_entry){jinja_text_value(run, key, strlen(key), false), jinja_from_json(run, value)};
    }
    return map;
}

struct jinja_value jinja_from_json(struct jinja_run *run, const json_t *json) {
    struct jinja_value value = jinja_none();
    if (!deeper(run)) return value;
    switch (json_typeof(json)) {
    case JSON_OBJECT: value = from_object(run, json); break;
    case JSON_ARRAY: value = from_array(run, json); break;
    case JSON_STRING: value = jinja_text_value(run, json_string_value(json), json_string_length(json), false); break;
    case JSON_INTEGER: value = jinja_integer(json_integer_value(json)); break;
    case JSON_REAL: value = jinja_real(json_real_value(json)); break;
    case JSON_TRUE: value = jinja_bool(true); break;
    case JSON_FALSE: value = jinja_bool(false); break;
    case JSON_NULL: break;
    }
    run->depth--;
    return value;
}

/* builder: places, forms and entries of a schema that is being read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "grammar/builder_internal.h"

enum status builder_no_memory(struct error *error) {
    return error_set(error, STATUS_MEMORY, "no memory for the JSON schema");
}

void builder_deinit(struct builder *builder) {
    free(builder->sites);
    free(builder->forms);
    free(builder->entries);
    free(builder->parts);
    free(builder->buckets);
    json_decref(builder->made);
}

static bool has_parts(const struct builder *b, const struct site *site, const struct part *parts, uint32_t count) {
    bool are_same = site->part_count == count;
    for (uint32_t i = 0; are_same && i < count; i++)
        are_same = b->parts[site->part_begin + i].value == parts[i].value &&
                   b->parts[site->part_begin + i].decided == parts[i].decided &&
                   b->parts[site->part_begin + i].from == parts[i].from;
    return are_same;
}

static uint32_t *bucket_of(const struct builder *b, uint32_t *buckets, uint32_t bucket_count, const struct part *parts,
                           uint32_t count) {
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++)
        hash = (hash ^ hash >> 32 ^ (uint64_t)(uintptr_t)parts[i].value >> 4 ^ parts[i].decided) * 0x9E3779B97F4A7C15U;
    uint32_t at = (uint32_t)(hash >> 32) & (bucket_count - 1);
    while (buckets[at] != 0 && !has_parts(b, &b->sites[buckets[at] - 1], parts, count))
        at = (at + 1) & (bucket_count - 1);
    return &buckets[at];
}

static enum status grow_buckets(struct builder *b, struct error *error) {
    if (2 * b->site_count < b->bucket_count) return STATUS_OK;
    const uint32_t more = b->bucket_count == 0 ? 64 : b->bucket_count * 2;
    uint32_t *buckets = calloc(more, sizeof *buckets);
    if (buckets == NULL) return builder_no_memory(error);
    for (uint32_t i = 0; i < b->site_count; i++) {
        const struct site *site = &b->sites[i];
        *bucket_of(b, buckets, more, b->parts + site->part_begin, site->part_count) = i + 1;
    }
    free(b->buckets);
    b->buckets = buckets;
    b->bucket_count = more;
    return STATUS_OK;
}

enum status builder_place(struct builder *b, const struct site *site, const struct part *parts, uint32_t count,
                          uint32_t *place, struct error *error) {
    TRY(grow_buckets(b, error));
    uint32_t *bucket = bucket_of(b, b->buckets, b->bucket_count, parts, count);
    if (*bucket != 0) {
        *place = *bucket - 1;
        return STATUS_OK;
    }
    if (b->site_count == BUILDER_PLACES_MAX)
        return builder_refuse(b, site->parent, error, "more than %d combinations of schemas", BUILDER_PLACES_MAX);
    if (!array_reserve(&b->sites, b->site_count, &b->site_capacity, sizeof *b->sites)) return builder_no_memory(error);
    struct site *made = &b->sites[b->site_count];
    *made = *site;
    made->part_begin = b->part_count;
    for (uint32_t i = 0; i < count; i++) {
        if (!array_reserve(&b->parts, b->part_count, &b->part_capacity, sizeof *b->parts))
            return builder_no_memory(error);
        b->parts[b->part_count++] = parts[i];
    }
    made->part_count = count;
    *place = b->site_count++;
    *bucket = b->site_count;
    return STATUS_OK;
}

enum status builder_form(struct builder *b, const struct form *form, uint32_t *index, struct error *error) {
    if (!array_reserve(&b->forms, b->form_count, &b->form_capacity, sizeof *b->forms)) return builder_no_memory(error);
    b->forms[b->form_count] = *form;
    *index = b->form_count++;
    return STATUS_OK;
}

enum status builder_entry(struct builder *b, uint32_t place, uint32_t entry, struct error *error) {
    if (!array_reserve(&b->entries, b->entry_count, &b->entry_capacity, sizeof *b->entries))
        return builder_no_memory(error);
    if (b->sites[place].entry_count == 0) b->sites[place].entry_begin = b->entry_count;
    b->entries[b->entry_count++] = entry;
    b->sites[place].entry_count++;
    return STATUS_OK;
}

/* The path of a place, of which only the end is written where it is long. */
static const char *path_of(const struct builder *b, uint32_t place, char *path, size_t capacity) {
    size_t at = capacity - 1;
    path[at] = '\0';
    for (; place != NOTHING; place = b->sites[place].parent) {
        const struct site *site = &b->sites[place];
        char part[160], name[96] = "";
        if (site->name != NULL)
            snprintf(name, sizeof name, "/%.80s", site->name);
        else if (site->index != SIZE_MAX)
            snprintf(name, sizeof name, "/%zu", site->index);
        const int length = snprintf(part, sizeof part, "%.60s%s%s", site->keyword, name, path[at] != '\0' ? "/" : "");
        if ((size_t)length + 4 > at) {
            at -= 3;
            memcpy(path + at, "...", 3);
            break;
        }
        at -= (size_t)length;
        memcpy(path + at, part, (size_t)length);
    }
    return path + at;
}

enum status builder_refuse(const struct builder *b, uint32_t place, struct error *error, const char *format, ...) {
    char message[240], path[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return error_set(error, STATUS_USAGE, "%s: %s: %s", b->source, path_of(b, place, path, sizeof path), message);
}

enum status builder_work(struct builder *b, uint32_t place, uint64_t work, struct error *error) {
    b->work += work;
    return b->work <= AUTOMATON_WORK_MAX ? STATUS_OK
                                         : builder_refuse(b, place, error, "the schema takes too long to read");
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One part of a JSON pointer (RFC 6901) in a URI: %XX, ~1 and ~0.  Returns what follows; NULL: it is malformed. */
static const char *pointer_part(const char *at, char *part, size_t *length) {
    *length = 0;
    for (; *at != '\0' && *at != '/'; at++) {
        char c = *at;
        if (c == '%') {
            if (hex_value(at[1]) < 0 || hex_value(at[2]) < 0) return NULL;
            c = (char)(hex_value(at[1]) * 16 + hex_value(at[2]));
            at += 2;
            if (c == '\0') return NULL;
        }
        if (c == '~') {
            if (at[1] != '0' && at[1] != '1') return NULL;
            c = *++at == '1' ? '/' : '~';
        }
        part[(*length)++] = c;
    }
    part[*length] = '\0';
    return at;
}

static const json_t *pointer_step(const json_t *value, const char *part) {
    if (json_is_object(value)) return json_object_get(value, part);
    if (!json_is_array(value) || *part < '0' || *part > '9') return NULL;
    char *end;
    const unsigned long index = strtoul(part, &end, 10);
    return *end == '\0' ? json_array_get(value, index) : NULL;
}

enum status builder_reference(const struct builder *b, uint32_t place, const json_t *reference, const json_t **target,
                              struct error *error) {
    const char *text = json_string_value(reference);
    if (text == NULL) return builder_refuse(b, place, error, "$ref: expected a string");
    if (text[0] != '#' || (text[1] != '\0' && text[1] != '/'))
        return builder_refuse(b, place, error, "$ref \"%.80s\": only places of the same schema (#/...) are supported",
                              text);
    char *part = malloc(strlen(text) + 1);
    if (part == NULL) return builder_no_memory(error);
    const json_t *value = b->root;
    const char *at = text + 1;
    while (value != NULL && *at == '/') {
        size_t length;
        at = pointer_part(at + 1, part, &length);
        value = at != NULL ? pointer_step(value, part) : NULL;
        if (at == NULL) break;
    }
    free(part);
    if (value == NULL) return builder_refuse(b, place, error, "$ref \"%.80s\": the schema has no such place", text);
    *target = value;
    return STATUS_OK;
}

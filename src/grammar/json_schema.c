/* json_schema: from the text of a schema to places and forms. */
#include "grammar/json_schema.h"

#include <stdlib.h>

#include "format/json.h"
#include "grammar/builder_internal.h"

/* Brackets outside of strings. */
static size_t depth_of(const char *text, size_t length) {
    size_t depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '[' || c == '{'))
            depth++;
        else if (!in_string && (c == ']' || c == '}') && depth > 0)
            depth--;
        if (depth > deepest) deepest = depth;
    }
    return deepest;
}

static enum status build(struct builder *b, struct error *error) {
    const struct site any = {.parent = NOTHING, .keyword = "#", .index = SIZE_MAX};
    const struct part root = {b->root, 0, 0};
    TRY(builder_place(b, &any, NULL, 0, &b->any, error));
    TRY(builder_place(b, &any, &root, 1, &b->schema->root, error));
    for (uint32_t i = 0; i < b->site_count; i++) TRY(builder_read(b, i, error)); /* the list grows */
    TRY(builder_resolve(b, error));
    if (b->schema->places[b->schema->root].height >= HEIGHT_IMPOSSIBLE)
        return builder_refuse(b, b->schema->root, error, "no value satisfies it, or only one nested deeper than %d",
                              JSON_OUTPUT_DEPTH_MAX);
    if (b->schema->places[b->schema->root].shortest > JSON_OUTPUT_BYTES_MAX)
        return builder_refuse(b, b->schema->root, error, "its shortest value has more than %d bytes",
                              JSON_OUTPUT_BYTES_MAX);
    return STATUS_OK;
}

static enum status create(struct json_schema **schema, const json_t *root, const char *name, struct error *error) {
    struct json_schema *made = calloc(1, sizeof *made);
    if (made == NULL) return builder_no_memory(error);
    arena_init(&made->arena);
    struct builder builder = {.schema = made, .root = root, .source = name};
    enum status status = build(&builder, error);
    builder_deinit(&builder);
    if (status == STATUS_OK)
        *schema = made;
    else
        json_schema_destroy(made);
    return status;
}

enum status json_schema_compile(struct json_schema **schema, const char *text, size_t length, const char *name,
                                struct error *error) {
    json_t *root;
    *schema = NULL;
    if (length > JSON_SCHEMA_BYTES_MAX)
        return error_set(error, STATUS_USAGE, "%s: %zu bytes, expected at most %d", name, length,
                         JSON_SCHEMA_BYTES_MAX);
    const size_t depth = depth_of(text, length);
    if (depth > JSON_SCHEMA_DEPTH_MAX)
        return error_set(error, STATUS_USAGE, "%s: nested %zu deep, expected at most %d", name, depth,
                         JSON_SCHEMA_DEPTH_MAX);
    TRY(json_parse_bytes(text, length, name, STATUS_USAGE, &root, error));
    enum status status = create(schema, root, name, error);
    json_decref(root);
    return status;
}

enum status json_schema_any_object(struct json_schema **schema, struct error *error) {
    return json_schema_compile(schema, "{\"type\":\"object\"}", 17, "JSON object", error);
}

void json_schema_destroy(struct json_schema *schema) {
    if (schema == NULL) return;
    arena_deinit(&schema->arena);
    free(schema);
}

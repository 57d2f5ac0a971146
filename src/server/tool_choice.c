#include "server/tool_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/fields.h"
#include "server/json_text.h"

static const char thought_end[] = "\n</think>\n\n", call_begin[] = "<tool_call>\n";

static bool is_one_of(const char *key, const char *const *words, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(key, words[i]) == 0) return true;
    return false;
}

static void move_references(json_t *value, const char *prefix, bool keys_are_names);

/* "#/$defs/a" of a tool's schema is `prefix`/$defs/a of the call's. */
static void move_reference(json_t *schema, const char *key, json_t *value, const char *prefix) {
    static const char *const of_names[] = {"properties", "$defs", "definitions"};
    static const char *const of_values[] = {"const", "enum", "default", "examples"};
    if (strcmp(key, "$ref") == 0 && json_is_string(value) && json_string_value(value)[0] == '#')
        json_put(schema, key, json_sprintf("%s%s", prefix, json_string_value(value) + 1));
    else if (!is_one_of(key, of_values, sizeof of_values / sizeof *of_values))
        move_references(value, prefix, is_one_of(key, of_names, sizeof of_names / sizeof *of_names));
}

/* Recursion ends: fields_parse limits the depth of a request. */
static void move_references(json_t *value, const char *prefix, bool keys_are_names) {
    for (size_t i = 0; i < json_array_size(value); i++) move_references(json_array_get(value, i), prefix, false);
    const char *key;
    json_t *member;
    void *next;
    json_object_foreach_safe(value, next, key, member) {
        if (keys_are_names)
            move_references(member, prefix, false);
        else
            move_reference(value, key, member, prefix);
    }
}

/* What the arguments of the call at anyOf/index must be; no parameters: {}. */
static json_t *arguments_schema(const json_t *parameters, size_t index) {
    if (!json_is_object(parameters)) return json_pack("{s:s, s:b}", "type", "object", "additionalProperties", false);
    json_t *made = json_deep_copy(parameters);
    char prefix[64];
    snprintf(prefix, sizeof prefix, "#/anyOf/%zu/properties/arguments", index);
    move_references(made, prefix, false);
    const bool is_told = json_object_get(made, "type") != NULL || json_object_get(made, "$ref") != NULL ||
                         json_object_get(made, "anyOf") != NULL;
    if (!is_told) json_put(made, "type", json_string("object"));
    return made;
}

/* NULL: there is no such tool. */
static json_t *call_schema(const json_t *tools, const char *name) {
    json_t *calls = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        json_t *known = json_object_get(function, "name");
        if (name != NULL && strcmp(name, json_string_value(known)) != 0) continue;
        json_t *arguments = arguments_schema(json_object_get(function, "parameters"), json_array_size(calls));
        json_array_append_new(calls, json_pack("{s:s, s:{s:{s:O}, s:o}, s:[s, s], s:b}", "type", "object", "properties",
                                               "name", "const", known, "arguments", arguments, "required", "name",
                                               "arguments", "additionalProperties", false));
    }
    if (json_array_size(calls) > 0) return json_pack("{s:o}", "anyOf", calls);
    json_decref(calls);
    return NULL;
}

bool tool_choice_schema(const json_t *tools, const char *name, struct json_schema **schema, struct api_error *error) {
    json_t *call = call_schema(tools, name);
    if (call == NULL)
        return field_refuse(error, "tool_choice", "found '%.60s', which no tool is named", name != NULL ? name : "");
    char *text = json_dumps(call, JSON_COMPACT);
    json_decref(call);
    if (text == NULL) return api_error_set(error, 503, NULL, "no memory");
    struct error reason;
    const enum status status = json_schema_compile(schema, text, strlen(text), "tools", &reason);
    free(text);
    return status == STATUS_OK || api_error_set(error, 400, "tools", "%s", reason.message);
}

static bool append(const struct tokenizer *tokenizer, const char *text, struct token_list *prompt,
                   struct api_error *error) {
    struct error reason;
    const enum status status = tokenizer_encode(tokenizer, text, strlen(text),
                                                (struct tokenize_options){.parse_special = true}, prompt, &reason);
    return status == STATUS_OK || api_error_from(error, &reason);
}

bool tool_choice_end_thought(const struct tokenizer *tokenizer, struct token_list *prompt, struct api_error *error) {
    return append(tokenizer, thought_end, prompt, error);
}

bool tool_choice_begin_call(const struct tokenizer *tokenizer, bool thinks, struct token_list *prompt,
                            struct api_error *error) {
    return (!thinks || append(tokenizer, thought_end, prompt, error)) && append(tokenizer, call_begin, prompt, error);
}

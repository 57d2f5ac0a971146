#include "server/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "document/mark.h"
#include "server/fields.h"
#include "server/file_part.h"

static bool no_memory(struct api_error *error) {
    return api_error_set(error, 503, NULL, "no memory for the conversation");
}

void conversation_message_deinit(struct conversation_message *message) {
    text_deinit(&message->content);
    free(message->results);
    json_decref(message->calls);
    json_decref(message->thoughts);
    *message = (struct conversation_message){0};
}

void conversation_deinit(struct conversation *conversation) {
    for (size_t i = 0; i < conversation->count; i++) conversation_message_deinit(&conversation->messages[i]);
    free(conversation->messages);
    json_decref(conversation->thoughts);
    json_decref(conversation->tools);
    json_decref(conversation->variables);
    *conversation = (struct conversation){0};
}

bool conversation_add(struct conversation *conversation, enum chat_role role, struct api_error *error) {
    if (!array_reserve(&conversation->messages, conversation->count, &conversation->capacity,
                       sizeof *conversation->messages))
        return no_memory(error);
    const bool thinks = role == CHAT_ASSISTANT;
    if (!thinks) json_decref(conversation->thoughts);
    conversation->messages[conversation->count++] =
        (struct conversation_message){.role = role, .thoughts = thinks ? conversation->thoughts : NULL};
    conversation->thoughts = NULL;
    return true;
}

bool conversation_message_append(struct conversation_message *message, const char *text, size_t length,
                                 struct api_error *error) {
    return text_append(&message->content, text, length) || no_memory(error);
}

static struct conversation_message *last(struct conversation *conversation) {
    return &conversation->messages[conversation->count - 1];
}

bool conversation_append(struct conversation *conversation, const char *text, size_t length, struct api_error *error) {
    return conversation_message_append(last(conversation), text, length, error);
}

static bool append_word(struct conversation *conversation, const char *text, struct api_error *error) {
    return conversation_append(conversation, text, strlen(text), error);
}

static bool add_thought(json_t **thoughts, const json_t *text, struct api_error *error) {
    if (!json_is_string(text) || json_string_length(text) == 0) return true;
    json_t *whole = *thoughts == NULL ? json_incref((json_t *)text)
                                      : json_sprintf("%s\n%s", json_string_value(*thoughts), json_string_value(text));
    if (whole == NULL) return no_memory(error);
    json_decref(*thoughts);
    *thoughts = whole;
    return true;
}

bool conversation_think(struct conversation *conversation, const json_t *text, struct api_error *error) {
    return add_thought(&conversation->thoughts, text, error);
}

bool conversation_think_on(struct conversation *conversation, const json_t *text, struct api_error *error) {
    return add_thought(&last(conversation)->thoughts, text, error);
}

/* ---- content ---- */

bool conversation_append_other(struct conversation *conversation, const char *type, const char *param,
                               struct api_error *error) {
    char line[96];
    if (conversation->is_newest) return field_refuse(error, param, "found a part of type '%.40s', expected text", type);
    /* Thoughts, and what others' tools did: the model would write such lines itself. */
    if (last(conversation)->role == CHAT_ASSISTANT) return true;
    snprintf(line, sizeof line, "[%.40s: left out, this model reads text]", type);
    return append_word(conversation, line, error);
}

bool conversation_append_file(struct conversation *conversation, const json_t *part, const char *param, bool *is_file,
                              struct api_error *error) {
    const char *name;
    const json_t *data = file_part_data(part, &name);
    struct document document;
    *is_file = data != NULL && last(conversation)->role != CHAT_ASSISTANT;
    if (!*is_file) return true;
    if (!file_part_read(data, name, NULL, param, &document, error)) {
        const bool is_final = conversation->is_newest || error->http_status != 400;
        return !is_final && conversation_append_other(conversation, "file", param, error);
    }
    struct text text = {0};
    mark_add_file(&text, name);
    text_append(&text, document.text, document.length);
    text_add(&text, "\n\n");
    document_deinit(&document);
    const bool appended =
        text.failed ? no_memory(error) : conversation_append(conversation, text.bytes, text.length, error);
    text_deinit(&text);
    return appended;
}

static bool append_part(struct conversation *conversation, const json_t *part, const char *param,
                        struct api_error *error) {
    static const char *const kinds[] = {"text", "input_text", "output_text", "refusal"};
    if (json_is_string(part))
        return conversation_append(conversation, json_string_value(part), json_string_length(part), error);
    const char *type = "";
    size_t length = 0;
    if (!json_is_object(part))
        return field_refuse(error, param, "found %s, expected a part of type text", json_kind(part));
    if (!field_text(part, "type", 64, &type, &length, error)) return false;
    bool known = false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) known = known || strcmp(type, kinds[i]) == 0;
    const json_t *text = json_object_get(part, strcmp(type, "refusal") == 0 ? "refusal" : "text");
    bool is_file = false;
    if (!known && !conversation_append_file(conversation, part, param, &is_file, error)) return false;
    if (!known) return is_file || conversation_append_other(conversation, type, param, error);
    if (!json_is_string(text)) return field_refuse(error, param, "found a part of type '%.40s' without its text", type);
    return conversation_append(conversation, json_string_value(text), json_string_length(text), error);
}

bool conversation_append_content(struct conversation *conversation, const json_t *content, const char *param,
                                 struct api_error *error) {
    if (content == NULL || json_is_null(content)) return true;
    if (json_is_string(content))
        return conversation_append(conversation, json_string_value(content), json_string_length(content), error);
    if (!json_is_array(content))
        return field_refuse(error, param, "found %s, expected a string or a list of parts", json_kind(content));
    for (size_t i = 0; i < json_array_size(content); i++)
        if (!append_part(conversation, json_array_get(content, i), param, error)) return false;
    return true;
}

/* ---- tools ---- */

static bool append_json(struct conversation *conversation, const json_t *value, struct api_error *error) {
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    if (text == NULL) return no_memory(error);
    const bool appended = append_word(conversation, text, error);
    free(text);
    return appended;
}

bool conversation_append_call(struct conversation *conversation, const char *name, const json_t *arguments,
                              struct api_error *error) {
    json_t *parsed = NULL;
    if (json_is_string(arguments) && json_string_length(arguments) > 0) {
        struct api_error ignored; /* cut by a limit, or a model's mistake, which it is to see */
        if (!fields_parse(json_string_value(arguments), json_string_length(arguments), &parsed, &ignored))
            parsed = json_incref((json_t *)arguments);
    } else if (json_is_object(arguments)) {
        parsed = json_incref((json_t *)arguments);
    } else {
        parsed = json_object();
    }
    json_t *quoted = json_string(name);
    struct conversation_message *message = last(conversation);
    if (message->calls == NULL) {
        message->calls = json_array();
        message->plain_length = message->content.length;
    }
    json_array_append_new(message->calls, json_pack("{s:O, s:O}", "name", quoted, "arguments", parsed));
    const bool appended =
        append_word(conversation, last(conversation)->content.length > 0 ? "\n<tool_call>\n" : "<tool_call>\n",
                    error) &&
        append_word(conversation, "{\"name\": ", error) && append_json(conversation, quoted, error) &&
        append_word(conversation, ", \"arguments\": ", error) && append_json(conversation, parsed, error) &&
        append_word(conversation, "}\n</tool_call>", error);
    json_decref(quoted);
    json_decref(parsed);
    return appended;
}

bool conversation_add_result(struct conversation *conversation, const json_t *content, const char *param,
                             struct api_error *error) {
    const bool joins = conversation->count > 0 && last(conversation)->is_tool_result;
    if (!joins && !conversation_add(conversation, CHAT_USER, error)) return false;
    struct conversation_message *message = last(conversation);
    message->is_tool_result = true;
    conversation->is_newest = false;
    if (!array_reserve(&message->results, message->result_count, &message->result_capacity, sizeof *message->results))
        return no_memory(error);
    if (!append_word(conversation, joins ? "\n<tool_response>\n" : "<tool_response>\n", error)) return false;
    const size_t begin = message->content.length;
    if (!conversation_append_content(conversation, content, param, error)) return false;
    message->results[message->result_count++] = (struct conversation_span){begin, message->content.length};
    return append_word(conversation, "\n</tool_response>", error);
}

static bool check_tool(const json_t *tool, struct api_error *error) {
    const json_t *function = json_object_get(tool, "function");
    const json_t *name = json_object_get(function, "name");
    if (!json_is_string(name) || json_string_length(name) == 0 || json_string_length(name) > 256)
        return field_refuse(error, "tools", "expected {type: function, function: {name, description, parameters}}");
    const json_t *parameters = json_object_get(function, "parameters");
    if (parameters != NULL && !json_is_null(parameters) && !json_is_object(parameters))
        return field_refuse(error, "tools", "'parameters' of '%.60s': found %s, expected an object",
                            json_string_value(name), json_kind(parameters));
    return true;
}

bool conversation_add_tools(struct conversation *conversation, const json_t *tools, struct api_error *error) {
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!check_tool(json_array_get(tools, i), error)) return false;
    conversation->tools = json_incref((json_t *)tools);
    return true;
}

size_t conversation_newest(const json_t *messages) {
    for (size_t i = json_array_size(messages); i-- > 0;) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        if (role != NULL && strcmp(role, "user") == 0) return i;
    }
    return SIZE_MAX;
}

bool conversation_last_begins(const struct conversation *conversation, const char *words) {
    if (conversation->count == 0) return false;
    const struct conversation_message *message = &conversation->messages[conversation->count - 1];
    const size_t length = strlen(words);
    return message->role == CHAT_USER && message->content.length >= length &&
           memcmp(message->content.bytes, words, length) == 0;
}

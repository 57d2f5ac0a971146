#include "server/chat_messages.h"

#include <stdio.h>
#include <string.h>

#include "server/fields.h"

static bool read_role(const json_t *message, size_t index, const char **role, struct api_error *error) {
    size_t length = 0;
    *role = NULL;
    if (!json_is_object(message))
        return api_error_set(error, 400, "messages", "'messages'[%zu]: found %s, expected an object", index,
                             json_kind(message));
    if (!field_text(message, "role", 64, role, &length, error))
        return api_error_set(error, 400, "messages", "'messages'[%zu]: 'role': expected a string", index);
    return *role != NULL || api_error_set(error, 400, "messages", "'messages'[%zu]: 'role' is missing", index);
}

static bool read_calls(struct conversation *conversation, const json_t *message, struct api_error *error) {
    const json_t *calls;
    if (!field_array(message, "tool_calls", CONVERSATION_TOOLS_MAX, &calls, error)) return false;
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *custom = json_object_get(call, "custom");
        const json_t *function = custom != NULL ? custom : json_object_get(call, "function");
        const json_t *name = json_object_get(function, "name");
        if (!json_is_string(name))
            return api_error_set(error, 400, "messages", "'tool_calls'[%zu]: expected a function with a name", i);
        if (!conversation_append_call(conversation, json_string_value(name),
                                      json_object_get(function, custom != NULL ? "input" : "arguments"), error))
            return false;
    }
    return true;
}

static bool read_message(struct conversation *conversation, const json_t *message, size_t index, bool is_newest,
                         struct api_error *error) {
    const char *role;
    char param[48];
    snprintf(param, sizeof param, "messages[%zu].content", index);
    if (!read_role(message, index, &role, error)) return false;
    const json_t *content = json_object_get(message, "content");
    conversation->is_newest = is_newest;
    if (strcmp(role, "tool") == 0 || strcmp(role, "function") == 0)
        return conversation_add_result(conversation, content, param, error);
    enum chat_role known;
    if (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0)
        known = CHAT_SYSTEM;
    else if (strcmp(role, "user") == 0)
        known = CHAT_USER;
    else if (strcmp(role, "assistant") == 0)
        known = CHAT_ASSISTANT;
    else
        return api_error_set(error, 400, "messages",
                             "'messages'[%zu]: found role '%.40s', expected system, developer, user, assistant or "
                             "tool",
                             index, role);
    const json_t *thoughts = field_get(message, "reasoning_content");
    if (thoughts == NULL) thoughts = field_get(message, "reasoning");
    return conversation_think(conversation, thoughts, error) && conversation_add(conversation, known, error) &&
           conversation_append_content(conversation, content, param, error) &&
           (known != CHAT_ASSISTANT || read_calls(conversation, message, error));
}

bool chat_messages_read(struct conversation *conversation, const json_t *body, struct api_error *error) {
    const json_t *messages;
    if (!field_array(body, "messages", CONVERSATION_MESSAGES_MAX, &messages, error)) return false;
    if (messages == NULL || json_array_size(messages) == 0)
        return field_refuse(error, "messages", "expected at least one");
    const size_t newest = conversation_newest(messages);
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!read_message(conversation, json_array_get(messages, i), i, i == newest, error)) return false;
    return true;
}

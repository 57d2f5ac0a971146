#include "server/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/fields.h"

static bool no_memory(struct api_error *error) {
    return api_error_set(error, 503, NULL, "no memory for the conversation");
}

void conversation_deinit(struct conversation *conversation) {
    for (size_t i = 0; i < conversation->count; i++) free(conversation->messages[i].text);
    free(conversation->messages);
    *conversation = (struct conversation){0};
}

bool conversation_add(struct conversation *conversation, enum chat_role role, struct api_error *error) {
    if (conversation->count == conversation->capacity) {
        const size_t capacity = 2 * conversation->capacity + 16;
        struct conversation_message *grown = realloc(conversation->messages, capacity * sizeof *grown);
        if (grown == NULL) return no_memory(error);
        conversation->messages = grown;
        conversation->capacity = capacity;
    }
    conversation->messages[conversation->count++] = (struct conversation_message){.role = role};
    return true;
}

static bool append(struct conversation_message *message, const char *text, size_t length,
                   struct api_error *error) {
    if (length > message->capacity - message->length) {
        const size_t capacity = 2 * message->capacity + length;
        char *grown = realloc(message->text, capacity);
        if (grown == NULL) return no_memory(error);
        message->text = grown;
        message->capacity = capacity;
    }
    if (length > 0) memcpy(message->text + message->length, text, length);
    message->length += length;
    return true;
}

static struct conversation_message *last(struct conversation *conversation) {
    return &conversation->messages[conversation->count - 1];
}

bool conversation_append(struct conversation *conversation, const char *text, size_t length,
                         struct api_error *error) {
    return append(last(conversation), text, length, error);
}

static bool append_word(struct conversation *conversation, const char *text, struct api_error *error) {
    return conversation_append(conversation, text, strlen(text), error);
}

/* ---- content ---- */

bool conversation_append_other(struct conversation *conversation, const char *type, const char *param,
                               struct api_error *error) {
    char line[96];
    if (conversation->is_newest)
        return api_error_set(error, 400, param, "'%s': found a part of type '%.40s', expected text", param,
                             type);
    /* Thoughts, and what others' tools did: the model would write such lines itself. */
    if (last(conversation)->role == CHAT_ASSISTANT) return true;
    snprintf(line, sizeof line, "[%.40s: left out, this model reads text]", type);
    return append_word(conversation, line, error);
}

static bool append_part(struct conversation *conversation, const json_t *part, const char *param,
                        struct api_error *error) {
    static const char *const kinds[] = {"text", "input_text", "output_text", "refusal"};
    if (json_is_string(part))
        return conversation_append(conversation, json_string_value(part), json_string_length(part), error);
    const char *type = "";
    size_t length = 0;
    if (!json_is_object(part))
        return api_error_set(error, 400, param, "'%s': found %s, expected a part of type text", param,
                             json_kind(part));
    if (!field_text(part, "type", 64, &type, &length, error)) return false;
    bool known = false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) known = known || strcmp(type, kinds[i]) == 0;
    const json_t *text = json_object_get(part, strcmp(type, "refusal") == 0 ? "refusal" : "text");
    if (!known) return conversation_append_other(conversation, type, param, error);
    if (!json_is_string(text))
        return api_error_set(error, 400, param, "'%s': found a part of type '%.40s' without its text", param, type);
    return conversation_append(conversation, json_string_value(text), json_string_length(text), error);
}

bool conversation_append_content(struct conversation *conversation, const json_t *content, const char *param,
                                 struct api_error *error) {
    if (content == NULL || json_is_null(content)) return true;
    if (json_is_string(content))
        return conversation_append(conversation, json_string_value(content), json_string_length(content),
                                   error);
    if (!json_is_array(content))
        return api_error_set(error, 400, param, "'%s': found %s, expected a string or a list of parts", param,
                             json_kind(content));
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
    const bool appended =
        append_word(conversation, last(conversation)->length > 0 ? "\n<tool_call>\n" : "<tool_call>\n",
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
    last(conversation)->is_tool_result = true;
    conversation->is_newest = false;
    return append_word(conversation, joins ? "\n<tool_response>\n" : "<tool_response>\n", error) &&
           conversation_append_content(conversation, content, param, error) &&
           append_word(conversation, "\n</tool_response>", error);
}

static const char tools_before[] =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>";
static const char tools_after[] =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
    "<args-json-object>}\n</tool_call>";

/* The system message is the first: made where there is none. */
static bool begin_with_system(struct conversation *conversation, struct api_error *error) {
    if (conversation->count > 0 && conversation->messages[0].role == CHAT_SYSTEM) return true;
    if (!conversation_add(conversation, CHAT_SYSTEM, error)) return false;
    const struct conversation_message system = *last(conversation);
    memmove(conversation->messages + 1, conversation->messages, (conversation->count - 1) * sizeof system);
    conversation->messages[0] = system;
    return true;
}

static bool check_tool(const json_t *tool, struct api_error *error) {
    const json_t *function = json_object_get(tool, "function");
    const json_t *name = json_object_get(function, "name");
    if (!json_is_string(name) || json_string_length(name) == 0 || json_string_length(name) > 256)
        return api_error_set(error, 400, "tools",
                             "'tools': expected {type: function, function: {name, description, parameters}}");
    const json_t *parameters = json_object_get(function, "parameters");
    if (parameters != NULL && !json_is_null(parameters) && !json_is_object(parameters))
        return api_error_set(error, 400, "tools",
                             "'tools': 'parameters' of '%.60s': found %s, expected an object",
                             json_string_value(name), json_kind(parameters));
    return true;
}

bool conversation_add_tools(struct conversation *conversation, const json_t *tools, struct api_error *error) {
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!check_tool(json_array_get(tools, i), error)) return false;
    if (!begin_with_system(conversation, error)) return false;
    struct conversation texts = {.messages = conversation->messages,
                                 .count = 1}; /* its last is the system's */
    bool added = (texts.messages[0].length == 0 || append_word(&texts, "\n\n", error)) &&
                 append_word(&texts, tools_before, error);
    for (size_t i = 0; i < json_array_size(tools) && added; i++)
        added = append_word(&texts, "\n", error) && append_json(&texts, json_array_get(tools, i), error);
    return added && append_word(&texts, tools_after, error);
}

/* ---- tokens ---- */

/* Moves the text of message `from` to the end of message `to`, a paragraph of its own. */
static bool join(struct conversation_message *to, struct conversation_message *from,
                 struct api_error *error) {
    const bool joined =
        (to->length == 0 || append(to, "\n\n", 2, error)) && append(to, from->text, from->length, error);
    free(from->text);
    *from = (struct conversation_message){0};
    return joined;
}

/* Where the template has a system message at the start only: all of them become one. */
static bool gather_system(struct conversation *conversation, struct api_error *error) {
    bool has_later = false;
    for (size_t i = 1; i < conversation->count; i++)
        has_later = has_later || conversation->messages[i].role == CHAT_SYSTEM;
    if (!has_later) return true;
    if (!begin_with_system(conversation, error)) return false;
    size_t kept = 1;
    bool gathered = true;
    for (size_t i = 1; i < conversation->count; i++) {
        struct conversation_message *message = &conversation->messages[i];
        if (message->role == CHAT_SYSTEM)
            gathered = join(&conversation->messages[0], message, error) && gathered;
        else
            conversation->messages[kept++] = *message;
    }
    conversation->count = kept;
    return gathered;
}

/* Where the template wants turns: neighbours of one role become one message. */
static bool merge_neighbours(struct conversation *conversation, struct api_error *error) {
    size_t kept = 0;
    bool merged = true;
    for (size_t i = 0; i < conversation->count; i++) {
        struct conversation_message *message = &conversation->messages[i];
        if (kept > 0 && conversation->messages[kept - 1].role == message->role)
            merged = join(&conversation->messages[kept - 1], message, error) && merged;
        else
            conversation->messages[kept++] = *message;
    }
    conversation->count = kept;
    return merged;
}

bool conversation_encode(struct conversation *conversation, const struct chat_template *chat,
                         const struct tokenizer *tokenizer, struct token_list *list,
                         struct api_error *error) {
    if (chat == NULL)
        return api_error_set(error, 400, NULL,
                             "the model has no chat template: loam serve --chat-template NAME gives it one");
    if (conversation->count == 0) return api_error_set(error, 400, "messages", "'messages': found none");
    if (chat_template_wants_system_first(chat) && !gather_system(conversation, error)) return false;
    if (chat_template_takes_turns(chat) && !merge_neighbours(conversation, error)) return false;
    struct chat_message *messages = calloc(conversation->count, sizeof *messages);
    if (messages == NULL) return no_memory(error);
    for (size_t i = 0; i < conversation->count; i++) {
        const struct conversation_message *message = &conversation->messages[i];
        messages[i] = (struct chat_message){.role = message->role,
                                            .content = message->text != NULL ? message->text : "",
                                            .length = message->length};
    }
    struct error reason;
    const enum status status =
        chat_template_apply(chat, tokenizer, messages, conversation->count, true, list, &reason);
    free(messages);
    return status == STATUS_OK || api_error_from(error, &reason);
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
    return message->role == CHAT_USER && message->length >= length &&
           memcmp(message->text, words, length) == 0;
}

/* /v1/messages: Anthropic's form of a conversation, and of its stream. */
#include <stdio.h>
#include <string.h>

#include "format/json.h"
#include "server/conversation_request.h"
#include "server/fields.h"
#include "server/json_text.h"
#include "server/routes.h"
#include "server/sse.h"

/* ---- the request ---- */

/* Claude Code's first line changes with every request: what follows it would never be found again. */
static void skip_billing_line(const char **text, size_t *length) {
    static const char header[] = "x-anthropic-billing-header:";
    if (*length < sizeof header - 1 || memcmp(*text, header, sizeof header - 1) != 0) return;
    const char *end = memchr(*text, '\n', *length);
    const size_t line = end != NULL ? (size_t)(end - *text) + 1 : *length;
    *text += line;
    *length -= line;
}

static bool wrong(struct api_error *error, const char *param, const char *what) {
    return api_error_set(error, 400, param, "%s: %s", param, what);
}

static bool append_text(struct conversation *conversation, const json_t *text, const char *param,
                        struct api_error *error) {
    if (!json_is_string(text)) return wrong(error, param, "expected text");
    const char *bytes = json_string_value(text);
    size_t length = json_string_length(text);
    skip_billing_line(&bytes, &length);
    return conversation_append(conversation, bytes, length, error);
}

static bool append_content(struct conversation *conversation, const json_t *content, const char *param,
                           struct api_error *error);

/* Where it is from, a line each, and what it says. */
static bool append_search_result(struct conversation *conversation, const json_t *block, const char *param,
                                 struct api_error *error) {
    static const char *const lines[] = {"title", "source"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const json_t *line = field_get(block, lines[i]);
        if (line != NULL &&
            (!append_text(conversation, line, param, error) || !conversation_append(conversation, "\n", 1, error)))
            return false;
    }
    return append_content(conversation, json_object_get(block, "content"), param, error);
}

/* A block of text, or a document that is text.  What others' tools did (server_tool_use and its results) is
 * left out. */
static bool append_block(struct conversation *conversation, const json_t *block, const char *param,
                         struct api_error *error) {
    const char *type = "";
    size_t length = 0;
    if (!json_is_object(block)) return wrong(error, param, "expected blocks of content");
    if (!field_text(block, "type", 64, &type, &length, error)) return false;
    if (strcmp(type, "text") == 0) return append_text(conversation, json_object_get(block, "text"), param, error);
    const json_t *source = json_object_get(block, "source"), *kind = json_object_get(source, "type");
    if (strcmp(type, "document") == 0 && json_is_string(kind) && strcmp(json_string_value(kind), "text") == 0)
        return append_text(conversation, json_object_get(source, "data"), param, error) &&
               conversation_append(conversation, "\n\n", 2, error);
    if (strcmp(type, "document") == 0 && json_is_string(kind) && strcmp(json_string_value(kind), "content") == 0)
        return append_content(conversation, json_object_get(source, "content"), param, error);
    if (strcmp(type, "search_result") == 0) return append_search_result(conversation, block, param, error);
    if (strcmp(type, "tool_reference") == 0)
        return append_text(conversation, json_object_get(block, "tool_name"), param, error);
    bool is_file = false;
    if (!conversation_append_file(conversation, block, param, &is_file, error)) return false;
    return is_file || conversation_append_other(conversation, type, param, error);
}

static bool append_content(struct conversation *conversation, const json_t *content, const char *param,
                           struct api_error *error) {
    if (content == NULL || json_is_null(content)) return true;
    if (json_is_string(content)) return append_text(conversation, content, param, error);
    if (!json_is_array(content)) return wrong(error, param, "expected a string or a list of blocks");
    for (size_t i = 0; i < json_array_size(content); i++)
        if (!append_block(conversation, json_array_get(content, i), param, error)) return false;
    return true;
}

/* A result is a turn of its own; text beside it goes on behind it. */
static bool read_result(struct conversation *conversation, const json_t *block, const char *param,
                        struct api_error *error) {
    struct conversation text = {0};
    bool read = conversation_add(&text, CHAT_USER, error) &&
                append_content(&text, json_object_get(block, "content"), param, error);
    json_t *whole = read ? json_text(text.messages[0].content.bytes != NULL ? text.messages[0].content.bytes : "",
                                     text.messages[0].content.length)
                         : NULL;
    read = read && conversation_add_result(conversation, whole, param, error);
    json_decref(whole);
    conversation_deinit(&text);
    return read;
}

static bool read_block(struct conversation *conversation, enum chat_role role, const json_t *block, bool *has_message,
                       const char *param, struct api_error *error) {
    const json_t *type = json_object_get(block, "type");
    const char *kind = json_is_string(type) ? json_string_value(type) : "";
    if (role == CHAT_USER && strcmp(kind, "tool_result") == 0) {
        *has_message = false;
        return read_result(conversation, block, param, error);
    }
    if (role == CHAT_ASSISTANT && strcmp(kind, "thinking") == 0) {
        const json_t *thoughts = json_object_get(block, "thinking");
        return *has_message ? conversation_think_on(conversation, thoughts, error)
                            : conversation_think(conversation, thoughts, error);
    }
    if (!*has_message && !conversation_add(conversation, role, error)) return false;
    *has_message = true;
    if (role != CHAT_ASSISTANT || strcmp(kind, "tool_use") != 0) return append_block(conversation, block, param, error);
    const json_t *name = json_object_get(block, "name");
    if (!json_is_string(name)) return wrong(error, param, "a tool_use without a name");
    return conversation_append_call(conversation, json_string_value(name), json_object_get(block, "input"), error);
}

static bool read_message(struct conversation *conversation, const json_t *message, size_t index, bool is_newest,
                         struct api_error *error) {
    char param[48];
    snprintf(param, sizeof param, "messages.%zu", index);
    const json_t *name = json_object_get(message, "role"), *content = json_object_get(message, "content");
    enum chat_role role;
    if (json_is_string(name) && strcmp(json_string_value(name), "user") == 0)
        role = CHAT_USER;
    else if (json_is_string(name) && strcmp(json_string_value(name), "assistant") == 0)
        role = CHAT_ASSISTANT;
    else if (json_is_string(name) && strcmp(json_string_value(name), "system") == 0)
        role = CHAT_SYSTEM;
    else
        return wrong(error, param, "expected a role: user or assistant");
    conversation->is_newest = is_newest;
    if (!json_is_array(content) || json_array_size(content) == 0)
        return conversation_add(conversation, role, error) && append_content(conversation, content, param, error);
    bool has_message = false;
    for (size_t i = 0; i < json_array_size(content); i++) {
        conversation->is_newest = is_newest;
        if (!read_block(conversation, role, json_array_get(content, i), &has_message, param, error)) return false;
    }
    return true;
}

/* {name, description, input_schema}; Anthropic's own tools (computers, searches) are left out. */
static bool read_tools(struct tool_wish *wish, const json_t *body, struct api_error *error) {
    const json_t *tools, *choice;
    if (!field_array(body, "tools", CONVERSATION_TOOLS_MAX, &tools, error) ||
        !field_object(body, "tool_choice", &choice, error))
        return false;
    const json_t *type = json_object_get(choice, "type");
    const char *kind = json_is_string(type) ? json_string_value(type) : "auto";
    if (strcmp(kind, "none") == 0 || json_array_size(tools) == 0) return true;
    if (strcmp(kind, "tool") == 0) wish->name = json_string_value(json_object_get(choice, "name"));
    wish->must_call = wish->name != NULL || strcmp(kind, "any") == 0;
    if (!wish->must_call && strcmp(kind, "auto") != 0)
        return wrong(error, "tool_choice", "expected type auto, any, none, or tool with a name");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        if (json_object_get(tool, "input_schema") != NULL || json_object_get(tool, "type") == NULL)
            tool_wish_add(wish, tool, "input_schema");
    }
    return true;
}

static bool read_messages(struct conversation *conversation, const json_t *body, struct api_error *error) {
    const json_t *messages, *system = field_get(body, "system");
    bool read = field_array(body, "messages", CONVERSATION_MESSAGES_MAX, &messages, error);
    if (read && json_array_size(messages) == 0) read = wrong(error, "messages", "expected at least one");
    if (read && system != NULL)
        read =
            conversation_add(conversation, CHAT_SYSTEM, error) && append_content(conversation, system, "system", error);
    if (read && system != NULL && conversation->messages[0].content.length == 0)
        conversation_deinit(conversation); /* nothing but the line that was left out */
    const size_t newest = conversation_newest(messages);
    for (size_t i = 0; read && i < json_array_size(messages); i++)
        read = read_message(conversation, json_array_get(messages, i), i, i == newest, error);
    return read;
}

static const struct conversation_form form = {.read_messages = read_messages, .read_tools = read_tools};

static bool read_request(struct ask *ask, struct api_error *error) {
    static const char *const token_max[] = {"max_tokens"};
    bool read = ask_options_read(&ask->options, ask->body, &ask->server->model, ask_seed(ask), error) &&
                ask_options_read_token_max(&ask->options, ask->body, token_max, 1, error);
    if (read && !ask->options.has_token_max) read = wrong(error, "max_tokens", "expected a number");
    if (read && ask->options.choices != 1) read = wrong(error, "n", "expected 1");
    return read && conversation_request_ask(ask, &form, error);
}

/* ---- the response ---- */

static const char *stop_reason(const struct ask_choice *choice) {
    switch (choice->stop) {
    case STOP_LENGTH:
    case STOP_LOOP: return "max_tokens";
    case STOP_CONTEXT: return "model_context_window_exceeded";
    case STOP_STRING: return "stop_sequence";
    case STOP_NONE:
    case STOP_END:
    case STOP_INTERRUPTED:
    case STOP_FAILED: break;
    }
    return choice->call_count > 0 ? "tool_use" : "end_turn";
}

static json_t *stop_sequence(const struct ask_choice *choice) {
    if (choice->stop != STOP_STRING) return json_null();
    const char *stop = choice->ask->options.stops[choice->stop_index];
    return json_text(stop, strlen(stop));
}

/* Tokens that were reused are told apart from those that were computed: together they are the prompt. */
static json_t *usage_json(const struct ask *ask, size_t output_tokens) {
    const struct service_figures *figures = &ask->choices[0].figures;
    return JSON({"input_tokens", json_uint(figures->prompt_tokens - figures->reused_tokens)},
                {"cache_creation_input_tokens", json_uint(0)},
                {"cache_read_input_tokens", json_uint(figures->reused_tokens)},
                {"output_tokens", json_uint(output_tokens)});
}

static json_t *message_json(const struct ask *ask, json_t *content, json_t *reason, json_t *sequence,
                            size_t output_tokens) {
    const struct server_model *model = &ask->server->model;
    return JSON({"id", json_string(ask->id)}, {"type", json_string("message")}, {"role", json_string("assistant")},
                {"model", json_text(model->id, strlen(model->id))}, {"content", content}, {"stop_reason", reason},
                {"stop_sequence", sequence}, {"usage", usage_json(ask, output_tokens)});
}

/* A call's arguments are JSON of the model's: an object, or else told as they came. */
static json_t *input_json(const struct ask_call *call) {
    json_t *input = NULL;
    if (json_parse_bytes(call->arguments, strlen(call->arguments), "arguments", STATUS_USAGE, &input, NULL) ==
            STATUS_OK &&
        json_is_object(input))
        return input;
    json_decref(input);
    input = json_object();
    json_put(input, "arguments", json_text(call->arguments, strlen(call->arguments)));
    return input;
}

/* empty: as a stream begins it. */
static json_t *block_json(const struct ask_choice *choice, const struct ask_item *item, bool empty) {
    json_t *block = json_object();
    const size_t length = empty ? 0 : item->end - item->begin;
    switch (item->kind) {
    case ANSWER_CONTENT:
        JSON_PUT(block, {"type", json_string("text")},
                 {"text", json_text(choice->content.bytes + item->begin, length)});
        break;
    case ANSWER_REASONING:
        JSON_PUT(block, {"type", json_string("thinking")},
                 {"thinking", json_text(choice->reasoning.bytes + item->begin, length)},
                 {"signature", json_string("")});
        break;
    case ANSWER_TOOL_CALL: {
        const struct ask_call *call = &choice->calls[item->begin];
        JSON_PUT(block, {"type", json_string("tool_use")}, {"id", json_string(call->id)},
                 {"name", json_text(call->name, strlen(call->name))},
                 {"input", empty ? json_object() : input_json(call)});
        break;
    }
    }
    return block;
}

static void send(struct ask *ask, const char *event, json_t *value) {
    json_put(value, "type", json_string(event));
    if (sse_send(ask->exchange, event, value)) ask->is_full = true;
}

static void stream_begin(struct ask *ask, const struct service_admission *admission) {
    (void)admission;
    send(ask, "message_start", JSON({"message", message_json(ask, json_array(), json_null(), json_null(), 0)}));
    send(ask, "ping", json_object());
}

static void stop_block(struct ask *ask, size_t index) {
    send(ask, "content_block_stop", JSON({"index", json_uint(index)}));
}

/* items_sent: blocks that have begun. */
static void stream_part(struct ask *ask, struct ask_choice *choice, const struct answer_part *part) {
    const size_t index = choice->item_count - 1;
    if (choice->sent.items < choice->item_count) {
        if (index > 0) stop_block(ask, index - 1);
        send(ask, "content_block_start",
             JSON({"index", json_uint(index)}, {"content_block", block_json(choice, &choice->items[index], true)}));
        choice->sent.items = choice->item_count;
    }
    static const char *const types[] = {[ANSWER_CONTENT] = "text_delta",
                                        [ANSWER_REASONING] = "thinking_delta",
                                        [ANSWER_TOOL_CALL] = "input_json_delta"};
    static const char *const names[] = {
        [ANSWER_CONTENT] = "text", [ANSWER_REASONING] = "thinking", [ANSWER_TOOL_CALL] = "partial_json"};
    json_t *event = JSON({"index", json_uint(index)});
    json_t *delta =
        JSON({"type", json_string(types[part->kind])}, {names[part->kind], json_text(part->bytes, part->length)});
    json_put(event, "delta", delta);
    send(ask, "content_block_delta", event);
}

static void end_stream(struct ask *ask) {
    const struct ask_choice *choice = &ask->choices[0];
    if (choice->item_count > 0) stop_block(ask, choice->item_count - 1);
    json_t *delta = JSON({"stop_reason", json_string(stop_reason(choice))}, {"stop_sequence", stop_sequence(choice)});
    send(ask, "message_delta", JSON({"delta", delta}, {"usage", usage_json(ask, choice->figures.answer_tokens)}));
    send(ask, "message_stop", json_object());
}

static void end(struct ask *ask) {
    const struct ask_choice *choice = &ask->choices[0];
    if (ask->options.streams) {
        end_stream(ask);
        return;
    }
    json_t *content = json_array();
    for (size_t i = 0; i < choice->item_count; i++)
        json_array_append_new(content, block_json(choice, &choice->items[i], false));
    exchange_reply_json(ask->exchange, 200,
                        message_json(ask, content, json_string(stop_reason(choice)), stop_sequence(choice),
                                     choice->figures.answer_tokens));
}

static void fail(struct ask *ask, const struct api_error *error) {
    (void)sse_send(ask->exchange, "error", api_error_json(error, true));
}

static void beat(struct ask *ask) { (void)sse_send(ask->exchange, "ping", JSON({"type", json_string("ping")})); }

static const struct ask_family family = {.id_prefix = "msg_",
                                         .read = read_request,
                                         .call_prefix = "toolu_",
                                         .begin = stream_begin,
                                         .part = stream_part,
                                         .end = end,
                                         .fail = fail,
                                         .beat = beat};

void messages_route(struct server *server, struct exchange *exchange) { ask_route(server, exchange, &family); }

void count_tokens_route(struct server *server, struct exchange *exchange) {
    json_t *body;
    if (!server_read_body(exchange, &body)) return;
    struct conversation_request request;
    struct api_error error;
    if (conversation_request_read(&request, &form, server, exchange, body, &error)) {
        exchange_reply_json(exchange, 200, JSON({"input_tokens", json_uint(request.prompt.count)}));
    } else {
        exchange_reply_error(exchange, &error);
    }
    conversation_request_deinit(&request);
    json_decref(body);
}

/* /v1/responses: OpenAI's newer form, without anything kept between requests. */
#include <stdio.h>
#include <string.h>

#include "server/conversation_request.h"
#include "server/fields.h"
#include "server/json_text.h"
#include "server/routes.h"
#include "server/sse.h"

/* ---- the request ---- */

static bool read_item_message(struct conversation *conversation, const json_t *item, const char *param,
                              struct api_error *error) {
    static const struct {
        const char *name;
        enum chat_role role;
    } roles[] = {
        {"system", CHAT_SYSTEM}, {"developer", CHAT_SYSTEM}, {"user", CHAT_USER}, {"assistant", CHAT_ASSISTANT}};
    const json_t *role = json_object_get(item, "role");
    for (size_t i = 0; json_is_string(role) && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(json_string_value(role), roles[i].name) == 0)
            return conversation_add(conversation, roles[i].role, error) &&
                   conversation_append_content(conversation, json_object_get(item, "content"), param, error);
    return field_refuse(error, param, "expected a role: system, developer, user or assistant");
}

/* A call joins the assistant's message before it. */
static bool read_item_call(struct conversation *conversation, const json_t *item, const char *param,
                           struct api_error *error) {
    const json_t *name = json_object_get(item, "name");
    const size_t count = conversation->count;
    if (!json_is_string(name)) return field_refuse(error, param, "a call without a name");
    if ((count == 0 || conversation->messages[count - 1].role != CHAT_ASSISTANT || conversation->thoughts != NULL) &&
        !conversation_add(conversation, CHAT_ASSISTANT, error))
        return false;
    const json_t *arguments = json_object_get(item, "arguments");
    if (arguments == NULL) arguments = json_object_get(item, "input"); /* of a custom tool: text */
    return conversation_append_call(conversation, json_string_value(name), arguments, error);
}

/* What other servers' own tools did, and what clients tell of themselves: a session goes on after it. */
static bool is_left_out(const char *type) {
    static const char *const kinds[] = {"additional_tools", "compaction", "mcp_list_tools", "mcp_approval_request",
                                        "mcp_approval_response"};
    static const char *const ends[] = {"_call", "_call_output"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(type, kinds[i]) == 0) return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t length = strlen(type), own = strlen(ends[i]);
        if (length > own && strcmp(type + length - own, ends[i]) == 0) return true;
    }
    return false;
}

/* Thoughts come before the message or the call that they are of; as text, where another server did not keep it for
 * itself. */
static bool read_item_thoughts(struct conversation *conversation, const json_t *item, struct api_error *error) {
    const json_t *parts = json_object_get(item, "content");
    bool read = true;
    for (size_t i = 0; i < json_array_size(parts) && read; i++)
        read = conversation_think(conversation, json_object_get(json_array_get(parts, i), "text"), error);
    return read;
}

static bool read_item(struct conversation *conversation, const json_t *item, size_t index, struct api_error *error) {
    char param[48];
    const char *type = "message";
    size_t length = 0;
    snprintf(param, sizeof param, "input[%zu]", index);
    if (!json_is_object(item)) return field_refuse(error, param, "found %s, expected an object", json_kind(item));
    if (!field_text(item, "type", 64, &type, &length, error)) return false;
    if (strcmp(type, "message") == 0) return read_item_message(conversation, item, param, error);
    if (strcmp(type, "reasoning") == 0) return read_item_thoughts(conversation, item, error);
    if (strcmp(type, "function_call") == 0 || strcmp(type, "custom_tool_call") == 0)
        return read_item_call(conversation, item, param, error);
    if (strcmp(type, "function_call_output") == 0 || strcmp(type, "custom_tool_call_output") == 0)
        return conversation_add_result(conversation, json_object_get(item, "output"), param, error);
    if (is_left_out(type)) return true;
    return field_refuse(error, param, "found type '%.40s', which is not kept here", type);
}

static bool read_input(struct conversation *conversation, const json_t *body, struct api_error *error) {
    const json_t *input = field_get(body, "input");
    const char *instructions = NULL;
    size_t length = 0;
    if (!field_text(body, "instructions", GUARD_BODY_BYTES_MAX, &instructions, &length, error)) return false;
    if (instructions != NULL && (!conversation_add(conversation, CHAT_SYSTEM, error) ||
                                 !conversation_append(conversation, instructions, length, error)))
        return false;
    if (json_is_string(input))
        return conversation_add(conversation, CHAT_USER, error) &&
               conversation_append_content(conversation, input, "input", error);
    if (!json_is_array(input) || json_array_size(input) == 0 || json_array_size(input) > CONVERSATION_MESSAGES_MAX)
        return field_refuse(error, "input", "expected a string or a list of items");
    const size_t newest = conversation_newest(input);
    for (size_t i = 0; i < json_array_size(input); i++) {
        conversation->is_newest = i == newest;
        if (!read_item(conversation, json_array_get(input, i), i, error)) return false;
    }
    return true;
}

/* {type: function, name, description, parameters}; other tools are left out. */
static bool read_tools(struct tool_wish *wish, const json_t *body, struct api_error *error) {
    const json_t *tools, *choice = field_get(body, "tool_choice");
    const char *name = json_string_value(json_object_get(choice, "name"));
    bool hears;
    if (!field_array(body, "tools", CONVERSATION_TOOLS_MAX, &tools, error)) return false;
    if (json_array_size(tools) == 0) return true;
    if (!tool_wish_read_choice(wish, choice, name, "{type: function, name}", &hears, error)) return false;
    for (size_t i = 0; hears && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *type = json_object_get(tool, "type");
        if (json_is_string(type) && strcmp(json_string_value(type), "function") == 0)
            tool_wish_add(wish, tool, "parameters");
    }
    return true;
}

static bool read_request(struct ask *ask, struct api_error *error) {
    static const struct conversation_form form = {.read_messages = read_input, .read_tools = read_tools};
    static const char *const token_max[] = {"max_output_tokens"};
    static const char *const refused[] = {"previous_response_id", "conversation", "prompt", "background"};
    bool read = ask_options_read(&ask->options, ask->body, &ask->server->model, ask_seed(ask), error) &&
                ask_options_read_token_max(&ask->options, ask->body, token_max, 1, error) &&
                ask_options_refuse(ask->body, refused, sizeof refused / sizeof *refused, error);
    if (read && ask->options.choices != 1) read = field_refuse(error, "n", "expected 1");
    return read && conversation_request_ask(ask, &form, error);
}

/* ---- the response ---- */

static bool is_cut(const struct ask_choice *choice) { return stop_reason_is_cut(choice->stop); }

static json_t *part_json(const struct ask_choice *choice, const struct ask_item *item, bool empty) {
    const bool is_text = item->kind == ANSWER_CONTENT;
    const struct text *bytes = is_text ? &choice->content : &choice->reasoning;
    json_t *part = JSON({"type", json_string(is_text ? "output_text" : "reasoning_text")},
                        {"text", json_text(bytes->bytes + item->begin, empty ? 0 : item->end - item->begin)});
    if (is_text) json_put(part, "annotations", json_array());
    if (is_text) json_put(part, "logprobs", json_array());
    return part;
}

static json_t *item_json(const struct ask_choice *choice, const struct ask_item *item, bool empty) {
    json_t *content = json_array();
    const char *status = empty ? "in_progress" : is_cut(choice) ? "incomplete" : "completed";
    const bool is_last = item == &choice->items[choice->item_count - 1];
    json_t *object = JSON({"id", json_string(item->id)});
    if (!empty && item->kind != ANSWER_TOOL_CALL) json_array_append_new(content, part_json(choice, item, false));
    switch (item->kind) {
    case ANSWER_CONTENT: JSON_PUT(object, {"type", json_string("message")}, {"role", json_string("assistant")}); break;
    case ANSWER_REASONING: JSON_PUT(object, {"type", json_string("reasoning")}, {"summary", json_array()}); break;
    case ANSWER_TOOL_CALL: {
        const struct ask_call *call = &choice->calls[item->begin];
        JSON_PUT(object, {"type", json_string("function_call")}, {"call_id", json_string(call->id)},
                 {"name", json_text(call->name, strlen(call->name))},
                 {"arguments", json_text(call->arguments, empty ? 0 : strlen(call->arguments))});
        break;
    }
    }
    if (item->kind != ANSWER_TOOL_CALL) json_put(object, "content", json_incref(content));
    json_decref(content);
    json_put(object, "status", json_string(is_last || empty ? status : "completed"));
    return object;
}

static json_t *usage_json(const struct ask *ask) {
    const struct service_figures *figures = &ask->choices[0].figures;
    return JSON({"input_tokens", json_uint(figures->prompt_tokens)},
                {"input_tokens_details", JSON({"cached_tokens", json_uint(figures->reused_tokens)})},
                {"output_tokens", json_uint(figures->answer_tokens)},
                {"output_tokens_details", JSON({"reasoning_tokens", json_uint(ask->choices[0].reasoning_tokens)})},
                {"total_tokens", json_uint(figures->prompt_tokens + figures->answer_tokens)});
}

/* What the request said, told back; NULL: fallback. */
static json_t *told(const struct ask *ask, const char *name, json_t *fallback) {
    const json_t *value = field_get(ask->body, name);
    if (value == NULL) return fallback;
    json_decref(fallback);
    return json_incref((json_t *)value);
}

static json_t *response_json(const struct ask *ask, const char *status, bool is_done) {
    const struct server_model *model = &ask->server->model;
    const struct ask_choice *choice = &ask->choices[0];
    json_t *output = json_array(), *details = json_null(), *text = json_object();
    if (is_done && is_cut(choice)) {
        details = json_object();
        json_put(details, "reason", json_string("max_output_tokens"));
    }
    for (size_t i = 0; is_done && i < choice->item_count; i++)
        json_array_append_new(output, item_json(choice, &choice->items[i], false));
    const json_t *asked = ask->options.form.format;
    json_t *format = asked != NULL ? json_incref((json_t *)asked) : json_object();
    if (asked == NULL) json_put(format, "type", json_string("text"));
    json_put(text, "format", format);
    json_t *response = JSON({"id", json_string(ask->id)}, {"object", json_string("response")});
    JSON_PUT(
        response, {"created_at", json_integer(ask->created)}, {"status", json_string(status)}, {"error", json_null()},
        {"incomplete_details", details}, {"instructions", told(ask, "instructions", json_null())},
        {"max_output_tokens", told(ask, "max_output_tokens", json_null())},
        {"model", json_text(model->id, strlen(model->id))}, {"output", output}, {"parallel_tool_calls", json_true()},
        {"previous_response_id", json_null()}, {"reasoning", told(ask, "reasoning", json_null())},
        {"store", json_false()}, {"temperature", json_number((double)ask->options.sampling.temperature)},
        {"text", text}, {"tool_choice", told(ask, "tool_choice", json_string("auto"))},
        {"tools", told(ask, "tools", json_array())}, {"top_p", json_number((double)ask->options.sampling.top_p)},
        {"truncation", json_string("disabled")}, {"usage", is_done ? usage_json(ask) : json_null()},
        {"metadata", told(ask, "metadata", json_object())});
    return response;
}

/* ---- the stream ---- */

/* Takes the event.  events_sent numbers them in the order in which they are written, by whichever thread.  true: the
 * client has enough for now. */
static bool send_numbered(struct ask *ask, const char *type, json_t *event) {
    json_put(event, "type", json_string(type));
    pthread_mutex_lock(&ask->end.mutex);
    json_put_uint(event, "sequence_number", ask->choices[0].sent.events++);
    const bool is_full = sse_send(ask->exchange, type, event);
    pthread_mutex_unlock(&ask->end.mutex);
    return is_full;
}

static void send(struct ask *ask, const char *type, json_t *event) {
    if (send_numbered(ask, type, event)) ask->is_full = true;
}

static void send_response(struct ask *ask, const char *type, const char *status, bool is_done) {
    send(ask, type, JSON({"response", response_json(ask, status, is_done)}));
}

static void stream_begin(struct ask *ask, const struct service_admission *admission) {
    (void)admission;
    send_response(ask, "response.created", "in_progress", false);
    send_response(ask, "response.in_progress", "in_progress", false);
}

/* An event of an item. */
static json_t *of_item(const struct ask_choice *choice, size_t index, bool has_part) {
    json_t *event = JSON({"item_id", json_string(choice->items[index].id)}, {"output_index", json_uint(index)});
    if (has_part) json_put_uint(event, "content_index", 0);
    return event;
}

static void send_item(struct ask *ask, const char *type, size_t index, bool empty) {
    const struct ask_choice *choice = &ask->choices[0];
    send(ask, type,
         JSON({"output_index", json_uint(index)}, {"item", item_json(choice, &choice->items[index], empty)}));
}

static void send_part(struct ask *ask, const char *type, size_t index, bool empty) {
    const struct ask_choice *choice = &ask->choices[0];
    json_t *event = of_item(choice, index, true);
    json_put(event, "part", part_json(choice, &choice->items[index], empty));
    send(ask, type, event);
}

static void begin_item(struct ask *ask, size_t index) {
    send_item(ask, "response.output_item.added", index, true);
    if (ask->choices[0].items[index].kind != ANSWER_TOOL_CALL)
        send_part(ask, "response.content_part.added", index, true);
}

static void end_item(struct ask *ask, size_t index) {
    const struct ask_choice *choice = &ask->choices[0];
    const struct ask_item *item = &choice->items[index];
    if (item->kind != ANSWER_TOOL_CALL) {
        const bool is_text = item->kind == ANSWER_CONTENT;
        const struct text *bytes = is_text ? &choice->content : &choice->reasoning;
        json_t *event = of_item(choice, index, true);
        json_put(event, "text", json_text(bytes->bytes + item->begin, item->end - item->begin));
        if (is_text) json_put(event, "logprobs", json_array());
        send(ask, is_text ? "response.output_text.done" : "response.reasoning_text.done", event);
        send_part(ask, "response.content_part.done", index, false);
    }
    send_item(ask, "response.output_item.done", index, false);
}

static void stream_part(struct ask *ask, struct ask_choice *choice, const struct answer_part *part) {
    const size_t index = choice->item_count - 1;
    if (choice->sent.items < choice->item_count) {
        if (index > 0) end_item(ask, index - 1);
        begin_item(ask, index);
        choice->sent.items = choice->item_count;
    }
    json_t *event = of_item(choice, index, part->kind != ANSWER_TOOL_CALL);
    json_put(event, "delta", json_text(part->bytes, part->length));
    switch (part->kind) {
    case ANSWER_CONTENT:
        json_put(event, "logprobs", json_array());
        send(ask, "response.output_text.delta", event);
        break;
    case ANSWER_REASONING: send(ask, "response.reasoning_text.delta", event); break;
    case ANSWER_TOOL_CALL:
        send(ask, "response.function_call_arguments.delta", event);
        event = of_item(choice, index, false);
        JSON_PUT(event, {"name", json_text(part->tool_name, strlen(part->tool_name))},
                 {"arguments", json_text(part->bytes, part->length)});
        send(ask, "response.function_call_arguments.done", event);
        break;
    }
}

static void end(struct ask *ask) {
    const struct ask_choice *choice = &ask->choices[0];
    const char *status = is_cut(choice) ? "incomplete" : "completed";
    if (!ask->options.streams) {
        exchange_reply_json(ask->exchange, 200, response_json(ask, status, true));
        return;
    }
    if (choice->item_count > 0) end_item(ask, choice->item_count - 1);
    send_response(ask, is_cut(choice) ? "response.incomplete" : "response.completed", status, true);
}

static void fail(struct ask *ask, const struct api_error *error) {
    json_t *told_error = api_error_json(error, false);
    const json_t *inner = json_object_get(told_error, "error");
    json_t *event = JSON({"code", json_incref(json_object_get(inner, "type"))},
                         {"message", json_incref(json_object_get(inner, "message"))},
                         {"param", json_incref(json_object_get(inner, "param"))});
    json_decref(told_error);
    send(ask, "error", event);
}

/* Told again; comments would not reset a client's timer. */
static void beat(struct ask *ask) {
    (void)send_numbered(ask, "response.in_progress", JSON({"response", response_json(ask, "in_progress", false)}));
}

static const struct ask_family family = {.id_prefix = "resp_",
                                         .read = read_request,
                                         .begin = stream_begin,
                                         .part = stream_part,
                                         .end = end,
                                         .fail = fail,
                                         .beat = beat};

void responses_route(struct server *server, struct exchange *exchange) { ask_route(server, exchange, &family); }

/* /v1/chat/completions: a conversation's next message, with tools and reasoning told apart. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/ask.h"
#include "server/chat_messages.h"
#include "server/conversation.h"
#include "server/document_text.h"
#include "server/fields.h"
#include "server/json_text.h"
#include "server/log_probabilities.h"
#include "server/openai.h"
#include "server/routes.h"
#include "server/sse.h"
#include "server/template_switches.h"
#include "server/tool_choice.h"

static const char object_whole[] = "chat.completion", object_chunk[] = "chat.completion.chunk";

/* ---- the tools ---- */

/* The tool that must be called; NULL: none in particular. */
static const char *chosen_tool(const json_t *body) {
    const json_t *choice = field_get(body, "tool_choice");
    return json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
}

/* tool_choice none: the model does not hear of the tools. */
static bool read_tools(struct conversation *conversation, const json_t *body, bool *has_tools,
                       bool *must_call, struct api_error *error) {
    const json_t *tools, *choice = field_get(body, "tool_choice");
    *has_tools = *must_call = false;
    if (!field_array(body, "tools", CONVERSATION_TOOLS_MAX, &tools, error)) return false;
    if (json_array_size(tools) == 0) return true;
    const char *word = json_is_string(choice)      ? json_string_value(choice)
                       : chosen_tool(body) != NULL ? "required"
                       : choice != NULL            ? "no name"
                                                   : "auto";
    if (strcmp(word, "none") == 0) return true;
    *must_call = strcmp(word, "required") == 0;
    if (!*must_call && strcmp(word, "auto") != 0)
        return api_error_set(
            error, 400, "tool_choice",
            "'tool_choice': found %.40s, expected auto, none, required or {type: function, function: {name}}",
            word);
    *has_tools = true;
    return conversation_add_tools(conversation, tools, error);
}

/* ---- the options ---- */

static bool read_log_probabilities(struct ask *ask, struct api_error *error) {
    int64_t top = 0;
    if (!field_flag(ask->body, "logprobs", &ask->options.has_log_probabilities, error) ||
        !field_integer(ask->body, "top_logprobs", 0, ASK_TOP_MAX, &top, error))
        return false;
    ask->options.top_count = (size_t)top;
    if (top > 0 && !ask->options.has_log_probabilities)
        return api_error_set(error, 400, "top_logprobs", "'top_logprobs': needs 'logprobs': true");
    return true;
}

static bool read_options(struct ask *ask, struct api_error *error) {
    static const char *const token_max[] = {"max_completion_tokens", "max_tokens", "n_predict"};
    static const char *const refused[] = {"functions", "audio", "web_search_options", "chat_template"};
    const struct server_model *model = &ask->server->model;
    return ask_options_read(&ask->options, ask->body, model, ask_seed(ask), error) &&
           ask_options_read_token_max(&ask->options, ask->body, token_max, 3, error) &&
           ask_options_refuse(ask->body, refused, sizeof refused / sizeof *refused, error) &&
           read_log_probabilities(ask, error);
}

static bool read_request(struct ask *ask, struct api_error *error) {
    const struct server_model *model = &ask->server->model;
    struct conversation conversation = {0};
    struct token_list prompt = {0};
    bool read =
        read_options(ask, error) && chat_messages_read(&conversation, ask->body, error) &&
        read_tools(&conversation, ask->body, &ask->form.parses_tools, &ask->form.must_call, error) &&
        document_text_prepend(ask->server, exchange_key(ask->exchange), ask->body, &conversation, error);
    /* Open WebUI's requests for titles, tags and searches. */
    ask->options.is_low_priority = read && conversation_last_begins(&conversation, "### Task:");
    read = read && template_switches_read(&conversation, ask->body, error) &&
           conversation_encode(&conversation, model->chat, model->tokenizer, &prompt, error);
    ask->form.parses_reasoning = true;
    if (read && ask->form.must_call)
        read = tool_choice_schema(field_get(ask->body, "tools"), chosen_tool(ask->body), &ask->form.schema,
                                  error);
    read = read && template_switches_open(ask, &conversation, &prompt, error) &&
           ask_set_prompts(ask, &prompt, 1, error);
    token_list_deinit(&prompt);
    conversation_deinit(&conversation);
    return read;
}

/* ---- the response ---- */

static json_t *calls_json(const struct ask_choice *choice, size_t first, bool with_index) {
    json_t *calls = json_array();
    for (size_t i = first; i < choice->call_count; i++) {
        json_t *call = json_object(), *function = json_object();
        if (with_index) json_put_uint(call, "index", i);
        json_put(call, "id", json_string(choice->calls[i].id));
        json_put(call, "type", json_string("function"));
        json_put(function, "name", json_text(choice->calls[i].name, strlen(choice->calls[i].name)));
        json_put(function, "arguments",
                 json_text(choice->calls[i].arguments, strlen(choice->calls[i].arguments)));
        json_put(call, "function", function);
        json_array_append_new(calls, call);
    }
    return calls;
}

/* Takes the delta.  Log-probabilities of the tokens since the last frame come along. */
static void send_delta(struct ask *ask, struct ask_choice *choice, json_t *delta, bool is_last) {
    json_t *object = openai_envelope(ask, object_chunk), *choices = json_array(), *entry = json_object();
    json_put_uint(entry, "index", choice->index);
    json_put(entry, "delta", delta);
    json_put(entry, "logprobs",
             choice->sent.tokens < choice->tokens.count
                 ? log_probabilities_chat(choice, choice->sent.tokens, choice->tokens.count)
                 : json_null());
    choice->sent.tokens = choice->tokens.count;
    if (is_last)
        openai_put_finish(entry, choice);
    else
        json_put(entry, "finish_reason", json_null());
    json_array_append_new(choices, entry);
    json_put(object, "choices", choices);
    if (sse_send(ask->exchange, NULL, object)) ask->is_full = true;
}

static void stream_begin(struct ask *ask, const struct service_admission *admission) {
    (void)admission;
    for (size_t i = 0; i < ask->choice_count; i++) {
        json_t *delta = json_object();
        json_put(delta, "role", json_string("assistant"));
        json_put(delta, "content", json_string(""));
        send_delta(ask, &ask->choices[i], delta, false);
    }
}

static void stream_part(struct ask *ask, struct ask_choice *choice, const struct answer_part *part) {
    json_t *delta = json_object();
    switch (part->kind) {
    case ANSWER_CONTENT: json_put(delta, "content", json_text(part->bytes, part->length)); break;
    case ANSWER_REASONING: json_put(delta, "reasoning_content", json_text(part->bytes, part->length)); break;
    case ANSWER_TOOL_CALL:
        json_put(delta, "tool_calls", calls_json(choice, choice->call_count - 1, true));
        break;
    }
    send_delta(ask, choice, delta, false);
}

static void stream_token(struct ask *ask, struct ask_choice *choice) {
    if (choice->sent.tokens < choice->tokens.count) send_delta(ask, choice, json_object(), false);
}

static void stream_choice_ends(struct ask *ask, struct ask_choice *choice) {
    send_delta(ask, choice, json_object(), true);
}

/* A frame without text; some clients give up after two minutes of silence, and comments do not count. */
static void send_progress(struct ask *ask) {
    json_t *object = openai_envelope(ask, object_chunk), *choices = json_array(), *entry = json_object();
    json_put_uint(entry, "index", 0);
    json_put(entry, "delta", json_object());
    json_put(entry, "finish_reason", json_null());
    json_array_append_new(choices, entry);
    json_put(object, "choices", choices);
    json_put(object, "prompt_progress", openai_progress(ask));
    (void)sse_send(ask->exchange, NULL, object);
}

static void stream_progress(struct ask *ask, size_t done, size_t total) {
    (void)done, (void)total;
    if (ask->options.returns_progress) send_progress(ask);
}

static json_t *message_json(const struct ask_choice *choice) {
    const struct text *content = &choice->content, *reasoning = &choice->reasoning;
    json_t *message = json_object();
    json_put(message, "role", json_string("assistant"));
    json_put(message, "content",
             content->length > 0 || choice->call_count == 0
                 ? json_text(content->bytes != NULL ? content->bytes : "", content->length)
                 : json_null());
    json_put(message, "refusal", json_null());
    if (reasoning->length > 0)
        json_put(message, "reasoning_content", json_text(reasoning->bytes, reasoning->length));
    if (choice->call_count > 0) json_put(message, "tool_calls", calls_json(choice, 0, false));
    return message;
}

static json_t *whole_choices(struct ask *ask) {
    json_t *choices = json_array();
    for (size_t i = 0; i < ask->choice_count; i++) {
        struct ask_choice *choice = &ask->choices[i];
        json_t *entry = json_object();
        json_put_uint(entry, "index", i);
        json_put(entry, "message", message_json(choice));
        json_put(entry, "logprobs",
                 ask->options.has_log_probabilities ? log_probabilities_chat(choice, 0, choice->tokens.count)
                                                    : json_null());
        openai_put_finish(entry, choice);
        json_array_append_new(choices, entry);
    }
    return choices;
}

static void end(struct ask *ask) { openai_end(ask, object_whole, whole_choices, object_chunk); }

static const struct ask_family family = {.id_prefix = "chatcmpl-",
                                         .read = read_request,
                                         .begin = stream_begin,
                                         .progress = stream_progress,
                                         .part = stream_part,
                                         .token = stream_token,
                                         .choice_ends = stream_choice_ends,
                                         .end = end,
                                         .fail = openai_fail,
                                         .beat = send_progress};

void chat_route(struct server *server, struct exchange *exchange) { ask_route(server, exchange, &family); }

/* The conversation as text, as llama-server's route of this name. */
void apply_template_route(struct server *server, struct exchange *exchange) {
    json_t *body;
    if (!server_read_body(exchange, &body)) return;
    const struct server_model *model = &server->model;
    struct conversation conversation = {0};
    struct token_list list = {0};
    struct api_error error;
    struct error reason;
    bool has_tools, must_call;
    char *text = NULL;
    size_t length = 0;
    if (!chat_messages_read(&conversation, body, &error) ||
        !read_tools(&conversation, body, &has_tools, &must_call, &error) ||
        !template_switches_read(&conversation, body, &error) ||
        !conversation_encode(&conversation, model->chat, model->tokenizer, &list, &error)) {
        exchange_reply_error(exchange, &error);
    } else if (tokenizer_decode(model->tokenizer, list.ids, list.count, true, &text, &length, &reason) !=
               STATUS_OK) {
        exchange_reply_failure(exchange, &reason);
    } else {
        json_t *reply = json_object();
        json_put(reply, "prompt", json_text(text, length));
        exchange_reply_json(exchange, 200, reply);
    }
    free(text);
    conversation_deinit(&conversation);
    token_list_deinit(&list);
    json_decref(body);
}

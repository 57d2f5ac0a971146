/* /v1/chat/completions: a conversation's next message, with tools and reasoning told apart. */
#include <stdlib.h>
#include <string.h>

#include "server/chat_messages.h"
#include "server/conversation_request.h"
#include "server/fields.h"
#include "server/json_text.h"
#include "server/log_probabilities.h"
#include "server/openai.h"
#include "server/routes.h"

static const char object_whole[] = "chat.completion", object_chunk[] = "chat.completion.chunk";

/* ---- the tools ---- */

static bool read_tools(struct tool_wish *wish, const json_t *body, struct api_error *error) {
    const json_t *tools, *choice = field_get(body, "tool_choice");
    const char *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    bool hears;
    if (!field_array(body, "tools", CONVERSATION_TOOLS_MAX, &tools, error)) return false;
    if (json_array_size(tools) == 0) return true;
    if (!tool_wish_read_choice(wish, choice, name, "{type: function, function: {name}}", &hears, error)) return false;
    if (hears) wish->tools = json_incref((json_t *)tools);
    return true;
}

/* Those of Open WebUI for titles, tags and searches are in the background. */
static const struct conversation_form form = {
    .read_messages = chat_messages_read, .read_tools = read_tools, .background = "### Task:"};

/* ---- the options ---- */

static bool read_log_probabilities(struct ask *ask, struct api_error *error) {
    int64_t top = 0;
    if (!field_flag(ask->body, "logprobs", &ask->options.has_log_probabilities, error) ||
        !field_integer(ask->body, "top_logprobs", 0, ASK_TOP_MAX, &top, error))
        return false;
    ask->options.top_count = (size_t)top;
    if (top > 0 && !ask->options.has_log_probabilities)
        return field_refuse(error, "top_logprobs", "needs 'logprobs': true");
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
    return read_options(ask, error) && conversation_request_ask(ask, &form, error);
}

/* ---- the response ---- */

static json_t *calls_json(const struct ask_choice *choice, size_t first, bool with_index) {
    json_t *calls = json_array();
    for (size_t i = first; i < choice->call_count; i++) {
        json_t *call = json_object(), *function = json_object();
        if (with_index) json_put_uint(call, "index", i);
        JSON_PUT(call, {"id", json_string(choice->calls[i].id)}, {"type", json_string("function")});
        JSON_PUT(function, {"name", json_text(choice->calls[i].name, strlen(choice->calls[i].name))},
                 {"arguments", json_text(choice->calls[i].arguments, strlen(choice->calls[i].arguments))});
        json_put(call, "function", function);
        json_array_append_new(calls, call);
    }
    return calls;
}

/* Takes the delta.  Log-probabilities of the tokens since the last frame come along. */
static void send_delta(struct ask *ask, struct ask_choice *choice, json_t *delta, bool is_last) {
    json_t *entry = JSON({"index", json_uint(choice->index)}, {"delta", delta},
                         {"logprobs", choice->sent.tokens < choice->tokens.count
                                          ? log_probabilities_chat(choice, choice->sent.tokens, choice->tokens.count)
                                          : json_null()});
    choice->sent.tokens = choice->tokens.count;
    openai_put_finish(entry, choice, is_last);
    openai_send(ask, object_chunk, entry);
}

static void stream_begin(struct ask *ask, const struct service_admission *admission) {
    (void)admission;
    for (size_t i = 0; i < ask->choice_count; i++) {
        send_delta(ask, &ask->choices[i], JSON({"role", json_string("assistant")}, {"content", json_string("")}),
                   false);
    }
}

static void stream_part(struct ask *ask, struct ask_choice *choice, const struct answer_part *part) {
    json_t *delta = json_object();
    switch (part->kind) {
    case ANSWER_CONTENT: json_put(delta, "content", json_text(part->bytes, part->length)); break;
    case ANSWER_REASONING: json_put(delta, "reasoning_content", json_text(part->bytes, part->length)); break;
    case ANSWER_TOOL_CALL: json_put(delta, "tool_calls", calls_json(choice, choice->call_count - 1, true)); break;
    }
    send_delta(ask, choice, delta, false);
}

static void stream_token(struct ask *ask, struct ask_choice *choice) {
    if (choice->sent.tokens < choice->tokens.count) send_delta(ask, choice, json_object(), false);
}

static void stream_choice_ends(struct ask *ask, struct ask_choice *choice) {
    send_delta(ask, choice, json_object(), true);
}

static void beat(struct ask *ask) { openai_beat(ask, object_chunk, "delta", json_object()); }

static void stream_progress(struct ask *ask, size_t done, size_t total) {
    (void)done, (void)total;
    if (ask->options.returns_progress) beat(ask);
}

static json_t *message_json(const struct ask_choice *choice) {
    const struct text *content = &choice->content, *reasoning = &choice->reasoning;
    json_t *message = JSON({"role", json_string("assistant")},
                           {"content", content->length > 0 || choice->call_count == 0
                                           ? json_text(content->bytes != NULL ? content->bytes : "", content->length)
                                           : json_null()},
                           {"refusal", json_null()});
    if (reasoning->length > 0) json_put(message, "reasoning_content", json_text(reasoning->bytes, reasoning->length));
    if (choice->call_count > 0) json_put(message, "tool_calls", calls_json(choice, 0, false));
    return message;
}

static json_t *whole_choices(struct ask *ask) {
    json_t *choices = json_array();
    for (size_t i = 0; i < ask->choice_count; i++) {
        struct ask_choice *choice = &ask->choices[i];
        json_t *entry = JSON({"index", json_uint(i)}, {"message", message_json(choice)},
                             {"logprobs", ask->options.has_log_probabilities
                                              ? log_probabilities_chat(choice, 0, choice->tokens.count)
                                              : json_null()});
        openai_put_finish(entry, choice, true);
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
                                         .beat = beat};

void chat_route(struct server *server, struct exchange *exchange) { ask_route(server, exchange, &family); }

/* The conversation as text, as llama-server's route of this name. */
void apply_template_route(struct server *server, struct exchange *exchange) {
    json_t *body;
    if (!server_read_body(exchange, &body)) return;
    const struct tokenizer *tokenizer = server->model.tokenizer;
    struct conversation_request request;
    struct api_error error;
    struct error reason;
    char *text = NULL;
    size_t length = 0;
    if (!conversation_request_read(&request, &form, server, exchange, body, &error)) {
        exchange_reply_error(exchange, &error);
    } else if (tokenizer_decode(tokenizer, request.prompt.ids, request.prompt.count, true, &text, &length, &reason) !=
               STATUS_OK) {
        exchange_reply_failure(exchange, &reason);
    } else {
        exchange_reply_json(exchange, 200, JSON({"prompt", json_text(text, length)}));
    }
    free(text);
    conversation_request_deinit(&request);
    json_decref(body);
}

#include "server/conversation_request.h"

#include <string.h>

#include "server/document_text.h"
#include "server/fields.h"
#include "server/json_text.h"
#include "server/tool_choice.h"

/* ---- the tools ---- */

bool tool_wish_read_choice(struct tool_wish *wish, const json_t *choice, const char *name, const char *expected,
                           bool *hears, struct api_error *error) {
    const char *word = json_is_string(choice) ? json_string_value(choice)
                       : name != NULL         ? "required"
                       : choice != NULL       ? "no name"
                                              : "auto";
    *hears = strcmp(word, "none") != 0;
    wish->must_call = strcmp(word, "required") == 0;
    wish->name = name;
    return !*hears || wish->must_call || strcmp(word, "auto") == 0 ||
           field_refuse(error, "tool_choice", "found %.40s, expected auto, none, required or %s", word, expected);
}

void tool_wish_add(struct tool_wish *wish, const json_t *tool, const char *parameters) {
    json_t *function = JSON({"name", json_incref(json_object_get(tool, "name"))},
                            {"description", json_incref(json_object_get(tool, "description"))},
                            {"parameters", json_incref(json_object_get(tool, parameters))});
    json_t *made = JSON({"type", json_string("function")}, {"function", function});
    if (wish->tools == NULL) wish->tools = json_array();
    json_array_append_new(wish->tools, made);
}

static bool read_tools(struct conversation_request *request, const struct conversation_form *form, const json_t *body,
                       struct api_error *error) {
    struct tool_wish wish = {0};
    bool read = form->read_tools(&wish, body, error) &&
                (wish.tools == NULL || conversation_add_tools(&request->conversation, wish.tools, error)) &&
                (!wish.must_call || tool_choice_schema(wish.tools, wish.name, &request->call, error));
    request->has_tools = wish.tools != NULL;
    json_decref(wish.tools);
    return read;
}

/* ---- what chooses what a template does ---- */

static bool put_variable(struct conversation *conversation, const char *name, const json_t *value,
                         struct api_error *error) {
    if (conversation->variables == NULL) conversation->variables = json_object();
    if (json_object_set(conversation->variables, name, (json_t *)value) == 0) return true;
    return api_error_set(error, 503, NULL, "no memory for the conversation");
}

static void set_thinking(struct conversation *conversation, bool thinks) {
    conversation->thinking = thinks ? CHAT_THINKING_ON : CHAT_THINKING_OFF;
}

/* What the template reads by its own names goes before what other fields say. */
static bool read_variables(struct conversation *conversation, const json_t *body, struct api_error *error) {
    const json_t *given;
    if (!field_object(body, "chat_template_kwargs", &given, error)) return false;
    if (given == NULL) return true;
    json_decref(conversation->variables);
    conversation->variables = json_copy((json_t *)given);
    if (conversation->variables == NULL) return api_error_set(error, 503, NULL, "no memory for the conversation");
    const json_t *thinks = json_object_get(given, "enable_thinking");
    if (thinks == NULL) thinks = json_object_get(given, "thinking");
    if (json_is_boolean(thinks)) set_thinking(conversation, json_is_true(thinks));
    return true;
}

/* OpenAI's words: none turns thoughts off, the others are for templates that know them. */
static bool read_effort(struct conversation *conversation, const json_t *object, const char *name,
                        struct api_error *error) {
    const char *effort = NULL;
    size_t length = 0;
    if (!field_text(object, name, 32, &effort, &length, error)) return false;
    if (effort == NULL) return true;
    if (strcmp(effort, "none") == 0) {
        set_thinking(conversation, false);
        return true;
    }
    return put_variable(conversation, "reasoning_effort", json_object_get(object, name), error);
}

/* Anthropic's {type: enabled, disabled or adaptive}. */
static bool read_thinking(struct conversation *conversation, const json_t *body, struct api_error *error) {
    const json_t *thinking = field_get(body, "thinking"), *type = json_object_get(thinking, "type");
    if (thinking == NULL) return true;
    if (json_is_string(type) && strcmp(json_string_value(type), "enabled") == 0)
        set_thinking(conversation, true);
    else if (json_is_string(type) && strcmp(json_string_value(type), "disabled") == 0)
        set_thinking(conversation, false);
    else if (!json_is_string(type) || strcmp(json_string_value(type), "adaptive") != 0)
        return field_refuse(error, "thinking", "expected {type: enabled, disabled or adaptive}");
    return true;
}

static bool read_end(struct conversation *conversation, const json_t *body, struct api_error *error) {
    const struct conversation_message *last =
        conversation->count > 0 ? &conversation->messages[conversation->count - 1] : NULL;
    const bool is_answer =
        last != NULL && last->role == CHAT_ASSISTANT && last->calls == NULL && last->content.length > 0;
    bool adds = true, continues = false;
    if (!field_flag(body, "add_generation_prompt", &adds, error) ||
        !field_flag(body, "continue_final_message", &continues, error))
        return false;
    if (continues && !is_answer)
        return field_refuse(error, "continue_final_message", "the last message is no text of the assistant");
    if (continues && adds && field_get(body, "add_generation_prompt") != NULL)
        return field_refuse(error, "continue_final_message",
                            "found with 'add_generation_prompt', expected one of them");
    const bool says_nothing =
        field_get(body, "add_generation_prompt") == NULL && field_get(body, "continue_final_message") == NULL;
    conversation->continues = continues || (is_answer && says_nothing);
    conversation->ends_closed = !adds && !conversation->continues;
    return true;
}

/* chat_template_kwargs, enable_thinking, reasoning_effort, reasoning.effort, thinking (Anthropic's),
 * add_generation_prompt, continue_final_message.  A last message of the assistant is gone on with, unless the request
 * says otherwise. */
static bool read_switches(struct conversation *conversation, const json_t *body, struct api_error *error) {
    const json_t *reasoning;
    bool thinks = false;
    if (!read_variables(conversation, body, error) || !field_flag(body, "enable_thinking", &thinks, error) ||
        !read_effort(conversation, body, "reasoning_effort", error) ||
        !field_object(body, "reasoning", &reasoning, error) ||
        (reasoning != NULL && !read_effort(conversation, reasoning, "effort", error)) ||
        !read_thinking(conversation, body, error))
        return false;
    if (field_get(body, "enable_thinking") != NULL) set_thinking(conversation, thinks);
    return read_end(conversation, body, error);
}

/* ---- the conversation ---- */

bool conversation_request_read(struct conversation_request *request, const struct conversation_form *form,
                               struct server *server, struct exchange *exchange, const json_t *body,
                               struct api_error *error) {
    const struct server_model *model = &server->model;
    struct conversation *conversation = &request->conversation;
    *request = (struct conversation_request){0};
    if (!form->read_messages(conversation, body, error) || !read_tools(request, form, body, error) ||
        !document_text_prepend(server, exchange_key(exchange), body, conversation, error))
        return false;
    request->is_background = form->background != NULL && conversation_last_begins(conversation, form->background);
    return read_switches(conversation, body, error) &&
           conversation_encode(conversation, model->chat, model->tokenizer, &request->prompt, error);
}

void conversation_request_deinit(struct conversation_request *request) {
    json_schema_destroy(request->call);
    conversation_deinit(&request->conversation);
    token_list_deinit(&request->prompt);
}

/* How the answer is read.  Where it must be a call, its beginning ends the prompt. */
static bool open_answer(struct ask *ask, const struct conversation *conversation, struct token_list *prompt,
                        struct api_error *error) {
    ask->form.thinks = conversation->ending.thinks;
    ask->turn_end = conversation->ending.turn_end;
    ask->drops_answer = conversation->drops_thoughts;
    ask->form.syntax = ask->form.must_call ? CHAT_HERMES : conversation->syntax;
    if (!ask->form.must_call) return true;
    ask->form.thinks = false; /* the call ends thoughts that the template began */
    return tool_choice_begin_call(ask->server->model.tokenizer, conversation->ending.thinks, prompt, error);
}

bool conversation_request_ask(struct ask *ask, const struct conversation_form *form, struct api_error *error) {
    struct conversation_request request;
    bool read = conversation_request_read(&request, form, ask->server, ask->exchange, ask->body, error);
    ask->options.is_low_priority = request.is_background;
    ask->form.parses_reasoning = true;
    ask->form.parses_tools = request.has_tools;
    ask->form.must_call = request.call != NULL;
    ask->form.schema = request.call;
    request.call = NULL;
    read = read && open_answer(ask, &request.conversation, &request.prompt, error) &&
           ask_set_prompts(ask, &request.prompt, 1, error);
    conversation_request_deinit(&request);
    return read;
}

/* conversation_request: a request with a conversation, whichever form it has: OpenAI's chat completions and responses,
 * Anthropic's messages.
 *
 *   the form's messages and tools -> documents -> switches of the template -> tokens, and the call that must come
 */
#pragma once

#include "server/ask.h"
#include "server/conversation.h"

/* What a request says of its tools. */
struct tool_wish {
    json_t *tools;    /* owned: those that the model hears of, as chat completions have them; NULL: none */
    const char *name; /* borrowed: the tool that must be called; NULL: any */
    bool must_call;
};

struct conversation_form {
    bool (*read_messages)(struct conversation *conversation, const json_t *body, struct api_error *error);
    bool (*read_tools)(struct tool_wish *wish, const json_t *body, struct api_error *error);
    /* With what the last message of a request begins that nobody waits for; NULL: there are none. */
    const char *background;
};

struct conversation_request {
    struct conversation conversation;
    struct token_list prompt;
    struct json_schema *call; /* owned: of the call that the answer must be; NULL: any answer */
    bool has_tools;
    bool is_background;
};

/* Release it afterwards, a failure included. */
bool conversation_request_read(struct conversation_request *request, const struct conversation_form *form,
                               struct server *server, struct exchange *exchange, const json_t *body,
                               struct api_error *error);
void conversation_request_deinit(struct conversation_request *request);
/* The same of an ask's body, whose prompt and form it becomes. */
bool conversation_request_ask(struct ask *ask, const struct conversation_form *form, struct api_error *error);

/* OpenAI's tool_choice: a word, or an object with the name of a tool, which `expected` describes.  *hears: the model
 * hears of tools. */
bool tool_wish_read_choice(struct tool_wish *wish, const json_t *choice, const char *name, const char *expected,
                           bool *hears, struct api_error *error);
/* Adds a tool that has its name and description beside its parameters, as {type, function}. */
void tool_wish_add(struct tool_wish *wish, const json_t *tool, const char *parameters);

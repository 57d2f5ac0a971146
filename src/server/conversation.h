/* conversation: the messages of a request as tokens, whichever family of routes they came by.
 *
 * Text of a request never becomes a control token: the chat template alone places those.  A template that shows tools
 * and calls is given them (conversation_layout.c).  With others they are text, as Hermes and Qwen 2.5 were trained to:
 * signatures in the system message, calls in <tool_call>, results in <tool_response> of a user's turn.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"
#include "server/api_error.h"
#include "token/chat_template.h"

enum { CONVERSATION_MESSAGES_MAX = 16384, CONVERSATION_TOOLS_MAX = 512 };

struct conversation_span {
    size_t begin, end;
};

struct conversation_message {
    enum chat_role role;
    struct text content;
    bool is_tool_result;               /* a user's turn made of results: the next result joins it */
    struct conversation_span *results; /* [result_count] owned: of its text, without the tags */
    size_t result_count, result_capacity;
    json_t *calls;       /* owned: those that its text ends with, as {name, arguments}; NULL: none */
    size_t plain_length; /* of the text before them */
    json_t *thoughts;    /* owned: what the assistant thought before its text; NULL: not known */
};

/* Zeros: empty. */
struct conversation {
    struct conversation_message *messages; /* [count] owned */
    size_t count, capacity;
    bool is_newest;   /* what is read now is the newest turn of the user: what is no text is refused there alone */
    json_t *thoughts; /* owned: of the assistant's message that comes next; NULL: none */
    json_t *tools;    /* owned; NULL: none */
    /* The template's switches (conversation_request.c). */
    enum chat_thinking thinking;
    json_t *variables; /* owned; NULL: none */
    bool ends_closed;  /* nothing makes the model answer */
    bool continues;    /* the last message, the assistant's, is the beginning of the answer */
    /* What conversation_encode found. */
    struct chat_ending ending;
    bool drops_thoughts;     /* its template does, in later turns */
    enum chat_syntax syntax; /* of its calls */
};

void conversation_deinit(struct conversation *conversation);
void conversation_message_deinit(struct conversation_message *message);
bool conversation_message_append(struct conversation_message *message, const char *text, size_t length,
                                 struct api_error *error);
/* A new message. */
bool conversation_add(struct conversation *conversation, enum chat_role role, struct api_error *error);
/* More text for the last message. */
bool conversation_append(struct conversation *conversation, const char *text, size_t length, struct api_error *error);
/* A string, or a list of parts {type: text, text}; param names it in messages.  Of another part (an image, a file) a
 * line says that it was there, but for the assistant's: a session goes on after it.  In the newest turn it is
 * refused. */
bool conversation_append_content(struct conversation *conversation, const json_t *content, const char *param,
                                 struct api_error *error);
/* A part that is a file in base64 (file_part.h): a mark with its name, its text, and an empty line.  One that cannot be
 * read is refused in the newest turn, and told of as others are in an earlier one.  *is_file false: it is none. */
bool conversation_append_file(struct conversation *conversation, const json_t *part, const char *param, bool *is_file,
                              struct api_error *error);
/* For a part of this type that is no text; false: it is refused. */
bool conversation_append_other(struct conversation *conversation, const char *type, const char *param,
                               struct api_error *error);
/* Thoughts of the assistant's message that conversation_add begins next; they are lost where another one's comes.  The
 * template is given them.  What is no text counts for nothing. */
bool conversation_think(struct conversation *conversation, const json_t *text, struct api_error *error);
/* The same for the last message, which is the assistant's. */
bool conversation_think_on(struct conversation *conversation, const json_t *text, struct api_error *error);
/* A call that the assistant made: appended to its message.  arguments: a JSON object, or its text, which is told as
 * it is where it was cut. */
bool conversation_append_call(struct conversation *conversation, const char *name, const json_t *arguments,
                              struct api_error *error);
/* A tool's result: content as above, and never refused for a part. */
bool conversation_add_result(struct conversation *conversation, const json_t *content, const char *param,
                             struct api_error *error);
/* tools: [{type: function, function: {name, description, parameters}}].  After the messages were added. */
bool conversation_add_tools(struct conversation *conversation, const json_t *tools, struct api_error *error);

/* Ready for the answer, unless it ends closed.  chat NULL: the model has no template. */
bool conversation_encode(struct conversation *conversation, const struct chat_template *chat,
                         const struct tokenizer *tokenizer, struct token_list *list, struct api_error *error);

/* The index of the last message of the user; SIZE_MAX: there is none. */
size_t conversation_newest(const json_t *messages);
/* Whether the last user's message begins with these words. */
bool conversation_last_begins(const struct conversation *conversation, const char *words);

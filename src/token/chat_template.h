/* chat_template: a conversation as the tokens that a model was trained on.
 *
 * The model's own Jinja template (tokenizer.chat_template) renders it (src/jinja), or a built-in family of the same
 * format where the template has constructs that are not known or where --chat-template names one.  Either way only what
 * the template itself writes can become a control token: what a user types, `<|im_start|>` included, stays text.
 * docs/tokenizers.md lists constructs and families.  Thread-safe.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "token/tokenizer.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL };

struct chat_message {
    enum chat_role role;
    const char *content; /* [length] bytes, borrowed */
    size_t length;
};

/* How a model calls tools, and so what its template shows of them. */
enum chat_syntax {
    CHAT_HERMES,   /* <tool_call>{"name": ..., "arguments": {...}}</tool_call> */
    CHAT_QWEN_XML, /* <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call> */
    CHAT_LLAMA3,   /* {"name": ..., "parameters": {...}}, also behind <|python_tag|> */
    CHAT_MISTRAL,  /* [TOOL_CALLS] [{"name": ..., "arguments": {...}}], or NAME[ARGS]{...} */
    CHAT_HARMONY,  /* <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|> */
    CHAT_GEMMA,    /* <|tool_call>call:NAME{KEY:<|"|>VALUE<|"|>}<tool_call|> */
    CHAT_GLM,      /* <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call> */
};

enum chat_thinking { CHAT_THINKING_AUTO, CHAT_THINKING_ON, CHAT_THINKING_OFF };

struct chat_conversation {
    const struct chat_message *messages; /* [count] */
    size_t count;
    const json_t *const *more; /* [count]: objects with members of each message, for a model's own template (tool_calls,
                                  reasoning_content, tool_call_id, name); each, and all, may be NULL */
    bool add_generation_prompt; /* and what makes the model answer next */
    bool continues;             /* the last message is the beginning of the answer, and goes on */
    enum chat_thinking thinking;
    const json_t *tools;     /* OpenAI's list; NULL: none.  For a template that shows them */
    const json_t *variables; /* an object: what else the template reads (chat_template_kwargs); NULL: none */
};

struct chat_template;

const struct chat_template *chat_template_find(const char *name); /* NULL: unknown */
const struct chat_template *chat_template_at(size_t index);       /* all, for --help; NULL after the last */
/* The family's name; "jinja": the model's own template. */
const char *chat_template_name(const struct chat_template *chat);
/* One line for the user: why a family stands in for the model's own template; NULL: it does not. */
const char *chat_template_note(const struct chat_template *chat);

/* Whether user and assistant must take turns, a system message must be the first, and there is one at all. */
bool chat_template_takes_turns(const struct chat_template *chat);
bool chat_template_wants_system_first(const struct chat_template *chat);
bool chat_template_has_system(const struct chat_template *chat);
/* Whether it lays out tools, and calls with their results (messages of CHAT_TOOL), in its syntax. */
bool chat_template_shows_tools(const struct chat_template *chat);
bool chat_template_shows_calls(const struct chat_template *chat);
enum chat_syntax chat_template_syntax(const struct chat_template *chat);
/* Whether it has a switch for this: it reads a variable of the name. */
bool chat_template_reads(const struct chat_template *chat, const char *variable);

/* The family of a Jinja text. STATUS_UNSUPPORTED with the beginning of the text, and --chat-template NAME as
 * the way out. */
enum status chat_template_detect(const char *text, size_t length, const struct chat_template **chat,
                                 struct error *error) STATUS_CHECKED;

/* That of the model, tried once with a few words, or its family.  STATUS_UNSUPPORTED: neither can be used, or (also)
 * the file has none. */
enum status chat_template_create(const char *text, size_t length, const struct chat_template **chat,
                                 struct error *error) STATUS_CHECKED;
enum status chat_template_of_model(const struct gguf *gguf, const struct chat_template **chat, struct error *error)
    STATUS_CHECKED;
void chat_template_destroy(const struct chat_template *chat); /* NULL and built-in ones allowed */

/* Whether it leaves out what the model thought in earlier turns, or an empty thought that it began an answer with, so
 * that a conversation does not go on with the tokens of its last answer. */
bool chat_template_drops_thoughts(const struct chat_template *chat);

/* Where a conversation's tokens lead to. */
struct chat_ending {
    bool thinks;     /* the answer begins inside <think> */
    size_t turn_end; /* tokens up to the mark that ends the newest message, which the next turn has too; 0: not known */
};

/* Appends the tokens of a conversation, BOS included where the template or the vocabulary asks for it.  ending may be
 * NULL.
 * STATUS_UNSUPPORTED: the vocabulary lacks a control token of this family, or the template fails.  STATUS_USAGE: an
 * order of messages that it has no form for, or it refuses the conversation in its own words. */
enum status chat_template_lay_out(const struct chat_template *chat, const struct tokenizer *tokenizer,
                                  const struct chat_conversation *conversation, struct token_list *list,
                                  struct chat_ending *ending, struct error *error) STATUS_CHECKED;

/* The same of plain messages. */
enum status chat_template_apply(const struct chat_template *chat, const struct tokenizer *tokenizer,
                                const struct chat_message *messages, size_t count, bool add_generation_prompt,
                                struct token_list *list, struct error *error) STATUS_CHECKED;

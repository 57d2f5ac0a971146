/* chat_builder: a conversation under way to tokens: control tokens by id, and text in which nothing becomes one. */
#pragma once

#include "base/text.h"
#include "jinja/jinja.h"
#include "token/chat_template.h"
#include "token/tokenizer_internal.h"

struct chat_part {
    token_id id;          /* TOKEN_NONE: text */
    size_t start, length; /* of the text, in chat_builder.text */
};

struct chat_builder {
    const struct chat_template *chat;
    const struct tokenizer *tokenizer;
    struct chat_part *parts; /* [count] owned */
    size_t count, capacity;
    struct text text;   /* parts that are text follow each other in it */
    bool thinks;        /* the template begins the answer with <think> */
    size_t given_end;   /* parts up to the last one with text of the conversation; 0: not known */
    enum status status; /* the first failure; everything after it does nothing */
    struct error *error;
};

struct chat_template {
    const char *name;
    const char *text;          /* of a built-in family, in Jinja; NULL: program */
    const char *controls[3];   /* its marks, which must be control tokens; NULL: none */
    bool takes_turns;          /* user, assistant, user ... after an optional system message */
    bool system_is_first;      /* a system message has a form only at the start */
    bool lacks_system;         /* it has none at all */
    bool strips_after_control; /* SPM: spaces behind a control token do not reach the model */
    bool shows_tools, shows_calls, drops_thoughts;
    enum chat_syntax syntax;
    struct jinja_program *program;               /* owned: the model's own */
    bool arguments_are_text, content_is_no_none; /* what it wants of a message with calls */
    char note[400];                              /* why a family is used for the model's own; "": it is not */
};

void chat_builder_put_token(struct chat_builder *b, token_id id);
/* Text next to text is one text: a model was trained on its joint tokens. */
void chat_builder_put_bytes(struct chat_builder *b, const char *text, size_t length);
/* Without the white space around it, as Jinja's trim. */
struct chat_message chat_message_trim(struct chat_message message);
/* Phi-3's tokenizer takes the spaces behind its marks away (rstrip), which GGUF does not record. */
void chat_builder_strip_after_control(struct chat_builder *b);
/* Nothing is left behind the last time that this text, trimmed on its left, stands in it: a model goes on there. */
void chat_builder_cut(struct chat_builder *b, const char *text, size_t length);
enum status chat_builder_encode(struct chat_builder *b, struct token_list *list) STATUS_CHECKED;
/* Of the tokens that were made of it: those before the control token behind given_end; 0: there is none. */
size_t chat_builder_turn_end(const struct chat_builder *b, const struct token_list *list);
void chat_builder_deinit(struct chat_builder *b);

/* ---- chat_jinja.c ---- */
/* The template of this text, once it was tried.  STATUS_UNSUPPORTED: it cannot be used, and why. */
enum status chat_jinja_create(struct chat_template *chat, const char *text, size_t length, struct error *error)
    STATUS_CHECKED;
void chat_jinja_build(struct chat_builder *b, const struct chat_conversation *conversation);

static inline const char *chat_role_name(enum chat_role role) {
    switch (role) {
    case CHAT_SYSTEM: return "system";
    case CHAT_USER: return "user";
    case CHAT_ASSISTANT: return "assistant";
    case CHAT_TOOL: return "tool";
    }
    return "user";
}

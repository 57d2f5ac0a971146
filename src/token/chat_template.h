/* chat_template: a conversation as the tokens that a family of models was trained on.
 *
 * Known families are built from parts: control tokens by id, and text in which nothing becomes a control
 * token.  So what a user types, `<|im_start|>` included, stays text.  The Jinja text in a model file
 * (tokenizer.chat_template) is never run; it only tells, by the marks it places, which family it is.
 * docs/tokenizers.md lists the families and what of their Jinja templates is left out (tools, dates, default
 * system prompts).  Thread-safe.
 */
#ifndef LOAM_TOKEN_CHAT_TEMPLATE_H
#define LOAM_TOKEN_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "token/tokenizer.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT };

struct chat_message {
    enum chat_role role;
    const char *content; /* [length] bytes, borrowed */
    size_t length;
};

struct chat_template;

const struct chat_template *chat_template_find(const char *name); /* NULL: unknown */
const struct chat_template *chat_template_at(size_t index);       /* all, for --help; NULL after the last */
const char *chat_template_name(const struct chat_template *chat);

/* Whether user and assistant must take turns, and a system message must be the first. */
bool chat_template_takes_turns(const struct chat_template *chat);
bool chat_template_wants_system_first(const struct chat_template *chat);

/* The family of a Jinja text. STATUS_UNSUPPORTED with the beginning of the text, and --chat-template NAME as
 * the way out. */
enum status chat_template_detect(const char *text, size_t length, const struct chat_template **chat,
                                 struct error *error) STATUS_CHECKED;

/* The family of tokenizer.chat_template; STATUS_UNSUPPORTED also where the file has none. */
enum status chat_template_of_model(const struct gguf *gguf, const struct chat_template **chat,
                                   struct error *error) STATUS_CHECKED;

/* Appends the tokens of messages[count], BOS included where the family or the vocabulary asks for it.
 * add_generation_prompt: and what makes the model answer next.
 * STATUS_UNSUPPORTED: the vocabulary lacks a control token of this family.  STATUS_USAGE: an order of
 * messages that the family has no form for (a system message that is not the first; where the family asks
 * for it, users and assistants that do not take turns). */
enum status chat_template_apply(const struct chat_template *chat, const struct tokenizer *tokenizer,
                                const struct chat_message *messages, size_t count, bool add_generation_prompt,
                                struct token_list *list, struct error *error) STATUS_CHECKED;

#endif

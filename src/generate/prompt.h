/* prompt: documents and a question as token ids.
 *
 * Documents come first and the question last, in a chat template and in raw text.  So all questions about the same
 * documents share a prefix, up to a few tokens before the question, and one saved prefix serves them all.
 * Thread-safe. */
#pragma once

#include <stddef.h>

#include "base/status.h"
#include "token/chat_template.h"
#include "token/tokenizer.h"

/* Borrowed; bytes NULL: absent. */
struct prompt_part {
    const char *bytes; /* [length] */
    size_t length;
};

struct prompt {
    struct prompt_part system;           /* for a chat template only */
    const struct prompt_part *documents; /* [document_count] */
    size_t document_count;
    struct prompt_part question;
    enum chat_thinking thinking; /* for a chat template only */
};

/* The separator of two parts. */
enum prompt_gap {
    PROMPT_LINE,      /* the next part begins a line: raw text */
    PROMPT_PARAGRAPH, /* an empty line: documents and a question in a user's turn */
};

/* Joins documents and question to one newly allocated, zero-terminated text.  Nothing follows the last part. */
enum status prompt_join(const struct prompt *prompt, enum prompt_gap gap, char **text, size_t *length,
                        struct error *error) STATUS_CHECKED;

/* Appends the ids of the raw text for the model to continue.  STATUS_USAGE: the prompt has a system message. */
enum status prompt_encode(const struct prompt *prompt, const struct tokenizer *tokenizer, struct tokenize_options how,
                          struct token_list *list, struct error *error) STATUS_CHECKED;
/* Appends the ids of a conversation with one user turn, ready for the answer.  Nothing in the parts becomes a control
 * token. */
enum status prompt_encode_chat(const struct prompt *prompt, const struct chat_template *chat,
                               const struct tokenizer *tokenizer, struct token_list *list, struct error *error)
    STATUS_CHECKED;

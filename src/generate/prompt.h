/* prompt: what a model is asked, as token ids.
 *
 * Documents come first and the question last, in a chat template as in raw text.  So all questions about the same
 * documents begin with the same tokens, but for the few next to the question, and one saved prefix serves them all.
 * Thread-safe. */
#ifndef LOAM_GENERATE_PROMPT_H
#define LOAM_GENERATE_PROMPT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "token/chat_template.h"
#include "token/tokenizer.h"

/* Borrowed; bytes NULL: there is none. */
struct prompt_part {
    const char *bytes; /* [length] */
    size_t length;
};

struct prompt {
    struct prompt_part system;           /* for a chat template only */
    const struct prompt_part *documents; /* [document_count] */
    size_t document_count;
    struct prompt_part question;
};

/* What stands between two parts. */
enum prompt_gap {
    PROMPT_LINE,      /* the next part begins a line: raw text */
    PROMPT_PARAGRAPH, /* an empty line: documents and a question in a user's turn */
};

/* Documents and question as one newly allocated, zero-terminated text.  Nothing follows the last part. */
enum status prompt_join(const struct prompt *prompt, enum prompt_gap gap, char **text, size_t *length,
                        struct error *error) STATUS_CHECKED;

/* Appends the ids of the text that the model is to complete.  STATUS_USAGE when it has a system message. */
enum status prompt_encode(const struct prompt *prompt, const struct tokenizer *tokenizer,
                          struct tokenize_options how, struct token_list *list, struct error *error)
    STATUS_CHECKED;
/* Appends the ids of a conversation of one user's turn, ready for the answer.  Nothing in the parts becomes a control
 * token. */
enum status prompt_encode_chat(const struct prompt *prompt, const struct chat_template *chat,
                               const struct tokenizer *tokenizer, struct token_list *list,
                               struct error *error) STATUS_CHECKED;

#endif

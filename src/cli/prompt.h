/* prompt: reads the prompt of -p, -f and --ids. */
#pragma once

#include <stddef.h>

#include "base/status.h"
#include "cli/option.h"
#include "cli/prompt_files.h"
#include "generate/prompt.h"
#include "token/tokenizer.h"

/* What -sys, -f and -p give.  Must not move: prompt points into it. */
struct prompt_source {
    struct prompt prompt;
    struct prompt_files files;     /* the documents' */
    struct prompt_part *documents; /* owned, [files.count] */
};
/* Reads the files and folders.  STATUS_USAGE: standard input is named twice, or a file is no text.  Must be closed also
 * after a failure. */
enum status prompt_open(struct prompt_source *source, const struct options *options, struct error *error)
    STATUS_CHECKED;
/* Adds one more file or folder, or nothing.  STATUS_USAGE, STATUS_IO: as prompt_files_add. */
enum status prompt_add(struct prompt_source *source, const struct options *options, const char *path,
                       struct error *error) STATUS_CHECKED;
void prompt_cut(struct prompt_source *source, size_t count); /* to so many documents */
void prompt_close(struct prompt_source *source);
/* Its tokens in this template (NULL: raw).  STATUS_USAGE: there are none. */
enum status prompt_source_tokens(const struct prompt_source *source, const struct options *options,
                                 const struct chat_template *chat, const struct tokenizer *tokenizer,
                                 struct token_list *list, struct error *error) STATUS_CHECKED;

/* "book.txt", or "a.txt and 2 more", written to buffer; NULL without -f. */
const char *prompt_name(const struct options *options, char *buffer, size_t buffer_bytes);

/* The text of -f and -p, newly allocated, each on a line of its own.  STATUS_USAGE: neither is given. */
enum status prompt_text(const struct options *options, char **text, size_t *length, struct error *error) STATUS_CHECKED;
/* The tokens of -f and -p, in this template (NULL: raw), or those of --ids.  STATUS_USAGE: there are none. */
enum status prompt_tokens(const struct options *options, const struct chat_template *chat,
                          const struct tokenizer *tokenizer, struct token_list *list, struct error *error)
    STATUS_CHECKED;

/* The template of --chat-template, or the model's own; NULL: it has none.  chat_template_destroy ends it.  Where a
 * family stands in for the model's own, standard error has a line why.  STATUS_UNSUPPORTED: nothing can. */
enum status prompt_template(const struct options *options, const struct gguf *gguf, const struct chat_template **chat,
                            struct error *error) STATUS_CHECKED;

/* After a long prompt that was not saved: a hint on standard error how to make the next question cheaper. */
void prompt_print_hint(const struct options *options, size_t token_count);

/* The bytes of a whole file or of standard input ("-"), up to 1 GiB. */
enum status prompt_read_file(const char *path, char **text, size_t *length, struct error *error) STATUS_CHECKED;
/* The text of a file or a folder (prompt_files.h), newly allocated. */
enum status prompt_read_text(const struct options *options, const char *path, char **text, size_t *length,
                             struct error *error) STATUS_CHECKED;
/* "1,2,3", blanks allowed. */
enum status prompt_parse_ids(const char *text, struct token_list *list, struct error *error) STATUS_CHECKED;
enum status prompt_check_ids(const struct token_list *list, size_t vocabulary_size, struct error *error) STATUS_CHECKED;

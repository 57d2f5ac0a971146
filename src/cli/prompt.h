/* prompt: what -p, -f and --ids say. */
#ifndef LOAM_CLI_PROMPT_H
#define LOAM_CLI_PROMPT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "cli/option.h"
#include "token/tokenizer.h"

/* The text of -f and -p, newly allocated.  With both: the file, a newline unless the file ends in one, the
 * prompt.  STATUS_USAGE when neither is given. */
enum status prompt_text(const struct options *options, char **text, size_t *length, struct error *error)
    STATUS_CHECKED;
/* Its tokens, or those of --ids.  STATUS_USAGE when there are none. */
enum status prompt_tokens(const struct options *options, const struct tokenizer *tokenizer,
                          struct token_list *list, struct error *error) STATUS_CHECKED;

/* A whole file or standard input ("-"), up to 1 GiB. */
enum status prompt_read_file(const char *path, char **text, size_t *length, struct error *error)
    STATUS_CHECKED;
/* "1,2,3", blanks allowed. */
enum status prompt_parse_ids(const char *text, struct token_list *list, struct error *error) STATUS_CHECKED;
enum status prompt_check_ids(const struct token_list *list, size_t vocabulary_size, struct error *error)
    STATUS_CHECKED;

#endif

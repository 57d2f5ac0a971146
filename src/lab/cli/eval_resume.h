/* eval_resume: continues an evaluation from the lines that an earlier one left. */
#pragma once

#include "base/text.h"
#include "lab/cli/eval.h"

enum { EVAL_RUN_ID_BYTES = 17 }; /* 16 hexadecimal digits and the closing zero */

/* Names what lines must have in common to be of one run: the model, --keep, --set, the cache types and what the
 * evaluation says itself.  Not the presets, which every line names. */
void evaluation_run_id(const struct evaluation *evaluation, const struct text *what, char id[EVAL_RUN_ID_BYTES]);

/* Calls `each` for every line of the --jsonl file; a last line without its end is cut off the file.  STATUS_USAGE: a
 * line is of another run (its "run" is not id) or none of JSON; nothing is changed then. */
typedef void evaluation_each_line(void *context, const json_t *line);
enum status evaluation_resume(struct evaluation *evaluation, const char *id, evaluation_each_line *each, void *context,
                              struct error *error) STATUS_CHECKED;

/* lab: the commands and options of loam-lab, which measures what loam does to a model and has what loam is compared
 * with.  Its table of commands is loam's with its own in it, so that every command of loam runs with the methods of the
 * lab, too. */
#pragma once

#include "cli/bench_replay.h"
#include "cli/command.h"

/* Behind those of cli/option.h. */
enum lab_option {
    OPTION_CHUNKS = OPTION_COUNT,
    OPTION_KL_BASE,
    OPTION_KL_COMPARE,
    OPTION_EVAL_TASKS,
    OPTION_EVAL_LENGTHS,
    OPTION_EVAL_SAMPLES,
    OPTION_EVAL_STRETCH,
    OPTION_EVAL_QUESTIONS,
    OPTION_EVAL_OUTPUT,
    OPTION_EVAL_JSONL,
    OPTION_EVAL_SVG,
    OPTION_EVAL_EMIT,
    OPTION_EVAL_SHARED,
    OPTION_EVAL_RESUME,
    OPTION_RECORD_OUTPUT,
    OPTION_RECORD_LAYERS,
    OPTION_CALIBRATION,
    OPTION_WINDOWS,
    OPTION_HASH_BITS,
    OPTION_EPOCHS,
    OPTION_IMPORT_HEADS,
    OPTION_IMPORT_TYPE,
    OPTION_IMPORT_PRE,
    LAB_OPTIONS_END
};
_Static_assert((int)LAB_OPTIONS_END <= (int)OPTION_LIMIT, "each has a value in struct options");

extern const struct option_spec lab_options[]; /* [lab_option_count] */
extern const size_t lab_option_count;
extern const struct bench_replay lab_bench_replay;
const struct command *lab_commands(void); /* [COMMAND_COUNT] */

/* lab_import_command: a Hugging Face folder; with one argument, loam's import. */
command_run perplexity_command, eval_command, lab_import_command, quantize_command, calibrate_command, trace_command;

/* struct command's `output`: the base that is saved; the calibration where -o does not name it. */
enum status perplexity_output(const struct options *options, const char **name, char **path, struct error *error)
    STATUS_CHECKED;
enum status calibrate_output(const struct options *options, const char **name, char **path, struct error *error)
    STATUS_CHECKED;

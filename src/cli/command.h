/* command: the commands, named by the first word of the command line. */
#pragma once

#include "base/status.h"
#include "cli/option.h"

/* A failure leaves its line in *error; an empty line means it is already reported. */
typedef enum status command_run(const struct options *options, struct error *error);

struct command {
    enum command_id id;
    const char *name;
    const char *usage;       /* after "loam NAME " */
    const char *summary;     /* one line for the list of commands */
    const char *description; /* paragraphs for `loam help NAME` */
    size_t positionals_min, positionals_max;
    /* What the arguments that are no options name, for output_check.h; the last entry is of all that follow, too. */
    enum positional {
        POSITIONAL_WORD,
        POSITIONAL_MODEL,
        POSITIONAL_FOLDER,
        POSITIONAL_TEXT,
        POSITIONAL_OUTPUT
    } positionals[3];
    /* NULL, or: one more file that is written, *path (newly allocated; NULL: none), and what names it. */
    enum status (*output)(const struct options *options, const char **name, char **path, struct error *error);
    command_run *run; /* NULL: another program's */
};

extern const struct command command_table[COMMAND_COUNT]; /* loam's, in the order of enum command_id */

/* A program: its commands, and its options in two tables. */
struct program {
    const char *name;
    const char *summary;            /* one line */
    const struct command *commands; /* [COMMAND_COUNT] */
    const struct option_spec *options, *more_options;
    size_t option_count, more_option_count;
    const struct command *described; /* [COMMAND_COUNT]; NULL, or commands that another program's page describes */
};
/* From 0 on; NULL behind the last. */
static inline const struct option_spec *program_option(const struct program *program, size_t index) {
    if (index < program->option_count) return &program->options[index];
    index -= program->option_count;
    return index < program->more_option_count ? &program->more_options[index] : NULL;
}

const struct command *command_find(const struct program *program, const char *name);    /* NULL: none */
const struct command *command_nearest(const struct program *program, const char *name); /* NULL: nothing near */

/* The whole program: parses, runs, reports, returns the exit code. */
int command_main(const struct program *program, int argc, char **argv);
int exit_code(enum status status);

command_run run_command, chat_command, serve_command, explain_command, batch_command, bench_command, inspect_command,
    tokenize_command, detokenize_command, import_command, plan_command, ls_command, show_command, rm_command,
    verify_command, export_command, pull_command, models_command, devices_command, help_command, version_command;

/* Prints the help of one command on standard output. */
enum status help_print_command(const struct program *program, const struct command *command, struct error *error)
    STATUS_CHECKED;

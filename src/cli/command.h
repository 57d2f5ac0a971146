/* command: the commands, named by the first word of the command line. */
#ifndef LOAM_CLI_COMMAND_H
#define LOAM_CLI_COMMAND_H

#include <stdio.h>

#include "base/status.h"
#include "cli/option.h"

struct command {
    enum command_id id;
    const char *name;
    const char *usage;       /* after "loam NAME " */
    const char *summary;     /* one line for the list of commands */
    const char *description; /* paragraphs for `loam help NAME` */
    size_t positionals_min, positionals_max;
    /* A failure leaves its line in *error; an empty line means it is already reported. */
    enum status (*run)(const struct options *options, struct error *error);
};

extern const struct command command_table[COMMAND_COUNT]; /* in the order of enum command_id */

/* commands: such a table.  A parameter, so that what the table names does not depend on it. */
const struct command *command_find(const struct command *commands, const char *name); /* NULL: none */
const char *command_nearest(const struct command *commands, const char *name);        /* NULL: nothing near */

/* The whole program: parses, runs, reports, returns the exit code. */
int command_main(int argc, char **argv);
int exit_code(enum status status);

enum status run_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status chat_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status serve_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status explain_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status batch_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status bench_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status perplexity_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status eval_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status inspect_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status tokenize_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status detokenize_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status import_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status quantize_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status plan_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status calibrate_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status trace_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status ls_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status show_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status rm_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status verify_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status export_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status pull_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status models_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status devices_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status help_command(const struct options *options, struct error *error) STATUS_CHECKED;
enum status version_command(const struct options *options, struct error *error) STATUS_CHECKED;

/* Prints the help of one command, or of all, on standard output. */
enum status help_print_command(const struct command *command, struct error *error) STATUS_CHECKED;
enum status help_print_all(const struct command *commands, struct error *error) STATUS_CHECKED;

#endif

#include "cli/reference.h"

#include <stdio.h>

#include "cli/option_help.h"
#include "cli/output.h"
#include "cli/version.h"

/* "-m, --model FILE" */
static void write_names(const struct option_spec *spec, char *text, size_t size) {
    size_t used = 0;
    if (spec->short_name != NULL) used += (size_t)snprintf(text, size, "-%s, ", spec->short_name);
    used += (size_t)snprintf(text + used, size - used, "--%s", spec->name);
    if (spec->alias != NULL) used += (size_t)snprintf(text + used, size - used, ", --%s", spec->alias);
    if (spec->argument != NULL) snprintf(text + used, size - used, " %s", spec->argument);
}

/* Not where another program's page has it. */
static bool is_described_here(const struct program *program, size_t command) {
    const struct command *described = program->described;
    return program->commands[command].run != NULL &&
           (described == NULL || program->commands[command].run != described[command].run);
}

/* An option that the program adds to commands of another one's page. */
static bool is_added(const struct program *program, const struct option_spec *spec) {
    return program->described != NULL && spec >= program->more_options &&
           spec < program->more_options + program->more_option_count;
}

/* "run, chat" */
static void write_commands(const struct option_spec *spec, const struct program *program, char *text, size_t size) {
    size_t used = 0, count = 0, all = 0;
    text[0] = '\0';
    for (size_t i = 0; i < COMMAND_COUNT && used < size; i++) {
        if (program->commands[i].run == NULL || !(is_described_here(program, i) || is_added(program, spec))) continue;
        all++;
        if (!option_belongs(spec, &program->commands[i])) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s", count > 0 ? ", " : "", program->commands[i].name);
        count++;
    }
    if (count == all) snprintf(text, size, "all");
}

/* ---- Markdown ---- */

static void print_cell(const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '|') output_text("\\");
        output_text("%c", *text == '\n' ? ' ' : *text);
    }
}

static void print_markdown(const struct program *program) {
    char names[128], where[256], help[OPTION_HELP_BYTES];
    const struct command *commands = program->commands;
    const struct option_spec *spec;
    output_text("## Commands\n\n| command | what it does |\n|---|---|\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (!is_described_here(program, i)) continue;
        output_text("| `%s %s ", program->name, commands[i].name);
        print_cell(commands[i].usage);
        output_text("` | ");
        print_cell(commands[i].summary);
        output_text(" |\n");
    }
    for (size_t group = 0; group < GROUP_COUNT; group++) {
        bool titled = false;
        for (size_t i = 0; (spec = program_option(program, i)) != NULL; i++) {
            if (spec->group != group) continue;
            write_names(spec, names, sizeof names);
            write_commands(spec, program, where, sizeof where);
            if (where[0] == '\0') continue;
            if (!titled)
                output_text("\n## Options: %s\n\n| option | of | meaning |\n|---|---|---|\n",
                            option_group_titles[group]);
            titled = true;
            option_help(spec, help, sizeof help);
            output_text("| `");
            print_cell(names);
            output_text("` | %s | ", where);
            print_cell(help);
            output_text(" |\n");
        }
    }
}

/* ---- the manual page ---- */

/* A line of text in roff: no request begins it, and '-' is the one that is typed. */
static void print_roff(const char *text) {
    if (*text == '.' || *text == '\'') output_text("\\&");
    for (; *text != '\0'; text++) switch (*text) {
        case '\\': output_text("\\e"); break;
        case '-': output_text("\\-"); break;
        default: output_text("%c", *text); break;
        }
}

static void print_man_options(const struct program *program) {
    char names[128], where[256], help[OPTION_HELP_BYTES];
    const struct option_spec *spec;
    for (size_t group = 0; group < GROUP_COUNT; group++) {
        output_text(".SS %s\n", option_group_titles[group]);
        for (size_t i = 0; (spec = program_option(program, i)) != NULL; i++) {
            if (spec->group != group) continue;
            write_names(spec, names, sizeof names);
            write_commands(spec, program, where, sizeof where);
            if (where[0] == '\0') continue;
            option_help(spec, help, sizeof help);
            output_text(".TP\n.B ");
            print_roff(names);
            output_text("\n");
            print_roff(help);
            output_text("\n.br\nOf: ");
            print_roff(where);
            output_text("\n");
        }
    }
}

static void print_man(const struct program *program) {
    output_text(".TH LOAM 1 \"\" \"loam %s\"\n.ad l\n.SH NAME\nloam \\- language models with long contexts on ordinary "
                "machines\n.SH SYNOPSIS\n.B loam\n.I command\n[options]\n.SH COMMANDS\n",
                version_number);
    const struct command *commands = program->commands;
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].run == NULL) continue;
        output_text(".TP\n.B ");
        print_roff(program->name);
        output_text(" ");
        print_roff(commands[i].name);
        output_text(" ");
        print_roff(commands[i].usage);
        output_text("\n");
        print_roff(commands[i].description);
        output_text("\n");
    }
    output_text(".SH OPTIONS\nEach has the commands that take it; an option with two meanings is here twice.\n");
    print_man_options(program);
    output_text(
        ".SH ENVIRONMENT\n.TP\n.B LOAM_ARG_NAME\nthe option \\-\\-name, where the command line does not have it\n.TP\n"
        ".B LOAM_MODELS\nthe folder of pulled models\n.TP\n.B HF_TOKEN, HF_ENDPOINT\na token for the registry of "
        "models, and another registry\n.SH EXIT STATUS\n0 done, 1 other failure, 2 usage, 3 model file, 4 saved "
        "document, 5 memory, 6 input or output, 130 interrupted.\n");
}

enum status reference_print(const struct program *program, size_t form, struct error *error) {
    static void (*const forms[])(const struct program *) = {print_man, print_markdown, completion_print_bash,
                                                            completion_print_zsh, completion_print_fish};
    forms[form](program);
    return output_flush(error);
}

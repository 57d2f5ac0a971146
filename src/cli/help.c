/* Help, generated from command_table and option_table. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/option_help.h"
#include "cli/output.h"
#include "cli/reference.h"

enum { HELP_COLUMN = 32, HELP_WIDTH = 100 };

/* Prints the words of text from column on, wrapped at HELP_WIDTH.  A list of choices that fits no line may also break
 * after a vertical bar. */
static void print_wrapped(const char *text, size_t column, size_t indent) {
    bool glued = false; /* to what was printed before: no blank between them */
    while (*text != '\0') {
        size_t length = strcspn(text, " \n"), choice = strcspn(text, " \n|");
        bool is_choice = text[choice] == '|' && (glued || length > HELP_WIDTH - indent);
        if (is_choice) length = choice + 1;
        if (length == 0 && *text == ' ') { /* the second blank after a sentence */
            text++;
            continue;
        }
        if (column > indent && column + !glued + length > HELP_WIDTH) {
            output_text("\n%*s", (int)indent, "");
            column = indent;
        }
        bool blank = column > indent && !glued;
        output_text("%s%.*s", blank ? " " : "", (int)length, text);
        column += length + blank;
        text += length;
        glued = is_choice;
        if (is_choice) continue;
        if (*text == '\n') {
            output_text("\n%*s", (int)indent, "");
            column = indent;
        }
        if (*text != '\0') text++;
    }
    output_text("\n");
}

static void print_option(const struct option_spec *spec) {
    char left[96];
    size_t used =
        (size_t)(spec->short_name != NULL ? snprintf(left, sizeof left, "  -%s, --%s", spec->short_name, spec->name)
                                          : snprintf(left, sizeof left, "      --%s", spec->name));
    if (spec->argument != NULL) used += (size_t)snprintf(left + used, sizeof left - used, " %s", spec->argument);
    if (used + 2 > HELP_COLUMN)
        output_text("%s\n%*s", left, HELP_COLUMN, "");
    else
        output_text("%-*s", HELP_COLUMN, left);
    char right[OPTION_HELP_BYTES];
    option_help(spec, right, sizeof right);
    print_wrapped(right, HELP_COLUMN, HELP_COLUMN);
}

enum status help_print_command(const struct program *program, const struct command *command, struct error *error) {
    const struct option_spec *spec;
    output_text("Usage: %s %s %s\n\n", program->name, command->name, command->usage);
    print_wrapped(command->description, 0, 0);
    bool any = false;
    for (size_t group = 0; group < GROUP_COUNT; group++) {
        bool titled = false;
        for (size_t i = 0; (spec = program_option(program, i)) != NULL; i++) {
            if (spec->group != group || !option_belongs(spec, command)) continue;
            if (!titled) output_text("\n%s:\n", option_group_titles[group]);
            titled = true;
            any |= spec->id != OPTION_HELP;
            print_option(spec);
        }
    }
    if (any) {
        char name[64];
        for (size_t i = 0; (spec = program_option(program, i)) != NULL; i++) {
            if (!option_belongs(spec, command)) continue;
            output_text("\nEvery option can come from the environment too (%s=...); the argument wins.\n",
                        option_environment_name(spec, name, sizeof name));
            break;
        }
    }
    return output_flush(error);
}

static enum status print_all(const struct program *program, struct error *error) {
    const char *name = program->name;
    output_text("%s: %s\n\nUsage: %s COMMAND [options]\n\nCommands:\n", name, program->summary, name);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (program->commands[i].run != NULL)
            output_text("  %-12s %s\n", program->commands[i].name, program->commands[i].summary);
    output_text("\nExamples:\n"
                "  %s run -m model.gguf -f book.txt -p \"Who is Irene Adler?\"\n"
                "  %s run -m model.gguf -f book.txt -p \"Who is the King?\" --kv-disk kv --kv-host 256M\n"
                "  %s run -m model.gguf --raw -p \"The capital of France is\" -n 32\n"
                "  %s chat -m model.gguf -f book.txt\n"
                "  %s inspect model.gguf\n"
                "  %s bench -m model.gguf -p 512,2048 -n 128 -d 0,4096\n",
                name, name, name, name, name, name);
    output_text("\n'%s help COMMAND' describes a command and its options.  Results go to standard output,\n"
                "everything else to standard error.\n\n"
                "Exit codes: 0 done, 1 other failure, 2 usage, 3 model file, 4 saved document, 5 memory,\n"
                "6 input or output, 130 interrupted.\n",
                name);
    return output_flush(error);
}

enum status help_command(const struct options *options, struct error *error) {
    const struct program *program = options->program;
    if (option_given(options, OPTION_AS)) return reference_print(program, option_count(options, OPTION_AS), error);
    if (options->positional_count == 0) return print_all(program, error);
    const char *name = options->positionals[0];
    const struct command *command = command_find(program, name);
    if (command != NULL && command->run != NULL) return help_print_command(program, command, error);
    if (command != NULL) return error_set(error, STATUS_USAGE, "help: '%s' is a command of loam-lab", command->name);
    const struct command *near = command_nearest(program, name);
    if (near != NULL)
        return error_set(error, STATUS_USAGE, "help: unknown command '%.60s'; did you mean '%s'?", name, near->name);
    return error_set(error, STATUS_USAGE, "help: unknown command '%.60s'; '%s help' lists them", name, program->name);
}

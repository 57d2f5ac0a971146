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
    size_t used = (size_t)(spec->short_name != NULL
                               ? snprintf(left, sizeof left, "  -%s, --%s", spec->short_name, spec->name)
                               : snprintf(left, sizeof left, "      --%s", spec->name));
    if (spec->argument != NULL)
        used += (size_t)snprintf(left + used, sizeof left - used, " %s", spec->argument);
    if (used + 2 > HELP_COLUMN)
        output_text("%s\n%*s", left, HELP_COLUMN, "");
    else
        output_text("%-*s", HELP_COLUMN, left);
    char right[OPTION_HELP_BYTES];
    option_help(spec, right, sizeof right);
    print_wrapped(right, HELP_COLUMN, HELP_COLUMN);
}

enum status help_print_command(const struct command *command, struct error *error) {
    output_text("Usage: loam %s %s\n\n", command->name, command->usage);
    print_wrapped(command->description, 0, 0);
    bool any = false;
    for (size_t group = 0; group < GROUP_COUNT; group++) {
        bool titled = false;
        for (size_t i = 0; i < option_table_count; i++) {
            const struct option_spec *spec = &option_table[i];
            if (spec->group != group || !option_belongs(spec, command)) continue;
            if (!titled) output_text("\n%s:\n", option_group_titles[group]);
            titled = true;
            any |= spec->id != OPTION_HELP;
            print_option(spec);
        }
    }
    if (any) {
        char name[64];
        for (size_t i = 0; i < option_table_count; i++) {
            if (!option_belongs(&option_table[i], command)) continue;
            output_text("\nEvery option can come from the environment too (%s=...); the argument wins.\n",
                        option_environment_name(&option_table[i], name, sizeof name));
            break;
        }
    }
    return output_flush(error);
}

enum status help_print_all(const struct command *commands, struct error *error) {
    output_text("loam: long contexts on ordinary machines.  Runs GGUF language models on the CPU.\n\n"
                "Usage: loam COMMAND [options]\n\nCommands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (commands[i].name != NULL) output_text("  %-12s %s\n", commands[i].name, commands[i].summary);
    if (command_find(commands, "run") != NULL)
        output_text(
            "\nExamples:\n"
            "  loam run -m model.gguf -f book.txt -p \"Who is Irene Adler?\"\n"
            "  loam run -m model.gguf -f book.txt -p \"Who is the King?\" --kv-disk kv --kv-host 256M\n"
            "  loam run -m model.gguf --raw -p \"The capital of France is\" -n 32\n"
            "  loam chat -m model.gguf -f book.txt\n"
            "  loam inspect model.gguf\n"
            "  loam bench -m model.gguf -p 512,2048 -n 128 -d 0,4096\n");
    output_text("\n'loam help COMMAND' describes a command and its options.  Results go to standard output,\n"
                "everything else to standard error.\n\n"
                "Exit codes: 0 done, 1 other failure, 2 usage, 3 model file, 4 saved document, 5 memory,\n"
                "6 input or output, 130 interrupted.\n");
    return output_flush(error);
}

enum status help_command(const struct options *options, struct error *error) {
    if (option_given(options, OPTION_AS))
        return reference_print(options->commands, option_count(options, OPTION_AS), error);
    if (options->positional_count == 0) return help_print_all(options->commands, error);
    const char *name = options->positionals[0];
    const struct command *command = command_find(options->commands, name);
    if (command != NULL) return help_print_command(command, error);
    const char *near = command_nearest(options->commands, name);
    if (near != NULL)
        return error_set(error, STATUS_USAGE, "help: unknown command '%.60s'; did you mean '%s'?", name,
                         near);
    return error_set(error, STATUS_USAGE, "help: unknown command '%.60s'; 'loam help' lists them", name);
}

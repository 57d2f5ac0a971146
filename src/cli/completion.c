/* completion: what bash, zsh and fish need to complete a command line of loam. */
#include <string.h>

#include "cli/option_help.h"
#include "cli/output.h"
#include "cli/reference.h"

enum { SUMMARY_BYTES = 100 };

static bool takes_argument(const struct option_spec *spec) { return spec->kind != ARGUMENT_NONE; }

static void print_command_names(const struct program *program) {
    for (size_t i = 0, count = 0; i < COMMAND_COUNT; i++)
        if (program->commands[i].run != NULL) output_text("%s%s", count++ > 0 ? " " : "", program->commands[i].name);
}

/* ---- bash ---- */

static void print_bash_command(const struct program *program, const struct command *command) {
    char words[OPTION_WORDS_BYTES];
    const struct option_spec *spec;
    if (command->run == NULL) return;
    for (size_t i = 0; (spec = program_option(program, i)) != NULL; i++) {
        if (!option_belongs(spec, command) || option_words(spec, words, sizeof words)[0] == '\0') continue;
        output_text("    %s:--%s", command->name, spec->name);
        if (spec->short_name != NULL) output_text("|%s:-%s", command->name, spec->short_name);
        if (spec->alias != NULL) output_text("|%s:--%s", command->name, spec->alias);
        output_text(") words='%s' ;;\n", words);
    }
    output_text("    %s:*) [[ $current == -* ]] && words='", command->name);
    for (size_t i = 0, count = 0; (spec = program_option(program, i)) != NULL; i++) {
        if (!option_belongs(spec, command)) continue;
        output_text("%s--%s", count++ > 0 ? " " : "", spec->name);
        if (spec->short_name != NULL) output_text(" -%s", spec->short_name);
    }
    output_text("' ;;\n");
}

void completion_print_bash(const struct program *program) {
    const char *name = program->name;
    output_text("# Completion of %s for bash, by `%s help --as bash`.\n"
                "_%s() {\n"
                "  local current=${COMP_WORDS[COMP_CWORD]} words=\n"
                "  if [ \"$COMP_CWORD\" = 1 ]; then\n"
                "    words='",
                name, name, name);
    print_command_names(program);
    output_text("'\n  else case ${COMP_WORDS[1]}:${COMP_WORDS[COMP_CWORD - 1]} in\n");
    output_text("    help:help) words='");
    print_command_names(program);
    output_text("' ;;\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) print_bash_command(program, &program->commands[i]);
    output_text("  esac; fi\n"
                "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                "}\n"
                "complete -o default -F _%s %s\n",
                name, name);
}

/* ---- zsh ---- */

/* Within single quotes, where zsh's _arguments reads brackets and colons. */
static void print_zsh_text(const char *text) {
    for (; *text != '\0'; text++) {
        if (strchr("[]:\\", *text) != NULL) output_text("\\");
        output_text(*text == '\'' ? "'\\''" : "%c", *text);
    }
}

static void print_zsh_option(const struct option_spec *spec, const char *dashes, const char *name) {
    char summary[SUMMARY_BYTES], words[OPTION_WORDS_BYTES];
    option_summary(spec, summary, sizeof summary);
    option_words(spec, words, sizeof words);
    output_text("      '%s%s[", dashes, name);
    print_zsh_text(summary);
    output_text("]");
    if (takes_argument(spec)) {
        output_text(":");
        print_zsh_text(spec->argument);
        output_text(words[0] != '\0' ? ":(%s)" : ":_files", words);
    }
    output_text("' \\\n");
}

void completion_print_zsh(const struct program *program) {
    const char *name = program->name;
    const struct command *commands = program->commands;
    const struct option_spec *spec;
    output_text("#compdef %s\n# Completion of %s for zsh, by `%s help --as zsh`.\n_%s() {\n"
                "  local -a commands=(\n",
                name, name, name, name);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].run == NULL) continue;
        output_text("    '%s:", commands[i].name);
        print_zsh_text(commands[i].summary);
        output_text("'\n");
    }
    output_text("  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
                "  local command=$words[2]\n  shift words; (( CURRENT-- ))\n  case $command in\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].run == NULL) continue;
        output_text("    %s) _arguments \\\n", commands[i].name);
        for (size_t j = 0; (spec = program_option(program, j)) != NULL; j++) {
            if (!option_belongs(spec, &commands[i])) continue;
            if (spec->short_name != NULL) print_zsh_option(spec, "-", spec->short_name);
            print_zsh_option(spec, "--", spec->name);
        }
        output_text("      '*:file:_files' ;;\n");
    }
    output_text("  esac\n}\n_%s \"$@\"\n", name);
}

/* ---- fish ---- */

static void print_fish_text(const char *text) {
    for (; *text != '\0'; text++) output_text(strchr("'\\", *text) != NULL ? "\\%c" : "%c", *text);
}

void completion_print_fish(const struct program *program) {
    char summary[SUMMARY_BYTES], words[OPTION_WORDS_BYTES];
    const char *name = program->name;
    const struct command *commands = program->commands;
    const struct option_spec *spec;
    output_text("# Completion of %s for fish, by `%s help --as fish`.\n", name, name);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].run == NULL) continue;
        output_text("complete -c %s -f -n __fish_use_subcommand -a %s -d '", name, commands[i].name);
        print_fish_text(commands[i].summary);
        output_text("'\n");
    }
    for (size_t i = 0; (spec = program_option(program, i)) != NULL; i++) {
        output_text("complete -c %s -n '__fish_seen_subcommand_from", name);
        for (size_t j = 0; j < COMMAND_COUNT; j++)
            if (option_belongs(spec, &commands[j])) output_text(" %s", commands[j].name);
        output_text("' -l %s", spec->name);
        if (spec->short_name != NULL) output_text(" -%c %s", spec->short_name[1] == '\0' ? 's' : 'o', spec->short_name);
        if (option_words(spec, words, sizeof words)[0] != '\0')
            output_text(" -x -a '%s'", words);
        else if (takes_argument(spec))
            output_text(" -r");
        output_text(" -d '");
        option_summary(spec, summary, sizeof summary);
        print_fish_text(summary);
        output_text("'\n");
    }
}

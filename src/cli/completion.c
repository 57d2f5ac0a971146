/* completion: what bash, zsh and fish need to complete a command line of loam. */
#include <stdio.h>
#include <string.h>

#include "cli/option_help.h"
#include "cli/output.h"
#include "cli/reference.h"

enum { SUMMARY_BYTES = 100 };

static bool takes_argument(const struct option_spec *spec) { return spec->kind != ARGUMENT_NONE; }

static void print_command_names(const struct command *commands) {
    for (size_t i = 0; i < COMMAND_COUNT; i++) output_text("%s%s", i > 0 ? " " : "", commands[i].name);
}

/* ---- bash ---- */

static void print_bash_command(const struct command *command) {
    char words[OPTION_WORDS_BYTES];
    for (size_t i = 0; i < option_table_count; i++) {
        const struct option_spec *spec = &option_table[i];
        if (!option_belongs(spec, command) || option_words(spec, words, sizeof words)[0] == '\0') continue;
        output_text("    %s:--%s", command->name, spec->name);
        if (spec->short_name != NULL) output_text("|%s:-%s", command->name, spec->short_name);
        if (spec->alias != NULL) output_text("|%s:--%s", command->name, spec->alias);
        output_text(") words='%s' ;;\n", words);
    }
    output_text("    %s:*) [[ $current == -* ]] && words='", command->name);
    for (size_t i = 0, count = 0; i < option_table_count; i++) {
        const struct option_spec *spec = &option_table[i];
        if (!option_belongs(spec, command)) continue;
        output_text("%s--%s", count++ > 0 ? " " : "", spec->name);
        if (spec->short_name != NULL) output_text(" -%s", spec->short_name);
    }
    output_text("' ;;\n");
}

void completion_print_bash(const struct command *commands) {
    output_text("# Completion of loam for bash, by `loam help --as bash`.\n"
                "_loam() {\n"
                "  local current=${COMP_WORDS[COMP_CWORD]} words=\n"
                "  if [ \"$COMP_CWORD\" = 1 ]; then\n"
                "    words='");
    print_command_names(commands);
    output_text("'\n  else case ${COMP_WORDS[1]}:${COMP_WORDS[COMP_CWORD - 1]} in\n");
    output_text("    help:help) words='");
    print_command_names(commands);
    output_text("' ;;\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) print_bash_command(&commands[i]);
    output_text("  esac; fi\n"
                "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                "}\n"
                "complete -o default -F _loam loam\n");
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

void completion_print_zsh(const struct command *commands) {
    output_text("#compdef loam\n# Completion of loam for zsh, by `loam help --as zsh`.\n_loam() {\n"
                "  local -a commands=(\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        output_text("    '%s:", commands[i].name);
        print_zsh_text(commands[i].summary);
        output_text("'\n");
    }
    output_text("  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
                "  local command=$words[2]\n  shift words; (( CURRENT-- ))\n  case $command in\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        output_text("    %s) _arguments \\\n", commands[i].name);
        for (size_t j = 0; j < option_table_count; j++) {
            const struct option_spec *spec = &option_table[j];
            if (!option_belongs(spec, &commands[i])) continue;
            if (spec->short_name != NULL) print_zsh_option(spec, "-", spec->short_name);
            print_zsh_option(spec, "--", spec->name);
        }
        output_text("      '*:file:_files' ;;\n");
    }
    output_text("  esac\n}\n_loam \"$@\"\n");
}

/* ---- fish ---- */

static void print_fish_text(const char *text) {
    for (; *text != '\0'; text++) output_text(strchr("'\\", *text) != NULL ? "\\%c" : "%c", *text);
}

void completion_print_fish(const struct command *commands) {
    char summary[SUMMARY_BYTES], words[OPTION_WORDS_BYTES];
    output_text("# Completion of loam for fish, by `loam help --as fish`.\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        output_text("complete -c loam -f -n __fish_use_subcommand -a %s -d '", commands[i].name);
        print_fish_text(commands[i].summary);
        output_text("'\n");
    }
    for (size_t i = 0; i < option_table_count; i++) {
        const struct option_spec *spec = &option_table[i];
        output_text("complete -c loam -n '__fish_seen_subcommand_from");
        for (size_t j = 0; j < COMMAND_COUNT; j++)
            if (option_belongs(spec, &commands[j])) output_text(" %s", commands[j].name);
        output_text("' -l %s", spec->name);
        if (spec->short_name != NULL)
            output_text(" -%c %s", spec->short_name[1] == '\0' ? 's' : 'o', spec->short_name);
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

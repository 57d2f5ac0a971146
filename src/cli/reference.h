/* reference: all commands and options in a form that other programs show: a manual page, a page of docs/, the
 * completions of shells.  All come from command_table and option_table. */
#pragma once

#include "cli/command.h"

/* The forms, as the choices of an option: man, markdown, bash, zsh, fish. */
#define REFERENCE_FORMS "man|markdown|bash|zsh|fish"

/* form: an index into REFERENCE_FORMS. */
enum status reference_print(const struct program *program, size_t form, struct error *error) STATUS_CHECKED;

void completion_print_bash(const struct program *program);
void completion_print_zsh(const struct program *program);
void completion_print_fish(const struct program *program);

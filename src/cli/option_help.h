/* option_help: what a row of the option table says to people. */
#pragma once

#include <stddef.h>

#include "cli/command.h"

enum { OPTION_HELP_BYTES = 1024, OPTION_WORDS_BYTES = 512 };

extern const char *const option_group_titles[GROUP_COUNT];

/* Its help, with the presets or settings that {presets} and {settings} stand for, its choices and its default.  Returns
 * the length. */
size_t option_help(const struct option_spec *spec, char *text, size_t text_bytes);
/* The same without choices and default, cut behind its first clause, for a line of a shell's menu. */
void option_summary(const struct option_spec *spec, char *text, size_t text_bytes);
/* The words that may follow it, between blanks: its choices, or the presets; "": any text. */
const char *option_words(const struct option_spec *spec, char *text, size_t text_bytes);

static inline bool option_belongs(const struct option_spec *spec, const struct command *command) {
    return command->run != NULL && (spec->commands >> command->id & 1) != 0;
}

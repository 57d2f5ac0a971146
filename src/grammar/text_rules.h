/* text_rules: what several keywords together ask of a string, as an automaton over its JSON with the quotes. */
#pragma once

#include "grammar/automaton.h"
#include "grammar/pattern.h"

enum { TEXT_RULES_PATTERNS_MAX = 8 };

struct text_rules {
    struct pattern patterns[TEXT_RULES_PATTERNS_MAX]; /* owned: all of them match */
    size_t pattern_count;
    uint32_t length_min, length_max; /* characters; length_max UINT32_MAX: no limit */
};

void text_rules_deinit(struct text_rules *rules);
/* STATUS_USAGE: why it is not understood. */
enum status text_rules_add_pattern(struct text_rules *rules, const char *pattern, size_t length, struct error *error)
    STATUS_CHECKED;
/* date, time, date-time, email ...  Those that say nothing about the text (password) change nothing.
 * STATUS_UNSUPPORTED: unknown. */
enum status text_rules_add_format(struct text_rules *rules, const char *name, struct error *error) STATUS_CHECKED;
/* At least one pattern.  *automaton NULL: no text is like that.  STATUS_FULL: too many states.  work: of struct
 * explorer. */
enum status text_rules_compile(struct text_rules *rules, struct arena *arena, struct automaton **automaton,
                               uint64_t *work, struct error *error) STATUS_CHECKED;

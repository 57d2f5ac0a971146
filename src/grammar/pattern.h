/* pattern: a regular expression as a set of states over the bytes in which JSON writes a string.
 *
 * Understood: characters, ., classes, \d \w \s and their opposites, escapes, groups, |, * + ? {n,m}, ^ and $.  Not:
 * references back, looking ahead or behind, \b, \p{...}.  ECMAScript and Python differ in places (is \d Arabic, what
 * does . leave out?): what is described here matches in both, so it may be less than either takes.
 *
 * A character has one way to be written: as itself, or with the escape that JSON needs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { PATTERN_STATES_MAX = 8192, PATTERN_BYTES_MAX = 4096, PATTERN_DEPTH_MAX = 32 };

struct pattern_state;

struct pattern {
    struct pattern_state *states; /* owned, [count] */
    uint32_t count;
    size_t capacity;
    uint32_t first, match;
};

/* Of a text anywhere in which the expression matches.  STATUS_USAGE: why it is not understood. */
enum status pattern_read(struct pattern *pattern, const char *text, size_t length, struct error *error) STATUS_CHECKED;
void pattern_deinit(struct pattern *pattern);

/* Sets of states as bits: [pattern_words]. */
size_t pattern_words(const struct pattern *pattern);
void pattern_begin(const struct pattern *pattern, uint32_t *set);
/* False: none is left. */
bool pattern_step(const struct pattern *pattern, const uint32_t *set, uint8_t byte, uint32_t *next, uint64_t *work);
bool pattern_ends(const struct pattern *pattern, const uint32_t *set);
/* Marks the bytes that begin a class: those of one class lead alike. */
void pattern_mark_classes(const struct pattern *pattern, bool begins[257]);

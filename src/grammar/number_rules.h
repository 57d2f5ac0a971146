/* number_rules: what several keywords together ask of a number, as an automaton over its decimal digits.
 *
 * Differs from unlimited numbers: no exponents, and at most 15 digits where there are some behind the point, so that
 * binary arithmetic compares as decimal digits do. */
#pragma once

#include <jansson.h>

#include "grammar/automaton.h"

enum { DECIMAL_DIGITS_MAX = 40 };

/* A number as its digits: whole[whole_count].fraction[fraction_count], without zeros in front or behind. */
struct decimal {
    bool is_negative;
    uint8_t digits[DECIMAL_DIGITS_MAX]; /* whole ones, then those of the fraction */
    uint32_t whole_count, fraction_count;
};

struct number_bound {
    bool is_there, is_exclusive;
    struct decimal value;
    double number;
};

struct number_rules {
    struct number_bound low, high;
    bool only_integer;
    uint32_t step;          /* multipleOf: step / 10^step_fraction; 0: none */
    uint32_t step_fraction; /* digits */
};

/* false: it is so small or large that its digits do not fit. */
bool decimal_read(struct decimal *decimal, const json_t *number);
/* *automaton NULL: no number is like that.  STATUS_FULL: too many states.  work: struct explorer. */
enum status number_rules_compile(const struct number_rules *rules, struct arena *arena, struct automaton **automaton,
                                 uint64_t *work, struct error *error) STATUS_CHECKED;

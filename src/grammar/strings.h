/* strings: what several schemas together say about a string or a number. */
#pragma once

#include "grammar/number_rules.h"
#include "grammar/reader.h"
#include "grammar/text_rules.h"

/* A whole number from 0 on. */
enum status count_read(const struct reader *reader, const char *keyword, const json_t *value, uint32_t *count,
                       struct error *error) STATUS_CHECKED;
/* Adds pattern, format, minLength and maxLength to the rules. */
enum status strings_read(const struct reader *reader, struct text_rules *rules, struct error *error) STATUS_CHECKED;
/* The form of a string.  *is_possible: some string is like that. */
enum status string_form(const struct reader *reader, struct form *form, bool *is_possible, struct error *error)
    STATUS_CHECKED;
enum status number_form(const struct reader *reader, bool only_integer, struct form *form, bool *is_possible,
                        struct error *error) STATUS_CHECKED;
/* Whether a string or number of enum or const meets the other keywords. */
enum status scalar_meets(const struct reader *reader, const json_t *value, bool *meets, struct error *error)
    STATUS_CHECKED;

/* records: the fixtures of tests/token/fixtures, which hold "@KIND ARGUMENT LENGTH", a line break, LENGTH bytes of
 * text and a line break, again and again. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct record {
    char kind[16], argument[32];
    char *text; /* [length], zero-terminated in place */
    size_t length;
};

/* Reads the record at *at and moves behind it; false at the end.  Fails the test where there is none. */
bool record_next(char **at, struct record *record);

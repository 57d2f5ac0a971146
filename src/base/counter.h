/* counter: what a part of loam counts, as rows of a table beside its struct: a name, a unit, a line of help.  JSON, the
 * benchmark, /metrics and the map read the rows, so a counter is declared once and seen everywhere.
 *
 * Names are users': the key in JSON and, behind "loam_" and the table's prefix, the metric.  A counter of bytes or
 * seconds says so in its name.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum counter_unit {
    COUNTER_ITEMS,
    COUNTER_BYTES,
    COUNTER_SECONDS, /* an integer member has nanoseconds */
    COUNTER_PER_SECOND,
};
enum counter_kind {
    COUNTER_TOTAL, /* grows: of two readings the difference counts */
    COUNTER_LEVEL, /* what is so now */
};
enum counter_member { COUNTER_INTEGER, COUNTER_REAL, COUNTER_FLAG };

struct counter {
    enum counter_kind kind;
    enum counter_unit unit;
    enum counter_member member;
    size_t offset; /* in the struct */
    const char *name, *help;
};

struct counter_table {
    const char *prefix; /* of metrics, and of JSON where several tables share an object */
    size_t struct_bytes;
    const struct counter *rows; /* [count] */
    size_t count;
};

/* size_t is a uint64_t here; any other type of a member does not compile. */
#define COUNTER_ROW(KIND, UNIT, SET, MEMBER, NAME, HELP) \
    {                                                    \
        COUNTER_##KIND, COUNTER_##UNIT,                  \
            _Generic(((const SET *)0)->MEMBER, uint64_t  \
                     : COUNTER_INTEGER, double           \
                     : COUNTER_REAL, bool                \
                     : COUNTER_FLAG),                    \
            offsetof(SET, MEMBER), NAME, HELP            \
    }
#define COUNTER_TABLE(PREFIX, SET, ROWS) \
    { PREFIX, sizeof(SET), ROWS, sizeof(ROWS) / sizeof *(ROWS) }

/* In seconds where the unit is. */
double counter_value(const struct counter *counter, const void *values);
/* Totals grow by `more`'s; levels become `more`'s. */
void counters_add(const struct counter_table *table, void *sum, const void *more);
/* Totals become what they grew since `before`. */
void counters_subtract(const struct counter_table *table, void *values, const void *before);

/* schemas: the schemas by which answers are sampled and then validated. */
#pragma once

#include <stddef.h>

extern const char *const test_schemas[];
extern const size_t test_schema_count;

/* The slowest kind that is known: alternatives that stay undecided, each a list of lists so deep. */
void test_write_deep(char *text, size_t alternatives, size_t depth);

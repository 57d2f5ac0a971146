/* table: rows of texts, printed as a Markdown table whose columns are aligned for the eye too. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

enum { TABLE_COLUMNS_MAX = 48 };

struct table {
    size_t column_count;
    bool is_number[TABLE_COLUMNS_MAX]; /* aligned to the right */
    size_t widths[TABLE_COLUMNS_MAX];
    struct text cells; /* row by row, each cell zero-terminated; the first row is the heading */
    size_t cell_count;
};

void table_deinit(struct table *table);
/* Adds the next cell, row by row, the heading first. */
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends the lines to text. */
void table_write(const struct table *table, struct text *text);

#include "cli/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Characters of UTF-8 text. */
static size_t width_of(const char *text) {
    size_t width = 0;
    for (; *text != '\0'; text++) width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

void table_deinit(struct table *table) { text_deinit(&table->cells); }

void table_cell(struct table *table, const char *format, ...) {
    char cell[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(cell, sizeof cell, format, arguments);
    va_end(arguments);
    size_t column = table->cell_count++ % table->column_count, width = width_of(cell);
    if (width > table->widths[column]) table->widths[column] = width;
    text_append(&table->cells, cell, strlen(cell) + 1);
}

static void add_blanks(struct text *text, size_t count, char blank) {
    for (size_t i = 0; i < count; i++) text_append(text, &blank, 1);
}

void table_write(const struct table *table, struct text *text) {
    const char *cell = table->cells.bytes;
    if (table->cells.failed) text->failed = true;
    if (text->failed) return;
    for (size_t i = 0; i < table->cell_count; i++, cell += strlen(cell) + 1) {
        size_t column = i % table->column_count, blanks = table->widths[column] - width_of(cell);
        text_add(text, "| ");
        if (table->is_number[column]) add_blanks(text, blanks, ' ');
        text_add(text, cell);
        if (!table->is_number[column]) add_blanks(text, blanks, ' ');
        text_add(text, column + 1 == table->column_count ? " |\n" : " ");
        if (i + 1 != table->column_count) continue;
        for (size_t c = 0; c < table->column_count; c++) {
            text_add(text, "|");
            add_blanks(text, table->widths[c] + 1, '-');
            text_add(text, table->is_number[c] ? ":" : "-");
        }
        text_add(text, "|\n");
    }
}

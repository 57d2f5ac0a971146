/* line_reader: a line from the user, with editing and history if standard input is a terminal. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

struct line_reader;

enum line_result { LINE_READ, LINE_END, LINE_INTERRUPTED };

enum status line_reader_create(struct line_reader **reader, struct error *error) STATUS_CHECKED;
void line_reader_destroy(struct line_reader *reader); /* NULL allowed; restores the terminal */
bool line_reader_is_terminal(const struct line_reader *reader);
/* *line without its newline, valid until the next call.  LINE_INTERRUPTED: Ctrl-C at the prompt. */
enum line_result line_reader_read(struct line_reader *reader, const char **line);

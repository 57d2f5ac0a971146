/* output_file: a text file written whole or not at all, through a temporary file in the same folder.  A device or a
 * pipe (/dev/stdout) is written directly.  So is a file of lines, each of which is valid by itself. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/status.h"
#include "platform/file.h"

struct output_file {
    FILE *stream;              /* NULL: not open */
    const char *path;          /* borrowed */
    struct file_writer writer; /* stream NULL: written directly */
};

enum status output_file_open(struct output_file *file, const char *path, struct error *error) STATUS_CHECKED;
/* Truncates the file or appends to it.  What was written stays, whatever happens. */
enum status output_file_open_lines(struct output_file *file, const char *path, bool appends, struct error *error)
    STATUS_CHECKED;
enum status output_file_flush(struct output_file *file, struct error *error) STATUS_CHECKED;
enum status output_file_put(struct output_file *file, const char *bytes, size_t length, struct error *error)
    STATUS_CHECKED;
enum status output_file_commit(struct output_file *file, struct error *error) STATUS_CHECKED;
/* safe after a commit, and on a file that was never opened */
void output_file_abort(struct output_file *file);

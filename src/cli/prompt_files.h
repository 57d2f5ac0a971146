/* prompt_files: what -f names, a file or a folder, as texts (document/document.h). */
#pragma once

#include <stddef.h>

#include "base/status.h"
#include "cli/option.h"

struct prompt_file {
    char *path;  /* owned: for people */
    char *bytes; /* owned, [length], zero-terminated */
    size_t length;
};

/* Zeros: none. */
struct prompt_files {
    struct prompt_file *files; /* owned, [count] */
    size_t count, capacity;
};

/* Adds a file's text, or those of a folder's files, in the order of folder.h.  Each is behind a mark with its name
 * (document/mark.h), but for a first one that is no folder's.  What is no text is an error, and in a folder left out
 * with a line on standard error.  "-" is standard input. */
enum status prompt_files_add(struct prompt_files *files, const struct options *options, const char *path,
                             struct error *error) STATUS_CHECKED;
void prompt_files_cut(struct prompt_files *files, size_t count); /* to the first ones */
void prompt_files_deinit(struct prompt_files *files);

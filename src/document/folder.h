/* folder: the files of a folder and of those in it, in a fixed order. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { FOLDER_FILES_MAX = 10000, FOLDER_DEPTH_MAX = 32 };

struct folder {
    char **names; /* owned, [count]: as seen from the folder, "part/2.txt" */
    size_t count, capacity;
};

bool folder_is(const char *path);
/* By name, numbers in them by value: a file of the next number is the last one.  Names that begin with a dot are left
 * out, and so are links to folders and what is no file.  STATUS_USAGE: there are too many; STATUS_IO. */
enum status folder_open(struct folder *folder, const char *path, struct error *error) STATUS_CHECKED;
void folder_close(struct folder *folder); /* safe after a failure */

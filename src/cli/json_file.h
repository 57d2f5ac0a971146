/* json_file: writes JSON to a file or to standard output. */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/status.h"

/* Writes the whole file or nothing, through a temporary file in the same folder.  A device or a pipe is written
 * directly. */
enum status json_file_write(const json_t *value, const char *path, struct error *error) STATUS_CHECKED;
/* Checks before the work that json_file_write can write to path. */
enum status json_file_check(const char *path, struct error *error) STATUS_CHECKED;
/* On standard output. */
enum status json_print(const json_t *value, size_t flags, struct error *error) STATUS_CHECKED;

/* json_file: builds JSON from bytes that may not be valid text, and writes it to a file. */
#ifndef LOAM_CLI_JSON_FILE_H
#define LOAM_CLI_JSON_FILE_H

#include <jansson.h>
#include <stddef.h>

#include "base/status.h"
#include "format/gguf.h"

/* A JSON string of any bytes: invalid UTF-8 becomes U+FFFD. */
json_t *json_bytes(const char *bytes, size_t length);

/* Like json_pack's "s:o": a NULL value (no memory) leaves the object without the key. */
void json_add(json_t *object, const char *key, json_t *value);
void json_add_uint(json_t *object, const char *key, uint64_t value);
/* NaN and infinities, which JSON does not have, become null. */
void json_add_number(json_t *object, const char *key, double value);

/* Writes the whole file or nothing, through a temporary file in the same folder.  A device or a pipe is written
 * directly. */
enum status json_file_write(const json_t *value, const char *path, struct error *error) STATUS_CHECKED;
/* Checks before the work that json_file_write can write to path. */
enum status json_file_check(const char *path, struct error *error) STATUS_CHECKED;
/* On standard output. */
enum status json_print(const json_t *value, size_t flags, struct error *error) STATUS_CHECKED;

#endif

/* json: JSON of untrusted files, read with jansson.
 *
 * The whole text must be one value; duplicate keys, invalid UTF-8 and nesting deeper than
 * JSON_DEPTH_MAX are refused (jansson descends by recursion: the depth is checked before it starts), and so are more
 * values than JSON_VALUES_MAX.
 * A failure names the file and the line.
 */
#pragma once

#include <stdint.h>

#include <jansson.h>

#include "base/status.h"

/* Limits.  jansson takes some 50 bytes for a value, and more for an array or an object, which count as several. */
enum { JSON_DEPTH_MAX = 64, JSON_VALUES_MAX = 1 << 20, JSON_FILE_VALUES_MAX = 1 << 26 };

/* text[length].  path is for messages; failed is the status of a rejection.  The caller frees *value by json_decref.
 */
enum status json_parse_bytes(const char *text, uint64_t length, const char *path, enum status failed, json_t **value,
                             struct error *error) STATUS_CHECKED;
/* The same for a part of a file that the user has chosen: up to JSON_FILE_VALUES_MAX. */
enum status json_parse_part(const char *text, uint64_t length, const char *path, enum status failed, json_t **value,
                            struct error *error) STATUS_CHECKED;

/* A file of at most limit_bytes.  STATUS_IO: it cannot be read.  STATUS_MODEL: it is not JSON. */
enum status json_parse_file(const char *path, uint64_t limit_bytes, json_t **value, struct error *error) STATUS_CHECKED;

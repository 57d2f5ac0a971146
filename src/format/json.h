/* json: JSON of untrusted files, read with jansson.
 *
 * The whole text must be one value; duplicate keys, invalid UTF-8 and nesting deeper than
 * JSON_DEPTH_MAX are refused (jansson descends by recursion: the depth is checked before it starts).
 * A failure names the file and the line.
 */
#ifndef LOAM_FORMAT_JSON_H
#define LOAM_FORMAT_JSON_H

#include <stdint.h>

#include <jansson.h>

#include "base/status.h"

enum { JSON_DEPTH_MAX = 64 };

/* text[length].  path is for messages; failed is the status of a rejection.  The caller frees *value by json_decref.
 */
enum status json_parse_bytes(const char *text, uint64_t length, const char *path, enum status failed,
                             json_t **value, struct error *error) STATUS_CHECKED;

/* A file of at most limit_bytes.  STATUS_IO: it cannot be read.  STATUS_MODEL: it is not JSON. */
enum status json_parse_file(const char *path, uint64_t limit_bytes, json_t **value, struct error *error)
    STATUS_CHECKED;

#endif

/* fields: reads the fields of a request's JSON, and names the one that is wrong.
 *
 * null is absent.  A field that is absent leaves *value as it is.  Each function returns false after a failure, which
 * *error tells: the field, what was found, what was expected.  Thread-safe.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/api_error.h"

/* A JSON object: at most 64 levels, no duplicate keys, valid UTF-8.  \uD83D without its other half, which clients send
 * where a text was cut, is U+FFFD.  Integers above
 * 2^63 are reals.  The caller frees *object by json_decref. */
bool fields_parse(const char *body, size_t length, json_t **object, struct api_error *error);

/* 400: 'FIELD': what the format says.  Returns false. */
bool field_refuse(struct api_error *error, const char *field, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* NULL: absent or null. */
const json_t *field_get(const json_t *object, const char *name);
bool field_number(const json_t *object, const char *name, double min, double max, double *value,
                  struct api_error *error);
bool field_integer(const json_t *object, const char *name, int64_t min, int64_t max, int64_t *value,
                   struct api_error *error);
bool field_flag(const json_t *object, const char *name, bool *value, struct api_error *error);
/* Borrowed from the object; at most length_max bytes. */
bool field_text(const json_t *object, const char *name, size_t length_max, const char **text, size_t *length,
                struct api_error *error);
/* An array of at most count_max entries; *array NULL: absent. */
bool field_array(const json_t *object, const char *name, size_t count_max, const json_t **array,
                 struct api_error *error);
bool field_object(const json_t *object, const char *name, const json_t **value, struct api_error *error);

/* The kind of a value for messages: "a string", "an array" ... */
const char *json_kind(const json_t *value);

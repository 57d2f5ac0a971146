/* json_text: builds JSON for responses, from text that may hold any bytes. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/counter.h"

/* A string; invalid UTF-8 becomes U+FFFD.  NULL: no memory. */
json_t *json_text(const char *bytes, size_t length);
/* The same, and a byte of zero becomes U+FFFD: for files, as many who read JSON refuse \u0000. */
json_t *json_text_without_zeros(const char *bytes, size_t length);
json_t *json_uint(uint64_t value);
/* NaN and infinities become null. */
json_t *json_number(double value);
/* A value of NULL (no memory) leaves the object without the key. */
void json_put(json_t *object, const char *key, json_t *value);
void json_put_uint(json_t *object, const char *key, uint64_t value);
void json_put_number(json_t *object, const char *key, double value);
/* A key for each row of the table, behind the prefix. */
void json_put_counters(json_t *object, const char *prefix, const struct counter_table *table, const void *values);

/* JSON({"name", json_string(name)}, {"tokens", json_uint(count)}): an object of these keys, in this order.  JSON_PUT
 * puts them into one that is there. */
struct json_pair {
    const char *key; /* NULL: the end */
    json_t *value;
};
json_t *json_put_pairs(json_t *object, const struct json_pair *pairs); /* object */
#define JSON_PUT(object, ...) json_put_pairs(object, (const struct json_pair[]){__VA_ARGS__, {NULL, NULL}})
#define JSON(...)             JSON_PUT(json_object(), __VA_ARGS__)

/* The text of a value on one line, newly allocated; NULL: no memory. */
char *json_line(const json_t *value, size_t *length);

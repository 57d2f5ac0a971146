/* json_schema: a JSON Schema as an automaton over bytes, for answers that must be JSON of a given form.
 *
 *   json_schema_compile -> json_matcher_create (one for each answer) -> json_matcher_mask, json_matcher_accept ...
 *
 * Understood, in any combination but those that are refused by name: type, enum, const, allOf, anyOf, oneOf whose
 * alternatives are told apart, $ref to a place in the same schema (recursion too); of objects properties, required,
 * additionalProperties, patternProperties, propertyNames, minProperties, maxProperties; of arrays items, prefixItems,
 * minItems, maxItems, uniqueItems of an enum; of strings minLength, maxLength, pattern, format; of numbers the bounds
 * and multipleOf; and annotations, which change nothing.  Any other keyword is refused by its name, because an answer
 * that ignores it would not be what was asked for.
 *
 * What is written is always valid against the schema, but not everything valid can be written: see
 * docs/decisions for order of properties, whitespace and the length of numbers.
 */
#pragma once

#include <stddef.h>

#include "base/status.h"

enum {
    JSON_SCHEMA_BYTES_MAX = 64 * 1024,
    JSON_SCHEMA_DEPTH_MAX = 32,        /* brackets of the schema inside one another */
    JSON_SCHEMA_ALTERNATIVES_MAX = 64, /* of one place: anyOf, list of types, what they refer to */
    JSON_OUTPUT_DEPTH_MAX = 64,        /* brackets of the answer inside one another */
    JSON_OUTPUT_BYTES_MAX = 64 * 1024, /* of the shortest answer: one that needs more never ends */
};

struct json_schema; /* immutable: any number of threads */

/* text[length]; name is for messages.  STATUS_USAGE: not JSON, an unknown keyword, or nothing can satisfy it. */
enum status json_schema_compile(struct json_schema **schema, const char *text, size_t length, const char *name,
                                struct error *error) STATUS_CHECKED;
/* Any JSON object. */
enum status json_schema_any_object(struct json_schema **schema, struct error *error) STATUS_CHECKED;
void json_schema_destroy(struct json_schema *schema); /* NULL allowed */

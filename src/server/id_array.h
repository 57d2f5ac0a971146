/* id_array: the token ids of a request, read without a JSON value for each.
 *
 * A prompt of 128K ids is 900 KB, and jansson makes a value of each number, which took most of what such a request
 * waited before it was queued.  Only plain arrays are taken; all others are left to it, with their errors.
 * Thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "token/tokenizer.h"

/* text: of a JSON object.  Where its field `name` is an array of whole numbers below 10^9, these are appended to *ids,
 * and *rest (owned, *rest_length bytes) is the text with an empty array in its place: as valid as the text was.  false:
 * it is none, or is empty, or memory lacks; *ids is then as it was and *rest NULL. */
bool id_array_take(const char *text, size_t length, const char *name, struct token_list *ids, char **rest,
                   size_t *rest_length);

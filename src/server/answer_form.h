/* answer_form: the form that a request wants its answer in: response_format, and what other servers name it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "grammar/json_schema.h"
#include "server/api_error.h"

/* Borrowed from the body; zeros: any text. */
struct answer_form {
    const json_t *format; /* what the field has, unless it is a schema */
    const json_t *schema; /* a JSON Schema; NULL with is_json: any JSON object */
    bool is_json;
    const char *field; /* its name, for messages */
};

/* Names that ask for what is no JSON Schema (a regular expression, a grammar, a list of choices) are refused, and so
 * are two forms at once. */
bool answer_form_find(struct answer_form *form, const json_t *body, struct api_error *error);
/* The schema of options->form.  Any text: *schema is NULL.  Else *schema is the caller's. */
struct ask_options;
bool answer_form_read(const struct ask_options *options, struct json_schema **schema, struct api_error *error);

/* answer_form: the form that a request wants its answer in (response_format). */
#ifndef LOAM_SERVER_ANSWER_FORM_H
#define LOAM_SERVER_ANSWER_FORM_H

#include <jansson.h>
#include <stdbool.h>

#include "grammar/json_schema.h"
#include "server/api_error.h"
#include "server/ask_options.h"

/* options->format: {"type": "json_object"}, also with a "schema"; or {"type": "json_schema", "json_schema": {"schema":
 * ...}}, also with the schema beside the type.  None: *schema is NULL.  Else *schema is the caller's. */
bool answer_form_read(const struct ask_options *options, struct json_schema **schema,
                      struct api_error *error);

#endif

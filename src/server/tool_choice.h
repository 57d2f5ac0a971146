/* tool_choice: an answer that must call one of its tools, with arguments that are valid against the tool's schema.
 *
 * The prompt then ends with the tag of a call, and the answer is the call itself: {"name": ..., "arguments": {...}}.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "grammar/json_schema.h"
#include "server/api_error.h"
#include "token/tokenizer.h"

/* The schema of a call.  tools: [{type: function, function: {name, parameters}}], checked by conversation_add_tools.
 * name NULL: of any of them. */
bool tool_choice_schema(const json_t *tools, const char *name, struct json_schema **schema, struct api_error *error);
/* Appends the tag with which a call begins. */
bool tool_choice_begin_call(const struct tokenizer *tokenizer, bool thinks, struct token_list *prompt,
                            struct api_error *error);
/* Ends the thoughts that the template began, before an answer of a given form. */
bool tool_choice_end_thought(const struct tokenizer *tokenizer, struct token_list *prompt, struct api_error *error);

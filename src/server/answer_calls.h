/* answer_calls: the calls in an answer's text, as the model's family writes them (enum chat_syntax). */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "token/chat_template.h"

/* What calls stand between.  end NULL: the end of the answer, or the next begin; "": begin is a mark without a call. */
struct answer_call_tags {
    const char *begin, *end;
    bool keeps_begin; /* begin is a part of the call */
};
/* Of a syntax, the first ones; NULL behind the last. */
const struct answer_call_tags *answer_call_tags(enum chat_syntax syntax, size_t index);

/* What thoughts stand between. */
struct answer_call_tags answer_thought_tags(enum chat_syntax syntax);
/* Whether a control token of this text tells parts of an answer apart, so that the parser has to see it. */
bool answer_has_mark(enum chat_syntax syntax, const char *text, size_t length);

/* The calls in what stands between two tags: [{name, arguments}], arguments as a text.  NULL: it is no call. */
json_t *answer_calls_parse(enum chat_syntax syntax, const char *text, size_t length);

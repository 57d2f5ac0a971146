/* sse: frames of a stream (text/event-stream). */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "server/exchange.h"

/* "data: {...}" and an empty line, after "event: NAME" unless event is NULL.  Takes the value; nothing is written
 * where it is NULL (no memory).  true: enough for now, as exchange_write. */
bool sse_send(struct exchange *exchange, const char *event, json_t *value);
/* "data: [DONE]" */
void sse_send_done(struct exchange *exchange);

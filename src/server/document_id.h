/* document_id: saved documents in the paths of requests. */
#pragma once

#include "server/exchange.h"

/* The id in /v1/loam/documents/ID and in what `suffix` follows: decimal digits and nothing else; 0: it is none. */
uint64_t document_id_of_path(const struct exchange *exchange, const char *suffix);
/* 404: there is none, or it is another's. */
void document_id_reply_none(struct exchange *exchange);

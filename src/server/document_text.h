/* document_text: the text of a saved document, for questions that name it by its id.
 *
 * POST /v1/loam/documents saves the KV of a conversation of one user's message: the text.  A question that names the
 * document gets this text in front of its first user's message, and is then a request like any other: its tokens begin
 * as those of the document, whose KV it attaches to.  So the answer is that of a client that sends the text itself.
 */
#pragma once

#include "server/conversation.h"
#include "server/server_internal.h"

enum { DOCUMENTS_ASKED_MAX = 16 };

/* The field `documents` of a body, [id ...]: their texts go before the first user's message, or to one of their own. */
bool document_text_prepend(struct server *server, uint32_t key, const json_t *body, struct conversation *conversation,
                           struct api_error *error);
/* What the document says under this system message (its text; NULL: none); the caller frees *text. */
bool document_text_read(struct server *server, uint32_t key, uint64_t id, const struct conversation_message *system,
                        char **text, size_t *length, struct api_error *error);

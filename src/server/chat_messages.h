/* chat_messages: the field `messages` of a chat request, in OpenAI's form. */
#ifndef LOAM_SERVER_CHAT_MESSAGES_H
#define LOAM_SERVER_CHAT_MESSAGES_H

#include <jansson.h>
#include <stdbool.h>

#include "server/api_error.h"
#include "server/conversation.h"

bool chat_messages_read(struct conversation *conversation, const json_t *body, struct api_error *error);

#endif

/* chat_messages: the field `messages` of a chat request, in OpenAI's form. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "server/api_error.h"
#include "server/conversation.h"

bool chat_messages_read(struct conversation *conversation, const json_t *body, struct api_error *error);

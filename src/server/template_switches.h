/* template_switches: the fields of a request that choose what a chat template does: whether the model thinks, how much,
 * whether the last message goes on.  All families of routes have them. */
#ifndef LOAM_SERVER_TEMPLATE_SWITCHES_H
#define LOAM_SERVER_TEMPLATE_SWITCHES_H

#include "server/ask.h"
#include "server/conversation.h"

/* After the messages were read: chat_template_kwargs, enable_thinking, reasoning_effort, reasoning.effort, thinking
 * (Anthropic's), add_generation_prompt, continue_final_message.  A last message of the assistant is gone on with,
 * unless the request says otherwise. */
bool template_switches_read(struct conversation *conversation, const json_t *body, struct api_error *error);

/* After the conversation was encoded to prompt: how the answer is read.  Where it must be a call (ask->must_call), its
 * beginning ends the prompt. */
bool template_switches_open(struct ask *ask, const struct conversation *conversation,
                            struct token_list *prompt, struct api_error *error);

#endif

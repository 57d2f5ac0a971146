/* openai: what OpenAI's completions and chat completions have in common. */
#pragma once

#include "server/ask.h"

/* finish_reason, null before the end, and stop_reason where clients have no word for it: "loop". */
void openai_put_finish(json_t *object, const struct ask_choice *choice, bool is_last);
/* Sends a frame with this one choice, which it takes. */
void openai_send(struct ask *ask, const char *object, json_t *choice);
/* Sends a frame that says nothing but llama-server's prompt_progress: {total, cache, processed, time_ms}.  Some clients
 * give up after two minutes of silence, and comments do not count.  key, nothing: how the object says nothing. */
void openai_beat(struct ask *ask, const char *object, const char *key, json_t *nothing);
/* All choices have ended: the whole answer, of the object `whole`, with what choices gives; or the end of a stream of
 * objects `chunk`, with usage where that is wanted. */
void openai_end(struct ask *ask, const char *whole, json_t *(*choices)(struct ask *ask), const char *chunk);
/* A failure in a stream: an error frame; [DONE] does not come. */
void openai_fail(struct ask *ask, const struct api_error *error);

/* openai: what OpenAI's completions and chat completions have in common. */
#ifndef LOAM_SERVER_OPENAI_H
#define LOAM_SERVER_OPENAI_H

#include "server/ask.h"

/* {id, object, created, model, system_fingerprint} */
json_t *openai_envelope(const struct ask *ask, const char *object);
/* finish_reason, and stop_reason where clients have no word for it: "loop". */
void openai_put_finish(json_t *object, const struct ask_choice *choice);
/* llama-server's prompt_progress: {total, cache, processed, time_ms}. */
json_t *openai_progress(const struct ask *ask);
/* All choices have ended: the whole answer, of the object `whole`, with what choices gives; or the end of a stream of
 * objects `chunk`, with usage where that is wanted. */
void openai_end(struct ask *ask, const char *whole, json_t *(*choices)(struct ask *ask), const char *chunk);
/* A failure in a stream: an error frame; [DONE] does not come. */
void openai_fail(struct ask *ask, const struct api_error *error);

#endif

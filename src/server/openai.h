/* openai: what OpenAI's completions and chat completions have in common. */
#ifndef LOAM_SERVER_OPENAI_H
#define LOAM_SERVER_OPENAI_H

#include "server/ask.h"

/* {id, object, created, model, system_fingerprint} */
json_t *openai_envelope(const struct ask *ask, const char *object);
json_t *openai_usage(const struct ask *ask);
/* finish_reason, and stop_reason where clients have no word for it: "loop". */
void openai_put_finish(json_t *object, const struct ask_choice *choice);
/* llama-server's prompt_progress: {total, cache, processed, time_ms}. */
json_t *openai_progress(const struct ask *ask);
/* The last frame of a stream with include_usage. */
void openai_send_usage(struct ask *ask, const char *object);
/* A failure in a stream: an error frame; [DONE] does not come. */
void openai_fail(struct ask *ask, const struct api_error *error);

#endif

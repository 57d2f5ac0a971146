/* api_error: why a request is refused, as every family of routes tells it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct api_error {
    unsigned http_status;                   /* 400 and up */
    const char *code;                       /* for programs; NULL: none */
    char param[80];                         /* the request's field; empty: none */
    unsigned retry_after_seconds;           /* 0: not told */
    bool never_retry;                       /* the same request fails again */
    uint64_t prompt_tokens, context_tokens; /* of context_length_exceeded; else 0 */
    char message[400];
};

/* Returns false, so that a reader can `return api_error_set(...)`.  param may be NULL. */
bool api_error_set(struct api_error *error, unsigned http_status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The prompt does not fit: the words that litellm and LangChain look for. */
bool api_error_set_overflow(struct api_error *error, uint64_t prompt_tokens, uint64_t context_tokens);
/* From a failure inside loam. */
bool api_error_from(struct api_error *error, const struct error *reason);

/* Whether Anthropic's clients ask at this path: /v1/messages and what is below it, however it is spelled. */
bool api_error_is_anthropic(const char *path, size_t length);
/* {"error": {...}} of OpenAI, or {"type": "error", "error": {...}} of Anthropic, whose clients know too long a prompt
 * by other words.  NULL: no memory. */
json_t *api_error_json(const struct api_error *error, bool anthropic);

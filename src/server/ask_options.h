/* ask_options: how a request wants its answers, read from the fields that all families share. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "generate/sampler.h"
#include "server/answer_form.h"
#include "server/api_error.h"

enum {
    ASK_STOPS_MAX = 64,
    ASK_STOP_BYTES_MAX = 1024,
    ASK_BIASES_MAX = 1024,
    ASK_CHOICES_MAX = 128,
    ASK_TOP_MAX = 20,
};

struct ask_options {
    struct sampler_options sampling;
    struct token_bias biases[ASK_BIASES_MAX]; /* sampling.biases */
    bool is_greedy;
    bool has_token_max;
    size_t token_max;
    const char *stops[ASK_STOPS_MAX]; /* borrowed from the body */
    size_t stop_count;
    bool ignore_end;
    size_t choices; /* n */
    bool streams, includes_usage, returns_progress;
    bool has_log_probabilities;
    size_t top_count;
    bool is_low_priority;
    struct answer_form form; /* of the answer */
};

/* temperature, top_p, top_k, min_p, penalties, logit_bias, seed, stop, n, stream, stream_options, ignore_eos, and the
 * form of the answer.  Samplers that this server does not have are refused, unless they are off.
 * model: for what is absent.  fallback_seed: where the request has none.  *options must not move afterwards. */
struct server_model;
bool ask_options_read(struct ask_options *options, const json_t *body, const struct server_model *model,
                      uint64_t fallback_seed, struct api_error *error);
/* The first of these fields that is there: tokens at most. */
bool ask_options_read_token_max(struct ask_options *options, const json_t *body, const char *const *names, size_t count,
                                struct api_error *error);
/* Known fields that this server does not do.  false: one is there and asks for something. */
bool ask_options_refuse(const json_t *body, const char *const *names, size_t count, struct api_error *error);

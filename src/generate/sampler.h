/* sampler: one token from a row of logits.
 *
 * The order of llama.cpp's default chain, behind a mask: biases, penalties, top-k, top-p, min-p, temperature.
 * temperature 0 is greedy (the lowest id wins a tie).  The same seed and logits give the same tokens on
 * any thread count: one generator per sampler, one draw per token.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "base/status.h"
#include "generate/logit_mask.h"
#include "token/tokenizer.h"

struct token_bias {
    int32_t id;
    float bias; /* added to the token's logit; -INFINITY: the token is never sampled */
};

struct sampler_options {
    float temperature;
    uint32_t top_k; /* 0: off */
    float top_p;    /* 1: off */
    float min_p;    /* 0: off */
    /* Penalties, by the last repeat_last tokens.  A token that occurs n > 0 times there: a positive logit is divided by
     * repeat_penalty, a negative one multiplied (Keskar et al. 2019); then n * frequency_penalty + presence_penalty is
     * subtracted. */
    float repeat_penalty;    /* 1: off */
    float presence_penalty;  /* 0: off; -100 to 100 */
    float frequency_penalty; /* the same */
    uint32_t repeat_last;    /* tokens looked back at */
    uint64_t seed;
    const struct token_bias *biases; /* copied; those of one token are added up */
    size_t bias_count;
};
/* llama.cpp's defaults. */
static inline struct sampler_options sampler_options_default(void) {
    return (struct sampler_options){
        .temperature = 0.8F, .top_k = 40, .top_p = 0.95F, .min_p = 0.05F, .repeat_penalty = 1, .repeat_last = 64};
}

struct sampler;

struct token_probability {
    int32_t id;
    float log_probability;
};

/* tokenizer: what it suppresses is never sampled; NULL: all may be. */
enum status sampler_create(struct sampler **sampler, const struct sampler_options *options,
                           const struct tokenizer *tokenizer, size_t vocabulary_size, struct error *error)
    STATUS_CHECKED;
void sampler_destroy(struct sampler *sampler);
/* Every pick is then of tokens that the mask permits, and is accepted by it.  Borrowed; NULL: none. */
void sampler_set_mask(struct sampler *sampler, const struct logit_mask *mask);
void sampler_set_temperature(struct sampler *sampler, float temperature); /* 0 or more */
/* The mask permits nothing but the end (logit_mask.is_complete). */
bool sampler_is_complete(const struct sampler *sampler);
/* Adds a token of the text (prompt or answer) to the repetition penalty's history. */
void sampler_accept(struct sampler *sampler, int32_t token);
/* STATUS_FAILED: a logit is NaN or +infinity, or all are -infinity: the model or its file is broken.  A single
 * -infinity excludes its token. */
enum status sampler_pick(struct sampler *sampler, const float *logits, int32_t *token, struct error *error)
    STATUS_CHECKED;
/* The `count` likeliest tokens of a row, best first (log-softmax over all logits).  id -1: no more tokens.  For small
 * counts: the worst case takes time proportional to vocabulary_size * count. */
void sampler_top(const float *logits, size_t vocabulary_size, struct token_probability *top, size_t count);
/* The same, and returns the log-probability of one token: where it is among the likeliest, that very number. */
float sampler_top_of(const float *logits, size_t vocabulary_size, int32_t token, struct token_probability *top,
                     size_t count);

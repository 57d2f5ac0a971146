/* sampler: one token from a row of logits.
 *
 * The order of llama.cpp's default chain: repetition penalty, top-k, top-p, min-p, temperature.
 * temperature 0 is greedy (the lowest id wins a tie).  The same seed and logits give the same tokens on
 * any thread count: one generator per sampler, one draw per token.
 */
#ifndef LOAM_GENERATE_SAMPLER_H
#define LOAM_GENERATE_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "base/status.h"

struct sampler_options {
    float temperature;
    uint32_t top_k;       /* 0: off */
    float top_p;          /* 1: off */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 1: off */
    uint32_t repeat_last; /* tokens looked back at */
    uint64_t seed;
};
/* llama.cpp's defaults. */
static inline struct sampler_options sampler_options_default(void) {
    return (struct sampler_options){.temperature = 0.8F,
                                    .top_k = 40,
                                    .top_p = 0.95F,
                                    .min_p = 0.05F,
                                    .repeat_penalty = 1,
                                    .repeat_last = 64};
}

struct sampler;

struct token_probability {
    int32_t id;
    float log_probability;
};

enum status sampler_create(struct sampler **sampler, const struct sampler_options *options,
                           size_t vocabulary_size, struct error *error) STATUS_CHECKED;
void sampler_destroy(struct sampler *sampler);
/* Adds a token of the text (prompt or answer) to the repetition penalty's history. */
void sampler_accept(struct sampler *sampler, int32_t token);
/* STATUS_FAILED: a logit is NaN or +infinity, or all are -infinity: the model or its file is broken.  A single
 * -infinity excludes its token. */
enum status sampler_pick(struct sampler *sampler, const float *logits, int32_t *token, struct error *error)
    STATUS_CHECKED;
/* The `count` likeliest tokens of a row, best first (log-softmax over all logits).  id -1: no more tokens.  For small
 * counts: the worst case takes time proportional to vocabulary_size * count. */
void sampler_top(const float *logits, size_t vocabulary_size, struct token_probability *top, size_t count);

#endif

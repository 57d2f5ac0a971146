/* samples: a text run through the model in windows, kept so that queries meet their keys again.
 *
 * Each window is one sequence: its K and V stay in the cache, as halves, and the queries of some positions are
 * kept beside them.  Memory is thus that of a context of window_count * window_size tokens, and
 * window_count * query_count rows of queries per layer; nothing grows with the text beyond.
 *
 * The last `probe_count` tokens of a window are probes: spans of the window, copied from random depths, in random
 * order.  To predict the next token of a copy, a head must find the original, which no window of recent tokens holds.
 * DuoAttention's passkeys test the same, but need a prompt in a language.
 * The other positions lie in the second half of the text before the probes.  The last windows are held out.
 *
 * Behind the text of the first windows, before their probes, the model writes: tokens drawn from its own probabilities,
 * a step each, whose queries say how alike those of adjacent decode steps are.  Then the window is cut back to its
 * text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "cache/kv_cache.h"
#include "kernels/attention/attention.h"
#include "lab/calibrate/dot.h"
#include "model/model.h"

enum { SAMPLES_SPAN = 32 }; /* tokens of a copied span, as in a passkey of DuoAttention */

struct samples_options {
    size_t window_size, window_count, held_out; /* held_out of window_count */
    size_t text_queries, probe_queries;         /* positions kept per window */
    size_t run_windows, run_count;              /* of the first windows, the last positions of the text, all of them */
    size_t decode_windows, decode_count; /* of the first windows: tokens that the model writes, at most the probes */
    uint64_t seed;
    int32_t bos;                                           /* first token of each window; -1: none */
    size_t block;                                          /* rows of a forward pass */
    bool (*progress)(void *context, uint64_t tokens_done); /* return true to stop */
    void *progress_context;
};

enum { SIMILARITY_BINS = 200 }; /* of -1..1 */

/* The window that is run, and where in it. */
struct samples_run {
    struct forward *forward;
    float *previous; /* [layer_count][head_count][k_dimension]: of the row before the block */
    size_t window, block_first;
    bool is_decoding;
    float *draws;            /* [vocabulary_size]: what a token is drawn from */
    uint64_t *row_positions; /* [block] */
};

struct samples {
    struct model *model; /* borrowed */
    struct samples_options options;
    size_t query_count, probe_count; /* per window: all positions; the tokens that are probes */
    size_t *positions;               /* [window_count][query_count]: text positions, then probes, each ascending */
    float *queries;                  /* [layer_count][window_count][query_count][head_count][k_dimension] */
    float *runs;                     /* [layer_count][run_windows][run_count][head_count][k_dimension] */
    /* [layer_count][head_count][SIMILARITY_BINS]: histogram of the cosines of adjacent queries, text only. */
    uint64_t *similarity;
    double *similarity_sum;
    uint64_t similarity_count; /* pairs seen per layer and head */
    double *decoded_sum;       /* [layer_count][head_count]: of the cosines of adjacent queries while it writes */
    uint64_t decoded_count;    /* pairs */
    struct kv_cache *cache;
    struct kv_sequence **sequences; /* [window_count] */
    struct stream *stream;          /* owned; reads the cache */
    void *chunk;                    /* owned; a chunk of it */
    int32_t *tokens;                /* [window_count][window_size], probes in place */
    struct samples_run run;         /* while they are collected */
};

/* tokens: at least window_count * window_size.  STATUS_INTERRUPTED: progress returned true. */
enum status samples_collect(struct samples *samples, struct model *model, const int32_t *tokens,
                            const struct samples_options *options, struct error *error) STATUS_CHECKED;
void samples_deinit(struct samples *samples); /* safe on a zeroed one */

/* One query head's query. */
const float *samples_query(const struct samples *samples, size_t layer, size_t window, size_t query, size_t head);
/* The same, at a position of a run. */
const float *samples_run_query(const struct samples *samples, size_t layer, size_t window, size_t step, size_t head);
/* A score of attention, of a query and a key, [k_dimension] each. */
static inline float samples_score(const struct samples *samples, const float *q, const float *key) {
    const struct model_config *config = &samples->model->config;
    return attention_score(dot(q, key, config->k_dimension), config->attention_scale, config->score_softcap);
}
size_t samples_run_first(const struct samples *samples); /* position of a run's first step */
size_t samples_position(const struct samples *samples, size_t window, size_t query);
/* The keys (or values) of a window as floats: out[window_size][dimension]. */
enum status samples_keys(const struct samples *samples, size_t layer, size_t window, size_t kv_head, float *out,
                         struct error *error) STATUS_CHECKED;
enum status samples_values(const struct samples *samples, size_t layer, size_t window, size_t kv_head, float *out,
                           struct error *error) STATUS_CHECKED;

/* layer_study: the error of a layer's attention output, per head if a head sees only sinks and recent tokens, and if K
 * or V is rounded.
 *
 *   importance   minimise |sum_h (1 - alpha_h) W_O,h (o_h,stream - o_h,full)|^2 + lambda sum_h alpha_h over
 *                0 <= alpha <= 1, where the square is its mean over the probes divided by that of |W_O o_full|^2: CLO's
 *                head importance (Eq. 15) with the layer's own output in place of the model's, so that no gradient
 *                through the model is needed and the problem is convex.
 *   alone        the same relative square for one head alone at alpha = 0 and all others at 1: ranks heads that
 *                alpha rounds to 0 or 1.
 *   sensitivity  mean over the sampled text positions of |W_O (o' - o)| / |W_O o| with K or V rounded to 8 or 4 bits:
 *                8: a scale per 32 elements of a row, as the q8 cache; 4: minimum and step, K per channel over 64
 *                tokens, V per token over the row's groups of 64 channels (KIVI).
 */
#pragma once

#include <stddef.h>

#include "kernels/kernels.h"
#include "lab/calibrate/samples.h"
#include "platform/pool.h"

enum study_rounding { STUDY_K8, STUDY_V8, STUDY_K4, STUDY_V4, STUDY_ROUNDINGS };

struct layer_study_options {
    size_t sinks, recent; /* tokens that a head sees in any case */
    double lambda;        /* of Eq. 15 */
};

struct layer_study {
    const struct samples *samples; /* borrowed */
    struct pool *pool;             /* borrowed */
    const struct kernels *kernels; /* borrowed */
    struct layer_study_options options;
    /* owned */
    float *keys, *values, *rounded, *scratch, *full, *other, *output;
};

enum status layer_study_create(struct layer_study **study, const struct samples *samples, const struct kernels *kernels,
                               struct pool *pool, const struct layer_study_options *options, struct error *error)
    STATUS_CHECKED;
void layer_study_destroy(struct layer_study *study); /* NULL allowed */

/* Filled: importance, alone: [head_count] each; sensitivity: [STUDY_ROUNDINGS]. */
struct layer_figures {
    float *importance, *alone, *sensitivity;
};
/* Only windows from window_first on are used. */
enum status layer_study_run(struct layer_study *study, size_t layer, size_t window_first,
                            const struct layer_figures *figures, struct error *error) STATUS_CHECKED;

/* x[count][dimension] rounded and back, in place. */
void study_round_q8(float *x, size_t count, size_t dimension);
void study_round_tokens_4(float *x, size_t count, size_t dimension);  /* per token, groups of 64 channels */
void study_round_channel_4(float *x, size_t count, size_t dimension); /* per channel, groups of 64 tokens */

/* hash_training: learning a KV head's hash weights W, [dimension][bits], as HATA does (arXiv 2506.02572 and its
 * training script; docs/calibration.md has every constant).
 *
 * Relaxed code h(x) = 2 sigmoid(slope x W) - 1.  Over N pairs of a query and an earlier key with labels s:
 *
 *   L = epsilon / N * sum s_i |h(q_i) - h(k_i)|^2              near for s > 0, far for s < 0
 *     + lambda * | sum_i (h(q_i) + h(k_i)) / (N bits) |^2      every bit is set half of the time
 *     + eta * |D|_F                                            bits differ from each other
 *
 * with D = W^T W - I for bits <= dimension, and D = W W^T - (bits / dimension) I for more: W^T W has rank
 * dimension at most and cannot come near I then (T18).  Stochastic gradient descent with momentum and weight decay.
 *
 * Differs from [hata]: in float instead of bf16; a head at a time, so |D|_F is one head's and not that of all heads
 * of the layer together; each epoch draws its pairs anew instead of loading three chunks of 32,768.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "base/status.h"
#include "kernels/matmul/matmul.h"
#include "platform/pool.h"

struct hash_training {
    size_t bits; /* a multiple of 32 */
    double slope, epsilon, lambda, eta, rate, momentum, decay;
    double init_deviation;      /* of W at the start: normal */
    size_t epochs, steps;       /* steps per epoch */
    size_t dimension, pair_max; /* of a head, of the pairs of a step; the caller's */
};
struct hash_training hash_training_published(size_t bits);

/* Labelled pairs of one KV head: each query with keys_per_query of its earlier keys. */
struct hash_pairs {
    size_t dimension, query_count, keys_per_query; /* query_count a multiple of HASH_PAIR_SLOTS */
    const float *queries;                          /* [query_count][dimension] */
    const float *keys;                             /* [query_count][keys_per_query][dimension] */
    const float *keys_across;                      /* the same transposed: [dimension][query_count * keys_per_query] */
    const float *labels;                           /* [query_count][keys_per_query] */
};

/* Work is always cut into this number of parts, so results do not depend on the number of threads. */
enum { HASH_PAIR_SLOTS = 16 };

/* The label of the key with this rank (0: largest q.k) among count earlier keys: 20 falling to 1 over the top
 * tenth, -1 for the others. */
float hash_label(size_t rank, size_t count);

struct hash_trainer;
enum status hash_trainer_create(struct hash_trainer **trainer, struct pool *pool, const struct matmul_kernels *kernels,
                                const struct hash_training *training, struct error *error) STATUS_CHECKED;
void hash_trainer_destroy(struct hash_trainer *trainer); /* NULL allowed */
/* Draws a new W from the normal distribution and zeroes the momentum. */
void hash_trainer_reset(struct hash_trainer *trainer, struct random *random);
/* The loss L at the current W.  hash_trainer_gradient has its gradient afterwards. */
double hash_trainer_loss(struct hash_trainer *trainer, const struct hash_pairs *pairs);
/* One step of gradient descent.  Returns the loss before it. */
double hash_trainer_step(struct hash_trainer *trainer, const struct hash_pairs *pairs);
float *hash_trainer_weights(struct hash_trainer *trainer);              /* [bits][dimension]: W transposed */
const float *hash_trainer_gradient(const struct hash_trainer *trainer); /* [bits][dimension] */

/* weights_across [bits][dimension] as [dimension][bits] halves, scaled so that the largest is 1: signs do not
 * depend on a column's length, and halves keep 11 bits of each. */
void hash_weights_store(const float *weights_across, size_t bits, size_t dimension, uint16_t *weights);

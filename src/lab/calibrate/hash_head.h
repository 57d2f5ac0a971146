/* hash_head: one KV head's pairs for training, and how well given weights find its true top k. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "base/status.h"
#include "kernels/kernels.h"
#include "lab/calibrate/hash_training.h"
#include "lab/calibrate/samples.h"

/* Workspace of hash_head_draw; struct hash_pairs has the shapes. */
struct drawn_pairs {
    float *queries, *keys, *keys_across, *labels;
    uint64_t *seeds; /* [query_count] */
};

/* A KV head's keys of several windows, as floats, and workspace for drawn pairs. */
struct hash_head {
    const struct samples *samples; /* borrowed */
    const struct kernels *kernels; /* borrowed */
    struct pool *pool;             /* borrowed */
    size_t layer, kv_head, group, dimension;
    size_t window_size, window_first, window_count; /* which windows the keys are of */
    float *keys;                                    /* [window_count][window_size][dimension] */
    /* drawn pairs */
    size_t query_count, keys_per_query;
    bool keeps_length; /* pairs are not scaled: the published recipe */
    float *shape;      /* [dimension][dimension], symmetric: what x is multiplied by before it is learned from */
    struct drawn_pairs drawn;
    float *scores; /* [threads][window_size] */
};

struct hash_head_options {
    size_t query_count, keys_per_query; /* of the pairs that hash_head_draw draws */
};
enum status hash_head_create(struct hash_head **head, const struct samples *samples, const struct kernels *kernels,
                             struct pool *pool, const struct hash_head_options *options, struct error *error)
    STATUS_CHECKED;
void hash_head_destroy(struct hash_head *head); /* NULL allowed */
/* Loads the keys of windows [window_first, window_first + window_count). */
enum status hash_head_load(struct hash_head *head, size_t layer, size_t kv_head, size_t window_first,
                           size_t window_count, struct error *error) STATUS_CHECKED;

/* Fills shape with C^power, C the mean of the second moments of the loaded windows' sampled queries and of their keys
 * around the mean key, each scaled to trace = dimension. power 0: the identity. */
enum status hash_head_shape(struct hash_head *head, double power, struct error *error) STATUS_CHECKED;
/* Turns weights learned from shaped x into weights of x, in place: [bits][dimension]. */
void hash_head_unshape(const struct hash_head *head, float *weights_across, size_t bits);

/* Queries at random, each with keys_per_query of all its earlier keys at random, labelled by their rank among all
 * of them: as HATA's data set, whose queries keep every earlier key.  Then both are shaped and scaled to length
 * sqrt(dimension), which changes no sign of x W but how far the relaxed codes are from it. */
void hash_head_draw(struct hash_head *head, struct random *random, struct hash_pairs *pairs);

/* What a selection keeps: a fraction of the tokens between sinks and recent ones, and these. */
struct hash_keep {
    double fraction;
    size_t sinks, recent;
};

/* What selection by hash codes catches among the tokens between `sinks` and the query's `recent` tokens.  Means over
 * the sampled queries of the loaded windows. */
struct hash_caught {
    /* |true top k and found top k| / k, k = keep of the tokens; true: q.k summed over the group. */
    double recall;
    /* The share of the softmax weights of all tokens before the query that lies in window, sinks and the k / 4 found,
     * mean over the group.  Answers depend on the few tokens that have most of the mass; of the k tokens of recall most
     * have almost none. */
    double mass;
};
enum { HASH_MASS_DIVISOR = 4 };
/* weights: [dimension][bits]. */
enum status hash_head_caught(struct hash_head *head, const uint16_t *weights, size_t bits, struct hash_keep keep,
                             struct hash_caught *caught, struct error *error) STATUS_CHECKED;

/* Random hyperplanes, orthonormal in blocks of `dimension`: [dimension][bits] halves.  The baseline of learning. */
enum status hash_random_weights(struct random *random, size_t dimension, size_t bits, uint16_t *weights,
                                struct error *error) STATUS_CHECKED;

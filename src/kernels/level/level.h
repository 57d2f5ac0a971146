/* level: the coordinates of keys rounded to a few levels, and estimates of q . k from them.
 *
 * A rotated key k of a chunk is stored as
 *   k  ~  c + f l,    c the mean of the chunk's keys, [dimension] halves
 *                     l the levels of k - c, odd integers from 1 - 2^planes to 2^planes - 1
 *                     f a half, for which f l is nearest to k - c: (k - c) . l / l . l
 * and with a query q of 8-bit integers, a step apart,
 *   score(t) = q . c + f_t (q . l_t),  the first with q as it is.
 *
 * What a chunk's keys have in common is in c and takes no levels; what it adds to the scores is exact.  f is the
 * least-squares factor.  RaBitQ's, |k - c|^2 / (k - c) . l (arXiv 2405.12497, 2409.09913), is unbiased; but a selection
 * takes the largest estimates, and of noisy ones those are too large (decision 0032).
 * A chunk has codes when it is complete.
 *
 * A layout may have the spread of a chunk's keys, too, before they are rotated: the deviation s_j of each coordinate.
 * Then a chunk has a score of its own,
 *   score(chunk) = q . c + sum over j of |q_j| s_j    (q_j, s_j: not rotated),
 * by which few chunks are taken out of many (decision 0123).  Rotated coordinates are alike, and say less.
 *
 * A chunk's block: codes, factors [64] halves, c [dimension] halves, s [dimension] bytes: the 8 bits of a half behind
 * its sign, the nearest, at most LEVEL_SPREAD_MAX.  A level's number, (l + 2^planes - 1) / 2, is cut
 * into parts of 4, 2 and 1 bits (planes 2: one part of 2; 3: 2 and 1), the highest bits first.  A part is
 * [dimension * width / 32][64 tokens][4 bytes]; byte b of word w holds coordinates (w * 8 / width + i) * 4 + b for
 * i from 0 on, `width` bits each, the lowest first.  Shifted and masked, a register of words is a register of bytes, in
 * which four neighbours are four coordinates of a token, as dot products of bytes take them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/attention/kv_layout.h"
#include "kernels/variants.h"

enum { LEVEL_PLANES_MAX = 8, LEVEL_DIMENSION_MAX = 512, LEVEL_HEADS_MAX = 64 };

struct level_layout {
    size_t dimension, planes;
    size_t factors_offset, center_offset; /* from the start of a chunk's block */
    size_t spread_offset;                 /* 0: it has none */
    size_t bytes;                         /* of a chunk's block */
};

/* Whether there is a layout: the dimension a multiple of 8, its planes' bits of 32. */
bool level_fits(size_t dimension, size_t planes);
void level_layout_init(struct level_layout *layout, size_t dimension, size_t planes, bool has_spread);

/* The best step of a uniform quantizer with 2^planes levels for a normal distribution of variance 1. */
float level_step(size_t planes);

/* The mean of a chunk's rotated keys becomes its center, or 0 where that is no half; keys: [64][dimension]. */
void level_set_center(const struct level_layout *layout, void *block, const float *keys);
/* The deviations of a chunk's keys, [64][dimension], not rotated; of a coordinate with a NaN it is NaN. */
void level_set_spread(const struct level_layout *layout, void *block, const float *keys);
enum { LEVEL_SPREAD_MAX = 0xf7 /* 61440 */ };
/* The same byte as a half. */
static inline uint16_t level_spread_half(uint8_t spread) { return (uint16_t)(spread << 7); }
/* Stores a rotated key, [dimension], as token 0..63 of the block, around its center.  A NaN in it makes its factor
 * NaN. */
void level_store(const struct level_layout *layout, void *block, size_t token, const float *key);
/* The levels of a token, [dimension], and its factor. */
void level_load(const struct level_layout *layout, const void *block, size_t token, int *levels, float *factor);

/* A rotated query, [dimension], prepared into level_query_bytes of memory aligned to 64. */
size_t level_query_bytes(const struct level_layout *layout);
void level_prepare(const struct level_layout *layout, const float *q, void *query);

struct level_score_args {
    const struct level_layout *layout;
    const void *const *blocks;       /* token t is token t % 64 of blocks[t / 64]; aligned to 4 */
    uint64_t token_begin, token_end; /* any; rows of a block outside of it are read, not used */
    const void *queries;             /* [heads][level_query_bytes] */
    size_t heads;                    /* 1..LEVEL_HEADS_MAX */
    float *scores;                   /* [heads][stride], token_end - token_begin each */
    size_t stride;
    /* What will be read of tokens like token t is at then[t / 64]: a line of each is asked for while these
     * are scored, so that its page is known by then (bench/lab/prefetches.md).  NULL: nothing. */
    const void *const *then;
};

/* Scores of chunks; the layout has their spread.  A NaN in a key makes its chunk's NaN. */
struct level_chunks_args {
    const struct level_layout *layout;
    const void *const *blocks; /* [count] */
    size_t count;
    const void *queries; /* [heads][level_query_bytes] */
    const float *q;      /* the same, not rotated: [heads][q_stride], dimension each */
    size_t q_stride;     /* floats */
    size_t heads;        /* 1..LEVEL_HEADS_MAX */
    float *scores;       /* [heads][stride], count each */
    size_t stride;
};

struct level_kernels {
    void (*score)(const struct level_score_args *args);
    void (*chunks)(const struct level_chunks_args *args);
};

KERNELS(level);

/* split: of a layer's KV, how many tokens are computed again from its inputs while the rest is read (KVPR, Jiang
 * et al. 2025, equations 10 and 11).
 *
 *   seconds(l) = x l + max(c l, k (s - l))     column: the inputs of l tokens are read first
 *   seconds(l) =       max(c l, k (s - l))     row: they were read while the layer before computed
 *   seconds(l) = max(x w + c l + r h + k (s - l - h), x l + c w, x l + k (s - l))     overlapped
 *
 * with x and k the seconds that the link needs for one token's inputs and for its KV, and c those that computing K and
 * V takes.  Overlapped is what rebuild.c does: the inputs of w = min(l, first_tokens) tokens are there before computing
 * begins, and are computed after all others have come.  Meanwhile the KV of h = min(s - l, held_tokens) tokens comes,
 * as memory has room for no more before heads attend, and the thread that computes asks for it and checks it, r seconds
 * for a token.  Arithmetic only: no state, any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum split_schedule { SPLIT_ROW, SPLIT_COLUMN, SPLIT_OVERLAPPED };

struct split_question {
    uint64_t token_count;     /* s: that attention needs and RAM does not hold */
    uint64_t tokens_max;      /* of them those whose inputs are there; at least 0, at most token_count */
    uint64_t tile_tokens;     /* the answer is a multiple; at least 1 */
    double input_bytes;       /* of a token and layer */
    double kv_bytes;          /* the same for K and V of all heads */
    double bytes_per_second;  /* of the link; above 0 */
    double seconds_per_token; /* K and V of all heads from its inputs; at least 0 */
    enum split_schedule schedule;
    /* SPLIT_OVERLAPPED: */
    uint64_t first_tokens;   /* are computed together */
    uint64_t held_tokens;    /* whose KV memory has room for while others are computed */
    double seconds_per_read; /* of the thread that computes, for a token whose KV comes meanwhile; at least 0 */
};

struct split {
    uint64_t tokens; /* [0, tokens) are computed again */
    double seconds;  /* of the layer */
    double seconds_without;
};

/* It is done where it takes so much of the time without at most: a smaller gain may be what the rates miss. */
#define SPLIT_GAIN_MIN 0.9

/* Seconds of a layer with l tokens computed again. */
double split_seconds(const struct split_question *question, uint64_t l);
/* The multiple of tile_tokens, up to tokens_max, that takes least; of equal ones the smallest. */
struct split split_choose(const struct split_question *question);

/* Of several sequences, each with what of it is computed again and what would be now, both in the same unit: whether it
 * may stay.  All grow together, when the wanted ones are more by a share: near its least, equation 10 is flat, and the
 * steps' graph is made anew for each that grows alone. */
#define SPLIT_GROWTH_SHARE 16
struct split_growth {
    uint64_t had, wanted;
};
bool split_stays(const struct split_growth *sequences, size_t count);

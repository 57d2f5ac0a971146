/* hash: sign codes of keys and queries, and scores by Hamming distance (HATA, arXiv 2506.02572).
 *
 * Bit j of the code of x is 1 where (x . W)_j > 0, for post-RoPE x and a learned (or random) W of its KV head.
 * With H(t) = the sum over the group's query heads of popcount(code(q_h) xor code(k_t)),
 *   score(t) = (group - 2 H(t) / bits) * |k_t|     where norms are used,   and   -H(t)   where not.
 *
 * A chunk's block: the codes of its 64 tokens byte by byte, [bits / 8][64], then their norms, [64] halves.
 * Byte b of all tokens lies together because H is linear in the bits of k: 16-entry tables, one per nibble,
 * summed over the group beforehand, give H in a time that does not depend on the group; see hash_score.
 * Differs from HATA: there codes are [token][bits / 8] and counted head by head.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/attention/kv_layout.h"
#include "kernels/variants.h"

enum { HASH_BITS_MAX = 512, HASH_CODE_BYTES_MAX = HASH_BITS_MAX / 8 };

struct hash_layout {
    size_t bits; /* a multiple of 32, at most HASH_BITS_MAX */
    size_t code_bytes;
    size_t norms_offset; /* from the start of a chunk's block */
    size_t bytes;        /* of a chunk's block; a multiple of 64 */
};

void hash_layout_init(struct hash_layout *layout, size_t bits);

/* Stores one token's code and norm as token 0..63 of a chunk's block; the norm is rounded to a half, one
 * that is too large to 65504 (a NaN stays: its score is NaN). */
void hash_store(const struct hash_layout *layout, void *block, size_t token, const uint8_t *code, float norm);
/* Reads them back; code: [code_bytes]. */
void hash_load(const struct hash_layout *layout, const void *block, size_t token, uint8_t *code, float *norm);

struct hash_encode_args {
    const uint16_t *weights; /* W: [dimension][bits] halves */
    size_t dimension, bits;  /* bits a multiple of 32 */
    const float *x;          /* [count][x_stride], dimension each */
    size_t x_stride, count;
    uint8_t *codes; /* [count][bits / 8]; bit j is bit j % 8 of byte j / 8 */
    float *norms;   /* [count]: |x|, or NULL */
};

struct hash_score_args {
    const struct hash_layout *layout;
    const void *const *blocks;       /* token t is token t % 64 of blocks[t / 64]; aligned to 2 */
    uint64_t token_begin, token_end; /* any; rows of a block outside of it are read, not used */
    const uint8_t *codes;            /* of the queries: [group][code_bytes] */
    size_t group;                    /* 1..64 */
    bool use_norms;
    float *scores; /* [token_end - token_begin] */
    void *scratch; /* score_scratch_bytes(layout, group), aligned to 64 */
    /* What will be read of tokens like token t is at then[t / 64]: a line of each is asked for while these
     * are scored, so that its page is known by then (bench/lab/prefetches.md).  NULL: nothing. */
    const void *const *then;
};

struct hash_kernels {
    void (*encode)(const struct hash_encode_args *args);
    void (*score)(const struct hash_score_args *args);
    size_t (*score_scratch_bytes)(const struct hash_layout *layout, size_t group);
};

KERNELS(hash);

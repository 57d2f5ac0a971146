/* hash: sign codes of keys and queries, and scores by Hamming distance (HATA, arXiv 2506.02572).
 *
 * Bit j of the code of x is 1 where (x . W)_j > 0, for post-RoPE x and a learned (or random) W of its KV head.
 * With H(t) = the sum over the group's query heads of popcount(code(q_h) xor code(k_t)),
 *   score(t) = (group - 2 H(t) / bits) * |k_t|     where norms are used,   and   -H(t)   where not.
 * or, with values v of a query instead of codes,
 *   score(t) = |k_t| / bits * sum over j of  +-v_j,   + where bit j of t's code is 1.
 *
 * That scores codes by level, too (hash_levels): each coordinate of a rotated key is rounded to one of 2^planes
 * levels, odd multiples of half a step, which is a sum of +-2^p over the bits p of its number, and plane p of the
 * code holds bit p of every coordinate.  With v = 2^p q_j for bit j of plane p the sum is q . levels, an estimate of
 * q . k up to a factor, and the factor is what lies in place of the norm.  Rounding only the key halves the error of
 * an angle, and from two bits a coordinate on, levels are nearer to the key than as many signs.
 *
 * A chunk's block: the codes of its 64 tokens byte by byte, [bits / 8][64], then their norms, or factors, [64] halves.
 * Byte b of all tokens lies together because H is linear in the bits of k: 16-entry tables, one per nibble,
 * summed over the group beforehand, give it in a time that does not depend on the group; see hash_score.
 * Differs from HATA: there codes are [token][bits / 8] and counted head by head.
 */
#ifndef LOAM_KERNELS_HASH_H
#define LOAM_KERNELS_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/attention/kv_layout.h"
#include "platform/cpu.h"

enum { HASH_BITS_MAX = 512, HASH_CODE_BYTES_MAX = HASH_BITS_MAX / 8, HASH_PLANES_MAX = 8 };

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
    const float *values;             /* [bits]: q . W of one query, instead of codes; or NULL */
    size_t group;                    /* 1..64; 1 with values */
    bool use_norms;                  /* true with values */
    float *scores;                   /* [token_end - token_begin] */
    void *scratch;                   /* score_scratch_bytes(layout, group), aligned to 64 */
    /* What will be read of tokens like token t is at then[t / 64]: a line of each is asked for while these
     * are scored, so that its page is known by then (bench/lab/prefetches.md).  NULL: nothing. */
    const void *const *then;
};

struct hash_kernels {
    void (*encode)(const struct hash_encode_args *args);
    void (*score)(const struct hash_score_args *args);
    size_t (*score_scratch_bytes)(const struct hash_layout *layout, size_t group);
};

/* The code of a rotated key by level, and the factor of its estimates: bits |x|^2 / (x . levels), which makes that of
 * q = x exact (RaBitQ, arXiv 2405.12497; 2409.09913 for more than one bit).  A zero vector has 0, a NaN makes it NaN.
 * x: [dimension], bits a multiple of 32 and of the dimension; code: [bits / 8]. */
void hash_levels(const float *x, size_t dimension, size_t bits, uint8_t *code, float *factor);
/* The values of a rotated query for such codes, [bits]; may begin where x does. */
void hash_level_values(const float *x, size_t dimension, size_t bits, float *values);

void hash_kernels_init(struct hash_kernels *kernels, cpu_mask mask);

#endif

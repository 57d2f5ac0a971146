/* codec: the 4-bit form of a full chunk, for the disk.
 *
 * As KIVI (arXiv 2402.02750) has it: K per channel, a group is the chunk's 64 tokens of one channel; V per token, a
 * group is 32 channels of one token (the last one of a row may be shorter).  Asymmetric: a group has a minimum m and a
 * maximum M, both halves that occur in it, and each element a code c of 4 bits for the level
 *
 *     level(c) = min(fma(c, s, m), M) in float, rounded to a half;  s = (M - m) * 0x1.111114p-4 (1/15, from above)
 *
 * so that level(0) = m and level(15) = M exactly.  The code of x is the nearest: round((x - m) * (15 / (M - m))).
 *
 * Differs from KIVI and FlexGen, who store a scale and a zero: with the range itself the K ranges of a chunk,
 * [2][k_dimension] halves, are its abstract at the level of 64 tokens bit for bit (kernels/abstract, ABSTRACT_MIN_MAX):
 * the same numbers are the quantizer's range and the selection's bound, valid for the keys before and after.
 * Nor is a scale rounded to a half, which near the smallest halves would cost more than the code does.
 *
 * |decoded - x| <= (M - m) / 30 + half a unit of the half that is decoded.  A group that is constant is exact (but for
 * the sign of zero, which becomes +).  A group with a NaN or an infinity becomes NaN as a whole, so that damage
 * shows.  encode(decode(encode(x))) = encode(x) bit for bit, as m and M are there again, and the half
 * nearest to a level is no farther from it than x was (tests/kernels/test_codec.c).
 *
 * Bytes: K ranges [2][k_dimension] halves, V ranges [2][64][groups] halves, K codes [32][k_dimension],
 * V codes [32][v_dimension]; byte d of line p has token 2p in its low half and token 2p + 1 in the high one.
 * At head_dim 64: 4,864 for 16,384 of f16 (0.297); at 128: 9,728 for 32,768.
 */
#pragma once

#include <stddef.h>

#include "kernels/attention/kv_layout.h"
#include "kernels/variants.h"

enum { Q4_V_GROUP = 32 };

/* Bytes of a chunk's 4-bit form; a multiple of 32.  Only the layout's dimensions matter. */
size_t kv_q4_chunk_bytes(const struct kv_layout *layout);

/* layout: f16 in K and V.  chunk: all 64 tokens, with any alignment.  All variants give the same bits. */
struct codec_kernels {
    void (*q4_encode)(const struct kv_layout *layout, const void *chunk, void *q4);
    void (*q4_decode)(const struct kv_layout *layout, const void *q4, void *chunk);
};

KERNELS(codec);

/* span: the order in which matvec and matmul add up a row, so that both give the same bits.
 *
 * Quantised weights.  The 32 products of a block are added as integers, which is exact; scaled, they are one float.
 * A span is 16 blocks of 32 columns.  Blocks b and b + 8 of a span are added in lane b, with fused multiply-adds; the 8
 * lanes are added as ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)); the spans' sums are added one after the other:
 *     lane = fma(sum * d, dx, lane), then lane = fma(minimum, dx * (sum of x), lane) where the type has minima.
 *
 * Float weights (F32, F16, BF16).  A span is 256 columns; column c is added in lane c % 8, with fused multiply-adds;
 * the lanes are added as ((0 + 2) + (1 + 3)) + ((4 + 6) + (5 + 7)), the spans' sums one after the other.
 *
 * Eight lanes are a register of matvec's, which takes 8 blocks or columns at once.  matmul has a row in each lane of a
 * register and takes the lanes of a span one after the other, in the order of the leaves of their tree, so that few of
 * them wait (matmul/span_leaves.h); a lane of a short last span that has no block is left out, which changes no bit. */
#pragma once

enum {
    SPAN_LANES = 8,
    SPAN_BLOCKS = 16, /* of 32 columns, quantised weights */
    SPAN_GROUPS = 2,  /* of 256 columns, the same */
    SPAN_FLOAT_COLUMNS = 256
};

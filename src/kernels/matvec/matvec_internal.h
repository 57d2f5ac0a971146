/* The prepared inputs of matvec, and what fills its table. */
#pragma once

#include <string.h>

#include "kernels/matvec/matvec.h"
#include "tensor/block.h"

enum { INPUT_GROUP = 256 }; /* elements per group of a prepared input; the last one is filled up with zeros */

/* MATVEC_FORM_Q8_32: x = scale·q, one scale per block of 32, of a half's precision (round_to_half_precision); q is in
 * -127..127.
 * `turned` holds the same values by columns: bytes 32k + 4p .. + 3 are elements 4k .. 4k + 3 of the block at place p,
 * so that codes turned alike sum each block in a 32-bit lane of its own, with nothing to add across lanes at the end.
 * The numbers of the 8 blocks are in the order 0 2 4 6 1 3 5 7 (input_block_place), as two blocks in the halves of a
 * register become when four such registers are transposed.
 *
 * What is last is for Q4_0, Q4_1 and Q8_0 on AVX-512, whose codes stay as they lie: four blocks a register, the first
 * halves of blocks and then the second.  The sums of products start at a multiple of `starts`, which is
 * -8 · (sum of q) in the first lane of a block's four.  Folded, they are blocks 0 0 4 4 1 1 5 5 2 2 6 6 3 3 7 7.
 */
struct input_q8_32 {
    int8_t q[INPUT_GROUP];
    int8_t turned[INPUT_GROUP];
    float scale[8];
    /* -8 · (sum of the q that a 16-bit lane meets in `turned`): for codes stored with an offset. */
    int16_t start[16];
    float sum[8];    /* scale · (sum of q): multiplies minima */
    int32_t sum8[8]; /* 8 · (sum of q) */
    int8_t halves[2][2][INPUT_GROUP / 4];
    int32_t starts[2][16];
    float scales[16], sums[16]; /* of these lanes */
};

/* The place of block b (0..7) in a group's numbers. */
static inline size_t input_block_place(size_t b) { return b / 2 + b % 2 * 4; }

/* Fills the members for AVX-512 from the others. */
static inline void input_halves_fill(struct input_q8_32 *group) {
    for (size_t b = 0; b < 8; b++) {
        const size_t place = input_block_place(b);
        float *scale = group->scales + b % 4 * 4 + b / 4 * 2;
        memcpy(group->halves[b / 4][0] + b % 4 * 16, group->q + b * 32, 16);
        memcpy(group->halves[b / 4][1] + b % 4 * 16, group->q + b * 32 + 16, 16);
        float *sum = group->sums + b % 4 * 4 + b / 4 * 2;
        scale[0] = scale[1] = group->scale[place];
        sum[0] = sum[1] = group->sum[place];
        memset(group->starts[b / 4] + b % 4 * 4, 0, 4 * sizeof(int32_t));
        group->starts[b / 4][b % 4 * 4] = -group->sum8[place];
    }
}

/* MATVEC_FORM_Q8_256: the same values and scales for the weight types of blocks of 256; the numbers of the blocks of 32
 * are in the same order.
 * `turned` holds the same values by columns, the even blocks of 32 (e = 0) apart from the odd ones (1), as the low and
 * the high nibbles of Q4_K lie: bytes 128e + 32j + 4p .. + 3 are elements 32(2p + e) + 4j .. + 3 for p < 4, for the
 * others 32(2(p - 4) + e) + 16 + 4j .. + 3.  So the 32-bit lane p sums 16 elements of one block over j = 0..3.
 * The scales and the sums lie between, next to what either order's kernels read: inputs come from L2 in one piece. */
struct input_q8_256 {
    int8_t q[INPUT_GROUP];
    float scale[8];
    float sum[8];          /* scale · (sum of q): multiplies minima */
    float group_sum[2][8]; /* the same of the first and the second 16 of each block */
    int16_t sums[8][2];    /* of the first and the second 16 q of each block */
    int32_t sum16[8];      /* 16 · (sum of q) */
    /* Q6_K on AVX-512: -32 · (the sum of each 4 q). */
    int32_t start_4[INPUT_GROUP / 4];
    int8_t turned[INPUT_GROUP];
    /* Even blocks, odd ones: -32 · (sum of the q that a 16-bit lane meets in `turned`). */
    int16_t start[2][16];
    /* Q4_K and Q5_K on AVX-512: even blocks and odd ones, first halves of each and second ones; -16 times (sum of q)
     * in the first lane of a block's four; the numbers twice each, in the order of the file. */
    int8_t halves[2][2][INPUT_GROUP / 4];
    int32_t starts[2][16];
    float lane_scale[16], lane_sum[16];
};

/* Fills the members for AVX-512 from the others. */
static inline void input_256_halves_fill(struct input_q8_256 *group) {
    memset(group->starts, 0, sizeof group->starts);
    for (size_t b = 0; b < 8; b++) {
        const size_t place = input_block_place(b);
        memcpy(group->halves[b % 2][0] + b / 2 * 16, group->q + b * 32, 16);
        memcpy(group->halves[b % 2][1] + b / 2 * 16, group->q + b * 32 + 16, 16);
        group->lane_scale[2 * b] = group->lane_scale[2 * b + 1] = group->scale[place];
        group->lane_sum[2 * b] = group->lane_sum[2 * b + 1] = group->sum[place];
        group->starts[b % 2][b / 2 * 4] = -group->sum16[place];
    }
}

/* The place of element i (0..255) of a group in `turned`. */
static inline size_t input_turned_place(size_t i) {
    return i / 32 % 2 * 128 + i % 16 / 4 * 32 + (i / 64 + i / 16 % 2 * 4) * 4 + i % 4;
}

_Static_assert(sizeof(struct input_q8_32) % 64 == 0, "groups stay aligned to cache lines");
_Static_assert(sizeof(struct input_q8_256) % 64 == 0, "groups stay aligned to cache lines");

KERNEL_VARIANTS(matvec, matvec_grid);
KERNEL_VARIANTS(matvec, matvec_plain);
KERNEL_VARIANTS(matvec, matvec_prepare);
KERNEL_VARIANTS(matvec, matvec_q45_k);
KERNEL_VARIANTS(matvec, matvec_q6_k);
KERNEL_VARIANTS(matvec, matvec_q8);
KERNEL_VARIANTS(matvec, matvec_q8_32);
KERNEL_VARIANTS(matvec, matvec_q8_256);
void matvec_q8_dotprod_install(struct matvec_kernels *kernels);

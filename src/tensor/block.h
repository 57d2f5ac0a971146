/* block: the bytes of one block of each quantised type, as GGUF files hold them
 * (little-endian; `d` and `dmin` are IEEE half).  Sources: the GGUF and ggml
 * format documentation; the formula beside each gives element i of the block. */
#ifndef LOAM_TENSOR_BLOCK_H
#define LOAM_TENSOR_BLOCK_H

#include <assert.h>
#include <stdint.h>

enum { BLOCK_32 = 32, BLOCK_256 = 256 };

/* Blocks of 32.  4-bit codes: element i < 16 is the low nibble of qs[i], element i + 16 the high one. */
struct block_q4_0 {
    uint16_t d;
    uint8_t qs[16];
}; /* d·(q − 8) */
struct block_q4_1 {
    uint16_t d, m;
    uint8_t qs[16];
}; /* d·q + m */
struct block_q5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
}; /* d·(q − 16), fifth bit of i in bit i of qh */
struct block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
}; /* d·q + m */
struct block_q8_0 {
    uint16_t d;
    int8_t qs[32];
}; /* d·q */
struct block_iq4_nl {
    uint16_t d;
    uint8_t qs[16];
}; /* d·table[q] */

/* Blocks of 256 in groups with their own small scales. */
struct block_q2_k {
    uint8_t scales[16];
    uint8_t qs[64];
    uint16_t d, dmin;
}; /* d·sc·q − dmin·m, 16 groups of 16 */
struct block_q3_k {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint16_t d;
};
struct block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];
}; /* d·sc·q − dmin·m, 8 groups of 32 */
struct block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
};
struct block_q6_k {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
}; /* d·sc·(q − 32) */
struct block_iq4_xs {
    uint16_t d, scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
};

/* Activations for the types of 256: q = round(x / d), and the sum of each 16 for the minima. */
struct block_q8_k {
    float d;
    int8_t qs[256];
    int16_t bsums[16];
};

static_assert(sizeof(struct block_q4_0) == 18, "layout");
static_assert(sizeof(struct block_q4_1) == 20, "layout");
static_assert(sizeof(struct block_q5_0) == 22, "layout");
static_assert(sizeof(struct block_q5_1) == 24, "layout");
static_assert(sizeof(struct block_q8_0) == 34, "layout");
static_assert(sizeof(struct block_iq4_nl) == 18, "layout");
static_assert(sizeof(struct block_q2_k) == 84, "layout");
static_assert(sizeof(struct block_q3_k) == 110, "layout");
static_assert(sizeof(struct block_q4_k) == 144, "layout");
static_assert(sizeof(struct block_q5_k) == 176, "layout");
static_assert(sizeof(struct block_q6_k) == 210, "layout");
static_assert(sizeof(struct block_iq4_xs) == 136, "layout");
static_assert(sizeof(struct block_q8_k) == 292, "layout");

#endif

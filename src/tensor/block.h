/* block: the bytes of one block of each quantised type, as GGUF files hold them
 * (little-endian; `d` and `dmin` are IEEE half).  Sources: the GGUF and ggml
 * format documentation; the formula beside each gives element i of the block. */
#pragma once

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

/* Four bits: E2M1, twice its value, so that levels are whole (fp4_levels in kernels/convert/codes.h).  The scale has no
 * sign and is half of what it says: of MXFP4 a power of two, 2^(e - 128); of NVFP4 one E4M3 (bias 8) for each 16. */
struct block_mxfp4 {
    uint8_t e;
    uint8_t qs[16];
}; /* 2^(e − 128)·level */
struct block_nvfp4 {
    uint8_t scales[4];
    uint8_t qs[4][8];
}; /* 64 elements; of 16: element i < 8 is the low nibble of qs[i], element i + 8 the high one */

/* Points of a grid (kernels/convert/grid.h) of 8 elements, of IQ3 of 4, times signs.  The value is
 * d·(2·s + 1)·level·sign, s a scale of 4 bits (IQ1: 3), d divided by 8 for IQ2 and by 4 for IQ3_XXS.  Signs
 * of 7 bits have the eighth as their parity. */
struct block_iq2_xxs {
    uint16_t d;
    uint16_t qs[8][4]; /* of 32: four points of 8 bits; a word of signs, 4·7 bits, and s */
};
struct block_iq2_xs {
    uint16_t d;
    uint16_t qs[32]; /* 9 bits of the point, 7 of signs */
    uint8_t scales[8];
}; /* a scale for each 16 */
struct block_iq2_s {
    uint16_t d;
    uint8_t qs[32], signs[32], qh[8], scales[8];
}; /* a scale for each 16; the point's bits 8 and 9 in qh */
struct block_iq3_xxs {
    uint16_t d;
    uint8_t qs[64];
    uint16_t signs[8][2]; /* of 32: a word of signs, 4·7 bits, and s */
};
struct block_iq3_s {
    uint16_t d;
    uint8_t qs[64], qh[8], signs[32], scales[4];
}; /* the point's bit 8 in qh */

/* A level is -1, 0 or 1, plus or minus an eighth: d·(2·s + 1)·(level ± 1/8). */
struct block_iq1_s {
    uint16_t d;
    uint8_t qs[32];
    uint16_t qh[8]; /* of 32: bits 8 to 10 of four points; s; the eighth's sign */
};
struct block_iq1_m {
    uint8_t qs[32];
    uint8_t qh[16];     /* of 16: twice bits 8 to 10 of a point and the sign of its eighth */
    uint16_t scales[4]; /* four times s, of 16; a quarter of d */
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
static_assert(sizeof(struct block_mxfp4) == 17, "layout");
static_assert(sizeof(struct block_nvfp4) == 36, "layout");
static_assert(sizeof(struct block_iq2_xxs) == 66, "layout");
static_assert(sizeof(struct block_iq2_xs) == 74, "layout");
static_assert(sizeof(struct block_iq2_s) == 82, "layout");
static_assert(sizeof(struct block_iq3_xxs) == 98, "layout");
static_assert(sizeof(struct block_iq3_s) == 110, "layout");
static_assert(sizeof(struct block_iq1_s) == 50, "layout");
static_assert(sizeof(struct block_iq1_m) == 56, "layout");
static_assert(sizeof(struct block_q8_k) == 292, "layout");

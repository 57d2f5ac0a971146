/* matvec for Q8_0, Q4_0, Q4_K and Q6_K on 64-bit ARM; included by matvec_q8_neon.c and matvec_q8_dotprod.c.
 *
 * Mapping: a row is taken in groups of 256 weights (rows_loop.h); codes are unpacked to signed bytes, 16 at a time,
 * and multiplied with the input's bytes (dot_add: one instruction with SDOT, six without), up to 4 inputs
 * on the same codes.  Blocks of 32 are scaled as floats, one fused multiply-add each, in two chains; the groups of
 * 16 of Q6_K are scaled as integers before.
 *
 * Bound: memory where the processor has SDOT.  Not measured on hardware; tested under emulation. */
#include "kernels/matvec/rows_neon.h"

enum { GROUP_BLOCKS = 8 };

INLINE const struct input_q8_32 *input_32(const void *x) { return x; }
INLINE const struct input_q8_256 *input_256(const void *x) { return x; }

/* Codes of one block of 32. */
typedef void block_function(const uint8_t *w, int8x16_t codes[2]);

INLINE void q8_0_codes(const uint8_t *w, int8x16_t codes[2]) {
    codes[0] = vreinterpretq_s8_u8(vld1q_u8(w + 2));
    codes[1] = vreinterpretq_s8_u8(vld1q_u8(w + 18));
}

INLINE void q4_0_codes(const uint8_t *w, int8x16_t codes[2]) {
    uint8x16_t packed = vld1q_u8(w + 2);
    codes[0] = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15))), vdupq_n_s8(8));
    codes[1] = vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(packed, 4)), vdupq_n_s8(8));
}

INLINE void group_of_blocks(const uint8_t *w, const void *const *x, size_t n, row_vector *acc, size_t block_bytes,
                            block_function *unpack) {
    UNROLL for (size_t b = 0; b < GROUP_BLOCKS; b++) {
        int8x16_t codes[2];
        unpack(w + b * block_bytes, codes);
        float d = half_at(w + b * block_bytes);
        UNROLL for (size_t i = 0; i < n; i++) {
            float32x4_t *target = &acc[i].chain[b % 2];
            const int8_t *q = input_32(x[i])->q + b * 32;
            int32x4_t sum = dot_add(vdupq_n_s32(0), codes[0], vld1q_s8(q));
            sum = dot_add(sum, codes[1], vld1q_s8(q + 16));
            *target = vfmaq_n_f32(*target, vcvtq_f32_s32(sum), d * input_32(x[i])->scale[input_block_place(b)]);
        }
    }
}

INLINE void q8_0_group(const uint8_t *w, const void *const *x, size_t n, row_vector *acc) {
    group_of_blocks(w, x, n, acc, sizeof(struct block_q8_0), q8_0_codes);
}

INLINE void q4_0_group(const uint8_t *w, const void *const *x, size_t n, row_vector *acc) {
    group_of_blocks(w, x, n, acc, sizeof(struct block_q4_0), q4_0_codes);
}

/* The 8 scales and 8 minima of a block of Q4_K; see q4_k_scale_get. */
INLINE void q4_k_scales(const uint8_t *packed, uint8_t scale[8], uint8_t minimum[8]) {
    uint32_t word[3], out[4];
    memcpy(word, packed, sizeof word);
    out[0] = word[0] & 0x3f3f3f3f;
    out[1] = (word[2] & 0x0f0f0f0f) | (word[0] >> 6 & 0x03030303) << 4;
    out[2] = word[1] & 0x3f3f3f3f;
    out[3] = (word[2] >> 4 & 0x0f0f0f0f) | (word[1] >> 6 & 0x03030303) << 4;
    memcpy(scale, out, 8);
    memcpy(minimum, out + 2, 8);
}

INLINE void q4_k_group(const uint8_t *w, const void *const *x, size_t n, row_vector *acc) {
    const uint8x16_t mask = vdupq_n_u8(15);
    uint8_t scale[8], minimum[8];
    q4_k_scales(w + 4, scale, minimum);
    float d = half_at(w), dmin = half_at(w + 2);
    UNROLL for (size_t pair = 0; pair < 4; pair++) {
        uint8x16_t a = vld1q_u8(w + 16 + 32 * pair), b = vld1q_u8(w + 32 + 32 * pair);
        int8x16_t low[2] = {vreinterpretq_s8_u8(vandq_u8(a, mask)), vreinterpretq_s8_u8(vandq_u8(b, mask))};
        int8x16_t high[2] = {vreinterpretq_s8_u8(vshrq_n_u8(a, 4)), vreinterpretq_s8_u8(vshrq_n_u8(b, 4))};
        float d_low = d * (float)scale[2 * pair], d_high = d * (float)scale[2 * pair + 1];
        UNROLL for (size_t i = 0; i < n; i++) {
            const struct input_q8_256 *in = input_256(x[i]);
            const int8_t *q = in->q + 64 * pair;
            int32x4_t first = dot_add(vdupq_n_s32(0), low[0], vld1q_s8(q));
            int32x4_t second = dot_add(vdupq_n_s32(0), high[0], vld1q_s8(q + 32));
            first = dot_add(first, low[1], vld1q_s8(q + 16));
            second = dot_add(second, high[1], vld1q_s8(q + 48));
            acc[i].chain[0] =
                vfmaq_n_f32(acc[i].chain[0], vcvtq_f32_s32(first), d_low * in->scale[input_block_place(2 * pair)]);
            acc[i].chain[1] = vfmaq_n_f32(acc[i].chain[1], vcvtq_f32_s32(second),
                                          d_high * in->scale[input_block_place(2 * pair + 1)]);
        }
    }
    /* The minima of the even and of the odd blocks, in the order of the input's numbers. */
    const uint8x8_t minima = vld1_u8(minimum);
    const uint16x8_t even_words = vmovl_u8(vuzp1_u8(minima, minima)), odd_words = vmovl_u8(vuzp2_u8(minima, minima));
    const float32x4_t even = vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(even_words))), dmin);
    const float32x4_t odd = vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(odd_words))), dmin);
    UNROLL for (size_t i = 0; i < n; i++) {
        const float *sum = input_256(x[i])->sum;
        acc[i].chain[0] = vfmsq_f32(acc[i].chain[0], even, vld1q_f32(sum));
        acc[i].chain[1] = vfmsq_f32(acc[i].chain[1], odd, vld1q_f32(sum + 4));
    }
}

/* 16 codes of Q6_K, less 32: four low bits, and two high ones that are at bits 4 and 5. */
INLINE int8x16_t q6_k_join(uint8x16_t low, uint8x16_t high) {
    uint8x16_t code = vorrq_u8(low, vandq_u8(high, vdupq_n_u8(0x30)));
    return vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(32));
}

/* Elements 16·j .. 16·j + 15 of each 32 in a half of 128: the first two of ql's low nibbles, then of its high. */
INLINE void q6_k_codes(const uint8_t *w, size_t half, size_t j, int8x16_t codes[4]) {
    const uint8x16_t mask = vdupq_n_u8(15);
    uint8x16_t a = vld1q_u8(w + 64 * half + 16 * j), b = vld1q_u8(w + 64 * half + 32 + 16 * j);
    uint8x16_t h = vld1q_u8(w + 128 + 32 * half + 16 * j);
    codes[0] = q6_k_join(vandq_u8(a, mask), vshlq_n_u8(h, 4));
    codes[1] = q6_k_join(vandq_u8(b, mask), vshlq_n_u8(h, 2));
    codes[2] = q6_k_join(vshrq_n_u8(a, 4), h);
    codes[3] = q6_k_join(vshrq_n_u8(b, 4), vshrq_n_u8(h, 2));
}

INLINE void q6_k_group(const uint8_t *w, const void *const *x, size_t n, row_vector *acc) {
    const int8_t *scale = (const int8_t *)w + 192;
    float d = half_at(w + 208);
    UNROLL for (size_t half = 0; half < 2; half++) {
        int8x16_t first[4], second[4];
        q6_k_codes(w, half, 0, first);
        q6_k_codes(w, half, 1, second);
        UNROLL for (size_t k = 0; k < 4; k++) {
            const size_t block = 4 * half + k;
            UNROLL for (size_t i = 0; i < n; i++) {
                const struct input_q8_256 *in = input_256(x[i]);
                int32x4_t dot = dot_add(vdupq_n_s32(0), first[k], vld1q_s8(in->q + 32 * block));
                int32x4_t sum = vmulq_n_s32(dot, scale[2 * block]);
                dot = dot_add(vdupq_n_s32(0), second[k], vld1q_s8(in->q + 32 * block + 16));
                sum = vmlaq_n_s32(sum, dot, scale[2 * block + 1]);
                float32x4_t *target = &acc[i].chain[k % 2];
                *target = vfmaq_n_f32(*target, vcvtq_f32_s32(sum), d * in->scale[input_block_place(block)]);
            }
        }
    }
}

#define KIND_32(block)  ((struct row_kind){sizeof(struct block), GROUP_BLOCKS, sizeof(struct input_q8_32), 4, false})
#define KIND_256(block) ((struct row_kind){sizeof(struct block), 1, sizeof(struct input_q8_256), 4, false})

static void run_q4_0(const struct matvec_args *args) { rows_run(args, q4_0_group, KIND_32(block_q4_0)); }
static void run_q8_0(const struct matvec_args *args) { rows_run(args, q8_0_group, KIND_32(block_q8_0)); }
static void run_q4_k(const struct matvec_args *args) { rows_run(args, q4_k_group, KIND_256(block_q4_k)); }
static void run_q6_k(const struct matvec_args *args) { rows_run(args, q6_k_group, KIND_256(block_q6_k)); }

static void q8_install(struct matvec_kernels *kernels) {
    kernels->run[TENSOR_Q4_0] = run_q4_0;
    kernels->run[TENSOR_Q8_0] = run_q8_0;
    kernels->run[TENSOR_Q4_K] = run_q4_k;
    kernels->run[TENSOR_Q6_K] = run_q6_k;
}

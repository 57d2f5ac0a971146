/* matvec for the types with blocks of 256, on AVX2.
 *
 * Mapping: a block is a group (rows_avx2.h).  Codes are unpacked to unsigned bytes and multiplied u8·s8 with the input
 * (63·127·2 < 2^15).  The products of each 32 are added as integers and come to a lane; there they are scaled.
 *
 * Q4_K and Q6_K are transposed (turn_4) to the order of the input's `turned`, so that the products of one scale meet in
 * a 32-bit lane: 8 are added in each 16-bit lane before they are widened, four times less often.
 * Those sums start at −32 · (sum of the input) for Q6_K and may wrap around on their way: the last value is at most
 * 8·32·127 (32,512 < 2^15), of Q4_K 8·15·127.  Up to 8 inputs share the codes of a group, which stay in registers
 * while the inputs take turns.
 * For Q5_K the fifth bits cost more in that order than the sums win: 1 input 0.144 to 0.161 cycles per weight on Zen 3.
 *
 * Q2_K, Q3_K and Q5_K fold the 16-bit products of 8 registers to two (fold_words): at most 8·31·127 (31,496).
 * IQ4_XS has signed levels: the sign moves to the input.
 *
 * Bound: memory, the row once; the inputs stay in L1; what is reached: bench/kernels. */
#include <immintrin.h>
#include <string.h>

#include "kernels/convert/codes.h"
#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_avx2.h"

INLINE const struct input_q8_256 *input(const void *x) { return x; }

INLINE float half_at(const void *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return _cvtsh_ss(half);
}

/* acc += d · scale of x · dot, a block of 32 in each lane */
INLINE __m256 add_blocks(__m256 acc, __m256i dot, __m256 d, const struct input_q8_256 *x) {
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dot), d), _mm256_loadu_ps(x->scale), acc);
}

/* Registers of the 16-bit products of 8 blocks, to two: the even blocks and the odd ones, in each half 4 times two
 * sums, of 8 products each, of the first or the second 16 codes.  They have the order of the lanes of `turned`. */
INLINE void fold_words(const __m256i products[8], __m256i *even, __m256i *odd) {
    *even = _mm256_hadd_epi16(_mm256_hadd_epi16(products[0], products[2]), _mm256_hadd_epi16(products[4], products[6]));
    *odd = _mm256_hadd_epi16(_mm256_hadd_epi16(products[1], products[3]), _mm256_hadd_epi16(products[5], products[7]));
}

/* Eight 16-bit numbers as floats in the order of input_block_place. */
INLINE __m256 words_in_place(__m128i words) {
    const __m128i at = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_shuffle_epi8(words, at)));
}

/* Words: scales 0..7 in the low half, minima in the high; see q4_k_scale_get.  `head` is the block's first 16
 * bytes in both halves: d, dmin and the 12 packed ones. */
INLINE __m256i q4_k_scales(__m256i head) {
    const char n = -1;
    /* The byte with the low bits, in the upper half of a word: multiplying by 256 or 16 shifts it right. */
    const __m256i low_at = _mm256_setr_epi8(n, 4, n, 5, n, 6, n, 7, n, 12, n, 13, n, 14, n, 15, n, 8, n, 9, n, 10, n,
                                            11, n, 12, n, 13, n, 14, n, 15);
    const __m256i shift = _mm256_setr_epi16(256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 16, 16, 16, 16);
    const __m256i mask = _mm256_setr_epi16(63, 63, 63, 63, 15, 15, 15, 15, 63, 63, 63, 63, 15, 15, 15, 15);
    const __m256i high_at = _mm256_setr_epi8(n, n, n, n, n, n, n, n, 4, n, 5, n, 6, n, 7, n, n, n, n, n, n, n, n, n, 8,
                                             n, 9, n, 10, n, 11, n);
    __m256i low = _mm256_and_si256(_mm256_mulhi_epu16(_mm256_shuffle_epi8(head, low_at), shift), mask);
    __m256i high = _mm256_srli_epi16(_mm256_shuffle_epi8(head, high_at), 2);
    return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi16(0x30)));
}

/* Q4_K: the codes as the input's `turned` has them; the packed bytes are transposed, then split. */
INLINE void q4_k_codes(const uint8_t *w, __m256i even[4], __m256i odd[4]) {
    const __m256i mask = _mm256_set1_epi8(15);
    UNROLL for (size_t pair = 0; pair < 4; pair++) { even[pair] = load_256(w + 16 + 32 * pair); }
    turn_4(even);
    UNROLL for (size_t j = 0; j < 4; j++) {
        odd[j] = _mm256_and_si256(_mm256_srli_epi16(even[j], 4), mask);
        even[j] = _mm256_and_si256(even[j], mask);
    }
}

/* The products with the even (0) or the odd blocks: each 16-bit lane adds 8 to `sum`. */
INLINE __m256i sum_turned(__m256i sum, const __m256i codes[4], const struct input_q8_256 *x, size_t odd) {
    UNROLL for (size_t j = 0; j < 4; j++) {
        __m256i products = _mm256_maddubs_epi16(codes[j], load_256(x->turned + 128 * odd + 32 * j));
        sum = _mm256_add_epi16(sum, products);
    }
    return sum;
}

/* The scales and the minima of the 8 blocks of Q4_K or Q5_K, less `offset` of the codes. */
INLINE void q45_k_factors(const uint8_t *w, float offset, __m256 *scale, __m256 *minimum) {
    __m256i words = q4_k_scales(_mm256_broadcastsi128_si256(load_128(w)));
    __m128 factors = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)w)); /* d, dmin */
    __m256 d = _mm256_broadcastss_ps(factors), dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(factors));
    *scale = _mm256_mul_ps(words_in_place(_mm256_castsi256_si128(words)), d);
    __m256 raised = offset != 0 ? _mm256_mul_ps(*scale, _mm256_set1_ps(offset)) : _mm256_setzero_ps();
    *minimum = _mm256_fnmadd_ps(words_in_place(_mm256_extracti128_si256(words, 1)), dmin, raised);
}

INLINE void q4_k_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    const __m256i zero = _mm256_setzero_si256(), one = _mm256_set1_epi16(1);
    __m256i even[4], odd[4];
    __m256 scale, minimum;
    q4_k_codes(w, even, odd);
    q45_k_factors(w, 0, &scale, &minimum);
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_256 *x = inputs[i];
        __m256i a = _mm256_madd_epi16(sum_turned(zero, even, x, 0), one);
        __m256i b = _mm256_madd_epi16(sum_turned(zero, odd, x, 1), one);
        acc[i] = add_blocks(acc[i], join_halves(a, b), scale, x);
        acc[i] = _mm256_fmadd_ps(minimum, _mm256_loadu_ps(x->sum), acc[i]);
    }
}

/* Four pairs of blocks of 32: low and high nibbles with their fifth bits. */
INLINE void q5_k_codes(const uint8_t *w, size_t pair, __m256i *low, __m256i *high) {
    const __m256i mask = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(16);
    __m256i codes = load_256(w + 48 + 32 * pair), fifth = load_256(w + 16), fifth_low, fifth_high;
    switch (pair) { /* bits 2·pair and 2·pair + 1 to bit 4 */
    case 0: fifth_low = _mm256_slli_epi16(fifth, 4), fifth_high = _mm256_slli_epi16(fifth, 3); break;
    case 1: fifth_low = _mm256_slli_epi16(fifth, 2), fifth_high = _mm256_slli_epi16(fifth, 1); break;
    case 2: fifth_low = fifth, fifth_high = _mm256_srli_epi16(fifth, 1); break;
    default: fifth_low = _mm256_srli_epi16(fifth, 2), fifth_high = _mm256_srli_epi16(fifth, 3); break;
    }
    *low = _mm256_or_si256(_mm256_and_si256(codes, mask), _mm256_and_si256(fifth_low, bit));
    *high = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(codes, 4), mask), _mm256_and_si256(fifth_high, bit));
}

/* The offset of 16 moves to the minima, as in matmul, whose 16-bit sums need it. */
INLINE void q5_k_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i products[TILE_MAX][8];
    __m256 scale, minimum;
    UNROLL for (size_t pair = 0; pair < 4; pair++) {
        __m256i low, high;
        q5_k_codes(w, pair, &low, &high);
        UNROLL for (size_t i = 0; i < n; i++) {
            const int8_t *q = input(x[i])->q + 64 * pair;
            products[i][2 * pair] = _mm256_maddubs_epi16(low, load_256(q));
            products[i][2 * pair + 1] = _mm256_maddubs_epi16(high, load_256(q + 32));
        }
    }
    q45_k_factors(w, 16, &scale, &minimum);
    UNROLL for (size_t i = 0; i < n; i++) {
        __m256i even, odd;
        fold_words(products[i], &even, &odd);
        __m256i dot = join_halves(_mm256_madd_epi16(even, one), _mm256_madd_epi16(odd, one));
        dot = _mm256_sub_epi32(dot, load_256(input(x[i])->sum16));
        acc[i] = add_blocks(acc[i], dot, scale, input(x[i]));
        acc[i] = _mm256_fmadd_ps(minimum, _mm256_loadu_ps(input(x[i])->sum), acc[i]);
    }
}

/* Codes of 32 elements for each k of the four in a half of 128. */
INLINE void q6_k_codes(const uint8_t *w, size_t half, __m256i codes[4]) {
    const __m256i low = _mm256_set1_epi8(15), high = _mm256_set1_epi8(0x30);
    __m256i a = load_256(w + 64 * half), b = load_256(w + 64 * half + 32), h = load_256(w + 128 + 32 * half);
    codes[0] = _mm256_or_si256(_mm256_and_si256(a, low), _mm256_and_si256(_mm256_slli_epi16(h, 4), high));
    codes[1] = _mm256_or_si256(_mm256_and_si256(b, low), _mm256_and_si256(_mm256_slli_epi16(h, 2), high));
    codes[2] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), low), _mm256_and_si256(h, high));
    codes[3] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), low),
                               _mm256_and_si256(_mm256_srli_epi16(h, 2), high));
}

/* Q3_K: two bits of qs, the third from hmask. */
INLINE void q3_k_codes(const uint8_t *w, size_t half, __m256i codes[4]) {
    const __m256i two = _mm256_set1_epi8(3), bit = _mm256_set1_epi8(4);
    __m256i q = load_256(w + 32 + 32 * half), h = load_256(w);
    h = half ? _mm256_srli_epi16(h, 4) : h;
    codes[0] = _mm256_or_si256(_mm256_and_si256(q, two), _mm256_and_si256(_mm256_slli_epi16(h, 2), bit));
    codes[1] =
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(q, 2), two), _mm256_and_si256(_mm256_slli_epi16(h, 1), bit));
    codes[2] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(q, 4), two), _mm256_and_si256(h, bit));
    codes[3] =
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(q, 6), two), _mm256_and_si256(_mm256_srli_epi16(h, 1), bit));
}

INLINE void q2_k_codes(const uint8_t *w, size_t half, __m256i codes[4]) {
    const __m256i two = _mm256_set1_epi8(3);
    __m256i q = load_256(w + 16 + 32 * half);
    codes[0] = _mm256_and_si256(q, two);
    codes[1] = _mm256_and_si256(_mm256_srli_epi16(q, 2), two);
    codes[2] = _mm256_and_si256(_mm256_srli_epi16(q, 4), two);
    codes[3] = _mm256_and_si256(_mm256_srli_epi16(q, 6), two);
}

typedef void half_codes_function(const uint8_t *w, size_t half, __m256i codes[4]);

/* The scales of the even or the odd blocks twice each, in the order of the lanes of `turned`. */
INLINE __m256i scales_of_turned(__m256i bytes, char odd) {
    const char n = 0x40; /* a zero, still one after adding */
    const __m256i at = _mm256_setr_epi8(-n, 0, -n, 0, -n, 4, -n, 4, -n, 8, -n, 8, -n, 12, -n, 12, -n, 1, -n, 1, -n, 5,
                                        -n, 5, -n, 9, -n, 9, -n, 13, -n, 13);
    return _mm256_srai_epi16(_mm256_shuffle_epi8(bytes, _mm256_add_epi8(at, _mm256_set1_epi8(odd))), 8);
}

INLINE void q6_k_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    __m256i half[2][4];
    q6_k_codes(w, 0, half[0]);
    q6_k_codes(w, 1, half[1]);
    __m256i even[4] = {half[0][0], half[0][2], half[1][0], half[1][2]};
    __m256i odd[4] = {half[0][1], half[0][3], half[1][1], half[1][3]};
    turn_4(even);
    turn_4(odd);
    const __m256i bytes = _mm256_broadcastsi128_si256(load_128(w + 192));
    const __m256i scale_even = scales_of_turned(bytes, 0), scale_odd = scales_of_turned(bytes, 2);
    const __m256 d = _mm256_set1_ps(half_at(w + 208));
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_256 *x = inputs[i];
        __m256i a = _mm256_madd_epi16(sum_turned(load_256(x->start[0]), even, x, 0), scale_even);
        __m256i b = _mm256_madd_epi16(sum_turned(load_256(x->start[1]), odd, x, 1), scale_odd);
        acc[i] = add_blocks(acc[i], join_halves(a, b), d, x);
    }
}

/* The products of the 8 blocks, for types with codes in halves of 128. */
INLINE void half_products(const uint8_t *w, const void *const *x, size_t n, half_codes_function *unpack,
                          __m256i products[TILE_MAX][8]) {
    UNROLL for (size_t half = 0; half < 2; half++) {
        __m256i codes[4];
        unpack(w, half, codes);
        UNROLL for (size_t k = 0; k < 4; k++) {
            UNROLL for (size_t i = 0; i < n; i++) {
                const int8_t *q = input(x[i])->q + 128 * half + 32 * k;
                products[i][4 * half + k] = _mm256_maddubs_epi16(codes[k], load_256(q));
            }
        }
    }
}

/* See q3_k_scale_get. */
INLINE __m128i q3_k_scales(const uint8_t *packed) {
    uint64_t low;
    uint32_t high;
    memcpy(&low, packed, 8), memcpy(&high, packed + 8, 4);
    const uint64_t nibbles = 0x0f0f0f0f0f0f0f0f, bits = 0x3030303030303030;
    uint64_t high_0 = ((uint64_t)high << 4 & 0xffffffff) | (uint64_t)high << 34;
    uint64_t high_8 = (uint64_t)high | (uint64_t)(high >> 2) << 32;
    __m128i bytes = _mm_set_epi64x((long long)((low >> 4 & nibbles) | (high_8 & bits)),
                                   (long long)((low & nibbles) | (high_0 & bits)));
    return _mm_sub_epi8(bytes, _mm_set1_epi8(32));
}

INLINE void q3_k_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc) {
    __m256i products[TILE_MAX][8];
    half_products(w, x, n, q3_k_codes, products);
    const __m256i bytes = _mm256_broadcastsi128_si256(q3_k_scales(w + 96));
    const __m256i scale_even = scales_of_turned(bytes, 0), scale_odd = scales_of_turned(bytes, 2);
    const __m256 d = _mm256_set1_ps(half_at(w + 108));
    UNROLL for (size_t i = 0; i < n; i++) {
        __m256i even, odd; /* `start` has -32 times the sums, in lanes that have the same scales */
        fold_words(products[i], &even, &odd);
        even = _mm256_add_epi16(even, _mm256_srai_epi16(load_256(input(x[i])->start[0]), 3));
        odd = _mm256_add_epi16(odd, _mm256_srai_epi16(load_256(input(x[i])->start[1]), 3));
        __m256i dot = join_halves(_mm256_madd_epi16(even, scale_even), _mm256_madd_epi16(odd, scale_odd));
        acc[i] = add_blocks(acc[i], dot, d, input(x[i]));
    }
}

INLINE void q2_k_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc) {
    const __m128i mask = _mm_set1_epi8(15);
    __m256i products[TILE_MAX][8];
    half_products(w, x, n, q2_k_codes, products);
    const __m128i packed = load_128(w), scales = _mm_and_si128(packed, mask);
    const __m256i bytes = _mm256_broadcastsi128_si256(scales);
    const __m256i scale_even = scales_of_turned(bytes, 0), scale_odd = scales_of_turned(bytes, 2);
    /* Of the first groups of the 8 blocks, and of the second ones. */
    const __m128i minima = _mm_and_si128(_mm_srli_epi16(packed, 4), mask);
    const __m256 d = _mm256_set1_ps(half_at(w + 80)), dmin = _mm256_set1_ps(-half_at(w + 82));
    const __m256 first = _mm256_mul_ps(dmin, words_in_place(_mm_and_si128(minima, _mm_set1_epi16(255))));
    const __m256 second = _mm256_mul_ps(dmin, words_in_place(_mm_srli_epi16(minima, 8)));
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_256 *in = input(x[i]);
        __m256i even, odd;
        fold_words(products[i], &even, &odd);
        __m256i dot = join_halves(_mm256_madd_epi16(even, scale_even), _mm256_madd_epi16(odd, scale_odd));
        acc[i] = add_blocks(acc[i], dot, d, in);
        acc[i] = _mm256_fmadd_ps(first, _mm256_loadu_ps(in->group_sum[0]), acc[i]);
        acc[i] = _mm256_fmadd_ps(second, _mm256_loadu_ps(in->group_sum[1]), acc[i]);
    }
}

/* See iq4_xs_scale_get. */
INLINE __m128i iq4_xs_scales(const uint8_t *w) {
    uint16_t high;
    uint32_t low;
    memcpy(&high, w + 2, 2), memcpy(&low, w + 4, 4);
    uint64_t bytes = _pdep_u64(low, 0x0f0f0f0f0f0f0f0f) | _pdep_u64(high, 0x3030303030303030);
    return _mm_cvtepi8_epi16(_mm_sub_epi8(_mm_cvtsi64_si128((long long)bytes), _mm_set1_epi8(32)));
}

INLINE void iq4_xs_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc) {
    const __m256i levels = _mm256_broadcastsi128_si256(load_128(iq4_levels)), mask = _mm256_set1_epi8(15);
    __m256i sum[TILE_MAX][8];
    UNROLL for (size_t k = 0; k < 8; k++) {
        __m128i packed = load_128(w + 8 + 16 * k);
        __m256i codes = _mm256_set_m128i(_mm_srli_epi16(packed, 4), packed);
        __m256i level = _mm256_shuffle_epi8(levels, _mm256_and_si256(codes, mask)), size = _mm256_abs_epi8(level);
        UNROLL for (size_t i = 0; i < n; i++) {
            __m256i x_signed = _mm256_sign_epi8(load_256(input(x[i])->q + 32 * k), level);
            sum[i][k] = _mm256_madd_epi16(_mm256_maddubs_epi16(size, x_signed), _mm256_set1_epi16(1));
        }
    }
    const __m256 scale = _mm256_mul_ps(words_in_place(iq4_xs_scales(w)), _mm256_set1_ps(half_at(w)));
    UNROLL for (size_t i = 0; i < n; i++) { acc[i] = add_blocks(acc[i], fold_blocks(sum[i]), scale, input(x[i])); }
}

#define KIND(block, tile) \
    ((struct row_kind){sizeof(struct block), 1, sizeof(struct input_q8_256), tile, (tile) == TILE_MAX})

static void run_q2_k(const struct matvec_args *args) { rows_run(args, q2_k_group, KIND(block_q2_k, 4)); }
static void run_q3_k(const struct matvec_args *args) { rows_run(args, q3_k_group, KIND(block_q3_k, 4)); }
static void run_q4_k(const struct matvec_args *args) { rows_run(args, q4_k_group, KIND(block_q4_k, 8)); }
static void run_q5_k(const struct matvec_args *args) { rows_run(args, q5_k_group, KIND(block_q5_k, 4)); }
static void run_q6_k(const struct matvec_args *args) { rows_run(args, q6_k_group, KIND(block_q6_k, 8)); }
static void run_iq4_xs(const struct matvec_args *args) { rows_run(args, iq4_xs_group, KIND(block_iq4_xs, 4)); }

void matvec_q8_256_avx2_install(struct matvec_kernels *kernels) {
    kernels->run[TENSOR_Q2_K] = run_q2_k;
    kernels->run[TENSOR_Q3_K] = run_q3_k;
    kernels->run[TENSOR_Q4_K] = run_q4_k;
    kernels->run[TENSOR_Q5_K] = run_q5_k;
    kernels->run[TENSOR_Q6_K] = run_q6_k;
    kernels->run[TENSOR_IQ4_XS] = run_iq4_xs;
}

/* matvec for the types with blocks of 32, on AVX2.
 *
 * Mapping: a row is taken in groups of 8 blocks; up to 4 rows that lie far apart take turns by group
 * (row_streams); up to 8 (signed codes: 4) inputs share the unpacked codes of a group, which stay in
 * registers while the inputs take turns: 0.28 and 0.38 cycles per weight of Q4_0 at 6 and 8 inputs, where tiles of
 * 4 inputs with their sums in registers took 0.39 and 0.50.
 *
 * 4- and 5-bit types keep two blocks A, B in the halves of a register (the input's `pairs` order): the u8·s8
 * products of the low and of the high nibbles are added in 16 bits (15·127·4 = 7,620, 31·127·4 < 2^15), and the
 * sums of all 8 blocks are then folded by unpacking and adding (to 4 · 7,620 < 2^15) and one multiply-add into
 * the 8 lanes of one register, in the order in which the scales are gathered.  So a group costs one conversion
 * and one fused multiply-add.  Offsets (−8, −16) are subtracted as integers, minima multiply the prepared sums.
 *
 * Q8_0 and IQ4_NL have signed codes: the sign moves to the input, |w| <= 128 as u8, 128·127·2 < 2^15.
 *
 * Bound: memory, the row once; the inputs stay in L1.  About 0.42 instructions per byte of Q4_0 and 0.27 of Q8_0;
 * what is reached: bench/kernels. */
#include <immintrin.h>
#include <string.h>

#include "kernels/convert/codes.h"
#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_avx2.h"

enum { GROUP_BLOCKS = 8 };

INLINE const struct input_q8_32 *input(const void *x) { return x; }

/* Eight 16-bit numbers, `stride` bytes apart, in the order of input_block_place.  Reads 16 bytes from each. */
INLINE __m128i gather_halves(const uint8_t *w, size_t stride) {
    __m128i a = _mm_unpacklo_epi16(load_128(w), load_128(w + 2 * stride));
    __m128i b = _mm_unpacklo_epi16(load_128(w + 4 * stride), load_128(w + 6 * stride));
    __m128i c = _mm_unpacklo_epi16(load_128(w + stride), load_128(w + 3 * stride));
    __m128i d = _mm_unpacklo_epi16(load_128(w + 5 * stride), load_128(w + 7 * stride));
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
}

/* The same for blocks that begin with two halves, d and m. */
INLINE void gather_half_pairs(const uint8_t *w, size_t stride, __m256 *d, __m256 *m) {
    __m128i a = _mm_unpacklo_epi32(load_128(w), load_128(w + 2 * stride));
    __m128i b = _mm_unpacklo_epi32(load_128(w + 4 * stride), load_128(w + 6 * stride));
    __m128i c = _mm_unpacklo_epi32(load_128(w + stride), load_128(w + 3 * stride));
    __m128i e = _mm_unpacklo_epi32(load_128(w + 5 * stride), load_128(w + 7 * stride));
    const __m128i split = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    __m128i even = _mm_shuffle_epi8(_mm_unpacklo_epi64(a, b), split);
    __m128i odd = _mm_shuffle_epi8(_mm_unpacklo_epi64(c, e), split);
    *d = _mm256_cvtph_ps(_mm_unpacklo_epi64(even, odd));
    *m = _mm256_cvtph_ps(_mm_unpackhi_epi64(even, odd));
}

/* 16 bytes of block A in the low half, of block B in the high. */
INLINE __m256i load_pair(const uint8_t *a, size_t stride) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(a)), load_128(a + stride), 1);
}

/* The sums of 8 blocks from four registers [8 sums of A | 8 of B] in 16 bits: lanes A C E G | B D F H.  Halving by
 * unpacking and adding leaves the two pipes that multiply to the products.
 * `small`: four of a block's lanes together stay below 2^15, else two. */
INLINE __m256i fold_pairs(const __m256i sum[4], bool small) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i a =
        _mm256_add_epi16(_mm256_unpacklo_epi32(sum[0], sum[1]), _mm256_unpackhi_epi32(sum[0], sum[1]));
    __m256i b =
        _mm256_add_epi16(_mm256_unpacklo_epi32(sum[2], sum[3]), _mm256_unpackhi_epi32(sum[2], sum[3]));
    if (small)
        return _mm256_madd_epi16(_mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)),
                                 ones);
    a = _mm256_madd_epi16(a, ones), b = _mm256_madd_epi16(b, ones);
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* Nibble types: the codes of a pair, unsigned. */
typedef void pair_function(const uint8_t *w, __m256i *low, __m256i *high);

struct nibble_kind {
    size_t block_bytes;
    pair_function *unpack; /* of the block at w and the next one */
    bool five_bits, has_minimum;
};

INLINE void split_nibbles(__m256i codes, __m256i *low, __m256i *high) {
    const __m256i mask = _mm256_set1_epi8(15);
    *low = _mm256_and_si256(codes, mask);
    *high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask);
}

INLINE void q4_0_unpack(const uint8_t *w, __m256i *low, __m256i *high) {
    split_nibbles(load_pair(w + 2, sizeof(struct block_q4_0)), low, high);
}

INLINE void q4_1_unpack(const uint8_t *w, __m256i *low, __m256i *high) {
    split_nibbles(load_pair(w + 4, sizeof(struct block_q4_1)), low, high);
}

/* Bit i of the bits of A (low half) and B becomes 16 in byte i, for 16 bits from byte `from`. */
INLINE __m256i spread_bits(__m256i bits, char from) {
    const __m256i select = _mm256_set_epi64x(0x0101010101010101, 0, 0x0101010101010101, 0);
    const __m256i each = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i bytes = _mm256_shuffle_epi8(bits, _mm256_add_epi8(select, _mm256_set1_epi8(from)));
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

INLINE void add_fifth_bits(const uint8_t *qh, size_t stride, __m256i *low, __m256i *high) {
    int a, b;
    memcpy(&a, qh, 4), memcpy(&b, qh + stride, 4);
    __m256i bits =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_cvtsi32_si128(a)), _mm_cvtsi32_si128(b), 1);
    *low = _mm256_or_si256(*low, spread_bits(bits, 0));
    *high = _mm256_or_si256(*high, spread_bits(bits, 2));
}

INLINE void q5_0_unpack(const uint8_t *w, __m256i *low, __m256i *high) {
    split_nibbles(load_pair(w + 6, sizeof(struct block_q5_0)), low, high);
    add_fifth_bits(w + 2, sizeof(struct block_q5_0), low, high);
}

INLINE void q5_1_unpack(const uint8_t *w, __m256i *low, __m256i *high) {
    split_nibbles(load_pair(w + 8, sizeof(struct block_q5_1)), low, high);
    add_fifth_bits(w + 4, sizeof(struct block_q5_1), low, high);
}

INLINE void nibble_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc,
                         struct nibble_kind kind) {
    __m256i low[4], high[4];
    UNROLL for (size_t pair = 0; pair < 4; pair++) {
        kind.unpack(w + 2 * pair * kind.block_bytes, &low[pair], &high[pair]);
    }
    __m256 d, m;
    if (kind.has_minimum)
        gather_half_pairs(w, kind.block_bytes, &d, &m);
    else
        d = _mm256_cvtph_ps(gather_halves(w, kind.block_bytes));
    UNROLL for (size_t i = 0; i < n; i++) {
        __m256i sum[4];
        UNROLL for (size_t pair = 0; pair < 4; pair++) {
            __m256i p = _mm256_maddubs_epi16(low[pair], load_256(input(inputs[i])->pairs + pair * 64));
            __m256i q = _mm256_maddubs_epi16(high[pair], load_256(input(inputs[i])->pairs + pair * 64 + 32));
            sum[pair] = _mm256_add_epi16(p, q);
        }
        __m256i dot = fold_pairs(sum, !kind.five_bits);
        if (!kind.has_minimum) {
            __m256i offset = load_256(input(inputs[i])->sum8);
            if (kind.five_bits) offset = _mm256_slli_epi32(offset, 1);
            dot = _mm256_sub_epi32(dot, offset);
        }
        __m256 scale = _mm256_mul_ps(d, _mm256_loadu_ps(input(inputs[i])->scale));
        acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc[i]);
        if (kind.has_minimum) acc[i] = _mm256_fmadd_ps(m, _mm256_loadu_ps(input(inputs[i])->sum), acc[i]);
    }
}

INLINE void q4_0_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    nibble_group(w, inputs, n, acc,
                 (struct nibble_kind){sizeof(struct block_q4_0), q4_0_unpack, false, false});
}

INLINE void q4_1_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    nibble_group(w, inputs, n, acc,
                 (struct nibble_kind){sizeof(struct block_q4_1), q4_1_unpack, false, true});
}

INLINE void q5_0_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    nibble_group(w, inputs, n, acc,
                 (struct nibble_kind){sizeof(struct block_q5_0), q5_0_unpack, true, false});
}

INLINE void q5_1_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    nibble_group(w, inputs, n, acc, (struct nibble_kind){sizeof(struct block_q5_1), q5_1_unpack, true, true});
}

/* Signed codes of one block: 8 sums of 4 products. */
INLINE __m256 signed_dot(__m256i codes, __m256i size, const int8_t *q) {
    __m256i x = _mm256_sign_epi8(load_256(q), codes);
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(_mm256_maddubs_epi16(size, x), _mm256_set1_epi16(1)));
}

typedef __m256i block_function(const uint8_t *w);

INLINE __m256i q8_0_unpack(const uint8_t *w) { return load_256(w + 2); }

INLINE __m256i iq4_nl_unpack(const uint8_t *w) {
    __m128i codes = load_128(w + 2), mask = _mm_set1_epi8(15), levels = load_128(iq4_levels);
    __m128i low = _mm_shuffle_epi8(levels, _mm_and_si128(codes, mask));
    __m128i high = _mm_shuffle_epi8(levels, _mm_and_si128(_mm_srli_epi16(codes, 4), mask));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* The scales of the 8 blocks go through memory: a broadcast from there needs no shuffle.  (Left alone, gcc
 * keeps them in a register and takes them out with two shuffles each: 16 instead of 20 GB/s from cache.) */
INLINE void signed_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc,
                         size_t block_bytes, block_function *unpack) {
    __m256 d = _mm256_cvtph_ps(gather_halves(w, block_bytes));
    float scale[TILE_MOST][GROUP_BLOCKS];
    UNROLL for (size_t i = 0; i < n; i++) {
        _mm256_storeu_ps(scale[i], _mm256_mul_ps(d, _mm256_loadu_ps(input(inputs[i])->scale)));
        __asm__("" : "+m"(scale[i]));
    }
    UNROLL for (size_t b = 0; b < GROUP_BLOCKS; b++) {
        __m256i codes = unpack(w + b * block_bytes), size = _mm256_abs_epi8(codes);
        UNROLL for (size_t i = 0; i < n; i++) {
            __m256 *target = &acc[b % 2 * TILE_MOST + i]; /* two chains: one would wait for itself */
            __m256 dot = signed_dot(codes, size, input(inputs[i])->q + b * 32);
            *target = _mm256_fmadd_ps(dot, _mm256_set1_ps(scale[i][input_block_place(b)]), *target);
        }
    }
}

INLINE void q8_0_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    signed_group(w, inputs, n, acc, sizeof(struct block_q8_0), q8_0_unpack);
}

INLINE void iq4_nl_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    signed_group(w, inputs, n, acc, sizeof(struct block_iq4_nl), iq4_nl_unpack);
}

#define KIND(block, tile) \
    ((struct row_kind){sizeof(struct block), GROUP_BLOCKS, sizeof(struct input_q8_32), tile})

static void run_q4_0(const struct matvec_args *args) { rows_run(args, q4_0_group, KIND(block_q4_0, 8)); }
static void run_q4_1(const struct matvec_args *args) { rows_run(args, q4_1_group, KIND(block_q4_1, 8)); }
static void run_q5_0(const struct matvec_args *args) { rows_run(args, q5_0_group, KIND(block_q5_0, 8)); }
static void run_q5_1(const struct matvec_args *args) { rows_run(args, q5_1_group, KIND(block_q5_1, 8)); }
static void run_q8_0(const struct matvec_args *args) { rows_run(args, q8_0_group, KIND(block_q8_0, 4)); }
static void run_iq4_nl(const struct matvec_args *args) {
    rows_run(args, iq4_nl_group, KIND(block_iq4_nl, 4));
}

void matvec_init_q8_32_avx2(struct matvec_kernels *kernels) {
    kernels->run[TENSOR_Q4_0] = run_q4_0;
    kernels->run[TENSOR_Q4_1] = run_q4_1;
    kernels->run[TENSOR_Q5_0] = run_q5_0;
    kernels->run[TENSOR_Q5_1] = run_q5_1;
    kernels->run[TENSOR_Q8_0] = run_q8_0;
    kernels->run[TENSOR_IQ4_NL] = run_iq4_nl;
}

/* matvec for the types with blocks of 32, on AVX2.
 *
 * Mapping: a row is taken in groups of 8 blocks; up to 4 rows that lie far apart take turns by group
 * (row_streams); up to 8 (signed codes: 4) inputs share the unpacked codes of a group, which stay in
 * registers while the inputs take turns: 0.28 and 0.38 cycles per weight of Q4_0 at 6 and 8 inputs, where tiles of
 * 4 inputs with their sums in registers took 0.39 and 0.50.
 *
 * 4- and 5-bit types: the packed bytes of a group are transposed (turn_4), so that each of the 8 blocks has a 32-bit
 * lane, as in the input's `turned`.  The u8·s8 products of all 32 codes are added in 16 bits and widened once per
 * group.  The sums start at −offset · (sum of the input) and may wrap around on their way: only the last value must
 * fit, 16 products of at most 16·127 (32,512 < 2^15), or 15·127 where there is a minimum and no offset.
 *
 * Q8_0, IQ4_NL, MXFP4 and NVFP4 have signed codes: the sign moves to the input, |w| <= 128 as u8, 128·127·2 < 2^15.
 * NVFP4's two sums of 16 are scaled apart; 15 bits times 4 are exact, so the sum of both is rounded once.
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

/* Nibble types: the bytes before the 16 of a block's nibbles, and what they hold. */
struct nibble_kind {
    size_t block_bytes, nibbles_at;
    bool five_bits, has_minimum;
};

/* Of 8 numbers in the order of places, bits 4k .. 4k + 3 of each become 16 in the bytes 0 .. 3 of its lane. */
INLINE __m256i spread_bits(__m256i bits, size_t k) {
    const __m256i select = _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
    const __m256i each = _mm256_set1_epi32(k % 2 ? (int)0x80402010u : 0x08040201);
    __m256i bytes = _mm256_shuffle_epi8(bits, _mm256_add_epi8(select, _mm256_set1_epi8((char)(k / 2))));
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

/* Eight 32-bit numbers, `stride` bytes apart, in the order of places.  Reads 16 bytes from each. */
INLINE __m256i gather_words(const uint8_t *w, size_t stride) {
    __m128i a = _mm_unpacklo_epi32(load_128(w), load_128(w + 2 * stride));
    __m128i b = _mm_unpacklo_epi32(load_128(w + 4 * stride), load_128(w + 6 * stride));
    __m128i c = _mm_unpacklo_epi32(load_128(w + stride), load_128(w + 3 * stride));
    __m128i d = _mm_unpacklo_epi32(load_128(w + 5 * stride), load_128(w + 7 * stride));
    return _mm256_set_m128i(_mm_unpacklo_epi64(c, d), _mm_unpacklo_epi64(a, b));
}

/* The 256 codes of a group as the input's `turned` has them. */
INLINE void nibble_codes(const uint8_t *w, struct nibble_kind kind, __m256i codes[8]) {
    const size_t stride = kind.block_bytes;
    UNROLL for (size_t pair = 0; pair < 4; pair++) {
        codes[pair] = load_pair(w + 2 * pair * stride + kind.nibbles_at, stride);
    }
    turn_4(codes);
    const __m256i mask = _mm256_set1_epi8(15);
    UNROLL for (size_t k = 0; k < 4; k++) {
        codes[4 + k] = _mm256_and_si256(_mm256_srli_epi16(codes[k], 4), mask);
        codes[k] = _mm256_and_si256(codes[k], mask);
    }
    if (!kind.five_bits) return;
    __m256i bits = gather_words(w + kind.nibbles_at - 4, stride);
    UNROLL for (size_t k = 0; k < 8; k++) { codes[k] = _mm256_or_si256(codes[k], spread_bits(bits, k)); }
}

INLINE void nibble_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc, struct nibble_kind kind) {
    const bool has_start = !kind.has_minimum || kind.five_bits;
    __m256i codes[8];
    nibble_codes(w, kind, codes);
    __m256 d, m = _mm256_setzero_ps();
    if (kind.has_minimum)
        gather_half_pairs(w, kind.block_bytes, &d, &m);
    else
        d = _mm256_cvtph_ps(gather_halves(w, kind.block_bytes));
    /* d·(q − 16) + m + 16·d */
    if (kind.has_minimum && kind.five_bits) m = _mm256_fmadd_ps(d, _mm256_set1_ps(16), m);
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_32 *x = inputs[i];
        __m256i sum = has_start ? load_256(x->start) : _mm256_setzero_si256();
        if (kind.five_bits) sum = _mm256_slli_epi16(sum, 1);
        UNROLL for (size_t k = 0; k < 8; k++) {
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes[k], load_256(x->turned + 32 * k)));
        }
        __m256 dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
        acc[i] = _mm256_fmadd_ps(_mm256_mul_ps(dot, d), _mm256_loadu_ps(x->scale), acc[i]);
        if (kind.has_minimum) acc[i] = _mm256_fmadd_ps(m, _mm256_loadu_ps(x->sum), acc[i]);
    }
}

INLINE void q4_0_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    nibble_group(w, inputs, n, acc, (struct nibble_kind){sizeof(struct block_q4_0), 2, false, false});
}

INLINE void q4_1_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    nibble_group(w, inputs, n, acc, (struct nibble_kind){sizeof(struct block_q4_1), 4, false, true});
}

INLINE void q5_0_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    nibble_group(w, inputs, n, acc, (struct nibble_kind){sizeof(struct block_q5_0), 6, true, false});
}

INLINE void q5_1_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    nibble_group(w, inputs, n, acc, (struct nibble_kind){sizeof(struct block_q5_1), 8, true, true});
}

/* 16 bytes of nibbles to 32 levels. */
INLINE __m256i levels_of(__m128i codes, const int8_t *table) {
    const __m128i mask = _mm_set1_epi8(15), levels = load_128(table);
    __m128i low = _mm_shuffle_epi8(levels, _mm_and_si128(codes, mask));
    __m128i high = _mm_shuffle_epi8(levels, _mm_and_si128(_mm_srli_epi16(codes, 4), mask));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* Signed codes of one block: 8 sums of 4 products. */
INLINE __m256i signed_products(__m256i codes, __m256i size, const int8_t *q) {
    __m256i x = _mm256_sign_epi8(load_256(q), codes);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(size, x), _mm256_set1_epi16(1));
}

typedef __m256i block_function(const uint8_t *w);

INLINE __m256i q8_0_unpack(const uint8_t *w) { return load_256(w + 2); }

INLINE __m256i iq4_nl_unpack(const uint8_t *w) { return levels_of(load_128(w + 2), iq4_levels); }
INLINE __m256i mxfp4_unpack(const uint8_t *w) { return levels_of(load_128(w + 1), fp4_levels); }

/* The scales of 8 blocks of MXFP4 in the order of places. */
INLINE __m256 mxfp4_scales(const uint8_t *w) {
    enum { B = sizeof(struct block_mxfp4) };
    const __m256i e = _mm256_setr_epi32(w[0], w[2 * B], w[4 * B], w[6 * B], w[B], w[3 * B], w[5 * B], w[7 * B]);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
}

INLINE void signed_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc, size_t block_bytes,
                         block_function *unpack, __m256 d) {
    __m256i sum[TILE_MAX][GROUP_BLOCKS];
    UNROLL for (size_t b = 0; b < GROUP_BLOCKS; b++) {
        __m256i codes = unpack(w + b * block_bytes), size = _mm256_abs_epi8(codes);
        UNROLL for (size_t i = 0; i < n; i++) {
            sum[i][b] = signed_products(codes, size, input(inputs[i])->q + b * 32);
        }
    }
    UNROLL for (size_t i = 0; i < n; i++) {
        __m256 dot = _mm256_cvtepi32_ps(fold_blocks(sum[i]));
        acc[i] = _mm256_fmadd_ps(_mm256_mul_ps(dot, d), _mm256_loadu_ps(input(inputs[i])->scale), acc[i]);
    }
}

INLINE void q8_0_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    const __m256 d = _mm256_cvtph_ps(gather_halves(w, sizeof(struct block_q8_0)));
    signed_group(w, inputs, n, acc, sizeof(struct block_q8_0), q8_0_unpack, d);
}

INLINE void iq4_nl_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    const __m256 d = _mm256_cvtph_ps(gather_halves(w, sizeof(struct block_iq4_nl)));
    signed_group(w, inputs, n, acc, sizeof(struct block_iq4_nl), iq4_nl_unpack, d);
}

INLINE void mxfp4_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    signed_group(w, inputs, n, acc, sizeof(struct block_mxfp4), mxfp4_unpack, mxfp4_scales(w));
}

/* 32 elements of NVFP4 in their order: the nibbles of 8 bytes are 16 of them. */
INLINE __m256i nvfp4_unpack(const uint8_t *w, size_t b) {
    const __m256i codes = levels_of(load_128(w + b / 2 * sizeof(struct block_nvfp4) + 4 + b % 2 * 16), fp4_levels);
    return _mm256_permute4x64_epi64(codes, 0xd8);
}

/* The scales of the first 16 of each block of 32, or of the second ones, in the order of places. */
INLINE __m256 nvfp4_scales(const uint8_t *w, size_t half) {
    enum { B = sizeof(struct block_nvfp4) };
    const uint8_t *s = w + half;
    const __m256i byte = _mm256_setr_epi32(s[0], s[B], s[2 * B], s[3 * B], s[2], s[B + 2], s[2 * B + 2], s[3 * B + 2]);
    const __m256i exponent = _mm256_and_si256(_mm256_srli_epi32(byte, 3), _mm256_set1_epi32(15));
    const __m256i mantissa = _mm256_and_si256(byte, _mm256_set1_epi32(7));
    const __m256i normal = _mm256_or_si256(
        _mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127 - 8)), 23), _mm256_slli_epi32(mantissa, 20));
    const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(mantissa), _mm256_set1_ps(0x1p-10f));
    const __m256i is_small = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
    const __m256i is_none = _mm256_cmpeq_epi32(byte, _mm256_set1_epi32(0x7f));
    const __m256 scale = _mm256_blendv_ps(_mm256_castsi256_ps(normal), small, _mm256_castsi256_ps(is_small));
    return _mm256_andnot_ps(_mm256_castsi256_ps(is_none), scale);
}

INLINE void nvfp4_group(const uint8_t *w, const void *const *inputs, size_t n, __m256 *acc) {
    const __m256 first = nvfp4_scales(w, 0), second = nvfp4_scales(w, 1);
    __m256i sum[TILE_MAX][GROUP_BLOCKS];
    UNROLL for (size_t b = 0; b < GROUP_BLOCKS; b++) {
        __m256i codes = nvfp4_unpack(w, b), size = _mm256_abs_epi8(codes);
        UNROLL for (size_t i = 0; i < n; i++) {
            sum[i][b] = signed_products(codes, size, input(inputs[i])->q + b * 32);
        }
    }
    UNROLL for (size_t i = 0; i < n; i++) {
        const __m256i *s = sum[i];
        const __m256i even = fold_4(s[0], s[2], s[4], s[6]), odd = fold_4(s[1], s[3], s[5], s[7]);
        const __m256 a = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(even, odd, 0x20));
        const __m256 b = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(even, odd, 0x31));
        const __m256 dot = _mm256_fmadd_ps(b, second, _mm256_mul_ps(a, first));
        acc[i] = _mm256_fmadd_ps(dot, _mm256_loadu_ps(input(inputs[i])->scale), acc[i]);
    }
}

#define KIND(block, tile) \
    ((struct row_kind){sizeof(struct block), GROUP_BLOCKS, sizeof(struct input_q8_32), tile, (tile) == TILE_MAX})

static void run_q4_0(const struct matvec_args *args) { rows_run(args, q4_0_group, KIND(block_q4_0, 8)); }
static void run_q4_1(const struct matvec_args *args) { rows_run(args, q4_1_group, KIND(block_q4_1, 8)); }
static void run_q5_0(const struct matvec_args *args) { rows_run(args, q5_0_group, KIND(block_q5_0, 8)); }
static void run_q5_1(const struct matvec_args *args) { rows_run(args, q5_1_group, KIND(block_q5_1, 8)); }
static void run_q8_0(const struct matvec_args *args) { rows_run(args, q8_0_group, KIND(block_q8_0, 4)); }
static void run_iq4_nl(const struct matvec_args *args) { rows_run(args, iq4_nl_group, KIND(block_iq4_nl, 4)); }
static void run_mxfp4(const struct matvec_args *args) { rows_run(args, mxfp4_group, KIND(block_mxfp4, 4)); }
static void run_nvfp4(const struct matvec_args *args) {
    rows_run(args, nvfp4_group, (struct row_kind){sizeof(struct block_nvfp4), 4, sizeof(struct input_q8_32), 4, false});
}

void matvec_q8_32_avx2_install(struct matvec_kernels *kernels) {
    kernels->run[TENSOR_Q4_0] = run_q4_0;
    kernels->run[TENSOR_Q4_1] = run_q4_1;
    kernels->run[TENSOR_Q5_0] = run_q5_0;
    kernels->run[TENSOR_Q5_1] = run_q5_1;
    kernels->run[TENSOR_Q8_0] = run_q8_0;
    kernels->run[TENSOR_IQ4_NL] = run_iq4_nl;
    kernels->run[TENSOR_MXFP4] = run_mxfp4;
    kernels->run[TENSOR_NVFP4] = run_nvfp4;
}

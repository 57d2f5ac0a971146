/* matvec for quantised weights on AVX-512 with VNNI: Q8_0, Q4_K, Q5_K and Q6_K (Q4_0: matvec_q4_0_avx512.c); other
 * types stay on AVX2.
 *
 * Mapping: as on AVX2 (matvec_q8_32_avx2.c, matvec_q8_256_avx2.c), with 64 codes in a register: u8·s8 products
 * of 4 are added to 32 bits by one VPDPBUSD, without saturation.  Codes of Q8_0 become unsigned by an offset
 * of 128, which is taken back with the prepared sums, in integers.  The sums of 8 blocks are folded to a lane each,
 * then scaled as floats; Q6_K's groups of 16 are multiplied by their scales on the way.
 *
 * Bound: memory, the row once.  About 0.21 instructions per byte of Q6_K and Q8_0.  Q6_K in L2, AMD EPYC (Zen 5),
 * 2026-11-22: 60 GB/s and core. */
#define ROWS_512
#include <string.h>

#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_avx512.h"

enum { GROUP_BLOCKS = 8 };

INLINE const struct input_q8_32 *input_32(const void *x) { return x; }
INLINE const struct input_q8_256 *input_256(const void *x) { return x; }

/* Eight 16-bit numbers, `stride` bytes apart, in the order of input_block_place.  Reads 16 bytes from each. */
INLINE __m128i gather_halves(const uint8_t *w, size_t stride) {
    __m128i a = _mm_unpacklo_epi16(load_128(w), load_128(w + 2 * stride));
    __m128i b = _mm_unpacklo_epi16(load_128(w + 4 * stride), load_128(w + 6 * stride));
    __m128i c = _mm_unpacklo_epi16(load_128(w + stride), load_128(w + 3 * stride));
    __m128i d = _mm_unpacklo_epi16(load_128(w + 5 * stride), load_128(w + 7 * stride));
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
}

/* In each 128 bits the sums of the four registers' 128 bits: lane p is that of sum[p]. */
INLINE __m512i fold_four(const __m512i sum[4]) {
    __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(sum[0], sum[1]), _mm512_unpackhi_epi32(sum[0], sum[1]));
    __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(sum[2], sum[3]), _mm512_unpackhi_epi32(sum[2], sum[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* The sums of 8 blocks in the order of input_block_place; sum[p]: of blocks 2p and 2p + 1 in its halves. */
INLINE __m256i fold_pairs(const __m512i sum[4]) {
    __m512i folded = fold_four(sum); /* 128-bit parts: two of the even blocks, two of the odd */
    __m256i even = low_256(folded), odd = high_256(folded);
    return _mm256_add_epi32(_mm256_permute2x128_si256(even, odd, 0x20),
                            _mm256_permute2x128_si256(even, odd, 0x31));
}

/* acc + d · scale of x · dot for the 8 blocks of a group. */
INLINE __m256 add_blocks(__m256 acc, __m256i dot, __m256 d, const float *scale) {
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dot), d), _mm256_loadu_ps(scale), acc);
}

/* A pair of blocks is [A | B] in the order of the file. */
INLINE void q8_0_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc) {
    const size_t stride = sizeof(struct block_q8_0);
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    __m512i sum[TILE_MAX][4];
    UNROLL for (size_t pair = 0; pair < 4; pair++) {
        const uint8_t *a = w + 2 * pair * stride + 2;
        __m512i codes = _mm512_xor_si512(join_256(load_256(a), load_256(a + stride)), flip); /* q + 128 */
        UNROLL for (size_t i = 0; i < n; i++) {
            __m512i values = load_512(input_32(x[i])->q + pair * 64);
            sum[i][pair] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, values);
        }
    }
    __m256 d = _mm256_cvtph_ps(gather_halves(w, stride));
    UNROLL for (size_t i = 0; i < n; i++) {
        __m256i offset = _mm256_slli_epi32(load_256(input_32(x[i])->sum8), 4);
        __m256i dot = _mm256_sub_epi32(fold_pairs(sum[i]), offset);
        acc[i] = add_blocks(acc[i], dot, d, input_32(x[i])->scale);
    }
}

INLINE float half_at(const void *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return _cvtsh_ss(half);
}

/* Bytes 0..7 the scales of Q4_K and Q5_K, 8..15 the minima: as q4_k_scale_get, in the order of input_block_place. */
INLINE __m128i q4_k_scales(const uint8_t *packed) {
    uint64_t a;
    uint32_t b;
    memcpy(&a, packed, 8), memcpy(&b, packed + 8, 4);
    /* Bytes 0..3 the scales, 4..7 the minima, of groups 0..3 and of groups 4..7. */
    uint64_t first = a & 0x3f3f3f3f3f3f3f3f;
    uint64_t second =
        (((uint64_t)b | (uint64_t)b << 28) & 0x0f0f0f0f0f0f0f0f) | (a >> 2 & 0x3030303030303030);
    const __m128i at = _mm_setr_epi8(0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15);
    return _mm_shuffle_epi8(_mm_set_epi64x((long long)second, (long long)first), at);
}

/* 64 codes: group 2·pair in the low half, the next in the high. */
typedef __m512i codes_function(const uint8_t *w, size_t pair);

INLINE __m512i q4_k_codes(const uint8_t *w, size_t pair) {
    __m256i packed = load_256(w + 16 + 32 * pair);
    return _mm512_and_si512(join_256(packed, _mm256_srli_epi16(packed, 4)), _mm512_set1_epi8(15));
}

INLINE __m512i words_by_half(short low, short high) {
    return join_256(_mm256_set1_epi16(low), _mm256_set1_epi16(high));
}

INLINE __m512i q5_k_codes(const uint8_t *w, size_t pair) {
    __m256i packed = load_256(w + 48 + 32 * pair), bits = load_256(w + 16);
    __m512i low = _mm512_and_si512(join_256(packed, _mm256_srli_epi16(packed, 4)), _mm512_set1_epi8(15));
    __m512i fifth = join_256(bits, bits); /* bits 2·pair and 2·pair + 1 to bit 4 */
    switch (pair) {
    case 0: fifth = _mm512_sllv_epi16(fifth, words_by_half(4, 3)); break;
    case 1: fifth = _mm512_sllv_epi16(fifth, words_by_half(2, 1)); break;
    case 2: fifth = _mm512_srlv_epi16(fifth, words_by_half(0, 1)); break;
    default: fifth = _mm512_srlv_epi16(fifth, words_by_half(2, 3)); break;
    }
    return _mm512_or_si512(low, _mm512_and_si512(fifth, _mm512_set1_epi8(16)));
}

/* offset: codes are taken less 16, which moves to the minima (matmul's 16-bit sums on AVX2 need it). */
INLINE void q45_k_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc, codes_function *codes,
                        bool has_offset) {
    __m512i sum[TILE_MAX][4];
    UNROLL for (size_t pair = 0; pair < 4; pair++) {
        __m512i code = codes(w, pair);
        UNROLL for (size_t i = 0; i < n; i++) {
            __m512i values = load_512(input_256(x[i])->q + 64 * pair);
            sum[i][pair] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), code, values);
        }
    }
    __m128i bytes = q4_k_scales(w + 4);
    __m256 scale = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_set1_ps(half_at(w)));
    __m256 minimum = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes)));
    __m256 raised = has_offset ? _mm256_mul_ps(scale, _mm256_set1_ps(16)) : _mm256_setzero_ps();
    minimum = _mm256_fnmadd_ps(minimum, _mm256_set1_ps(half_at(w + 2)), raised);
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_256 *in = input_256(x[i]);
        __m256i dot = fold_pairs(sum[i]);
        if (has_offset) dot = _mm256_sub_epi32(dot, load_256(in->sum16));
        acc[i] = add_blocks(acc[i], dot, scale, in->scale);
        acc[i] = _mm256_fmadd_ps(minimum, _mm256_loadu_ps(in->sum), acc[i]);
    }
}

INLINE void q4_k_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc) {
    q45_k_group(w, x, n, acc, q4_k_codes, false);
}

INLINE void q5_k_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc) {
    q45_k_group(w, x, n, acc, q5_k_codes, true);
}

/* 64 codes each: groups of 16 in the order of the file. */
INLINE void q6_k_codes(const uint8_t *w, size_t half, __m512i *first, __m512i *second) {
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(0x30);
    __m512i packed = load_512(w + 64 * half);
    __m256i bits = load_256(w + 128 + 32 * half);
    __m512i both = join_256(bits, bits);
    __m512i upper = _mm512_sllv_epi16(both, words_by_half(4, 2)),
            lower = _mm512_srlv_epi16(both, words_by_half(0, 2));
    *first = _mm512_or_si512(_mm512_and_si512(packed, low), _mm512_and_si512(upper, high));
    *second =
        _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(packed, 4), low), _mm512_and_si512(lower, high));
}

INLINE void q6_k_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc) {
    __m512i sum[TILE_MAX][4];
    UNROLL for (size_t half = 0; half < 2; half++) {
        __m512i first, second;
        q6_k_codes(w, half, &first, &second);
        UNROLL for (size_t i = 0; i < n; i++) {
            const int8_t *q = input_256(x[i])->q + 128 * half;
            sum[i][2 * half] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), first, load_512(q));
            sum[i][2 * half + 1] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), second, load_512(q + 64));
        }
    }
    /* As fold_four has the groups: group 4p + k in lane p of the k-th 128 bits; and in pairs by place. */
    const __m128i folded_at = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m128i pairs_at = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m128i bytes = load_128(w + 192);
    const __m512i scales = _mm512_cvtepi8_epi32(_mm_shuffle_epi8(bytes, folded_at));
    const __m256i pairs = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, pairs_at));
    const __m256 d = _mm256_set1_ps(half_at(w + 208));
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_256 *in = input_256(x[i]);
        __m512i scaled = _mm512_mullo_epi32(fold_four(sum[i]), scales);
        __m256i even = low_256(scaled), odd = high_256(scaled);
        __m256i dot = _mm256_add_epi32(_mm256_permute2x128_si256(even, odd, 0x20),
                                       _mm256_permute2x128_si256(even, odd, 0x31));
        __m256i offset = _mm256_slli_epi32(_mm256_madd_epi16(pairs, load_256(in->sums)), 5);
        acc[i] = add_blocks(acc[i], _mm256_sub_epi32(dot, offset), d, in->scale);
    }
}

#define KIND_32(block) \
    ((struct row_kind){sizeof(struct block), GROUP_BLOCKS, sizeof(struct input_q8_32), 4, false})
#define KIND_256(block) ((struct row_kind){sizeof(struct block), 1, sizeof(struct input_q8_256), 4, false})

static void run_q8_0(const struct matvec_args *args) { rows_run(args, q8_0_group, KIND_32(block_q8_0)); }
static void run_q4_k(const struct matvec_args *args) { rows_run(args, q4_k_group, KIND_256(block_q4_k)); }
static void run_q5_k(const struct matvec_args *args) { rows_run(args, q5_k_group, KIND_256(block_q5_k)); }
static void run_q6_k(const struct matvec_args *args) { rows_run(args, q6_k_group, KIND_256(block_q6_k)); }

void matvec_init_q8_avx512(struct matvec_kernels *kernels) {
    kernels->run[TENSOR_Q8_0] = run_q8_0;
    kernels->run[TENSOR_Q4_K] = run_q4_k;
    kernels->run[TENSOR_Q5_K] = run_q5_k;
    kernels->run[TENSOR_Q6_K] = run_q6_k;
}

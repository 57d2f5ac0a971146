/* matvec for Q4_K and Q5_K on AVX-512 with VNNI.
 *
 * Mapping: by groups of 256.  The first halves of four blocks of nibbles are brought together in one register and the
 * second ones in another, so that two VPDPBUSD leave four sums of an even block in each 128 bits, and two of the high
 * nibbles those of an odd one; they are folded to pairs of lanes that are the sum of a block, and scaled as floats.
 * The input has its values, sums and scales in this order: made once, when it is prepared.
 *
 * Bound: memory, the row once.  Q4_K in L2, AMD EPYC (Zen 5), 2026-11-23: 43 GB/s and core. */
#define ROWS_512
#include <string.h>

#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_inline.h"
#include "kernels/vector.h"

typedef __m512 row_vector;
INLINE row_vector row_zero(void) { return _mm512_setzero_ps(); }
/* 128 bits j of an accumulator are the sums of blocks 2j, 2j, 2j + 1 and 2j + 1. */
INLINE void row_sums_add(const row_vector four[4], float *totals) {
    __m512 ab = _mm512_shuffle_ps(four[0], four[1], 0x88), cd = _mm512_shuffle_ps(four[2], four[3], 0x88);
    __m256 ab_half = _mm256_add_ps(_mm512_castps512_ps256(ab), _mm512_extractf32x8_ps(ab, 1));
    __m256 cd_half = _mm256_add_ps(_mm512_castps512_ps256(cd), _mm512_extractf32x8_ps(cd, 1));
    __m256 half = _mm256_permute2f128_ps(ab_half, cd_half, 0x20);
    half = _mm256_add_ps(half, _mm256_permute2f128_ps(ab_half, cd_half, 0x31));
    __m128 a = _mm256_castps256_ps128(half), c = _mm256_extractf128_ps(half, 1);
    __m128 sum = _mm_add_ps(_mm_shuffle_ps(a, c, 0x88), _mm_shuffle_ps(a, c, 0xdd));
    _mm_storeu_ps(totals, _mm_add_ps(_mm_loadu_ps(totals), sum));
}

#include "kernels/matvec/rows_loop.h"

INLINE __m512i load_512(const void *p) { return _mm512_loadu_si512(p); }

INLINE __m512 set_half(const void *p) {
    short half;
    memcpy(&half, p, sizeof half);
    return _mm512_cvtph_ps(_mm256_set1_epi16(half));
}

/* Bytes 0..3 and 8..11 the scales of Q4_K and Q5_K, the others the minima: as q4_k_scale_get. */
INLINE __m128i q4_k_scales(const uint8_t *packed) {
    uint64_t a;
    uint32_t b;
    memcpy(&a, packed, 8), memcpy(&b, packed + 8, 4);
    /* Bytes 0..3 the scales, 4..7 the minima, of groups 0..3 and of groups 4..7. */
    uint64_t first = a & 0x3f3f3f3f3f3f3f3f;
    uint64_t second = (((uint64_t)b | (uint64_t)b << 28) & 0x0f0f0f0f0f0f0f0f) | (a >> 2 & 0x3030303030303030);
    return _mm_set_epi64x((long long)second, (long long)first);
}

/* The codes of 64 bytes each: the first (0) and the second halves of the even and of the odd blocks. */
struct halves {
    __m512i even[2], odd[2];
};

INLINE struct halves nibbles(const uint8_t *w) {
    const __m512i mask = _mm512_set1_epi8(15), a = load_512(w), b = load_512(w + 64);
    const __m512i half[2] = {_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd)};
    struct halves codes;
    UNROLL for (size_t i = 0; i < 2; i++) {
        codes.even[i] = _mm512_and_si512(half[i], mask);
        codes.odd[i] = _mm512_and_si512(_mm512_srli_epi16(half[i], 4), mask);
    }
    return codes;
}

/* Bytes of 128 bits j: the bit of block 2j. */
INLINE __m512i even_bits(void) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(_mm_set1_epi8(4), _mm_set1_epi8(1))),
                              _mm256_set_m128i(_mm_set1_epi8(64), _mm_set1_epi8(16)), 1);
}

INLINE __m512i with_bit(__m512i codes, __m512i bits, __m512i bit) {
    return _mm512_mask_add_epi8(codes, _mm512_test_epi8_mask(bits, bit), codes, _mm512_set1_epi8(16));
}

INLINE struct halves codes_q5_k(const uint8_t *w) {
    struct halves codes = nibbles(w + 48);
    const __m512i even = even_bits(), odd = _mm512_add_epi8(even, even);
    UNROLL for (size_t i = 0; i < 2; i++) {
        const __m512i bits = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(w + 16 + 16 * i)));
        codes.even[i] = with_bit(codes.even[i], bits, even);
        codes.odd[i] = with_bit(codes.odd[i], bits, odd);
    }
    return codes;
}

/* codes · x: in each 128 bits a block. */
INLINE __m512i products(__m512i start, const __m512i codes[2], const int8_t halves[2][INPUT_GROUP / 4]) {
    const __m512i first = _mm512_dpbusd_epi32(start, codes[0], load_512(halves[0]));
    return _mm512_dpbusd_epi32(first, codes[1], load_512(halves[1]));
}

/* offset: codes are taken less 16, which moves to the minima (matmul's 16-bit sums on AVX2 need it). */
INLINE void q45_k_group(const uint8_t *w, const void *const *x, size_t n, __m512 *acc, struct halves codes,
                        bool has_offset) {
    const __m128i at = _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 8, 8, 9, 9, 10, 10, 11, 11);
    const __m128i bytes = q4_k_scales(w + 4);
    const __m512i small = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(bytes, at));
    const __m512i minima = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(bytes, _mm_add_epi8(at, _mm_set1_epi8(4))));
    const __m512 scale = _mm512_mul_ps(_mm512_cvtepi32_ps(small), set_half(w));
    const __m512 raised = has_offset ? _mm512_mul_ps(scale, _mm512_set1_ps(16)) : _mm512_setzero_ps();
    const __m512 minimum = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(minima), set_half(w + 2), raised);
    const __m512i zero = _mm512_setzero_si512();
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_256 *in = x[i];
        const __m512 even =
            _mm512_castsi512_ps(products(has_offset ? load_512(in->starts[0]) : zero, codes.even, in->halves[0]));
        const __m512 odd =
            _mm512_castsi512_ps(products(has_offset ? load_512(in->starts[1]) : zero, codes.odd, in->halves[1]));
        __m512i sum = _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(even, odd, 0x88)),
                                       _mm512_castps_si512(_mm512_shuffle_ps(even, odd, 0xdd)));
        const __m512 pairs = _mm512_castsi512_ps(sum); /* to each block's sum twice */
        sum = _mm512_add_epi32(sum, _mm512_castps_si512(_mm512_shuffle_ps(pairs, pairs, 0xb1)));
        acc[i] =
            _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale), _mm512_loadu_ps(in->lane_scale), acc[i]);
        acc[i] = _mm512_fmadd_ps(minimum, _mm512_loadu_ps(in->lane_sum), acc[i]);
    }
}

INLINE void q4_k_group(const uint8_t *w, const void *const *x, size_t n, __m512 *acc) {
    q45_k_group(w, x, n, acc, nibbles(w + 16), false);
}

INLINE void q5_k_group(const uint8_t *w, const void *const *x, size_t n, __m512 *acc) {
    q45_k_group(w, x, n, acc, codes_q5_k(w), true);
}

#define KIND(block) ((struct row_kind){sizeof(struct block), 1, sizeof(struct input_q8_256), 4, true})

static void run_q4_k(const struct matvec_args *args) { rows_run(args, q4_k_group, KIND(block_q4_k)); }
static void run_q5_k(const struct matvec_args *args) { rows_run(args, q5_k_group, KIND(block_q5_k)); }

void matvec_q45_k_avx512_install(struct matvec_kernels *kernels) {
    kernels->run[TENSOR_Q4_K] = run_q4_k;
    kernels->run[TENSOR_Q5_K] = run_q5_k;
}

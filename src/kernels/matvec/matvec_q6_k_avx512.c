/* matvec for Q6_K on AVX-512 with VNNI.
 *
 * Mapping: as on AVX2 (matvec_q8_256_avx2.c), with 64 codes in a register: u8·s8 products of 4 are added to 32 bits by
 * one VPDPBUSD.  A group of 16 is then four sums that fit in 16 bits with the code's offset taken back (32·127·4 at
 * most), so that one multiplication of 16 bits applies the small scales of 8 groups and adds pairs.
 *
 * Bound: memory, the row once.  In L2, AMD EPYC (Zen 5), 2026-11-23: 65 GB/s and core. */
#define ROWS_512
#include <string.h>

#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_avx512.h"

/* Inputs of up to so many bring what their sums start at; of more, these would push each other out of L1. */
enum { STARTS_FIT = 2 };

INLINE __m256 set_half(const void *p) {
    short half;
    memcpy(&half, p, sizeof half);
    return _mm256_cvtph_ps(_mm_set1_epi16(half));
}

INLINE __m512i words_by_half(short low, short high) {
    return join_256(_mm256_set1_epi16(low), _mm256_set1_epi16(high));
}

/* 64 codes each: groups of 16 in the order of the file. */
INLINE void q6_k_codes(const uint8_t *w, size_t half, __m512i *first, __m512i *second) {
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(0x30);
    __m512i packed = load_512(w + 64 * half);
    __m512i both = _mm512_broadcast_i64x4(load_256(w + 128 + 32 * half));
    __m512i upper = _mm512_sllv_epi16(both, words_by_half(4, 2)), lower = _mm512_srlv_epi16(both, words_by_half(0, 2));
    *first = _mm512_or_si512(_mm512_and_si512(packed, low), _mm512_and_si512(upper, high));
    *second = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(packed, 4), low), _mm512_and_si512(lower, high));
}

/* Words: groups k and 4 + k in the halves of each 128 bits k, four times each; the same from group 8 on. */
#define GROUPS(g) g, g, g, g, g + 4, g + 4, g + 4, g + 4
#define GROUPS_FROM(g) \
    { GROUPS(g), GROUPS(g + 1), GROUPS(g + 2), GROUPS(g + 3) }
static const _Alignas(64) uint16_t groups_at[2][32] = {GROUPS_FROM(0), GROUPS_FROM(8)};

/* The sums of 8 blocks, in the order of input_block_place, of products in groups of 16: registers in the order of the
 * file. */
INLINE __m256i fold_groups(const __m512i sum[4], const __m512i scale[2]) {
    __m512 scaled[2];
    UNROLL for (size_t j = 0; j < 2; j++) {
        const __m512i words = _mm512_packs_epi32(sum[2 * j], sum[2 * j + 1]);
        scaled[j] = _mm512_castsi512_ps(_mm512_madd_epi16(words, scale[j]));
    }
    /* 128 bits k: groups k, 4 + k, 8 + k, 12 + k.  The first two are of the even blocks. */
    __m512i folded = _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(scaled[0], scaled[1], 0x88)),
                                      _mm512_castps_si512(_mm512_shuffle_ps(scaled[0], scaled[1], 0xdd)));
    return _mm256_add_epi32(low_256(_mm512_shuffle_i32x4(folded, folded, 0x88)),
                            low_256(_mm512_shuffle_i32x4(folded, folded, 0xdd)));
}

INLINE void q6_k_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc) {
    __m512i sum[TILE_MAX][4];
    UNROLL for (size_t half = 0; half < 2; half++) {
        __m512i first, second;
        q6_k_codes(w, half, &first, &second);
        UNROLL for (size_t i = 0; i < n; i++) {
            const struct input_q8_256 *in = x[i];
            UNROLL for (size_t j = 2 * half; j < 2 * half + 2; j++) {
                const __m512i start = n <= STARTS_FIT ? load_512(in->start_4 + 16 * j) : _mm512_setzero_si512();
                sum[i][j] = _mm512_dpbusd_epi32(start, j % 2 ? second : first, load_512(in->q + 64 * j));
            }
        }
    }
    const __m512i words = _mm512_castsi256_si512(_mm256_cvtepi8_epi16(load_128(w + 192)));
    const __m512i scale[2] = {_mm512_permutexvar_epi16(load_512(groups_at[0]), words),
                              _mm512_permutexvar_epi16(load_512(groups_at[1]), words)};
    const __m128i pairs_at = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i pairs = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(load_128(w + 192), pairs_at));
    const __m256 d = set_half(w + 208);
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_256 *in = x[i];
        __m256i dot = fold_groups(sum[i], scale);
        if (n > STARTS_FIT)
            dot = _mm256_sub_epi32(dot, _mm256_slli_epi32(_mm256_madd_epi16(pairs, load_256(in->sums)), 5));
        acc[i] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dot), d), _mm256_loadu_ps(in->scale), acc[i]);
    }
}

static void run_q6_k(const struct matvec_args *args) {
    const struct row_kind kind = {sizeof(struct block_q6_k), 1, sizeof(struct input_q8_256), 4, true};
    rows_run(args, q6_k_group, kind);
}

void matvec_q6_k_avx512_install(struct matvec_kernels *kernels) { kernels->run[TENSOR_Q6_K] = run_q6_k; }

/* matvec for Q4_0 on AVX-512 with VNNI.
 *
 * Mapping: by groups of 8 blocks, but these are not turned into lanes as on AVX2: a permutation of words takes the
 * nibbles of four blocks, 16 bytes each, out of what lies around them; one VPDPBUSD of their low nibbles and one of
 * their high ones leave four sums in each 128 bits, which start at -8 · (sum of the input).  Two such registers are
 * added to one of pairs of lanes that are the sum of a block, and scaled as floats. The
 * input has its halves of blocks, starts and scales in the order of the lanes: made once, when it is prepared.
 *
 * Bound: memory, the row once.  0.2 instructions per byte, where turned blocks took 0.35.  Reached, AMD EPYC (Zen
 * 5), 2026-11-22, 8192 x 2048: 65.7 GB/s in L2 (37.7 turned), from memory 0.92 of plain reads with one thread
 * (0.78), 0.92 to 0.98 with two (bench/lab/avx512-zen5.md). */
#define ROWS_512
#include <string.h>

#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_inline.h"
#include "kernels/vector.h"

enum { GROUP_BLOCKS = 8, BLOCK_WORDS = 9, REGISTER_WORDS = 32, LAST_FROM = 40 };

typedef __m512 row_vector;
INLINE row_vector row_zero(void) { return _mm512_setzero_ps(); }
/* 128 bits j of an accumulator are the sums of blocks j, j, 4 + j and 4 + j. */
INLINE void row_sums_add(const row_vector four[4], float *totals) {
    __m512 ab = _mm512_shuffle_ps(four[0], four[1], 0x88), cd = _mm512_shuffle_ps(four[2], four[3], 0x88);
    __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xdd));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    _mm_storeu_ps(totals, _mm_add_ps(_mm_loadu_ps(totals), sum));
}

#include "kernels/matvec/rows_loop.h"

/* A group's 72 words are loaded from words 0, 32 and 40 on; the indices are into two of these, those of the second from
 * REGISTER_WORDS on. */
#define NIBBLES(word) word, word + 1, word + 2, word + 3, word + 4, word + 5, word + 6, word + 7
#define SCALES(block) BLOCK_WORDS *block, BLOCK_WORDS *block, BLOCK_WORDS *block + 36, BLOCK_WORDS *block + 36
/* 0 and 32: the nibbles of blocks 0 .. 3. */
static const _Alignas(64) uint16_t words_first[] = {NIBBLES(1), NIBBLES(10), NIBBLES(19), NIBBLES(28)};
/* 40 and 32: those of blocks 4 .. 7. */
static const _Alignas(64) uint16_t words_last[] = {NIBBLES(37), NIBBLES(6), NIBBLES(15), NIBBLES(24)};
/* 0 and 32: the scales of blocks j, j, 4 + j, 4 + j for each j, as the lanes of the sums lie. */
static const _Alignas(64) uint16_t words_scales[REGISTER_WORDS] = {SCALES(0), SCALES(1), SCALES(2),
                                                                   SCALES(3)};
INLINE __m512i words_from(const uint8_t *w, size_t word) { return _mm512_loadu_si512(w + 2 * word); }

/* codes · x of four blocks, from block 4 · half on: 64 bytes of nibbles, the low ones before the high ones. */
INLINE __m512i products(__m512i nibbles, const struct input_q8_32 *x, size_t half) {
    const __m512i mask = _mm512_set1_epi8(15), start = _mm512_loadu_si512(x->starts[half]);
    __m512i sum =
        _mm512_dpbusd_epi32(start, _mm512_and_si512(nibbles, mask), _mm512_loadu_si512(x->halves[half][0]));
    __m512i high = _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), mask);
    return _mm512_dpbusd_epi32(sum, high, _mm512_loadu_si512(x->halves[half][1]));
}

INLINE void q4_0_group(const uint8_t *w, const void *const *x, size_t n, __m512 *acc) {
    const __m512i begin = words_from(w, 0), middle = words_from(w, REGISTER_WORDS);
    const __m512i first = _mm512_permutex2var_epi16(begin, _mm512_load_si512(words_first), middle);
    const __m512i last =
        _mm512_permutex2var_epi16(words_from(w, LAST_FROM), _mm512_load_si512(words_last), middle);
    const __m512i halves = _mm512_permutex2var_epi16(begin, _mm512_load_si512(words_scales), middle);
    const __m512 scale = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_32 *in = x[i];
        __m512 a = _mm512_castsi512_ps(products(first, in, 0));
        __m512 b = _mm512_castsi512_ps(products(last, in, 1));
        __m512i sum = _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                                       _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
        const __m512 pairs = _mm512_castsi512_ps(sum); /* to each block's sum twice */
        sum = _mm512_add_epi32(sum, _mm512_castps_si512(_mm512_shuffle_ps(pairs, pairs, 0xb1)));
        acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale), _mm512_loadu_ps(in->scales),
                                 acc[i]);
    }
}

static void run_q4_0(const struct matvec_args *args) {
    const struct row_kind kind = {sizeof(struct block_q4_0), GROUP_BLOCKS, sizeof(struct input_q8_32), 4,
                                  true};
    rows_run(args, q4_0_group, kind);
}

void matvec_init_q4_0_avx512(struct matvec_kernels *kernels) { kernels->run[TENSOR_Q4_0] = run_q4_0; }

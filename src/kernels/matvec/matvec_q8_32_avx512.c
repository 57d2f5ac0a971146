/* matvec for Q4_0, Q4_1 and Q8_0 on AVX-512 with VNNI.
 *
 * Mapping: by groups of 8 blocks, but these are not turned into lanes as on AVX2: a permutation of words takes the
 * codes of four blocks, 16 bytes each, out of what lies around them; one VPDPBUSD of their first halves and one of
 * their second ones (low and high nibbles) leave four sums in each 128 bits, which start where the code's offset puts
 * them.  Two such registers are added to one of pairs of lanes that are the sum of a block, and scaled as floats. The
 * input has its halves of blocks, starts and scales in the order of the lanes: made once, when it is prepared.
 *
 * Bound: memory, the row once.  0.2 instructions per byte, where turned blocks took 0.35.  Reached, AMD EPYC (Zen
 * 5), 2026-11-22, 8192 x 2048: 65.7 GB/s in L2 (37.7 turned), from memory 0.92 of plain reads with one thread
 * (0.78), 0.92 to 0.98 with two (bench/lab/avx512-zen5.md).  In L2, 2026-11-23: Q4_1 61 GB/s (33 turned), Q8_0 78. */
#define ROWS_512
#include <string.h>

#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_inline.h"
#include "kernels/vector.h"

enum { GROUP_BLOCKS = 8 };

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

/* Indices of words into two registers, those of the second from 32 on: 16 bytes of each of four blocks, and a number of
 * each of 8 blocks twice, as the lanes of the sums lie. */
#define EIGHT(word) word, word + 1, word + 2, word + 3, word + 4, word + 5, word + 6, word + 7
#define FOUR_EIGHTS(a, apart) \
    { EIGHT(a), EIGHT(a + apart), EIGHT(a + 2 * apart), EIGHT(a + 3 * apart) }
#define TWICE(a, b) a, a, b, b
#define TWICE_EACH(a, b, apart)                                                        \
    {                                                                                  \
        TWICE(a, b), TWICE(a + apart, b + apart), TWICE(a + 2 * apart, b + 2 * apart), \
            TWICE(a + 3 * apart, b + 3 * apart)                                        \
    }
#define WORD_LIST static const _Alignas(64) uint16_t

INLINE __m512i words_from(const uint8_t *w, size_t word) { return _mm512_loadu_si512(w + 2 * word); }
INLINE __m512i words_at(const uint16_t *list, __m512i a, __m512i b) {
    return _mm512_permutex2var_epi16(a, _mm512_load_si512(list), b);
}
/* Of a list of 16. */
INLINE __m256i half_at(const uint16_t *list, __m512i a, __m512i b) {
    const __m512i indices = _mm512_castsi256_si512(_mm256_load_si256((const __m256i *)(const void *)list));
    return _mm512_castsi512_si256(_mm512_permutex2var_epi16(a, indices, b));
}
INLINE __m512 halves_at(const uint16_t *list, __m512i a, __m512i b) { return _mm512_cvtph_ps(half_at(list, a, b)); }

/* The codes of four blocks each, the first halves (0) and the second ones. */
struct codes {
    __m512i half[2];
};

INLINE struct codes nibbles(__m512i bytes) {
    const __m512i mask = _mm512_set1_epi8(15);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
    return (struct codes){{_mm512_and_si512(bytes, mask), high}};
}

/* codes · x of four blocks, from block 4 · j on. */
INLINE __m512i products(__m512i start, struct codes codes, const struct input_q8_32 *x, size_t j) {
    __m512i sum = _mm512_dpbusd_epi32(start, codes.half[0], _mm512_loadu_si512(x->halves[j][0]));
    return _mm512_dpbusd_epi32(sum, codes.half[1], _mm512_loadu_si512(x->halves[j][1]));
}

/* The sum of each block twice. */
INLINE __m512 fold(__m512i first, __m512i last) {
    const __m512 a = _mm512_castsi512_ps(first), b = _mm512_castsi512_ps(last);
    __m512i sum = _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                                   _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
    const __m512 pairs = _mm512_castsi512_ps(sum);
    sum = _mm512_add_epi32(sum, _mm512_castps_si512(_mm512_shuffle_ps(pairs, pairs, 0xb1)));
    return _mm512_cvtepi32_ps(sum);
}

/* Blocks of 9 words. */
INLINE void q4_0_group(const uint8_t *w, const void *const *x, size_t n, __m512 *acc) {
    WORD_LIST first_at[] = FOUR_EIGHTS(1, 9);                          /* in words 0 and 32 */
    WORD_LIST last_at[] = {EIGHT(37), EIGHT(6), EIGHT(15), EIGHT(24)}; /* in 40 and 32 */
    WORD_LIST scales_at[] = TWICE_EACH(0, 36, 9);                      /* in 0 and 32 */
    const __m512i begin = words_from(w, 0), middle = words_from(w, 32);
    const struct codes first = nibbles(words_at(first_at, begin, middle));
    const struct codes last = nibbles(words_at(last_at, words_from(w, 40), middle));
    const __m512 scale = halves_at(scales_at, begin, middle);
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_32 *in = x[i];
        const __m512 sum = fold(products(_mm512_loadu_si512(in->starts[0]), first, in, 0),
                                products(_mm512_loadu_si512(in->starts[1]), last, in, 1));
        acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(sum, scale), _mm512_loadu_ps(in->scales), acc[i]);
    }
}

/* Blocks of 10 words. */
INLINE void q4_1_group(const uint8_t *w, const void *const *x, size_t n, __m512 *acc) {
    WORD_LIST first_at[] = FOUR_EIGHTS(2, 10);                         /* in words 0 and 32 */
    WORD_LIST last_at[] = {EIGHT(34), EIGHT(4), EIGHT(14), EIGHT(24)}; /* in 48 and 40 */
    WORD_LIST scales_at[] = TWICE_EACH(0, 32, 10);                     /* in 0 and 40 */
    WORD_LIST minima_at[] = TWICE_EACH(1, 33, 10);                     /* the same */
    const __m512i begin = words_from(w, 0), middle = words_from(w, 40);
    const struct codes first = nibbles(words_at(first_at, begin, words_from(w, 32)));
    const struct codes last = nibbles(words_at(last_at, words_from(w, 48), middle));
    const __m512 scale = halves_at(scales_at, begin, middle), minimum = halves_at(minima_at, begin, middle);
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_32 *in = x[i];
        const __m512i zero = _mm512_setzero_si512();
        const __m512 sum = fold(products(zero, first, in, 0), products(zero, last, in, 1));
        acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(sum, scale), _mm512_loadu_ps(in->scales), acc[i]);
        acc[i] = _mm512_fmadd_ps(minimum, _mm512_loadu_ps(in->sums), acc[i]);
    }
}

/* The codes of four blocks of 17 words, raised by 128.  `begin`, `middle`: words 0 and 32. */
INLINE struct codes q8_0_codes(__m512i begin, __m512i middle, const uint8_t *w) {
    WORD_LIST first_at[] = FOUR_EIGHTS(1, 17);                           /* in words 0 and 32 */
    WORD_LIST second_at[] = {EIGHT(5), EIGHT(22), EIGHT(39), EIGHT(56)}; /* in 4 and 36 */
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    const __m512i first = words_at(first_at, begin, middle);
    const __m512i second = words_at(second_at, words_from(w, 4), words_from(w, 36));
    return (struct codes){{_mm512_xor_si512(first, flip), _mm512_xor_si512(second, flip)}};
}

INLINE void q8_0_group(const uint8_t *w, const void *const *x, size_t n, __m512 *acc) {
    WORD_LIST scales_at[] = TWICE_EACH(0, 0, 17); /* of four blocks, in words 0 and 32 */
    const uint8_t *end = w + 4 * sizeof(struct block_q8_0);
    const __m512i begin = words_from(w, 0), middle = words_from(w, 32);
    const __m512i begin_last = words_from(end, 0), middle_last = words_from(end, 32);
    const struct codes first = q8_0_codes(begin, middle, w);
    const struct codes last = q8_0_codes(begin_last, middle_last, end);
    const __m256i scale_first = half_at(scales_at, begin, middle);
    const __m256i scale_last = half_at(scales_at, begin_last, middle_last);
    const __m512 scale = _mm512_cvtph_ps(_mm256_blend_epi32(scale_first, scale_last, 0xaa));
    UNROLL for (size_t i = 0; i < n; i++) {
        const struct input_q8_32 *in = x[i];
        const __m512i start = _mm512_slli_epi32(_mm512_loadu_si512(in->starts[0]), 4);
        const __m512i start_last = _mm512_slli_epi32(_mm512_loadu_si512(in->starts[1]), 4);
        const __m512 sum = fold(products(start, first, in, 0), products(start_last, last, in, 1));
        acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(sum, scale), _mm512_loadu_ps(in->scales), acc[i]);
    }
}

#define KIND(block, takes_turns) \
    ((struct row_kind){sizeof(struct block), GROUP_BLOCKS, sizeof(struct input_q8_32), 4, takes_turns})

static void run_q4_0(const struct matvec_args *args) { rows_run(args, q4_0_group, KIND(block_q4_0, true)); }
static void run_q4_1(const struct matvec_args *args) { rows_run(args, q4_1_group, KIND(block_q4_1, true)); }
static void run_q8_0(const struct matvec_args *args) { rows_run(args, q8_0_group, KIND(block_q8_0, true)); }

void matvec_q8_32_avx512_install(struct matvec_kernels *kernels) {
    kernels->run[TENSOR_Q4_0] = run_q4_0;
    kernels->run[TENSOR_Q4_1] = run_q4_1;
    kernels->run[TENSOR_Q8_0] = run_q8_0;
}

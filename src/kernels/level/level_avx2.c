/* level on AVX2.
 *
 * Mapping: a register holds a word of 8 tokens; shifted and masked it is four coordinates of each, which VPMADDUBSW
 * multiplies with four bytes of a query (eight times in memory) to pairs of 16 bits, added up in these while they
 * cannot overflow, then in 32.  Up to four heads in one walk.
 * Bytes: dimension * planes / 8 + 2 + dimension / 32 read per token, 4 written per head.  Bound: the products.
 * Reached, as in level_avx512.c: 20 GB/s with 1 head, 9.6 with 3, 7.0 with 4.
 */
#include <math.h>
#include <string.h>

#include "kernels/floats.h"
#include "kernels/level/level_internal.h"

enum { GROUPS = 1, GROUP_TOKENS = 8, STEPS_MAX = LEVEL_DIMENSION_MAX / 4 };
typedef __m256i level_sum;
typedef const __m256i (*level_queries)[STEPS_MAX]; /* [heads] */
FLOATS_INLINE __m256i level_shift(__m256i sum, int width) { return _mm256_sll_epi32(sum, _mm_cvtsi32_si128(width)); }

/* One part of the numbers of 8 tokens; sums: [heads] */
FLOATS_INLINE void part_add(const size_t width, const size_t heads, const uint8_t *codes, size_t words,
                            level_queries queries, __m256i *sums) {
    const size_t fields = 8 / width;
    const size_t words_max = width == 4 ? 4 : width == 2 ? 10 : 16; /* 2 (2^width - 1) 127 of each field */
    const __m256i mask = _mm256_set1_epi8((char)((1 << width) - 1)), ones = _mm256_set1_epi16(1);
    for (size_t w = 0; w < words;) {
        const size_t end = w + words_max < words ? w + words_max : words;
        __m256i pairs[4];
        FLOATS_UNROLL
        for (size_t head = 0; head < heads; head++) pairs[head] = _mm256_setzero_si256();
        for (; w < end; w++) {
            const __m256i code = _mm256_loadu_si256((const __m256i *)(const void *)(codes + w * LEVEL_WORD_BYTES));
            FLOATS_UNROLL
            for (size_t f = 0; f < fields; f++) {
                const __m128i shift = _mm_cvtsi32_si128((int)(f * width));
                const __m256i field = _mm256_and_si256(f == 0 ? code : _mm256_srl_epi16(code, shift), mask);
                FLOATS_UNROLL
                for (size_t head = 0; head < heads; head++)
                    pairs[head] =
                        _mm256_add_epi16(pairs[head], _mm256_maddubs_epi16(field, queries[head][w * fields + f]));
            }
        }
        FLOATS_UNROLL
        for (size_t head = 0; head < heads; head++)
            sums[head] = _mm256_add_epi32(sums[head], _mm256_madd_epi16(pairs[head], ones));
    }
}

#include "kernels/level/level_parts.h"

FLOATS_INLINE void chunk_score(const struct level_layout *layout, const size_t heads, const void *block,
                               const struct level_query *const *query, const int8_t *const *integers,
                               const float *common, float *scores, size_t stride) {
    __m256i queries[4][STEPS_MAX];
    for (size_t head = 0; head < heads; head++)
        for (size_t step = 0; step < layout->dimension / 4; step++) {
            int32_t four;
            memcpy(&four, integers[head] + step * 4, sizeof four);
            queries[head][step] = _mm256_set1_epi32(four);
        }
    for (size_t token = 0; token < KV_CHUNK_TOKENS; token += GROUP_TOKENS) {
        const char *factors = (const char *)block + layout->factors_offset + token * sizeof(uint16_t);
        const floats factor = floats_load_half(factors);
        __m256i sums[4];
        FLOATS_UNROLL
        for (size_t head = 0; head < heads; head++) sums[head] = _mm256_setzero_si256();
        parts_add(layout, heads, (const uint8_t *)block + token * 4, (level_queries)queries, sums);
        FLOATS_UNROLL
        for (size_t head = 0; head < heads; head++) {
            floats own = floats_fma(_mm256_cvtepi32_ps(sums[head]), floats_set(2 * query[head]->step),
                                    floats_set(-query[head]->offset));
            floats_store(scores + head * stride + token, floats_fma(own, factor, floats_set(common[head])));
        }
    }
}

#include "kernels/level/level_score.h"

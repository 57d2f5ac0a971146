/* level on AVX-512 with VNNI.
 *
 * Mapping: a register holds a word of 16 tokens; shifted and masked it is four coordinates of each, which VPDPBUSD
 * multiplies with four bytes of a query (broadcast by its load) and adds up.  Of 64 tokens, 64 coordinates of 2 bits:
 * 16 loads, 112 shifts and masks, and 64 products per head, up to four heads in one walk.
 * Bytes: dimension * planes / 8 + 2 + dimension / 32 read per token, 4 written per head.
 * Bound: memory, or from 3 heads on the products.  Reached, one core of a Zen 5 whose other thread was busy,
 * 2026-11-22, 16K tokens in L2, 64 coordinates of 2 bits, best of 3,000: 49 GB/s with 1 head, 26 with 3, 21 with 4,
 * where two cores read 45 from memory.
 */
#define FLOATS_512
#include <math.h>
#include <string.h>

#include "kernels/floats.h"
#include "kernels/level/level_internal.h"

enum { GROUPS = KV_CHUNK_TOKENS / 16 };
typedef __m512i level_sum;
typedef const int8_t *const *level_queries; /* [heads] */
FLOATS_INLINE __m512i level_shift(__m512i sum, int width) { return _mm512_sll_epi32(sum, _mm_cvtsi32_si128(width)); }

FLOATS_INLINE __m512i broadcast(const int8_t *integers) {
    int32_t four;
    memcpy(&four, integers, sizeof four);
    return _mm512_set1_epi32(four);
}

/* One part of the numbers; sums: [GROUPS][heads] */
FLOATS_INLINE void part_add(const size_t width, const size_t heads, const uint8_t *codes, size_t words,
                            level_queries integers, __m512i *sums) {
    const size_t fields = 8 / width;
    const __m512i mask = _mm512_set1_epi8((char)((1 << width) - 1));
    for (size_t w = 0; w < words; w++) {
        __m512i code[GROUPS];
        FLOATS_UNROLL
        for (size_t g = 0; g < GROUPS; g++) code[g] = _mm512_loadu_si512(codes + w * LEVEL_WORD_BYTES + g * 64);
        FLOATS_UNROLL
        for (size_t f = 0; f < fields; f++) {
            const __m128i shift = _mm_cvtsi32_si128((int)(f * width));
            __m512i field[GROUPS];
            FLOATS_UNROLL
            for (size_t g = 0; g < GROUPS; g++)
                field[g] = _mm512_and_si512(f == 0 ? code[g] : _mm512_srl_epi16(code[g], shift), mask);
            FLOATS_UNROLL
            for (size_t head = 0; head < heads; head++) {
                const __m512i query = broadcast(integers[head] + (w * fields + f) * 4);
                FLOATS_UNROLL
                for (size_t g = 0; g < GROUPS; g++)
                    sums[g * heads + head] = _mm512_dpbusd_epi32(sums[g * heads + head], field[g], query);
            }
        }
    }
}

#include "kernels/level/level_parts.h"

FLOATS_INLINE void chunk_score(const struct level_layout *layout, const size_t heads, const void *block,
                               const struct level_query *const *query, const int8_t *const *integers,
                               const float *common, float *scores, size_t stride) {
    const char *factors = (const char *)block + layout->factors_offset;
    __m512i sums[GROUPS * 4];
    FLOATS_UNROLL
    for (size_t i = 0; i < GROUPS * heads; i++) sums[i] = _mm512_setzero_si512();
    if (layout->planes == 2) /* most often */
        part_add(2, heads, block, level_part_words(layout, 2), integers, sums);
    else if (layout->planes == 1)
        part_add(1, heads, block, level_part_words(layout, 1), integers, sums);
    else
        parts_add(layout, heads, block, integers, sums);
    FLOATS_UNROLL
    for (size_t g = 0; g < GROUPS; g++) {
        const floats factor = floats_load_half(factors + g * 32);
        FLOATS_UNROLL
        for (size_t head = 0; head < heads; head++) {
            floats own = floats_fma(_mm512_cvtepi32_ps(sums[g * heads + head]), floats_set(2 * query[head]->step),
                                    floats_set(-query[head]->offset));
            floats_store(scores + head * stride + g * 16, floats_fma(own, factor, floats_set(common[head])));
        }
    }
}

#include "kernels/level/level_score.h"

/* level on NEON: as on AVX2, with a word of 4 tokens per register, and products of bytes added up in 16 bits by SMLAL.
 *
 * Bound: the products.  Not measured: run under an emulator only.
 */
#include <math.h>
#include <string.h>

#include "kernels/floats.h"
#include "kernels/level/level_internal.h"

enum { GROUPS = 2, GROUP_TOKENS = 4 };
typedef int32x4_t level_sum;
typedef const int8_t *const *level_queries; /* [heads] */
FLOATS_INLINE int32x4_t level_shift(int32x4_t sum, int width) { return vshlq_s32(sum, vdupq_n_s32(width)); }

/* Four bytes of a query, twice. */
FLOATS_INLINE int8x8_t broadcast(const int8_t *integers) {
    int32_t four;
    memcpy(&four, integers, sizeof four);
    return vreinterpret_s8_s32(vdup_n_s32(four));
}

/* sums: [GROUPS][heads], of 4 tokens */
FLOATS_INLINE void part_add(const size_t width, const size_t heads, const uint8_t *codes, size_t words,
                            level_queries integers, int32x4_t *sums) {
    const size_t fields = 8 / width;
    const size_t words_max = width == 4 ? 4 : width == 2 ? 10 : 16; /* (2^width - 1) 127 of each field */
    const uint8x16_t mask = vdupq_n_u8((uint8_t)((1 << width) - 1));
    for (size_t w = 0; w < words;) {
        const size_t end = w + words_max < words ? w + words_max : words;
        int16x8_t low[GROUPS * 4], high[GROUPS * 4]; /* tokens 0, 1 and 2, 3 */
        FLOATS_UNROLL
        for (size_t i = 0; i < GROUPS * heads; i++) low[i] = high[i] = vdupq_n_s16(0);
        for (; w < end; w++) FLOATS_UNROLL
        for (size_t f = 0; f < fields; f++) {
            const int8x16_t shift = vdupq_n_s8((int8_t) - (int)(f * width));
            FLOATS_UNROLL
            for (size_t g = 0; g < GROUPS; g++) {
                const uint8x16_t code = vld1q_u8(codes + w * LEVEL_WORD_BYTES + g * 16);
                const int8x16_t field = vreinterpretq_s8_u8(vandq_u8(vshlq_u8(code, shift), mask));
                FLOATS_UNROLL
                for (size_t head = 0; head < heads; head++) {
                    const int8x8_t query = broadcast(integers[head] + (w * fields + f) * 4);
                    const size_t i = g * heads + head;
                    low[i] = vmlal_s8(low[i], vget_low_s8(field), query);
                    high[i] = vmlal_s8(high[i], vget_high_s8(field), query);
                }
            }
        }
        FLOATS_UNROLL
        for (size_t i = 0; i < GROUPS * heads; i++)
            sums[i] = vaddq_s32(sums[i], vpaddq_s32(vpaddlq_s16(low[i]), vpaddlq_s16(high[i])));
    }
}

#include "kernels/level/level_parts.h"

FLOATS_INLINE void chunk_score(const struct level_layout *layout, const size_t heads, const void *block,
                               const struct level_query *const *query, const int8_t *const *integers,
                               const float *common, float *scores, size_t stride) {
    for (size_t token = 0; token < KV_CHUNK_TOKENS; token += GROUPS * GROUP_TOKENS) {
        const char *factors = (const char *)block + layout->factors_offset + token * sizeof(uint16_t);
        const floats factor = floats_load_half(factors);
        int32x4_t sums[GROUPS * 4];
        FLOATS_UNROLL
        for (size_t i = 0; i < GROUPS * heads; i++) sums[i] = vdupq_n_s32(0);
        parts_add(layout, heads, (const uint8_t *)block + token * 4, integers, sums);
        FLOATS_UNROLL
        for (size_t head = 0; head < heads; head++) {
            const floats sum = {vcvtq_f32_s32(sums[head]), vcvtq_f32_s32(sums[heads + head])};
            floats own = floats_fma(sum, floats_set(2 * query[head]->step), floats_set(-query[head]->offset));
            floats_store(scores + head * stride + token, floats_fma(own, factor, floats_set(common[head])));
        }
    }
}

#include "kernels/level/level_score.h"

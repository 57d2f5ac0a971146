/* From a chunk's distances to its scores; included by hash_avx512.c and hash_avx512popcnt.c. */
#pragma once

#include "kernels/floats.h"
#include "kernels/hash/hash_internal.h"

/* distance: of tokens 0 .. 63; lane i of [0] holds tokens 16i .. 16i + 7, of [1] the next 8 */
FLOATS_INLINE void chunk_finish(const size_t code_bytes, const struct hash_score_args *args, const void *block,
                                const char *ahead, const __m512i distance[2], const struct hash_line *line,
                                float *scores) {
    const uint16_t *norms = (const uint16_t *)(const void *)((const uint8_t *)block + code_bytes * KV_CHUNK_TOKENS);
    _Alignas(64) uint16_t halves[2][KV_CHUNK_TOKENS / 2]; /* [token / 8 % 2][] */
    for (size_t i = 0; i < KV_CHUNK_TOKENS * sizeof *norms; i += KV_CHUNK_TOKENS)
        _mm_prefetch(ahead + code_bytes * KV_CHUNK_TOKENS + i, _MM_HINT_T0);
    _mm512_store_si512(halves[0], distance[0]);
    _mm512_store_si512(halves[1], distance[1]);
    const floats scale = floats_set(line->scale), all = floats_set(line->offset);
    const floats slope = floats_set(line->slope);
    FLOATS_UNROLL
    for (size_t n = 0; n < 4; n++) {
        __m256i sixteen = _mm256_set_m128i(_mm_load_si128((const __m128i *)(const void *)halves[1] + n),
                                           _mm_load_si128((const __m128i *)(const void *)halves[0] + n));
        floats h = _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(sixteen));
        if (!args->use_norms) {
            floats_store(scores + n * FLOATS, floats_subtract(floats_set(0), h));
            continue;
        }
        floats agreement = floats_multiply(floats_fma(slope, h, all), scale);
        floats_store(scores + n * FLOATS, floats_multiply(agreement, floats_load_half(norms + n * FLOATS)));
    }
}

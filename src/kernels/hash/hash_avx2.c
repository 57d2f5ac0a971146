/* hash on AVX2.
 *
 * Scores.  Mapping: a chunk's 64 tokens are two registers of bytes per byte position; per position and register 8
 * instructions (load, 2 masks, shift, 2 shuffles, 2 additions) whatever the group.
 * Bytes: bits / 8 + 2 read per token, 4 written.  Bound: memory.  Reached, one core of an AMD EPYC (Zen 3),
 * 2026-11-21, 32K tokens, 128 bits, group 4: 16.0 GB/s where reading in order gives 15.3 (bench_selection.c); 19
 * from L3.  Encoding at dimension 128: 0.6 us a vector, 0.42 of many.
 */
#include <string.h>

#include "kernels/hash/hash_encode.h"
#include "kernels/hash/hash_tables.h"

/* distances of tokens 0 .. 63: [0] holds tokens 0-7 and 16-23, [1] 8-15 and 24-31, [2] and [3] the next 32 */
FLOATS_INLINE void distances_add(const size_t code_bytes, const uint8_t *codes, const char *ahead,
                                 const uint8_t *tables, size_t heads, __m256i distance[4]) {
    const __m256i nibble = _mm256_set1_epi8(15), zero = _mm256_setzero_si256();
    const size_t positions = 255 / (8 * heads);
    for (size_t byte = 0; byte < code_bytes;) {
        __m256i sum[2] = {zero, zero};
        const size_t end = min_size(byte + positions, code_bytes);
        for (; byte < end; byte++) {
            const uint8_t *table = tables + byte * HASH_POSITION_BYTES;
            _mm_prefetch(ahead + byte * KV_CHUNK_TOKENS, _MM_HINT_T0);
            __m256i low = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)table));
            __m256i high = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)table + 1));
            FLOATS_UNROLL
            for (size_t n = 0; n < 2; n++) {
                __m256i code = _mm256_loadu_si256((const __m256i *)(codes + byte * KV_CHUNK_TOKENS) + n);
                __m256i upper = _mm256_and_si256(_mm256_srli_epi16(code, 4), nibble);
                sum[n] = _mm256_add_epi8(sum[n], _mm256_shuffle_epi8(low, _mm256_and_si256(code, nibble)));
                sum[n] = _mm256_add_epi8(sum[n], _mm256_shuffle_epi8(high, upper));
            }
        }
        FLOATS_UNROLL
        for (size_t n = 0; n < 2; n++) {
            distance[2 * n] = _mm256_add_epi16(distance[2 * n], _mm256_unpacklo_epi8(sum[n], zero));
            distance[2 * n + 1] = _mm256_add_epi16(distance[2 * n + 1], _mm256_unpackhi_epi8(sum[n], zero));
        }
    }
}

/* Eight tokens' distances to their scores. */
FLOATS_INLINE void scores_store(const struct hash_score_args *args, __m128i distance, const uint16_t *norms,
                                float *scores) {
    floats h = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(distance));
    if (!args->use_norms) {
        floats_store(scores, floats_subtract(floats_set(0), h));
        return;
    }
    const struct hash_line *line = hash_line_of(args);
    floats agreement = floats_fma(floats_set(line->slope), h, floats_set(line->offset));
    agreement = floats_multiply(agreement, floats_set(line->scale));
    floats_store(scores, floats_multiply(agreement, floats_load_half(norms)));
}

FLOATS_INLINE void chunk_score(const size_t code_bytes, const struct hash_score_args *args, const void *block,
                               const char *ahead, float *scores) {
    const uint8_t *tables = args->scratch;
    const uint16_t *norms = (const uint16_t *)(const void *)((const uint8_t *)block + code_bytes * KV_CHUNK_TOKENS);
    __m256i distance[4];
    FLOATS_UNROLL
    for (size_t n = 0; n < 4; n++) distance[n] = _mm256_setzero_si256();
    for (size_t i = 0; i < KV_CHUNK_TOKENS * sizeof *norms; i += KV_CHUNK_TOKENS)
        _mm_prefetch(ahead + code_bytes * KV_CHUNK_TOKENS + i, _MM_HINT_T0);
    for (size_t set = 0; set < hash_sets(args->group); set++)
        distances_add(code_bytes, block, ahead, tables + set * code_bytes * HASH_POSITION_BYTES,
                      hash_set_heads(args->group, set), distance);
    FLOATS_UNROLL
    for (size_t n = 0; n < 4; n++) {
        size_t token = n / 2 * 32 + n % 2 * 8;
        scores_store(args, _mm256_castsi256_si128(distance[n]), norms + token, scores + token);
        scores_store(args, _mm256_extracti128_si256(distance[n], 1), norms + token + 16, scores + token + 16);
    }
}

#include "kernels/hash/hash_score.h"

void hash_avx2_install(struct hash_kernels *kernels) {
    *kernels =
        (struct hash_kernels){.encode = hash_encode, .score = hash_score, .score_scratch_bytes = hash_tables_bytes};
}

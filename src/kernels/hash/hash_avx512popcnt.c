/* hash scores where the processor counts bits in vectors (VPOPCNTDQ and BITALG): groups of 1 and 2 query heads.
 *
 * Mapping: as in hash_avx512.c a register holds a byte position of 64 tokens; per head xor with the query's byte
 * (broadcast by the instruction), VPOPCNTB, add: 1 + 3 group instructions where the tables take 8.  From 3 heads on
 * the tables are level or better, and are called.
 * Reached, one core of an AMD EPYC (Zen 5), 2026-11-22, us for 16K tokens in L2, tables and this:
 *   128 bits  group 1  7.3 and 3.9   group 2  7.6 and 6.3      256 bits  group 1  15.2 and 8.5   group 2  13.8 and 10.7
 * 76 GB/s at group 1.  From memory both are level, 0.8 to 0.96 of plain reads: memory is the bound.
 * VPOPCNTQ needs a token's bytes side by side, 24 unpacks per 8 positions: bench/lab/hash-popcount.md.
 */
#define FLOATS_512
#include <string.h>

#include "kernels/hash/hash_chunk_512.h"
#include "kernels/hash/hash_internal.h"

enum { HASH_COUNTED_GROUP = 2 };

/* The queries' bytes four times each: [code_bytes][group] words, fewer bytes than tables (hash_tables.h). */
static void hash_prepare(const struct hash_score_args *args, uint32_t *words) {
    const size_t code_bytes = args->layout->code_bytes;
    for (size_t byte = 0; byte < code_bytes; byte++)
        for (size_t head = 0; head < args->group; head++)
            words[byte * args->group + head] = 0x01010101u * args->codes[head * code_bytes + byte];
}

FLOATS_INLINE void distances_count(const size_t code_bytes, const size_t group, const uint8_t *codes, const char *ahead,
                                   const uint32_t *words, __m512i distance[2]) {
    const __m512i zero = _mm512_setzero_si512();
    const size_t positions = 255 / (8 * group); /* until a byte may overflow */
    for (size_t byte = 0; byte < code_bytes;) {
        __m512i sum = zero;
        const size_t end = byte + positions < code_bytes ? byte + positions : code_bytes;
        for (; byte < end; byte++) {
            _mm_prefetch(ahead + byte * KV_CHUNK_TOKENS, _MM_HINT_T0);
            __m512i code = _mm512_loadu_si512(codes + byte * KV_CHUNK_TOKENS);
            FLOATS_UNROLL
            for (size_t head = 0; head < group; head++) {
                __m512i query = _mm512_set1_epi32((int)words[byte * group + head]);
                sum = _mm512_add_epi8(sum, _mm512_popcnt_epi8(_mm512_xor_si512(code, query)));
            }
        }
        distance[0] = _mm512_add_epi16(distance[0], _mm512_unpacklo_epi8(sum, zero));
        distance[1] = _mm512_add_epi16(distance[1], _mm512_unpackhi_epi8(sum, zero));
    }
}

FLOATS_INLINE void chunk_score(const size_t code_bytes, const struct hash_score_args *args, const void *block,
                               const char *ahead, float *scores) {
    __m512i distance[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    if (args->group == 1)
        distances_count(code_bytes, 1, block, ahead, args->scratch, distance);
    else
        distances_count(code_bytes, HASH_COUNTED_GROUP, block, ahead, args->scratch, distance);
    const float bits = (float)args->layout->bits;
    chunk_finish(code_bytes, args, block, ahead, distance,
                 &(struct hash_line){(float)args->group * bits, -2, 1.0f / bits}, scores);
}

#include "kernels/hash/hash_score.h"

static void hash_score_counted(const struct hash_score_args *args) {
    if (args->group <= HASH_COUNTED_GROUP)
        hash_score(args);
    else
        hash_avx512_score(args);
}

void hash_avx512popcnt_install(struct hash_kernels *kernels) { kernels->score = hash_score_counted; }

/* hash on AVX-512: the tables of hash_tables.h over 64 tokens per register.
 *
 * Scores.  Mapping: a chunk's 64 tokens are one register of bytes per byte position, a cache line; 8 instructions for
 * it whatever the group.  Groups of 1 and 2 are counted bit by bit where the processor can (hash_avx512popcnt.c).
 * Bytes: bits / 8 + 2 read per token, 4 written.  Bound: memory: 128 bits, 32K tokens in L2 50 GB/s and core, AMD EPYC
 * (Zen 5), 2026-11-22, where two cores together read 45 from memory.
 */
#define FLOATS_512
#include <string.h>

#include "kernels/hash/hash_chunk_512.h"
#include "kernels/hash/hash_encode.h"
#include "kernels/hash/hash_tables.h"

FLOATS_INLINE void distances_add(const size_t code_bytes, const uint8_t *codes, const char *ahead,
                                 const uint8_t *tables, size_t heads, __m512i distance[2]) {
    const __m512i nibble = _mm512_set1_epi8(15), zero = _mm512_setzero_si512();
    const size_t positions = 255 / (8 * heads);
    for (size_t byte = 0; byte < code_bytes;) {
        __m512i sum = zero;
        const size_t end = min_size(byte + positions, code_bytes);
        for (; byte < end; byte++) {
            const uint8_t *table = tables + byte * HASH_POSITION_BYTES;
            _mm_prefetch(ahead + byte * KV_CHUNK_TOKENS, _MM_HINT_T0);
            __m512i low = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)table));
            __m512i high = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)table + 1));
            __m512i code = _mm512_loadu_si512(codes + byte * KV_CHUNK_TOKENS);
            __m512i upper = _mm512_and_si512(_mm512_srli_epi16(code, 4), nibble);
            sum = _mm512_add_epi8(sum, _mm512_shuffle_epi8(low, _mm512_and_si512(code, nibble)));
            sum = _mm512_add_epi8(sum, _mm512_shuffle_epi8(high, upper));
        }
        distance[0] = _mm512_add_epi16(distance[0], _mm512_unpacklo_epi8(sum, zero));
        distance[1] = _mm512_add_epi16(distance[1], _mm512_unpackhi_epi8(sum, zero));
    }
}

FLOATS_INLINE void chunk_score(const size_t code_bytes, const struct hash_score_args *args, const void *block,
                               const char *ahead, float *scores) {
    const uint8_t *tables = args->scratch;
    __m512i distance[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t set = 0; set < hash_sets(args->group); set++)
        distances_add(code_bytes, block, ahead, tables + set * code_bytes * HASH_POSITION_BYTES,
                      hash_set_heads(args->group, set), distance);
    chunk_finish(code_bytes, args, block, ahead, distance, hash_line_of(args), scores);
}

#include "kernels/hash/hash_score.h"

void hash_avx512_score(const struct hash_score_args *args) { hash_score(args); }

void hash_avx512_install(struct hash_kernels *kernels) {
    *kernels = (struct hash_kernels){
        .encode = hash_encode, .score = hash_avx512_score, .score_scratch_bytes = hash_tables_bytes};
}

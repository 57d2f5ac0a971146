/* hash on NEON: the tables of hash_tables.h over 16 tokens per register, 4 registers to a chunk.
 *
 * Bytes: bits / 8 + 2 read per token, 4 written.  Bound: memory, or the lookups of bytes where it is fast.  Not
 * measured: run under an emulator only.
 */
#include <string.h>

#include "kernels/hash/hash_encode.h"
#include "kernels/hash/hash_tables.h"

enum { HASH_PARTS = KV_CHUNK_TOKENS / 16 };

/* distance[i]: of tokens 8i .. 8i + 7 */
FLOATS_INLINE void distances_add(const size_t code_bytes, const uint8_t *codes, const char *ahead,
                                 const uint8_t *tables, size_t heads, uint16x8_t distance[2 * HASH_PARTS]) {
    const size_t positions = 255 / (8 * heads);
    for (size_t byte = 0; byte < code_bytes;) {
        uint8x16_t sum[HASH_PARTS];
        FLOATS_UNROLL
        for (size_t n = 0; n < HASH_PARTS; n++) sum[n] = vdupq_n_u8(0);
        const size_t end = min_size(byte + positions, code_bytes);
        for (; byte < end; byte++) {
            const uint8_t *table = tables + byte * HASH_POSITION_BYTES;
            floats_prefetch(ahead + byte * KV_CHUNK_TOKENS);
            uint8x16_t low = vld1q_u8(table), high = vld1q_u8(table + 16);
            FLOATS_UNROLL
            for (size_t n = 0; n < HASH_PARTS; n++) {
                uint8x16_t code = vld1q_u8(codes + byte * KV_CHUNK_TOKENS + n * 16);
                sum[n] = vaddq_u8(sum[n], vqtbl1q_u8(low, vandq_u8(code, vdupq_n_u8(15))));
                sum[n] = vaddq_u8(sum[n], vqtbl1q_u8(high, vshrq_n_u8(code, 4)));
            }
        }
        FLOATS_UNROLL
        for (size_t n = 0; n < HASH_PARTS; n++) {
            distance[2 * n] = vaddw_u8(distance[2 * n], vget_low_u8(sum[n]));
            distance[2 * n + 1] = vaddw_high_u8(distance[2 * n + 1], sum[n]);
        }
    }
}

FLOATS_INLINE void chunk_score(const size_t code_bytes, const struct hash_score_args *args, const void *block,
                               const char *ahead, float *scores) {
    const uint8_t *tables = args->scratch, *norms = (const uint8_t *)block + code_bytes * KV_CHUNK_TOKENS;
    uint16x8_t distance[2 * HASH_PARTS];
    FLOATS_UNROLL
    for (size_t n = 0; n < 2 * HASH_PARTS; n++) distance[n] = vdupq_n_u16(0);
    for (size_t set = 0; set < hash_sets(args->group); set++)
        distances_add(code_bytes, block, ahead, tables + set * code_bytes * HASH_POSITION_BYTES,
                      hash_set_heads(args->group, set), distance);
    const struct hash_line *line = hash_line_of(args);
    const floats scale = floats_set(line->scale), all = floats_set(line->offset);
    const floats slope = floats_set(line->slope);
    FLOATS_UNROLL
    for (size_t n = 0; n < 2 * HASH_PARTS; n++) {
        floats h = {vcvtq_f32_u32(vmovl_u16(vget_low_u16(distance[n]))), vcvtq_f32_u32(vmovl_high_u16(distance[n]))};
        if (!args->use_norms) {
            floats_store(scores + n * FLOATS, floats_subtract(floats_set(0), h));
            continue;
        }
        floats agreement = floats_multiply(floats_fma(slope, h, all), scale);
        floats_store(scores + n * FLOATS,
                     floats_multiply(agreement, floats_load_half(norms + n * FLOATS * sizeof(uint16_t))));
    }
}

#include "kernels/hash/hash_score.h"

void hash_neon_install(struct hash_kernels *kernels) {
    *kernels =
        (struct hash_kernels){.encode = hash_encode, .score = hash_score, .score_scratch_bytes = hash_tables_bytes};
}

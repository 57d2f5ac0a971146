/* The blocks of the grids on AVX2: 32 elements at a time.  A point's places among the levels are spread to bytes
 * (PDEP), looked up in the levels (a shuffle), and negated where the signs say so. */
#include <immintrin.h>
#include <string.h>

#include "kernels/convert/grid.h"
#include "tensor/half.h"

#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t word_at(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

INLINE uint16_t half_word_at(const uint8_t *p) {
    uint16_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

INLINE float d_at(const uint8_t *p, float factor) { return half_to_float(half_word_at(p)) * factor; }

INLINE long long spread_2(uint16_t point) { return (long long)_pdep_u64(point, 0x0303030303030303); }
INLINE long long spread_3(uint32_t points) { return (long long)_pdep_u64(points, 0x0707070707070707); }

INLINE __m256i levels_2(__m256i places) { return _mm256_shuffle_epi8(_mm256_set1_epi32(0x002b1908), places); }

INLINE __m256i levels_3(__m256i places, long long levels) {
    return _mm256_shuffle_epi8(_mm256_set1_epi64x(levels), places);
}

/* Negates element i where bit i of `signs` is set. */
INLINE __m256i negate(__m256i codes, uint32_t signs) {
    const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i each = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)signs), byte), bit);
    const __m256i negative = _mm256_cmpeq_epi8(each, bit);
    return _mm256_sub_epi8(_mm256_xor_si256(codes, negative), negative);
}

INLINE void codes_put(struct grid_block *target, size_t b, __m256i codes) {
    _mm256_store_si256((__m256i *)(void *)(target->codes + 32 * b), codes);
}

INLINE void scale_put(struct grid_block *target, size_t b, uint32_t scale) {
    target->scales[2 * b] = target->scales[2 * b + 1] = (int16_t)(2 * scale + 1);
}

/* 16 scales from the nibbles of 8 bytes. */
INLINE void nibble_scales_put(const uint8_t *packed, struct grid_block *target) {
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)packed);
    const __m128i both = _mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4));
    const __m256i words = _mm256_cvtepu8_epi16(_mm_and_si128(both, _mm_set1_epi8(15)));
    const __m256i scales = _mm256_add_epi16(_mm256_add_epi16(words, words), _mm256_set1_epi16(1));
    _mm256_storeu_si256((__m256i *)(void *)target->scales, scales);
}

void iq2_xxs_unpack_avx2(const uint8_t *block, struct grid_block *target) {
    target->d = d_at(block, 0.125f);
    for (size_t b = 0; b < 8; b++) {
        const uint8_t *q = block + 2 + 8 * b;
        const uint32_t word = word_at(q + 4);
        const __m256i places = _mm256_setr_epi64x(spread_2(grid_iq2_xxs[q[0]]), spread_2(grid_iq2_xxs[q[1]]),
                                                  spread_2(grid_iq2_xxs[q[2]]), spread_2(grid_iq2_xxs[q[3]]));
        codes_put(target, b, negate(levels_2(places), grid_signs_get(word)));
        scale_put(target, b, word >> 28);
    }
}

void iq2_xs_unpack_avx2(const uint8_t *block, struct grid_block *target) {
    target->d = d_at(block, 0.125f);
    nibble_scales_put(block + offsetof(struct block_iq2_xs, scales), target);
    for (size_t b = 0; b < 8; b++) {
        uint16_t q[4];
        memcpy(q, block + 2 + 8 * b, sizeof q);
        const uint32_t word = (uint32_t)(q[0] >> 9) | (uint32_t)(q[1] >> 9) << 7 | (uint32_t)(q[2] >> 9) << 14 |
                              (uint32_t)(q[3] >> 9) << 21;
        const __m256i places = _mm256_setr_epi64x(spread_2(grid_iq2_xs[q[0] & 511]), spread_2(grid_iq2_xs[q[1] & 511]),
                                                  spread_2(grid_iq2_xs[q[2] & 511]), spread_2(grid_iq2_xs[q[3] & 511]));
        codes_put(target, b, negate(levels_2(places), grid_signs_get(word)));
    }
}

void iq2_s_unpack_avx2(const uint8_t *block, struct grid_block *target) {
    target->d = d_at(block, 0.125f);
    nibble_scales_put(block + offsetof(struct block_iq2_s, scales), target);
    for (size_t b = 0; b < 8; b++) {
        const uint8_t *q = block + offsetof(struct block_iq2_s, qs) + 4 * b;
        const uint32_t high = (uint32_t)block[offsetof(struct block_iq2_s, qh) + b] << 8;
        const __m256i places = _mm256_setr_epi64x(
            spread_2(grid_iq2_s[q[0] | (high & 0x300)]), spread_2(grid_iq2_s[q[1] | (high >> 2 & 0x300)]),
            spread_2(grid_iq2_s[q[2] | (high >> 4 & 0x300)]), spread_2(grid_iq2_s[q[3] | (high >> 6 & 0x300)]));
        const uint32_t signs = word_at(block + offsetof(struct block_iq2_s, signs) + 4 * b);
        codes_put(target, b, negate(levels_2(places), signs));
    }
}

/* Eight points of 4 elements. */
INLINE __m256i places_3(const uint16_t *grid, const uint32_t at[8]) {
    return _mm256_setr_epi64x(
        spread_3(grid[at[0]] | (uint32_t)grid[at[1]] << 12), spread_3(grid[at[2]] | (uint32_t)grid[at[3]] << 12),
        spread_3(grid[at[4]] | (uint32_t)grid[at[5]] << 12), spread_3(grid[at[6]] | (uint32_t)grid[at[7]] << 12));
}

void iq3_xxs_unpack_avx2(const uint8_t *block, struct grid_block *target) {
    target->d = d_at(block, 0.25f);
    for (size_t b = 0; b < 8; b++) {
        const uint8_t *q = block + offsetof(struct block_iq3_xxs, qs) + 8 * b;
        const uint32_t word = word_at(block + offsetof(struct block_iq3_xxs, signs) + 4 * b);
        const uint32_t at[8] = {q[0], q[1], q[2], q[3], q[4], q[5], q[6], q[7]};
        const __m256i levels = levels_3(places_3(grid_iq3_xxs, at), 0x3e342c241c140c04);
        codes_put(target, b, negate(levels, grid_signs_get(word)));
        scale_put(target, b, word >> 28);
    }
}

void iq3_s_unpack_avx2(const uint8_t *block, struct grid_block *target) {
    target->d = d_at(block, 1);
    for (size_t b = 0; b < 8; b++) {
        const uint8_t *q = block + offsetof(struct block_iq3_s, qs) + 8 * b;
        const uint32_t high = (uint32_t)block[offsetof(struct block_iq3_s, qh) + b] << 8;
        uint32_t at[8];
        for (size_t j = 0; j < 8; j++) at[j] = q[j] | (high >> j & 0x100);
        const __m256i levels = levels_3(places_3(grid_iq3_s, at), 0x0f0d0b0907050301);
        codes_put(target, b, negate(levels, word_at(block + offsetof(struct block_iq3_s, signs) + 4 * b)));
        scale_put(target, b, block[offsetof(struct block_iq3_s, scales) + b / 2] >> 4 * (b % 2) & 15);
    }
}

/* 8·level, and for each point the byte of `less`: 1 or -1. */
INLINE __m256i iq1_codes(const uint32_t at[4], __m256i more) {
    const __m256i places = _mm256_setr_epi64x(spread_2(grid_iq1[at[0]]), spread_2(grid_iq1[at[1]]),
                                              spread_2(grid_iq1[at[2]]), spread_2(grid_iq1[at[3]]));
    return _mm256_add_epi8(_mm256_shuffle_epi8(_mm256_set1_epi32(0x000800f8), places), more);
}

void iq1_s_unpack_avx2(const uint8_t *block, struct grid_block *target) {
    target->d = d_at(block, 0.125f);
    for (size_t b = 0; b < 8; b++) {
        const uint8_t *q = block + offsetof(struct block_iq1_s, qs) + 4 * b;
        const uint32_t word = half_word_at(block + offsetof(struct block_iq1_s, qh) + 2 * b);
        const uint32_t at[4] = {q[0] | (word << 8 & 0x700), q[1] | (word << 5 & 0x700), q[2] | (word << 2 & 0x700),
                                q[3] | (word >> 1 & 0x700)};
        codes_put(target, b, iq1_codes(at, _mm256_set1_epi8(word >> 15 ? -1 : 1)));
        scale_put(target, b, word >> 12 & 7);
    }
}

void iq1_m_unpack_avx2(const uint8_t *block, struct grid_block *target) {
    uint16_t scales[4];
    memcpy(scales, block + offsetof(struct block_iq1_m, scales), sizeof scales);
    target->d = half_to_float(iq1_m_half_get(scales)) * 0.125f;
    for (size_t g = 0; g < 16; g++) target->scales[g] = (int16_t)(2 * (scales[g / 4] >> 3 * (g % 4) & 7) + 1);
    for (size_t b = 0; b < 8; b++) {
        const uint8_t *q = block + 4 * b;
        const uint32_t word = half_word_at(block + offsetof(struct block_iq1_m, qh) + 2 * b);
        const uint32_t at[4] = {q[0] | (word << 8 & 0x700), q[1] | (word << 4 & 0x700), q[2] | (word & 0x700),
                                q[3] | (word >> 4 & 0x700)};
        const __m256i more =
            _mm256_setr_epi64x(word & 0x8 ? -1 : 0x0101010101010101, word & 0x80 ? -1 : 0x0101010101010101,
                               word & 0x800 ? -1 : 0x0101010101010101, word & 0x8000 ? -1 : 0x0101010101010101);
        codes_put(target, b, iq1_codes(at, more));
    }
}

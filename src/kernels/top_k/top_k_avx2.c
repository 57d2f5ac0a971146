/* top_k on AVX2: compression by a table of permutations, 8 bytes for each of the 256 masks. */
#include "kernels/top_k/top_k_select.h"

/* Lane `bit` of a mask goes to the place that counts the bits below it. */
#define PLACE(mask, bit) \
    (((mask) >> (bit)&1) != 0 ? (uint64_t)(bit) << 8 * __builtin_popcount((mask) & ((1 << (bit)) - 1)) : 0)
#define LANES(mask)                                                                                        \
    (PLACE(mask, 0) | PLACE(mask, 1) | PLACE(mask, 2) | PLACE(mask, 3) | PLACE(mask, 4) | PLACE(mask, 5) | \
     PLACE(mask, 6) | PLACE(mask, 7))
#define LANES4(mask)  LANES(mask), LANES((mask) + 1), LANES((mask) + 2), LANES((mask) + 3)
#define LANES16(mask) LANES4(mask), LANES4((mask) + 4), LANES4((mask) + 8), LANES4((mask) + 12)
#define LANES64(mask) LANES16(mask), LANES16((mask) + 16), LANES16((mask) + 32), LANES16((mask) + 48)

static const uint64_t lanes[256] = {LANES64(0), LANES64(64), LANES64(128), LANES64(192)};

/* The permutation that moves the lanes of mask to the front. */
FLOATS_INLINE __m256i lanes_first(unsigned mask) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)&lanes[mask]));
}

static uint64_t mask_of(const float *scores, float threshold) {
    const __m256 limits = _mm256_set1_ps(threshold);
    uint64_t mask = 0;
    FLOATS_UNROLL
    for (size_t n = 0; n < 8; n++) {
        __m256 taken = _mm256_cmp_ps(_mm256_loadu_ps(scores + n * 8), limits, _CMP_NLT_UQ);
        mask |= (uint64_t)(unsigned)_mm256_movemask_ps(taken) << n * 8;
    }
    return mask;
}

static size_t keep(struct candidates *set, size_t begin, size_t end, uint32_t key_min, size_t at) {
    const __m256i limit = _mm256_set1_epi32((int)key_min);
    size_t i = begin;
    for (; i + 8 <= end; i += 8) {
        __m256i key = _mm256_loadu_si256((const __m256i *)(set->keys + i));
        __m256i index = _mm256_loadu_si256((const __m256i *)(set->indices + i));
        __m256i takes = _mm256_cmpeq_epi32(_mm256_max_epu32(key, limit), key);
        unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(takes));
        _mm256_storeu_si256((__m256i *)(set->indices + at), _mm256_permutevar8x32_epi32(index, lanes_first(mask)));
        at += (size_t)__builtin_popcount(mask);
    }
    for (; i < end; i++) {
        set->indices[at] = set->indices[i];
        at += set->keys[i] >= key_min;
    }
    return at;
}

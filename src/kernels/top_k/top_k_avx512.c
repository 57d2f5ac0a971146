/* top_k on AVX-512: compression is an instruction; into a register, since to memory it is slow on Zen 4. */
#define FLOATS_512
#include "kernels/top_k/top_k_select.h"

static uint64_t mask_of(const float *scores, float threshold) {
    const __m512 limits = _mm512_set1_ps(threshold);
    uint64_t mask = 0;
    FLOATS_UNROLL
    for (size_t n = 0; n < 4; n++)
        mask |= (uint64_t)_mm512_cmp_ps_mask(_mm512_loadu_ps(scores + n * FLOATS), limits, _CMP_NLT_UQ) << n * 16;
    return mask;
}

static size_t keep(struct candidates *set, size_t begin, size_t end, uint32_t key_min, size_t at) {
    const __m512i limit = _mm512_set1_epi32((int)key_min);
    size_t i = begin;
    for (; i + FLOATS <= end; i += FLOATS) {
        __m512i index = _mm512_loadu_si512(set->indices + i);
        __mmask16 mask = _mm512_cmpge_epu32_mask(_mm512_loadu_si512(set->keys + i), limit);
        _mm512_storeu_si512(set->indices + at, _mm512_maskz_compress_epi32(mask, index));
        uint32_t kept = mask;
        __asm__("" : "+r"(kept)); /* else GCC 12 under -fsanitize=thread stores 16 bits and counts those of 32 */
        at += (size_t)__builtin_popcount(kept);
    }
    for (; i < end; i++) {
        set->indices[at] = set->indices[i];
        at += set->keys[i] >= key_min;
    }
    return at;
}

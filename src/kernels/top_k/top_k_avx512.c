/* top_k on AVX-512: compression is an instruction; into a register, since to memory it is slow on Zen 4. */
#define FLOATS_512
#include "kernels/top_k/top_k_select.h"

static size_t collect(const struct top_k_args *args, float threshold, struct candidates *set) {
    const __m512 least = _mm512_set1_ps(threshold);
    __m512i index = _mm512_add_epi32(_mm512_set1_epi32((int)args->index_first),
                                     _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    size_t found = 0, i = 0;
    while (i + FLOATS <= args->count) {
        size_t end = min_size(i + SLACK, args->count / FLOATS * FLOATS);
        if (found > set->room) return found;
        for (; i < end; i += FLOATS) {
            __m512 x = _mm512_loadu_ps(args->scores + i);
            __mmask16 mask = _mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ);
            _mm512_storeu_ps(set->scores + found, _mm512_maskz_compress_ps(mask, x));
            _mm512_storeu_si512(set->indices + found, _mm512_maskz_compress_epi32(mask, index));
            found += (size_t)__builtin_popcount(mask);
            index = _mm512_add_epi32(index, _mm512_set1_epi32(FLOATS));
        }
    }
    for (; i < args->count && found <= set->room; i++) {
        set->scores[found] = args->scores[i];
        set->indices[found] = (uint32_t)(args->index_first + i);
        found += !(args->scores[i] < threshold);
    }
    return found;
}

static size_t keep(struct candidates *set, size_t begin, size_t end, uint32_t least, size_t at) {
    const __m512i limit = _mm512_set1_epi32((int)least);
    size_t i = begin;
    for (; i + FLOATS <= end; i += FLOATS) {
        __m512i index = _mm512_loadu_si512(set->indices + i);
        __mmask16 mask = _mm512_cmpge_epu32_mask(_mm512_loadu_si512(set->keys + i), limit);
        _mm512_storeu_si512(set->indices + at, _mm512_maskz_compress_epi32(mask, index));
        at += (size_t)__builtin_popcount(mask);
    }
    for (; i < end; i++) {
        set->indices[at] = set->indices[i];
        at += set->keys[i] >= least;
    }
    return at;
}

void top_k_avx512_install(struct top_k_kernels *kernels) {
    *kernels = (struct top_k_kernels){.select = select_largest, .scratch_bytes = scratch_bytes};
}

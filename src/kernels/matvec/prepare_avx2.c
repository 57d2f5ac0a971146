/* The int8 forms of an input, the same bytes as the reference makes.  Once per input and layer; a few
 * nanoseconds per block, next to rows · columns of product. */
#include <immintrin.h>
#include <string.h>

#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_avx2.h"
#include "kernels/quantize_32.h"

/* Sums of 4 codes in each of 8 lanes. */
INLINE __m256i sum_fours(__m256i q) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
}

/* The numbers of 8 blocks to where lanes are by halves: twice each. */
INLINE void store_twice(float *to, const float *from, __m256i first, __m256i second) {
    const __m256 numbers = _mm256_loadu_ps(from);
    _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(numbers, first));
    _mm256_storeu_ps(to + 8, _mm256_permutevar8x32_ps(numbers, second));
}

/* The negated numbers of blocks that `from` names, the first and the third of each four, to the lanes of `to`. */
INLINE void store_starts(int32_t *to, __m256i numbers, __m256i first, __m256i second) {
    const __m256i zero = _mm256_setzero_si256(), negated = _mm256_sub_epi32(zero, numbers);
    const __m256i at[2] = {_mm256_permutevar8x32_epi32(negated, first), _mm256_permutevar8x32_epi32(negated, second)};
    for (size_t i = 0; i < 2; i++) _mm256_storeu_si256((__m256i *)(to + 8 * i), _mm256_blend_epi32(zero, at[i], 0x11));
}

/* As input_halves_fill; sum8: 8 · (sum of q). */
INLINE void store_halves_32(struct input_q8_32 *group, __m256i sum8) {
    /* The places of blocks 0 0 4 4 1 1 5 5 and 2 2 6 6 3 3 7 7. */
    const __m256i first = _mm256_setr_epi32(0, 0, 2, 2, 4, 4, 6, 6), second = _mm256_setr_epi32(1, 1, 3, 3, 5, 5, 7, 7);
    for (size_t b = 0; b < 8; b++) {
        const __m256i q = load_256(group->q + b * 32);
        _mm_storeu_si128((__m128i *)(group->halves[b / 4][0] + b % 4 * 16), _mm256_castsi256_si128(q));
        _mm_storeu_si128((__m128i *)(group->halves[b / 4][1] + b % 4 * 16), _mm256_extracti128_si256(q, 1));
    }
    store_twice(group->scales, group->scale, first, second);
    store_twice(group->sums, group->sum, first, second);
    store_starts(group->starts[0], sum8, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4),
                 _mm256_setr_epi32(1, 1, 1, 1, 5, 5, 5, 5));
    store_starts(group->starts[1], sum8, _mm256_setr_epi32(2, 2, 2, 2, 6, 6, 6, 6),
                 _mm256_setr_epi32(3, 3, 3, 3, 7, 7, 7, 7));
}

/* As input_256_halves_fill. */
INLINE void store_halves_256(struct input_q8_256 *group) {
    const __m256i first = _mm256_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5), second = _mm256_setr_epi32(2, 2, 6, 6, 3, 3, 7, 7);
    for (size_t b = 0; b < 8; b++) {
        const __m256i q = load_256(group->q + b * 32);
        _mm_storeu_si128((__m128i *)(group->halves[b % 2][0] + b / 2 * 16), _mm256_castsi256_si128(q));
        _mm_storeu_si128((__m128i *)(group->halves[b % 2][1] + b / 2 * 16), _mm256_extracti128_si256(q, 1));
    }
    store_twice(group->lane_scale, group->scale, first, second);
    store_twice(group->lane_sum, group->sum, first, second);
    for (size_t odd = 0; odd < 2; odd++) {
        const int at = 4 * (int)odd; /* the places of blocks odd, 2 + odd, 4 + odd, 6 + odd follow each other */
        store_starts(group->starts[odd], load_256(group->sum16), _mm256_setr_epi32(at, at, at, at, at + 1, at, at, at),
                     _mm256_setr_epi32(at + 2, at, at, at, at + 3, at, at, at));
    }
}

/* What follows from q and the scales. */
static void finish_group_32(struct input_q8_32 *group) {
    __m256i sums = _mm256_setzero_si256(); /* of two codes of each block, then of all that meet in a lane */
    for (size_t half = 0; half < 2; half++) {
        __m256i pair[4];
        for (size_t p = 0; p < 4; p++) {
            const int8_t *q = group->q + 64 * p + 16 * half;
            pair[p] = _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(q)), load_128(q + 32), 1);
        }
        turn_4(pair);
        for (size_t k = 0; k < 4; k++) {
            _mm256_storeu_si256((__m256i *)(group->turned + 128 * half + 32 * k), pair[k]);
            sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(_mm256_set1_epi8(1), pair[k]));
        }
    }
    __m256i whole = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
    __m256i start = _mm256_slli_epi16(_mm256_sub_epi16(_mm256_setzero_si256(), sums), 3);
    _mm256_storeu_si256((__m256i *)group->start, start);
    _mm256_storeu_ps(group->sum, _mm256_mul_ps(_mm256_loadu_ps(group->scale), _mm256_cvtepi32_ps(whole)));
    _mm256_storeu_si256((__m256i *)group->sum8, _mm256_slli_epi32(whole, 3));
    store_halves_32(group, _mm256_slli_epi32(whole, 3));
}

static void prepare_group_32(const float *x, struct input_q8_32 *group) {
    for (size_t b = 0; b < 8; b++) {
        __m256i q;
        group->scale[input_block_place(b)] = quantize_32(x + b * 32, &q);
        _mm256_storeu_si256((__m256i *)(group->q + b * 32), q);
    }
    finish_group_32(group);
}

static void prepare_q8_32(const float *x, size_t columns, void *prepared) {
    struct input_q8_32 *group = prepared;
    for (size_t begin = 0; begin < columns; begin += INPUT_GROUP, group++) {
        if (columns - begin >= INPUT_GROUP) {
            prepare_group_32(x + begin, group);
        } else { /* of zeros: codes, sums and scales that are zero */
            float last[INPUT_GROUP] = {0};
            memcpy(last, x + begin, (columns - begin) * sizeof *x);
            prepare_group_32(last, group);
        }
    }
}

/* first, second: the sums of the first and the second 16 of each block, in the order of input_block_place. */
INLINE void store_sums_256(struct input_q8_256 *group, __m256i first, __m256i second) {
    const __m256i both = _mm256_add_epi32(first, second);
    const __m256 scale = _mm256_loadu_ps(group->scale);
    __m256i words = _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xaa);
    _mm256_storeu_si256((__m256i *)group->sums, words);
    _mm256_storeu_si256((__m256i *)group->sum16, _mm256_slli_epi32(both, 4));
    _mm256_storeu_ps(group->group_sum[0], _mm256_mul_ps(scale, _mm256_cvtepi32_ps(first)));
    _mm256_storeu_ps(group->group_sum[1], _mm256_mul_ps(scale, _mm256_cvtepi32_ps(second)));
    _mm256_storeu_ps(group->sum, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(both)));
}

static void prepare_group_256(const float *x, struct input_q8_256 *group) {
    for (size_t b = 0; b < 8; b++) {
        __m256i q;
        group->scale[input_block_place(b)] = quantize_32(x + b * 32, &q);
        _mm256_storeu_si256((__m256i *)(group->q + b * 32), q);
        __m256i start = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum_fours(q), 5));
        _mm256_storeu_si256((__m256i *)(group->start_4 + 8 * b), start);
    }
    __m256i halves[2]; /* of the even and the odd blocks: the sums of the first halves, then of the second ones */
    for (size_t odd = 0; odd < 2; odd++) {
        __m256i turned[4], sums = _mm256_setzero_si256();
        for (size_t k = 0; k < 4; k++) turned[k] = load_256(group->q + 64 * k + 32 * odd);
        turn_4(turned);
        for (size_t j = 0; j < 4; j++) {
            _mm256_storeu_si256((__m256i *)(group->turned + 128 * odd + 32 * j), turned[j]);
            sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(_mm256_set1_epi8(1), turned[j]));
        }
        const __m256i start = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(sums, 5));
        _mm256_storeu_si256((__m256i *)group->start[odd], start);
        halves[odd] = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
    }
    store_sums_256(group, _mm256_permute2x128_si256(halves[0], halves[1], 0x20),
                   _mm256_permute2x128_si256(halves[0], halves[1], 0x31));
    store_halves_256(group);
}

static void prepare_q8_256(const float *x, size_t columns, void *prepared) {
    struct input_q8_256 *group = prepared;
    for (size_t begin = 0; begin < columns; begin += INPUT_GROUP, group++) {
        if (columns - begin >= INPUT_GROUP) {
            prepare_group_256(x + begin, group);
        } else {
            float last[INPUT_GROUP] = {0};
            memcpy(last, x + begin, (columns - begin) * sizeof *x);
            prepare_group_256(last, group);
        }
    }
}

void matvec_prepare_avx2_install(struct matvec_kernels *kernels) {
    kernels->prepare[MATVEC_FORM_Q8_32] = prepare_q8_32;
    kernels->prepare[MATVEC_FORM_Q8_256] = prepare_q8_256;
}

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

INLINE int sum_low(__m128i four) {
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

static void prepare_block_32(const float *x, struct input_q8_32 *group, size_t b) {
    __m256i q;
    group->scale[input_block_place(b)] = quantize_32(x, &q);
    _mm256_storeu_si256((__m256i *)(group->q + b * 32), q);
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
    input_halves_fill(group);
}

static void prepare_q8_32(const float *x, size_t columns, void *prepared) {
    struct input_q8_32 *group = prepared;
    for (size_t begin = 0; begin < columns; begin += INPUT_GROUP, group++) {
        size_t count = columns - begin;
        if (count < INPUT_GROUP) memset(group, 0, sizeof *group);
        for (size_t b = 0; b < 8 && b * 32 < count; b++) {
            float last[32] = {0};
            bool whole = b * 32 + 32 <= count;
            if (!whole) memcpy(last, x + begin + b * 32, (count - b * 32) * sizeof *x);
            prepare_block_32(whole ? x + begin + b * 32 : last, group, b);
        }
        finish_group_32(group);
    }
}

/* {first, second 16} of block b, to where its numbers are. */
static void store_sums_256(struct input_q8_256 *group, size_t b, __m256i q) {
    __m256i fours = sum_fours(q);
    size_t place = input_block_place(b);
    int first = sum_low(_mm256_castsi256_si128(fours)), second = sum_low(_mm256_extracti128_si256(fours, 1));
    group->sums[place][0] = (int16_t)first, group->sums[place][1] = (int16_t)second;
    group->sum16[place] = 16 * (first + second);
    group->group_sum[0][place] = group->scale[place] * (float)first;
    group->group_sum[1][place] = group->scale[place] * (float)second;
    group->sum[place] = group->scale[place] * (float)(first + second);
}

static void prepare_group_256(const float *x, struct input_q8_256 *group) {
    for (size_t b = 0; b < 8; b++) {
        __m256i q;
        group->scale[input_block_place(b)] = quantize_32(x + b * 32, &q);
        _mm256_storeu_si256((__m256i *)(group->q + b * 32), q);
        store_sums_256(group, b, q);
    }
    for (size_t odd = 0; odd < 2; odd++) {
        __m256i turned[4], start = _mm256_setzero_si256();
        for (size_t k = 0; k < 4; k++) turned[k] = load_256(group->q + 64 * k + 32 * odd);
        turn_4(turned);
        for (size_t j = 0; j < 4; j++) {
            _mm256_storeu_si256((__m256i *)(group->turned + 128 * odd + 32 * j), turned[j]);
            start = _mm256_sub_epi16(start, _mm256_maddubs_epi16(_mm256_set1_epi8(1), turned[j]));
        }
        _mm256_storeu_si256((__m256i *)group->start[odd], _mm256_slli_epi16(start, 5));
    }
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

void matvec_init_prepare_avx2(struct matvec_kernels *kernels) {
    kernels->prepare[MATVEC_FORM_Q8_32] = prepare_q8_32;
    kernels->prepare[MATVEC_FORM_Q8_256] = prepare_q8_256;
}

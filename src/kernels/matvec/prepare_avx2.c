/* The int8 forms of an input, the same bytes as the reference makes.  Once per input and layer; a few
 * nanoseconds per block, next to rows · columns of product. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_avx2.h"
#include "tensor/half.h"

/* The largest magnitude in each lane, as integers: the order of floats, with NaN above all. */
INLINE __m256i magnitude_most(__m256i most, const float *x) {
    return _mm256_max_epi32(most, _mm256_and_si256(load_256(x), _mm256_set1_epi32(0x7fffffff)));
}

struct rounding {
    float scale, inverse; /* q = round(x · inverse); 0 and 0 for zeros, NaN and 0 for what is not finite */
};

INLINE struct rounding rounding_of(__m256i most) {
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    if (_mm_cvtsi128_si32(half) >= 0x7f800000) return (struct rounding){NAN, 0};
    float largest = _mm_cvtss_f32(_mm_castsi128_ps(half));
    if (largest < INPUT_TINY) return (struct rounding){0, 0};
    return (struct rounding){largest / 127, 127 / largest};
}

/* 32 floats to 32 codes. */
INLINE __m256i round_32(const float *x, float inverse) {
    __m256 factor = _mm256_set1_ps(inverse);
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
    __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor));
    __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), factor));
    __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), factor));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Sums of 4 codes in each of 8 lanes. */
INLINE __m256i sum_fours(__m256i q) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
}

INLINE int sum_low(__m128i four) {
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

static void prepare_block_32(const float *x, struct input_q8_32 *group, size_t b) {
    __m256i most = _mm256_setzero_si256();
    for (size_t i = 0; i < 32; i += 8) most = magnitude_most(most, x + i);
    struct rounding rounding = rounding_of(most);
    __m256i q = _mm256_setzero_si256();
    if (rounding.inverse != 0) q = round_32(x, rounding.inverse);
    group->scale[input_block_place(b)] = round_to_half_precision(rounding.scale);
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

static void prepare_group_256(const float *x, struct input_q8_256 *group) {
    __m256i most = _mm256_setzero_si256();
    for (size_t i = 0; i < INPUT_GROUP; i += 8) most = magnitude_most(most, x + i);
    struct rounding rounding = rounding_of(most);
    memset(group, 0, sizeof *group);
    _mm256_storeu_ps(group->scale, _mm256_set1_ps(rounding.scale));
    if (rounding.inverse == 0) return;
    for (size_t b = 0; b < 8; b++) {
        __m256i q = round_32(x + b * 32, rounding.inverse), fours = sum_fours(q);
        _mm256_storeu_si256((__m256i *)(group->q + b * 32), q);
        group->sums[2 * b] = (int16_t)sum_low(_mm256_castsi256_si128(fours));
        group->sums[2 * b + 1] = (int16_t)sum_low(_mm256_extracti128_si256(fours, 1));
        group->sums_32[b] = (int16_t)(group->sums[2 * b] + group->sums[2 * b + 1]);
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

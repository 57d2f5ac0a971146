/* Rotations 8 floats at a time; a row of heads stays in the first-level cache, so that this is bound by
 * its loads and stores and a wider variant would gain nothing that shows. */
#include <immintrin.h>

#include "kernels/rope/rope.h"

/* {a0 b0 a1 b1 ...}: even elements a cos - b sin, odd ones b cos + a sin. */
static void apply_adjacent(float *x, size_t pair_count, const float *cosine_sine) {
    size_t j = 0;
    for (; j + 4 <= pair_count; j += 4) {
        __m256 pair = _mm256_loadu_ps(x + 2 * j), turn = _mm256_loadu_ps(cosine_sine + 2 * j);
        __m256 crossed = _mm256_mul_ps(_mm256_permute_ps(pair, 0xb1), _mm256_movehdup_ps(turn));
        _mm256_storeu_ps(x + 2 * j, _mm256_fmaddsub_ps(pair, _mm256_moveldup_ps(turn), crossed));
    }
    for (; j < pair_count; j++) {
        float a = x[2 * j], b = x[2 * j + 1], cosine = cosine_sine[2 * j], sine = cosine_sine[2 * j + 1];
        x[2 * j] = a * cosine - b * sine;
        x[2 * j + 1] = a * sine + b * cosine;
    }
}

static void apply_split(float *x, size_t pair_count, const float *cosine_sine) {
    size_t j = 0;
    for (; j + 8 <= pair_count; j += 8) {
        __m256 first = _mm256_loadu_ps(cosine_sine + 2 * j), second = _mm256_loadu_ps(cosine_sine + 2 * j + 8);
        __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(first, second, 0x88)); /* c0 c1 c4 c5 c2 c3 c6 c7 */
        __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(first, second, 0xdd));
        __m256 cosine = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
        __m256 sine = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
        __m256 a = _mm256_loadu_ps(x + j), b = _mm256_loadu_ps(x + pair_count + j);
        _mm256_storeu_ps(x + j, _mm256_fmsub_ps(a, cosine, _mm256_mul_ps(b, sine)));
        _mm256_storeu_ps(x + pair_count + j, _mm256_fmadd_ps(a, sine, _mm256_mul_ps(b, cosine)));
    }
    for (; j < pair_count; j++) {
        float a = x[j], b = x[pair_count + j], cosine = cosine_sine[2 * j], sine = cosine_sine[2 * j + 1];
        x[j] = a * cosine - b * sine;
        x[pair_count + j] = a * sine + b * cosine;
    }
}

static void apply(float *x, size_t head_count, size_t head_stride, size_t pair_count, enum rope_order order,
                  const float *cosine_sine) {
    for (size_t head = 0; head < head_count; head++)
        (order == ROPE_ADJACENT ? apply_adjacent : apply_split)(x + head * head_stride, pair_count, cosine_sine);
}

void rope_avx2_install(struct rope_kernels *kernels) { kernels->apply = apply; }

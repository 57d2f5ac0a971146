/* Decoding on AVX2 for the types that models mostly use; the same floats as the reference, bit for bit: the
 * same multiplications and subtractions in the same order, none fused (the build forbids contraction). */
#include <immintrin.h>
#include <string.h>

#include "kernels/convert/codes.h"
#include "kernels/convert/convert.h"
#include "kernels/convert/grid.h"
#include "tensor/half.h"

static inline __m128i load_128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
static inline __m256i load_256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

static void dequantize_f16(const void *source, float *target, size_t count) {
    const uint16_t *x = source;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(target + i, _mm256_cvtph_ps(load_128(x + i)));
    for (; i < count; i++) target[i] = half_to_float(x[i]);
}

static void dequantize_bf16(const void *source, float *target, size_t count) {
    const uint16_t *x = source;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(x + i)), 16);
        _mm256_storeu_si256((__m256i *)(target + i), bits);
    }
    for (; i < count; i++) target[i] = bfloat_to_float(x[i]);
}

/* y[0..15] = 16 signed codes · step. */
static inline void store_16(float *y, __m128i codes, __m256 step) {
    __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)));
    _mm256_storeu_ps(y, _mm256_mul_ps(low, step));
    _mm256_storeu_ps(y + 8, _mm256_mul_ps(high, step));
}

/* y[0..31] = 32 codes · step − offset. */
static inline void store_32_less(float *y, __m256i codes, __m256 step, __m256 offset) {
    __m128i half[2] = {_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1)};
    for (size_t h = 0; h < 2; h++) {
        __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(half[h]));
        __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(half[h], 8)));
        _mm256_storeu_ps(y + 16 * h, _mm256_sub_ps(_mm256_mul_ps(step, low), offset));
        _mm256_storeu_ps(y + 16 * h + 8, _mm256_sub_ps(_mm256_mul_ps(step, high), offset));
    }
}

static void dequantize_q8_0(const void *source, float *y, size_t count) {
    const struct block_q8_0 *block = source;
    for (size_t b = 0; b < count / BLOCK_32; b++, y += BLOCK_32) {
        __m256 d = _mm256_set1_ps(half_to_float(block[b].d));
        store_16(y, load_128(block[b].qs), d);
        store_16(y + 16, load_128(block[b].qs + 16), d);
    }
}

static void dequantize_q4_0(const void *source, float *y, size_t count) {
    const struct block_q4_0 *block = source;
    const __m128i mask = _mm_set1_epi8(15), offset = _mm_set1_epi8(8);
    for (size_t b = 0; b < count / BLOCK_32; b++, y += BLOCK_32) {
        __m256 d = _mm256_set1_ps(half_to_float(block[b].d));
        __m128i codes = load_128(block[b].qs);
        store_16(y, _mm_sub_epi8(_mm_and_si128(codes, mask), offset), d);
        store_16(y + 16, _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(codes, 4), mask), offset), d);
    }
}

static void dequantize_q4_k(const void *source, float *y, size_t count) {
    const struct block_q4_k *block = source;
    const __m256i mask = _mm256_set1_epi8(15);
    for (size_t b = 0; b < count / BLOCK_256; b++, y += BLOCK_256) {
        float d = half_to_float(block[b].d), dmin = half_to_float(block[b].dmin);
        for (size_t j = 0; j < 8; j++) {
            uint8_t scale, minimum;
            q4_k_scale_get(block[b].scales, j, &scale, &minimum);
            __m256i codes = load_256(block[b].qs + j / 2 * 32);
            if (j % 2) codes = _mm256_srli_epi16(codes, 4);
            store_32_less(y + j * 32, _mm256_and_si256(codes, mask), _mm256_set1_ps(d * (float)scale),
                          _mm256_set1_ps(dmin * (float)minimum));
        }
    }
}

/* Codes − 32 of the k-th 32 elements of a half of 128. */
static inline __m256i q6_k_codes(const struct block_q6_k *block, size_t half, size_t k) {
    __m256i low = load_256(block->ql + half * 64 + k % 2 * 32), high = load_256(block->qh + half * 32);
    if (k >= 2) low = _mm256_srli_epi16(low, 4);
    high = _mm256_srl_epi16(high, _mm_cvtsi32_si128((int)(2 * k)));
    low = _mm256_and_si256(low, _mm256_set1_epi8(15));
    high = _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(3)), 4);
    return _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32));
}

static void dequantize_q6_k(const void *source, float *y, size_t count) {
    const struct block_q6_k *block = source;
    for (size_t b = 0; b < count / BLOCK_256; b++, y += BLOCK_256) {
        float d = half_to_float(block[b].d);
        for (size_t k = 0; k < 8; k++) {
            __m256i codes = q6_k_codes(&block[b], k / 4, k % 4);
            const int8_t *scales = block[b].scales + 2 * k;
            store_16(y + 32 * k, _mm256_castsi256_si128(codes), _mm256_set1_ps(d * (float)scales[0]));
            store_16(y + 32 * k + 16, _mm256_extracti128_si256(codes, 1), _mm256_set1_ps(d * (float)scales[1]));
        }
    }
}

static inline void dequantize_grid(grid_unpack *unpack, size_t bytes, const void *source, float *y, size_t count) {
    const uint8_t *block = source;
    for (size_t b = 0; b < count / BLOCK_256; b++, y += BLOCK_256, block += bytes) {
        struct grid_block values;
        unpack(block, &values);
        for (size_t g = 0; g < 16; g++)
            store_16(y + 16 * g, load_128(values.codes + 16 * g), _mm256_set1_ps(values.d * (float)values.scales[g]));
    }
}

#define GRID(name, NAME)                                                                    \
    static void dequantize_##name(const void *source, float *y, size_t count) {             \
        dequantize_grid(name##_unpack_avx2, sizeof(struct block_##name), source, y, count); \
    }
GRID_TYPES(GRID)
#undef GRID

void convert_avx2_install(struct convert_kernels *kernels) {
    kernels->dequantize[TENSOR_F16] = dequantize_f16;
    kernels->dequantize[TENSOR_BF16] = dequantize_bf16;
    kernels->dequantize[TENSOR_Q8_0] = dequantize_q8_0;
    kernels->dequantize[TENSOR_Q4_0] = dequantize_q4_0;
    kernels->dequantize[TENSOR_Q4_K] = dequantize_q4_k;
    kernels->dequantize[TENSOR_Q6_K] = dequantize_q6_k;
#define GRID(name, NAME) kernels->dequantize[TENSOR_##NAME] = dequantize_##name;
    GRID_TYPES(GRID)
#undef GRID
}

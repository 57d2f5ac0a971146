/* matvec for the types of points of grids (IQ1, IQ2, IQ3), on AVX2.
 *
 * Mapping: a block of 256 is unpacked once to signed bytes and 16 whole scales (convert/grid.h), in L1, for up to 4
 * inputs.  The sign of a code moves to the input: |code| <= 62 as u8, 62·127·2 < 2^15.  Products are widened with the
 * scale of their 16, so that a block of 32 is one integer, below 2^24 and exact as a float.
 *
 * Bound: the look-ups of points, 32 or 64 of a block, not memory. */
#include <immintrin.h>

#include "kernels/convert/grid.h"
#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_avx2.h"

INLINE const struct input_q8_256 *input(const void *x) { return x; }

/* The scale of the first 16 of a block of 32 in the low half, of the second in the high one. */
INLINE __m256i scale_pair(const int16_t *scales) {
    return _mm256_set_m128i(_mm_set1_epi16(scales[1]), _mm_set1_epi16(scales[0]));
}

INLINE void grid_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc, grid_unpack *unpack) {
    struct grid_block block;
    __m256i sum[TILE_MAX][8];
    unpack(w, &block);
    UNROLL for (size_t k = 0; k < 8; k++) {
        const __m256i codes = load_256(block.codes + 32 * k), size = _mm256_abs_epi8(codes);
        const __m256i scale = scale_pair(block.scales + 2 * k);
        UNROLL for (size_t i = 0; i < n; i++) {
            __m256i x_signed = _mm256_sign_epi8(load_256(input(x[i])->q + 32 * k), codes);
            sum[i][k] = _mm256_madd_epi16(_mm256_maddubs_epi16(size, x_signed), scale);
        }
    }
    const __m256 d = _mm256_set1_ps(block.d);
    UNROLL for (size_t i = 0; i < n; i++) {
        const __m256 dot = _mm256_cvtepi32_ps(fold_blocks(sum[i]));
        acc[i] = _mm256_fmadd_ps(_mm256_mul_ps(dot, d), _mm256_loadu_ps(input(x[i])->scale), acc[i]);
    }
}

#define RUN(name, NAME)                                                                                     \
    INLINE void name##_group(const uint8_t *w, const void *const *x, size_t n, __m256 *acc) {               \
        grid_group(w, x, n, acc, name##_unpack_avx2);                                                       \
    }                                                                                                       \
    static void run_##name(const struct matvec_args *args) {                                                \
        rows_run(args, name##_group,                                                                        \
                 (struct row_kind){sizeof(struct block_##name), 1, sizeof(struct input_q8_256), 4, false}); \
    }
GRID_TYPES(RUN)
#undef RUN

void matvec_grid_avx2_install(struct matvec_kernels *kernels) {
#define RUN(name, NAME) kernels->run[TENSOR_##NAME] = run_##name;
    GRID_TYPES(RUN)
#undef RUN
}

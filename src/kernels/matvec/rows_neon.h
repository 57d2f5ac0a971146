/* rows_neon: the accumulators of the variants of matvec for 64-bit ARM, with the loop over rows, and their
 * byte products. */
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/matvec/matvec_internal.h"
#include "kernels/matvec/rows_inline.h"

/* sum + a·b over 16 bytes, each lane four of the products; |a|, |b| <= 128, not both 128. */
INLINE int32x4_t dot_add(int32x4_t sum, int8x16_t a, int8x16_t b) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sum, a, b);
#else
    int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

INLINE float half_at(const void *p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))), 0);
}

/* Two chains: one would wait for itself. */
typedef struct {
    float32x4_t chain[2];
} row_vector;
INLINE row_vector row_zero(void) { return (row_vector){{vdupq_n_f32(0), vdupq_n_f32(0)}}; }
INLINE void row_sums_add(const row_vector four[4], float *totals) {
    UNROLL for (size_t i = 0; i < 4; i++) { totals[i] += vaddvq_f32(vaddq_f32(four[i].chain[0], four[i].chain[1])); }
}

#include "kernels/matvec/rows_loop.h"

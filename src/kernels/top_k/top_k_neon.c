/* top_k on NEON: masks by adding up a bit per lane.  NEON compresses no registers, so what is kept is moved one by
 * one, without branches. */
#include "kernels/top_k/top_k_select.h"

/* All ones where a score is not below limit. */
FLOATS_INLINE uint16x8_t lanes_taken(const float *scores, float32x4_t limit) {
    uint32x4_t low = vmvnq_u32(vcltq_f32(vld1q_f32(scores), limit));
    uint32x4_t high = vmvnq_u32(vcltq_f32(vld1q_f32(scores + 4), limit));
    return vmovn_high_u32(vmovn_u32(low), high);
}

static uint64_t mask_of(const float *scores, float threshold) {
    static const uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const float32x4_t limits = vdupq_n_f32(threshold);
    const uint8x16_t bit = vld1q_u8(bits);
    uint64_t mask = 0;
    FLOATS_UNROLL
    for (size_t n = 0; n < 4; n++) {
        uint8x8_t low = vmovn_u16(lanes_taken(scores + n * 16, limits));
        uint8x16_t taken = vandq_u8(vmovn_high_u16(low, lanes_taken(scores + n * 16 + 8, limits)), bit);
        uint64_t two = (uint64_t)vaddv_u8(vget_low_u8(taken)) | (uint64_t)vaddv_u8(vget_high_u8(taken)) << 8;
        mask |= two << n * 16;
    }
    return mask;
}

static size_t keep(struct candidates *set, size_t begin, size_t end, uint32_t key_min, size_t at) {
    for (size_t i = begin; i < end; i++) {
        set->indices[at] = set->indices[i];
        at += set->keys[i] >= key_min;
    }
    return at;
}

/* Rotations 4 pairs at a time: the structured loads and stores of 64-bit ARM take pairs apart and put them
 * together again. */
#include <arm_neon.h>

#include "kernels/rope/rope.h"

/* a cos - b sin and b cos + a sin, in place. */
static inline void turn(float32x4_t *a, float32x4_t *b, float32x4x2_t cosine_sine) {
    float32x4_t x = *a, y = *b;
    *a = vfmsq_f32(vmulq_f32(x, cosine_sine.val[0]), y, cosine_sine.val[1]);
    *b = vfmaq_f32(vmulq_f32(y, cosine_sine.val[0]), x, cosine_sine.val[1]);
}

static void turn_one(float *a, float *b, const float *cosine_sine) {
    float x = *a, y = *b;
    *a = x * cosine_sine[0] - y * cosine_sine[1];
    *b = x * cosine_sine[1] + y * cosine_sine[0];
}

static void apply_adjacent(float *x, size_t pair_count, const float *cosine_sine) {
    size_t j = 0;
    for (; j + 4 <= pair_count; j += 4) {
        float32x4x2_t pairs = vld2q_f32(x + 2 * j);
        turn(&pairs.val[0], &pairs.val[1], vld2q_f32(cosine_sine + 2 * j));
        vst2q_f32(x + 2 * j, pairs);
    }
    for (; j < pair_count; j++) turn_one(x + 2 * j, x + 2 * j + 1, cosine_sine + 2 * j);
}

static void apply_split(float *x, size_t pair_count, const float *cosine_sine) {
    size_t j = 0;
    for (; j + 4 <= pair_count; j += 4) {
        float32x4_t a = vld1q_f32(x + j), b = vld1q_f32(x + pair_count + j);
        turn(&a, &b, vld2q_f32(cosine_sine + 2 * j));
        vst1q_f32(x + j, a);
        vst1q_f32(x + pair_count + j, b);
    }
    for (; j < pair_count; j++) turn_one(x + j, x + pair_count + j, cosine_sine + 2 * j);
}

static void apply(float *x, size_t head_count, size_t head_stride, size_t pair_count, enum rope_order order,
                  const float *cosine_sine) {
    for (size_t head = 0; head < head_count; head++)
        (order == ROPE_ADJACENT ? apply_adjacent : apply_split)(x + head * head_stride, pair_count, cosine_sine);
}

void rope_neon_install(struct rope_kernels *kernels) { kernels->apply = apply; }

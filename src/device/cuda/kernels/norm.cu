/* norm: RMSNorm and LayerNorm of rows, by a block each, or of heads, by a warp each; and the same into inputs
 * of 8 bits. */
#include "device/cuda/rows.h"

/* In the order of row_quantize, so that a node that norms and quantises has the bits of both apart. */
DEVICE void halves_norm(const struct cuda_norm_args &args, const float *x, float *y, struct norm_shared *shared) {
    const uint32_t count = args.segment_size;
    const float *w = at<float>(args.w), *b = at<float>(args.b);
    const struct norm_factors f = norm_factors_of(x, count, b != 0, args.epsilon, shared);
    for (uint32_t h = thread_index(); h < count / 16; h += 256) {
        float v[16];
        half_load(x, h, v);
        half_norm(v, h, f, w, b);
        if (args.adds) {
            float sum[16];
            half_load(y, h, sum);
            UNROLL
            for (uint32_t i = 0; i < 16; i++) v[i] = sum[i] + v[i];
            UNROLL
            for (uint32_t i = 0; i < 16; i++) v[i] = args.scale != 0 ? v[i] * args.scale : v[i];
        }
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            *(struct f32x4 *)(y + h * 16 + i * 4) = {v[i * 4], v[i * 4 + 1], v[i * 4 + 2], v[i * 4 + 3]};
    }
}

/* A segment of any size. */
KERNEL(norm_rows, cuda_norm_args, 256, 4) {
    struct norm_shared &shared = SHARED(struct norm_shared);
    dependents_start();
    dependency_wait();
    if (block_x() >= step_rows(args.step, args.row_count)) return;
    const uint32_t first = block_y() * args.segment_size, count = args.segment_size;
    const float *x = at<float>(args.x) + (uint64_t)block_x() * args.x_stride + first;
    float *y = at<float>(args.y) + (uint64_t)block_x() * args.y_stride + first;
    const float *w = at<float>(args.w), *b = at<float>(args.b);
    float mean = 0, sum = 0;
    const bool by_fours = (args.x | args.y | args.w | args.b) % 16 == 0 && args.x_stride % 4 == 0 &&
                          args.y_stride % 4 == 0;
    if (count % 16 == 0 && by_fours) {
        halves_norm(args, x, y, &shared);
        return;
    }
    if (b != 0) {
        for (uint32_t i = thread_index(); i < count; i += 256) sum += x[i];
        mean = block_sum(sum, shared.sums[0]) / (float)count;
        sum = 0;
    }
    for (uint32_t i = thread_index(); i < count; i += 256) sum = multiply_add(x[i] - mean, x[i] - mean, sum);
    const float inverse =
        1.0f / __builtin_sqrtf(block_sum(sum, shared.sums[1]) / (float)count + args.epsilon);
    for (uint32_t i = thread_index(); i < count; i += 256) {
        const float normed = (x[i] - mean) * inverse * w[i] + (b != 0 ? b[i] : 0);
        const float whole = args.adds ? y[i] + normed : normed;
        y[i] = args.adds && args.scale != 0 ? whole * args.scale : whole;
    }
}

KERNEL(norm_heads, cuda_norm_args, 256, 4) {
    dependents_start();
    dependency_wait();
    const uint32_t segment = block_y() * 8 + thread_index() / 32, lane = lane_index();
    if (block_x() >= step_rows(args.step, args.row_count) || segment >= args.segment_count) return;
    const uint32_t first = segment * args.segment_size, count = args.segment_size;
    const float *x = at<float>(args.x) + (uint64_t)block_x() * args.x_stride + first;
    float *y = at<float>(args.y) + (uint64_t)block_x() * args.y_stride + first;
    const float *w = at<float>(args.w), *b = at<float>(args.b);
    float v[NORM_HEAD_MAX / 32], mean = 0, sum = 0;
    UNROLL
    for (uint32_t i = 0; i < NORM_HEAD_MAX / 32; i++) {
        v[i] = lane + i * 32 < count ? x[lane + i * 32] : 0;
        sum += v[i];
    }
    if (b != 0) mean = warp_sum(sum) / (float)count;
    sum = 0;
    UNROLL
    for (uint32_t i = 0; i < NORM_HEAD_MAX / 32; i++)
        if (lane + i * 32 < count) sum = multiply_add(v[i] - mean, v[i] - mean, sum);
    const float inverse = 1.0f / __builtin_sqrtf(warp_sum(sum) / (float)count + args.epsilon);
    UNROLL
    for (uint32_t i = 0; i < NORM_HEAD_MAX / 32; i++) {
        const uint32_t at_i = lane + i * 32;
        if (at_i < count) y[at_i] = (v[i] - mean) * inverse * w[at_i] + (b != 0 ? b[at_i] : 0);
    }
}

KERNEL(quantize_rows, cuda_quantize_args, 256, 2) {
    struct norm_shared &shared = SHARED(struct norm_shared);
    dependents_start();
    dependency_wait();
    if (block_x() >= step_rows(args.step, args.row_count)) return;
    char *row = at<char>(args.y) + (uint64_t)block_x() * input_row_bytes(args.columns);
    row_quantize(at<float>(args.x) + (uint64_t)block_x() * args.x_stride, args.columns,
                 args.norm == QUANTIZE_PLAIN ? 0 : at<float>(args.w),
                 args.norm == QUANTIZE_LAYER ? at<float>(args.b) : 0, args.norm == QUANTIZE_LAYER,
                 args.epsilon, &shared, input_row_of(row, args.columns));
}

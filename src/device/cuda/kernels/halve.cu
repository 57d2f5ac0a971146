/* halve_rows: rows of floats as halves times a power of two, with or without the norm before; restore_rows: floats of
 * which halve_rows makes the same. */
#include "device/cuda/rows.h"

/* The power of two in a float's exponent: x / it is below 2.  1 where all is 0; NaN where one is not finite. */
DEVICE float row_power(uint32_t largest_bits) {
    if (largest_bits >= FLOAT_INFINITE) return bits_float(0x7fffffffu);
    return largest_bits < 0x01000000u ? 1.0f : bits_float(largest_bits & FLOAT_INFINITE);
}

DEVICE uint32_t block_largest(uint32_t value, uint32_t bits[8]) {
    value = warp_largest(value);
    if (lane_index() == 0) bits[thread_index() / 32] = value;
    block_barrier();
    uint32_t largest = 0;
    UNROLL
    for (uint32_t i = 0; i < 8; i++) largest = bits[i] > largest ? bits[i] : largest;
    return largest;
}

/* Eight columns: columns need not be multiples of 16. */
DEVICE void eight_norm(const float *x, uint32_t i, struct norm_factors f, const float *w, const float *b,
                       float v[8]) {
    UNROLL
    for (uint32_t k = 0; k < 8; k++) {
        v[k] = x[i * 8 + k];
        if (w != 0) v[k] = (v[k] - f.mean) * f.inverse * w[i * 8 + k];
        if (w != 0 && b != 0) v[k] += b[i * 8 + k];
    }
}

DEVICE struct norm_factors eight_factors(const float *x, uint32_t columns, bool is_layer, float epsilon,
                                         struct norm_shared *shared) {
    struct norm_factors f = {0, 0};
    float sum = 0;
    if (is_layer) {
        for (uint32_t i = thread_index(); i < columns; i += 256) sum += x[i];
        f.mean = block_sum(sum, shared->sums[0]) / (float)columns;
        sum = 0;
    }
    for (uint32_t i = thread_index(); i < columns; i += 256)
        sum = multiply_add(x[i] - f.mean, x[i] - f.mean, sum);
    f.inverse = 1.0f / __builtin_sqrtf(block_sum(sum, shared->sums[1]) / (float)columns + epsilon);
    return f;
}

KERNEL(halve_rows, cuda_halve_args, 256, 4) {
    struct norm_shared &shared = SHARED(struct norm_shared);
    dependents_start();
    dependency_wait();
    if (block_x() >= step_rows(args.step, args.row_count)) return;
    const float *x = at<float>(args.x) + (uint64_t)block_x() * args.x_stride;
    const float *w = at<float>(args.w), *b = at<float>(args.b);
    struct norm_factors f = {0, 1};
    if (w != 0) f = eight_factors(x, args.columns, b != 0, args.epsilon, &shared);
    uint32_t largest = 0;
    float v[8];
    for (uint32_t i = thread_index(); i < args.columns / 8; i += 256) {
        eight_norm(x, i, f, w, b, v);
        UNROLL
        for (uint32_t k = 0; k < 8; k++) {
            const uint32_t bits = float_bits(v[k]) & 0x7fffffffu;
            largest = bits > largest ? bits : largest;
        }
    }
    const float power = row_power(block_largest(largest, (uint32_t *)shared.sums[0])), inverse = 1.0f / power;
    if (thread_index() == 0) at<float>(args.scales)[block_x()] = power;
    struct u32x4 *y = (struct u32x4 *)(at<uint16_t>(args.y) + (uint64_t)block_x() * args.columns);
    for (uint32_t i = thread_index(); i < args.columns / 8; i += 256) {
        eight_norm(x, i, f, w, b, v);
        UNROLL
        for (uint32_t k = 0; k < 8; k++) v[k] *= inverse;
        y[i] = {halves_of(v[0], v[1]), halves_of(v[2], v[3]), halves_of(v[4], v[5]), halves_of(v[6], v[7])};
    }
}

/* A magnitude that was rounded up to twice the power comes back a bit below it, or the row would have another one. */
DEVICE float restored(uint32_t half, float power) {
    const float value = half_value(half), below = 0x1.fffffep0f;
    return power * (value == 2 ? below : value == -2 ? -below : value);
}

KERNEL(restore_rows, cuda_halve_args, 256, 4) {
    dependents_start();
    dependency_wait();
    const float power = at<float>(args.scales)[block_x()];
    const struct u32x4 *x = (const struct u32x4 *)(at<uint16_t>(args.x) + (uint64_t)block_x() * args.columns);
    float *y = at<float>(args.y) + (uint64_t)block_x() * args.x_stride;
    for (uint32_t i = thread_index(); i < args.columns / 8; i += 256) {
        const uint32_t words[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
        UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            y[i * 8 + 2 * k] = restored(words[k] & 0xffff, power);
            y[i * 8 + 2 * k + 1] = restored(words[k] >> 16, power);
        }
    }
}

/* matvec of weights in F32, F16 and BF16 with inputs of floats.  A lane has 8 columns at a time; an output is
 * the lanes' chains of fused multiply-adds, added in the order of warp_sum: the same bits whatever the other
 * inputs. */
#include "device/cuda/matvec.h"

struct eight {
    float v[8];
};

struct type_f32 {
    struct u32x4 v[2];
    DEVICE_MEMBER void load(const struct weight_planes &w, uint64_t index) {
        v[0] = load16_once(at<char>(w.codes) + index * 32);
        v[1] = load16_once(at<char>(w.codes) + index * 32 + 16);
    }
    DEVICE_MEMBER void clear() { v[0] = v[1] = {0, 0, 0, 0}; }
    DEVICE_MEMBER struct eight values() const {
        return {{bits_float(v[0].x), bits_float(v[0].y), bits_float(v[0].z), bits_float(v[0].w),
                 bits_float(v[1].x), bits_float(v[1].y), bits_float(v[1].z), bits_float(v[1].w)}};
    }
};

template <bool BFLOAT> struct type_16 {
    struct u32x4 v;
    DEVICE_MEMBER void load(const struct weight_planes &w, uint64_t index) {
        v = load16_once(at<char>(w.codes) + index * 16);
    }
    DEVICE_MEMBER void clear() { v = {0, 0, 0, 0}; }
    DEVICE_MEMBER static float first(uint32_t two) {
        return BFLOAT ? bits_float(two << 16) : half_value(two & 0xffff);
    }
    DEVICE_MEMBER static float second(uint32_t two) {
        return BFLOAT ? bits_float(two & 0xffff0000u) : half_value(two >> 16);
    }
    DEVICE_MEMBER struct eight values() const {
        return {{first(v.x), second(v.x), first(v.y), second(v.y), first(v.z), second(v.z), first(v.w),
                 second(v.w)}};
    }
};
using type_f16 = type_16<false>;
using type_bf16 = type_16<true>;

/* w: the first pieces. */
template <typename T, int N, int U>
DEVICE void float_loop(const struct cuda_matvec_args &args, const char *inputs,
                       struct pieces<T, MATVEC_ROWS, U> &w, struct expert_pick of = {0, 0, 0}) {
    const uint32_t eights = args.columns / 8, groups = group_count<MATVEC_ROWS>(args);
    float sums[MATVEC_ROWS][N];
    UNROLL
    for (uint32_t r = 0; r < MATVEC_ROWS; r++) UNROLL
    for (uint32_t c = 0; c < N; c++) sums[r][c] = 0;
    uint32_t group = block_x(), b0 = 0;
    ROLLED
    while (group < groups) {
        UNROLL
        for (uint32_t u = 0; u < U; u++) {
            const uint32_t b = smaller(b0 + u * 32 + lane_index(), eights - 1);
            UNROLL
            for (uint32_t c = 0; c < N; c++) {
                const struct f32x4 *x =
                    (const struct f32x4 *)(inputs + smaller(c, args.input_count - 1) * args.input_stride) +
                    b * 2;
                const struct f32x4 low = x[0], high = x[1];
                const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
                UNROLL
                for (uint32_t r = 0; r < MATVEC_ROWS; r++) {
                    const struct eight weights = w.raw[r][u].values();
                    UNROLL
                    for (uint32_t i = 0; i < 8; i++)
                        sums[r][c] = multiply_add(weights.v[i], values[i], sums[r][c]);
                }
            }
        }
        const uint32_t group_now = group;
        b0 += 32 * U;
        const bool ends = b0 >= eights;
        if (ends) b0 = 0, group += grid_x();
        if (group < groups) w.load(row_place_of<MATVEC_ROWS>(args, group), eights, b0, of);
        if (ends) outputs_store<N, MATVEC_ROWS>(sums, args, group_now, of);
    }
}

template <typename T, int N, int U> DEVICE void float_run(const struct cuda_matvec_args &args) {
    struct pieces<T, MATVEC_ROWS, U> w;
    dependents_start();
    if (block_x() < group_count<MATVEC_ROWS>(args))
        w.load(row_place_of<MATVEC_ROWS>(args, block_x()), args.columns / 8, 0);
    dependency_wait();
    float_loop<T, N, U>(args, at<char>(args.input), w);
}

template <typename T, int U> DEVICE void float_experts_run(const struct cuda_matvec_experts_args &args) {
    struct pieces<T, MATVEC_ROWS, U> w;
    dependents_start();
    dependency_wait(); /* what was picked */
    const struct expert_pick of = expert_pick_of(args);
    if (block_x() < group_count<MATVEC_ROWS>(args.matvec))
        w.load(row_place_of<MATVEC_ROWS>(args.matvec, block_x()), args.matvec.columns / 8, 0, of);
    float_loop<T, 1, U>(args.matvec, expert_input(args), w, of);
}

#define FLOAT_KERNELS(type, one)                                                                  \
    KERNEL(matvec_##type##_1, cuda_matvec_args, 256, 2) { float_run<type_##type, 1, one>(args); } \
    KERNEL(matvec_##type##_2, cuda_matvec_args, 256, 2) { float_run<type_##type, 2, 1>(args); }   \
    KERNEL(matvec_##type##_4, cuda_matvec_args, 256, 2) { float_run<type_##type, 4, 1>(args); }   \
    KERNEL(matvec_##type##_8, cuda_matvec_args, 256, 1) { float_run<type_##type, 8, 1>(args); }   \
    KERNEL(matvec_experts_##type, cuda_matvec_experts_args, 256, 2) {                             \
        float_experts_run<type_##type, one>(args);                                                \
    }

FLOAT_KERNELS(f32, 1)
FLOAT_KERNELS(f16, 2)
FLOAT_KERNELS(bf16, 2)

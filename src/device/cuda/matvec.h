/* matvec: the loop that streams weights, for kernels/matvec_*.cu and kernels/decode_*.cu.
 *
 * A warp has R rows at once, a lane each 32nd piece of 32 columns, of which U are under way.  The next weights
 * are asked for before the sums of these are made, and the first before the kernel waits for what precedes it:
 * weights do not depend on it.  An output is, whatever N: the products of a piece as an integer, exactly;
 * scaled, added to the lane's sum in the order of the pieces; then the lanes' sums in the order of warp_sum.
 * Bound by memory for N up to 8: some 30 instructions a piece, and 15 for each input, against 16 bytes and
 * more. */
#pragma once

#include "device/cuda/rows.h"
#include "device/cuda/weight_types.h"

enum { MATVEC_ROWS = 4 }; /* of a warp */

/* One piece of an input. */
struct input_piece {
    uint32_t codes[8];
    struct input_numbers numbers;
};
DEVICE struct input_piece input_piece_of(const char *row, uint32_t blocks, uint32_t b) {
    const struct u32x4 low = *(const struct u32x4 *)(const void *)(row + b * 16),
                       high = *(const struct u32x4 *)(const void *)(row + blocks * 16 + b * 16);
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w},
            *(const struct input_numbers *)(const void *)(row + blocks * 32 + b * 8)};
}

/* sum + w . x over 32 columns */
template <typename T> DEVICE float piece_add(const struct unit &w, const struct input_piece &x, float sum) {
    int32_t products[2] = {0, 0};
    UNROLL
    for (uint32_t j = 0; j < 8; j++) products[j / 4] = dot4(w.codes[j], x.codes[j], products[j / 4]);
    const int32_t low = x.numbers.sum[0], high = x.numbers.sum[1];
    const float scale = x.numbers.scale;
    if (T::HALVES_DIFFER) {
        sum = multiply_add(w.scale[0] * scale, (float)(products[0] - T::OFFSET * low), sum);
        sum = multiply_add(w.scale[1] * scale, (float)(products[1] - T::OFFSET * high), sum);
        if (T::HAS_MINIMUM) {
            sum = multiply_add(w.minimum[0] * scale, (float)low, sum);
            sum = multiply_add(w.minimum[1] * scale, (float)high, sum);
        }
    } else {
        const int32_t both = products[0] + products[1] - T::OFFSET * (low + high);
        sum = multiply_add(w.scale[0] * scale, (float)both, sum);
        if (T::HAS_MINIMUM) sum = multiply_add(w.minimum[0] * scale, (float)(low + high), sum);
    }
    return sum;
}

/* ---- which rows */

/* Of a product with a stack of matrices: its expert, and which pick's it is. */
struct expert_pick {
    uint32_t expert, pick, expert_rows;
};

/* Of the round `group` of a block: the part, and the first row of this warp. */
struct row_place {
    struct weight_planes weight;
    uint32_t rows, row, part;
};
template <int R> DEVICE struct row_place row_place_of(const struct cuda_matvec_args &args, uint32_t group) {
    uint32_t part = 0, row = group;
    UNROLL
    for (uint32_t i = 1; i < MATVEC_PARTS; i++) {
        const uint32_t groups = (args.part[i - 1].rows + 8 * R - 1) / (8 * R);
        if (part != i - 1 || row < groups) continue;
        row -= groups;
        part = i;
    }
    /* Field by field, so that all stay in registers. */
    struct row_place place = {};
    place.row = (row * 8 + thread_index() / 32) * R;
    place.part = part;
    UNROLL
    for (uint32_t i = 0; i < MATVEC_PARTS; i++) {
        const struct matvec_part &from = args.part[i];
        place.weight.codes = part == i ? from.weight.codes : place.weight.codes;
        place.weight.high = part == i ? from.weight.high : place.weight.high;
        place.weight.scales = part == i ? from.weight.scales : place.weight.scales;
        place.weight.supers = part == i ? from.weight.supers : place.weight.supers;
        place.rows = part == i ? from.rows : place.rows;
    }
    return place;
}
template <int R> DEVICE uint32_t group_count(const struct cuda_matvec_args &args) {
    uint32_t groups = 0;
    UNROLL
    for (uint32_t i = 0; i < MATVEC_PARTS; i++) groups += (args.part[i].rows + 8 * R - 1) / (8 * R);
    return groups;
}

/* ---- pieces under way */

template <typename T, int R, int U> struct pieces {
    T raw[R][U];
    /* Rows from `row` on, the last one again where there are fewer; pieces from b0 on. */
    DEVICE_MEMBER void load(const struct row_place &place, uint32_t blocks, uint32_t b0,
                            struct expert_pick of = {0, 0, 0}) {
        UNROLL
        for (uint32_t r = 0; r < R; r++) {
            const uint64_t first =
                ((uint64_t)of.expert * of.expert_rows + smaller(place.row + r, place.rows - 1)) * blocks;
            UNROLL
            for (uint32_t u = 0; u < U; u++) {
                const uint32_t b = b0 + u * 32 + lane_index();
                if (b < blocks)
                    raw[r][u].load(place.weight, first + b);
                else
                    raw[r][u].clear();
            }
        }
    }
    /* Two rows of each of two matrices with as many rows. */
    DEVICE_MEMBER void load_pairs(const struct matvec_part part[2], uint32_t row, uint32_t blocks, uint32_t b0) {
        UNROLL
        for (uint32_t r = 0; r < R; r++) UNROLL
        for (uint32_t u = 0; u < U; u++) {
            const uint32_t b = b0 + u * 32 + lane_index();
            if (b < blocks)
                raw[r][u].load(part[r / 2].weight, (uint64_t)(row + r % 2) * blocks + b);
            else
                raw[r][u].clear();
        }
    }
};

/* ---- outputs */

template <int N, int R>
DEVICE void outputs_store(float sums[R][N], const struct cuda_matvec_args &args, uint32_t group,
                          struct expert_pick of = {0, 0, 0}) {
    const uint32_t lane = lane_index();
    float mine = 0;
    UNROLL
    for (uint32_t r = 0; r < R; r++) UNROLL
    for (uint32_t c = 0; c < N; c++) {
        const float sum = warp_sum(sums[r][c]);
        mine = lane == r * N + c ? sum : mine;
        sums[r][c] = 0;
    }
    const struct row_place place = row_place_of<R>(args, group);
    const uint32_t row = place.row + lane / N, c = lane % N;
    if (lane >= R * N || row >= place.rows || c >= args.input_count) return;
    const struct matvec_part *part = &args.part[0];
    uint64_t y_base = part->y, bias = part->bias;
    uint32_t y_stride = part->y_stride;
    UNROLL
    for (uint32_t i = 1; i < MATVEC_PARTS; i++)
        if (place.part == i) y_base = args.part[i].y, bias = args.part[i].bias, y_stride = args.part[i].y_stride;
    float *y = at<float>(y_base) + (uint64_t)(of.pick + c) * y_stride + row;
    if (bias != 0) mine += at<float>(bias)[(uint64_t)of.expert * of.expert_rows + row];
    *y = args.accumulate ? *y + mine : mine;
}

/* ---- quantised weights, N inputs; `inputs` in global or shared memory */

/* sums += the pieces that have come, from b0 on.  Of one input the weights are expanded one after the other;
 * of several the weights of all rows stay expanded, and each input is read once for them. */
template <typename T, int N, int R, int U>
DEVICE void pieces_add(const struct pieces<T, R, U> &w, const char *inputs, uint32_t input_stride, uint32_t input_count,
                       uint32_t blocks, uint32_t b0, float sums[R][N]) {
    UNROLL
    for (uint32_t u = 0; u < U; u++) {
        const uint32_t index = b0 + u * 32 + lane_index(), b = smaller(index, blocks - 1);
        if (N == 1) {
            const struct input_piece x = input_piece_of(inputs, blocks, b);
            UNROLL
            for (uint32_t r = 0; r < R; r++) {
                struct unit unit;
                w.raw[r][u].expand(&unit, index);
                sums[r][0] = piece_add<T>(unit, x, sums[r][0]);
            }
            continue;
        }
        struct unit units[R];
        UNROLL
        for (uint32_t r = 0; r < R; r++) w.raw[r][u].expand(&units[r], index);
        UNROLL
        for (uint32_t c = 0; c < N; c++) {
            const struct input_piece x = input_piece_of(inputs + smaller(c, input_count - 1) * input_stride, blocks, b);
            UNROLL
            for (uint32_t r = 0; r < R; r++) sums[r][c] = piece_add<T>(units[r], x, sums[r][c]);
        }
    }
}

template <typename T, int N, int R, int U>
DEVICE void matvec_loop(const struct cuda_matvec_args &args, const char *inputs, uint32_t input_stride,
                        struct pieces<T, R, U> &w, struct expert_pick of = {0, 0, 0}) {
    struct row_place place = row_place_of<R>(args, block_x());
    const uint32_t blocks = args.columns / 32, groups = group_count<R>(args);
    float sums[R][N];
    UNROLL
    for (uint32_t r = 0; r < R; r++) UNROLL
    for (uint32_t c = 0; c < N; c++) sums[r][c] = 0;
    uint32_t group = block_x(), b0 = 0;
    ROLLED
    while (group < groups) {
        pieces_add<T, N, R, U>(w, inputs, input_stride, args.input_count, blocks, b0, sums);
        const uint32_t group_now = group;
        b0 += 32 * U;
        const bool ends = b0 >= blocks;
        if (ends) {
            b0 = 0;
            group += grid_x();
            place = row_place_of<R>(args, group);
        }
        if (group < groups) w.load(place, blocks, b0, of);
        if (ends) outputs_store<N, R>(sums, args, group_now, of);
    }
}

template <typename T, int N, int R, int U> DEVICE void matvec_run(const struct cuda_matvec_args &args) {
    struct pieces<T, R, U> w;
    dependents_start();
    if (block_x() < group_count<R>(args)) w.load(row_place_of<R>(args, block_x()), args.columns / 32, 0);
    dependency_wait();
    matvec_loop<T, N, R, U>(args, at<char>(args.input), args.input_stride, w);
}

/* ---- products with the experts of picks: a block has one pick, whose expert says which weights */

DEVICE struct expert_pick expert_pick_of(const struct cuda_matvec_experts_args &args) {
    return {at<uint32_t>(args.picks)[block_y()], block_y(), args.expert_rows};
}
DEVICE const char *expert_input(const struct cuda_matvec_experts_args &args) {
    return at<char>(args.matvec.input) + (uint64_t)(block_y() / args.used) * args.matvec.input_stride;
}

template <typename T> DEVICE void matvec_experts_run(const struct cuda_matvec_experts_args &args) {
    enum { U = 2 };
    struct pieces<T, MATVEC_ROWS, U> w;
    dependents_start();
    dependency_wait(); /* what was picked */
    const struct expert_pick of = expert_pick_of(args);
    if (block_x() < group_count<MATVEC_ROWS>(args.matvec))
        w.load(row_place_of<MATVEC_ROWS>(args.matvec, block_x()), args.matvec.columns / 32, 0, of);
    matvec_loop<T, 1, MATVEC_ROWS, U>(args.matvec, expert_input(args), 0, w, of);
}

/* ---- the nodes of a decode step with the norm and the quantising inside: each block makes the input for
 * itself, into its shared memory, while its first weights come */

struct decode_shared {
    struct norm_shared norm;
    float outputs[32];
};

/* Of one row into `base`; behind it a barrier. */
DEVICE void decode_input(const struct cuda_decode_matvec_args &args, char *base) {
    const uint32_t columns = args.matvec.columns;
    struct decode_shared *shared = (struct decode_shared *)(void *)(base + input_row_bytes(columns));
    row_quantize(at<float>(args.matvec.input), columns, at<float>(args.norm_w), at<float>(args.norm_b),
                 args.norm_b != 0, args.epsilon, &shared->norm, input_row_of(base, columns));
    block_barrier();
}

template <typename T, int U> DEVICE void decode_norm_run(const struct cuda_decode_matvec_args &args) {
    char *base = SHARED_ARRAY(char);
    struct pieces<T, MATVEC_ROWS, U> w;
    dependents_start();
    if (block_x() < group_count<MATVEC_ROWS>(args.matvec))
        w.load(row_place_of<MATVEC_ROWS>(args.matvec, block_x()), args.matvec.columns / 32, 0);
    dependency_wait();
    decode_input(args, base);
    matvec_loop<T, 1, MATVEC_ROWS, U>(args.matvec, base, 0, w);
}

/* A round is 32 outputs: in each of two passes a warp has two rows of gate and the two of up. */
template <typename T, int U> DEVICE void decode_gate_run(const struct cuda_decode_matvec_args &args) {
    char *base = SHARED_ARRAY(char);
    const struct matvec_part *part = args.matvec.part;
    const uint32_t blocks = args.matvec.columns / 32, rows = part[0].rows, warp = warp_index();
    struct decode_shared *shared = (struct decode_shared *)(void *)(base + input_row_bytes(args.matvec.columns));
    const struct input_row out = input_row_of(at<char>(args.input_out), rows);
    struct pieces<T, MATVEC_ROWS, U> w;
    uint32_t first = block_x() * 32 + warp * 4, b0 = 0; /* a pass on: first + 2 */
    dependents_start();
    if (block_x() * 32 < rows) w.load_pairs(part, first, blocks, 0);
    dependency_wait();
    decode_input(args, base);
    float sums[MATVEC_ROWS][1] = {{0}, {0}, {0}, {0}};
    ROLLED
    while (first < rows) {
        pieces_add<T, 1, MATVEC_ROWS, U>(w, base, 0, 1, blocks, b0, sums);
        const uint32_t now = first;
        b0 += 32 * U;
        const bool ends = b0 >= blocks;
        if (ends) {
            b0 = 0;
            first = now % 4 == 0 ? now + 2 : now - 2 + grid_x() * 32;
        }
        if (first < rows) w.load_pairs(part, first, blocks, b0);
        if (!ends) continue;
        UNROLL
        for (uint32_t r = 0; r < MATVEC_ROWS; r++) sums[r][0] = warp_sum(sums[r][0]);
        if (lane_index() < 2) {
            const float gate = lane_index() == 0 ? sums[0][0] : sums[1][0],
                        up = lane_index() == 0 ? sums[2][0] : sums[3][0];
            shared->outputs[now % 32 + lane_index()] = gate * sigmoid(gate) * up;
        }
        UNROLL
        for (uint32_t r = 0; r < MATVEC_ROWS; r++) sums[r][0] = 0;
        if (now % 4 == 0) continue;
        block_barrier();
        if (warp == 0) {
            const float value = shared->outputs[lane_index()];
            if (args.input_out != 0) warp_quantize(value, now / 32, out);
            if (args.y != 0) at<float>(args.y)[now / 32 * 32 + lane_index()] = value;
        }
        block_barrier();
    }
}

/* norm, gate: pieces of a row that a lane has under way in these nodes, as many as the registers hold.  Four are all of
 * a row of 4,096 columns, which are then asked for before the wait.  One input alone has half as many rows and blocks
 * that have four each, of every type: more of them wait at once where a matrix has few rows. */
#define MATVEC_KERNELS(type, norm, gate)                                                                       \
    KERNEL(matvec_##type##_1, cuda_matvec_args, 256, 2) { matvec_run<type_##type, 1, MATVEC_ROWS / 2, 4>(args); } \
    KERNEL(matvec_##type##_2, cuda_matvec_args, 256, 2) { matvec_run<type_##type, 2, MATVEC_ROWS, 1>(args); }  \
    KERNEL(matvec_##type##_4, cuda_matvec_args, 256, 2) { matvec_run<type_##type, 4, MATVEC_ROWS, 1>(args); }  \
    KERNEL(matvec_##type##_8, cuda_matvec_args, 256, 1) { matvec_run<type_##type, 8, MATVEC_ROWS, 1>(args); }  \
    KERNEL(matvec_experts_##type, cuda_matvec_experts_args, 256, 2) { matvec_experts_run<type_##type>(args); } \
    KERNEL(decode_norm_##type, cuda_decode_matvec_args, 256, 2) { decode_norm_run<type_##type, norm>(args); }  \
    KERNEL(decode_gate_##type, cuda_decode_matvec_args, 256, 2) { decode_gate_run<type_##type, gate>(args); }

/* elementwise: activation, add, gather, of which a block has 1,024 elements of a row; and places of page
 * tables. */
#include "device/cuda/kernels_turns.h"
#include "device/cuda/rows.h"

/* enum activation_kind */
enum { KIND_SILU_MULTIPLY, KIND_RELU, KIND_GELU_MULTIPLY, KIND_SWIGLU_CLAMPED, KIND_SOFTCAP };

/* kernels/activation; NaN stays. */
DEVICE float swiglu_clamped(float gate, float up) {
    const float limit = 7, slope = 1.702f;
    const float g = gate > limit ? limit : gate, u = up > limit ? limit : up < -limit ? -limit : up;
    return g * sigmoid(slope * g) * (u + 1);
}

KERNEL(activation, cuda_activation_args, 256, 4) {
    dependents_start();
    dependency_wait();
    if (block_x() >= step_rows(args.step, args.row_count)) return;
    const uint64_t row = (uint64_t)block_x() * args.stride;
    const float *gate = at<float>(args.gate) + row, *up = at<float>(args.up) + row;
    float *y = at<float>(args.y) + row;
    const uint32_t end = smaller(block_y() * 1024 + 1024, args.count);
    for (uint32_t i = block_y() * 1024 + thread_index(); i < end; i += 256) {
        const float x = gate[i];
        if (args.kind == KIND_SILU_MULTIPLY)
            y[i] = x * sigmoid(x) * up[i];
        else if (args.kind == KIND_RELU)
            y[i] = x < 0 ? 0.0f : x; /* NaN stays */
        else if (args.kind == KIND_SWIGLU_CLAMPED)
            y[i] = swiglu_clamped(x, up[i]);
        else if (args.kind == KIND_SOFTCAP) /* tanh(u) = 2 sigmoid(2 u) - 1 */
            y[i] = args.cap * (2 * sigmoid(2 * x / args.cap) - 1);
        else
            y[i] = x * sigmoid(1.5957691216f * multiply_add(0.044715f * x * x, x, x)) * up[i];
    }
}

KERNEL(add, cuda_add_args, 256, 4) {
    dependents_start();
    dependency_wait();
    if (block_x() >= step_rows(args.step, args.row_count)) return;
    const float *x = at<float>(args.x) + (uint64_t)block_x() * args.x_stride;
    float *y = at<float>(args.y) + (uint64_t)block_x() * args.y_stride;
    const uint32_t end = smaller(block_y() * 1024 + 1024, args.count);
    for (uint32_t i = block_y() * 1024 + thread_index(); i < end; i += 256) y[i] += x[i];
}

KERNEL(gather, cuda_gather_args, 256, 4) {
    dependents_start();
    dependency_wait();
    const uint32_t from = at<uint32_t>(args.indices)[block_x()];
    const float *x = at<float>(args.x) + (uint64_t)from * args.x_stride;
    float *y = at<float>(args.y) + (uint64_t)block_x() * args.y_stride;
    const uint32_t end = smaller(block_y() * 1024 + 1024, args.count);
    for (uint32_t i = block_y() * 1024 + thread_index(); i < end; i += 256) y[i] = x[i];
}

KERNEL(update_places, cuda_update_places_args, 256, 4) {
    dependents_start();
    dependency_wait();
    const uint32_t i = block_x() * 256 + thread_index();
    if (i >= args.count) return;
    const struct cuda_place_delta delta = at<struct cuda_place_delta>(args.deltas)[i];
    at<uint32_t>(args.table)[delta.index] = delta.place;
}

KERNEL(update_places_written, cuda_written_places_args, 256, 4) {
    dependents_start();
    dependency_wait();
    const struct cuda_place_delta *deltas = at<struct cuda_place_delta>(args.deltas);
    const uint32_t i = block_x() * 256 + thread_index();
    if (i < smaller(deltas->index, args.count)) at<uint32_t>(args.table)[deltas[1 + i].index] = deltas[1 + i].place;
}

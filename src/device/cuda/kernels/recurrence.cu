/* recurrence: layers whose rows hand a state on (kernels/recurrence).  Rows go one after another and sums have a fixed
 * order, so a row's bits do not depend on where its prompt was cut, nor on the other items.  Bound by the steps of
 * that chain: a row reads its state from the cache twice and writes it back, 64 KiB of a head of 128 x 128. */
#include "device/cuda/doubles.h"
#include "device/cuda/rows.h"

enum { TAPS_MAX = 8 };

/* The rows of u that the next one needs lie at the end of v, its own behind them: v[7]; those that there are not are
 * zeros, as their taps are. */
DEVICE float convolve_row(const float v[TAPS_MAX], const float w[TAPS_MAX], bool silu) {
    float sum = 0;
    UNROLL
    for (uint32_t j = 0; j < TAPS_MAX; j++) sum = multiply_add(w[j], v[j], sum);
    return silu ? sum * sigmoid(sum) : sum;
}

KERNEL(convolve, cuda_convolve_args, 128, 4) {
    dependents_start();
    dependency_wait();
    const uint32_t channel = block_x() * 128 + thread_index(), first = TAPS_MAX - args.taps;
    if (channel >= args.channel_count) return;
    float w[TAPS_MAX], v[TAPS_MAX];
    UNROLL
    for (uint32_t j = 0; j < TAPS_MAX; j++)
        w[j] = j >= first ? at<float>(args.w)[(uint64_t)channel * args.taps + j - first] : 0;
    for (uint32_t i = block_y(); i < args.item_count; i += args.item_step) {
        const struct cuda_recurrence_item item = at<struct cuda_recurrence_item>(args.items)[i];
        /* State j is row j + 1 of v, of those with taps: the next row moves all by one. */
        UNROLL
        for (uint32_t j = 1; j < TAPS_MAX; j++)
            v[j] = j > first && item.from != 0
                       ? at<float>(item.from)[(uint64_t)(j - first - 1) * args.channel_count + channel]
                       : 0;
        for (uint32_t row = 0; row < item.row_count; row++) {
            const uint64_t x = (uint64_t)(item.row_first + row) * args.x_stride + channel;
            float u = at<float>(args.x)[x];
            if (args.in_gate != 0) u *= at<float>(args.in_gate)[x];
            UNROLL
            for (uint32_t j = 0; j + 1 < TAPS_MAX; j++) v[j] = v[j + 1];
            v[TAPS_MAX - 1] = u;
            float y = convolve_row(v, w, args.silu != 0);
            if (args.out_gate != 0) y *= at<float>(args.out_gate)[x];
            at<float>(args.y)[(uint64_t)(item.row_first + row) * args.y_stride + channel] = y;
        }
        UNROLL
        for (uint32_t j = 1; j < TAPS_MAX; j++)
            if (j > first) at<float>(item.to)[(uint64_t)(j - first - 1) * args.channel_count + channel] = v[j];
    }
}

/* ---- a head of a gated delta net */

/* A warp each for the lengths of q and k; what the gates say in double, for a decay near 1 is raised to the power of
 * the rows that follow. */
DEVICE void delta_factors(const struct cuda_delta_args &args, const float *q, const float *k, uint64_t gate,
                          struct delta_shared &shared) {
    const uint32_t warp = warp_index();
    const float *x = warp == 0 ? q : k;
    float square = 0;
    for (uint32_t i = lane_index(); warp < 2 && i < args.k_dimension; i += 32)
        square = multiply_add(x[i], x[i], square);
    if (warp < 2) square = warp_sum(square);
    if (lane_index() == 0 && warp < 2) {
        const double factor = 1 / __builtin_sqrt((double)square + 1e-6);
        if (warp == 0)
            shared.q_factor = (float)(factor / __builtin_sqrt((double)args.k_dimension));
        else
            shared.k_factor = (float)factor;
    }
    if (thread_index() != 64) return;
    const double decay = (double)at<float>(args.decay)[block_x()],
                 alpha = (double)at<float>(args.alpha)[gate] + (double)at<float>(args.bias)[block_x()];
    shared.decay = (float)exp_double(decay * softplus_double(alpha));
    shared.beta = (float)(1 / (1 + exp_double(-(double)at<float>(args.beta)[gate])));
}

/* The sum of a column's parts, in their order. */
DEVICE float column_sum(const struct delta_shared &shared, uint32_t column, uint32_t width, uint32_t parts) {
    float sum = 0;
    for (uint32_t i = 0; i < parts; i++) sum += shared.parts[i * width + column];
    return sum;
}

/* A thread has rows part, part + parts, ... of a column of S, and walks them twice: v needs all of the old one. */
DEVICE void delta_row(const struct cuda_delta_args &args, uint64_t row, float *state, struct delta_shared &shared) {
    const uint32_t t = thread_index(), width = args.v_dimension, parts = DELTA_THREADS / width, column = t % width,
                   part = t / width;
    const bool has_part = part < parts, has_column = t < width;
    const uint32_t head = block_x(), group = args.group, key = group > 0 ? head / group : head % args.key_heads,
                   gates = group > 0 ? 2 * args.value_heads : args.value_heads;
    const float *x = at<float>(args.x) + row * args.x_stride,
                *q = x + key * args.k_dimension, *k = q + args.key_heads * args.k_dimension,
                *v = x + 2 * args.key_heads * args.k_dimension + block_x() * width;
    const uint64_t out = (row * args.value_heads + block_x()) * width + column;
    delta_factors(args, q, k, row * gates + head + key * group, shared);
    block_barrier();
    if (t < args.k_dimension) {
        shared.q[t] = q[t] * shared.q_factor;
        shared.k[t] = k[t] * shared.k_factor;
    }
    block_barrier();
    float sum = 0;
    for (uint32_t i = part; has_part && i < args.k_dimension; i += parts)
        sum = multiply_add(state[i * width + column], shared.k[i], sum);
    shared.parts[t] = sum;
    block_barrier();
    if (has_column) shared.v[t] = shared.beta * (v[t] - shared.decay * column_sum(shared, t, width, parts));
    block_barrier();
    sum = 0;
    for (uint32_t i = part; has_part && i < args.k_dimension; i += parts) {
        const float s = multiply_add(shared.k[i], shared.v[column], shared.decay * state[i * width + column]);
        state[i * width + column] = s;
        sum = multiply_add(s, shared.q[i], sum);
    }
    shared.parts[t] = sum;
    block_barrier();
    const float o = has_column ? column_sum(shared, t, width, parts) : 0, square = warp_sum(o * o);
    if (lane_index() == 0) shared.squares[warp_index()] = square;
    block_barrier();
    if (!has_column) return;
    float squares = 0;
    UNROLL
    for (uint32_t i = 0; i < DELTA_THREADS / 32; i++) squares += shared.squares[i];
    const float scale = 1.0f / __builtin_sqrtf(squares / (float)width + args.epsilon), z = at<float>(args.z)[out];
    at<float>(args.y)[out] = o * scale * at<float>(args.norm)[t] * (z * sigmoid(z));
}

KERNEL(delta, cuda_delta_args, 512, 1) {
    struct delta_shared &shared = SHARED(struct delta_shared);
    dependents_start();
    dependency_wait();
    const uint32_t width = args.v_dimension, parts = DELTA_THREADS / width, column = thread_index() % width,
                   part = thread_index() / width;
    const uint64_t first = args.state_first + (uint64_t)block_x() * args.k_dimension * width;
    for (uint32_t i = block_y(); i < args.item_count; i += args.item_step) {
        const struct cuda_recurrence_item item = at<struct cuda_recurrence_item>(args.items)[i];
        float *state = at<float>(item.to) + first;
        for (uint32_t n = part; part < parts && n < args.k_dimension; n += parts)
            state[n * width + column] = item.from != 0 ? at<float>(item.from)[first + n * width + column] : 0;
        for (uint32_t row = 0; row < item.row_count; row++)
            delta_row(args, (uint64_t)item.row_first + row, state, shared);
    }
}

KERNEL(gate, cuda_gate_args, 256, 4) {
    dependents_start();
    dependency_wait();
    const float *gates = at<float>(args.gates) + (uint64_t)block_x() * args.count * 2;
    float *y = at<float>(args.y) + (uint64_t)block_x() * args.count;
    const uint32_t end = smaller(block_y() * 1024 + 1024, args.count);
    for (uint32_t i = block_y() * 1024 + thread_index(); i < end; i += 256)
        y[i] *= sigmoid(gates[(i / args.head_size * 2 + 1) * args.head_size + i % args.head_size]);
}

/* attention_merge: the ranges of one query head of a row together, in their order; as floats, or as the input
 * of 8 bits of the output matrix.  Four groups of 128 threads take every fourth range. */
#include "device/cuda/attention_rows.h"
#include "device/cuda/rows.h"

KERNEL(attention_merge, cuda_merge_args, 512, 2) {
    struct merge_shared &shared = SHARED(struct merge_shared);
    const uint32_t t = thread_index(), quarter = t / 128, head = block_x(), row = block_y();
    dependents_start();
    dependency_wait();
    if (row >= step_rows(args.step, args.row_count)) return;
    const uint64_t position = at<struct step_row>(args.rows)[row].position;
    uint32_t count = seen_rows_of(position, args.window).range_count;
    if (args.lists != 0) {
        const uint32_t list = row * (args.head_count / args.group) + head / args.group;
        count = listed_rows_of(list_at(args.lists, args.limits, list)).range_count;
    }
    const float *partials = at<float>(args.partials) + ((uint64_t)row * args.head_count + head) *
                                                           ATTENTION_RANGES_MAX * args.partial_stride;
    if (t < count) {
        shared.m[t] = partials[t * args.partial_stride];
        shared.s[t] = partials[t * args.partial_stride + 1];
    }
    block_barrier();
    float m = SCORE_NONE, s = 0;
    const float sink = args.sinks != 0 ? at<float>(args.sinks)[head] * 1.44269504f : SCORE_NONE;
    for (uint32_t i = 0; i < count; i++) m = larger(m, shared.m[i]);
    m = larger(m, sink);
    for (uint32_t i = 0; i < count; i++) s = multiply_add(exp2_near(shared.m[i] - m), shared.s[i], s);
    if (args.sinks != 0) s += exp2_near(sink - m);
    for (uint32_t d = t % 128; d < args.v_dimension; d += 128) {
        float o = 0;
        for (uint32_t i = quarter; i < count; i += 4)
            o = multiply_add(exp2_near(shared.m[i] - m), partials[i * args.partial_stride + 4 + d], o);
        shared.part[quarter][d] = o;
    }
    block_barrier();
    const uint32_t blocks = args.head_count * args.v_dimension / 32;
    char *input = at<char>(args.input) + (uint64_t)row * input_row_bytes(blocks * 32);
    for (uint32_t d = t; d < (args.v_dimension + 31) / 32 * 32; d += 512) {
        const uint32_t from = smaller(d, args.v_dimension - 1);
        const float sum =
            shared.part[0][from] + shared.part[1][from] + (shared.part[2][from] + shared.part[3][from]);
        const float value = s == 0 ? 0 : sum / s;
        if (args.y != 0 && d < args.v_dimension)
            at<float>(args.y)[(uint64_t)row * args.y_stride + head * args.v_dimension + d] = value;
        if (args.input != 0)
            warp_quantize(value, head * args.v_dimension / 32 + d / 32, input_row_of(input, blocks * 32));
    }
}

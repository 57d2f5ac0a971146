/* rope: the rotation of a step's rows. */
#include "device/cuda/rows.h"

/* Sine and cosine of position * frequency, in double: the product exactly, as the sum of two; less a multiple
 * of a quarter turn, whose own value is in two parts; then Taylor's series, good to 2^-45 within an eighth of
 * a turn. */
DEVICE void angle_turn(uint64_t position, float frequency, double *cosine, double *sine) {
    const double quarter = 1.5707963267948966, quarter_rest = 6.123233995736766e-17;
    const double p = (double)position, f = (double)frequency, angle = p * f;
    const double rest = __builtin_fma(p, f, -angle), turns = __builtin_rint(angle * 0.6366197723675814);
    const double x = __builtin_fma(-turns, quarter_rest, __builtin_fma(-turns, quarter, angle)) + rest,
                 y = x * x;
    double s = 1.6059043836821613e-10, c = 2.08767569878681e-09; /* 1 / 13!, 1 / 12! */
    const double of_s[5] = {-2.505210838544172e-08, 2.7557319223985893e-06, -1.984126984126984e-04,
                            8.333333333333333e-03, -1.6666666666666666e-01};
    const double of_c[6] = {-2.755731922398589e-07,
                            2.48015873015873e-05,
                            -1.388888888888889e-03,
                            4.1666666666666664e-02,
                            -0.5,
                            1.0};
    UNROLL
    for (uint32_t i = 0; i < 5; i++) s = __builtin_fma(s, y, of_s[i]);
    UNROLL
    for (uint32_t i = 0; i < 6; i++) c = __builtin_fma(c, y, of_c[i]);
    s = __builtin_fma(s * y, x, x);
    const uint32_t quarters = (uint32_t)(int64_t)turns & 3;
    *sine = quarters == 0 ? s : quarters == 1 ? c : quarters == 2 ? -s : -c;
    *cosine = quarters == 0 ? c : quarters == 1 ? -s : quarters == 2 ? -c : s;
}

KERNEL(rope_angles, cuda_rope_angles_args, 128, 4) {
    dependents_start();
    dependency_wait();
    if (block_x() >= step_rows(args.step, args.row_count)) return;
    const uint64_t position = at<struct step_row>(args.rows)[block_x()].position;
    struct f32x2 *to = at<struct f32x2>(args.cosine_sine) + (uint64_t)block_x() * args.pair_count;
    for (uint32_t j = thread_index(); j < args.pair_count; j += 128) {
        double cosine, sine;
        angle_turn(position, at<float>(args.frequency)[j], &cosine, &sine);
        to[j] = {(float)((double)args.factor * cosine), (float)((double)args.factor * sine)};
    }
}

KERNEL(rope, cuda_rope_args, 256, 4) {
    dependents_start();
    dependency_wait();
    const uint32_t i = block_y() * 256 + thread_index();
    if (block_x() >= step_rows(args.step, args.row_count) || i >= args.head_count * args.pair_count) return;
    const uint32_t head = i / args.pair_count, j = i % args.pair_count;
    const struct f32x2 turn = at<struct f32x2>(args.cosine_sine)[(uint64_t)block_x() * args.pair_count + j];
    float *x = at<float>(args.x) + (uint64_t)block_x() * args.x_stride + head * args.head_stride;
    const uint32_t first = args.split ? j : 2 * j, second = args.split ? j + args.pair_count : 2 * j + 1;
    const float a = x[first], b = x[second];
    x[first] = a * turn.x - b * turn.y;
    x[second] = a * turn.y + b * turn.x;
}

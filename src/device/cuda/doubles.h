/* doubles: arithmetic in double where a float would lose what is asked for. */
#pragma once

#include "device/cuda/dialect.h"

DEVICE double lane_xor(double value, uint32_t mask AND_HERE) {
    const uint64_t bits = __builtin_bit_cast(uint64_t, value);
    const uint64_t low = lane_xor((uint32_t)bits, mask PASS_HERE),
                   high = lane_xor((uint32_t)(bits >> 32), mask PASS_HERE);
    return __builtin_bit_cast(double, low | high << 32);
}

/* e^x to some 2^-51 of itself; 0 below e^-708.  With x = n log 2 + r: Taylor's series, good to 2^-57 there. */
DEVICE double exp_double(double x) {
    if (!(x > -708)) return x != x ? x : 0;
    if (x > 709) return __builtin_inf();
    const double n = __builtin_rint(x * 1.4426950408889634);
    const double r = __builtin_fma(-n, 1.9082149292705877e-10, __builtin_fma(-n, 0.6931471803691238, x));
    double y = 1;
    UNROLL
    for (int i = 14; i > 0; i--) y = __builtin_fma(y * r, 1.0 / i, 1.0);
    return y * __builtin_bit_cast(double, (uint64_t)((int64_t)n + 1023) << 52);
}

/* log(1 + y) for y in [0, 1], to some 2^-45 of itself: twice the inverse hyperbolic tangent of y / (2 + y). */
DEVICE double log_one_plus(double y) {
    const double z = y / (2 + y), square = z * z;
    double sum = 0;
    UNROLL
    for (int i = 27; i > 0; i -= 2) sum = __builtin_fma(sum, square, 1.0 / i);
    return 2 * z * sum;
}

/* log(1 + e^x). */
DEVICE double softplus_double(double x) {
    const double rest = log_one_plus(exp_double(x > 0 ? -x : x));
    return x > 0 ? x + rest : rest;
}

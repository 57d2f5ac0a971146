/* span_lanes: the end of a span (kernels/span.h) in the AVX-512 variants of matmul. */
#pragma once

#include <string.h>

#include "kernels/span.h"
#include "kernels/vector.h"

/* sums[count] += the sum of the first block_count lanes, `stride` floats apart.  The other lanes are not filled. */
static inline void span_lanes_add(float *lanes, size_t stride, size_t block_count, size_t count, float *restrict sums) {
    for (size_t l = block_count; l < SPAN_LANES; l++) memset(lanes + l * stride, 0, count * sizeof(float));
    for (size_t at = 0; at < count; at += 16) {
        __m512 four[2];
        for (size_t odd = 0; odd < 2; odd++) {
            const float *lane = lanes + odd * stride + at;
            __m512 a = _mm512_add_ps(_mm512_load_ps(lane), _mm512_load_ps(lane + 4 * stride));
            __m512 b = _mm512_add_ps(_mm512_load_ps(lane + 2 * stride), _mm512_load_ps(lane + 6 * stride));
            four[odd] = _mm512_add_ps(a, b);
        }
        __m512 sum = _mm512_add_ps(four[0], four[1]);
        _mm512_store_ps(sums + at, _mm512_add_ps(_mm512_load_ps(sums + at), sum));
    }
}

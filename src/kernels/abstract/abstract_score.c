#include <math.h>

#include "base/assert.h"
#include "kernels/abstract/abstract_internal.h"

/* A page's score is the dot product of its pair of rows with a pair of vectors made of the query:
 *   sum max(q min, q max) = min(q, 0) . min + max(q, 0) . max      and      q . mean + |q| . deviation.
 * Summed over the group, so are the vectors. */
void abstract_score_over(const struct score_kernels *kernels, const struct abstract_score_args *args) {
    const struct abstract_layout *layout = args->layout;
    const size_t dimension = layout->dimension, columns = 2 * dimension;
    ASSERT(layout->has[args->kind] && args->group > 0);
    float *pairs = args->scratch; /* [group][2][dimension] */
    const int sum = args->aggregate == SCORE_SUM;
    for (size_t head = 0; head < args->group; head++) {
        const float *q = args->q + head * args->q_stride;
        float *first = pairs + (sum ? 0 : head * columns), *second = first + dimension;
        for (size_t d = 0; d < dimension; d++) {
            float a = q[d], b = fabsf(q[d]);
            if (args->kind == ABSTRACT_MIN_MAX) {
                a = q[d] > 0 ? 0 : q[d]; /* NaN stays in one of them */
                b = q[d] > 0 ? q[d] : 0;
            }
            first[d] = sum && head > 0 ? first[d] + a : a;
            second[d] = sum && head > 0 ? second[d] + b : b;
        }
    }
    struct score_args rows = {
        .blocks = args->abstracts,
        .block_offset = layout->offset[args->kind],
        .block_rows = layout->chunk_pages,
        .columns = columns,
        .row_begin = args->page_begin,
        .row_end = args->page_end,
        .q = pairs,
        .q_stride = columns,
        .heads = sum ? 1 : args->group,
        .aggregate = args->aggregate,
        .then = args->then,
        .scores = args->scores,
        .scratch = pairs + args->group * columns,
    };
    kernels->rows(&rows);
}

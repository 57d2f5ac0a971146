#include <math.h>

#include "base/assert.h"
#include "base/checked.h"
#include "kernels/abstract/abstract_internal.h"

void abstract_layout_init(struct abstract_layout *layout, size_t page_tokens, size_t dimension, bool min_max,
                          bool mean_deviation) {
    ASSERT(page_tokens == 8 || page_tokens == 16 || page_tokens == 32 || page_tokens == KV_CHUNK_TOKENS);
    ASSERT(dimension > 0 && dimension % 8 == 0 && (min_max || mean_deviation));
    *layout = (struct abstract_layout){
        .page_tokens = page_tokens, .chunk_pages = KV_CHUNK_TOKENS / page_tokens, .dimension = dimension};
    size_t kind_bytes = layout->chunk_pages * 2 * dimension * sizeof(uint16_t);
    layout->has[ABSTRACT_MIN_MAX] = min_max;
    layout->has[ABSTRACT_MEAN_DEVIATION] = mean_deviation;
    for (size_t kind = 0; kind < ABSTRACT_KIND_COUNT; kind++) {
        if (!layout->has[kind]) continue;
        layout->offset[kind] = layout->bytes;
        layout->bytes += align_up(kind_bytes, 64);
    }
}

static size_t score_scratch_bytes(const struct abstract_layout *layout, size_t group) {
    return (group + 1) * 2 * layout->dimension * sizeof(float);
}

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

void abstract_kernels_init(struct abstract_kernels *kernels, cpu_mask mask) {
    abstract_ref_install(kernels);
    kernels->score_scratch_bytes = score_scratch_bytes;
#if defined(__x86_64__)
    if ((mask & CPU_AVX2) != 0) abstract_avx2_install(kernels);
    if ((mask & CPU_AVX512) != 0) abstract_avx512_install(kernels);
#elif defined(__aarch64__)
    if ((mask & CPU_NEON) != 0) abstract_neon_install(kernels);
#endif
    (void)mask;
}

/* The definition: each dot product in double. */
#include <math.h>

#include "kernels/score/score.h"
#include "tensor/half.h"

static double dot(const float *q, const uint16_t *row, size_t columns) {
    double sum = 0;
    for (size_t i = 0; i < columns; i++) sum += (double)q[i] * (double)half_to_float(row[i]);
    return sum;
}

static void rows(const struct score_args *args) {
    for (uint64_t row = args->row_begin; row < args->row_end; row++) {
        const uint8_t *block = (const uint8_t *)args->blocks[row / args->block_rows] + args->block_offset;
        const uint16_t *halves = (const uint16_t *)(const void *)block + row % args->block_rows * args->columns;
        double score = dot(args->q, halves, args->columns);
        for (size_t head = 1; head < args->heads; head++) {
            double next = dot(args->q + head * args->q_stride, halves, args->columns);
            if (args->aggregate == SCORE_SUM) score += next;
            if (args->aggregate == SCORE_MAX && !(next <= score)) score = isnan(score) ? score : next;
        }
        args->scores[row - args->row_begin] = (float)score;
    }
}

static size_t scratch_bytes(size_t columns) { return columns * sizeof(float); }

void score_ref_install(struct score_kernels *kernels) {
    *kernels = (struct score_kernels){.rows = rows, .scratch_bytes = scratch_bytes};
}

/* Scores over `floats`; included by score_avx2.c, score_avx512.c and score_neon.c.
 *
 * Mapping: 8 rows at a time, their addresses in an array (blocks may hold fewer rows); for up to 4 heads and 2
 * rows (1 head: 8 rows) the products accumulate in registers, a vector of the row is converted once for all heads.
 * The scores of the heads become one per row in registers.  Rows ahead are prefetched across blocks.
 * Bytes: 2 * columns per row read, 4 written.  Flops: 2 * columns * heads per row.
 * Bound: memory at 1 head (or a sum), multiply-adds and conversions from 4 on; with few columns the sums across
 * registers.  Reached, one core of an AMD EPYC (Zen 3), 2026-11-21, of a read bandwidth of 15: 14.2 GB/s at 32
 * columns summed, 11.5 at 256 columns and 4 heads, 8.2 at 32 columns and 4 heads (bench_selection.c).
 */
#include <math.h>
#include <string.h>

#include "kernels/floats.h"
#include "kernels/score/score.h"

enum { SCORE_ROWS = 8, SCORE_HEADS = 4, SCORE_AHEAD_BYTES = 8192, SCORE_LINE = 64 };

/* A place in the blocks. */
struct score_cursor {
    uint64_t block;
    size_t row;
};

FLOATS_INLINE const uint8_t *cursor_row(const struct score_args *args, const struct score_cursor *at) {
    return (const uint8_t *)args->blocks[at->block] + args->block_offset + at->row * args->columns * 2;
}

FLOATS_INLINE void cursor_step(const struct score_args *args, struct score_cursor *at, size_t rows) {
    at->row += rows;
    while (at->row >= args->block_rows) {
        at->row -= args->block_rows;
        at->block++;
    }
}

/* Addresses of the next `count` rows (1..8), the last one repeated up to 8. */
FLOATS_INLINE void cursor_rows(const struct score_args *args, struct score_cursor *at, size_t count,
                               const uint8_t *rows[SCORE_ROWS]) {
    const size_t row_bytes = args->columns * 2;
    if (count == SCORE_ROWS && at->row + SCORE_ROWS <= args->block_rows) {
        const uint8_t *row = cursor_row(args, at);
        for (size_t i = 0; i < SCORE_ROWS; i++) rows[i] = row + i * row_bytes;
        cursor_step(args, at, SCORE_ROWS);
        return;
    }
    for (size_t i = 0; i < SCORE_ROWS; i++) {
        if (i >= count) {
            rows[i] = rows[count - 1];
            continue;
        }
        rows[i] = cursor_row(args, at);
        cursor_step(args, at, 1);
    }
}

/* scores[head][0 .. row_count) = q[head] . rows */
FLOATS_INLINE void row_tile(const size_t heads, const size_t row_count, const float *q, size_t q_stride,
                            const uint8_t *const *rows, const uint8_t *const *following, size_t columns,
                            float *scores) {
    floats sum[8];
    FLOATS_UNROLL
    for (size_t i = 0; i < heads * row_count; i++) sum[i] = floats_set(0);
    for (size_t d = 0; d < columns; d += FLOATS) {
        floats row[8];
        FLOATS_UNROLL
        for (size_t r = 0; r < row_count; r++) row[r] = floats_load_half(rows[r] + d * 2);
        if (d * 2 % SCORE_LINE == 0) /* one by one: a burst would fill the miss queue and stall the loads */
            for (size_t r = 0; r < row_count; r++) floats_prefetch(following[r] + d * 2);
        FLOATS_UNROLL
        for (size_t head = 0; head < heads; head++) {
            floats query = floats_keep(floats_load(q + head * q_stride + d));
            FLOATS_UNROLL
            for (size_t r = 0; r < row_count; r++)
                sum[head * row_count + r] = floats_fma(query, row[r], sum[head * row_count + r]);
        }
    }
    floats_sums_store(sum, heads * row_count, row_count, scores, SCORE_ROWS);
}

/* The scores of 8 rows: the largest over `heads` heads. */
FLOATS_INLINE floats8 rows_score(const float *q, size_t q_stride, size_t heads, const uint8_t *const *rows,
                                 const uint8_t *const *following, size_t columns) {
    float scores[SCORE_HEADS * SCORE_ROWS];
    float smallest[SCORE_ROWS];
    for (size_t i = 0; i < SCORE_ROWS; i++) smallest[i] = -INFINITY;
    floats8 best = floats8_load(smallest);
    for (size_t head = 0; head < heads;) {
        size_t take = heads - head >= 4 ? 4 : heads - head == 3 ? 1 : heads - head;
        const float *query = q + head * q_stride;
        for (size_t r = 0; r < SCORE_ROWS && take == 4; r += 2)
            row_tile(4, 2, query, q_stride, rows + r, following + r, columns, scores + r);
        for (size_t r = 0; r < SCORE_ROWS && take == 2; r += 4)
            row_tile(2, 4, query, q_stride, rows + r, following + r, columns, scores + r);
        if (take == 1) row_tile(1, SCORE_ROWS, query, q_stride, rows, following, columns, scores);
        for (size_t i = 0; i < take; i++) best = floats8_max_or_nan(best, floats8_load(scores + i * SCORE_ROWS));
        head += take;
    }
    return best;
}

/* The queries' sum, in scratch: the score is linear in them. */
static const float *queries_sum(const struct score_args *args) {
    float *sum = args->scratch;
    memcpy(sum, args->q, args->columns * sizeof *sum);
    for (size_t head = 1; head < args->heads; head++)
        for (size_t d = 0; d < args->columns; d++) sum[d] += args->q[head * args->q_stride + d];
    return sum;
}

FLOATS_INLINE void score_shaped(const size_t columns, const size_t heads, const float *q,
                                const struct score_args *args) {
    const size_t row_bytes = columns * 2;
    const size_t distance = (SCORE_AHEAD_BYTES + SCORE_ROWS * row_bytes - 1) / (SCORE_ROWS * row_bytes) * SCORE_ROWS;
    struct score_cursor at = {args->row_begin / args->block_rows, args->row_begin % args->block_rows}, next = at;
    uint64_t asked = at.block; /* of `then` */
    if (args->row_begin + distance < args->row_end) cursor_step(args, &next, distance);
    for (uint64_t row = args->row_begin; row < args->row_end; row += SCORE_ROWS) {
        const uint8_t *rows[SCORE_ROWS], *following[SCORE_ROWS];
        size_t count = args->row_end - row < SCORE_ROWS ? (size_t)(args->row_end - row) : SCORE_ROWS;
        cursor_rows(args, &at, count, rows);
        for (; args->then != NULL && asked < at.block; asked++) floats_prefetch(args->then[asked]);
        if (row + distance + SCORE_ROWS <= args->row_end)
            cursor_rows(args, &next, SCORE_ROWS, following);
        else
            memcpy(following, rows, sizeof following);
        floats8 scores = rows_score(q, args->q_stride, heads, rows, following, columns);
        float *target = args->scores + (row - args->row_begin);
        if (count == SCORE_ROWS) {
            floats8_store(target, scores);
        } else {
            float part[SCORE_ROWS];
            floats8_store(part, scores);
            memcpy(target, part, count * sizeof *part);
        }
    }
}

static void score_rows(const struct score_args *args) {
    FLOATS_FILL(args->columns % FLOATS == 0, score, score, rows, args)
    const float *q = args->q;
    size_t heads = args->heads;
    if (args->aggregate == SCORE_SUM && heads > 1) {
        q = queries_sum(args);
        heads = 1;
    }
    if (args->columns == 256 && heads == 4)
        score_shaped(256, 4, q, args);
    else if (args->columns == 128 && heads == 4)
        score_shaped(128, 4, q, args);
    else if (heads == 1)
        score_shaped(args->columns, 1, q, args);
    else
        score_shaped(args->columns, heads, q, args);
}

FLOATS_INSTALL(score, score) { kernels->rows = score_rows; }

/* rows_loop: the loop over rows, groups of 256 weights and inputs that the vector variants of matvec share.
 *
 * Written once and specialised by constant arguments (so everything here must be inlined): a variant gives
 * the function that adds one group of a row, times n inputs, to the accumulators.  Who includes this has
 * defined row_vector, the type of an accumulator, row_zero() and row_sums_add, which adds the sum of the lanes of
 * each of four accumulators to four totals.
 *
 * The order of a row's sum is matmul's (kernels/span.h): a lane for each of 8 blocks, a tree over the lanes after every
 * 2 groups, and one total that grows span by span. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/checked.h"
#include "kernels/matvec/matvec_internal.h"
#include "kernels/span.h"

struct row_kind {
    size_t block_bytes, group_blocks; /* of the weight; a group is 256 weights */
    size_t input_group_bytes;
    size_t tile;      /* inputs at a time, at most TILE_MAX */
    bool takes_turns; /* rows do where their inputs do not fit in L1 */
};

/* What a kernel reads of an input's group, and how much of it stays in L1 (32 KiB) beside the rows: inputs beyond
 * that come from L2, which 4 rows that take turns by group do once instead of four times.  That wins where a group is
 * computed faster than its inputs come, in the kernels of 8 inputs: Q4_K and Q6_K of 8,192 columns at 8 inputs 20 and
 * 13%, Q4_0 17; IQ4_NL and IQ4_XS lose 5 and 10, Q8_0 nothing.  At 5 to 7 inputs rows by themselves take about what
 * they did in tiles of 4. */
enum { INPUT_GROUP_LINES = 320, INPUTS_FIT = 28 << 10 };

/* Adds one group of a row, at w, times n inputs, at x[i], to the lanes of acc[i]. */
typedef void group_function(const uint8_t *w, const void *const *x, size_t n, row_vector *acc);

INLINE void group_add(group_function *group, const uint8_t *w, const void *const *x, size_t n, row_vector *acc) {
#if defined(LOAM_SIMDE) /* emulated instructions take long to compile: once, not at every place */
    group_function *volatile function = group;
    function(w, x, n, acc);
#else
    group(w, x, n, acc);
#endif
}

/* Rows that are computed together, and the places of their sums. */
struct row_set {
    const uint8_t *w;    /* the first row */
    size_t row_apart;    /* rows from one to the next */
    float *y;            /* of the first row and input */
    size_t input_stride; /* floats of y */
    bool is_alone;       /* nothing behind a row is read with its last group */
};

/* Adds the sums of a span to totals[streams · n]. */
INLINE void span_add(row_vector acc[STREAMS_MAX][TILE_MAX], size_t streams, size_t n, float *totals) {
    const size_t count = streams * n;
    UNROLL for (size_t j = 0; j < count; j += 4) {
        row_vector four[4];
        UNROLL for (size_t k = 0; k < 4; k++) { four[k] = j + k < count ? acc[(j + k) / n][(j + k) % n] : row_zero(); }
        row_sums_add(four, totals + j);
    }
}

/* The position of a row set: its rows' memory and its inputs. */
struct row_stand {
    const uint8_t *w;
    const void *x[TILE_MAX];
};

INLINE void row_stand_advance(struct row_stand *stand, size_t n, struct row_kind kind) {
    stand->w += kind.block_bytes * kind.group_blocks;
    UNROLL for (size_t i = 0; i < n; i++) { stand->x[i] = (const uint8_t *)stand->x[i] + kind.input_group_bytes; }
}

/* Adds the next group. */
INLINE void row_group_add(struct row_stand *stand, size_t apart, size_t n, size_t streams, group_function *group,
                          struct row_kind kind, row_vector acc[STREAMS_MAX][TILE_MAX]) {
    const size_t group_bytes = kind.block_bytes * kind.group_blocks;
    /* The sums of more than 2 inputs do not fit in registers: not unrolled, to keep the code small. */
    if (n <= 2) {
        UNROLL for (size_t s = 0; s < streams; s++) {
            prefetch_lines(stand->w + s * apart, group_bytes);
            group_add(group, stand->w + s * apart, stand->x, n, acc[s]);
        }
    } else {
        ONE_BY_ONE for (size_t s = 0; s < streams; s++) {
            prefetch_lines(stand->w + s * apart, group_bytes);
            group_add(group, stand->w + s * apart, stand->x, n, acc[s]);
        }
    }
    row_stand_advance(stand, n, kind);
}

/* Adds the next group in the code of one row, whichever it is.  `there` is how many bytes of the rows' groups are to be
 * read: of less than all of them a copy is, with zeros behind. */
INLINE void row_rest_add(struct row_stand *stand, size_t apart, size_t there, size_t n, size_t streams,
                         group_function *group, struct row_kind kind, row_vector acc[STREAMS_MAX][TILE_MAX]) {
    const size_t group_bytes = kind.block_bytes * kind.group_blocks;
    ONE_BY_ONE for (size_t s = 0; s < streams; s++) {
        const uint8_t *w = stand->w + s * apart;
        uint8_t copy[GROUP_BYTES_MAX];
        prefetch_lines(w, group_bytes);
        if (there < group_bytes) {
            memset(copy, 0, sizeof copy);
            memcpy(copy, w, there);
            w = copy;
        }
        group_add(group, w, stand->x, n, acc[s]);
    }
    row_stand_advance(stand, n, kind);
}

INLINE void acc_clear(row_vector acc[STREAMS_MAX][TILE_MAX], size_t streams, size_t n) {
    UNROLL for (size_t s = 0; s < streams; s++) {
        UNROLL for (size_t i = 0; i < n; i++) { acc[s][i] = row_zero(); }
    }
}

/* `streams` rows times n inputs. */
INLINE void row_set_times(const struct matrix *weight, struct row_set set, const uint8_t *const *inputs, size_t n,
                          size_t streams, group_function *group, struct row_kind kind) {
    const size_t rest = weight->columns % INPUT_GROUP * kind.group_blocks / INPUT_GROUP * kind.block_bytes;
    const size_t apart = set.row_apart * weight->row_bytes, groups = weight->columns / INPUT_GROUP;
    const bool has_rest = kind.group_blocks > 1 && rest != 0;
    struct row_stand stand = {.w = set.w};
    row_vector acc[STREAMS_MAX][TILE_MAX];
    float totals[STREAMS_MAX * TILE_MAX];
    UNROLL for (size_t j = 0; j < align_up(streams * n, 4); j++) totals[j] = 0; /* no call, no string instruction */
    UNROLL for (size_t i = 0; i < n; i++) { stand.x[i] = inputs[i]; }
    ONE_BY_ONE for (size_t left = groups / SPAN_GROUPS; left > 0; left--) {
        acc_clear(acc, streams, n);
        UNROLL for (size_t g = 0; g < SPAN_GROUPS; g++) { row_group_add(&stand, apart, n, streams, group, kind, acc); }
        span_add(acc, streams, n, totals);
    }
    size_t last = groups % SPAN_GROUPS + has_rest;
    if (last > 0) {
        /* Behind a row comes another row, whose weights meet zeros of the input (and see rows_again). */
        const size_t group_bytes = kind.block_bytes * kind.group_blocks;
        const uint8_t *rest_end = set.w + (streams - 1) * apart + (groups + 1) * group_bytes;
        const uint8_t *end = (const uint8_t *)weight->data + weight->rows * weight->row_bytes;
        const bool is_copied = has_rest && (set.is_alone || rest_end > end);
        row_vector last_acc[STREAMS_MAX][TILE_MAX]; /* those above keep to registers, which have no numbers */
        acc_clear(last_acc, streams, n);
        ONE_BY_ONE for (; last > 0; last--) {
            row_rest_add(&stand, apart, is_copied && last == 1 ? rest : group_bytes, n, streams, group, kind, last_acc);
        }
        span_add(last_acc, streams, n, totals);
    }
    UNROLL for (size_t s = 0; s < streams; s++) {
        UNROLL for (size_t i = 0; i < n; i++) { set.y[i * set.input_stride + s * set.row_apart] = totals[s * n + i]; }
    }
}

/* One row times the inputs of at most one tile. */
INLINE void row_tile_times(const struct matrix *weight, struct row_set set, const uint8_t *const *x, size_t n,
                           group_function *group, struct row_kind kind) {
    if (n > kind.tile) n = kind.tile;
    switch (n) {
    case 1: row_set_times(weight, set, x, 1, 1, group, kind); break;
    case 2: row_set_times(weight, set, x, 2, 1, group, kind); break;
    case 3: row_set_times(weight, set, x, 3, 1, group, kind); break;
    case 4: row_set_times(weight, set, x, 4, 1, group, kind); break;
    default:
        if (kind.tile <= 4) return;
        if (n == 5) row_set_times(weight, set, x, 5, 1, group, kind);
        if (n == 6) row_set_times(weight, set, x, 6, 1, group, kind);
        if (n == 7) row_set_times(weight, set, x, 7, 1, group, kind);
        if (n == 8) row_set_times(weight, set, x, 8, 1, group, kind);
    }
}

/* Rows [begin, begin + streams · count), in sets of `streams` that lie `count` rows apart, times all inputs: with
 * more than one stream, tiles of n inputs. */
INLINE void rows_times(const struct matvec_args *args, const uint8_t *const *inputs, size_t begin, size_t count,
                       size_t streams, size_t n, group_function *group, struct row_kind kind) {
    const struct matrix *weight = args->weight;
    const size_t step = streams > 1 ? n : kind.tile;
    for (size_t row = begin; row < begin + count; row++) {
        /* All tiles of inputs before the next rows: the rows are then in L1. */
        for (size_t i = 0; i < args->input_count; i += step) {
            const struct row_set set = {(const uint8_t *)weight->data + row * weight->row_bytes, count,
                                        args->outputs + i * args->output_stride + row, args->output_stride, false};
            if (streams > 1)
                row_set_times(weight, set, inputs + i, n, streams, group, kind);
            else
                row_tile_times(weight, set, inputs + i, args->input_count - i, group, kind);
        }
    }
}

/* An infinite scale in the row behind, times a zero of the input, makes a NaN of this row: those that are one are
 * computed again, alone. */
INLINE void rows_again(const struct matvec_args *args, const uint8_t *const *inputs, group_function *group,
                       struct row_kind kind) {
    const struct matrix *weight = args->weight;
    for (size_t i = 0; i < args->input_count; i++) {
        float *y = args->outputs + i * args->output_stride;
        uint32_t found = 0; /* in this form gcc takes many at once */
        for (size_t row = args->row_begin; row < args->row_end; row++) found |= y[row] != y[row];
        for (size_t row = args->row_begin; found != 0 && row < args->row_end; row++) {
            const struct row_set set = {(const uint8_t *)weight->data + row * weight->row_bytes, 1, y + row,
                                        args->output_stride, true};
            if (y[row] != y[row]) row_set_times(weight, set, inputs + i, 1, 1, group, kind);
        }
    }
}

INLINE void rows_run(const struct matvec_args *args, group_function *group, struct row_kind kind) {
    const size_t groups = (args->weight->columns + INPUT_GROUP - 1) / INPUT_GROUP, n = args->input_count;
    const uint8_t *x[MATVEC_INPUTS_MAX];
    for (size_t i = 0; i < n; i++) x[i] = (const uint8_t *)args->inputs + i * groups * kind.input_group_bytes;
    const bool fits = n * groups * INPUT_GROUP_LINES <= INPUTS_FIT;
    const bool in_turns = !fits && kind.takes_turns && (n == 3 || n == 4 || (n == TILE_MAX && kind.tile == n));
    const size_t streams = row_streams(n, in_turns ? 4 : 1);
    size_t count = (args->row_end - args->row_begin) / streams;
    if (n == 1)
        rows_times(args, x, args->row_begin, count, 4, 1, group, kind);
    else if (n == 2)
        rows_times(args, x, args->row_begin, count, 2, 2, group, kind);
    else if (!in_turns)
        count = 0;
    else if (n == 3)
        rows_times(args, x, args->row_begin, count, 4, 3, group, kind);
    else if (n == 4)
        rows_times(args, x, args->row_begin, count, 4, 4, group, kind);
    else if (kind.tile == TILE_MAX)
        rows_times(args, x, args->row_begin, count, 4, TILE_MAX, group, kind);
    const size_t done = args->row_begin + streams * count;
    if (done < args->row_end) rows_times(args, x, done, args->row_end - done, 1, n, group, kind);
    if (kind.group_blocks > 1 && args->weight->columns % INPUT_GROUP != 0) rows_again(args, x, group, kind);
}

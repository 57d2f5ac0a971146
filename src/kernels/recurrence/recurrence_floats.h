/* Layers with a state over `floats`; included by recurrence_avx2.c and _avx512.c.
 *
 * convolve: a register of channels at a time, the weights turned once for each call.
 *
 * delta: columns of S do not depend on each other, so a tile of DELTA_TILE registers of columns goes through a few rows
 * before the next one: of S of 128 x 128 it is 16 KiB (AVX-512: 32), which stays in the first cache from row to row,
 * where the whole of it is 64.  A row reads its tile twice, for S^T k and to update it, and o grows with the update.
 * Rows are prepared together (q and k of unit length, gates) and finished together (norm, silu of z); none depends on
 * the others, so a row's bits do not depend on how a prompt is cut.
 * Bytes: the state once for DELTA_ROWS rows.  Flops: 7 k_dimension v_dimension a row.  Bound: loads of the first cache,
 * 2 and a store for 3 multiply-adds.  Of 128 x 128 on a Zen 3 (AVX2, the quickest of 4,000) a row takes 2.1 us, the
 * reference 29; of 64 channels and 4 taps 0.18 (in calls of 4 rows), the reference 0.74. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "kernels/floats.h"
#include "kernels/recurrence/recurrence.h"

enum { DELTA_ROWS = 8, DELTA_TILE = 4 /* registers */ };

/* The first `count` of a register. */
FLOATS_INLINE floats load_some(const float *x, size_t count) {
    if (count == FLOATS) return floats_load(x);
    float buffer[FLOATS] = {0};
    memcpy(buffer, x, count * sizeof *x);
    return floats_load(buffer);
}

FLOATS_INLINE void store_some(float *y, floats x, size_t count) {
    if (count == FLOATS) {
        floats_store(y, x);
        return;
    }
    float buffer[FLOATS];
    floats_store(buffer, x);
    memcpy(y, buffer, count * sizeof *y);
}

/* x / (1 + exp(-u)) */
FLOATS_INLINE floats sigmoid_multiply(floats x, floats u) {
    return floats_divide(x, floats_add(floats_set(1), floats_exp(floats_subtract(floats_set(0), u))));
}

/* ---- convolve ---- */

/* `count` channels from c on; w: [taps][CONVOLVE_CHANNELS]. */
FLOATS_INLINE void convolve_channels(const struct convolve_args *args, size_t c, size_t count,
                                     const float w[CONVOLVE_TAPS_MAX][CONVOLVE_CHANNELS]) {
    const size_t last = args->taps - 1;
    floats u[CONVOLVE_TAPS_MAX]; /* the rows of u that the next one needs, and its own behind them */
    for (size_t j = 0; j < last; j++)
        u[j] = args->from != NULL ? load_some(args->from + j * args->state_stride + c, count) : floats_set(0);
    for (size_t row = 0; row < args->row_count; row++) {
        const size_t at = row * args->x_stride + c;
        u[last] = load_some(args->x + at, count);
        if (args->in_gate != NULL) u[last] = floats_multiply(u[last], load_some(args->in_gate + at, count));
        floats sum = floats_multiply(floats_load(w[0] + c), u[0]);
        for (size_t j = 1; j <= last; j++) sum = floats_fma(floats_load(w[j] + c), u[j], sum);
        if (args->silu) sum = sigmoid_multiply(sum, sum);
        if (args->out_gate != NULL) sum = floats_multiply(sum, load_some(args->out_gate + at, count));
        store_some(args->y + row * args->y_stride + c, sum, count);
        for (size_t j = 0; j < last; j++) u[j] = u[j + 1];
    }
    for (size_t j = 0; j < last; j++) store_some(args->to + j * args->state_stride + c, u[j], count);
}

static void convolve(const struct convolve_args *args) {
    float w[CONVOLVE_TAPS_MAX][CONVOLVE_CHANNELS] = {{0}};
    for (size_t c = 0; c < args->channel_count; c++)
        for (size_t j = 0; j < args->taps; j++) w[j][c] = args->w[c * args->taps + j];
    for (size_t c = 0; c < args->channel_count; c += FLOATS)
        convolve_channels(args, c, min_size(FLOATS, args->channel_count - c), (const float(*)[CONVOLVE_CHANNELS])w);
}

/* ---- delta ---- */

struct delta_rows {
    float q[DELTA_ROWS][DELTA_DIMENSION_MAX], k[DELTA_ROWS][DELTA_DIMENSION_MAX];
    float o[DELTA_ROWS][DELTA_DIMENSION_MAX];
    float beta[DELTA_ROWS], decay[DELTA_ROWS];
};

/* x of unit length times scale, as in the reference. */
FLOATS_INLINE void unit(const float *x, size_t count, double scale, float *y) {
    floats square = floats_set(0);
    for (size_t i = 0; i < count; i += FLOATS) {
        const floats some = load_some(x + i, min_size(FLOATS, count - i));
        square = floats_fma(some, some, square);
    }
    const floats by = floats_set((float)(scale / sqrt((double)floats_sum(square) + 1e-6)));
    for (size_t i = 0; i < count; i += FLOATS) {
        const size_t some = min_size(FLOATS, count - i);
        store_some(y + i, floats_multiply(load_some(x + i, some), by), some);
    }
}

static double softplus(double x) { return x > 20 ? x : log1p(exp(x)); }

static void delta_prepare(const struct delta_args *args, size_t row, size_t i, struct delta_rows *rows) {
    const double alpha = (double)args->alpha[row * args->gate_stride],
                 beta = (double)args->beta[row * args->gate_stride];
    unit(args->q + row * args->stride, args->k_dimension, 1 / sqrt((double)args->k_dimension), rows->q[i]);
    unit(args->k + row * args->stride, args->k_dimension, 1, rows->k[i]);
    rows->beta[i] = (float)(1 / (1 + exp(-beta)));
    rows->decay[i] = (float)exp((double)args->decay * softplus(alpha + (double)args->bias));
}

/* Columns [j, j + vectors registers) of S, the last of which has `count`, go through a row. */
FLOATS_INLINE void delta_tile(const struct delta_args *args, size_t row, const float *q, const float *k, float decay,
                              float beta, size_t j, const size_t vectors, size_t count, float *o) {
    const size_t width = args->v_dimension;
    const floats decays = floats_set(decay);
    floats v[DELTA_TILE], sum[DELTA_TILE];
    FLOATS_UNROLL
    for (size_t n = 0; n < vectors; n++) v[n] = sum[n] = floats_set(0);
    for (size_t i = 0; i < args->k_dimension; i++) {
        const float *s = args->to + i * width + j;
        const floats key = floats_set(k[i]);
        FLOATS_UNROLL
        for (size_t n = 0; n < vectors; n++)
            v[n] = floats_fma(load_some(s + n * FLOATS, n + 1 < vectors ? FLOATS : count), key, v[n]);
    }
    FLOATS_UNROLL
    for (size_t n = 0; n < vectors; n++) {
        const floats wanted =
            load_some(args->v + row * args->stride + j + n * FLOATS, n + 1 < vectors ? FLOATS : count);
        v[n] = floats_multiply(floats_set(beta), floats_fnma(decays, v[n], wanted));
    }
    for (size_t i = 0; i < args->k_dimension; i++) {
        float *s = args->to + i * width + j;
        const floats key = floats_set(k[i]), query = floats_set(q[i]);
        FLOATS_UNROLL
        for (size_t n = 0; n < vectors; n++) {
            const size_t some = n + 1 < vectors ? FLOATS : count;
            const floats now = floats_fma(key, v[n], floats_multiply(decays, load_some(s + n * FLOATS, some)));
            store_some(s + n * FLOATS, now, some);
            sum[n] = floats_fma(now, query, sum[n]);
        }
    }
    FLOATS_UNROLL
    for (size_t n = 0; n < vectors; n++) store_some(o + j + n * FLOATS, sum[n], n + 1 < vectors ? FLOATS : count);
}

static void delta_columns(const struct delta_args *args, size_t row_first, size_t row_count, size_t j,
                          struct delta_rows *rows) {
    const size_t left = args->v_dimension - j;
    for (size_t i = 0; i < row_count; i++) {
        const float *q = rows->q[i], *k = rows->k[i];
        if (left >= DELTA_TILE * FLOATS)
            delta_tile(args, row_first + i, q, k, rows->decay[i], rows->beta[i], j, DELTA_TILE, FLOATS, rows->o[i]);
        else
            delta_tile(args, row_first + i, q, k, rows->decay[i], rows->beta[i], j, 1, min_size(FLOATS, left),
                       rows->o[i]);
    }
}

static void delta_finish(const struct delta_args *args, size_t row, const float *o) {
    const size_t width = args->v_dimension;
    const float *z = args->z + row * args->y_stride;
    float *y = args->y + row * args->y_stride;
    floats square = floats_set(0);
    for (size_t j = 0; j < width; j += FLOATS) {
        const floats some = load_some(o + j, min_size(FLOATS, width - j));
        square = floats_fma(some, some, square);
    }
    const double mean = (double)floats_sum(square) / (double)width;
    const floats scale = floats_set((float)(1 / sqrt(mean + (double)args->epsilon)));
    for (size_t j = 0; j < width; j += FLOATS) {
        const size_t some = min_size(FLOATS, width - j);
        const floats gate = load_some(z + j, some);
        const floats normed =
            floats_multiply(floats_multiply(load_some(o + j, some), scale), load_some(args->norm + j, some));
        store_some(y + j, floats_multiply(normed, sigmoid_multiply(gate, gate)), some);
    }
}

static void delta(const struct delta_args *args) {
    const size_t bytes = args->k_dimension * args->v_dimension * sizeof(float);
    struct delta_rows rows;
    if (args->from == NULL)
        memset(args->to, 0, bytes);
    else if (args->from != args->to)
        memcpy(args->to, args->from, bytes);
    for (size_t first = 0; first < args->row_count; first += DELTA_ROWS) {
        const size_t count = min_size(DELTA_ROWS, args->row_count - first);
        for (size_t i = 0; i < count; i++) delta_prepare(args, first + i, i, &rows);
        for (size_t j = 0; j < args->v_dimension;) {
            delta_columns(args, first, count, j, &rows);
            j += args->v_dimension - j >= DELTA_TILE * FLOATS ? DELTA_TILE * FLOATS : FLOATS;
        }
        for (size_t i = 0; i < count; i++) delta_finish(args, first + i, rows.o[i]);
    }
}

static void gate(const float *gates, size_t count, float *y) {
    for (size_t i = 0; i < count; i += FLOATS) {
        const size_t some = min_size(FLOATS, count - i);
        store_some(y + i, sigmoid_multiply(load_some(y + i, some), load_some(gates + i, some)), some);
    }
}

FLOATS_INSTALL(recurrence, recurrence) {
    *kernels = (struct recurrence_kernels){.convolve = convolve, .delta = delta, .gate = gate};
}

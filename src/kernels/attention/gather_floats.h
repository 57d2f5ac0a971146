/* Gather attention over `floats`; included by attention_gather_avx2.c, _avx512.c and _neon.c.
 *
 * Mapping: 16 selected rows (AVX-512: 32) at a time; while they are attended, the two steps behind them are
 * prefetched, each line twice: Zen 3 drops a prefetch when no miss buffer is free, and the second one then fetches it.
 * Rows of 64 to 512 bytes lie at random, where the hardware's prefetchers see no stream; of a burst of prefetches
 * most would be dropped.  Scores: up to 4 heads x 2 rows (4) accumulate in registers; the softmax is
 * online; values: 4 heads x 2 (4) registers of the output over the rows.
 * The tiles are those of decode_floats.h over an array of row addresses instead of blocks; kept apart because that
 * kernel goes by whole blocks and is tuned for it.
 * Bytes: row_count rows of k_row_bytes + v_row_bytes (for q8 two lines of scales more).
 * Flops: 2 * group * (k_dimension + v_dimension) per row.
 * Bound: at random rows the core's outstanding misses (24; a line per 5 to 6 ns at best), else as decode.  Reached,
 * AMD EPYC (Zen 3), 2026-11-21, group 4, f16, ns per row and thread: one thread, all rows 26 at dimension 64 and 44 at
 * 128, where decode took 25 and 49 (bench_selection.c); two threads in the engine, 2048 of 32K at dimension 64: 39
 * (51 while the page tables of the rows were cold: what scores the rows asks for a line of each chunk), where loads of
 * such rows alone take 22 to 28 and the arithmetic 19.  What was tried: bench/lab/prefetches.md.  AVX-512, AMD EPYC
 * (Zen 5), 2026-11-22, one thread, 2112 rows: 9.0 in L2, 10.2 at random, and 1.2 more by ranges of 256 rows, as the
 * engine calls it (bench/lab/avx512-zen5.md).
 */
#include <stdbool.h>
#include <string.h>

#include "kernels/attention/rows_floats.h"
#include "kernels/floats.h"

enum {
    GATHER_WIDE = FLOATS == 16, /* 32 registers instead of 16 */
    GATHER_ROWS = GATHER_WIDE ? 32 : 16,
    GATHER_BATCH = 8,
    GATHER_LINE = 64
};

/* The rows of a step, K or V. */
struct gather_rows {
    const uint8_t *row[GATHER_ROWS];
    const uint16_t *halves[GATHER_ROWS]; /* Q8: the scales */
    float *scales;                       /* Q8: [GATHER_ROWS][dimension / 32] */
    size_t dimension;
};

struct gather_step {
    struct gather_rows k, v;
    size_t count; /* 1..GATHER_ROWS */
};

/* The rows to prefetch: of the next step and of the one after it. */
struct gather_ask {
    const struct gather_rows *next, *after;
};

/* The line of a row that begins at `byte`, of the step after the next; half a line further, of the next step. */
FLOATS_INLINE void gather_prefetch(const struct gather_ask ask, size_t row, size_t byte) {
    if (byte % GATHER_LINE == 0) floats_prefetch_once(ask.after->row[row] + byte);
    if (byte % GATHER_LINE == GATHER_LINE / 2) floats_prefetch_once(ask.next->row[row] + byte - GATHER_LINE / 2);
}

/* scores[head][r] = q[head] . k[row + r] */
FLOATS_INLINE void gather_score_tile(const enum kv_type type, const size_t row_count, const size_t heads,
                                     const struct gather_rows *k, const struct gather_ask ask, size_t row,
                                     const float *q, size_t q_stride, float *scores) {
    floats sum[16];
    const size_t scale_count = k->dimension / KV_SCALE_GROUP;
    const size_t width = type == KV_Q8 ? KV_SCALE_GROUP : FLOATS;
    const float *scales = k->scales + row * scale_count;
    FLOATS_UNROLL
    for (size_t i = 0; i < heads * row_count; i++) sum[i] = floats_set(0);
    for (size_t part = 0; part < k->dimension; part += width) {
        floats scale[8];
        FLOATS_UNROLL
        for (size_t r = 0; r < row_count; r++)
            scale[r] = floats_set(type == KV_Q8 ? scales[r * scale_count + part / KV_SCALE_GROUP] : 1);
        FLOATS_UNROLL
        for (size_t r = 0; r < row_count; r++) gather_prefetch(ask, row + r, part * rows_element_bytes(type));
        FLOATS_UNROLL
        for (size_t i = 0; i < width; i += FLOATS) {
            const size_t d = part + i;
            floats key[8];
            FLOATS_UNROLL
            for (size_t r = 0; r < row_count; r++) key[r] = rows_load(type, k->row[row + r], d, scale[r]);
            FLOATS_UNROLL
            for (size_t head = 0; head < heads; head++) {
                floats query = floats_keep(floats_load(q + head * q_stride + d));
                FLOATS_UNROLL
                for (size_t r = 0; r < row_count; r++)
                    sum[head * row_count + r] = floats_fma(query, key[r], sum[head * row_count + r]);
            }
        }
    }
    floats_sums_store(sum, heads * row_count, row_count, scores + row, GATHER_ROWS);
}

/* The 8 rows from `row` on. */
FLOATS_INLINE void gather_score_group(const enum kv_type type, size_t group, const struct gather_rows *k,
                                      const struct gather_ask ask, size_t row, const float *q, size_t q_stride,
                                      float *scores) {
    size_t head = 0;
#define SCORE_HEADS(heads, rows)                      \
    for (size_t r = 0; r < GATHER_BATCH; r += (rows)) \
    gather_score_tile(type, rows, heads, k, ask, row + r, q + head * q_stride, q_stride, scores + head * GATHER_ROWS)
    if (type == KV_Q8)
        for (size_t r = 0; r < GATHER_BATCH; r++) floats_prefetch(ask.next->halves[row + r]);
    for (; head + 4 <= group; head += 4) SCORE_HEADS(4, GATHER_WIDE ? 4 : 2);
    for (; head + 2 <= group; head += 2) SCORE_HEADS(2, GATHER_WIDE ? 8 : 4);
    for (; head < group; head++) SCORE_HEADS(1, 8);
#undef SCORE_HEADS
}

/* o[head][vectors registers] += weights[head][row] * v[row] over the step's rows */
FLOATS_INLINE void gather_value_tile(const enum kv_type type, const size_t heads, const size_t vectors,
                                     const struct gather_rows *v, const struct gather_ask ask, size_t d, size_t count,
                                     const float *weights, float *o, size_t o_stride) {
    floats sum[16];
    const size_t scale_count = v->dimension / KV_SCALE_GROUP;
    outputs_load(heads, vectors, o + d, o_stride, sum);
    for (size_t row = 0; row < count; row++) {
        const uint8_t *base = v->row[row];
        const float *scales = v->scales + row * scale_count;
        floats weight[4];
        FLOATS_UNROLL
        for (size_t head = 0; head < heads; head++) weight[head] = floats_set(weights[head * GATHER_ROWS + row]);
        FLOATS_UNROLL
        for (size_t n = 0; n < vectors; n++) {
            const size_t byte = (d + n * FLOATS) * rows_element_bytes(type);
            gather_prefetch(ask, row, byte);
            floats scale = floats_set(type == KV_Q8 ? scales[(d + n * FLOATS) / KV_SCALE_GROUP] : 1);
            floats value = rows_load(type, base, d + n * FLOATS, scale);
            FLOATS_UNROLL
            for (size_t head = 0; head < heads; head++)
                sum[head * vectors + n] = floats_fma(weight[head], value, sum[head * vectors + n]);
        }
    }
    outputs_store(heads, vectors, sum, o + d, o_stride);
}

FLOATS_INLINE void gather_value_heads(const enum kv_type type, const size_t heads, const size_t vectors,
                                      const struct gather_rows *v, const struct gather_ask ask, size_t count,
                                      const float *weights, float *o, size_t o_stride) {
    size_t d = 0;
    for (; d + vectors * FLOATS <= v->dimension; d += vectors * FLOATS)
        gather_value_tile(type, heads, vectors, v, ask, d, count, weights, o, o_stride);
    for (; d < v->dimension; d += FLOATS) gather_value_tile(type, heads, 1, v, ask, d, count, weights, o, o_stride);
}

FLOATS_INLINE void gather_value_group(const enum kv_type type, size_t group, const struct gather_rows *v,
                                      const struct gather_ask ask, size_t count, const float *weights, float *o,
                                      size_t o_stride) {
    size_t head = 0;
#define VALUE_HEADS(heads, vectors) \
    gather_value_heads(type, heads, vectors, v, ask, count, weights + head * GATHER_ROWS, o + head * o_stride, o_stride)
    if (type == KV_Q8)
        for (size_t r = 0; r < GATHER_ROWS; r++) floats_prefetch(ask.next->halves[r]);
    for (; head + 4 <= group; head += 4) VALUE_HEADS(4, GATHER_WIDE ? 4 : 2);
    for (; head + 2 <= group; head += 2) VALUE_HEADS(2, 4);
    for (; head < group; head++) VALUE_HEADS(1, 8);
#undef VALUE_HEADS
}

/* Scaled, soft-capped, and -INFINITY from `count` on. */
FLOATS_INLINE floats gather_scaled(const struct attention_gather_args *args, floats x, size_t at, size_t count) {
    x = floats_multiply(x, floats_set(args->scale));
    if (args->softcap != 0) x = floats_softcap(x, args->softcap);
    if (count == GATHER_ROWS) return x;
    floats lane = floats_add(floats_index(), floats_set((float)at));
    return floats_if_less(lane, floats_set((float)count), x, floats_set(-INFINITY));
}

/* One head's online softmax over a step.  `out`: receives the scores; may be NULL. */
FLOATS_INLINE void gather_soften(const struct attention_gather_args *args, size_t head, size_t count, float *scores,
                                 float *s, float *out) {
    enum { COUNT = GATHER_ROWS / FLOATS };
    floats x[COUNT];
    floats m = floats_set(args->m[head]);
    int greater = 0;
    FLOATS_UNROLL
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = gather_scaled(args, floats_load(scores + i * FLOATS), i * FLOATS, count);
        floats_store(scores + i * FLOATS, x[i]);
        greater |= floats_any_greater(x[i], m);
    }
    if (out != NULL) memcpy(out, scores, count * sizeof *out);
    softmax_step(x, COUNT, greater, &args->m[head], s, args->o + head * args->o_stride, args->layout->v_dimension,
                 scores);
}

/* Where the rows of a step are, the last one again up to GATHER_ROWS. */
FLOATS_INLINE void gather_place(const struct rows_shape shape, const struct kv_layout *layout,
                                const void *const *chunks, const uint32_t *rows, struct gather_step *step) {
    const size_t k_bytes = shape.k_dimension * rows_element_bytes(shape.k_type);
    const size_t v_bytes = shape.v_dimension * rows_element_bytes(shape.v_type);
    for (size_t i = 0; i < GATHER_ROWS; i++) {
        const uint32_t row = rows[i < step->count ? i : step->count - 1];
        const uint8_t *block = kv_block(layout, chunks[row / KV_CHUNK_TOKENS], row % KV_CHUNK_TOKENS);
        const size_t token = row % KV_BLOCK_TOKENS;
        step->k.row[i] = block + token * k_bytes;
        step->v.row[i] = block + layout->v_offset + token * v_bytes;
        if (shape.k_type == KV_Q8)
            step->k.halves[i] = (const uint16_t *)(const void *)(block + layout->k_scales_offset) +
                                token * (shape.k_dimension / KV_SCALE_GROUP);
        if (shape.v_type == KV_Q8)
            step->v.halves[i] = (const uint16_t *)(const void *)(block + layout->v_scales_offset) +
                                token * (shape.v_dimension / KV_SCALE_GROUP);
    }
}

/* The step's scales as floats. */
FLOATS_INLINE void gather_scales(const struct gather_rows *rows, const size_t dimension, size_t count) {
    const size_t scale_count = dimension / KV_SCALE_GROUP;
    for (size_t row = 0; row < count; row++) {
        float *scales = rows->scales + row * scale_count;
        size_t i = 0;
        for (; i + 4 <= scale_count; i += 4) floats4_from_halves(scales + i, rows->halves[row] + i);
        for (; i < scale_count; i++) scales[i] = half_to_float(rows->halves[row][i]);
    }
}

struct gather_scratch {
    float *scores;   /* [group][GATHER_ROWS] */
    float *s;        /* [group][FLOATS] */
    float *k_scales; /* [GATHER_ROWS][k_dimension / 32] */
    float *v_scales;
};

static size_t gather_scratch_bytes(size_t group, const struct kv_layout *layout) {
    size_t scales = layout->k_dimension / KV_SCALE_GROUP + layout->v_dimension / KV_SCALE_GROUP;
    return sizeof(float) * (group * (GATHER_ROWS + FLOATS) + GATHER_ROWS * scales);
}

/* Attends the step at index `first` of the list, and prefetches `next` and `after`. */
FLOATS_INLINE void gather_attend(const struct rows_shape shape, const struct attention_gather_args *args,
                                 const struct gather_step *step, const struct gather_step *next,
                                 const struct gather_step *after, size_t first, struct gather_scratch scratch) {
    const size_t count = step->count;
    const size_t scored = (count + GATHER_BATCH - 1) / GATHER_BATCH * GATHER_BATCH; /* more of it is masked */
    if (shape.k_type == KV_Q8) gather_scales(&step->k, shape.k_dimension, scored);
    for (size_t row = 0; row < scored; row += GATHER_BATCH)
        gather_score_group(shape.k_type, args->group, &step->k, (struct gather_ask){&next->k, &after->k}, row, args->q,
                           args->q_stride, scratch.scores);
    for (size_t head = 0; head < args->group; head++)
        gather_soften(args, head, count, scratch.scores + head * GATHER_ROWS, scratch.s + head * FLOATS,
                      args->scores != NULL ? args->scores + head * args->scores_stride + first : NULL);
    if (shape.v_type == KV_Q8) gather_scales(&step->v, shape.v_dimension, count);
    gather_value_group(shape.v_type, args->group, &step->v, (struct gather_ask){&next->v, &after->v}, count,
                       scratch.scores, args->o, args->o_stride);
}

/* The step at index `first` of the list.  Behind the list's end: the rows that the caller reads next.  Behind those:
 * the step keeps its content, and the result is false. */
FLOATS_INLINE bool gather_find(const struct rows_shape shape, const struct attention_gather_args *args, size_t first,
                               struct gather_step *step) {
    const bool own = first < args->row_count;
    const size_t begin = own ? first : first - args->row_count;
    const size_t count = own ? args->row_count : args->then_count;
    if (begin >= count) return false;
    step->count = count - begin < GATHER_ROWS ? count - begin : GATHER_ROWS;
    gather_place(shape, args->layout, own ? args->chunks : args->then_chunks,
                 (own ? args->rows : args->then_rows) + begin, step);
    return true;
}

FLOATS_INLINE void gather_shaped(const struct rows_shape shape, const struct attention_gather_args *args) {
    struct gather_scratch scratch = {.scores = args->scratch};
    struct gather_step steps[3];
    scratch.s = scratch.scores + args->group * GATHER_ROWS;
    scratch.k_scales = scratch.s + args->group * FLOATS;
    scratch.v_scales = scratch.k_scales + GATHER_ROWS * (shape.k_dimension / KV_SCALE_GROUP);
    for (size_t i = 0; i < 3; i++) {
        steps[i].k.scales = scratch.k_scales;
        steps[i].v.scales = scratch.v_scales;
        steps[i].k.dimension = shape.k_dimension;
        steps[i].v.dimension = shape.v_dimension;
    }
    partials_begin(args->group, shape.v_dimension, args->m, scratch.s, args->o, args->o_stride);
    for (size_t i = 0; i < 3; i++) /* each has rows, if only these */
        if (!gather_find(shape, args, i * GATHER_ROWS, &steps[i])) gather_find(shape, args, 0, &steps[i]);
    for (size_t first = 0, at = 0; first < args->row_count; first += GATHER_ROWS, at++) {
        struct gather_step *step = &steps[at % 3];
        gather_attend(shape, args, step, &steps[(at + 1) % 3], &steps[(at + 2) % 3], first, scratch);
        gather_find(shape, args, first + 3 * GATHER_ROWS, step);
    }
    partials_end(args->group, scratch.s, args->s);
}

ROWS_SHAPES(gather)

FLOATS_INSTALL(attention, attention_gather) {
    kernels->gather = gather_floats;
    kernels->gather_scratch_bytes = gather_scratch_bytes;
}

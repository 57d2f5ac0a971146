/* Gather attention over chunks in 4 bits; included by attention_gather_q4_avx2.c, _avx512.c and _neon.c.
 *
 * Nothing is decoded: with k_td = low_d + c_td step_d,
 *     q . k_t = sum q_d low_d + sum (q_d step_d) c_td        the first once per chunk; q step once per chunk and head
 *     sum w_t v_td = sum w_t low_t + sum (w_t step_t) c_td   per group of 32 channels
 * so an element costs a multiply-add per head, and once for the whole group half of a load, of an and or a shift, and
 * of a conversion.
 *
 * Mapping: a chunk at a time, all of whose selected rows are attended to: lines of two tokens that share their bytes.
 * Scores: 4 heads x 1 line, 2 x 2 or 1 x 4 accumulate in 8 registers, the codes of a line are converted once for the
 * heads; the softmax goes over the chunk's 64 scores, of which those that are not selected are -infinity; values: 4
 * heads x 2 registers over the chunk's lines.  The next chunk's lines are prefetched as these are read.
 * Bytes: 4,864 for 64 rows at dimension 64 (f16: 16,384); a line that has no selected row is not read.
 * Reached, one core of an AMD EPYC (Zen 3), 2026-11-21, group 4, 32 chunks at random of 32K tokens: 27 ns a row at
 * dimension 64 and 51 at 128; gather of the same rows in f16 takes 27 and 46 (bench_selection.c).
 * Flops: 2 * group * (k_dimension + v_dimension) per row of a line that has one.
 */
#include <math.h>
#include <stdbool.h>

#include "kernels/attention/rows_floats.h"
#include "kernels/codec/q4_floats.h"
#include "kernels/codec/q4_parts.h"
#include "kernels/floats.h"

enum {
    TOKENS = KV_CHUNK_TOKENS,
    LINES = TOKENS / 2,
    Q4_LINE_BYTES = 64,
    HEADS_AT_ONCE = 4,
    VECTORS_MAX = Q4_V_GROUP / FLOATS /* of a tile of values, whose channels share their ranges */
};

/* The selected rows of a chunk. */
struct q4_rows {
    const uint8_t *q4;
    const uint8_t *next;  /* the chunk after it; itself: none */
    size_t first, count;  /* rows [first, first + count) of the list */
    uint64_t selected;    /* bit t: token t */
    uint8_t lines[LINES]; /* [line_count] ascending: the lines with selected rows */
    size_t line_count;
};

struct q4_scratch {
    float *slopes;  /* [group][k_dimension]: q step */
    float *bases;   /* [group]: q . low */
    float *scores;  /* [group][TOKENS] */
    float *steps;   /* [groups][TOKENS] of V; 0 where a token is not selected */
    float *lows;    /* the same */
    float *weights; /* [HEADS_AT_ONCE][groups][TOKENS] */
    float *lifts;   /* [HEADS_AT_ONCE][groups]: weights . lows */
    float *s;       /* [group][FLOATS] */
};

static size_t gather_q4_scratch_bytes(size_t group, const struct kv_layout *layout) {
    const struct q4_parts parts = q4_parts_of(layout);
    return sizeof(float) * (group * (layout->k_dimension + 1 + TOKENS + FLOATS) +
                            parts.groups * (TOKENS * (2 + HEADS_AT_ONCE) + HEADS_AT_ONCE));
}

static struct q4_scratch scratch_in(void *memory, size_t group, const struct q4_parts *parts) {
    struct q4_scratch scratch = {.slopes = memory};
    scratch.scores = scratch.slopes + group * parts->k_dimension;
    scratch.steps = scratch.scores + group * TOKENS;
    scratch.lows = scratch.steps + parts->groups * TOKENS;
    scratch.weights = scratch.lows + parts->groups * TOKENS;
    scratch.s = scratch.weights + HEADS_AT_ONCE * parts->groups * TOKENS;
    scratch.bases = scratch.s + group * FLOATS;
    scratch.lifts = scratch.bases + group;
    return scratch;
}

/* ---- scores ---- */

FLOATS_INLINE void slopes_make(const struct attention_gather_args *args, const size_t k_dimension, const uint8_t *q4,
                               const struct q4_parts *parts, struct q4_scratch scratch) {
    for (size_t head = 0; head < args->group; head++) {
        const float *q = args->q + head * args->q_stride;
        floats base = floats_set(0);
        for (size_t d = 0; d < k_dimension; d += FLOATS) {
            floats low = floats_load_half(q4 + d * sizeof(uint16_t));
            floats high = floats_load_half(q4 + parts->k_high + d * sizeof(uint16_t));
            floats step = floats_multiply(floats_subtract(high, low), floats_set(Q4_FIFTEENTH));
            floats query = floats_load(q + d);
            base = floats_fma(query, low, base);
            floats_store(scratch.slopes + head * k_dimension + d, floats_multiply(query, step));
        }
        scratch.bases[head] = floats_sum(base);
    }
}

/* scores[head][token] = slopes[head] . codes of the token, `lines` lines from `codes_at` on */
FLOATS_INLINE void score_lines(const size_t heads, const size_t lines, const size_t k_dimension,
                               const uint8_t *codes_at, const float *slopes, float *scores) {
    floats sum[8];
    FLOATS_UNROLL
    for (size_t i = 0; i < 8; i++) sum[i] = floats_set(0);
    for (size_t d = 0; d < k_dimension; d += FLOATS) {
        FLOATS_UNROLL
        for (size_t line = 0; line < lines; line++) {
            codes both = codes_load(codes_at + line * k_dimension + d);
            floats even = codes_even(both), odd = codes_odd(both);
            FLOATS_UNROLL
            for (size_t head = 0; head < heads; head++) {
                floats slope = floats_keep(floats_load(slopes + head * k_dimension + d));
                floats *to = sum + head * 2 * lines + 2 * line;
                to[0] = floats_fma(slope, even, to[0]);
                to[1] = floats_fma(slope, odd, to[1]);
            }
        }
    }
    floats_sums_store(sum, 8, 2 * lines, scores, TOKENS);
}

/* `lines` lines at a time, where one of them has a selected row. */
FLOATS_INLINE void score_heads(const size_t heads, const size_t lines, const size_t k_dimension,
                               const struct q4_rows *rows, const struct q4_parts *parts, bool prefetches,
                               const float *slopes, float *scores) {
    const uint64_t tokens = (UINT64_C(1) << 2 * lines) - 1;
    for (size_t line = 0; line < LINES; line += lines) {
        const uint8_t *at = rows->q4 + parts->k_codes + line * k_dimension;
        if ((rows->selected >> 2 * line & tokens) == 0) continue;
        if (prefetches)
            for (size_t i = 0; i < lines * k_dimension; i += Q4_LINE_BYTES)
                floats_prefetch(rows->next + (at - rows->q4) + i);
        score_lines(heads, lines, k_dimension, at, slopes, scores + 2 * line);
    }
}

FLOATS_INLINE void score_group(const struct attention_gather_args *args, const size_t k_dimension,
                               const struct q4_rows *rows, const struct q4_parts *parts, struct q4_scratch scratch) {
    size_t head = 0;
    slopes_make(args, k_dimension, rows->q4, parts, scratch);
#define SCORE_HEADS(heads, lines)                                                                       \
    score_heads(heads, lines, k_dimension, rows, parts, head == 0, scratch.slopes + head * k_dimension, \
                scratch.scores + head * TOKENS)
    for (; head + 4 <= args->group; head += 4) SCORE_HEADS(4, 1);
    for (; head + 2 <= args->group; head += 2) SCORE_HEADS(2, 2);
    for (; head < args->group; head++) SCORE_HEADS(1, 4);
#undef SCORE_HEADS
}

/* ---- weights ---- */

/* One head's online softmax over a chunk, of 64 scores at once. */
static void soften(const struct attention_gather_args *args, size_t head, const float *selected, float base,
                   float *scores, float *s) {
    enum { COUNT = TOKENS / FLOATS };
    floats x[COUNT], m = floats_set(args->m[head]);
    int greater = 0;
    FLOATS_UNROLL
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = floats_multiply(floats_add(floats_load(scores + i * FLOATS), floats_set(base)), floats_set(args->scale));
        if (args->softcap != 0) x[i] = floats_softcap(x[i], args->softcap);
        x[i] = floats_if_less(floats_set(0), floats_load(selected + i * FLOATS), x[i], floats_set(-INFINITY));
        greater |= floats_any_greater(x[i], m);
    }
    softmax_step(x, COUNT, greater, &args->m[head], s, args->o + head * args->o_stride, args->layout->v_dimension,
                 scores);
}

/* The scores of the selected rows, in their order. */
static void scores_give(const struct attention_gather_args *args, const struct q4_rows *rows, size_t head,
                        const float *scores) {
    float *out = args->scores + head * args->scores_stride;
    for (size_t i = rows->first; i < rows->first + rows->count; i++) out[i] = scores[args->rows[i] % TOKENS];
}

static void soften_group(const struct attention_gather_args *args, const struct q4_rows *rows,
                         struct q4_scratch scratch) {
    float selected[TOKENS];
    for (size_t t = 0; t < TOKENS; t++) selected[t] = (float)(rows->selected >> t & 1);
    for (size_t head = 0; head < args->group; head++) {
        float *scores = scratch.scores + head * TOKENS;
        if (args->scores != NULL) { /* before they become weights */
            float plain[TOKENS];
            for (size_t t = 0; t < TOKENS; t += FLOATS) {
                floats x = floats_multiply(floats_add(floats_load(scores + t), floats_set(scratch.bases[head])),
                                           floats_set(args->scale));
                floats_store(plain + t, args->softcap != 0 ? floats_softcap(x, args->softcap) : x);
            }
            scores_give(args, rows, head, plain);
        }
        soften(args, head, selected, scratch.bases[head], scores, scratch.s + head * FLOATS);
    }
}

/* ---- values ---- */

/* Ranges by group of channels.  Those of rows that are not selected may be anything, NaN too. */
FLOATS_INLINE void ranges_make(const struct q4_rows *rows, const struct q4_parts *parts, struct q4_scratch scratch) {
    const size_t groups = parts->groups;
    for (size_t i = 0; i < TOKENS * groups; i += FLOATS) {
        float lows[FLOATS], steps[FLOATS];
        floats low = floats_load_half(rows->q4 + parts->v_low + i * sizeof(uint16_t));
        floats high = floats_load_half(rows->q4 + parts->v_high + i * sizeof(uint16_t));
        floats_store(lows, low);
        floats_store(steps, floats_multiply(floats_subtract(high, low), floats_set(Q4_FIFTEENTH)));
        for (size_t j = 0; j < FLOATS; j++) {
            const size_t t = (i + j) / groups, at = (i + j) % groups * TOKENS + t;
            const bool is = rows->selected >> t & 1;
            scratch.lows[at] = is ? lows[j] : 0;
            scratch.steps[at] = is ? steps[j] : 0;
        }
    }
}

/* weights[head][group][token] = weight * step; and what the lows add to each channel of a group. */
FLOATS_INLINE void weights_make(const size_t heads, const struct q4_parts *parts, struct q4_scratch scratch,
                                const float *scores, float *bases) {
    for (size_t head = 0; head < heads; head++)
        for (size_t g = 0; g < parts->groups; g++) {
            const size_t at = g * TOKENS;
            floats base = floats_set(0);
            FLOATS_UNROLL
            for (size_t t = 0; t < TOKENS; t += FLOATS) {
                floats weight = floats_load(scores + head * TOKENS + t);
                base = floats_fma(weight, floats_load(scratch.lows + at + t), base);
                floats_store(scratch.weights + head * parts->groups * TOKENS + at + t,
                             floats_multiply(weight, floats_load(scratch.steps + at + t)));
            }
            bases[head * parts->groups + g] = floats_sum(base);
        }
}

/* o[head][vectors registers from channel d on] += base + weights . codes, of channels of one group */
FLOATS_INLINE void value_tile(const size_t heads, const size_t vectors, const struct q4_rows *rows,
                              const struct q4_parts *parts, size_t d, bool prefetches, const float *weights,
                              const float *bases, float *o, size_t o_stride) {
    floats sum[8];
    const size_t g = d / Q4_V_GROUP, stride = parts->groups * TOKENS;
    const uint8_t *codes_at = rows->q4 + parts->v_codes + d;
    FLOATS_UNROLL
    for (size_t head = 0; head < heads; head++) FLOATS_UNROLL
    for (size_t n = 0; n < vectors; n++)
        sum[head * vectors + n] =
            floats_add(floats_load(o + head * o_stride + d + n * FLOATS), floats_set(bases[head * parts->groups + g]));
    for (size_t i = 0; i < rows->line_count; i++) {
        const size_t line = rows->lines[i];
        const uint8_t *at = codes_at + line * parts->v_dimension;
        if (prefetches) floats_prefetch(rows->next + (at - rows->q4));
        const float *weight = weights + g * TOKENS + 2 * line;
        floats even[4], odd[4];
        FLOATS_UNROLL
        for (size_t n = 0; n < vectors; n++) {
            codes both = codes_load(at + n * FLOATS);
            even[n] = codes_even(both);
            odd[n] = codes_odd(both);
        }
        FLOATS_UNROLL
        for (size_t head = 0; head < heads; head++) {
            floats first = floats_set(weight[head * stride]), second = floats_set(weight[head * stride + 1]);
            FLOATS_UNROLL
            for (size_t n = 0; n < vectors; n++) {
                floats *to = sum + head * vectors + n;
                *to = floats_fma(second, odd[n], floats_fma(first, even[n], *to));
            }
        }
    }
    outputs_store(heads, vectors, sum, o + d, o_stride);
}

FLOATS_INLINE void value_heads(const size_t heads, const size_t vectors, const struct q4_rows *rows,
                               const struct q4_parts *parts, bool prefetches, struct q4_scratch scratch,
                               const float *scores, float *o, size_t o_stride) {
    float *bases = scratch.lifts;
    weights_make(heads, parts, scratch, scores, bases);
    for (size_t d = 0; d < parts->v_dimension;) {
        const bool whole =
            d % Q4_V_GROUP + vectors * FLOATS <= Q4_V_GROUP && d + vectors * FLOATS <= parts->v_dimension;
        const bool line = prefetches && d % Q4_LINE_BYTES == 0;
        if (whole)
            value_tile(heads, vectors, rows, parts, d, line, scratch.weights, bases, o, o_stride);
        else
            value_tile(heads, 1, rows, parts, d, line, scratch.weights, bases, o, o_stride);
        d += whole ? vectors * FLOATS : FLOATS;
    }
}

FLOATS_INLINE void value_group(const struct attention_gather_args *args, const struct q4_rows *rows,
                               const struct q4_parts *parts, struct q4_scratch scratch) {
    size_t head = 0;
    ranges_make(rows, parts, scratch);
#define VALUE_HEADS(heads, vectors)                                                              \
    value_heads(heads, vectors, rows, parts, head == 0, scratch, scratch.scores + head * TOKENS, \
                args->o + head * args->o_stride, args->o_stride)
    for (; head + 4 <= args->group; head += 4) VALUE_HEADS(4, 2);
    for (; head + 2 <= args->group; head += 2) VALUE_HEADS(2, VECTORS_MAX);
    for (; head < args->group; head++) VALUE_HEADS(1, VECTORS_MAX);
#undef VALUE_HEADS
}

/* ---- chunks ---- */

/* The rows of the list, from `first` on, that are in one chunk. */
static void rows_take(const struct attention_gather_args *args, size_t first, struct q4_rows *rows) {
    const uint32_t chunk = args->rows[first] / TOKENS;
    size_t end = first;
    *rows = (struct q4_rows){.q4 = args->chunks[chunk], .next = args->chunks[chunk], .first = first};
    for (; end < args->row_count && args->rows[end] / TOKENS == chunk; end++)
        rows->selected |= UINT64_C(1) << args->rows[end] % TOKENS;
    rows->count = end - first;
    if (end < args->row_count) rows->next = args->chunks[args->rows[end] / TOKENS];
    for (size_t line = 0; line < LINES; line++)
        if ((rows->selected >> 2 * line & 3) != 0) rows->lines[rows->line_count++] = (uint8_t)line;
}

FLOATS_INLINE void gather_shaped(const struct attention_gather_args *args, const struct q4_parts parts) {
    struct q4_scratch scratch = scratch_in(args->scratch, args->group, &parts);
    partials_begin(args->group, parts.v_dimension, args->m, scratch.s, args->o, args->o_stride);
    struct q4_rows rows;
    for (size_t first = 0; first < args->row_count; first += rows.count) {
        rows_take(args, first, &rows);
        for (size_t i = 0; i < parts.k_codes; i += Q4_LINE_BYTES) floats_prefetch(rows.next + i);
        score_group(args, parts.k_dimension, &rows, &parts, scratch);
        soften_group(args, &rows, scratch);
        value_group(args, &rows, &parts, scratch);
    }
    partials_end(args->group, scratch.s, args->s);
}

FLOATS_INLINE struct q4_parts parts_of(const size_t k_dimension, const size_t v_dimension) {
    const struct kv_layout layout = {.k_dimension = k_dimension, .v_dimension = v_dimension};
    return q4_parts_of(&layout);
}

/* The dimensions of most models as constants. */
static void gather_q4_floats(const struct attention_gather_args *args) {
    FLOATS_FILL(kv_rows_fill(args->layout, FLOATS), attention, attention_gather_q4, gather_q4, args)
    const size_t k = args->layout->k_dimension, v = args->layout->v_dimension;
    if (k == 64 && v == 64)
        gather_shaped(args, parts_of(64, 64));
    else if (k == 128 && v == 128)
        gather_shaped(args, parts_of(128, 128));
    else
        gather_shaped(args, parts_of(k, v));
}

FLOATS_INSTALL(attention, attention_gather_q4) {
    kernels->gather_q4 = gather_q4_floats;
    kernels->gather_q4_scratch_bytes = gather_q4_scratch_bytes;
}

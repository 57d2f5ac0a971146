/* Decode attention over `floats`; included by attention_decode_avx2.c and attention_decode_avx512.c.
 *
 * Mapping: 16 rows (two blocks, contiguous memory) at a time; for each, the scores of all query heads
 * of the group, then the online softmax, then the weighted values, so that K and V come from memory
 * once, in address order.  Scores: up to 4 heads x 2 rows accumulate in registers, a K vector is
 * converted once and used by each head.  Values: 4 heads x 2 registers of the output accumulate over
 * the 16 rows.
 * Bytes: row_end - row_begin rows of k_row_bytes + v_row_bytes (and scales).
 * Flops: 2 * group * (k_dimension + v_dimension) per row.
 * Bound: memory, up to the group size that docs/benchmarks state for the machine; see bench/kernels.
 */
#include <math.h>

#include "base/checked.h"
#include "kernels/attention/attention_internal.h"
#include "kernels/floats.h"
#include "tensor/half.h"

enum {
    DECODE_ROWS = 16,
    DECODE_WIDE = FLOATS == 16, /* 32 registers instead of 16 */
    LINE_BYTES = 64
};

/* Where 16 rows of K or of V are. */
struct decode_rows {
    const uint8_t *base; /* row 0 of the first block */
    size_t block_bytes, row_bytes;
    size_t dimension;
    const float *scales; /* Q8: [16][dimension / 32] */
};

FLOATS_INLINE const uint8_t *decode_row(const struct decode_rows *rows, size_t row) {
    return rows->base + row / KV_BLOCK_TOKENS * rows->block_bytes + row % KV_BLOCK_TOKENS * rows->row_bytes;
}

FLOATS_INLINE floats decode_load(const enum kv_type type, const uint8_t *row, const float *scales, size_t d) {
    if (type == KV_F16) return floats_load_half(row + d * sizeof(uint16_t));
    return floats_multiply(floats_load_int8(row + d), floats_set(scales[d / KV_SCALE_GROUP]));
}

/* scores[head][row .. row + row_count) = q . k */
FLOATS_INLINE void score_tile(const enum kv_type type, const size_t row_count, const size_t heads,
                              const struct decode_rows *k, size_t row, const float *q, size_t q_stride,
                              float *scores) {
    floats sum[16];
    const uint8_t *base = decode_row(k, row);
    const size_t scale_count = k->dimension / KV_SCALE_GROUP;
    const float *scales = k->scales + row * scale_count;
    FLOATS_UNROLL
    for (size_t i = 0; i < heads * row_count; i++) sum[i] = floats_set(0);
    for (size_t d = 0; d < k->dimension; d += FLOATS) {
        floats key[8];
        FLOATS_UNROLL
        for (size_t r = 0; r < row_count; r++)
            key[r] = decode_load(type, base + r * k->row_bytes, scales + r * scale_count, d);
        FLOATS_UNROLL
        for (size_t head = 0; head < heads; head++) {
            floats query = floats_load(q + head * q_stride + d);
            FLOATS_UNROLL
            for (size_t r = 0; r < row_count; r++)
                sum[head * row_count + r] = floats_fma(query, key[r], sum[head * row_count + r]);
        }
    }
    FLOATS_UNROLL
    for (size_t i = 0; i < heads * row_count; i += 4) {
        __m128 four = floats_sum4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
        float *target = scores + i / row_count * DECODE_ROWS + row + i % row_count;
        if (row_count == 2) {
            _mm_storel_pi((__m64 *)target, four);
            _mm_storeh_pi((__m64 *)(target + DECODE_ROWS), four);
        } else {
            _mm_storeu_ps(target, four);
        }
    }
}

FLOATS_INLINE void score_heads(const enum kv_type type, const size_t row_count, const size_t heads,
                               const struct decode_rows *k, const float *q, size_t q_stride, float *scores) {
    for (size_t row = 0; row < DECODE_ROWS; row += row_count)
        score_tile(type, row_count, heads, k, row, q, q_stride, scores);
}

FLOATS_INLINE void score_group(const enum kv_type type, size_t group, const struct decode_rows *k,
                               const float *q, size_t q_stride, float *scores) {
    size_t head = 0;
    for (; head + 4 <= group && head + 5 != group; head += 4) /* 5 is 3 + 2 */
        score_heads(type, DECODE_WIDE ? 4 : 2, 4, k, q + head * q_stride, q_stride,
                    scores + head * DECODE_ROWS);
    for (; head + 3 <= group; head += 3)
        score_heads(type, 4, 3, k, q + head * q_stride, q_stride, scores + head * DECODE_ROWS);
    for (; head + 2 <= group; head += 2)
        score_heads(type, DECODE_WIDE ? 8 : 4, 2, k, q + head * q_stride, q_stride,
                    scores + head * DECODE_ROWS);
    for (; head < group; head++)
        score_heads(type, 8, 1, k, q + head * q_stride, q_stride, scores + head * DECODE_ROWS);
}

/* o[head][vectors registers] += weights[head][row] * v[row] over rows [row_begin, row_end) */
FLOATS_INLINE void value_tile(const enum kv_type type, const size_t heads, const size_t vectors,
                              const struct decode_rows *v, size_t d, size_t row_begin, size_t row_end,
                              const float *weights, float *o, size_t o_stride) {
    floats sum[16];
    const size_t scale_count = v->dimension / KV_SCALE_GROUP;
    FLOATS_UNROLL
    for (size_t head = 0; head < heads; head++) FLOATS_UNROLL
    for (size_t n = 0; n < vectors; n++)
        sum[head * vectors + n] = floats_load(o + head * o_stride + d + n * FLOATS);
    for (size_t row = row_begin; row < row_end; row++) {
        const uint8_t *base = decode_row(v, row);
        floats weight[4];
        FLOATS_UNROLL
        for (size_t head = 0; head < heads; head++)
            weight[head] = floats_set(weights[head * DECODE_ROWS + row]);
        FLOATS_UNROLL
        for (size_t n = 0; n < vectors; n++) {
            floats value = decode_load(type, base, v->scales + row * scale_count, d + n * FLOATS);
            FLOATS_UNROLL
            for (size_t head = 0; head < heads; head++)
                sum[head * vectors + n] = floats_fma(weight[head], value, sum[head * vectors + n]);
        }
    }
    FLOATS_UNROLL
    for (size_t head = 0; head < heads; head++) FLOATS_UNROLL
    for (size_t n = 0; n < vectors; n++)
        floats_store(o + head * o_stride + d + n * FLOATS, sum[head * vectors + n]);
}

FLOATS_INLINE void value_heads(const enum kv_type type, const size_t heads, const size_t vectors,
                               const struct decode_rows *v, size_t row_begin, size_t row_end,
                               const float *weights, float *o, size_t o_stride) {
    size_t d = 0;
    for (; d + vectors * FLOATS <= v->dimension; d += vectors * FLOATS)
        value_tile(type, heads, vectors, v, d, row_begin, row_end, weights, o, o_stride);
    for (; d + 2 * FLOATS <= v->dimension; d += 2 * FLOATS)
        value_tile(type, heads, 2, v, d, row_begin, row_end, weights, o, o_stride);
    if (d < v->dimension) value_tile(type, heads, 1, v, d, row_begin, row_end, weights, o, o_stride);
}

FLOATS_INLINE void value_group(const enum kv_type type, size_t group, const struct decode_rows *v,
                               size_t row_begin, size_t row_end, const float *weights, float *o,
                               size_t o_stride) {
    size_t head = 0;
#define VALUE_HEADS(heads, vectors)                                                        \
    value_heads(type, heads, vectors, v, row_begin, row_end, weights + head * DECODE_ROWS, \
                o + head * o_stride, o_stride)
    for (; head + 4 <= group && head + 5 != group; head += 4) VALUE_HEADS(4, DECODE_WIDE ? 4 : 2);
    for (; head + 3 <= group; head += 3) VALUE_HEADS(3, 4);
    for (; head + 2 <= group; head += 2) VALUE_HEADS(2, 4);
    for (; head < group; head++) VALUE_HEADS(1, 8);
#undef VALUE_HEADS
}

/* One head's online softmax over 16 scores, of which [row_begin, row_end) count: scores become weights
 * relative to *m; when the maximum rises, s and o shrink to it. */
FLOATS_INLINE void soften(const struct attention_decode_args *args, size_t head, size_t row_begin,
                          size_t row_end, float *scores, float *s) {
    enum { COUNT = DECODE_ROWS / FLOATS };
    floats x[COUNT];
    floats m = floats_set(args->m[head]);
    int greater = 0;
    FLOATS_UNROLL
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = floats_multiply(floats_load(scores + i * FLOATS), floats_set(args->scale));
        if (args->softcap != 0) x[i] = floats_softcap(x[i], args->softcap);
        if (row_end - row_begin != DECODE_ROWS) {
            floats lane = floats_add(floats_index(), floats_set((float)(i * FLOATS))),
                   no = floats_set(-INFINITY);
            x[i] = floats_if_less(lane, floats_set((float)row_begin), no, x[i]);
            x[i] = floats_if_less(lane, floats_set((float)row_end), x[i], no);
        }
        greater |= floats_any_greater(x[i], m);
    }
    if (greater) {
        floats top = COUNT == 2 ? floats_max(x[0], x[1]) : x[0];
        float before = args->m[head], after = floats_greatest(top);
        if (!(after > before)) after = before; /* NaN: the sum will say it */
        floats shrink = before == -INFINITY ? floats_set(0) : floats_exp(floats_set(before - after));
        float *o = args->o + head * args->o_stride;
        for (size_t d = 0; d < args->layout->v_dimension; d += FLOATS)
            floats_store(o + d, floats_multiply(floats_load(o + d), shrink));
        floats_store(s, floats_multiply(floats_load(s), shrink));
        args->m[head] = after;
        m = floats_set(after);
    }
    if (args->m[head] == -INFINITY) m = floats_set(0); /* -inf - -inf is NaN; exp(-inf - 0) is 0 */
    floats sum = floats_load(s);
    FLOATS_UNROLL
    for (size_t i = 0; i < COUNT; i++) {
        floats weight = floats_exp(floats_subtract(x[i], m));
        floats_store(scores + i * FLOATS, weight);
        sum = floats_add(sum, weight);
    }
    floats_store(s, sum);
}

/* The scales of 16 rows as floats, row by row. */
static void scales_load(const uint8_t *block, size_t block_bytes, size_t scales_offset, size_t dimension,
                        float *scales) {
    size_t count = KV_BLOCK_TOKENS * (dimension / KV_SCALE_GROUP); /* a multiple of 8 */
    for (size_t b = 0; b < 2; b++)
        for (size_t i = 0; i < count; i += 8)
            _mm256_storeu_ps(
                scales + b * count + i,
                _mm256_cvtph_ps(_mm_loadu_si128(
                    (const __m128i *)(block + b * block_bytes + scales_offset + i * sizeof(uint16_t)))));
}

struct decode_scratch {
    float *scores;   /* [group][16] */
    float *s;        /* [group][FLOATS] */
    float *k_scales; /* [16][k_dimension / 32] */
    float *v_scales;
};

static struct decode_scratch decode_scratch_in(void *memory, size_t group, const struct kv_layout *layout) {
    struct decode_scratch scratch = {.scores = memory};
    scratch.s = scratch.scores + group * DECODE_ROWS;
    scratch.k_scales = scratch.s + group * FLOATS;
    scratch.v_scales = scratch.k_scales + DECODE_ROWS * (layout->k_dimension / KV_SCALE_GROUP);
    return scratch;
}

static size_t decode_scratch_bytes(size_t group, const struct kv_layout *layout) {
    return sizeof(float) *
           (group * (DECODE_ROWS + FLOATS) +
            DECODE_ROWS * (layout->k_dimension / KV_SCALE_GROUP + layout->v_dimension / KV_SCALE_GROUP));
}

/* Rows [row_begin, row_end) of the 16 that start at `block`. */
FLOATS_INLINE void decode_step(const enum kv_type k_type, const enum kv_type v_type,
                               const struct attention_decode_args *args, const uint8_t *block,
                               size_t row_begin, size_t row_end, struct decode_scratch scratch) {
    const struct kv_layout *layout = args->layout;
    struct decode_rows k = {block, layout->block_bytes, layout->k_row_bytes, layout->k_dimension,
                            scratch.k_scales};
    struct decode_rows v = {block + layout->v_offset, layout->block_bytes, layout->v_row_bytes,
                            layout->v_dimension, scratch.v_scales};
    if (k_type == KV_Q8)
        scales_load(block, layout->block_bytes, layout->k_scales_offset, k.dimension, scratch.k_scales);
    if (v_type == KV_Q8)
        scales_load(block, layout->block_bytes, layout->v_scales_offset, v.dimension, scratch.v_scales);
    score_group(k_type, args->group, &k, args->q, args->q_stride, scratch.scores);
    for (size_t head = 0; head < args->group; head++)
        soften(args, head, row_begin, row_end, scratch.scores + head * DECODE_ROWS,
               scratch.s + head * FLOATS);
    value_group(v_type, args->group, &v, row_begin, row_end, scratch.scores, args->o, args->o_stride);
}

FLOATS_INLINE void decode_rows_of(const enum kv_type k_type, const enum kv_type v_type,
                                  const struct attention_decode_args *args) {
    struct decode_scratch scratch = decode_scratch_in(args->scratch, args->group, args->layout);
    const size_t step_bytes = 2 * args->layout->block_bytes;
    for (size_t head = 0; head < args->group; head++) {
        args->m[head] = -INFINITY;
        floats_store(scratch.s + head * FLOATS, floats_set(0));
        for (size_t d = 0; d < args->layout->v_dimension; d++) args->o[head * args->o_stride + d] = 0;
    }
    for (uint64_t row = args->row_begin; row < args->row_end;) {
        uint64_t first = row / DECODE_ROWS * DECODE_ROWS;
        uint64_t end = first + DECODE_ROWS < args->row_end ? first + DECODE_ROWS : args->row_end;
        const uint8_t *chunk = args->chunks[row / KV_CHUNK_TOKENS];
        const uint8_t *block = chunk + first % KV_CHUNK_TOKENS / DECODE_ROWS * step_bytes;
        decode_step(k_type, v_type, args, block, (size_t)(row - first), (size_t)(end - first), scratch);
        row = end;
    }
    for (size_t head = 0; head < args->group; head++)
        args->s[head] = floats_sum(floats_load(scratch.s + head * FLOATS));
}

static void decode_f16(const struct attention_decode_args *args) { decode_rows_of(KV_F16, KV_F16, args); }
static void decode_q8(const struct attention_decode_args *args) { decode_rows_of(KV_Q8, KV_Q8, args); }
static void decode_f16_q8(const struct attention_decode_args *args) { decode_rows_of(KV_F16, KV_Q8, args); }
static void decode_q8_f16(const struct attention_decode_args *args) { decode_rows_of(KV_Q8, KV_F16, args); }

static void decode_floats(const struct attention_decode_args *args) {
    if (args->layout->k_type == KV_F16)
        (args->layout->v_type == KV_F16 ? decode_f16 : decode_f16_q8)(args);
    else
        (args->layout->v_type == KV_F16 ? decode_q8_f16 : decode_q8)(args);
}

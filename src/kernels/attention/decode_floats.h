/* Decode attention over `floats`; included by attention_decode_avx2.c, _avx512.c and _neon.c.
 *
 * Mapping: 32 rows (four blocks, contiguous memory; AVX-512: 64 if small) at a time; for each, the scores of all
 * query heads of the group, then the online softmax, then the weighted values, so that K and V come from memory
 * once.  Meanwhile the lines of the next step are prefetched, in order and as many as are read, because Zen 3
 * drops prefetches beyond 24 misses; and one line of a later chunk, for its entry in the page tables
 * (bench/lab/prefetches.md).  Scores: up to 4 heads x 2 rows (AVX-512: 4) accumulate in registers, a K vector is
 * converted once and used by each head, a query vector is loaded once for its rows.  Values: 4 heads x 2 (4) registers
 * of the output accumulate over the rows of a step.
 * Bytes: row_end - row_begin rows of k_row_bytes + v_row_bytes (and scales).
 * Flops: 2 * group * (k_dimension + v_dimension) per row.
 * Bound: memory at small groups, multiply-adds at group 4 and above.  Core cycles per row with the rows
 * in L2, 2026-11-21, AMD EPYC (Zen 3, 2 cores), AVX2, dimension 64: f16 25, 36, 62, 119 at group 1, 2, 4,
 * 8 and q8 36, 50, 76, 145; dimension 128: f16 49, 66, 108, 205 and q8 75, 94, 134, 262.  Group 4 at
 * f16 is half of the multiply-add peak (32 and 64 cycles); the rest is the sums across registers
 * of the scores, the softmax and the prefetches.  See bench/kernels.  AVX-512, 2026-11-22, AMD EPYC (Zen 5), group
 * 4, f16, dimension 64: 25 cycles a row in L2 (16 of multiply-adds), 32 with steps of 32 rows and each four sums
 * apart; two threads from memory 46 GB/s where plain reads gave 50 to 60 (bench/lab/avx512-zen5.md).
 */
#include <stdbool.h>

#include "base/checked.h"
#include "kernels/attention/leaves.h"
#include "kernels/attention/rows_floats.h"
#include "kernels/floats.h"

enum {
    DECODE_WIDE = FLOATS == 16, /* 32 registers instead of 16 */
    DECODE_ROWS = SOFTMAX_ROWS, /* of a step; AVX-512 takes up to DECODE_ROWS_MAX: softmax_step_rows */
    DECODE_ROWS_MAX = SOFTMAX_ROWS_MAX,
    LINE_BYTES = 64
};

/* Where the rows of K or of V of one step are. */
struct decode_rows {
    const uint8_t *base; /* row 0 of the first block */
    size_t block_bytes, row_bytes;
    size_t dimension;
    const float *scales; /* Q8: [step_rows][dimension / 32] */
    const uint8_t *next; /* of the next step's memory, as many bytes as these rows have */
    size_t step_rows;    /* also between one head's scores and the next one's */
};

/* Prefetches the lines of the next step that begin in [begin, begin + bytes). */
FLOATS_INLINE void decode_ask(const uint8_t *next, size_t begin, const size_t bytes) {
    const size_t first = align_up(begin, LINE_BYTES);
    /* the same number wherever it begins: without a loop where bytes is a constant */
    if (bytes % LINE_BYTES == 0) {
        FLOATS_UNROLL_MAYBE
        for (size_t at = 0; at < bytes; at += LINE_BYTES) floats_prefetch(next + first + at);
        return;
    }
    for (size_t at = first; at < begin + bytes; at += LINE_BYTES) floats_prefetch(next + at);
}

FLOATS_INLINE const uint8_t *decode_row(const struct decode_rows *rows, size_t row) {
    return rows->base + row / KV_BLOCK_TOKENS * rows->block_bytes + row % KV_BLOCK_TOKENS * rows->row_bytes;
}

#if defined(FLOATS_512)
/* Elements d .. d + 15 of two rows: the first 8 of both in key[0], the others in key[1].  Two rows of 8 elements in a
 * register, in place of one row of 16, need half as many additions across registers, and prefill has half as many
 * waiting sums (leaves.h). */
FLOATS_INLINE void score_load(const enum kv_type type, const uint8_t *row, const uint8_t *other, size_t d, floats scale,
                              floats key[2]) {
    if (type == KV_F16) {
        floats_load_halves_of_two(row + d * sizeof(uint16_t), other + d * sizeof(uint16_t), key);
        return;
    }
    floats_load_int8_of_two(row + d, other + d, key);
    key[0] = floats_multiply(key[0], scale);
    key[1] = floats_multiply(key[1], scale);
}

/* scores[head][0 .. 8) = q . k over the rows of a block, the first one at `base`; register i of a head's four has rows
 * i and i + 4.  The lines of the next step from byte `ask` on are prefetched a few at a time. */
FLOATS_INLINE void score_tile(const enum kv_type type, const size_t heads, const struct decode_rows *k,
                              const uint8_t *base, size_t ask, const float *scales, const float *q, size_t q_stride,
                              float *scores) {
    floats sum[16];
    const size_t scale_count = k->dimension / KV_SCALE_GROUP;
    const size_t width = type == KV_Q8 ? KV_SCALE_GROUP : FLOATS;
    const size_t part_bytes = KV_BLOCK_TOKENS * width * rows_element_bytes(type); /* of all rows */
    FLOATS_UNROLL
    for (size_t i = 0; i < heads * 4; i++) sum[i] = floats_set(0);
    for (size_t part = 0; part < k->dimension; part += width) {
        floats scale[4];
        decode_ask(k->next, ask + part / width * part_bytes, part_bytes);
        FLOATS_UNROLL
        for (size_t r = 0; r < 4; r++) {
            const float *own = scales + r * scale_count + part / KV_SCALE_GROUP;
            scale[r] = type == KV_Q8 ? floats_set_two(own[0], own[4 * scale_count]) : floats_set(1);
        }
        FLOATS_UNROLL
        for (size_t step = 0; step < width / FLOATS; step++) {
            const size_t d = part + step * FLOATS;
            floats key[4][2];
            FLOATS_UNROLL
            for (size_t r = 0; r < 4; r++)
                score_load(type, base + r * k->row_bytes, base + (r + 4) * k->row_bytes, d, scale[r], key[r]);
            FLOATS_UNROLL
            for (size_t n = 0; n < 2; n++) FLOATS_UNROLL
            for (size_t head = 0; head < heads; head++) {
                floats query = floats_keep(floats_load_twice(q + head * q_stride + d + n * SCORE_LANES));
                FLOATS_UNROLL
                for (size_t r = 0; r < 4; r++) sum[head * 4 + r] = floats_fma(query, key[r][n], sum[head * 4 + r]);
            }
        }
    }
    FLOATS_UNROLL
    for (size_t head = 0; head < heads; head += 2) {
        const size_t next = head + 1 < heads ? head + 1 : head;
        floats sums = floats_sums_of_two(sum + head * 4, sum + next * 4);
        floats8_store(scores + head * k->step_rows, _mm512_castps512_ps256(sums));
        if (next > head) floats8_store(scores + next * k->step_rows, _mm512_extractf32x8_ps(sums, 1));
    }
}

/* The 8 rows of a block, from `row` on. */
FLOATS_INLINE void score_heads(const enum kv_type type, const size_t heads, const struct decode_rows *k, size_t row,
                               const float *q, size_t q_stride, float *scores) {
    score_tile(type, heads, k, decode_row(k, row), row * k->row_bytes,
               k->scales + row * (k->dimension / KV_SCALE_GROUP), q, q_stride, scores + row);
}
#else
/* scores[head][0 .. row_count) = q . k over consecutive rows of a block, the first one at `base` */
FLOATS_INLINE void score_tile(const enum kv_type type, const size_t row_count, const size_t heads,
                              const struct decode_rows *k, const uint8_t *base, const float *scales, const float *q,
                              size_t q_stride, float *scores) {
    floats sum[16];
    const size_t scale_count = k->dimension / KV_SCALE_GROUP;
    const size_t width = type == KV_Q8 ? KV_SCALE_GROUP : FLOATS;
    FLOATS_UNROLL
    for (size_t i = 0; i < heads * row_count; i++) sum[i] = floats_set(0);
    for (size_t part = 0; part < k->dimension; part += width) {
        floats scale[8];
        FLOATS_UNROLL
        for (size_t r = 0; r < row_count; r++)
            scale[r] = floats_set(type == KV_Q8 ? scales[r * scale_count + part / KV_SCALE_GROUP] : 1);
        FLOATS_UNROLL
        for (size_t i = 0; i < width; i += FLOATS) {
            const size_t d = part + i;
            floats key[8];
            FLOATS_UNROLL
            for (size_t r = 0; r < row_count; r++) key[r] = rows_load(type, base + r * k->row_bytes, d, scale[r]);
            FLOATS_UNROLL
            for (size_t head = 0; head < heads; head++) {
                floats query = floats_keep(floats_load(q + head * q_stride + d));
                FLOATS_UNROLL
                for (size_t r = 0; r < row_count; r++)
                    sum[head * row_count + r] = floats_fma(query, key[r], sum[head * row_count + r]);
            }
        }
    }
    floats_sums_store(sum, heads * row_count, row_count, scores, k->step_rows);
}

/* The 8 rows of a block, from `row` on. */
FLOATS_INLINE void score_heads(const enum kv_type type, const size_t heads, const struct decode_rows *k, size_t row,
                               const float *q, size_t q_stride, float *scores) {
    const size_t row_count = heads == 4 ? 2 : heads == 1 ? 8 : 4;
    const uint8_t *base = decode_row(k, row);
    const float *scales = k->scales + row * (k->dimension / KV_SCALE_GROUP);
    for (size_t r = 0; r < KV_BLOCK_TOKENS; r += row_count) {
        decode_ask(k->next, (row + r) * k->row_bytes, row_count * k->row_bytes);
        score_tile(type, row_count, heads, k, base, scales, q, q_stride, scores + row + r);
        base += row_count * k->row_bytes;
        scales += row_count * (k->dimension / KV_SCALE_GROUP);
    }
}

#endif

FLOATS_INLINE void score_group(const enum kv_type type, size_t group, const struct decode_rows *k, size_t row,
                               const float *q, size_t q_stride, float *scores) {
    size_t head = 0;
#define SCORE_HEADS(heads) score_heads(type, heads, k, row, q + head * q_stride, q_stride, scores + head * k->step_rows)
    for (; head + 4 <= group && head + 5 != group; head += 4) SCORE_HEADS(4); /* 5 is 3 + 2 */
    for (; head + 3 <= group; head += 3) SCORE_HEADS(3);
    for (; head + 2 <= group; head += 2) SCORE_HEADS(2);
    for (; head < group; head++) SCORE_HEADS(1);
#undef SCORE_HEADS
}

/* o[head][vectors registers] += weights[head][row] * v[row] over rows [row_begin, row_end) */
FLOATS_INLINE void value_tile(const enum kv_type type, const size_t heads, const size_t vectors,
                              const struct decode_rows *v, size_t d, size_t row_begin, size_t row_end,
                              const float *weights, float *o, size_t o_stride) {
    floats sum[16];
    const size_t scale_count = v->dimension / KV_SCALE_GROUP;
    const size_t element_bytes = rows_element_bytes(type);
    const size_t tile_bytes = vectors * FLOATS * element_bytes; /* of a row */
    const bool ask_by_row = tile_bytes % LINE_BYTES == 0;
    outputs_load(heads, vectors, o + d, o_stride, sum);
    for (size_t row = row_begin; row < row_end;) {
        const uint8_t *base = decode_row(v, row);
        const uint8_t *next = v->next + d * element_bytes * v->step_rows;
        if (!ask_by_row) decode_ask(next, row * tile_bytes, KV_BLOCK_TOKENS * tile_bytes);
        size_t block_end = row / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS + KV_BLOCK_TOKENS;
        for (block_end = block_end < row_end ? block_end : row_end; row < block_end; row++) {
            const float *scales = v->scales + row * scale_count;
            if (ask_by_row) decode_ask(next, row * tile_bytes, tile_bytes);
            floats weight[4];
            FLOATS_UNROLL
            for (size_t head = 0; head < heads; head++) weight[head] = floats_set(weights[head * v->step_rows + row]);
            FLOATS_UNROLL
            for (size_t n = 0; n < vectors; n++) {
                floats scale = floats_set(type == KV_Q8 ? scales[(d + n * FLOATS) / KV_SCALE_GROUP] : 1);
                floats value = rows_load(type, base, d + n * FLOATS, scale);
                FLOATS_UNROLL
                for (size_t head = 0; head < heads; head++)
                    sum[head * vectors + n] = floats_fma(weight[head], value, sum[head * vectors + n]);
            }
            base += v->row_bytes;
        }
    }
    outputs_store(heads, vectors, sum, o + d, o_stride);
}

FLOATS_INLINE void value_heads(const enum kv_type type, const size_t heads, const size_t vectors,
                               const struct decode_rows *v, size_t row_begin, size_t row_end, const float *weights,
                               float *o, size_t o_stride) {
    size_t d = 0;
    for (; d + vectors * FLOATS <= v->dimension; d += vectors * FLOATS)
        value_tile(type, heads, vectors, v, d, row_begin, row_end, weights, o, o_stride);
    for (; d + 2 * FLOATS <= v->dimension; d += 2 * FLOATS)
        value_tile(type, heads, 2, v, d, row_begin, row_end, weights, o, o_stride);
    if (d < v->dimension) value_tile(type, heads, 1, v, d, row_begin, row_end, weights, o, o_stride);
}

FLOATS_INLINE void value_group(const enum kv_type type, size_t group, const struct decode_rows *v, size_t row_begin,
                               size_t row_end, const float *weights, float *o, size_t o_stride) {
    size_t head = 0;
#define VALUE_HEADS(heads, vectors)                                                                              \
    value_heads(type, heads, vectors, v, row_begin, row_end, weights + head * v->step_rows, o + head * o_stride, \
                o_stride)
    for (; head + 4 <= group && head + 5 != group; head += 4) VALUE_HEADS(4, DECODE_WIDE ? 4 : 2);
    for (; head + 3 <= group; head += 3) VALUE_HEADS(3, 4);
    for (; head + 2 <= group; head += 2) VALUE_HEADS(2, 4);
    for (; head < group; head++) VALUE_HEADS(1, 8);
#undef VALUE_HEADS
}

/* One head's online softmax over the scores of a step, of which [row_begin, row_end) count. */
FLOATS_INLINE void soften_rows(const size_t step_rows, const struct attention_decode_args *args, size_t head,
                               size_t row_begin, size_t row_end, float *scores, float *s) {
    const size_t count = step_rows / FLOATS;
    floats x[DECODE_ROWS_MAX / FLOATS];
    floats m = floats_set(args->m[head]);
    int greater = 0;
    FLOATS_UNROLL
    for (size_t i = 0; i < count; i++) {
        x[i] = floats_multiply(floats_load(scores + i * FLOATS), floats_set(args->scale));
        if (args->softcap != 0) x[i] = floats_softcap(x[i], args->softcap);
        if (row_end - row_begin != step_rows) {
            floats lane = floats_add(floats_index(), floats_set((float)(i * FLOATS))), no = floats_set(-INFINITY);
            x[i] = floats_if_less(lane, floats_set((float)row_begin), no, x[i]);
            x[i] = floats_if_less(lane, floats_set((float)row_end), x[i], no);
        }
        greater |= floats_any_greater(x[i], m);
    }
    softmax_step(x, count, greater, &args->m[head], s, args->o + head * args->o_stride, args->layout->v_dimension,
                 scores);
}

static void soften(const struct attention_decode_args *args, size_t head, size_t row_begin, size_t row_end,
                   float *scores, float *s) {
    soften_rows(DECODE_ROWS, args, head, row_begin, row_end, scores, s);
}

static void soften_max(const struct attention_decode_args *args, size_t head, size_t row_begin, size_t row_end,
                       float *scores, float *s) {
    soften_rows(DECODE_ROWS_MAX, args, head, row_begin, row_end, scores, s);
}

/* The scales of a block's 8 rows as floats, row by row. */
FLOATS_INLINE void scales_load(const uint8_t *halves, size_t dimension, float *scales) {
    for (size_t i = 0; i < KV_BLOCK_TOKENS * (dimension / KV_SCALE_GROUP); i += 8)
        floats8_store(scales + i, floats8_load_half(halves + i * sizeof(uint16_t)));
}

struct decode_scratch {
    float *scores;   /* [group][DECODE_ROWS_MAX] */
    float *s;        /* [group][FLOATS] */
    float *k_scales; /* [DECODE_ROWS_MAX][k_dimension / 32] */
    float *v_scales;
};

static struct decode_scratch decode_scratch_in(void *memory, size_t group, const struct kv_layout *layout) {
    struct decode_scratch scratch = {.scores = memory};
    scratch.s = scratch.scores + group * DECODE_ROWS_MAX;
    scratch.k_scales = scratch.s + group * FLOATS;
    scratch.v_scales = scratch.k_scales + DECODE_ROWS_MAX * (layout->k_dimension / KV_SCALE_GROUP);
    return scratch;
}

static size_t decode_scratch_bytes(size_t group, const struct kv_layout *layout) {
    return sizeof(float) *
           (group * (DECODE_ROWS_MAX + FLOATS) +
            DECODE_ROWS_MAX * (layout->k_dimension / KV_SCALE_GROUP + layout->v_dimension / KV_SCALE_GROUP));
}

FLOATS_INLINE size_t decode_row_bytes(const enum kv_type type, const size_t dimension) {
    return dimension * rows_element_bytes(type);
}

FLOATS_INLINE size_t decode_step_rows(const struct rows_shape shape) {
    return softmax_step_rows(decode_row_bytes(shape.k_type, shape.k_dimension) +
                             decode_row_bytes(shape.v_type, shape.v_dimension));
}

/* Rows [row_begin, row_end) of the decode_step_rows that start at `block`; those of the next step are at `next`. */
FLOATS_INLINE void decode_step(const struct rows_shape shape, const struct attention_decode_args *args,
                               const uint8_t *block, const uint8_t *next, size_t row_begin, size_t row_end,
                               struct decode_scratch scratch) {
    const struct kv_layout *layout = args->layout;
    const size_t block_bytes = layout->block_bytes, step_rows = decode_step_rows(shape);
    struct decode_rows k = {
        block, block_bytes, decode_row_bytes(shape.k_type, shape.k_dimension), shape.k_dimension, scratch.k_scales,
        next,  step_rows};
    struct decode_rows v = {block + layout->v_offset,
                            block_bytes,
                            decode_row_bytes(shape.v_type, shape.v_dimension),
                            shape.v_dimension,
                            scratch.v_scales,
                            next + step_rows * k.row_bytes,
                            step_rows};
    for (size_t b = row_begin / KV_BLOCK_TOKENS; b * KV_BLOCK_TOKENS < row_end; b++) {
        const uint8_t *here = block + b * block_bytes;
        const size_t row = b * KV_BLOCK_TOKENS;
        if (shape.k_type == KV_Q8)
            scales_load(here + layout->k_scales_offset, k.dimension,
                        scratch.k_scales + row * (k.dimension / KV_SCALE_GROUP));
        if (shape.v_type == KV_Q8)
            scales_load(here + layout->v_scales_offset, v.dimension,
                        scratch.v_scales + row * (v.dimension / KV_SCALE_GROUP));
        score_group(shape.k_type, args->group, &k, row, args->q, args->q_stride, scratch.scores);
    }
    for (size_t head = 0; head < args->group; head++)
        (step_rows == DECODE_ROWS ? soften : soften_max)(args, head, row_begin, row_end,
                                                         scratch.scores + head * step_rows, scratch.s + head * FLOATS);
    decode_ask(next, step_rows * (k.row_bytes + v.row_bytes),
               step_rows / KV_BLOCK_TOKENS * block_bytes - step_rows * (k.row_bytes + v.row_bytes));
    value_group(shape.v_type, args->group, &v, row_begin, row_end, scratch.scores, args->o, args->o_stride);
}

/* The place of row `first`, a multiple of DECODE_ROWS. */
FLOATS_INLINE const uint8_t *decode_block(const struct attention_decode_args *args, uint64_t first) {
    const uint8_t *chunk = args->chunks[first / KV_CHUNK_TOKENS];
    return chunk + first % KV_CHUNK_TOKENS / KV_BLOCK_TOKENS * args->layout->block_bytes;
}

FLOATS_INLINE void decode_shaped(const struct rows_shape shape, const struct attention_decode_args *args) {
    const size_t step_rows = decode_step_rows(shape);
    struct decode_scratch scratch = decode_scratch_in(args->scratch, args->group, args->layout);
    partials_begin(args->group, shape.v_dimension, args->m, scratch.s, args->o, args->o_stride);
    for (uint64_t row = args->row_begin; row < args->row_end;) {
        uint64_t first = row / step_rows * step_rows, after = first + step_rows;
        uint64_t end = after < args->row_end ? after : args->row_end;
        const uint8_t *block = decode_block(args, first);
        const uint64_t far = first / KV_CHUNK_TOKENS + ATTENTION_CHUNKS_AHEAD;
        if (first % KV_CHUNK_TOKENS == 0 && far < args->chunk_count) floats_prefetch(args->chunks[far]);
        const uint8_t *next = after < args->row_end ? decode_block(args, after) : args->then;
        decode_step(shape, args, block, next != NULL ? next : block, (size_t)(row - first), (size_t)(end - first),
                    scratch);
        row = end;
    }
    partials_end(args->group, scratch.s, args->s);
}

ROWS_SHAPES(decode)

static void merge_floats(size_t heads, size_t dimension, float *target_m, float *target_s, float *target_o,
                         size_t target_stride, const float *source_m, const float *source_s, const float *source_o,
                         size_t source_stride) {
    for (size_t head = 0; head < heads; head++) {
        float m[FLOATS] = {target_m[head]}, other[FLOATS] = {source_m[head]}, keep[FLOATS], take[FLOATS];
        softmax_shares(m, other, keep, take);
        target_m[head] = m[0];
        floats part = floats_multiply(floats_set(take[0]), floats_set(source_s[head]));
        target_s[head] = floats_first(floats_fma(floats_set(keep[0]), floats_set(target_s[head]), part));
        softmax_outputs_add(dimension, floats_set(keep[0]), floats_set(take[0]), target_o + head * target_stride,
                            source_o + head * source_stride);
    }
}

FLOATS_INSTALL(attention, attention_decode) {
    kernels->decode = decode_floats;
    kernels->decode_scratch_bytes = decode_scratch_bytes;
    kernels->merge = merge_floats;
}

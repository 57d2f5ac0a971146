/* Prefill attention over `floats`; included by attention_prefill_avx2.c, _avx512.c and _neon.c.
 *
 * Mapping (Dao et al. 2022 on a CPU): the query heads of the group share K and V, so a query block is
 * queries x group rows, some 192 of them.  Per chunk of 64 tokens K is unpacked once as columns and V as
 * rows, both float, in panels of two registers; S = Q K^T and O += P V are then plain register-tiled
 * multiplications (6 rows x 2 registers on AVX2, 12 x 2 on AVX-512) that run at the FMA units' pace,
 * with the online softmax between.  Only tiles on the diagonal and at the window's edge are masked, and
 * work outside them is cut at tile edges.  Rows go head by head, so that those of a tile are neighbours.
 *
 * Every row is computed as decode computes it, to the bit: scores in eight lanes and their tree (scores_multiply), the
 * maximum by steps of softmax_step_rows, ranges (attention_range_rows) merged in their order.  A range begins without a
 * maximum, so that maxima rise often: they are raised for a tile of rows at once, and the output shrinks where the next
 * values are added to it.
 *
 * What does not count is not computed: where the weights of a tile of rows for a register of tokens are all zero
 * (softmax_floats.h), exp and P V leave these tokens out.  A NaN among the scores is never left out; one in the V of a
 * token that nobody heeds is.
 *
 * Flops: 2 * group * (k_dimension + v_dimension) per (query, row) pair; of the second term what counts.
 * Bound: compute.  Per block and chunk, packing is 1 / (rows of the block) of the multiplications.
 * Reached on an AMD EPYC (Zen 3), one thread, 2026-11-21, AVX2, where nothing is left out: 0.70 of the FMA peak
 * at dimension 64, 0.78 at 128.  A trained model (models/loam-nano.gguf, 16K tokens of a novel) leaves out 24%
 * of its parts (bench/lab/attention-left-out.md).
 */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "kernels/attention/attention_internal.h"
#include "kernels/attention/keys_turn.h"
#include "kernels/attention/leaves.h"
#include "kernels/attention/softmax_floats.h"
#include "kernels/floats.h"

enum {
    TILE_ROWS = FLOATS == 16 ? 12 : 6, /* rows x 2 accumulators leave registers for the operands */
    PANEL = 2 * FLOATS,
    BLOCK_ROWS = 192,
    TOKENS = KV_CHUNK_TOKENS
};

/* Just below WEIGHT_MIN: anything larger counts. */
static const float COUNTS_ABOVE = -23.000002f;

/* The scratch of one thread. */
struct prefill_block {
    const struct attention_prefill_args *args;
    size_t query_begin, query_count; /* of args->query_count */
    size_t row_count;                /* query_count * group: row = head * query_count + query */
    size_t v_padded;                 /* v_dimension up to a multiple of PANEL */
    float *q;                        /* [row tiles][k_dimension][TILE_ROWS], scaled */
    float *k;                        /* [TOKENS / PANEL][k_dimension][PANEL] */
    float *v;                        /* [v_padded / PANEL][TOKENS][PANEL] */
    float *scores;                   /* [rows][TOKENS]; after the softmax the weights */
    float *o;                        /* [rows][v_padded] */
    float *m;                        /* [rows] */
    float *s;                        /* [rows][FLOATS], to be summed */
    float *shrink;                   /* [rows]: the factors of a step by which o shrinks when the tile's maxima rise */
    uint32_t *parts;                 /* [row tiles]: bit i: the chunk's tokens i * FLOATS .. count */
    int *rises;                      /* [row tiles] */
    uint64_t range_rows;
    float *merged_o;            /* [rows][v_padded]: of the earlier ranges */
    float *merged_m, *merged_s; /* [rows] */
};

/* The chunk that is attended. */
struct prefill_step {
    uint64_t first; /* its first row */
    int whole;      /* every row of the block sees all of it */
};

static size_t queries_per_block(size_t group) { return group >= BLOCK_ROWS ? 1 : BLOCK_ROWS / group; }

/* A multiple of FLOATS too: 12 and 16, 6 and 8 divide 48. */
static size_t block_rows(size_t group) { return align_up(queries_per_block(group) * group, 48); }

static size_t prefill_scratch_bytes(size_t group, const struct kv_layout *layout) {
    size_t rows = block_rows(group), v_padded = align_up(layout->v_dimension, PANEL);
    size_t count = rows * (layout->k_dimension + TOKENS + 2 * v_padded + 4 + FLOATS) +
                   TOKENS * (layout->k_dimension + v_padded) + 2 * (rows / TILE_ROWS);
    size_t bytes = count * sizeof(float) + 64;
#if defined(FLOATS_512) /* for AVX2's entry, too */
    struct attention_kernels narrower;
    attention_prefill_avx2_install(&narrower);
    bytes = max_size(bytes, narrower.prefill_scratch_bytes(group, layout));
#endif
    return bytes;
}

static struct prefill_block block_in(const struct attention_prefill_args *args) {
    const struct kv_layout *layout = args->layout;
    struct prefill_block block = {.args = args, .v_padded = align_up(layout->v_dimension, PANEL)};
    size_t rows = block_rows(args->group);
    block.k = (float *)align_up((size_t)(uintptr_t)args->scratch, 64);
    block.v = block.k + TOKENS * layout->k_dimension;
    block.scores = block.v + TOKENS * block.v_padded;
    block.o = block.scores + rows * TOKENS;
    block.q = block.o + rows * block.v_padded;
    block.s = block.q + rows * layout->k_dimension;
    block.m = block.s + rows * FLOATS;
    block.merged_o = block.m + rows;
    block.merged_m = block.merged_o + rows * block.v_padded;
    block.merged_s = block.merged_m + rows;
    block.shrink = block.merged_s + rows;
    block.parts = (uint32_t *)(void *)(block.shrink + rows);
    block.rises = (int *)(void *)(block.parts + rows / TILE_ROWS);
    return block;
}

/* The queries of the block, laid out by tiles of rows.  Rows past the end are zeros. */
static void queries_pack(const struct prefill_block *block) {
    const struct attention_prefill_args *args = block->args;
    size_t dimension = args->layout->k_dimension;
    for (size_t row = 0; row < align_up(block->row_count, TILE_ROWS); row++) {
        float *target = block->q + row / TILE_ROWS * TILE_ROWS * dimension + row % TILE_ROWS;
        const float *q = args->q + (block->query_begin + row % block->query_count) * args->q_stride +
                         row / block->query_count * dimension;
        for (size_t d = 0; d < dimension; d++) target[d * TILE_ROWS] = row < block->row_count ? q[d] : 0.0f;
    }
}

/* K of a chunk as columns: k[token / PANEL][d][token % PANEL]. */
static void keys_pack(const struct kv_layout *layout, const void *chunk, float *k) {
    for (size_t token = 0; token < TOKENS; token += FLOATS) {
        float *panel = k + token / PANEL * PANEL * layout->k_dimension + token % PANEL;
        if (layout->k_type == KV_F16) {
            keys_turn_f16(layout, kv_block(layout, chunk, token), panel, PANEL);
            continue;
        }
        for (size_t i = 0; i < FLOATS; i += KV_BLOCK_TOKENS) keys_turn_q8(layout, chunk, token + i, panel + i, PANEL);
    }
}

/* V of a chunk in panels: v[d / PANEL][token][d % PANEL].  Tokens outside [begin, end) and the padding are zeros: a
 * weight of zero would not silence a NaN in memory that was never written. */
FLOATS_INLINE void values_pack_typed(const enum kv_type type, const struct prefill_block *block, const void *chunk,
                                     size_t begin, size_t end) {
    const struct kv_layout *layout = block->args->layout;
    for (size_t token = 0; token < TOKENS; token++) {
        const size_t dimension = token >= begin && token < end ? layout->v_dimension : 0;
        const uint8_t *row = kv_v_row(layout, chunk, token);
        const uint16_t *scales = kv_v_scales(layout, chunk, token);
        float *target = block->v + token * PANEL;
        size_t d = 0;
        for (; d < dimension; d += FLOATS) {
            floats x = type == KV_F16 ? floats_load_half(row + d * sizeof(uint16_t))
                                      : floats_multiply(floats_load_int8(row + d),
                                                        floats_set(half_to_float(scales[d / KV_SCALE_GROUP])));
            floats_store(target + d / PANEL * PANEL * TOKENS + d % PANEL, x);
        }
        for (; d < block->v_padded; d += FLOATS)
            floats_store(target + d / PANEL * PANEL * TOKENS + d % PANEL, floats_set(0));
    }
}

static void values_pack(const struct prefill_block *block, const void *chunk, size_t begin, size_t end) {
    if (block->args->layout->v_type == KV_F16)
        values_pack_typed(KV_F16, block, chunk, begin, end);
    else
        values_pack_typed(KV_Q8, block, chunk, begin, end);
}

/* A tile of c: [TILE_ROWS][PANEL]. */
struct tile_sum {
    floats of[TILE_ROWS][2];
};

/* sum += a b: a[row * a_row + k * a_step], b[k][PANEL]. */
FLOATS_INLINE void tile_multiply(struct tile_sum *sum, size_t depth, const float *a, const size_t a_row,
                                 const size_t a_step, const float *b) {
    for (size_t k = 0; k < depth; k++) {
        floats b0 = floats_load(b + k * PANEL), b1 = floats_load(b + k * PANEL + FLOATS);
        FLOATS_UNROLL
        for (size_t row = 0; row < TILE_ROWS; row++) {
            floats x = floats_set(a[row * a_row + k * a_step]);
            sum->of[row][0] = floats_fma(x, b0, sum->of[row][0]);
            sum->of[row][1] = floats_fma(x, b1, sum->of[row][1]);
        }
    }
}

FLOATS_INLINE void tile_store(const struct tile_sum *sum, float *c, size_t c_row) {
    FLOATS_UNROLL
    for (size_t row = 0; row < TILE_ROWS; row++) FLOATS_UNROLL
    for (size_t n = 0; n < 2; n++) floats_store(c + row * c_row + n * FLOATS, sum->of[row][n]);
}

/* The tokens [begin, end) of a chunk that a row sees. */
struct seen {
    size_t begin, end;
};

static struct seen query_sees(const struct prefill_block *block, size_t query, uint64_t first) {
    const struct attention_prefill_args *args = block->args;
    uint64_t position = args->position_first + block->query_begin + query;
    uint64_t begin = prefill_row_begin(position, args->window), end = position + 1;
    struct seen seen = {begin <= first            ? 0
                        : begin - first >= TOKENS ? TOKENS
                                                  : (size_t)(begin - first),
                        end <= first            ? 0
                        : end - first >= TOKENS ? TOKENS
                                                : (size_t)(end - first)};
    if (seen.begin > seen.end) seen.begin = seen.end;
    return seen;
}

/* What any row of the tile sees. */
static struct seen tile_sees(const struct prefill_block *block, size_t tile_row, struct prefill_step step) {
    if (step.whole) return (struct seen){0, TOKENS};
    size_t last_row = min_size(tile_row + TILE_ROWS, block->row_count) - 1;
    size_t low = tile_row % block->query_count, high = last_row % block->query_count;
    if (tile_row / block->query_count != last_row / block->query_count) low = 0, high = block->query_count - 1;
    return (struct seen){query_sees(block, low, step.first).begin, query_sees(block, high, step.first).end};
}

/* A tile of scaled scores, [TILE_ROWS][PANEL], of queries q [dimension][TILE_ROWS] and keys k [dimension][PANEL]:
 * elements d and d + SCORE_LANES add to one lane, and the lanes in the order of score_leaves; sums of 1, 2 and 4 lanes
 * wait for their neighbours. */
FLOATS_INLINE void scores_multiply(size_t dimension, float scale, const float *q, const float *k, float *c) {
    struct tile_sum waiting[3];
    for (size_t leaf = 0; leaf < SCORE_LANES; leaf++) {
        struct tile_sum sum;
        size_t d = score_leaves[leaf];
        const floats first0 = floats_load(k + d * PANEL), first1 = floats_load(k + d * PANEL + FLOATS);
        FLOATS_UNROLL
        for (size_t row = 0; row < TILE_ROWS; row++) {
            floats x = floats_set(q[d * TILE_ROWS + row]);
            sum.of[row][0] = floats_multiply(x, first0);
            sum.of[row][1] = floats_multiply(x, first1);
        }
        for (d += SCORE_LANES; d < dimension; d += SCORE_LANES) {
            floats k0 = floats_load(k + d * PANEL), k1 = floats_load(k + d * PANEL + FLOATS);
            FLOATS_UNROLL
            for (size_t row = 0; row < TILE_ROWS; row++) {
                floats x = floats_set(q[d * TILE_ROWS + row]);
                sum.of[row][0] = floats_fma(x, k0, sum.of[row][0]);
                sum.of[row][1] = floats_fma(x, k1, sum.of[row][1]);
            }
        }
        size_t level = 0;
        for (; leaf >> level & 1; level++) {
            FLOATS_UNROLL
            for (size_t i = 0; i < TILE_ROWS; i++) {
                sum.of[i][0] = floats_add(waiting[level].of[i][0], sum.of[i][0]);
                sum.of[i][1] = floats_add(waiting[level].of[i][1], sum.of[i][1]);
            }
        }
        if (leaf + 1 < SCORE_LANES) {
            waiting[level] = sum;
            continue;
        }
        FLOATS_UNROLL
        for (size_t i = 0; i < TILE_ROWS; i++) {
            sum.of[i][0] = floats_multiply(sum.of[i][0], floats_set(scale));
            sum.of[i][1] = floats_multiply(sum.of[i][1], floats_set(scale));
        }
        tile_store(&sum, c, TOKENS);
    }
}

static void scores_compute(const struct prefill_block *block, struct prefill_step step) {
    size_t dimension = block->args->layout->k_dimension;
    for (size_t token = 0; token < TOKENS; token += PANEL)
        for (size_t row = 0; row < block->row_count; row += TILE_ROWS) {
            struct seen seen = tile_sees(block, row, step);
            if (token >= seen.end || token + PANEL <= seen.begin) continue;
            scores_multiply(dimension, block->args->scale, block->q + row * dimension, block->k + token * dimension,
                            block->scores + row * TOKENS + token);
        }
}

/* The chunk's scores as the softmax sees them: -INFINITY for tokens that a row does not see. */
FLOATS_INLINE void row_mask(const struct prefill_block *block, size_t row, struct prefill_step step) {
    float *scores = block->scores + row * TOKENS;
    const float softcap = block->args->softcap;
    if (softcap != 0)
        for (size_t i = 0; i < TOKENS; i += FLOATS)
            floats_store(scores + i, floats_softcap(floats_load(scores + i), softcap));
    if (step.whole) return;
    const struct seen seen = query_sees(block, row % block->query_count, step.first);
    const floats begin = floats_set((float)seen.begin), end = floats_set((float)seen.end);
    for (size_t i = 0; i < TOKENS; i += FLOATS) {
        floats lane = floats_add(floats_index(), floats_set((float)i)), no = floats_set(-INFINITY);
        floats x = floats_if_less(lane, begin, no, floats_load(scores + i));
        floats_store(scores + i, floats_if_less(lane, end, x, no));
    }
}

/* The maxima so far of `rows` rows, of parts [begin, end) of their scores too, and s shrunk to them; o follows when it
 * is loaded next (values_add).  Where no maximum rises, nothing shrinks. */
FLOATS_INLINE void tile_raise(const struct prefill_block *block, size_t tile_row, size_t rows, size_t begin,
                              size_t end) {
    const float *scores = block->scores + tile_row * TOKENS;
    float *m = block->m + tile_row, *s = block->s + tile_row * FLOATS, *shrink = block->shrink + tile_row;
    float before[FLOATS] = {0}, after[FLOATS] = {0}, by[FLOATS];
    int rises = 0;
    for (size_t row = 0; row < rows; row++) {
        floats top = floats_set(-INFINITY);
        for (size_t i = begin; i < end; i++) top = floats_max(floats_load(scores + row * TOKENS + i * FLOATS), top);
        const float largest = floats_largest(top);
        before[row] = m[row];
        after[row] = largest > m[row] ? largest : m[row];
        rises |= largest > m[row];
    }
    block->rises[tile_row / TILE_ROWS] = rises;
    if (!rises) return;
    floats_store(by, softmax_shrink(floats_load(before), floats_load(after)));
    for (size_t row = 0; row < rows; row++) {
        m[row] = after[row];
        shrink[row] = by[row];
        floats_store(s + row * FLOATS, floats_multiply(floats_load(s + row * FLOATS), floats_set(by[row])));
    }
}

/* Lists the parts in [begin, end) of the chunk that count for `rows` rows of scores; bases: the rows' maxima. */
FLOATS_INLINE uint32_t tile_parts(const float *scores, size_t rows, const float *bases, size_t begin, size_t end) {
    const floats counts = floats_set(COUNTS_ABOVE);
    uint32_t parts = 0;
    for (size_t i = begin; i < end; i++)
        for (size_t row = 0; row < rows; row++) {
            floats x = floats_load(scores + row * TOKENS + i * FLOATS);
            floats over = floats_subtract(x, floats_set(bases[row]));
            floats nan = floats_if_less(x, floats_set(INFINITY), floats_set(0), floats_set(1));
            if (!floats_any_greater(over, counts) && !floats_any_greater(nan, floats_set(0))) continue;
            parts |= (uint32_t)1 << i;
            break;
        }
    return parts;
}

/* The online softmax of a tile of rows over the parts in [begin, end) of the chunk: weights of the parts that count.
 */
static void tile_soften(const struct prefill_block *block, size_t tile_row, size_t begin, size_t end) {
    const size_t rows = min_size(TILE_ROWS, block->row_count - tile_row);
    float *scores = block->scores + tile_row * TOKENS, *s = block->s + tile_row * FLOATS, bases[TILE_ROWS];
    tile_raise(block, tile_row, rows, begin, end);
    for (size_t row = 0; row < rows; row++) {
        const float m = block->m[tile_row + row];
        bases[row] = m == -INFINITY ? 0 : m; /* -inf - -inf is NaN; exp(-inf - 0) is 0 */
    }
    const uint32_t parts = block->parts[tile_row / TILE_ROWS] = tile_parts(scores, rows, bases, begin, end);
    for (size_t row = 0; row < rows; row++) {
        const floats base = floats_set(bases[row]);
        floats sum = floats_load(s + row * FLOATS);
        for (uint32_t left = parts; left != 0; left &= left - 1) {
            float *part = scores + row * TOKENS + (size_t)__builtin_ctz(left) * FLOATS;
            floats weight = softmax_weight(floats_subtract(floats_load(part), base));
            floats_store(part, weight);
            sum = floats_add(sum, weight);
        }
        floats_store(s + row * FLOATS, sum);
    }
}

static void values_add(const struct prefill_block *block) {
    for (size_t d = 0; d < block->v_padded; d += PANEL)
        for (size_t row = 0; row < block->row_count; row += TILE_ROWS) {
            uint32_t left = block->parts[row / TILE_ROWS];
            if (left == 0) continue;
            float *o = block->o + row * block->v_padded + d;
            struct tile_sum sum;
            FLOATS_UNROLL
            for (size_t i = 0; i < TILE_ROWS; i++) FLOATS_UNROLL
            for (size_t n = 0; n < 2; n++) sum.of[i][n] = floats_load(o + i * block->v_padded + n * FLOATS);
            if (block->rises[row / TILE_ROWS]) {
                FLOATS_UNROLL
                for (size_t i = 0; i < TILE_ROWS; i++) {
                    const floats shrink = floats_set(block->shrink[row + i]);
                    sum.of[i][0] = floats_multiply(sum.of[i][0], shrink);
                    sum.of[i][1] = floats_multiply(sum.of[i][1], shrink);
                }
            }
            for (; left != 0; left &= left - 1) {
                const size_t token = (size_t)__builtin_ctz(left) * FLOATS;
                tile_multiply(&sum, FLOATS, block->scores + row * TOKENS + token, TOKENS, 1,
                              block->v + d * TOKENS + token * PANEL);
            }
            tile_store(&sum, o, block->v_padded);
        }
}

/* The range ends: its partials are merged with those of the earlier ranges, and the next range begins. */
static void range_finish(struct prefill_block *block) {
    const size_t width = block->v_padded;
    for (size_t first = 0; first < block->row_count; first += FLOATS) {
        const size_t rows = min_size(FLOATS, block->row_count - first);
        float *target_m = block->merged_m + first, *target_s = block->merged_s + first, s[FLOATS] = {0};
        float keep[FLOATS], take[FLOATS];
        for (size_t i = 0; i < rows; i++) s[i] = floats_sum(floats_load(block->s + (first + i) * FLOATS));
        softmax_shares(target_m, block->m + first, keep, take);
        floats sums = floats_multiply(floats_load(take), floats_load(s));
        floats_store(target_s, floats_fma(floats_load(keep), floats_load(target_s), sums));
        for (size_t i = 0; i < rows; i++)
            softmax_outputs_add(width, floats_set(keep[i]), floats_set(take[i]), block->merged_o + (first + i) * width,
                                block->o + (first + i) * width);
    }
}

/* As merge has it. */
static void sinks_merge(const struct prefill_block *block) {
    const float *sinks = block->args->sinks;
    for (size_t first = 0; sinks != NULL && first < block->row_count; first += FLOATS) {
        const size_t rows = min_size(FLOATS, block->row_count - first);
        float *m = block->merged_m + first, *s = block->merged_s + first;
        float sink[FLOATS] = {0}, keep[FLOATS], take[FLOATS];
        for (size_t i = 0; i < rows; i++) sink[i] = sinks[(first + i) / block->query_count];
        softmax_shares(m, sink, keep, take);
        floats_store(s, floats_fma(floats_load(keep), floats_load(s), floats_load(take)));
        for (size_t i = 0; i < rows; i++) {
            float *o = block->merged_o + (first + i) * block->v_padded;
            for (size_t d = 0; d < block->v_padded; d += FLOATS)
                floats_store(o + d, floats_fma(floats_set(keep[i]), floats_load(o + d), floats_set(0)));
        }
    }
}

static void block_finish(const struct prefill_block *block) {
    const struct attention_prefill_args *args = block->args;
    sinks_merge(block);
    size_t dimension = args->layout->v_dimension;
    for (size_t row = 0; row < block->row_count; row++) {
        const float *o = block->merged_o + row * block->v_padded, s = block->merged_s[row];
        float *out = args->out + (block->query_begin + row % block->query_count) * args->out_stride +
                     row / block->query_count * dimension;
        for (size_t d = 0; d < dimension; d++) out[d] = s == 0 ? 0.0f : o[d] / s;
    }
}

static void range_start(const struct prefill_block *block) {
    size_t rows = align_up(block->row_count, TILE_ROWS);
    memset(block->o, 0, rows * block->v_padded * sizeof(float));
    memset(block->s, 0, rows * FLOATS * sizeof(float));
    for (size_t row = 0; row < block_rows(block->args->group); row++) block->m[row] = -INFINITY;
}

static void block_start(struct prefill_block *block) {
    queries_pack(block);
    memset(block->shrink, 0, block_rows(block->args->group) * sizeof(float)); /* also of rows past the end */
    const size_t rows = block_rows(block->args->group);
    for (size_t row = 0; row < rows; row++) block->merged_m[row] = -INFINITY, block->merged_s[row] = 0;
    memset(block->merged_o, 0, block->row_count * block->v_padded * sizeof(float));
    memset(block->scores, 0, /* those past the end are not weights, but no NaN */
           align_up(block->row_count, TILE_ROWS) * TOKENS * sizeof(float));
}

static void chunk_run(const struct prefill_block *block, struct prefill_step step, size_t step_rows) {
    scores_compute(block, step);
    if (!step.whole || block->args->softcap != 0)
        for (size_t row = 0; row < block->row_count; row++) row_mask(block, row, step);
    for (size_t token = 0; token < TOKENS; token += step_rows) {
        for (size_t row = 0; row < block->row_count; row += TILE_ROWS)
            tile_soften(block, row, token / FLOATS, (token + step_rows) / FLOATS);
        values_add(block);
    }
}

static void block_run(struct prefill_block *block, size_t step_rows) {
    const struct attention_prefill_args *args = block->args;
    uint64_t position = args->position_first + block->query_begin, end = position + block->query_count;
    uint64_t begin = prefill_row_begin(position, args->window), last_begin = prefill_row_begin(end - 1, args->window);
    block_start(block);
    range_start(block);
    for (uint64_t first = begin / TOKENS * TOKENS; first < end; first += TOKENS) {
        const struct prefill_step step = {first, last_begin <= first && position + 1 >= first + TOKENS};
        const void *chunk = args->chunks[first / TOKENS];
        if (first > begin && first % block->range_rows == 0) {
            range_finish(block);
            range_start(block);
        }
        keys_pack(args->layout, chunk, block->k);
        values_pack(block, chunk, begin > first ? (size_t)(begin - first) : 0,
                    (size_t)(end - first < TOKENS ? end - first : TOKENS));
        chunk_run(block, step, step_rows);
    }
    range_finish(block);
    block_finish(block);
}

/* How many queries from `query` on have ranges of one length, at most query_max. */
static size_t queries_alike(const struct attention_prefill_args *args, size_t query, size_t query_max,
                            uint64_t *range_rows) {
    const uint64_t end = args->position_first + query + 1, begin = prefill_row_begin(end - 1, args->window);
    *range_rows = attention_range_rows(end - begin);
    if (begin > 0) return query_max; /* the window is full */
    const uint64_t more = *range_rows * ATTENTION_RANGES - end;
    return more + 1 < query_max ? (size_t)more + 1 : query_max;
}

static void prefill_floats(const struct attention_prefill_args *args) {
    FLOATS_FILL(kv_rows_fill(args->layout, FLOATS), attention, attention_prefill, prefill, args)
    struct prefill_block block = block_in(args);
    const struct kv_layout *layout = args->layout;
    const size_t step_rows = softmax_step_rows(layout->k_row_bytes + layout->v_row_bytes);
    size_t query_max = queries_per_block(args->group);
    for (size_t query = 0; query < args->query_count; query += block.query_count) {
        block.query_begin = query;
        block.query_count =
            queries_alike(args, query, min_size(query_max, args->query_count - query), &block.range_rows);
        block.row_count = block.query_count * args->group;
        block_run(&block, step_rows);
    }
}

FLOATS_INSTALL(attention, attention_prefill) {
    kernels->prefill = prefill_floats;
    kernels->prefill_scratch_bytes = prefill_scratch_bytes;
    kernels->prefill_block_rows = BLOCK_ROWS;
}

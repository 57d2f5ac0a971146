/* Prefill attention over `floats`; included by attention_prefill_avx2.c, _avx512.c and _neon.c.
 *
 * Mapping (Dao et al. 2022 on a CPU): the query heads of the group share K and V, so a query block is
 * queries x group rows, some 192 of them.  Per chunk of 64 tokens K is packed once as columns and V as
 * rows, both float, in panels of two registers; S = Q K^T and O += P V are then plain register-tiled
 * multiplications (6 rows x 2 registers on AVX2, 12 x 2 on AVX-512) that run at the FMA units' pace,
 * with the online softmax between.  Only tiles on the diagonal and at the window's edge are masked, and
 * work outside them is cut at tile edges.  Rows go head by head, so that those of a tile are neighbours.
 *
 * What float would drop is not computed: where all scores of a tile of rows for a register of tokens lie so far
 * below the rows' maxima that their weights do not count, exp and P V leave these tokens out.  Each tile has
 * SPARE = 2^-24 to spare over the whole prompt.  The tokens of a register, of which no weight is above
 * 2^e relative to a row's maximum so far (hence to its final one), take FLOATS 2^e of it, and only where that is at
 * most 1 / 64 of what is left.  So for every row, whatever the length, what is left out is at most 2^-24 of s >= 1
 * (one rounding of s) and at most 2^-24 max|v| of each output.  What a tile leaves out depends on the rows of
 * the tile, which follow from position_first, query_count and group alone.  A NaN among the scores is never left out;
 * one in the V of a token that nobody heeds is.
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
#include "kernels/attention/kv_pack.h"
#include "kernels/attention/softmax_floats.h"
#include "kernels/floats.h"

enum {
    TILE_ROWS = FLOATS == 16 ? 12 : 6, /* rows x 2 accumulators leave registers for the operands */
    PANEL = 2 * FLOATS,
    BLOCK_ROWS = 192,
    TOKENS = KV_CHUNK_TOKENS,
    PARTS = TOKENS / FLOATS, /* registers of a row's scores */
    PARTS_ALL = (1 << PARTS) - 1
};

static const float SPARE = 0x1p-24f;
/* A weight above exp(this) always counts: FLOATS 2^-34 is at least 1 / 64 of SPARE. */
static const float COUNTS_ABOVE = -23.0f;

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
    float *spare;                    /* [row tiles]: what may still be left out */
    uint32_t *parts;                 /* [row tiles]: bit i: the chunk's tokens i * FLOATS .. count */
};

/* The chunk that is attended. */
struct prefill_step {
    uint64_t first; /* its first row */
    int whole;      /* every row of the block sees all of it */
};

static size_t queries_per_block(size_t group) { return group >= BLOCK_ROWS ? 1 : BLOCK_ROWS / group; }

static size_t block_rows(size_t group) { return align_up(queries_per_block(group) * group, TILE_ROWS); }

static size_t prefill_scratch_bytes(size_t group, const struct kv_layout *layout) {
    size_t rows = block_rows(group), v_padded = align_up(layout->v_dimension, PANEL);
    size_t count = rows * (layout->k_dimension + TOKENS + v_padded + 1 + FLOATS) +
                   TOKENS * (layout->k_dimension + v_padded) + rows / TILE_ROWS * 2;
    return count * sizeof(float) + 64;
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
    block.spare = block.m + rows;
    block.parts = (uint32_t *)(block.spare + rows / TILE_ROWS);
    return block;
}

/* The queries of the block, scaled and packed by tiles of rows; rows past the end are zeros. */
static void queries_pack(const struct prefill_block *block) {
    const struct attention_prefill_args *args = block->args;
    size_t dimension = args->layout->k_dimension;
    for (size_t row = 0; row < align_up(block->row_count, TILE_ROWS); row++) {
        float *target = block->q + row / TILE_ROWS * TILE_ROWS * dimension + row % TILE_ROWS;
        const float *q = args->q + (block->query_begin + row % block->query_count) * args->q_stride +
                         row / block->query_count * dimension;
        for (size_t d = 0; d < dimension; d++)
            target[d * TILE_ROWS] = row < block->row_count ? q[d] * args->scale : 0.0f;
    }
}

/* K of a chunk as columns: k[token / PANEL][d][token % PANEL]. */
static void keys_pack(const struct kv_layout *layout, const void *chunk, float *k) {
    for (size_t token = 0; token < TOKENS; token += 8) {
        float *panel = k + token / PANEL * PANEL * layout->k_dimension + token % PANEL;
        for (size_t d = 0; d < layout->k_dimension; d += 8) {
            floats8 x[8];
            FLOATS_UNROLL
            for (size_t i = 0; i < 8; i++)
                x[i] = element_load8(layout->k_type, kv_k_row(layout, chunk, token + i),
                                     kv_k_scales(layout, chunk, token + i), d);
            floats8_transpose(x);
            FLOATS_UNROLL
            for (size_t i = 0; i < 8; i++) floats8_store(panel + (d + i) * PANEL, x[i]);
        }
    }
}

/* V of a chunk in panels: v[d / PANEL][token][d % PANEL]; tokens outside [begin, end) and the padding are
 * zeros, because a weight of zero does not silence what was never written there. */
static void values_pack(const struct prefill_block *block, const void *chunk, size_t begin, size_t end) {
    const struct kv_layout *layout = block->args->layout;
    for (size_t token = 0; token < TOKENS; token++)
        for (size_t d = 0; d < block->v_padded; d += 8) {
            floats8 x = floats8_zero();
            if (d < layout->v_dimension && token >= begin && token < end)
                x = element_load8(layout->v_type, kv_v_row(layout, chunk, token),
                                  kv_v_scales(layout, chunk, token), d);
            floats8_store(block->v + d / PANEL * PANEL * TOKENS + token * PANEL + d % PANEL, x);
        }
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
    if (tile_row / block->query_count != last_row / block->query_count)
        low = 0, high = block->query_count - 1;
    return (struct seen){query_sees(block, low, step.first).begin, query_sees(block, high, step.first).end};
}

static void scores_compute(const struct prefill_block *block, struct prefill_step step) {
    size_t dimension = block->args->layout->k_dimension;
    for (size_t token = 0; token < TOKENS; token += PANEL)
        for (size_t row = 0; row < block->row_count; row += TILE_ROWS) {
            struct seen seen = tile_sees(block, row, step);
            if (token >= seen.end || token + PANEL <= seen.begin) continue;
            struct tile_sum sum;
            FLOATS_UNROLL
            for (size_t i = 0; i < TILE_ROWS; i++) sum.of[i][0] = sum.of[i][1] = floats_set(0);
            tile_multiply(&sum, dimension, block->q + row * dimension, 1, TILE_ROWS,
                          block->k + token * dimension);
            tile_store(&sum, block->scores + row * TOKENS + token, TOKENS);
        }
}

/* The scores of a row as the softmax sees them, -INFINITY for what it does not see, and its maximum so far, to which s
 * and o shrink. */
FLOATS_INLINE void row_raise(const struct prefill_block *block, size_t row, struct prefill_step step) {
    float *scores = block->scores + row * TOKENS, *s = block->s + row * FLOATS;
    const float softcap = block->args->softcap;
    floats top = floats_set(-INFINITY);
    if (softcap != 0)
        for (size_t i = 0; i < TOKENS; i += FLOATS)
            floats_store(scores + i, floats_softcap(floats_load(scores + i), softcap));
    if (!step.whole) {
        const struct seen seen = query_sees(block, row % block->query_count, step.first);
        const floats begin = floats_set((float)seen.begin), end = floats_set((float)seen.end);
        for (size_t i = 0; i < TOKENS; i += FLOATS) {
            floats lane = floats_add(floats_index(), floats_set((float)i)), no = floats_set(-INFINITY);
            floats x = floats_if_less(lane, begin, no, floats_load(scores + i));
            floats_store(scores + i, floats_if_less(lane, end, x, no));
        }
    }
    FLOATS_UNROLL
    for (size_t i = 0; i < PARTS; i++) top = floats_max(floats_load(scores + i * FLOATS), top);
    if (!floats_any_greater(top, floats_set(block->m[row]))) return;
    floats shrink = softmax_raise(floats_greatest(top), &block->m[row], block->o + row * block->v_padded,
                                  block->v_padded);
    floats_store(s, floats_multiply(floats_load(s), shrink));
}

/* Whether the tokens of a register count, of which no weight is above exp(most); if not, *spare shrinks. */
FLOATS_INLINE int part_counts(floats most, float *spare) {
    float greatest = floats_greatest(most);
    greatest = greatest > -80.0f ? greatest : -80.0f;
    int32_t exponent = (int32_t)(greatest * 0x1.715476p0f) + 127; /* towards zero: upwards */
    float weight;
    uint32_t bits = (uint32_t)exponent << 23;
    memcpy(&weight, &bits, sizeof weight);
    float taken = weight * (float)FLOATS;
    if (taken * 64 > *spare) return 1;
    *spare -= taken;
    return 0;
}

/* The parts of the chunk that count for `rows` rows of scores; bases: their maxima. */
FLOATS_INLINE uint32_t tile_parts(const float *scores, size_t rows, const float *bases, float *spare) {
    const floats counts = floats_set(COUNTS_ABOVE);
    floats most[PARTS];
    uint32_t parts = 0;
    FLOATS_UNROLL
    for (size_t i = 0; i < PARTS; i++) {
        most[i] = floats_subtract(floats_load(scores + i * FLOATS), floats_set(bases[0]));
        parts |= (uint32_t)floats_any_greater(most[i], counts) << i;
    }
    if (parts == PARTS_ALL) return parts; /* for one row all of it: the usual case where attention is flat */
    for (size_t row = 1; row < rows; row++) {
        const floats base = floats_set(bases[row]);
        FLOATS_UNROLL
        for (size_t i = 0; i < PARTS; i++)
            most[i] =
                floats_max(floats_subtract(floats_load(scores + row * TOKENS + i * FLOATS), base), most[i]);
    }
    FLOATS_UNROLL
    for (size_t i = 0; i < PARTS; i++) {
        parts |= (uint32_t)floats_any_greater(most[i], counts) << i;
        if (parts >> i & 1) continue;
        floats nan = floats_set(0); /* which `most` may have lost */
        for (size_t row = 0; row < rows; row++)
            nan = floats_max(floats_if_less(floats_load(scores + row * TOKENS + i * FLOATS),
                                            floats_set(INFINITY), nan, floats_set(1)),
                             nan);
        if (floats_any_greater(nan, floats_set(0)) || part_counts(most[i], spare)) parts |= (uint32_t)1 << i;
    }
    return parts;
}

/* The online softmax of a tile of rows: weights of the parts that count. */
static void tile_soften(const struct prefill_block *block, size_t tile_row, struct prefill_step step) {
    const size_t rows = min_size(TILE_ROWS, block->row_count - tile_row);
    float *scores = block->scores + tile_row * TOKENS, *s = block->s + tile_row * FLOATS, bases[TILE_ROWS];
    for (size_t row = 0; row < rows; row++) {
        row_raise(block, tile_row + row, step);
        float m = block->m[tile_row + row];
        bases[row] = m == -INFINITY ? 0 : m; /* -inf - -inf is NaN; exp(-inf - 0) is 0 */
    }
    const size_t tile = tile_row / TILE_ROWS;
    const uint32_t parts = block->parts[tile] = tile_parts(scores, rows, bases, &block->spare[tile]);
    for (uint32_t left = parts; left != 0; left &= left - 1) {
        float *part = scores + (size_t)__builtin_ctz(left) * FLOATS;
        for (size_t row = 0; row < rows; row++) {
            floats weight =
                floats_exp_below(floats_subtract(floats_load(part + row * TOKENS), floats_set(bases[row])));
            floats_store(part + row * TOKENS, weight);
            floats_store(s + row * FLOATS, floats_add(floats_load(s + row * FLOATS), weight));
        }
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
            for (; left != 0; left &= left - 1) {
                const size_t token = (size_t)__builtin_ctz(left) * FLOATS;
                tile_multiply(&sum, FLOATS, block->scores + row * TOKENS + token, TOKENS, 1,
                              block->v + d * TOKENS + token * PANEL);
            }
            tile_store(&sum, o, block->v_padded);
        }
}

static void block_finish(const struct prefill_block *block) {
    const struct attention_prefill_args *args = block->args;
    size_t dimension = args->layout->v_dimension;
    for (size_t row = 0; row < block->row_count; row++) {
        const float *o = block->o + row * block->v_padded;
        float *out = args->out + (block->query_begin + row % block->query_count) * args->out_stride +
                     row / block->query_count * dimension;
        float s = floats_sum(floats_load(block->s + row * FLOATS));
        float inverse = s == 0 ? 0.0f : 1.0f / s;
        for (size_t d = 0; d < dimension; d++) out[d] = o[d] * inverse;
    }
}

static void block_start(const struct prefill_block *block) {
    size_t rows = align_up(block->row_count, TILE_ROWS);
    queries_pack(block);
    memset(block->o, 0, rows * block->v_padded * sizeof(float));
    memset(block->scores, 0,
           rows * TOKENS * sizeof(float)); /* those past the end are not weights, but no NaN */
    memset(block->s, 0, rows * FLOATS * sizeof(float));
    for (size_t row = 0; row < rows; row++) block->m[row] = -INFINITY;
    for (size_t tile = 0; tile < rows / TILE_ROWS; tile++) block->spare[tile] = SPARE;
}

static void block_run(const struct prefill_block *block) {
    const struct attention_prefill_args *args = block->args;
    uint64_t position = args->position_first + block->query_begin, end = position + block->query_count;
    uint64_t begin = prefill_row_begin(position, args->window),
             last_begin = prefill_row_begin(end - 1, args->window);
    block_start(block);
    for (uint64_t first = begin / TOKENS * TOKENS; first < end; first += TOKENS) {
        const struct prefill_step step = {first, last_begin <= first && position + 1 >= first + TOKENS};
        const void *chunk = args->chunks[first / TOKENS];
        keys_pack(args->layout, chunk, block->k);
        values_pack(block, chunk, begin > first ? (size_t)(begin - first) : 0,
                    (size_t)(end - first < TOKENS ? end - first : TOKENS));
        scores_compute(block, step);
        for (size_t row = 0; row < block->row_count; row += TILE_ROWS) tile_soften(block, row, step);
        values_add(block);
    }
    block_finish(block);
}

static void prefill_floats(const struct attention_prefill_args *args) {
    struct prefill_block block = block_in(args);
    size_t most = queries_per_block(args->group);
    for (size_t query = 0; query < args->query_count; query += most) {
        block.query_begin = query;
        block.query_count = min_size(most, args->query_count - query);
        block.row_count = block.query_count * args->group;
        block_run(&block);
    }
}

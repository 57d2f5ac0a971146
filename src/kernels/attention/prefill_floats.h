/* Prefill attention over `floats`; included by attention_prefill_avx2.c, _avx512.c and _neon.c.
 *
 * Mapping (Dao et al. 2022 on a CPU): the query heads of the group share K and V, so a query block is
 * queries x group rows, some 192 of them.  Per chunk of 64 tokens K is packed once as columns and V as
 * rows, both float, in panels of two registers; S = Q K^T and O += P V are then plain register-tiled
 * multiplications (6 rows x 2 registers on AVX2, 12 x 2 on AVX-512) that run at the FMA units' pace,
 * with the online softmax between.  Only tiles on the diagonal and at the window's edge are masked, and
 * work outside them is cut at tile edges.
 * Flops: 2 * group * (k_dimension + v_dimension) per (query, row) pair.
 * Bound: compute.  Per block and chunk, packing is 1 / (rows of the block) of the multiplications.
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
    TOKENS = KV_CHUNK_TOKENS
};

/* The scratch of one thread. */
struct prefill_block {
    const struct attention_prefill_args *args;
    size_t query_begin, query_count; /* of args->query_count */
    size_t row_count;                /* query_count * group: row = query * group + head */
    size_t v_padded;                 /* v_dimension up to a multiple of PANEL */
    float *q;                        /* [row tiles][k_dimension][TILE_ROWS], scaled */
    float *k;                        /* [TOKENS / PANEL][k_dimension][PANEL] */
    float *v;                        /* [v_padded / PANEL][TOKENS][PANEL] */
    float *scores;                   /* [rows][TOKENS]; after the softmax the weights */
    float *o;                        /* [rows][v_padded] */
    float *m, *s;                    /* [rows] */
};

static size_t queries_per_block(size_t group) { return group >= BLOCK_ROWS ? 1 : BLOCK_ROWS / group; }

static size_t block_rows(size_t group) { return align_up(queries_per_block(group) * group, TILE_ROWS); }

static size_t prefill_scratch_bytes(size_t group, const struct kv_layout *layout) {
    size_t rows = block_rows(group), v_padded = align_up(layout->v_dimension, PANEL);
    size_t count =
        rows * (layout->k_dimension + TOKENS + v_padded + 2) + TOKENS * (layout->k_dimension + v_padded);
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
    block.m = block.q + rows * layout->k_dimension;
    block.s = block.m + rows;
    return block;
}

/* The queries of the block, scaled and packed by tiles of rows; rows past the end are zeros. */
static void queries_pack(const struct prefill_block *block) {
    const struct attention_prefill_args *args = block->args;
    size_t dimension = args->layout->k_dimension;
    for (size_t row = 0; row < align_up(block->row_count, TILE_ROWS); row++) {
        float *target = block->q + row / TILE_ROWS * TILE_ROWS * dimension + row % TILE_ROWS;
        const float *q = args->q + (block->query_begin + row / args->group) * args->q_stride +
                         row % args->group * dimension;
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

/* c[TILE_ROWS][PANEL] (+)= a b: a[row * a_row + k * a_step], b[k][PANEL]. */
FLOATS_INLINE void tile_multiply(size_t depth, const float *a, const size_t a_row, const size_t a_step,
                                 const float *b, float *c, size_t c_row, const int accumulate) {
    floats sum[TILE_ROWS][2];
    FLOATS_UNROLL
    for (size_t row = 0; row < TILE_ROWS; row++) FLOATS_UNROLL
    for (size_t n = 0; n < 2; n++)
        sum[row][n] = accumulate ? floats_load(c + row * c_row + n * FLOATS) : floats_set(0);
    for (size_t k = 0; k < depth; k++) {
        floats b0 = floats_load(b + k * PANEL), b1 = floats_load(b + k * PANEL + FLOATS);
        FLOATS_UNROLL
        for (size_t row = 0; row < TILE_ROWS; row++) {
            floats x = floats_set(a[row * a_row + k * a_step]);
            sum[row][0] = floats_fma(x, b0, sum[row][0]);
            sum[row][1] = floats_fma(x, b1, sum[row][1]);
        }
    }
    FLOATS_UNROLL
    for (size_t row = 0; row < TILE_ROWS; row++) FLOATS_UNROLL
    for (size_t n = 0; n < 2; n++) floats_store(c + row * c_row + n * FLOATS, sum[row][n]);
}

/* The tokens [begin, end) of the chunk at row `first` that a row of the block sees. */
struct seen {
    size_t begin, end;
};

static struct seen row_sees(const struct prefill_block *block, size_t row, uint64_t first) {
    const struct attention_prefill_args *args = block->args;
    uint64_t position = args->position_first + block->query_begin + row / args->group;
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

/* What any row of the tile sees: rows follow each other in position. */
static struct seen tile_sees(const struct prefill_block *block, size_t tile_row, uint64_t first) {
    size_t last = min_size(tile_row + TILE_ROWS, block->row_count) - 1;
    struct seen low = row_sees(block, tile_row, first), high = row_sees(block, last, first);
    return (struct seen){min_size(low.begin, high.begin), high.end};
}

static void scores_compute(const struct prefill_block *block, uint64_t first) {
    size_t dimension = block->args->layout->k_dimension;
    for (size_t token = 0; token < TOKENS; token += PANEL)
        for (size_t row = 0; row < block->row_count; row += TILE_ROWS) {
            struct seen seen = tile_sees(block, row, first);
            if (token >= seen.end || token + PANEL <= seen.begin) continue;
            tile_multiply(dimension, block->q + row * dimension, 1, TILE_ROWS, block->k + token * dimension,
                          block->scores + row * TOKENS + token, TOKENS, 0);
        }
}

/* One row's online softmax over the tokens it sees; the others' weights become 0. */
FLOATS_INLINE void row_soften(const struct prefill_block *block, size_t row, struct seen seen) {
    enum { COUNT = TOKENS / FLOATS };
    float *scores = block->scores + row * TOKENS, *o = block->o + row * block->v_padded;
    float softcap = block->args->softcap;
    floats x[COUNT], top = floats_set(-INFINITY);
    const int whole = seen.begin == 0 && seen.end == TOKENS;
    FLOATS_UNROLL
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = floats_load(scores + i * FLOATS);
        if (softcap != 0) x[i] = floats_softcap(x[i], softcap);
        if (!whole) {
            floats lane = floats_add(floats_index(), floats_set((float)(i * FLOATS))),
                   no = floats_set(-INFINITY);
            x[i] = floats_if_less(lane, floats_set((float)seen.begin), no, x[i]);
            x[i] = floats_if_less(lane, floats_set((float)seen.end), x[i], no);
        }
        top = floats_max(x[i], top);
    }
    float greatest = floats_greatest(top), *m_row = &block->m[row];
    if (greatest > *m_row) block->s[row] *= floats_first(softmax_raise(greatest, m_row, o, block->v_padded));
    floats m = floats_set(*m_row == -INFINITY ? 0 : *m_row), sum = floats_set(0);
    FLOATS_UNROLL
    for (size_t i = 0; i < COUNT; i++) {
        floats weight = floats_exp(floats_subtract(x[i], m));
        floats_store(scores + i * FLOATS, weight);
        sum = floats_add(sum, weight);
    }
    block->s[row] += floats_sum(sum);
}

static void scores_soften(const struct prefill_block *block, uint64_t first) {
    for (size_t row = 0; row < block->row_count; row++) {
        struct seen seen = row_sees(block, row, first);
        if (seen.begin == seen.end)
            memset(block->scores + row * TOKENS, 0, TOKENS * sizeof(float));
        else
            row_soften(block, row, seen);
    }
}

static void values_add(const struct prefill_block *block, uint64_t first) {
    for (size_t d = 0; d < block->v_padded; d += PANEL)
        for (size_t row = 0; row < block->row_count; row += TILE_ROWS) {
            struct seen seen = tile_sees(block, row, first);
            if (seen.begin >= seen.end) continue;
            tile_multiply(seen.end - seen.begin, block->scores + row * TOKENS + seen.begin, TOKENS, 1,
                          block->v + d * TOKENS + seen.begin * PANEL, block->o + row * block->v_padded + d,
                          block->v_padded, 1);
        }
}

static void block_finish(const struct prefill_block *block) {
    const struct attention_prefill_args *args = block->args;
    size_t dimension = args->layout->v_dimension;
    for (size_t row = 0; row < block->row_count; row++) {
        const float *o = block->o + row * block->v_padded;
        float *out = args->out + (block->query_begin + row / args->group) * args->out_stride +
                     row % args->group * dimension;
        float inverse = block->s[row] == 0 ? 0.0f : 1.0f / block->s[row];
        for (size_t d = 0; d < dimension; d++) out[d] = o[d] * inverse;
    }
}

static void block_run(const struct prefill_block *block) {
    const struct attention_prefill_args *args = block->args;
    size_t rows = align_up(block->row_count, TILE_ROWS);
    queries_pack(block);
    memset(block->o, 0, rows * block->v_padded * sizeof(float));
    memset(block->scores, 0, rows * TOKENS * sizeof(float)); /* the rows past the end stay zeros */
    for (size_t row = 0; row < rows; row++) block->m[row] = -INFINITY, block->s[row] = 0;
    uint64_t position = args->position_first + block->query_begin, end = position + block->query_count;
    uint64_t begin = prefill_row_begin(position, args->window);
    for (uint64_t first = begin / TOKENS * TOKENS; first < end; first += TOKENS) {
        const void *chunk = args->chunks[first / TOKENS];
        keys_pack(args->layout, chunk, block->k);
        values_pack(block, chunk, begin > first ? (size_t)(begin - first) : 0,
                    (size_t)(end - first < TOKENS ? end - first : TOKENS));
        scores_compute(block, first);
        scores_soften(block, first);
        values_add(block, first);
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

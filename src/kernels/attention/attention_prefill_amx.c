/* Prefill attention on AMX tiles in bf16.
 *
 * Mapping: a block is 256 rows (queries x group) against 256 tokens at a time, everything transposed:
 *     S' = K Q'     A tiles: K rows as they lie; B tiles: queries in pairs, packed once per block
 *     O' += V' P'   A tiles: V transposed while it is packed; B tiles: pairs of rows of S' after exp
 * so that 16 rows of the block lie across a register: the softmax needs no sums across lanes, and its
 * result is already in the pair order that a B tile wants.  2 x 2 tiles of C share 2 of A and 2 of B.
 * Flops: 2 * group * (k_dimension + v_dimension) per (query, row) pair.
 * Bound: compute; per block and step packing costs 1 / 256 of the multiplications' operands.
 * Tested on the emulation in tests/kernels/amx_emulation.h, and on the processor where it has tiles.
 *
 * Rounding: q, k, v and the weights are rounded to bf16 (relative 2^-9 each), sums are float.  A score is
 * off by at most (2^-8 + 2^-18) scale sum |q k| more than in float, a value by (2^-8 + 2^-18) sum w |v|.
 */
#define FLOATS_512
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "kernels/attention/attention_internal.h"
#include "kernels/attention/kv_pack.h"
#include "kernels/floats.h"
#include "tensor/half.h"

enum {
    LANES = 16,          /* rows of the block across a register, and down a tile */
    PAIR = 32,           /* bf16 elements of a tile row */
    TILE = LANES * PAIR, /* elements of a bf16 tile: 1 KiB */
    BLOCK_ROWS = 256,
    STEP_TOKENS = 256
};

struct amx_block {
    const struct attention_prefill_args *args;
    size_t query_begin, query_count, row_count;
    size_t row_tiles;        /* of LANES rows; even */
    size_t k_tiles, v_tiles; /* of PAIR dimensions of K, of LANES dimensions of V (even) */
    uint16_t *q;             /* [row_tiles][k_tiles] B tiles */
    uint16_t *k;             /* [STEP_TOKENS / LANES][k_tiles] A tiles */
    uint16_t *v;             /* [v_tiles][STEP_TOKENS / PAIR] A tiles: rows are dimensions */
    uint16_t *p;             /* [row_tiles][STEP_TOKENS / PAIR] B tiles */
    float *scores;           /* [row_tiles][STEP_TOKENS][LANES] */
    float *o;                /* [row_tiles][v_tiles * LANES][LANES] */
    float *m, *s;            /* [row_tiles][LANES] */
};

/* Tokens [begin, end) of a step, and whether every row of the tiles sees all of them. */
struct tokens {
    size_t begin, end;
    int whole;
};

static size_t queries_per_block(size_t group) { return group >= BLOCK_ROWS ? 1 : BLOCK_ROWS / group; }

static struct amx_block block_in(const struct attention_prefill_args *args) {
    struct amx_block block = {.args = args};
    block.row_tiles = align_up(queries_per_block(args->group) * args->group, 2 * LANES) / LANES;
    block.k_tiles = align_up(args->layout->k_dimension, PAIR) / PAIR;
    block.v_tiles = align_up(args->layout->v_dimension, 2 * LANES) / LANES;
    block.scores = (float *)align_up((size_t)(uintptr_t)args->scratch, 64);
    block.o = block.scores + block.row_tiles * STEP_TOKENS * LANES;
    block.m = block.o + block.row_tiles * block.v_tiles * LANES * LANES;
    block.s = block.m + block.row_tiles * LANES;
    block.q = (uint16_t *)(block.s + block.row_tiles * LANES);
    block.k = block.q + block.row_tiles * block.k_tiles * TILE;
    block.v = block.k + STEP_TOKENS / LANES * block.k_tiles * TILE;
    block.p = block.v + block.v_tiles * (STEP_TOKENS / PAIR) * TILE;
    return block;
}

static size_t prefill_scratch_bytes(size_t group, const struct kv_layout *layout) {
    const struct attention_prefill_args args = {.layout = layout, .group = group};
    struct amx_block block = block_in(&args); /* the scratch starts at 0 */
    return (size_t)((uintptr_t)block.p + block.row_tiles * (STEP_TOKENS / PAIR) * TILE * sizeof *block.p) + 64;
}

/* To the nearest bf16, ties to even; a NaN stays one. */
FLOATS_INLINE __m128i bfloat8(__m256 x) {
    x = _mm256_blendv_ps(x, _mm256_set1_ps(NAN), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}

/* {bf16 of even, bf16 of odd} in each lane; weights are at most 1 or NaN. */
FLOATS_INLINE __m512i weight_pairs(floats even, floats odd) {
    const floats nan = floats_set(NAN), two = floats_set(2.0f);
    __m512i low = _mm512_castps_si512(floats_if_less(even, two, even, nan));
    __m512i high = _mm512_castps_si512(floats_if_less(odd, two, odd, nan));
    const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7fff);
    low = _mm512_add_epi32(low, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(low, 16), one)));
    high = _mm512_add_epi32(high, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(high, 16), one)));
    return _mm512_or_si512(_mm512_srli_epi32(low, 16), _mm512_and_si512(high, _mm512_set1_epi32((int)0xffff0000u)));
}

/* q as B tiles: tile row d / 2, lane row, pair d % 2.  Rows past the end and the padding are zeros. */
static void queries_pack(const struct amx_block *block) {
    const struct attention_prefill_args *args = block->args;
    size_t dimension = args->layout->k_dimension;
    memset(block->q, 0, block->row_tiles * block->k_tiles * TILE * sizeof *block->q);
    for (size_t row = 0; row < block->row_count; row++) {
        const float *q =
            args->q + (block->query_begin + row / args->group) * args->q_stride + row % args->group * dimension;
        uint16_t *tiles = block->q + row / LANES * block->k_tiles * TILE + row % LANES * 2;
        for (size_t d = 0; d < dimension; d++)
            tiles[d / PAIR * TILE + d % PAIR / 2 * PAIR + d % 2] = float_to_bfloat(q[d]);
    }
}

/* A chunk's K rows as A tiles, its tokens being `at` .. `at` + 63 of the step. */
static void keys_pack(const struct amx_block *block, const void *chunk, size_t at) {
    const struct kv_layout *layout = block->args->layout;
    for (size_t token = 0; token < KV_CHUNK_TOKENS; token++) {
        uint16_t *row = block->k + (at + token) / LANES * block->k_tiles * TILE + (at + token) % LANES * PAIR;
        const uint8_t *source = kv_k_row(layout, chunk, token);
        const uint16_t *scales = kv_k_scales(layout, chunk, token);
        for (size_t d = 0; d < block->k_tiles * PAIR; d += 8) {
            __m256 x = d < layout->k_dimension ? element_load8(layout->k_type, source, scales, d) : _mm256_setzero_ps();
            _mm_storeu_si128((__m128i *)(row + d / PAIR * TILE + d % PAIR), bfloat8(x));
        }
    }
}

/* A chunk's V transposed as A tiles; tokens outside [begin, end) of the chunk and the padding are zeros. */
static void values_pack(const struct amx_block *block, const void *chunk, size_t at, size_t begin, size_t end) {
    const struct kv_layout *layout = block->args->layout;
    for (size_t token = 0; token < KV_CHUNK_TOKENS; token += 8)
        for (size_t d = 0; d < block->v_tiles * LANES; d += 8) {
            __m256 x[8];
            for (size_t i = 0; i < 8; i++) {
                size_t t = token + i;
                x[i] = d < layout->v_dimension && t >= begin && t < end
                           ? element_load8(layout->v_type, kv_v_row(layout, chunk, t), kv_v_scales(layout, chunk, t), d)
                           : _mm256_setzero_ps();
            }
            floats8_transpose(x);
            uint16_t *tile = block->v + (d / LANES * (STEP_TOKENS / PAIR) + (at + token) / PAIR) * TILE +
                             d % LANES * PAIR + (at + token) % PAIR;
            for (size_t i = 0; i < 8; i++) _mm_storeu_si128((__m128i *)(tile + i * PAIR), bfloat8(x[i]));
        }
}

/* C tiles 0..3 = {a0 b0, a0 b1, a1 b0, a1 b1} summed over `depth` tiles that follow each other. */
FLOATS_INLINE void tiles_multiply(const uint16_t *a0, const uint16_t *a1, const uint16_t *b0, const uint16_t *b1,
                                  size_t depth) {
    for (size_t i = 0; i < depth; i++) {
        _tile_loadd(4, a0 + i * TILE, 64);
        _tile_loadd(6, b0 + i * TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b1 + i * TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a1 + i * TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* S' of two row tiles over tokens [begin, end), multiples of 32. */
static void scores_compute(const struct amx_block *block, size_t row_tile, struct tokens tokens) {
    const uint16_t *q0 = block->q + row_tile * block->k_tiles * TILE, *q1 = q0 + block->k_tiles * TILE;
    float *s0 = block->scores + row_tile * STEP_TOKENS * LANES, *s1 = s0 + STEP_TOKENS * LANES;
    for (size_t token = tokens.begin; token < tokens.end; token += 2 * LANES) {
        const uint16_t *k0 = block->k + token / LANES * block->k_tiles * TILE;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        tiles_multiply(k0, k0 + block->k_tiles * TILE, q0, q1, block->k_tiles);
        _tile_stored(0, s0 + token * LANES, 64);
        _tile_stored(1, s1 + token * LANES, 64);
        _tile_stored(2, s0 + (token + LANES) * LANES, 64);
        _tile_stored(3, s1 + (token + LANES) * LANES, 64);
    }
}

/* O' of two row tiles += V' P' over the tokens. */
static void values_add(const struct amx_block *block, size_t row_tile, struct tokens tokens) {
    const size_t step = STEP_TOKENS / PAIR * TILE, depth = (tokens.end - tokens.begin) / PAIR;
    const uint16_t *p0 = block->p + row_tile * step + tokens.begin / PAIR * TILE, *p1 = p0 + step;
    for (size_t tile = 0; tile < block->v_tiles; tile += 2) {
        const uint16_t *v0 = block->v + tile * step + tokens.begin / PAIR * TILE;
        float *o0 = block->o + (row_tile * block->v_tiles + tile) * LANES * LANES;
        float *o1 = o0 + block->v_tiles * LANES * LANES;
        _tile_loadd(0, o0, 64);
        _tile_loadd(1, o1, 64);
        _tile_loadd(2, o0 + LANES * LANES, 64);
        _tile_loadd(3, o1 + LANES * LANES, 64);
        tiles_multiply(v0, v0 + step, p0, p1, depth);
        _tile_stored(0, o0, 64);
        _tile_stored(1, o1, 64);
        _tile_stored(2, o0 + LANES * LANES, 64);
        _tile_stored(3, o1 + LANES * LANES, 64);
    }
}

/* How many of the step's tokens, from row `first` of the cache on, come before cache row `end`. */
static size_t tokens_before(uint64_t first, uint64_t end) {
    return end <= first ? 0 : end - first >= STEP_TOKENS ? STEP_TOKENS : (size_t)(end - first);
}

/* The tokens that rows of `count` tiles see, widened to whole tiles of 32 tokens. */
static struct tokens tokens_seen(const struct amx_block *block, size_t row_tile, uint64_t first) {
    const struct attention_prefill_args *args = block->args;
    uint64_t position = args->position_first + block->query_begin;
    size_t last_row = min_size((row_tile + 2) * LANES, block->row_count) - 1;
    uint64_t low = position + row_tile * LANES / args->group, high = position + last_row / args->group;
    size_t begin = tokens_before(first, prefill_row_begin(low, args->window));
    size_t end = tokens_before(first, high + 1);
    struct tokens tokens = {begin / PAIR * PAIR, align_up(end, PAIR), 0};
    tokens.whole = tokens_before(first, prefill_row_begin(high, args->window)) == tokens.begin &&
                   tokens_before(first, low + 1) >= tokens.end;
    return tokens;
}

/* -inf where a lane's row does not see the token. */
FLOATS_INLINE floats unseen_remove(floats x, size_t token, floats begin, floats end) {
    floats at = floats_set((float)token), no = floats_set(-INFINITY);
    return floats_if_less(at, begin, no, floats_if_less(at, end, x, no));
}

/* The online softmax of 16 rows, one in each lane; weights go to p as pairs of tokens. */
static void tile_soften(const struct amx_block *block, size_t row_tile, uint64_t first, struct tokens tokens) {
    const struct attention_prefill_args *args = block->args;
    float *scores = block->scores + row_tile * STEP_TOKENS * LANES, begins[LANES], ends[LANES];
    uint16_t *p = block->p + row_tile * (STEP_TOKENS / PAIR) * TILE;
    for (size_t lane = 0; lane < LANES; lane++) {
        size_t row = min_size(row_tile * LANES + lane, block->row_count - 1);
        uint64_t position = args->position_first + block->query_begin + row / args->group;
        begins[lane] = (float)tokens_before(first, prefill_row_begin(position, args->window));
        ends[lane] = (float)tokens_before(first, position + 1);
    }
    const floats begin = floats_load(begins), end = floats_load(ends);
    floats top = floats_set(-INFINITY), before = floats_load(block->m + row_tile * LANES);
    for (size_t token = tokens.begin; token < tokens.end; token++) {
        floats x = floats_multiply(floats_load(scores + token * LANES), floats_set(args->scale));
        if (args->softcap != 0) x = floats_softcap(x, args->softcap);
        if (!tokens.whole) x = unseen_remove(x, token, begin, end);
        floats_store(scores + token * LANES, x);
        top = floats_max(x, top); /* a NaN loses here and shows in the sum */
    }
    floats after = floats_max(top, before), none = floats_set(-INFINITY);
    floats m = floats_if_less(none, after, after, floats_set(0)); /* -inf - -inf is NaN; exp(-inf - 0) is 0 */
    floats sum = floats_load(block->s + row_tile * LANES);
    if (floats_any_greater(after, before)) {
        floats shrink = floats_exp(floats_subtract(before, m));
        float *o = block->o + row_tile * block->v_tiles * LANES * LANES;
        for (size_t d = 0; d < block->v_tiles * LANES; d++)
            floats_store(o + d * LANES, floats_multiply(floats_load(o + d * LANES), shrink));
        sum = floats_multiply(sum, shrink);
        floats_store(block->m + row_tile * LANES, after);
    }
    for (size_t token = tokens.begin; token < tokens.end; token += 2) {
        floats even = floats_exp(floats_subtract(floats_load(scores + token * LANES), m));
        floats odd = floats_exp(floats_subtract(floats_load(scores + (token + 1) * LANES), m));
        sum = floats_add(sum, floats_add(even, odd));
        _mm512_storeu_si512(p + token / 2 * PAIR, weight_pairs(even, odd));
    }
    floats_store(block->s + row_tile * LANES, sum);
}

static void block_finish(const struct amx_block *block) {
    const struct attention_prefill_args *args = block->args;
    size_t dimension = args->layout->v_dimension;
    for (size_t row = 0; row < block->row_count; row++) {
        const float *o = block->o + row / LANES * block->v_tiles * LANES * LANES + row % LANES;
        float *out =
            args->out + (block->query_begin + row / args->group) * args->out_stride + row % args->group * dimension;
        float inverse = block->s[row] == 0 ? 0.0f : 1.0f / block->s[row];
        for (size_t d = 0; d < dimension; d++) out[d] = o[d * LANES] * inverse;
    }
}

/* Packs the step's chunks; rows from `begin` to `end` of the cache exist. */
static void step_pack(const struct amx_block *block, uint64_t first, uint64_t begin, uint64_t end) {
    for (size_t at = 0; at < STEP_TOKENS && first + at < end; at += KV_CHUNK_TOKENS) {
        uint64_t row = first + at;
        const void *chunk = block->args->chunks[row / KV_CHUNK_TOKENS];
        keys_pack(block, chunk, at);
        values_pack(block, chunk, at, begin > row ? (size_t)(begin - row) : 0,
                    (size_t)(end - row < KV_CHUNK_TOKENS ? end - row : KV_CHUNK_TOKENS));
    }
}

static void block_run(const struct amx_block *block) {
    const struct attention_prefill_args *args = block->args;
    queries_pack(block);
    memset(block->o, 0, block->row_tiles * block->v_tiles * LANES * LANES * sizeof *block->o);
    for (size_t row = 0; row < block->row_tiles * LANES; row++) { /* a sink, if there is one, comes first */
        block->m[row] = args->sinks != NULL ? args->sinks[row % args->group] : -INFINITY;
        block->s[row] = args->sinks != NULL ? 1 : 0;
    }
    uint64_t position = args->position_first + block->query_begin, end = position + block->query_count;
    uint64_t begin = prefill_row_begin(position, args->window);
    for (uint64_t first = begin / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS; first < end; first += STEP_TOKENS) {
        step_pack(block, first, begin, end);
        for (size_t tile = 0; tile * LANES < block->row_count; tile += 2) {
            struct tokens tokens = tokens_seen(block, tile, first);
            if (tokens.begin >= tokens.end) continue;
            scores_compute(block, tile, tokens);
            tile_soften(block, tile, first, tokens);
            tile_soften(block, tile + 1, first, tokens);
            values_add(block, tile, tokens);
        }
    }
    block_finish(block);
}

static void prefill_amx(const struct attention_prefill_args *args) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (size_t i = 0; i < 8; i++) config.row_bytes[i] = 64, config.rows[i] = 16;
    _tile_loadconfig(&config);
    struct amx_block block = block_in(args);
    size_t largest = queries_per_block(args->group);
    for (size_t query = 0; query < args->query_count; query += largest) {
        block.query_begin = query;
        block.query_count = min_size(largest, args->query_count - query);
        block.row_count = block.query_count * args->group;
        block_run(&block);
    }
    _tile_release();
}

void attention_prefill_amx_install(struct attention_kernels *kernels) {
    kernels->prefill = prefill_amx;
    kernels->prefill_scratch_bytes = prefill_scratch_bytes;
    kernels->prefill_block_rows = BLOCK_ROWS;
}

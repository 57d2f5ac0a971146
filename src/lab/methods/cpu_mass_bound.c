/* mass_bound on the cpu: a lower bound of the attention mass that the rows a query head attended to have.
 *
 * The key index has, per unit of tokens, minima and maxima of the keys, so that q . k of a token that was left out is
 * at most U = sum over d of max(q_d min_d, q_d max_d).  With the attended rows' greatest score m and sum s of
 * exp(score - m), which attention has computed, and n tokens of a unit that were left out:
 *
 *   B = sum over units of n exp(scale U - m)          bound = s / (s + B)
 *
 *   1  U is of each query head by itself: the maximum over a group, by which units are ranked, would do, but is looser.
 *   2  Every unit is bounded by its own box.  Those of its ancestors cost less, but hold what ranks (tree.h), and B can
 *      only grow by them.
 *   3  Rounding is on the safe side: B grows by what scores, ours, attention's and a reader's own, may be off by, which
 *      is (4 dimension + 16) 2^-24 |q|_1 max|k| scale in the exponent, and by a 4096th for float exponentials and
 *      sums.
 *   4  Where a sequence has chunks in 4 bits, what was left out may be attended to in them at another time.  Keys then
 *      lie within the range of their chunk, and a 30th of it from where they were (kernels/codec): U grows by as
 *      much, up to the bound of the chunk.
 *
 * A unit of work is one KV head of a row.  It reads the units' boxes, 4 dimension bytes each, once into the caches,
 * where every head of the group reads them again. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"
#include "tensor/half.h"

enum { PIECE = 256 }; /* units at a time, of whole chunks: 64 KiB at dimension 64 */

enum { LANES = 8 }; /* a register of halves on every machine; a dimension is a multiple of it */
typedef int16_t halves __attribute__((vector_size(LANES * sizeof(int16_t))));

struct bounder {
    const struct heads_run *run;
    const struct head_unit *unit;
    const struct key_index_layout *layout;
    void **blocks; /* [PIECE]: of the piece's chunks, the first of which is: */
    uint64_t chunk_first;
    size_t unit_tokens, dimension;
    float *query;   /* [group][2 * dimension]: the factors of a box */
    float *scores;  /* [group][PIECE] */
    float *weights; /* [PIECE] */
    float *widened; /* [dimension]: how far 4 bits may move a chunk's keys */
    uint8_t *left;  /* [PIECE]: tokens of a unit that were left out */
    void *score_scratch;
    float largest;         /* element of any key, its magnitude */
    float top[GROUP_MAX];  /* greatest scaled bound so far */
    double sum[GROUP_MAX]; /* of n exp(bound - top) */
};

static struct bounder bounder_in(const struct heads_run *run, const struct head_unit *unit, struct layout *scratch) {
    const struct mass_bound_operation *operation = run->operation;
    const size_t dimension = run->kv->k_dimension;
    struct bounder c = {.run = run,
                        .unit = unit,
                        .layout = operation->layout,
                        .unit_tokens = key_index_scored_tokens(operation->layout),
                        .dimension = dimension};
    c.query = layout_take(scratch, run->group * 2 * dimension, sizeof *c.query);
    c.scores = layout_take(scratch, run->group * PIECE, sizeof *c.scores);
    c.weights = layout_take(scratch, PIECE, sizeof *c.weights);
    c.widened = layout_take(scratch, dimension, sizeof *c.widened);
    c.left = layout_take(scratch, PIECE, sizeof *c.left);
    c.blocks = layout_take(scratch, PIECE, sizeof *c.blocks);
    c.score_scratch = layout_take(scratch, 1, run->device->kernels.score.scratch_bytes(2 * dimension));
    return c;
}

/* sum of max(q low, q high) = min(q, 0) . low + max(q, 0) . high; a NaN stays in one of them. */
static void prepare_query(const struct bounder *c) {
    for (size_t head = 0; head < c->run->group; head++) {
        float *low = c->query + head * 2 * c->dimension, *high = low + c->dimension;
        for (size_t d = 0; d < c->dimension; d++) {
            float x = c->unit->q[head * c->dimension + d];
            low[d] = x > 0 ? 0 : x;
            high[d] = x > 0 ? x : 0;
        }
    }
}

static void find_blocks(struct bounder *c, uint64_t first, size_t count) {
    const size_t chunk_units = KV_CHUNK_TOKENS / c->unit_tokens;
    c->chunk_first = first / chunk_units;
    cpu_find_chunks(c->unit->item->view.pools, c->unit->places + c->chunk_first,
                    (count + chunk_units - 1) / chunk_units, c->blocks);
}

/* Low row, then high row. */
static const uint16_t *unit_box(const struct bounder *c, uint64_t unit) {
    size_t chunk_units = KV_CHUNK_TOKENS / c->unit_tokens;
    const uint8_t *block = c->blocks[unit / chunk_units - c->chunk_first];
    return (const uint16_t *)(const void *)(block + c->layout->bounds_offset) + unit % chunk_units * 2 * c->dimension;
}

/* Counts the piece's rows that are not on the list, from entry *next on.  Returns whether there is any. */
static bool count_left(const struct bounder *c, uint64_t first, size_t count, const uint32_t *list, size_t kept,
                       size_t *next) {
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = (first + i) * c->unit_tokens, end = begin + c->unit_tokens;
        if (end > c->unit->item->position + 1) end = c->unit->item->position + 1;
        size_t before = *next;
        while (*next < kept && list[*next] < end) ++*next;
        c->left[i] = (uint8_t)(end - begin - (*next - before));
        any = any || c->left[i] > 0;
    }
    return any;
}

/* Magnitudes of halves have the order of their bits; infinities and NaN are above them. */
static void find_largest(struct bounder *c, uint64_t first, size_t count) {
    halves largest = {0};
    for (size_t i = 0; i < count; i++) {
        const uint16_t *box = unit_box(c, first + i);
        for (size_t d = 0; d < 2 * c->dimension; d += LANES) {
            halves magnitude;
            memcpy(&magnitude, box + d, sizeof magnitude);
            magnitude &= 0x7fff;
            halves is_greater = magnitude > largest;
            largest = (magnitude & is_greater) | (largest & ~is_greater);
        }
    }
    for (size_t lane = 0; lane < LANES; lane++) {
        float found = half_to_float((uint16_t)largest[lane]);
        if (!(found <= c->largest)) c->largest = found;
    }
}

/* A piece begins with a chunk. */
static void score_piece(const struct bounder *c, size_t count) {
    const struct key_index_layout *layout = c->layout;
    for (size_t head = 0; head < c->run->group; head++)
        c->run->device->kernels.score.rows(&(struct score_args){.blocks = (const void *const *)c->blocks,
                                                                .block_offset = layout->bounds_offset,
                                                                .block_rows = KV_CHUNK_TOKENS / c->unit_tokens,
                                                                .columns = 2 * c->dimension,
                                                                .row_begin = 0,
                                                                .row_end = count,
                                                                .q = c->query + head * 2 * c->dimension,
                                                                .q_stride = 2 * c->dimension,
                                                                .heads = 1,
                                                                .aggregate = SCORE_MAX,
                                                                .scores = c->scores + head * PIECE,
                                                                .scratch = c->score_scratch});
}

/* 4: raises the bounds of a full chunk's units, scores[head * PIECE]. */
static void widen_chunk(const struct bounder *c, uint64_t first, float *scores) {
    const size_t dimension = c->dimension, units = KV_CHUNK_TOKENS / c->unit_tokens;
    float error_max[GROUP_MAX] = {0};
    for (size_t d = 0; d < dimension; d++) {
        float low = INFINITY, high = -INFINITY;
        for (size_t unit = 0; unit < units; unit++) {
            const uint16_t *box = unit_box(c, first + unit);
            low = fminf(low, half_to_float(box[d]));
            high = fmaxf(high, half_to_float(box[dimension + d]));
        }
        /* and half a unit of the decoded half */
        c->widened[d] = (high - low) * (1.001F / 30) + fmaxf(fabsf(low), fabsf(high)) * 0x1p-11F + 0x1p-24F;
        for (size_t head = 0; head < c->run->group; head++)
            error_max[head] +=
                c->query[head * 2 * dimension + d] * low + c->query[(head * 2 + 1) * dimension + d] * high;
    }
    for (size_t head = 0; head < c->run->group; head++) {
        float more = 0;
        for (size_t d = 0; d < dimension; d++) more += fabsf(c->unit->q[head * dimension + d]) * c->widened[d];
        for (size_t unit = 0; unit < units; unit++) {
            float *score = &scores[head * PIECE + unit];
            *score = *score + more > error_max[head] ? error_max[head] : *score + more; /* NaN stays */
        }
    }
}

static void widen_piece(const struct bounder *c, uint64_t first, size_t count) {
    const size_t units = KV_CHUNK_TOKENS / c->unit_tokens;
    for (size_t i = 0; i < count; i += units)
        if ((first + i + units) * c->unit_tokens <= c->unit->item->position + 1)
            widen_chunk(c, first + i, c->scores + i);
}

/* Scores as the softmax sees them; units that are attended to whole get none. */
static void add_weights(struct bounder *c, size_t head, size_t count) {
    const struct attend_rows_operation *rows = c->run->rows;
    float *scores = c->scores + head * PIECE, top = c->top[head];
    const float one = 1;
    for (size_t i = 0; i < count; i++) {
        const float score = attention_score(scores[i], rows->scale, rows->softcap);
        scores[i] = c->left[i] > 0 ? score : -INFINITY;
        top = scores[i] > top ? scores[i] : top;
    }
    memset(c->weights, 0, count * sizeof *c->weights);
    c->run->device->kernels.mass.add(&(struct mass_add_args){.scores = scores,
                                                             .scores_stride = PIECE,
                                                             .group = 1,
                                                             .m = &top,
                                                             .s = &one,
                                                             .row_count = count,
                                                             .mass = c->weights});
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        if (c->left[i] > 0) sum += (double)c->left[i] * (double)c->weights[i];
    if (c->sum[head] != 0) c->sum[head] *= exp((double)c->top[head] - (double)top);
    c->sum[head] += sum;
    c->top[head] = top;
}

/* 3: the exponent's part of the rounding of scores. */
static double rounding_of(const struct bounder *c, size_t head) {
    const struct attend_rows_operation *rows = c->run->rows;
    double norm = 0;
    for (size_t d = 0; d < c->dimension; d++) norm += fabs((double)c->unit->q[head * c->dimension + d]);
    double products = norm * (double)c->largest * (double)rows->scale;
    return (double)(4 * c->dimension + 16) * 0x1p-24 * products + 2e-6 * (double)rows->softcap + 0x1p-12;
}

static double bound_share(const struct bounder *c, size_t head, double m, double s) {
    if (!(s > 0)) return 0;
    if (c->sum[head] == 0) return 1; /* nothing was left out */
    double left = (double)c->top[head] + log(c->sum[head]) + rounding_of(c, head);
    double fraction = 1 / (1 + exp(left - m - log(s)));
    return fraction >= 0 ? fraction : 0;
}

static void bound_unit(const struct heads_run *run, const struct head_unit *unit, struct layout *scratch) {
    const struct mass_bound_operation *operation = run->operation;
    const struct rows_item *item = unit->item;
    struct bounder c = bounder_in(run, unit, scratch);
    for (size_t head = 0; head < run->group; head++) c.top[head] = -INFINITY;
    prepare_query(&c);
    const uint64_t units = item->position / c.unit_tokens + 1;
    size_t next = 0;
    for (uint64_t first = 0; first < units; first += PIECE) {
        size_t count = (size_t)(units - first < PIECE ? units - first : PIECE);
        find_blocks(&c, first, count);
        find_largest(&c, first, count);
        if (!count_left(&c, first, count, cpu_rows(unit->list), unit->list.count, &next)) continue;
        score_piece(&c, count);
        if (cpu_places(item->view.quantized) != NULL) widen_piece(&c, first, count);
        for (size_t head = 0; head < run->group; head++) add_weights(&c, head, count);
    }
    for (size_t head = 0; head < run->group; head++)
        operation->mass_bounds[unit->head_first + head] =
            bound_share(&c, head, (double)unit->sums[head].largest, (double)unit->sums[head].sum);
}

static void mass_bound(struct stream *stream, const struct mass_bound_operation *operation) {
    const struct attend_rows_operation *rows = operation->rows;
    struct layout scratch = {0};
    if (rows->item_count == 0) return;
    const struct heads_run run = cpu_heads_of(stream, operation, rows);
    ASSERT(operation->layout->has_bounds && rows->scale > 0);
    (void)bounder_in(&run, NULL, &scratch);
    cpu_run_heads(&run, scratch.used, rows->item_count * rows->kv_head_count == 1, bound_unit);
}

__attribute__((constructor)) static void add(void) { cpu_operations.mass_bound = mass_bound; }

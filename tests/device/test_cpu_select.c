/* choose, attend_rows, add_mass and key_index_build on the cpu, over random shapes with a printed seed: the rows that
 * are chosen are the best by a full sort, attention over them is that of the formula in double, and neither threads
 * nor the company of other rows change a bit.  With everything chosen the reference kernels give what dense attention
 * gives.
 *
 * Lists that were chosen before, all heads at once or head by head in any order, give the same bits; choosing reads no
 * K or V, attending no row that is not in its lists.
 *
 * Bound of the output: K and V are the stored halves on both sides, sums of at most 3,000 terms in float against
 * double; worst measured 5.7e-7 of the largest value. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "device/device.h"
#include "device_variants.h"
#include "kernels/kernels.h"
#include "placed.h"
#include "seed.h"
#include "selection.h"
#include "tensor/half.h"

enum {
    DEVICES = 4,
    ROWS_MAX = 3,
    CHUNKS_MAX = 320,
    LONG = 17000,
    ROUNDS = 16,
    PARTS_ROUNDS = 24,
    FEW_OF = LOOK_FROM * 3 / 2 /* units to a pick */
};

static const double output_bound = 1e-5;

struct fixture {
    struct device *devices[DEVICES]; /* the first with reference kernels, the others by threads 1, 2, 3 */
    struct stream *streams[DEVICES];
    struct kernels kernels[2]; /* reference, and all */
};

struct sequence_case {
    uint64_t length;
    void **chunks, **key_index; /* [kv_heads][CHUNKS_MAX] */
    struct placed placed;
};

struct select_case {
    uint64_t seed;
    struct random random;
    struct kv_layout kv;
    struct key_index_layout layout;
    size_t kv_heads, group, columns, row_count;
    uint16_t *weights;
    float *q; /* [row_count][heads][k_dimension] */
    const float *sinks; /* [heads]; NULL: none */
    struct sequence_case sequences[ROWS_MAX];
    struct select_item items[ROWS_MAX];
    uint64_t picks[ROWS_MAX][3]; /* of each KV head of an item: half the time as many as the first */
    float scale, alpha;
    bool picks_few, is_long; /* of a row that looks; scores are cut into several units */
    double worst;
};

static void open_devices(struct fixture *fixture) {
    device_variants_open(fixture->devices, fixture->streams, DEVICES);
    kernels_init(&fixture->kernels[0], 0);
    kernels_init(&fixture->kernels[1], cpu_features());
}

static size_t pick(struct random *random, const size_t *values, size_t count) {
    return values[random_below(random, count)];
}

/* ---- a case ---- */

static void layout_init(struct select_case *c, enum key_index_kind kind) {
    static const size_t pages[] = {8, 16, 32, 64}, bits[] = {32, 128, 256}, columns[] = {8, 16, 24};
    struct key_index_layout *layout = &c->layout;
    *layout = (struct key_index_layout){.kind = kind, .unit_tokens = 1};
    if (kind == KEY_INDEX_ABSTRACT) {
        layout->unit_tokens = pick(&c->random, pages, 4);
        layout->abstract_kind = random_below(&c->random, 2) ? ABSTRACT_MIN_MAX : ABSTRACT_MEAN_DEVIATION;
        abstract_layout_init(&layout->abstract, layout->unit_tokens, c->kv.k_dimension,
                             layout->abstract_kind == ABSTRACT_MIN_MAX,
                             layout->abstract_kind == ABSTRACT_MEAN_DEVIATION);
        layout->bytes = layout->abstract.bytes;
        while (layout->unit_tokens < KV_CHUNK_TOKENS && random_below(&c->random, 2)) layout->unit_tokens *= 2;
    } else if (kind == KEY_INDEX_HASH) {
        hash_layout_init(&layout->hash, c->columns = pick(&c->random, bits, 3));
        layout->use_norms = random_below(&c->random, 2);
        if (random_below(&c->random, 2)) layout->unit_tokens = pick(&c->random, pages, 4);
        layout->bytes = layout->hash.bytes;
    } else if (kind == KEY_INDEX_LEVEL) {
        c->columns = c->kv.k_dimension;
        if (random_below(&c->random, 2)) layout->unit_tokens = pick(&c->random, pages, 4);
        level_layout_init(&layout->level, c->columns, c->columns < 32 || c->seed / 3 % 2 == 1 ? 2 : 1,
                          layout->unit_tokens >= 8 && c->seed % 5 >= 3);
        layout->bytes = align_up(layout->level.bytes, 64);
    } else if (kind == KEY_INDEX_PARTIAL) {
        c->columns = layout->columns = pick(&c->random, columns, 3);
        layout->bytes = align_up(KV_CHUNK_TOKENS * layout->columns * sizeof(uint16_t), 64);
        if (random_below(&c->random, 2)) layout->unit_tokens = pick(&c->random, pages, 4);
    } else if (kind == KEY_INDEX_KEYS) {
        layout->aggregate = random_below(&c->random, 2) ? SCORE_MAX : SCORE_SUM;
        if (random_below(&c->random, 2)) layout->unit_tokens = pick(&c->random, pages, 4);
    } else if (kind == KEY_INDEX_MASS) {
        layout->bytes = KV_CHUNK_TOKENS * sizeof(float);
    } else if (kind == KEY_INDEX_TREE) {
        layout->unit_tokens = pick(&c->random, pages, 4);
        tree_layout_init(&layout->tree, layout->unit_tokens, c->kv.k_dimension,
                         random_below(&c->random, 2) ? TREE_BOUND : TREE_MEAN_DEVIATION, false);
        layout->bytes = layout->tree.bytes;
        layout->tree.aggregate = c->seed % 5 == 1 ? SCORE_SUM : SCORE_MAX;
    }
    if (c->seed % 5 >= 3 && kind != KEY_INDEX_MASS && kind != KEY_INDEX_NONE) {
        layout->aggregate = SCORE_SOFTMAX;
        layout->use_norms = true;
    }
}

static void sequence_init(struct select_case *c, struct sequence_case *sequence,
                          const struct kernels *kernels) {
    static const uint64_t lengths[] = {3000, 700, 700, 200};
    sequence->length = 1 + random_below(&c->random, lengths[random_below(&c->random, 4)]);
    if (c->is_long) sequence->length += LONG;
    if (c->picks_few && !c->is_long) sequence->length += LONG / 5;
    sequence->chunks = calloc(c->kv_heads * CHUNKS_MAX, sizeof *sequence->chunks);
    sequence->key_index = calloc(c->kv_heads * CHUNKS_MAX, sizeof *sequence->key_index);
    float key[128], value[128];
    for (size_t head = 0; head < c->kv_heads; head++)
        for (uint64_t t = 0; t < sequence->length; t++) {
            size_t chunk = head * CHUNKS_MAX + t / KV_CHUNK_TOKENS;
            if (t % KV_CHUNK_TOKENS == 0) {
                sequence->chunks[chunk] = aligned_alloc(64, c->kv.chunk_bytes);
                memset(sequence->chunks[chunk], 0, c->kv.chunk_bytes);
                sequence->key_index[chunk] = aligned_alloc(64, max_size(c->layout.bytes, 64));
                memset(sequence->key_index[chunk], 0xa5,
                       max_size(c->layout.bytes, 64)); /* as somebody before may have left it */
            }
            for (size_t d = 0; d < c->kv.k_dimension; d++) key[d] = random_bell(&c->random);
            for (size_t d = 0; d < c->kv.v_dimension; d++) value[d] = random_bell(&c->random);
            kernels->attention.store(&c->kv, sequence->chunks[chunk], t % KV_CHUNK_TOKENS, key, value);
        }
}

static void item_init(struct select_case *c, size_t row) {
    struct sequence_case *sequence = &c->sequences[row];
    size_t unit = c->layout.unit_tokens;
    uint64_t length = sequence->length, sinks = align_up(random_below(&c->random, 9), unit);
    uint64_t end = length - random_below(&c->random, length + 1);
    struct select_item *item = &c->items[row];
    const struct addresses addresses = {.chunks = sequence->chunks,
                                        .key_index = sequence->key_index,
                                        .heads = c->kv_heads,
                                        .stride = CHUNKS_MAX};
    *item = (struct select_item){
        .view = placed_view(&sequence->placed, &c->kv, &addresses), .row = row, .position = length - 1};
    end = end / unit * unit;
    if (end <= sinks) return; /* everything, without candidates */
    item->candidate_begin = sinks;
    item->candidate_end = end;
    uint64_t units = (end - sinks) / unit;
    item->picks = c->picks[row];
    for (size_t head = 0; head < c->kv_heads; head++) {
        bool extreme = random_below(&c->random, 4) == 0, like_first = head > 0 && random_below(&c->random, 2);
        uint64_t picks =
            (extreme ? units * random_below(&c->random, 2) : random_below(&c->random, units + 1)) * unit;
        if (c->layout.kind == KEY_INDEX_NONE && picks < end - sinks) picks = 0;
        if (c->picks_few && units > FEW_OF && head % 2 == 0)
            picks = units / FEW_OF * unit; /* few enough to look into the best chunks alone */
        c->picks[row][head] = like_first ? c->picks[row][0] : picks;
        if (select_item_kept(item, head) == 0) c->picks[row][head] = end - sinks; /* a list has a row */
    }
}

static void case_init(struct select_case *c, const struct fixture *fixture, uint64_t seed,
                      enum key_index_kind kind) {
    static const size_t dimensions[] = {16, 32, 64, 128}, groups[] = {1, 2, 3, 4, 7, 8};
    *c = (struct select_case){.seed = seed, .scale = 0.3F, .picks_few = seed < 30};
    random_init(&c->random, seed);
    size_t k_dimension = pick(&c->random, dimensions, 4), v_dimension = pick(&c->random, dimensions, 4);
    bool q8_keys = seed % 2 == 1 && k_dimension % KV_SCALE_GROUP == 0 && kind != KEY_INDEX_KEYS;
    enum kv_type k_type = q8_keys ? KV_Q8 : KV_F16;
    enum kv_type v_type = seed % 3 == 1 && v_dimension % KV_SCALE_GROUP == 0 ? KV_Q8 : KV_F16;
    kv_layout_init(&c->kv, k_type, v_type, k_dimension, v_dimension);
    c->is_long = seed % 8 == 5;
    c->kv_heads = c->is_long ? 1 : 1 + random_below(&c->random, 3);
    c->group = pick(&c->random, groups, 6);
    c->row_count = c->is_long ? 1 : 1 + random_below(&c->random, ROWS_MAX);
    layout_init(c, kind);
    size_t heads = c->kv_heads * c->group, weights = c->kv_heads * c->kv.k_dimension * c->columns;
    c->weights = calloc(weights + 1, sizeof *c->weights);
    for (size_t i = 0; i < weights; i++) c->weights[i] = float_to_half((float)random_normal(&c->random));
    c->q = calloc(c->row_count * heads * c->kv.k_dimension, sizeof *c->q);
    for (size_t i = 0; i < c->row_count * heads * c->kv.k_dimension; i++)
        c->q[i] = (float)random_normal(&c->random);
    for (size_t i = 0; i < c->row_count; i++) {
        sequence_init(c, &c->sequences[i], &fixture->kernels[1]);
        item_init(c, i);
    }
}

static void case_deinit(struct select_case *c) {
    for (size_t i = 0; i < c->row_count; i++) {
        for (size_t j = 0; j < c->kv_heads * CHUNKS_MAX; j++) {
            free(c->sequences[i].chunks[j]);
            free(c->sequences[i].key_index[j]);
        }
        free(c->sequences[i].chunks), free(c->sequences[i].key_index);
        placed_free(&c->sequences[i].placed);
    }
    free(c->weights), free(c->q);
}

/* ---- running ---- */

/* In two parts, the second over rows that the first has built already. */
static void build(const struct select_case *c, const struct fixture *fixture, size_t device) {
    for (size_t i = 0; i < c->row_count; i++) {
        uint64_t length = c->sequences[i].length, half = length / 2;
        struct attend_item items[2] = {
            {.view = c->items[i].view, .row_count = length},
            {.view = c->items[i].view, .row_count = length - half, .position_first = half}};
        for (size_t part = 0; part < 2; part++)
            fixture->devices[device]->operations->key_index_build(
                fixture->streams[device],
                &(struct key_index_build_operation){.layout = &c->layout,
                                                    .weights = host_span(c->weights),
                                                    .kv_head_count = c->kv_heads,
                                                    .items = &items[part],
                                                    .item_count = 1});
    }
}

/* As if steps had been: some values are equal. */
static void receive_mass(const struct select_case *c) {
    struct random random;
    random_init(&random, c->seed);
    for (size_t i = 0; i < c->row_count && c->layout.kind == KEY_INDEX_MASS; i++)
        for (size_t head = 0; head < c->kv_heads; head++)
            for (uint64_t t = 0; t < c->sequences[i].length; t++)
                ((float *)c->sequences[i]
                     .key_index[head * CHUNKS_MAX + t / KV_CHUNK_TOKENS])[t % KV_CHUNK_TOKENS] =
                    (float)random_below(&random, 50);
}

static struct selection whole_operation(const struct select_case *c) {
    size_t heads = c->kv_heads * c->group;
    return (struct selection){.q = c->q,
                              .q_stride = heads * c->kv.k_dimension,
                              .out_stride = heads * c->kv.v_dimension,
                              .head_count = heads,
                              .kv_head_count = c->kv_heads,
                              .scale = c->scale,
                              .sinks = c->sinks,
                              .layout = &c->layout,
                              .weights = c->weights,
                              .items = c->items,
                              .item_count = c->row_count};
}

/* A tree is searched from another level by each device: what is chosen is the same. */
static void launch(const struct fixture *fixture, size_t device, const struct selection *operation) {
    struct selection own = *operation;
    struct tree_counts counts = {0};
    const enum tree_level leaf = operation->layout->tree.leaf;
    own.tree_start = leaf + (enum tree_level)(device + 3) % (tree_top(leaf) + 1 - leaf);
    own.tree_counts = &counts;
    selection_run(&own, fixture->devices[device], fixture->streams[device]);
    uint64_t evaluated = 0;
    for (size_t level = 0; level < TREE_LEVEL_COUNT; level++) evaluated += counts.evaluated[level];
    assert_true((counts.searches > 0) == (evaluated > 0));
    if (own.tree_start == leaf) assert_int_equal(evaluated, counts.leaves);
}

static void run(const struct select_case *c, const struct fixture *fixture, size_t device, size_t first,
                size_t count, float *out, uint32_t *chosen, size_t stride) {
    struct selection operation = whole_operation(c);
    operation.out = out;
    operation.items += first;
    operation.item_count = count;
    operation.chosen = chosen;
    operation.stride = stride;
    launch(fixture, device, &operation);
}

/* ---- checking ---- */

/* Estimates of the sum over queries of q . k. */
static void score_levels(const struct select_case *c, const struct kernels *kernels, const uint16_t *weights,
                         const float *q, size_t group, const void *const *blocks, uint64_t begin,
                         uint64_t end, float *scores) {
    const size_t dimension = c->kv.k_dimension;
    _Alignas(64) static uint8_t query[1 << 16];
    float sum[LEVEL_DIMENSION_MAX] = {0}, rotated[LEVEL_DIMENSION_MAX];
    for (size_t head = 0; head < group; head++) {
        kernels->project.rows(&(struct project_args){weights, dimension, dimension, q + head * dimension,
                                                     dimension, 1, rotated, NULL, dimension});
        for (size_t j = 0; j < dimension; j++) sum[j] += rotated[j];
    }
    level_prepare(&c->layout.level, sum, query);
    kernels->level.score(
        &(struct level_score_args){&c->layout.level, blocks, begin, end, query, 1, scores, 0, NULL});
}

/* Scores of all candidates by `group` query heads from `first` on, in one call of the kernel. */
static void score_all(const struct select_case *c, const struct kernels *kernels,
                      const struct select_item *item, size_t head, size_t first, size_t group,
                      float *scores) {
    const float *q = c->q + ((item->row * c->kv_heads + head) * c->group + first) * c->kv.k_dimension;
    const struct sequence_case *sequence = &c->sequences[item - c->items];
    const void *const *blocks = (const void *const *)(sequence->key_index + head * CHUNKS_MAX);
    const uint16_t *weights = c->weights + head * c->kv.k_dimension * c->columns;
    uint64_t begin = item->candidate_begin, end = item->candidate_end;
    size_t unit = c->layout.unit_tokens;
    _Alignas(64) static uint8_t scratch[1 << 20];
    uint8_t codes[64 * HASH_CODE_BYTES_MAX];
    float projected[64 * 24];
    switch (c->layout.kind) {
    case KEY_INDEX_NONE:
    case KEY_INDEX_CLUSTER: break; /* test_cpu_cluster.c */
    case KEY_INDEX_PRODUCT: break; /* test_cpu_product.c */
    case KEY_INDEX_NESTED: break;  /* test_nested.c */
    case KEY_INDEX_ABSTRACT:
        kernels->abstract.score(&(struct abstract_score_args){
            &c->layout.abstract, c->layout.abstract_kind, c->layout.aggregate, blocks,
            begin / c->layout.abstract.page_tokens, end / c->layout.abstract.page_tokens, q,
            c->kv.k_dimension, group, scores, scratch, NULL});
        break;
    case KEY_INDEX_HASH:
        kernels->hash.encode(&(struct hash_encode_args){weights, c->kv.k_dimension, c->columns, q,
                                                        c->kv.k_dimension, group, codes, NULL});
        kernels->hash.score(&(struct hash_score_args){&c->layout.hash, blocks, begin, end, codes, group,
                                                      c->layout.use_norms, scores, scratch, NULL});
        break;
    case KEY_INDEX_LEVEL: score_levels(c, kernels, weights, q, group, blocks, begin, end, scores); break;
    case KEY_INDEX_PARTIAL:
        kernels->project.rows(&(struct project_args){weights, c->kv.k_dimension, c->columns, q,
                                                     c->kv.k_dimension, group, projected, NULL, c->columns});
        kernels->score.rows(&(struct score_args){blocks, 0, KV_CHUNK_TOKENS, c->columns, begin, end,
                                                 projected, c->columns, group, c->layout.aggregate, scores,
                                                 scratch, NULL});
        break;
    case KEY_INDEX_TREE: { /* every leaf */
        float query[2 * 8 * 2 * 128];
        tree_query(&c->layout.tree, q, c->kv.k_dimension, group, query);
        tree_score(&kernels->score,
                   &(struct tree_score_args){&c->layout.tree, c->layout.tree.leaf, blocks, begin / unit,
                                             end / unit, query, group, scores, scratch});
        break;
    }
    case KEY_INDEX_KEYS: /* one by one: the sum of a row does not depend on what else is scored */
        for (uint64_t t = begin; t < end; t++) {
            const void *chunk = sequence->chunks[head * CHUNKS_MAX + t / KV_CHUNK_TOKENS];
            const void *key = kv_k_row(&c->kv, chunk, t % KV_CHUNK_TOKENS);
            kernels->score.rows(&(struct score_args){&key, 0, 1, c->kv.k_dimension, 0, 1, q,
                                                     c->kv.k_dimension, group, c->layout.aggregate,
                                                     &scores[t - begin], scratch, NULL});
        }
        break;
    case KEY_INDEX_MASS:
        for (uint64_t t = begin; t < end; t++)
            scores[t - begin] = ((const float *)blocks[t / KV_CHUNK_TOKENS])[t % KV_CHUNK_TOKENS];
        break;
    }
}

struct ranked {
    float score;
    uint32_t index;
};
static int by_rank(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->index < y->index ? -1 : 1;
}
static int by_index(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* What a score of a query head lacks to be q . k. */
static float logit_scale(const struct select_case *c, const struct select_item *item, size_t head,
                         size_t query) {
    const float *q = c->q + ((item->row * c->kv_heads + head) * c->group + query) * c->kv.k_dimension;
    double squares = 0;
    for (size_t d = 0; d < c->kv.k_dimension; d++) squares += (double)q[d] * (double)q[d];
    return c->layout.kind == KEY_INDEX_HASH ? (float)sqrt(squares) : 1;
}

static size_t looking; /* heads that look into their best chunks alone */

/* Gives a score to units whose chunks a KV head does not look into (look.h). */
static void leave_out(const struct select_case *c, const struct kernels *kernels, const struct select_item *item,
                      size_t head, size_t queries, size_t units, float *of_units, float score) {
    enum { QUERY = 1216, MOST = 8 };
    const struct choose_operation operation = {.layout = &c->layout, .alpha = c->alpha};
    const size_t looks = choose_looks(&operation, item, head), dimension = c->kv.k_dimension;
    const void *const *blocks =
        (const void *const *)(c->sequences[item - c->items].key_index + head * CHUNKS_MAX);
    const float *q = c->q + (item->row * c->kv_heads + head) * c->group * dimension;
    _Alignas(64) static uint8_t prepared[MOST * QUERY];
    const uint64_t first = (item->candidate_begin + 63) / 64, last = item->candidate_end / 64;
    float scores[MOST * CHUNKS_MAX], scales[MOST];
    if (looks == 0) return;
    looking++;
    for (size_t query = 0; query < c->group; query++) {
        float rotated[LEVEL_DIMENSION_MAX];
        kernels->project.rows(&(struct project_args){c->weights + head * dimension * dimension, dimension, dimension,
                                                     q + query * dimension, dimension, 1, rotated, NULL, dimension});
        level_prepare(&c->layout.level, rotated, prepared + query * level_query_bytes(&c->layout.level));
        scales[query] = c->scale;
    }
    kernels->level.chunks(&(struct level_chunks_args){&c->layout.level, blocks + first, (size_t)(last - first),
                                                      prepared, q, dimension, c->group, scores, CHUNKS_MAX});
    kernels->group.softmax(
        &(struct group_softmax_args){scores, CHUNKS_MAX, c->group, (size_t)(last - first), scales});
    for (uint64_t chunk = first; chunk < last; chunk++) {
        size_t better = 0;
        for (uint64_t other = first; other < last; other++)
            better += scores[other - first] > scores[chunk - first] ||
                      (other < chunk && !(scores[other - first] < scores[chunk - first]));
        for (size_t i = 0; better >= looks && i < queries * units; i++)
            if ((item->candidate_begin + i % units * c->layout.unit_tokens) / 64 == chunk) of_units[i] = score;
    }
}

/* One score per unit of a KV head: [queries][units], the group's in the first. */
static float *unit_scores(const struct select_case *c, const struct kernels *kernels,
                          const struct select_item *item, size_t head) {
    size_t unit = c->layout.unit_tokens, units = (item->candidate_end - item->candidate_begin) / unit;
    size_t scored = unit / key_index_scored_tokens(&c->layout); /* scores of a unit */
    const size_t queries = c->layout.aggregate == SCORE_SOFTMAX ? c->group : 1;
    float *scores = calloc(units * scored + 1, sizeof *scores), scales[8];
    float *of_units = calloc(queries * units + 1, sizeof *of_units);
    for (size_t query = 0; query < queries; query++) {
        if (select_item_picks(item, head) > 0 && c->layout.kind != KEY_INDEX_NONE)
            score_all(c, kernels, item, head, query, c->group / queries, scores);
        for (size_t i = 0; i < units; i++) {
            float *best = &of_units[query * units + i];
            *best = scores[i * scored];
            for (size_t t = 1; t < scored; t++) *best = fmaxf(*best, scores[i * scored + t]);
        }
        scales[query] = c->scale * logit_scale(c, item, head, query);
    }
    leave_out(c, kernels, item, head, queries, units, of_units, -1e30F); /* of no weight */
    if (queries > 1 || c->layout.aggregate == SCORE_SOFTMAX)
        kernels->group.softmax(&(struct group_softmax_args){of_units, units, queries, units, scales});
    leave_out(c, kernels, item, head, 1, units, of_units, -1); /* behind those whose weight is 0 */
    free(scores);
    return of_units;
}

static size_t expected_rows(const struct select_case *c, const struct kernels *kernels,
                            const struct select_item *item, size_t head, uint32_t *rows) {
    size_t unit = c->layout.unit_tokens, units = (item->candidate_end - item->candidate_begin) / unit,
           count = 0;
    float *of_units = unit_scores(c, kernels, item, head);
    struct ranked *ranked = calloc(units + 1, sizeof *ranked);
    for (size_t i = 0; i < units; i++) ranked[i] = (struct ranked){of_units[i], (uint32_t)i};
    qsort(ranked, units, sizeof *ranked, by_rank);
    for (uint64_t t = 0; t < item->candidate_begin; t++) rows[count++] = (uint32_t)t;
    for (size_t i = 0; i < select_item_picks(item, head) / unit; i++)
        for (size_t t = 0; t < unit; t++)
            rows[count++] = (uint32_t)(item->candidate_begin + ranked[i].index * unit + t);
    for (uint64_t t = item->candidate_end; t <= item->position; t++) rows[count++] = (uint32_t)t;
    qsort(rows, count, sizeof *rows, by_index);
    free(ranked), free(of_units);
    return count;
}

/* softmax(scale q . k) v over the rows, in double: of each query head of the group, [group][128]. */
static void expected_output(const struct select_case *c, const struct kernels *kernels,
                            const struct select_item *item, size_t head, const uint32_t *rows, size_t count,
                            double out[][128]) {
    const float *q = c->q + (item->row * c->kv_heads + head) * c->group * c->kv.k_dimension;
    void *const *chunks = c->sequences[item - c->items].chunks + head * CHUNKS_MAX;
    double *scores = calloc(c->group * count, sizeof *scores), top[8], sum[8] = {0};
    float key[128], value[128];
    for (size_t query = 0; query < c->group; query++) top[query] = -INFINITY;
    memset(out, 0, c->group * sizeof *out);
    for (size_t pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < count; i++) {
            kernels->attention.load(&c->kv, chunks[rows[i] / KV_CHUNK_TOKENS], rows[i] % KV_CHUNK_TOKENS, key,
                                    value);
            for (size_t query = 0; query < c->group; query++) {
                double *score = &scores[query * count + i];
                if (pass == 0) {
                    for (size_t d = 0; d < c->kv.k_dimension; d++)
                        *score += (double)q[query * c->kv.k_dimension + d] * (double)key[d] * (double)c->scale;
                    top[query] = fmax(top[query], *score);
                    continue;
                }
                const double weight = exp(*score - top[query]);
                sum[query] += weight;
                for (size_t d = 0; d < c->kv.v_dimension; d++) out[query][d] += weight * (double)value[d];
            }
        }
    for (size_t query = 0; query < c->group; query++)
        for (size_t d = 0; d < c->kv.v_dimension; d++) out[query][d] /= sum[query];
    free(scores);
}

static void check_item(struct select_case *c, const struct kernels *kernels, size_t row, const float *out,
                       const uint32_t *chosen, size_t stride) {
    const struct select_item *item = &c->items[row];
    uint32_t *rows = calloc(item->position + 1, sizeof *rows);
    double expected[8][128]; /* of the largest group */
    for (size_t head = 0; head < c->kv_heads; head++) {
        const uint32_t *found = chosen + (row * c->kv_heads + head) * stride;
        size_t count = expected_rows(c, kernels, item, head, rows);
        assert_int_equal(count, select_item_kept(item, head));
        for (size_t i = 0; i < count; i++)
            if (found[i] != rows[i])
                fail_msg("seed %llu, kind %d, row %zu, head %zu: number %zu of %zu is token %u, expected %u",
                         (unsigned long long)c->seed, (int)c->layout.kind, row, head, i, count, found[i],
                         rows[i]);
        expected_output(c, kernels, item, head, rows, count, expected);
        for (size_t query = 0; query < c->group; query++) {
            const float *o = out + ((row * c->kv_heads + head) * c->group + query) * c->kv.v_dimension;
            for (size_t d = 0; d < c->kv.v_dimension; d++)
                c->worst =
                    fmax(c->worst, fabs((double)o[d] - expected[query][d]) / 4); /* values are about 4 at most */
        }
    }
    free(rows);
}

static double check_case(const struct fixture *fixture, uint64_t seed, enum key_index_kind kind) {
    struct select_case c;
    case_init(&c, fixture, seed, kind);
    uint64_t stride = 0;
    for (size_t i = 0; i < c.row_count; i++)
        stride = max_size(stride, select_item_kept_max(&c.items[i], c.kv_heads));
    size_t out_size = c.row_count * c.kv_heads * c.group * c.kv.v_dimension;
    size_t chosen_size = c.row_count * c.kv_heads * stride;
    float *out = calloc(out_size, sizeof *out), *first = calloc(out_size, sizeof *first);
    uint32_t *chosen = calloc(chosen_size, sizeof *chosen), *first_chosen = calloc(chosen_size, sizeof *chosen);
    for (size_t device = 0; device < DEVICES; device++) {
        build(&c, fixture, device);
        receive_mass(&c);
        run(&c, fixture, device, 0, c.row_count, out, chosen, stride);
        for (size_t i = 0; i < c.row_count && device < 2; i++)
            check_item(&c, &fixture->kernels[device], i, out, chosen, stride);
        if (device == 1) memcpy(first, out, out_size * sizeof *out);
        if (device == 1) memcpy(first_chosen, chosen, chosen_size * sizeof *chosen);
        if (device > 1) assert_memory_equal(out, first, out_size * sizeof *out);
        if (device > 1) assert_memory_equal(chosen, first_chosen, chosen_size * sizeof *chosen);
    }
    memset(out, 0, out_size * sizeof *out);
    for (size_t i = 0; i < c.row_count; i++) run(&c, fixture, 2, i, 1, out, NULL, 0); /* each alone */
    assert_memory_equal(out, first, out_size * sizeof *out);
    double worst = c.worst;
    free(out), free(first), free(chosen), free(first_chosen);
    case_deinit(&c);
    return worst;
}

static void the_best_rows_are_attended(void **state) {
    (void)state;
    struct fixture fixture;
    open_devices(&fixture);
    uint64_t seed = test_seed(20261121);
    double worst = 0;
    for (size_t round = 0; round < ROUNDS; round++)
        for (enum key_index_kind kind = KEY_INDEX_NONE; kind <= KEY_INDEX_KEYS; kind++)
            if (test_takes(seed, round * (KEY_INDEX_KEYS + 1) + kind))
                worst = fmax(worst, check_case(&fixture, seed + round, kind));
    printf("output: %.2e\n", worst);
    assert_true(worst <= output_bound);
    device_variants_close(fixture.devices, fixture.streams, DEVICES);
}

/* Rows of which some KV heads look into their best chunks alone, whatever the seed. */
static void few_chunks_are_looked_into(void **state) {
    (void)state;
    struct fixture fixture;
    const size_t before = looking;
    open_devices(&fixture);
    static const uint64_t seeds[] = {3, 8, 28, 29}; /* of a softmax, the last of a long row */
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        assert_true(check_case(&fixture, seeds[i], KEY_INDEX_LEVEL) <= output_bound);
    assert_true(looking - before > 40);
    device_variants_close(fixture.devices, fixture.streams, DEVICES);
}

/* Units of a KV head whose score is within alpha of the best, as attention has its scores. */
static size_t near_count(const struct select_case *c, const struct kernels *kernels,
                         const struct select_item *item, size_t head, double alpha) {
    const size_t units = (item->candidate_end - item->candidate_begin) / c->layout.unit_tokens;
    float *scores = unit_scores(c, kernels, item, head);
    double greatest = -INFINITY;
    size_t count = 0;
    for (size_t i = 0; i < units; i++) greatest = fmax(greatest, (double)scores[i]);
    for (size_t i = 0; i < units; i++)
        count += c->layout.aggregate == SCORE_SOFTMAX
                     ? log(greatest / (double)scores[i]) <= alpha
                     : (greatest - (double)scores[i]) * (double)c->scale <= alpha;
    free(scores);
    return count;
}

/* With alpha each KV head of a row takes the mean of what is near, and what it takes is still the best. */
static void no_more_than_are_near(void **state) {
    (void)state;
    static const enum key_index_kind kinds[] = {KEY_INDEX_LEVEL, KEY_INDEX_PARTIAL, KEY_INDEX_KEYS};
    static const float alphas[] = {0.01f, 0.5f, 2, 5, 90};
    struct fixture fixture;
    open_devices(&fixture);
    const uint64_t seed = test_seed(20261121);
    static const double limit_rounding = 2e-6; /* of a float, in nats */
    size_t fewer = 0, allowed = 0, at_limit = 0, checked = 0;
    for (size_t round = 0; round < 2 * ROUNDS; round++) {
        if (!test_takes(seed, round)) continue;
        struct select_case c;
        case_init(&c, &fixture, seed + round, kinds[round % 3]);
        c.layout.aggregate = round % 2 ? SCORE_MAX : SCORE_SOFTMAX;
        if (kinds[round % 3] == KEY_INDEX_LEVEL) c.layout.aggregate = SCORE_SOFTMAX;
        for (size_t kernels = 0; kernels < 2; kernels++) {
            const size_t heads = c.kv_heads, device = kernels == 0 ? 0 : 1 + round / 3 % (DEVICES - 1);
            const float alpha = c.alpha = alphas[round / 3 % 5];
            struct row_list lists[ROWS_MAX * 3];
            uint64_t kept_sum = 0, own[ROWS_MAX][3];
            build(&c, &fixture, device);
            for (size_t i = 0; i < c.row_count; i++)
                for (size_t head = 0; head < heads; head++) kept_sum += select_item_kept(&c.items[i], head);
            uint32_t *rows = calloc(kept_sum + 1, sizeof *rows),
                     *expected = calloc(CHUNKS_MAX * 64, sizeof *expected);
            fixture.devices[device]->operations->choose(
                fixture.streams[device],
                &(struct choose_operation){.q = host_span(c.q),
                                           .q_stride = heads * c.group * c.kv.k_dimension,
                                           .head_count = heads * c.group,
                                           .kv_head_count = heads,
                                           .scale = c.scale,
                                           .layout = &c.layout,
                                           .weights = host_span(c.weights),
                                           .alpha = alpha,
                                           .items = c.items,
                                           .item_count = c.row_count,
                                           .rows = host_span(rows),
                                           .lists = lists});
            memcpy(own, c.picks, sizeof own);
            for (size_t i = 0; i < c.row_count; i++) {
                const struct select_item *item = &c.items[i];
                const uint64_t candidates = item->candidate_end - item->candidate_begin;
                checked++;
                size_t sum = 0, sum_most = 0, choosing = 0;
                for (size_t head = 0; head < heads; head++)
                    if (own[i][head] > 0 && own[i][head] < candidates) {
                        sum += near_count(&c, &fixture.kernels[kernels], item, head, (double)alpha - limit_rounding);
                        sum_most +=
                            near_count(&c, &fixture.kernels[kernels], item, head, (double)alpha + limit_rounding);
                        choosing++;
                    }
                if (sum != sum_most) { /* a score at the limit is near or not, as that is rounded */
                    at_limit++;
                    continue;
                }
                for (size_t head = 0; head < heads; head++) {
                    const uint64_t unit = c.layout.unit_tokens;
                    if (own[i][head] > 0 && own[i][head] < candidates) {
                        const uint64_t near = max_size((sum + choosing / 2) / choosing, 1);
                        fewer += near < own[i][head] / unit;
                        allowed += near >= own[i][head] / unit;
                        if (near < own[i][head] / unit) c.picks[i][head] = near * unit;
                    }
                    const struct row_list *list = &lists[i * heads + head];
                    const size_t count = expected_rows(&c, &fixture.kernels[kernels], item, head, expected);
                    assert_int_equal(list->count, count);
                    assert_memory_equal(row_list_host(list), expected, count * sizeof *expected);
                    c.picks[i][head] = own[i][head];
                }
            }
            free(rows), free(expected);
        }
        case_deinit(&c);
    }
    printf("%zu of %zu lists had a score at the limit\n", at_limit, checked);
    assert_met(fewer > 10 && allowed > 10 && at_limit * 20 < checked);
    device_variants_close(fixture.devices, fixture.streams, DEVICES);
}

static void all_rows_are_dense_attention(void **state) {
    (void)state;
    test_skip_part();
    struct fixture fixture;
    open_devices(&fixture);
    for (uint64_t seed = 1; seed <= 25; seed++) {
        struct select_case c;
        case_init(&c, &fixture, seed, (enum key_index_kind)(seed % 6));
        size_t heads = c.kv_heads * c.group, out_size = c.row_count * heads * c.kv.v_dimension;
        float *dense = calloc(out_size, sizeof *dense), *out = calloc(out_size, sizeof *out);
        struct attend_item items[ROWS_MAX];
        float sinks[256];
        assert_true(heads <= sizeof sinks / sizeof *sinks);
        for (size_t i = 0; i < heads; i++) sinks[i] = (float)(4 * random_normal(&c.random));
        if (seed % 2 == 0) c.sinks = sinks;
        build(&c, &fixture, 0);
        for (size_t i = 0; i < c.row_count; i++) {
            for (size_t head = 0; head < c.kv_heads; head++)
                c.picks[i][head] = c.items[i].candidate_end - c.items[i].candidate_begin;
            items[i] = (struct attend_item){.view = c.items[i].view,
                                            .row_first = i,
                                            .row_count = 1,
                                            .position_first = c.items[i].position};
        }
        fixture.devices[0]->operations->attend(
            fixture.streams[0], &(struct attend_operation){.q = host_span(c.q),
                                                           .q_stride = heads * c.kv.k_dimension,
                                                           .out = host_span(dense),
                                                           .out_stride = heads * c.kv.v_dimension,
                                                           .head_count = heads,
                                                           .kv_head_count = c.kv_heads,
                                                           .scale = c.scale,
                                                           .sinks = host_span(c.sinks),
                                                           .items = items,
                                                           .item_count = c.row_count});
        run(&c, &fixture, 0, 0, c.row_count, out, NULL, 0);
        assert_memory_equal(out, dense, out_size * sizeof *out);
        free(dense), free(out);
        case_deinit(&c);
    }
    device_variants_close(fixture.devices, fixture.streams, DEVICES);
}

/* H2O: a step adds the probabilities of its rows to their mass, times the weight; the next step ranks by them. */
static void mass_is_what_was_received(void **state) {
    (void)state;
    test_skip_part();
    struct fixture fixture;
    open_devices(&fixture);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct select_case c;
        case_init(&c, &fixture, seed, KEY_INDEX_MASS);
        const struct select_item *item = &c.items[0];
        size_t stride = select_item_kept_max(item, c.kv_heads);
        uint32_t *chosen = calloc(c.kv_heads * stride, sizeof *chosen);
        build(&c, &fixture, 2);
        struct selection operation = whole_operation(&c);
        operation.mass_weight = 16;
        operation.item_count = 1;
        operation.chosen = chosen;
        operation.stride = stride;
        launch(&fixture, 2, &operation);
        for (size_t head = 0; head < c.kv_heads; head++) {
            double total = 0;
            size_t next = 0, kept = select_item_kept(item, head);
            for (uint64_t t = 0; t < c.sequences[0].length; t++) {
                const float *block = c.sequences[0].key_index[head * CHUNKS_MAX + t / KV_CHUNK_TOKENS];
                bool was_chosen = next < kept && chosen[head * stride + next] == t;
                if (was_chosen)
                    next++;
                else
                    assert_true(block[t % KV_CHUNK_TOKENS] == 0);
                total += (double)block[t % KV_CHUNK_TOKENS];
            }
            assert_int_equal(next, kept);
            assert_true(fabs(total - 16.0 * (double)c.group) < 1e-3 * (double)c.group);
        }
        free(chosen);
        case_deinit(&c);
    }
    device_variants_close(fixture.devices, fixture.streams, DEVICES);
}

/* ---- in parts ---- */

enum { UNWRITTEN = 0x5eed5eed };

struct parts {
    struct select_case c;
    const struct fixture *fixture;
    size_t device, entries; /* entries: (row, KV head) pairs */
    size_t stride, out_size;
    float mass_weight;
    float *whole, *out;       /* [row_count][heads][v_dimension] */
    uint32_t *chosen, *lists; /* [row_count][kv_heads][stride]: of the whole, of the part that chooses */
    float *mass;              /* [row_count][kv_heads][CHUNKS_MAX][64] after the whole; KEY_INDEX_MASS */
    void **chunks;            /* [row_count][kv_heads][CHUNKS_MAX]: only what the lists name */
    struct placed placed;     /* chunks, from chunks_of_lists on */
    struct kv_pools pools[ROWS_MAX];
    uint32_t *none;            /* [kv_heads][CHUNKS_MAX]: nowhere */
    struct select_item *items; /* [entries] */
};

static float *mass_of(const struct parts *p, size_t row, size_t entry) {
    return p->mass + (row * p->c.kv_heads * CHUNKS_MAX + entry) * KV_CHUNK_TOKENS;
}

/* Keeps the key index, or compares it with the one that was kept. */
static void each_mass(const struct parts *p, bool keep) {
    const struct select_case *c = &p->c;
    for (size_t row = 0; row < c->row_count && c->layout.kind == KEY_INDEX_MASS; row++)
        for (size_t i = 0; i < c->kv_heads * CHUNKS_MAX; i++) {
            float *block = c->sequences[row].key_index[i], *kept = mass_of(p, row, i);
            if (block == NULL) continue;
            if (keep)
                memcpy(kept, block, KV_CHUNK_TOKENS * sizeof *kept);
            else
                assert_memory_equal(kept, block, KV_CHUNK_TOKENS * sizeof *kept);
        }
}

/* Only the chunks of the lists exist, and their other rows are overwritten. */
static void chunks_of_lists(struct parts *p) {
    const struct select_case *c = &p->c;
    for (size_t entry = 0; entry < p->entries; entry++) {
        const struct select_item *item = &c->items[entry / c->kv_heads];
        const uint32_t *list = p->chosen + entry * p->stride;
        void *const *from = c->sequences[entry / c->kv_heads].chunks + entry % c->kv_heads * CHUNKS_MAX;
        void **to = p->chunks + entry * CHUNKS_MAX;
        size_t next = 0, kept = select_item_kept(item, entry % c->kv_heads);
        for (size_t i = 0; i < CHUNKS_MAX; i++) {
            if (next == kept || list[next] / KV_CHUNK_TOKENS != i) continue;
            to[i] = aligned_alloc(64, c->kv.chunk_bytes);
            memcpy(to[i], from[i], c->kv.chunk_bytes);
            for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) {
                bool listed = next < kept && list[next] == i * KV_CHUNK_TOKENS + t;
                next += listed;
                if (listed) continue;
                memset((void *)(uintptr_t)kv_k_row(&c->kv, to[i], t), 0xff, c->kv.k_row_bytes);
                memset((void *)(uintptr_t)kv_v_row(&c->kv, to[i], t), 0xff, c->kv.v_row_bytes);
            }
        }
    }
    placed_table(&p->placed, POOL_ROWS, p->chunks, p->entries * CHUNKS_MAX);
}

static void parts_init(struct parts *p, const struct fixture *fixture, uint64_t seed,
                       enum key_index_kind kind) {
    *p = (struct parts){.fixture = fixture, .device = seed % DEVICES};
    struct select_case *c = &p->c;
    case_init(c, fixture, seed, kind);
    p->entries = c->row_count * c->kv_heads;
    for (size_t i = 0; i < c->row_count; i++)
        p->stride = max_size(p->stride, select_item_kept_max(&c->items[i], c->kv_heads));
    p->stride += random_below(&c->random, 20);
    p->mass_weight = kind == KEY_INDEX_MASS && seed % 3 != 0 ? 2 : 0;
    p->out_size = p->entries * c->group * c->kv.v_dimension;
    p->whole = calloc(p->out_size, sizeof *p->whole);
    p->out = calloc(p->out_size, sizeof *p->out);
    p->chosen = calloc(p->entries * p->stride + 1, sizeof *p->chosen);
    p->lists = calloc(p->entries * p->stride + 1, sizeof *p->lists);
    for (size_t i = 0; i < p->entries * p->stride; i++) p->chosen[i] = p->lists[i] = UNWRITTEN;
    p->mass = calloc(p->entries * CHUNKS_MAX * KV_CHUNK_TOKENS, sizeof *p->mass);
    p->chunks = calloc(p->entries * CHUNKS_MAX, sizeof *p->chunks);
    p->none = calloc(c->kv_heads * CHUNKS_MAX, sizeof *p->none);
    p->items = calloc(p->entries, sizeof *p->items);
}

static void parts_deinit(struct parts *p) {
    for (size_t i = 0; i < p->entries * CHUNKS_MAX; i++) free(p->chunks[i]);
    free(p->whole), free(p->out), free(p->chosen), free(p->lists), free(p->mass);
    free(p->chunks), free(p->none), free(p->items);
    placed_free(&p->placed);
    case_deinit(&p->c);
}

static void check_lists(struct parts *p) {
    struct selection operation = whole_operation(&p->c);
    struct select_item items[ROWS_MAX];
    for (size_t i = 0; i < p->c.row_count; i++) {
        items[i] = p->c.items[i];
        if (p->c.layout.kind == KEY_INDEX_KEYS) continue; /* scored where they are */
        items[i].view.chunks = host_span(p->none);
    }
    operation.items = items;
    operation.chosen = p->lists;
    operation.stride = p->stride;
    launch(p->fixture, p->device, &operation);
    assert_memory_equal(p->lists, p->chosen, p->entries * p->stride * sizeof *p->lists);
}

/* Of the chunks of the lists, from an entry of the row on; with the key index where mass is added to it. */
static struct kv_view listed_view(struct parts *p, size_t row, size_t entry) {
    struct kv_view view = p->c.items[row].view;
    p->pools[row] = *view.pools;
    p->pools[row].list[POOL_ROWS] = p->placed.pools.list[POOL_ROWS];
    view.pools = &p->pools[row];
    view.chunks = host_span(p->placed.tables[POOL_ROWS] + entry * CHUNKS_MAX);
    if (p->mass_weight == 0) view.key_index = host_span(NULL);
    return view;
}

/* Every KV head of every row an item of its own, in any order, in operations of any size. */
static void attend_by_heads(struct parts *p, struct selection operation) {
    struct select_case *c = &p->c;
    uint32_t *given = calloc(p->entries * p->stride + 1, sizeof *given);
    size_t *order = calloc(p->entries, sizeof *order);
    operation.kv_head_count = 1;
    operation.head_count = c->group;
    operation.q_stride /= c->kv_heads;
    operation.out_stride /= c->kv_heads;
    operation.given = given;
    for (size_t i = 0; i < p->entries; i++) {
        size_t j = random_below(&c->random, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (size_t first = 0, count; first < p->entries; first += count) {
        count = 1 + random_below(&c->random, p->entries - first);
        for (size_t i = 0; i < count; i++) {
            size_t entry = order[first + i];
            struct select_item *item = &p->items[i];
            *item = c->items[entry / c->kv_heads];
            item->row = entry;
            if (item->picks != NULL) item->picks += entry % c->kv_heads;
            item->view = listed_view(p, entry / c->kv_heads, entry);
            if (span_exists(item->view.key_index))
                item->view.key_index =
                    span_behind(item->view.key_index, entry % c->kv_heads * CHUNKS_MAX * sizeof(uint32_t));
            memcpy(given + i * p->stride, p->lists + entry * p->stride, p->stride * sizeof *given);
        }
        operation.items = p->items;
        operation.item_count = count;
        launch(p->fixture, p->device, &operation);
    }
    free(given), free(order);
}

static void attend_at_once(struct parts *p, struct selection operation) {
    for (size_t i = 0; i < p->c.row_count; i++) {
        p->items[i] = p->c.items[i];
        p->items[i].view = listed_view(p, i, i * p->c.kv_heads);
    }
    operation.items = p->items;
    operation.given = p->lists;
    launch(p->fixture, p->device, &operation);
}

static void check_parts(const struct fixture *fixture, uint64_t seed, enum key_index_kind kind) {
    struct parts parts, *p = &parts;
    parts_init(p, fixture, seed, kind);
    struct selection operation = whole_operation(&p->c);
    operation.mass_weight = p->mass_weight;
    operation.softcap = seed % 5 == 0 ? 8 : 0;
    operation.stride = p->stride;
    operation.out = p->whole;
    operation.chosen = p->chosen;
    build(&p->c, fixture, p->device);
    receive_mass(&p->c);
    launch(fixture, p->device, &operation);
    each_mass(p, true);
    chunks_of_lists(p);
    operation.out = p->out;
    operation.chosen = NULL;
    for (size_t by_heads = 0; by_heads < 2; by_heads++) {
        build(&p->c, fixture, p->device);
        receive_mass(&p->c);
        check_lists(p);
        memset(p->out, 0xff, p->out_size * sizeof *p->out);
        (by_heads ? attend_by_heads : attend_at_once)(p, operation);
        if (memcmp(p->out, p->whole, p->out_size * sizeof *p->out) != 0)
            fail_msg("seed %llu, kind %d, by heads %zu: another output", (unsigned long long)seed, (int)kind,
                     by_heads);
        each_mass(p, false);
    }
    parts_deinit(p);
}

static void choosing_and_attending_are_the_whole(void **state) {
    (void)state;
    struct fixture fixture;
    open_devices(&fixture);
    uint64_t seed = test_seed(20261121);
    for (size_t round = 0; round < PARTS_ROUNDS; round++)
        for (enum key_index_kind kind = KEY_INDEX_NONE; kind <= KEY_INDEX_KEYS; kind++)
            if (test_takes(seed, round * (KEY_INDEX_KEYS + 1) + kind))
                check_parts(&fixture, seed + round, kind);
    device_variants_close(fixture.devices, fixture.streams, DEVICES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_rows_are_attended), cmocka_unit_test(few_chunks_are_looked_into),
        cmocka_unit_test(no_more_than_are_near),
        cmocka_unit_test(all_rows_are_dense_attention),         cmocka_unit_test(mass_is_what_was_received),
        cmocka_unit_test(choosing_and_attending_are_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

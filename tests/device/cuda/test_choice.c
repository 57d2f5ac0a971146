/* Codes of keys, pages and trees of them, scores of units, their choice and attention over lists, and labels, each
 * against the definitions of the cpu. */
#include "kv_rig.h"

#include "device/cuda/kernels_look.h"
#include "device/cuda/kernels_turns.h"
#include "kernels/abstract/abstract_internal.h"
#include "kernels/codec/codec.h"
#include "kernels/label/label.h"
#include "kernels/level/level_internal.h"
#include "kernels/tree/tree.h"

static const double eps = 0x1p-24;

enum { DIMENSION = 64, WIDE = 512, KV_HEADS = 2, GROUP = 3, HEADS = KV_HEADS * GROUP, ITEMS = 2 };

/* A rotation that is exact: coordinate i goes to places[i], with a sign. */
struct turn {
    size_t dimension;
    uint16_t weights[KV_HEADS * WIDE * WIDE]; /* halves [kv head][dimension][dimension] */
};

static void turn_init(struct turn *turn, struct random *random, size_t dimension) {
    memset(turn, 0, sizeof *turn);
    turn->dimension = dimension;
    for (size_t h = 0; h < KV_HEADS; h++) {
        size_t places[WIDE];
        for (size_t i = 0; i < dimension; i++) {
            const size_t j = (size_t)random_below(random, i + 1);
            places[i] = i;
            places[i] = places[j], places[j] = i;
        }
        for (size_t i = 0; i < dimension; i++)
            turn->weights[(h * dimension + i) * dimension + places[i]] =
                float_to_half(random_below(random, 2) ? 1 : -1);
    }
}

static void turn_apply(const struct turn *turn, size_t head, const float *x, float *y) {
    for (size_t i = 0; i < turn->dimension; i++)
        for (size_t j = 0; j < turn->dimension; j++) {
            const uint16_t weight = turn->weights[(head * turn->dimension + i) * turn->dimension + j];
            if (weight != 0) y[j] = half_to_float(weight) * x[i];
        }
}

struct choice_rig {
    struct kv_rig kv;
    struct turn turn;
    struct level_layout level;
    struct abstract_layout pages;
    struct tree_layout tree; /* where is_tree: its leaves are the pages */
    bool is_tree;
    float shift; /* of all keys */
    uint32_t index_bytes, slots; /* slots: of an item, which has a buffer of the third pool for itself */
    struct guarded index[ITEMS];
    uint32_t *index_pages[ITEMS]; /* [kv head][chunk_stride] */
    uint8_t *want[ITEMS];         /* by the cpu, in the order of the pages */
};

/* Blocks lie from the last slot on. */
static uint8_t *index_at(const struct choice_rig *rig, size_t item, size_t head, size_t chunk) {
    return (uint8_t *)rig->index[item].data +
           (rig->slots - 1 - (head * rig->kv.chunk_stride + chunk)) * rig->index_bytes;
}

/* Blocks of so many bytes beside the chunks, which hold nothing yet. */
static void index_init(struct choice_rig *rig, struct random *random, size_t dimension, size_t bytes,
                       const uint64_t lengths[ITEMS], enum kv_type type) {
    kv_rig_init(&rig->kv, random, type, KV_F16, dimension, dimension, KV_HEADS, lengths, ITEMS);
    for (size_t i = 0; i < ITEMS; i++)
        for (size_t n = 0; n < lengths[i] * KV_HEADS * dimension; n++) rig->kv.k[i][n] += rig->shift;
    kv_rig_fill(&rig->kv);
    rig->index_bytes = (uint32_t)(bytes + 63) / 64 * 64;
    rig->slots = (uint32_t)(KV_HEADS * rig->kv.chunk_stride);
    struct cuda_pool *pool = &rig->kv.pools.pool[2];
    pool->slots_per_buffer = rig->slots;
    pool->slot_bytes = rig->index_bytes;
    for (size_t i = 0; i < ITEMS; i++) {
        rig->index[i] = device_memory(rig->slots * rig->index_bytes);
        memset(rig->index[i].data, 0xff, rig->slots * rig->index_bytes);
        pool->base[i] = address_of(rig->index[i].data);
        rig->want[i] = malloc(rig->slots * rig->index_bytes);
        memset(rig->want[i], 0xff, rig->slots * rig->index_bytes);
        rig->index_pages[i] = malloc(rig->slots * sizeof(uint32_t));
        for (uint32_t n = 0; n < rig->slots; n++)
            rig->index_pages[i][n] = 3u << 30 | ((uint32_t)i * rig->slots + rig->slots - 1 - n);
        rig->kv.items[i].index_pages = address_of(rig->index_pages[i]);
    }
}

static uint8_t *want_at(const struct choice_rig *rig, size_t item, size_t head, size_t chunk) {
    return rig->want[item] + (head * rig->kv.chunk_stride + chunk) * rig->index_bytes;
}

static void choice_init(struct choice_rig *rig, struct random *random, size_t dimension, size_t planes,
                        const uint64_t lengths[ITEMS], enum kv_type type) {
    rig->is_tree = false;
    turn_init(&rig->turn, random, dimension);
    level_layout_init(&rig->level, dimension, planes, planes != 4);
    index_init(rig, random, dimension, rig->level.bytes, lengths, type);
    for (size_t i = 0; i < ITEMS; i++)
        for (size_t h = 0; h < KV_HEADS; h++)
            for (size_t c = 0; c < lengths[i] / 64; c++) {
                static float keys[64 * WIDE], stored[64 * WIDE], v[WIDE];
                uint8_t *block = want_at(rig, i, h, c);
                for (size_t t = 0; t < 64; t++) {
                    float *k = stored + t * dimension;
                    rig->kv.attention.load(&rig->kv.layout, rig->kv.chunks[i][h * rig->kv.chunk_stride + c],
                                           t, k, v);
                    turn_apply(&rig->turn, h, k, keys + t * dimension);
                }
                if (rig->level.spread_offset != 0) level_set_spread(&rig->level, block, stored);
                level_set_center(&rig->level, block, keys);
                for (size_t t = 0; t < 64; t++) level_store(&rig->level, block, t, keys + t * dimension);
            }
}

static void choice_deinit(struct choice_rig *rig) {
    for (size_t i = 0; i < ITEMS; i++)
        guarded_destroy(&rig->index[i]), free(rig->want[i]), free(rig->index_pages[i]);
    kv_rig_deinit(&rig->kv);
}

static void index_build(struct choice_rig *rig, uint64_t seed) {
    static const float steps[5] = {0, 1.5958f, 0.9957f, 0, 0.3352f};
    struct step_head head = {0, ITEMS};
    struct cuda_look_build_args args = {.build = {.step = address_of(&head),
                                                  .items = address_of(rig->kv.items),
                                                  .pools = address_of(&rig->kv.pools),
                                                  .rotation = address_of(rig->turn.weights),
                                                  .layer_pages = kv_rig_layer_pages(&rig->kv),
                                                  .shape = rig->kv.shape,
                                                  .item_count = 3,
                                                  .factors_offset = (uint32_t)rig->level.factors_offset,
                                                  .center_offset = (uint32_t)rig->level.center_offset,
                                                  .step_size = steps[rig->level.planes]},
                                        .spread_offset = (uint32_t)rig->level.spread_offset};
    char name[32];
    snprintf(name, sizeof name, "level_build_%zu", rig->level.planes);
    launch(name, 5, KV_HEADS, 3, 256, level_build_shared((uint32_t)rig->level.dimension), &args, seed);
}

/* Codes and centers are the cpu's; a factor, which is a quotient of sums, may be a half's place beside, and so may a
 * deviation that lies between two bytes. */
static void index_is_the_cpus(void **state) {
    (void)state;
    static struct choice_rig rig;
    struct random random;
    random_init(&random, test_seed(701));
    static const size_t planes[] = {1, 2, 4, 1, 2}, dimensions[] = {DIMENSION, DIMENSION, DIMENSION, DIMENSION, WIDE};
    for (size_t n = 0; n < 5; n++) {
        choice_init(&rig, &random, dimensions[n], planes[n], (const uint64_t[]){200, 128}, n == 3 ? KV_Q8 : KV_F16);
        rig.kv.items[0].position_first = 60, rig.kv.items[0].row_count = 140; /* chunks 0, 1, 2 of 0 to 3 */
        rig.kv.items[1].position_first = 127, rig.kv.items[1].row_count = 1;
        index_build(&rig, test_seed(701) + n);
        for (size_t i = 0; i < ITEMS; i++)
            for (size_t h = 0; h < KV_HEADS; h++)
                for (size_t c = i == 0 ? 0 : 1; c < rig.kv.lengths[i] / 64; c++) {
                    const size_t at = (h * rig.kv.chunk_stride + c) * rig.index_bytes;
                    const uint8_t *got = index_at(&rig, i, h, c), *want = rig.want[i] + at;
                    if (memcmp(got, want, rig.level.factors_offset) != 0)
                        fail_msg("codes of %zu %zu %zu", i, h, c);
                    assert_memory_equal(got + rig.level.center_offset, want + rig.level.center_offset,
                                        dimensions[n] * 2);
                    size_t beside = 0;
                    for (size_t k = 0; rig.level.spread_offset != 0 && k < dimensions[n]; k++) {
                        const size_t j = rig.level.spread_offset + k;
                        assert_true(abs(got[j] - want[j]) <= 1 && got[j] > 0);
                        beside += got[j] != want[j];
                    }
                    assert_true(beside <= 1);
                    for (size_t t = 0; t < 64; t++) {
                        const uint16_t a = ((const uint16_t *)(const void *)(got +
                                                                             rig.level.factors_offset))[t],
                                       b = ((const uint16_t *)(const void *)(want +
                                                                             rig.level.factors_offset))[t];
                        if (abs(a - b) > 1)
                            fail_msg("factor of %zu %zu %zu, token %zu: %x, %x", i, h, c, t, a, b);
                    }
                }
        const uint8_t *untouched = index_at(&rig, 1, 0, 0); /* complete before */
        assert_true(untouched[0] == 0xff && untouched[rig.level.factors_offset] == 0xff);
        choice_deinit(&rig);
    }
}

/* ---- pages */

static void pages_init(struct choice_rig *rig, struct random *random, size_t page, bool is_tree,
                       const uint64_t lengths[ITEMS], enum kv_type type) {
    rig->is_tree = is_tree;
    abstract_layout_init(&rig->pages, page, DIMENSION, false, true);
    tree_layout_init(&rig->tree, page, DIMENSION, TREE_MEAN_DEVIATION, false);
    if (is_tree) rig->pages.bytes = rig->tree.bytes;
    index_init(rig, random, DIMENSION, rig->pages.bytes, lengths, type);
}

static void tree_launch(struct choice_rig *rig, uint64_t seed) {
    struct step_head head = {0, ITEMS};
    struct cuda_tree_build_args args = {.step = address_of(&head),
                                        .items = address_of(rig->kv.items),
                                        .pools = address_of(&rig->kv.pools),
                                        .layer_pages = kv_rig_layer_pages(&rig->kv),
                                        .shape = rig->kv.shape,
                                        .item_count = 3,
                                        .leaf = rig->tree.leaf,
                                        .has_runs = tree_top(rig->tree.leaf) == TREE_RUN};
    for (size_t i = 0; i < TREE_LEVELS; i++) args.offset[i] = (uint32_t)rig->tree.offset[i];
    launch("tree_build", 3, KV_HEADS, 3, 128, 0, &args, seed);
}

static void pages_build(struct choice_rig *rig, uint64_t seed) {
    struct step_head head = {0, ITEMS};
    if (rig->is_tree) {
        tree_launch(rig, seed);
        return;
    }
    struct cuda_spread_build_args args = {.step = address_of(&head),
                                          .items = address_of(rig->kv.items),
                                          .pools = address_of(&rig->kv.pools),
                                          .layer_pages = kv_rig_layer_pages(&rig->kv),
                                          .shape = rig->kv.shape,
                                          .item_count = 3,
                                          .page_tokens = (uint32_t)rig->pages.page_tokens};
    launch("spread_build", 8, KV_HEADS, 3, 256, 0, &args, seed);
}

/* Of a KV head of an item. */
static void run_want(struct choice_rig *rig, size_t item, size_t head, size_t last_chunk) {
    void *blocks[TREE_RUN_CHUNKS];
    if (tree_top(rig->tree.leaf) != TREE_RUN || last_chunk % TREE_RUN_CHUNKS != TREE_RUN_CHUNKS - 1) return;
    for (size_t i = 0; i < TREE_RUN_CHUNKS; i++)
        blocks[i] = want_at(rig, item, head, last_chunk + 1 - TREE_RUN_CHUNKS + i);
    tree_build_run(&rig->tree, blocks);
}

/* The same rows by the definition. */
static void pages_want(struct choice_rig *rig) {
    struct abstract_kernels abstract;
    abstract_kernels_init(&abstract, 0);
    for (size_t i = 0; i < ITEMS; i++) {
        const struct step_item *item = &rig->kv.items[i];
        for (size_t h = 0; h < KV_HEADS; h++)
            for (uint64_t row = item->position_first, end; row < item->position_first + item->row_count;
                 row = end) {
                const size_t chunk = (size_t)row / 64;
                end = (chunk + 1) * 64;
                if (end > item->position_first + item->row_count)
                    end = item->position_first + item->row_count;
                if (rig->is_tree) {
                    tree_build(&abstract, &(struct tree_build_args){
                                              .layout = &rig->tree,
                                              .kv = &rig->kv.layout,
                                              .chunk = rig->kv.chunks[i][h * rig->kv.chunk_stride + chunk],
                                              .token_begin = (size_t)row % 64,
                                              .token_end = (size_t)(end - chunk * 64),
                                              .block = want_at(rig, i, h, chunk)});
                    if (end == (chunk + 1) * 64) run_want(rig, i, h, chunk);
                    continue;
                }
                abstract.build(&(struct abstract_build_args){
                    .layout = &rig->pages,
                    .kv = &rig->kv.layout,
                    .chunk = rig->kv.chunks[i][h * rig->kv.chunk_stride + chunk],
                    .token_begin = (size_t)row % 64,
                    .token_end = (size_t)(end - chunk * 64),
                    .abstract = want_at(rig, i, h, chunk)});
            }
    }
}

static void index_check(struct choice_rig *rig, uint64_t seed) {
    pages_build(rig, seed);
    pages_want(rig);
    for (size_t i = 0; i < ITEMS; i++)
        for (size_t h = 0; h < KV_HEADS; h++)
            for (size_t c = 0; c < rig->kv.chunk_stride; c++)
                assert_memory_equal(index_at(rig, i, h, c), want_at(rig, i, h, c), rig->pages.bytes);
}

/* To the bit, pages that are not full too; and no others are touched. */
static void pages_are_the_definitions(void **state) {
    (void)state;
    static struct choice_rig rig;
    struct random random;
    random_init(&random, test_seed(704));
    static const size_t pages[] = {8, 16, 32, 64, 16};
    for (size_t n = 0; n < 5; n++) {
        pages_init(&rig, &random, pages[n], false, (const uint64_t[]){200, 130}, n == 4 ? KV_Q8 : KV_F16);
        rig.kv.items[0].position_first = 60, rig.kv.items[0].row_count = 139;
        rig.kv.items[1].position_first = 69, rig.kv.items[1].row_count = 1;
        index_check(&rig, test_seed(704) + n);
        rig.kv.items[0].position_first = 199, rig.kv.items[0].row_count = 1;
        rig.kv.items[1].position_first = 70; /* the next token, of a page that is there */
        index_check(&rig, test_seed(704) + n);
        choice_deinit(&rig);
    }
}

/* The same of all boxes; a run is there with its last token, in a launch that has it whole and in one that has its
 * end alone. */
static void trees_are_the_definitions(void **state) {
    (void)state;
    static struct choice_rig rig;
    struct random random;
    random_init(&random, test_seed(706));
    static const size_t leaves[] = {8, 16, 32, 64, 16};
    for (size_t n = 0; n < 5; n++) {
        pages_init(&rig, &random, leaves[n], true, (const uint64_t[]){520, 300}, n == 4 ? KV_Q8 : KV_F16);
        rig.kv.items[0].position_first = 0, rig.kv.items[0].row_count = 500;
        rig.kv.items[1].position_first = 0, rig.kv.items[1].row_count = 255;
        index_check(&rig, test_seed(706) + n);
        rig.kv.items[0].position_first = 500, rig.kv.items[0].row_count = 20;
        rig.kv.items[1].position_first = 255, rig.kv.items[1].row_count = 1;
        index_check(&rig, test_seed(706) + n);
        choice_deinit(&rig);
    }
}

/* ---- scores and choices */

enum { ROWS = 3, STRIDE = 64, LIST = 50 * UNIT_TOKENS };

struct choice_rule {
    uint32_t sinks, recent; /* tokens; sinks: whole units */
    uint32_t picks;         /* units */
    uint32_t unit, ends;    /* tokens; candidates end at a multiple of `ends` */
    bool ranks;             /* a unit has one score */
};

struct choice {
    struct step_row rows[ROWS];
    _Alignas(64) float q[ROWS * HEADS * DIMENSION];
    float scores[ROWS * HEADS * STRIDE];
    uint32_t keys[ROWS * KV_HEADS * STRIDE], chosen[ROWS * KV_HEADS * STRIDE];
    uint32_t tokens[ROWS * KV_HEADS][LIST];
    struct cuda_list lists[ROWS * KV_HEADS];
    struct guarded queries;
    uint32_t query_bytes;
    struct choice_rule rule;
};

/* Candidates end at least `recent` tokens before the row's end. */
static void lists_plan(struct choice *choice) {
    for (size_t n = 0; n < ROWS * KV_HEADS; n++) {
        const struct choice_rule *rule = &choice->rule;
        const uint32_t rows = (uint32_t)choice->rows[n / KV_HEADS].position + 1;
        struct cuda_list *list = &choice->lists[n];
        *list = (struct cuda_list){.rows = address_of(choice->tokens[n]), .begin = rule->sinks};
        list->end = rows <= rule->recent ? 0 : (rows - rule->recent) / rule->ends * rule->ends;
        if (list->end <= list->begin) list->begin = list->end = 0;
        list->picks = list->end - list->begin;
        if (list->picks > rule->picks * rule->unit) list->picks = rule->picks * rule->unit;
        list->count = rows - (list->end - list->begin) + list->picks;
        assert_true(list->count <= LIST);
    }
}

static void queries_make(struct choice_rig *rig, struct choice *choice, uint64_t seed) {
    choice->query_bytes = (uint32_t)level_query_bytes(&rig->level);
    choice->queries = device_memory(ROWS * HEADS * choice->query_bytes);
    struct cuda_level_query_args args = {.q = address_of(choice->q),
                                         .rotation = address_of(rig->turn.weights),
                                         .queries = address_of(choice->queries.data),
                                         .row_count = ROWS,
                                         .q_stride = HEADS * DIMENSION,
                                         .k_dimension = DIMENSION,
                                         .head_count = HEADS,
                                         .group = GROUP,
                                         .query_bytes = choice->query_bytes,
                                         .planes = (uint32_t)rig->level.planes};
    launch("level_query", HEADS, ROWS, 1, 128, DIMENSION * 4, &args, seed);
    void *want = aligned_alloc(64, choice->query_bytes);
    for (size_t i = 0; i < ROWS * HEADS; i++) {
        float turned[DIMENSION];
        turn_apply(&rig->turn, i % HEADS / GROUP, choice->q + i * DIMENSION, turned);
        level_prepare(&rig->level, turned, want);
        assert_memory_equal((char *)choice->queries.data + i * choice->query_bytes, want,
                            sizeof(struct level_query) + DIMENSION * 5);
    }
    free(want);
}

static void scores_make(struct choice_rig *rig, struct choice *choice, uint64_t seed) {
    const struct cuda_look_score_args args = {.score = {.rows = address_of(choice->rows),
                                         .items = address_of(rig->kv.items),
                                         .pools = address_of(&rig->kv.pools),
                                         .queries = address_of(choice->queries.data),
                                         .scores = address_of(choice->scores),
                                         .lists = address_of(choice->lists),
                                         .row_count = ROWS,
                                         .kv_head_count = KV_HEADS,
                                         .group = GROUP,
                                         .query_bytes = choice->query_bytes,
                                         .dimension = DIMENSION,
                                         .factors_offset = (uint32_t)rig->level.factors_offset,
                                         .center_offset = (uint32_t)rig->level.center_offset,
                                         .unit_stride = STRIDE,
                                         .scale = 0.125f,
                                         .unit_tokens = choice->rule.unit}};
    char name[32];
    fill_nan(choice->scores, ROWS * HEADS * STRIDE);
    snprintf(name, sizeof name, "level_score_%zu", rig->level.planes);
    launch(name, 1, KV_HEADS, ROWS, 256, 0, &args, seed);
}

static void units_pick(struct choice *choice, uint64_t seed) {
    const struct cuda_look_choose_args args = {.choose = {.scores = address_of(choice->scores),
                                    .keys = address_of(choice->keys),
                                    .chosen = address_of(choice->chosen),
                                    .lists = address_of(choice->lists),
                                    .row_count = ROWS,
                                    .kv_head_count = KV_HEADS,
                                    .unit_tokens = choice->rule.unit,
                                    .unit_stride = STRIDE,
                                    .group = choice->rule.ranks ? 0 : GROUP}};
    memset(choice->tokens, 0xff, sizeof choice->tokens);
    launch("units_choose", KV_HEADS, ROWS, 1, 1024, sizeof(struct choose_shared), &args, seed);
}

/* Shares of a unit, from the scores as they are; or these themselves. */
static void shares_of(const struct choice *choice, size_t list, uint32_t begin, uint32_t end,
                      double *shares) {
    for (uint32_t u = 0; u < STRIDE; u++) shares[u] = 0;
    for (uint32_t u = begin; u < end && choice->rule.ranks; u++)
        shares[u] = (double)choice->scores[list * STRIDE + u];
    if (choice->rule.ranks) return;
    for (size_t h = 0; h < GROUP; h++) {
        const float *scores = choice->scores + (list * GROUP + h) * STRIDE;
        double total = 0, most = -INFINITY;
        for (uint32_t u = begin; u < end; u++) most = (double)scores[u] > most ? (double)scores[u] : most;
        for (uint32_t u = begin; u < end; u++) total += exp2((double)scores[u] - most);
        for (uint32_t u = begin; u < end; u++) shares[u] += exp2((double)scores[u] - most) / total;
    }
}

static void lists_check(const struct choice *choice) {
    const uint32_t unit = choice->rule.unit;
    const double slack = choice->rule.ranks ? 0 : 1e-5;
    for (size_t n = 0; n < ROWS * KV_HEADS; n++) {
        const struct cuda_list *list = &choice->lists[n];
        const uint32_t position = (uint32_t)choice->rows[n / KV_HEADS].position, *tokens = choice->tokens[n];
        const uint32_t units = position / unit + 1, begin = list->begin / unit, end = list->end / unit;
        const uint32_t candidates = end - begin, picks = list->picks / unit;
        uint32_t picked = 0;
        bool is_listed[STRIDE] = {false};
        for (uint32_t i = 0; i < list->count; i++) {
            assert_true(tokens[i] <= position && (i == 0 || tokens[i] > tokens[i - 1]));
            assert_true(tokens[i] % unit == i % unit);
            is_listed[tokens[i] / unit] = true;
        }
        if (list->count < LIST) assert_true(tokens[list->count] == 0xffffffffu);
        double shares[STRIDE], least = INFINITY, best_out = -INFINITY;
        if (candidates > 0) shares_of(choice, n, begin, end, shares);
        for (uint32_t u = begin; !choice->rule.ranks && picks < candidates && u < end; u++)
            check_near(bits_to_float(choice->keys[n * STRIDE + u]), shares[u], 1e-5 * shares[u] + 1e-30,
                       "list %zu, unit %u", n, u);
        for (uint32_t u = 0; u < units; u++) {
            if (u < begin || u >= end) {
                assert_true(is_listed[u]);
            } else if (is_listed[u]) {
                picked++;
                least = shares[u] < least ? shares[u] : least;
            } else {
                best_out = shares[u] > best_out ? shares[u] : best_out;
            }
        }
        assert_int_equal(picked, picks);
        if (picked > 0 && best_out > least + slack * fabs(least))
            fail_msg("list %zu: %g is left out, %g in", n, best_out, least);
    }
}

/* y: [row][head][DIMENSION] */
static void attention_make(struct choice_rig *rig, struct choice *choice, const char *kernel,
                           const struct cuda_pools *pools, const float *sinks, float *y, uint64_t seed) {
    const uint32_t stride = attention_partial_stride(DIMENSION);
    static float partials[ROWS * HEADS * ATTENTION_RANGES_MAX * (4 + DIMENSION)];
    fill_nan(partials, sizeof partials / 4);
    fill_nan(y, ROWS * HEADS * DIMENSION);
    struct cuda_attention_list_args args = {.attention = {.rows = address_of(choice->rows),
                                                          .items = address_of(rig->kv.items),
                                                          .pools = address_of(pools),
                                                          .q = address_of(choice->q),
                                                          .partials = address_of(partials),
                                                          .layer_pages = kv_rig_layer_pages(&rig->kv),
                                                          .shape = rig->kv.shape,
                                                          .row_count = ROWS,
                                                          .q_stride = HEADS * DIMENSION,
                                                          .kv_head_count = KV_HEADS,
                                                          .group = GROUP,
                                                          .partial_stride = stride,
                                                          .scale = 0.125f},
                                            .lists = address_of(choice->lists)};
    launch(kernel, ATTENTION_RANGES_MAX, KV_HEADS, ROWS, 128, attention_decode_shared(8, 4),
           &args, seed);
    struct cuda_merge_args merge = {.rows = address_of(choice->rows),
                                    .partials = address_of(partials),
                                    .lists = address_of(choice->lists),
                                    .y = address_of(y),
                                    .sinks = address_of(sinks),
                                    .row_count = ROWS,
                                    .y_stride = HEADS * DIMENSION,
                                    .head_count = HEADS,
                                    .v_dimension = DIMENSION,
                                    .partial_stride = stride,
                                    .group = GROUP};
    launch("attention_merge", HEADS, ROWS, 1, 512, sizeof(struct merge_shared), &merge, seed);
}

/* Some of the chunks are there in 4 bits alone: the bits of attention to them as they are decoded. */
static void q4_check(struct choice_rig *rig, struct choice *choice, uint64_t seed) {
    const size_t stride = rig->kv.chunk_stride, bytes = (kv_q4_chunk_bytes(&rig->kv.layout) + 63) / 64 * 64;
    static float rows[ROWS * HEADS * DIMENSION], codes[ROWS * HEADS * DIMENSION];
    uint32_t *pages[ITEMS], used = 0;
    struct codec_kernels codec;
    struct cuda_pools pools = rig->kv.pools;
    struct guarded memory = guarded_create_aligned(ITEMS * KV_HEADS * stride * bytes);
    codec_kernels_init(&codec, 0);
    pools.pool[2] = (struct cuda_pool){.base = {address_of(memory.data)},
                                       .slots_per_buffer = (uint32_t)(ITEMS * KV_HEADS * stride),
                                       .slot_bytes = bytes};
    for (size_t i = 0; i < ITEMS; i++) {
        pages[i] = calloc(KV_HEADS * stride, sizeof(uint32_t));
        for (size_t n = 0; n < KV_HEADS * stride; n++) {
            if ((n % stride + 1) * 64 > rig->kv.lengths[i] || n % 3 == 0) continue;
            uint8_t *q4 = (uint8_t *)memory.data + used * bytes;
            codec.q4_encode(&rig->kv.layout, rig->kv.chunks[i][n], q4);
            codec.q4_decode(&rig->kv.layout, q4, kv_rig_chunk(&rig->kv, i, KV_RIG_LAYER, n / stride, n % stride));
            pages[i][n] = 3u << 30 | used++;
        }
    }
    attention_make(rig, choice, "attention_list_8_4_f16", &rig->kv.pools, NULL, rows, seed);
    for (size_t i = 0; i < ITEMS; i++) {
        rig->kv.items[i].q4_pages = address_of(pages[i]);
        for (size_t n = 0; n < KV_HEADS * stride; n++)
            if (pages[i][n] != 0)
                memset(kv_rig_chunk(&rig->kv, i, KV_RIG_LAYER, n / stride, n % stride), 0xff,
                       rig->kv.layout.chunk_bytes);
    }
    attention_make(rig, choice, "attention_list_8_4_q4", &pools, NULL, codes, seed);
    assert_memory_equal(codes, rows, sizeof rows);
    for (size_t i = 0; i < ITEMS; i++) free(pages[i]);
    guarded_destroy(&memory);
}

/* sinks: [HEADS], or NULL */
static void attention_check(struct choice_rig *rig, struct choice *choice, const float *sinks,
                            uint64_t seed) {
    static float y[ROWS * HEADS * DIMENSION];
    attention_make(rig, choice, "attention_list_8_4_f16", &rig->kv.pools, sinks, y, seed);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t h = 0; h < HEADS; h++) {
            const size_t n = r * KV_HEADS + h / GROUP;
            uint8_t takes[STRIDE * 8] = {0};
            double out[DIMENSION], bound[DIMENSION];
            for (uint32_t i = 0; i < choice->lists[n].count; i++) takes[choice->tokens[n][i]] = 1;
            kv_rig_attend(&rig->kv, choice->rows[r].item, h / GROUP, choice->q + (r * HEADS + h) * DIMENSION,
                          choice->rows[r].position, 0, takes, 0.125, 0,
                          sinks != NULL ? (double)sinks[h] : -INFINITY, 16 * eps, 16 * 0x1p-22 + 200 * eps,
                          out, bound);
            for (size_t d = 0; d < DIMENSION; d++)
                check_near(y[(r * HEADS + h) * DIMENSION + d], out[d], bound[d], "row %zu head %zu, %zu", r,
                           h, d);
        }
}

/* What is kept of a list is what is in front of its window; a list that is taken has it, whatever the scores, and all
 * tokens from where it says. */
static void kept_check(struct choice *choice, uint64_t seed) {
    enum { GROWS = 3 };
    static uint32_t kept[ROWS * KV_HEADS][LIST], before[ROWS * KV_HEADS][LIST];
    memset(kept, 0xff, sizeof kept);
    for (size_t n = 0; n < ROWS * KV_HEADS; n += 2) choice->lists[n].kept = address_of(kept[n]);
    memcpy(before, choice->tokens, sizeof before);
    units_pick(choice, seed);
    assert_memory_equal(choice->tokens, before, sizeof before); /* keeping changes nothing */
    for (size_t n = 0; n < ROWS * KV_HEADS; n++) {
        struct cuda_list *list = &choice->lists[n];
        const uint32_t count = n % 2 == 0 ? list->begin + list->picks : 0;
        assert_memory_equal(kept[n], before[n], count * sizeof(uint32_t));
        assert_true(kept[n][count] == 0xffffffffu);
        if (n % 2 == 1 || count == 0) continue;
        list->kept_count = count;
        list->window_begin = list->end - 8 * (uint32_t)(n == 0);
        list->count = count + (uint32_t)choice->rows[n / KV_HEADS].position + GROWS + 1 - list->window_begin;
        list->picks = 0;
        assert_true(list->count <= LIST);
    }
    units_pick(choice, seed);
    for (size_t n = 0; n < ROWS * KV_HEADS; n++) {
        const struct cuda_list *list = &choice->lists[n];
        if (list->kept_count == 0) {
            assert_memory_equal(choice->tokens[n], before[n], list->count * sizeof(uint32_t));
            continue;
        }
        assert_memory_equal(choice->tokens[n], before[n], list->kept_count * sizeof(uint32_t));
        for (uint32_t i = list->kept_count; i < list->count; i++)
            assert_int_equal(choice->tokens[n][i], list->window_begin + i - list->kept_count);
        assert_true(choice->tokens[n][list->count] == 0xffffffffu);
    }
    lists_plan(choice);
}

static void choices_match(void **state) {
    (void)state;
    static struct choice_rig rig;
    static struct choice choice;
    struct random random;
    random_init(&random, test_seed(702));
    static const size_t planes[] = {1, 2, 4, 1, 2};
    float sinks[HEADS];
    for (size_t n = 0; n < 5; n++) {
        const uint64_t seed = test_seed(702) + n * 10;
        choice_init(&rig, &random, DIMENSION, planes[n], (const uint64_t[]){470, 180}, KV_F16);
        rig.kv.items[0].position_first = rig.kv.items[1].position_first = 0;
        rig.kv.items[0].row_count = 470, rig.kv.items[1].row_count = 180;
        index_build(&rig, seed); /* seven chunks: the first five blocks of a head */
        const struct choice_rule rules[] = {
            {8, 64, 10, 8, 64, false}, {16, 40, 3, 8, 64, false}, {0, 64, 40, 8, 64, false},
            {64, 64, 2, 64, 64, false}, {16, 64, 4, 16, 64, false}};
        choice.rule = rules[n];
        choice.rows[0] = (struct step_row){379, 0, 0};
        choice.rows[1] = (struct step_row){n == 1 ? 5 : 179, 0, 1};
        choice.rows[2] = (struct step_row){70, 0, 1};
        fill_normal(&random, choice.q, ROWS * HEADS * DIMENSION, 2.0);
        lists_plan(&choice);
        queries_make(&rig, &choice, seed);
        scores_make(&rig, &choice, seed + 1);
        units_pick(&choice, seed + 2);
        lists_check(&choice);
        fill_normal(&random, sinks, HEADS, 4);
        attention_check(&rig, &choice, n % 2 == 1 ? sinks : NULL, seed + 3);
        q4_check(&rig, &choice, seed + 3);
        kept_check(&choice, seed + 9);
        /* of equals the first */
        for (size_t i = 0; i < ROWS * HEADS * STRIDE; i++) choice.scores[i] = 1.5f;
        for (uint64_t k = 0; k < 5; k++) {
            units_pick(&choice, seed + 4 + k);
            lists_check(&choice);
        }
        for (uint32_t i = 0; i < choice.lists[0].picks && i < 40; i++)
            assert_int_equal(choice.tokens[0][rules[n].sinks + i], rules[n].sinks + i);
        guarded_destroy(&choice.queries);
        choice_deinit(&rig);
    }
}

/* A page's pair of rows. */
static const uint16_t *page_at(const struct choice_rig *rig, size_t item, size_t kv_head, size_t page) {
    const size_t chunk_pages = rig->pages.chunk_pages;
    const uint8_t *block = want_at(rig, item, kv_head, page / chunk_pages);
    if (rig->is_tree) block += rig->tree.offset[rig->tree.leaf];
    return (const uint16_t *)(const void *)block + page % chunk_pages * 2 * DIMENSION;
}

/* By the definition, in double: the best of a unit's pages, of each head or of the group. */
static void page_scores_check(struct choice_rig *rig, const struct choice *choice, enum spread_aggregate how) {
    const size_t page = rig->pages.page_tokens, pages = choice->rule.unit / page;
    for (size_t n = 0; n < ROWS * HEADS; n++) {
        const size_t list = n / GROUP, first_head = list * GROUP, kv_head = list % KV_HEADS;
        const struct cuda_list *limits = &choice->lists[list];
        if (how != SPREAD_APART && n != first_head) continue;
        const float *scores = choice->scores + (how == SPREAD_APART ? n : list) * STRIDE;
        for (size_t u = limits->begin / choice->rule.unit; u < limits->end / choice->rule.unit; u++) {
            double best = -INFINITY, size = 0;
            for (size_t p = u * pages; p < (u + 1) * pages; p++) {
                const uint16_t *pair = page_at(rig, choice->rows[n / HEADS].item, kv_head, p);
                double of_page = -INFINITY, sum = 0;
                for (size_t h = 0; h < (how == SPREAD_APART ? 1 : GROUP); h++) {
                    const float *q = choice->q + (n + h) * DIMENSION;
                    double score = 0, terms = 0;
                    for (size_t d = 0; d < DIMENSION; d++) {
                        const double a = (double)half_to_float(pair[d]), x = (double)q[d],
                                     b = (double)half_to_float(pair[DIMENSION + d]);
                        score += rig->is_tree ? fmax(x * a, x * b) : x * a + fabs(x) * b;
                        terms += fabs(x) * (fabs(a) + fabs(b));
                    }
                    of_page = fmax(of_page, score);
                    sum += score;
                    size = fmax(size, terms);
                }
                best = fmax(best, how == SPREAD_TOGETHER ? sum : of_page);
            }
            const double factor = how == SPREAD_APART ? 0.125 * log2(exp(1)) : 1;
            check_near(scores[u], factor * best, factor * GROUP * 24 * eps * size, "row %zu head %zu unit %zu",
                       n / HEADS, n % HEADS, u);
        }
    }
}

static void page_scores_make(struct choice_rig *rig, struct choice *choice, enum spread_aggregate how,
                             uint64_t seed) {
    struct cuda_spread_score_args args = {.rows = address_of(choice->rows),
                                          .items = address_of(rig->kv.items),
                                          .pools = address_of(&rig->kv.pools),
                                          .q = address_of(choice->q),
                                          .scores = address_of(choice->scores),
                                          .lists = address_of(choice->lists),
                                          .row_count = ROWS,
                                          .q_stride = HEADS * DIMENSION,
                                          .kv_head_count = KV_HEADS,
                                          .group = GROUP,
                                          .dimension = DIMENSION,
                                          .page_tokens = (uint32_t)rig->pages.page_tokens,
                                          .unit_tokens = choice->rule.unit,
                                          .unit_stride = STRIDE,
                                          .offset = rig->is_tree ? (uint32_t)rig->tree.offset[rig->tree.leaf] : 0,
                                          .aggregate = how,
                                          .is_box = rig->is_tree,
                                          .factor = how == SPREAD_APART ? 0.125f * 1.44269504f : 1};
    fill_nan(choice->scores, ROWS * HEADS * STRIDE);
    launch("spread_score", 1, KV_HEADS, ROWS, 256, spread_score_shared(GROUP, DIMENSION), &args, seed);
}

static void pages_are_chosen(void **state) {
    (void)state;
    static struct choice_rig rig;
    static struct choice choice;
    static const struct {
        size_t page;
        struct choice_rule rule;
        enum spread_aggregate how;
        bool is_tree;
        float shift; /* keys lie on one side, queries on the other: scores are below zero */
    } runs[] = {{16, {16, 20, 6, 16, 16, true}, SPREAD_GREATEST, false, 0},
                {16, {16, 20, 6, 16, 16, true}, SPREAD_GREATEST, false, 4},
                {8, {0, 10, 5, 32, 32, false}, SPREAD_APART, false, 0},
                {64, {64, 0, 2, 64, 64, true}, SPREAD_TOGETHER, false, 0},
                {16, {0, 40, 2, 64, 64, true}, SPREAD_GREATEST, false, 0},
                {16, {16, 20, 6, 16, 16, true}, SPREAD_GREATEST, true, 4},
                {32, {0, 10, 3, 32, 32, false}, SPREAD_APART, true, 0},
                {8, {8, 10, 9, 8, 8, true}, SPREAD_TOGETHER, true, 0}};
    struct random random;
    random_init(&random, test_seed(705));
    for (size_t n = 0; n < sizeof runs / sizeof runs[0]; n++) {
        const uint64_t seed = test_seed(705) + n * 10;
        rig.shift = runs[n].shift;
        pages_init(&rig, &random, runs[n].page, runs[n].is_tree, (const uint64_t[]){380, 180}, KV_F16);
        rig.kv.items[0].position_first = rig.kv.items[1].position_first = 0;
        rig.kv.items[0].row_count = 380, rig.kv.items[1].row_count = 180;
        pages_build(&rig, seed);
        pages_want(&rig);
        choice.rule = runs[n].rule;
        choice.rows[0] = (struct step_row){379, 0, 0};
        choice.rows[1] = (struct step_row){179, 0, 1};
        choice.rows[2] = (struct step_row){30, 0, 1};
        fill_normal(&random, choice.q, ROWS * HEADS * DIMENSION, 2.0);
        for (size_t i = 0; i < ROWS * HEADS * DIMENSION && runs[n].shift > 0; i++)
            choice.q[i] = -fabsf(choice.q[i]);
        lists_plan(&choice);
        page_scores_make(&rig, &choice, runs[n].how, seed);
        page_scores_check(&rig, &choice, runs[n].how);
        units_pick(&choice, seed + 1);
        lists_check(&choice);
        choice_deinit(&rig);
    }
    /* scores below zero, zeros of both signs, of which the first is taken, and one that is no number */
    const uint32_t nan = 0xffc00000u;
    choice.rule = (struct choice_rule){16, 20, 2, 16, 16, true};
    lists_plan(&choice);
    for (size_t i = 0; i < ROWS * KV_HEADS * STRIDE; i++) choice.scores[i] = -1 - (float)(i % STRIDE);
    for (size_t n = 0; n < ROWS * KV_HEADS; n++) {
        choice.scores[n * STRIDE + 3] = -0.0f, choice.scores[n * STRIDE + 5] = 0;
        memcpy(&choice.scores[n * STRIDE + 7], &nan, sizeof nan);
    }
    units_pick(&choice, test_seed(705));
    for (size_t n = 0; n < 2 * KV_HEADS; n++)
        for (uint32_t i = 0; i < 32; i++)
            assert_int_equal(choice.tokens[n][16 + i], (i < 16 ? 3u : 7u) * 16 + i % 16);
    /* the same of shares: a head's score that is no number is of its own unit alone, and the others have their ranks */
    choice.rule.ranks = false;
    for (size_t i = 0; i < ROWS * HEADS * STRIDE; i++) choice.scores[i] = i % STRIDE == 7 ? 2 : 1;
    for (size_t n = 0; n < ROWS * HEADS; n += GROUP)
        memcpy(&choice.scores[n * STRIDE + 9], &nan, sizeof nan);
    units_pick(&choice, test_seed(705) + 1);
    for (size_t n = 0; n < 2 * KV_HEADS; n++)
        for (uint32_t i = 0; i < 32; i++)
            assert_int_equal(choice.tokens[n][16 + i], (i < 16 ? 7u : 9u) * 16 + i % 16);
}

/* ---- labels */

enum { LABEL_ROWS = 3, LABEL_KV_HEADS = 3 };

enum { LABEL_UNITS = LABEL_ROWS * LABEL_KV_HEADS };

struct labels {
    float q[LABEL_ROWS][LABEL_KV_HEADS * 8 * DIMENSION], label[LABEL_ROWS][LABEL_KV_HEADS * 8 * DIMENSION],
        before[LABEL_ROWS][LABEL_KV_HEADS * 8 * DIMENSION];
    float importance[LABEL_KV_HEADS * 8];
    double thresholds[LABEL_KV_HEADS];
    struct cuda_label items[LABEL_ROWS];
    struct step_row step[LABEL_ROWS];
    struct step_list lists[LABEL_UNITS];
    struct step_kept kept[LABEL_UNITS];
    struct step_reuse counts[LABEL_UNITS];
};

/* Queries that are like their labels, the same, turned away, or no numbers. */
static void labels_draw(struct random *random, struct labels *labels, size_t group) {
    for (size_t row = 0; row < LABEL_ROWS; row++) {
        const float noise = (float)random_below(random, 4) * 0.5F;
        const size_t heads = LABEL_KV_HEADS * group, odd = (size_t)random_below(random, heads) * DIMENSION;
        for (size_t i = 0; i < heads * DIMENSION; i++) {
            labels->label[row][i] = (float)random_normal(random);
            labels->q[row][i] = labels->label[row][i] + noise * (float)random_normal(random);
        }
        for (size_t i = 0; noise > 1 && i < DIMENSION; i++) labels->q[row][odd + i] *= -1;
        if (row == 1) labels->q[row][odd] = random_below(random, 2) ? NAN : INFINITY;
        if (row == 2) memset(&labels->label[row][odd], 0, DIMENSION * sizeof(float));
        labels->step[row].position = 300 + row;
        labels->items[row] =
            (struct cuda_label){address_of(labels->q[row]), address_of(labels->label[row]),
                                address_of(labels->kept + row * LABEL_KV_HEADS), 300 + row, row};
        for (size_t n = row * LABEL_KV_HEADS; n < (row + 1) * LABEL_KV_HEADS; n++) {
            const uint32_t picks = (uint32_t)random_below(random, 33) * 8;
            labels->lists[n] = (struct step_list){.count = 300 + (uint32_t)row + 1 - 256 + picks,
                                                  .candidate_end = 256,
                                                  .picks = picks,
                                                  .use = (uint32_t)random_below(random, 3)};
            labels->kept[n] = (struct step_kept){290 + random_below(random, 10), 40, 248};
            labels->counts[n] = (struct step_reuse){.hits = 1, .age_max = 5, .age_sum = 7};
        }
    }
    memcpy(labels->before, labels->label, sizeof labels->before);
    for (size_t i = 0; i < LABEL_KV_HEADS * group; i++)
        labels->importance[i] = (float)random_below(random, 3) / 2;
    for (size_t i = 0; i < LABEL_KV_HEADS; i++)
        labels->thresholds[i] = i == 0 ? 1 : (double)random_below(random, 20) / 10 - 0.95;
}

/* What a head that hits or misses leaves (device.h, compare_labels_operation). */
static void verdict_expect(struct step_list *list, struct step_kept *kept, struct step_reuse *counts, bool alike,
                           uint64_t position, uint64_t age_max, bool only_says) {
    const struct step_list before = *list;
    if (alike && only_says) {
        list->count -= list->picks;
        list->picks = 0;
    } else if (alike) {
        list->kept_count = kept->count;
        list->window_begin = age_max > 0 ? kept->candidate_end : list->candidate_end;
        list->age = (uint32_t)(position - kept->position);
        list->count = kept->count + (uint32_t)position + 1 - list->window_begin;
        list->picks = 0;
        counts->hits++;
        counts->rows += list->count;
        counts->age_sum += list->age;
        counts->age_max = counts->age_max > list->age ? counts->age_max : list->age;
        counts->chosen_rows += before.count;
        counts->scored += before.picks < 256 ? 256 : 0;
    } else if (list->use != LABEL_STAYS) {
        *kept = (struct step_kept){position, list->picks, 256};
        counts->misses++;
    }
}

static void labels_are_compared(void **state) {
    (void)state;
    static struct labels labels, want;
    static struct step_list told[LABEL_UNITS];
    static const size_t groups[] = {1, 3, 4, 8};
    struct random random;
    size_t verdicts[2] = {0, 0};
    random_init(&random, test_seed(707));
    for (uint64_t n = 0; n < 24; n++) {
        const size_t group = groups[n % 4], size = group * DIMENSION;
        const enum label_aggregate aggregate = n % 3 == 0 ? LABEL_MINIMUM : LABEL_HARMONIC;
        const bool only_says = n % 8 == 7;
        const uint64_t age_max = n % 2 == 0 ? 0 : 9;
        labels_draw(&random, &labels, group);
        want = labels;
        const bool is_told = n % 5 < 2; /* they come from memory that both see, and are left there as well */
        memcpy(told, labels.lists, sizeof told);
        for (size_t i = 0; i < LABEL_UNITS && is_told; i++) labels.lists[i] = (struct step_list){.count = 77};
        const struct cuda_labels_args args = {.items = address_of(labels.items),
                                              .rows = n % 3 == 1 ? address_of(labels.step) : 0,
                                              .importance = address_of(labels.importance),
                                              .thresholds = address_of(labels.thresholds),
                                              .limits = address_of(labels.lists),
                                              .counts = address_of(labels.counts),
                                              .age_max = age_max,
                                              .kv_head_count = LABEL_KV_HEADS,
                                              .group = (uint32_t)group,
                                              .dimension = DIMENSION,
                                              .by_minimum = aggregate == LABEL_MINIMUM,
                                              .only_says = only_says};
        if (n % 3 == 1)
            for (size_t row = 0; row < LABEL_ROWS; row++) labels.items[row].position = 7; /* is not looked at */
        const struct cuda_told_args tell = {args, address_of(told)};
        launch(is_told ? "labels_tell" : "labels_compare", LABEL_KV_HEADS, LABEL_ROWS, 1, 128,
               sizeof(struct labels_shared), is_told ? (const void *)&tell : &args, test_seed(707) + n);
        for (size_t i = 0; i < LABEL_UNITS; i++) {
            const size_t row = i / LABEL_KV_HEADS, head = i % LABEL_KV_HEADS;
            const float *q = labels.q[row] + head * size, *before = labels.before[row] + head * size;
            const uint64_t position = 300 + row;
            double cosines[8];
            for (size_t h = 0; h < group; h++)
                cosines[h] = label_cosine(q + h * DIMENSION, before + h * DIMENSION, DIMENSION);
            const bool compares = want.lists[i].use == LABEL_COMPARED &&
                                  (age_max == 0 || position - want.kept[i].position <= age_max);
            const bool alike = compares && label_similarity(aggregate, cosines, labels.importance + head * group,
                                                            group) >= labels.thresholds[head];
            const bool takes = want.lists[i].use != LABEL_STAYS && !alike && !only_says;
            assert_memory_equal(labels.label[row] + head * size, takes ? q : before, size * sizeof(float));
            struct step_kept kept = want.kept[i];
            struct step_reuse counts = want.counts[i];
            verdict_expect(&want.lists[i], &kept, &counts, alike, position, age_max, only_says);
            if (!only_says) want.kept[i] = kept, want.counts[i] = counts;
            if (compares) verdicts[alike]++;
        }
        assert_memory_equal(labels.lists, want.lists, sizeof want.lists);
        if (is_told) assert_memory_equal(told, want.lists, sizeof want.lists);
        assert_memory_equal(labels.kept, want.kept, sizeof want.kept);
        assert_memory_equal(labels.counts, want.counts, sizeof want.counts);
    }
    assert_true(verdicts[0] > 10 && verdicts[1] > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(index_is_the_cpus),
        cmocka_unit_test(choices_match),
        cmocka_unit_test(pages_are_the_definitions),
        cmocka_unit_test(trees_are_the_definitions),
        cmocka_unit_test(pages_are_chosen),
        cmocka_unit_test(labels_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

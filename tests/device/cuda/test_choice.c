/* Codes of keys, scores of units, their choice and attention over lists, each against the definitions of the cpu. */
#include "kv_rig.h"

#include "kernels/level/level_internal.h"

static const double eps = 0x1p-24;

enum { DIMENSION = 64, KV_HEADS = 2, GROUP = 3, HEADS = KV_HEADS * GROUP, ITEMS = 2 };

/* A rotation that is exact: coordinate i goes to places[i], with a sign. */
struct turn {
    uint16_t weights[KV_HEADS][DIMENSION][DIMENSION]; /* halves */
};

static void turn_init(struct turn *turn, struct random *random) {
    memset(turn, 0, sizeof *turn);
    for (size_t h = 0; h < KV_HEADS; h++) {
        size_t places[DIMENSION];
        for (size_t i = 0; i < DIMENSION; i++) {
            const size_t j = (size_t)random_below(random, i + 1);
            places[i] = i;
            places[i] = places[j], places[j] = i;
        }
        for (size_t i = 0; i < DIMENSION; i++)
            turn->weights[h][i][places[i]] = float_to_half(random_below(random, 2) ? 1 : -1);
    }
}

static void turn_apply(const struct turn *turn, size_t head, const float *x, float *y) {
    for (size_t i = 0; i < DIMENSION; i++)
        for (size_t j = 0; j < DIMENSION; j++)
            if (turn->weights[head][i][j] != 0) y[j] = half_to_float(turn->weights[head][i][j]) * x[i];
}

struct choice_rig {
    struct kv_rig kv;
    struct turn turn;
    struct level_layout level;
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

static void choice_init(struct choice_rig *rig, struct random *random, size_t planes,
                        const uint64_t lengths[ITEMS], enum kv_type type) {
    kv_rig_init(&rig->kv, random, type, KV_F16, DIMENSION, DIMENSION, KV_HEADS, lengths, ITEMS);
    kv_rig_fill(&rig->kv);
    turn_init(&rig->turn, random);
    level_layout_init(&rig->level, DIMENSION, planes);
    rig->index_bytes = (uint32_t)(rig->level.bytes + 63) / 64 * 64;
    rig->slots = (uint32_t)(KV_HEADS * rig->kv.chunk_stride);
    const size_t bytes = rig->slots * rig->index_bytes;
    struct cuda_pool *pool = &rig->kv.pools.pool[2];
    pool->slots_per_buffer = rig->slots;
    pool->slot_bytes = rig->index_bytes;
    for (size_t i = 0; i < ITEMS; i++) {
        rig->index[i] = device_memory(bytes);
        memset(rig->index[i].data, 0xff, bytes);
        pool->base[i] = address_of(rig->index[i].data);
        rig->want[i] = malloc(bytes);
        memset(rig->want[i], 0xff, bytes);
        rig->index_pages[i] = malloc(rig->slots * sizeof(uint32_t));
        for (uint32_t n = 0; n < rig->slots; n++)
            rig->index_pages[i][n] = 3u << 30 | ((uint32_t)i * rig->slots + rig->slots - 1 - n);
        rig->kv.items[i].index_pages = address_of(rig->index_pages[i]);
        for (size_t h = 0; h < KV_HEADS; h++)
            for (size_t c = 0; c < lengths[i] / 64; c++) {
                float keys[64][DIMENSION], k[DIMENSION], v[DIMENSION];
                uint8_t *block = rig->want[i] + (h * rig->kv.chunk_stride + c) * rig->index_bytes;
                for (size_t t = 0; t < 64; t++) {
                    rig->kv.attention.load(&rig->kv.layout, rig->kv.chunks[i][h * rig->kv.chunk_stride + c],
                                           t, k, v);
                    turn_apply(&rig->turn, h, k, keys[t]);
                }
                level_set_center(&rig->level, block, keys[0]);
                for (size_t t = 0; t < 64; t++) level_store(&rig->level, block, t, keys[t]);
            }
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
    struct cuda_level_build_args args = {.step = address_of(&head),
                                         .items = address_of(rig->kv.items),
                                         .pools = address_of(&rig->kv.pools),
                                         .rotation = address_of(rig->turn.weights),
                                         .layer_pages = kv_rig_layer_pages(&rig->kv),
                                         .shape = rig->kv.shape,
                                         .item_count = 3,
                                         .factors_offset = (uint32_t)rig->level.factors_offset,
                                         .center_offset = (uint32_t)rig->level.center_offset,
                                         .step_size = steps[rig->level.planes]};
    char name[32];
    snprintf(name, sizeof name, "level_build_%zu", rig->level.planes);
    launch(name, 5, KV_HEADS, 3, 256, level_build_shared(DIMENSION), &args, seed);
}

/* Codes and centers are the cpu's; a factor, which is a quotient of sums, may be a half's place beside. */
static void index_is_the_cpus(void **state) {
    (void)state;
    static struct choice_rig rig;
    struct random random;
    random_init(&random, test_seed(701));
    static const size_t planes[] = {1, 2, 4, 1};
    for (size_t n = 0; n < 4; n++) {
        choice_init(&rig, &random, planes[n], (const uint64_t[]){200, 128}, n == 3 ? KV_Q8 : KV_F16);
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
                                        DIMENSION * 2);
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

enum { ROWS = 3, STRIDE = 64, LIST = 48 * UNIT_TOKENS };

struct choice_rule {
    uint32_t sinks, recent; /* tokens; sinks: whole units */
    uint32_t picks;         /* units */
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

/* Candidates end at a whole chunk, at least `recent` tokens before the row's end. */
static void lists_plan(struct choice *choice) {
    for (size_t n = 0; n < ROWS * KV_HEADS; n++) {
        const struct choice_rule *rule = &choice->rule;
        const uint32_t rows = (uint32_t)choice->rows[n / KV_HEADS].position + 1;
        struct cuda_list *list = &choice->lists[n];
        *list = (struct cuda_list){.rows = address_of(choice->tokens[n]), .begin = rule->sinks};
        list->end = rows <= rule->recent ? 0 : (rows - rule->recent) / 64 * 64;
        if (list->end <= list->begin) list->begin = list->end = 0;
        list->picks = (list->end - list->begin) / UNIT_TOKENS;
        if (list->picks > rule->picks) list->picks = rule->picks;
        list->count = rows - (list->end - list->begin) + list->picks * UNIT_TOKENS;
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
    struct cuda_level_score_args args = {.rows = address_of(choice->rows),
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
                                         .scale = 0.125f};
    char name[32];
    fill_nan(choice->scores, ROWS * HEADS * STRIDE);
    snprintf(name, sizeof name, "level_score_%zu", rig->level.planes);
    launch(name, 1, KV_HEADS, ROWS, 256, (GROUP + 3) / 4 * 4 * choice->query_bytes, &args, seed);
}

/* By the cpu's kernel: the best of a unit. */
static void scores_check(struct choice_rig *rig, const struct choice *choice) {
    struct level_kernels level;
    level_kernels_init(&level, 0);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t h = 0; h < HEADS; h++) {
            const struct cuda_list *list = &choice->lists[r * KV_HEADS + h / GROUP];
            const uint64_t end = list->end;
            const void *blocks[8];
            float tokens[STRIDE * 8];
            const size_t item = choice->rows[r].item;
            for (size_t c = 0; c < 8; c++)
                blocks[c] = index_at(rig, item, h / GROUP, c);
            if (end == 0) continue;
            level.score(&(struct level_score_args){.layout = &rig->level,
                                                   .blocks = blocks,
                                                   .token_end = end,
                                                   .queries = (const char *)choice->queries.data +
                                                              (r * HEADS + h) * choice->query_bytes,
                                                   .heads = 1,
                                                   .scores = tokens,
                                                   .stride = end});
            for (size_t u = 0; u < end / 8; u++) {
                const double got = (double)choice->scores[(r * HEADS + h) * STRIDE + u];
                double best = -INFINITY, most = 0;
                for (size_t t = u * 8; t < u * 8 + 8; t++) {
                    best = fmax(best, 0.125 * (double)tokens[t]);
                    most = fabs((double)tokens[t]) > most ? fabs((double)tokens[t]) : most;
                }
                if (u < list->begin / 8)
                    assert_true(got < -1e29);
                else /* products with the center and by codes, each of 64 terms */
                    check_near(got, best * log2(exp(1)), (80 * eps * most + 64 * eps * 8) + 1e-5,
                               "row %zu head %zu unit %zu", r, h, u);
            }
        }
}

static void units_pick(struct choice *choice, uint64_t seed) {
    struct cuda_choose_args args = {.scores = address_of(choice->scores),
                                    .keys = address_of(choice->keys),
                                    .chosen = address_of(choice->chosen),
                                    .lists = address_of(choice->lists),
                                    .row_count = ROWS,
                                    .kv_head_count = KV_HEADS,
                                    .group = GROUP,
                                    .unit_stride = STRIDE};
    memset(choice->tokens, 0xff, sizeof choice->tokens);
    launch("units_choose", KV_HEADS, ROWS, 1, 1024, sizeof(struct choose_shared), &args, seed);
}

/* Shares of a unit, from the scores as they are. */
static void shares_of(const struct choice *choice, size_t list, uint32_t begin, uint32_t end,
                      double *shares) {
    for (uint32_t u = 0; u < STRIDE; u++) shares[u] = 0;
    for (size_t h = 0; h < GROUP; h++) {
        const float *scores = choice->scores + (list * GROUP + h) * STRIDE;
        double total = 0, most = -INFINITY;
        for (uint32_t u = begin; u < end; u++) most = (double)scores[u] > most ? (double)scores[u] : most;
        for (uint32_t u = begin; u < end; u++) total += exp2((double)scores[u] - most);
        for (uint32_t u = begin; u < end; u++) shares[u] += exp2((double)scores[u] - most) / total;
    }
}

static void lists_check(const struct choice *choice) {
    for (size_t n = 0; n < ROWS * KV_HEADS; n++) {
        const struct cuda_list *list = &choice->lists[n];
        const uint32_t position = (uint32_t)choice->rows[n / KV_HEADS].position, *tokens = choice->tokens[n];
        const uint32_t units = position / 8 + 1, begin = list->begin / 8, end = list->end / 8;
        const uint32_t candidates = end - begin, picks = list->picks;
        uint32_t picked = 0;
        bool is_listed[STRIDE] = {false};
        for (uint32_t i = 0; i < list->count; i++) {
            assert_true(tokens[i] <= position && (i == 0 || tokens[i] > tokens[i - 1]));
            assert_true(tokens[i] % 8 == i % 8);
            is_listed[tokens[i] / 8] = true;
        }
        if (list->count < LIST) assert_true(tokens[list->count] == 0xffffffffu);
        double shares[STRIDE], least = INFINITY, best_out = 0;
        if (candidates > 0) shares_of(choice, n, begin, end, shares);
        for (uint32_t u = begin; picks < candidates && u < end; u++)
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
        if (picked > 0 && best_out > least * (1 + 1e-5))
            fail_msg("list %zu: %g is left out, %g in", n, best_out, least);
    }
}

static void attention_check(struct choice_rig *rig, struct choice *choice, uint64_t seed) {
    const uint32_t stride = attention_partial_stride(DIMENSION);
    static float partials[ROWS * HEADS * ATTENTION_RANGES_MAX * (4 + DIMENSION)], y[ROWS * HEADS * DIMENSION];
    fill_nan(partials, sizeof partials / 4);
    fill_nan(y, ROWS * HEADS * DIMENSION);
    struct cuda_attention_list_args args = {.attention = {.rows = address_of(choice->rows),
                                                          .items = address_of(rig->kv.items),
                                                          .pools = address_of(&rig->kv.pools),
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
    launch("attention_list_8_4_f16", ATTENTION_RANGES_MAX, KV_HEADS, ROWS, 128, attention_decode_shared(8, 4),
           &args, seed);
    struct cuda_merge_args merge = {.rows = address_of(choice->rows),
                                    .partials = address_of(partials),
                                    .lists = address_of(choice->lists),
                                    .y = address_of(y),
                                    .row_count = ROWS,
                                    .y_stride = HEADS * DIMENSION,
                                    .head_count = HEADS,
                                    .v_dimension = DIMENSION,
                                    .partial_stride = stride,
                                    .group = GROUP};
    launch("attention_merge", HEADS, ROWS, 1, 512, sizeof(struct merge_shared), &merge, seed);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t h = 0; h < HEADS; h++) {
            const size_t n = r * KV_HEADS + h / GROUP;
            uint8_t takes[STRIDE * 8] = {0};
            double out[DIMENSION], bound[DIMENSION];
            for (uint32_t i = 0; i < choice->lists[n].count; i++) takes[choice->tokens[n][i]] = 1;
            kv_rig_attend(&rig->kv, choice->rows[r].item, h / GROUP, choice->q + (r * HEADS + h) * DIMENSION,
                          choice->rows[r].position, 0, takes, 0.125, 0, 16 * eps, 16 * 0x1p-22 + 200 * eps,
                          out, bound);
            for (size_t d = 0; d < DIMENSION; d++)
                check_near(y[(r * HEADS + h) * DIMENSION + d], out[d], bound[d], "row %zu head %zu, %zu", r,
                           h, d);
        }
}

static void choices_match(void **state) {
    (void)state;
    static struct choice_rig rig;
    static struct choice choice;
    struct random random;
    random_init(&random, test_seed(702));
    static const size_t planes[] = {1, 2, 4};
    for (size_t n = 0; n < 3; n++) {
        const uint64_t seed = test_seed(702) + n * 10;
        choice_init(&rig, &random, planes[n], (const uint64_t[]){470, 180}, KV_F16);
        rig.kv.items[0].position_first = rig.kv.items[1].position_first = 0;
        rig.kv.items[0].row_count = 470, rig.kv.items[1].row_count = 180;
        index_build(&rig, seed); /* seven chunks: the first five blocks of a head */
        struct choice_rule rules[] = {{8, 64, 10}, {16, 40, 3}, {0, 64, 40}};
        choice.rule = rules[n];
        choice.rows[0] = (struct step_row){379, 0, 0};
        choice.rows[1] = (struct step_row){n == 1 ? 5 : 179, 0, 1};
        choice.rows[2] = (struct step_row){70, 0, 1};
        fill_normal(&random, choice.q, ROWS * HEADS * DIMENSION, 2.0);
        lists_plan(&choice);
        queries_make(&rig, &choice, seed);
        scores_make(&rig, &choice, seed + 1);
        scores_check(&rig, &choice);
        units_pick(&choice, seed + 2);
        lists_check(&choice);
        attention_check(&rig, &choice, seed + 3);
        /* of equals the first */
        for (size_t i = 0; i < ROWS * HEADS * STRIDE; i++) choice.scores[i] = 1.5f;
        for (uint64_t k = 0; k < 5; k++) {
            units_pick(&choice, seed + 4 + k);
            lists_check(&choice);
        }
        for (uint32_t i = 0; i < choice.lists[0].picks * 8 && i < 40; i++)
            assert_int_equal(choice.tokens[0][rules[n].sinks + i], rules[n].sinks + i);
        guarded_destroy(&choice.queries);
        choice_deinit(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(index_is_the_cpus),
        cmocka_unit_test(choices_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

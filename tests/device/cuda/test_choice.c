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
    uint32_t index_bytes;
    uint64_t index_layer; /* bytes to the layer's */
    struct guarded index[ITEMS];
    uint8_t *want[ITEMS]; /* of the layer, by the cpu */
    uint64_t indexes[ITEMS];
};

static void choice_init(struct choice_rig *rig, struct random *random, size_t planes,
                        const uint64_t lengths[ITEMS], enum kv_type type) {
    kv_rig_init(&rig->kv, random, type, KV_F16, DIMENSION, DIMENSION, KV_HEADS, lengths, ITEMS);
    kv_rig_fill(&rig->kv);
    turn_init(&rig->turn, random);
    level_layout_init(&rig->level, DIMENSION, planes);
    rig->index_bytes = (uint32_t)(rig->level.bytes + 63) / 64 * 64;
    const size_t bytes = KV_HEADS * rig->kv.chunk_stride * rig->index_bytes;
    rig->index_layer = KV_RIG_LAYER * bytes;
    for (size_t i = 0; i < ITEMS; i++) {
        rig->index[i] = device_memory(KV_RIG_LAYERS * bytes);
        memset(rig->index[i].data, 0xff, KV_RIG_LAYERS * bytes);
        rig->want[i] = malloc(bytes);
        memset(rig->want[i], 0xff, bytes);
        rig->indexes[i] = address_of(rig->index[i].data);
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
    for (size_t i = 0; i < ITEMS; i++) guarded_destroy(&rig->index[i]), free(rig->want[i]);
    kv_rig_deinit(&rig->kv);
}

static void index_build(struct choice_rig *rig, uint64_t seed) {
    static const float steps[5] = {0, 1.5958f, 0.9957f, 0, 0.3352f};
    struct step_head head = {0, ITEMS};
    struct cuda_level_build_args args = {.step = address_of(&head),
                                         .items = address_of(rig->kv.items),
                                         .pools = address_of(&rig->kv.pools),
                                         .rotation = address_of(rig->turn.weights),
                                         .indexes = address_of(rig->indexes),
                                         .layer_pages = kv_rig_layer_pages(&rig->kv),
                                         .layer_index = rig->index_layer,
                                         .shape = rig->kv.shape,
                                         .item_count = 3,
                                         .index_bytes = rig->index_bytes,
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
                    const uint8_t *got = (uint8_t *)rig.index[i].data + rig.index_layer + at,
                                  *want = rig.want[i] + at;
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
        const uint8_t *untouched =
            (uint8_t *)rig.index[1].data + rig.index_layer; /* chunk 0 was complete before */
        assert_true(untouched[0] == 0xff && untouched[rig.level.factors_offset] == 0xff);
        choice_deinit(&rig);
    }
}

enum { ROWS = 3, STRIDE = 64, LIST = 48 };

struct choice {
    struct step_row rows[ROWS];
    _Alignas(64) float q[ROWS * HEADS * DIMENSION];
    float scores[ROWS * HEADS * STRIDE];
    uint32_t keys[ROWS * KV_HEADS * STRIDE], lists[ROWS * KV_HEADS * LIST], counts[ROWS * KV_HEADS];
    struct guarded queries;
    uint32_t query_bytes;
    struct choice_rule rule;
};

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
                                         .indexes = address_of(rig->indexes),
                                         .queries = address_of(choice->queries.data),
                                         .scores = address_of(choice->scores),
                                         .layer_index = rig->index_layer,
                                         .rule = choice->rule,
                                         .row_count = ROWS,
                                         .kv_head_count = KV_HEADS,
                                         .group = GROUP,
                                         .query_bytes = choice->query_bytes,
                                         .dimension = DIMENSION,
                                         .index_bytes = rig->index_bytes,
                                         .factors_offset = (uint32_t)rig->level.factors_offset,
                                         .center_offset = (uint32_t)rig->level.center_offset,
                                         .unit_stride = STRIDE,
                                         .scale = 0.125f};
    char name[32];
    fill_nan(choice->scores, ROWS * HEADS * STRIDE);
    snprintf(name, sizeof name, "level_score_%zu", rig->level.planes);
    launch(name, 1, KV_HEADS, ROWS, 256, (GROUP + 3) / 4 * 4 * choice->query_bytes, &args, seed);
}

/* By the cpu's kernel: log2 of the sum over a unit. */
static void scores_check(struct choice_rig *rig, const struct choice *choice) {
    struct level_kernels level;
    level_kernels_init(&level, 0);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t h = 0; h < HEADS; h++) {
            const uint64_t end = choice_end(choice->rule, choice->rows[r].position);
            const void *blocks[8];
            float tokens[STRIDE * 8];
            const size_t item = choice->rows[r].item;
            for (size_t c = 0; c < 8; c++)
                blocks[c] = (const uint8_t *)rig->index[item].data + rig->index_layer +
                            (h / GROUP * rig->kv.chunk_stride + c) * rig->index_bytes;
            if (end <= choice->rule.sinks) continue;
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
                double sum = 0, most = 0;
                for (size_t t = u * 8; t < u * 8 + 8; t++) {
                    sum += exp(0.125 * (double)tokens[t]);
                    most = fabs((double)tokens[t]) > most ? fabs((double)tokens[t]) : most;
                }
                if (u < choice->rule.sinks / 8)
                    assert_true(got < -1e29);
                else /* products with the center and by codes, each of 64 terms; exp2 and log2 */
                    check_near(got, log2(sum), (80 * eps * most + 64 * eps * 8) + 1e-5,
                               "row %zu head %zu unit %zu", r, h, u);
            }
        }
}

static void units_pick(struct choice *choice, uint64_t seed) {
    struct cuda_choose_args args = {.rows = address_of(choice->rows),
                                    .scores = address_of(choice->scores),
                                    .keys = address_of(choice->keys),
                                    .lists = address_of(choice->lists),
                                    .counts = address_of(choice->counts),
                                    .rule = choice->rule,
                                    .row_count = ROWS,
                                    .kv_head_count = KV_HEADS,
                                    .group = GROUP,
                                    .unit_stride = STRIDE,
                                    .list_stride = LIST};
    memset(choice->lists, 0xff, sizeof choice->lists);
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
        const uint64_t position = choice->rows[n / KV_HEADS].position;
        const uint32_t units = (uint32_t)position / 8 + 1, *list = choice->lists + n * LIST;
        uint32_t begin = choice->rule.sinks / 8, end = choice_end(choice->rule, position) / 8, picked = 0;
        if (begin > units) begin = units;
        if (end > units) end = units;
        const uint32_t candidates = end > begin ? end - begin : 0;
        const uint32_t picks = choice->rule.picks < candidates ? choice->rule.picks : candidates;
        bool is_listed[STRIDE] = {false};
        assert_int_equal(choice->counts[n], units - candidates + picks);
        for (uint32_t i = 0; i < choice->counts[n]; i++) {
            assert_true(list[i] < units && (i == 0 || list[i] > list[i - 1]));
            is_listed[list[i]] = true;
        }
        if (choice->counts[n] < LIST) assert_true(list[choice->counts[n]] == 0xffffffffu);
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
                                            .lists = address_of(choice->lists),
                                            .counts = address_of(choice->counts),
                                            .list_stride = LIST};
    launch("attention_list_8_4_f16", ATTENTION_RANGES_MAX, KV_HEADS, ROWS, 128, attention_decode_shared(8, 4),
           &args, seed);
    struct cuda_merge_args merge = {.rows = address_of(choice->rows),
                                    .partials = address_of(partials),
                                    .counts = address_of(choice->counts),
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
            for (uint32_t i = 0; i < choice->counts[n]; i++)
                memset(takes + choice->lists[n * LIST + i] * 8, 1, 8);
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
        for (uint32_t i = 0; i < rules[n].picks && i < 5; i++)
            assert_int_equal(choice.lists[rules[n].sinks / 8 + i], rules[n].sinks / 8 + i);
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

/* Lists that are kept while queries stay alike (attention/reuse.h): Eq. 7 to 10 of [clo] and where they have no
 * meaning, and over a cache of random rows what is looked up, chosen, attended to and forgotten. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attention.h"
#include "attention/reuse_options.h"
#include "attention/reuse_thresholds.h"
#include "base/random.h"
#include "cache/kv_cache.h"
#include "device/device.h"
#include "device/host_span.h"

enum {
    DIMENSION = 32,
    HEADS = 4,
    KV_HEADS = 2,
    GROUP = HEADS / KV_HEADS,
    LAYERS = 2,
    SEQUENCES = 2,
    CONTEXT = 512,
    LENGTH = 300,
    KEEP = 60,
    SINKS = 4,
    RECENT = 16,
    Q_SIZE = HEADS * DIMENSION,
    KV_SIZE = KV_HEADS * DIMENSION
};

/* ---- numbers ---- */

static void assert_close(double found, double expected) {
    if (!(fabs(found - expected) < 1e-12)) fail_msg("found %.15g, expected %.15g", found, expected);
}

static void thresholds_follow_importance(void **state) {
    (void)state;
    struct reuse_options options = reuse_options_default();
    assert_close(reuse_threshold(&options, 1), 0.8);
    assert_close(reuse_threshold(&options, 0), -1);
    /* lambda = 1/8; theta = 1/8 arccos 0.8 + 7/8 pi */
    assert_close(reuse_threshold(&options, 0.5), cos(0.125 * 0.6435011087932844 + 0.875 * 3.141592653589793));
    for (int i = 0; i < 10; i++)
        assert_true(reuse_threshold(&options, 0.1 * i) < reuse_threshold(&options, 0.1 * (i + 1)));
    options.power = 0; /* fixed */
    assert_close(reuse_threshold(&options, 0), 0.8);
    options.eta = 1.01;
    for (int i = 0; i <= 10; i++) assert_true(reuse_threshold(&options, 0.1 * i) > 1);
    options.eta = NAN;
    assert_true(reuse_threshold(&options, 1) > 1);
}

static void groups_are_aggregated(void **state) {
    (void)state;
    struct reuse_options options = reuse_options_default();
    const double alike[3] = {0.7, 0.7, 0.7}, mixed[3] = {0.9, 0.5, 0.1}, negative[2] = {-0.5, 0.9},
                 across[2] = {0, 0.9}, broken[3] = {0.9, NAN, 0.9};
    const float even[3] = {1, 1, 1}, first[3] = {1, 0, 0}, none[3] = {0, 0, 0};
    assert_close(label_similarity(options.aggregate, alike, even, 3), 0.7);
    assert_close(label_similarity(options.aggregate, mixed, even, 3), 3 / (1 / 0.9 + 2 + 10));
    assert_close(label_similarity(options.aggregate, mixed, first, 3), 0.9);
    /* Where Eq. 10 has no meaning the least similar head speaks: unimportant heads, whose thresholds are below zero,
     * miss when one of their queries has turned away further than that. */
    assert_close(label_similarity(options.aggregate, negative, even, 2), -0.5);
    assert_close(label_similarity(options.aggregate, across, even, 2), 0);
    assert_true(label_similarity(options.aggregate, negative, even, 2) < reuse_threshold(&options, 0.8));
    assert_close(label_similarity(options.aggregate, mixed, none, 3), 0.1);
    assert_true(isnan(label_similarity(options.aggregate, broken, even, 3)));
    assert_true(isnan(label_similarity(options.aggregate, broken, first, 3)));
    assert_true(isnan(label_similarity(options.aggregate, broken, none, 3)));
    options.aggregate = LABEL_MINIMUM;
    assert_close(label_similarity(options.aggregate, mixed, even, 3), 0.1);
}

static void cosines_have_an_outcome(void **state) {
    (void)state;
    const float a[2] = {3, 4}, b[2] = {4, 3}, opposite[2] = {-3, -4}, zero[2] = {0, 0}, broken[2] = {1, NAN},
                endless[2] = {INFINITY, 1};
    assert_close(label_cosine(a, b, 2), 0.96);
    assert_true(label_cosine(a, a, 2) == 1);
    assert_true(label_cosine(a, opposite, 2) == -1);
    assert_true(isnan(label_cosine(a, zero, 2)) && isnan(label_cosine(zero, zero, 2)));
    assert_true(isnan(label_cosine(broken, a, 2)) && isnan(label_cosine(a, endless, 2)));
}

/* ---- a cache and its attention ---- */

struct rig {
    struct device *device;
    struct stream *stream;
    struct kv_cache *cache;
    struct kv_sequence *sequences[SEQUENCES];
    struct select *select;
    struct attention *attention;
    struct random random;
    float q[SEQUENCES][Q_SIZE];                          /* of the next step, in every layer */
    float expected[SEQUENCES][Q_SIZE];                   /* what layer 1 is expected to have */
    float out[LAYERS][SEQUENCES][Q_SIZE];                /* of the last step */
    uint32_t rows[LAYERS][SEQUENCES][KV_HEADS][CONTEXT]; /* of the last step */
    size_t counts[LAYERS][SEQUENCES][KV_HEADS];
    bool lacks_memory; /* a step fails, as the device has none */
    struct error error;
};

static void note(void *context, const struct select_event *event) {
    struct rig *rig = context;
    for (size_t head = 0; head < KV_HEADS; head++) {
        rig->counts[event->layer_index][event->row][head] = event->lists[head].count;
        memcpy(rig->rows[event->layer_index][event->row][head], event->lists[head].rows,
               event->lists[head].count * sizeof(uint32_t));
    }
}

static void fill(struct rig *rig, float *values, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = (float)random_normal(&rig->random);
}

/* Rows of K and V, [2][item][row][KV_SIZE], that depend on their positions alone. */
static void fill_kv(float *kv, const struct attention_rows *rows, size_t first, size_t row_count) {
    for (size_t part = 0; part < 2; part++)
        for (size_t i = 0; i < rows->item_count; i++)
            for (size_t row = 0; row < row_count; row++) {
                struct random random;
                random_init(&random,
                            ((rows->items[i].position_first + row) * LAYERS + rows->layer_index) * 4 +
                                (first + i) * 2 + part);
                for (size_t d = 0; d < KV_SIZE; d++) *kv++ = (float)random_normal(&random);
            }
}

static struct select_options similar(double eta, double power, size_t age) {
    struct select_options options = select_options_default();
    options.method = &select_hash;
    options.keep = (struct select_keep){.tokens = KEEP};
    options.sinks = SINKS;
    options.recent = RECENT;
    options.code = SELECT_CODE_SIGN; /* levels are of complete chunks, and the window is shorter */
    options.dense_layers = 0;
    options.reuse.kind = REUSE_SIMILARITY;
    options.reuse.eta = eta;
    options.reuse.power = power;
    options.reuse.age = age;
    options.reuse.labels = REUSE_EXACT;
    return options;
}

static void use_calibrated(struct rig *rig, struct select_options options, const float *importance,
                           const struct reuse_point *curves) {
    const struct select_shape shape = {LAYERS, HEADS, KV_HEADS, DIMENSION, DIMENSION, NULL, NULL};
    const struct select_calibration calibration = {
        .path = "none", .head_importance = importance, .reuse_curves = curves};
    attention_drop_select(rig->attention);
    select_destroy(rig->select);
    const struct select_setup setup = {.shape = &shape,
                                       .options = &options,
                                       .calibration = &calibration,
                                       .row_capacity = CONTEXT,
                                       .sequence_capacity = 1};
    assert_ok(select_create(&rig->select, rig->device, &setup, &rig->error), rig->error);
    assert_ok(kv_cache_set_key_index(rig->cache, select_key_index_bytes(rig->select), 0, &rig->error),
              rig->error);
    for (size_t i = 0; i < SEQUENCES; i++)
        for (size_t layer = 0; layer < LAYERS; layer++) {
            const struct attend_item item = {.view = kv_sequence_view(rig->sequences[i], rig->stream, layer),
                                             .row_count = kv_sequence_length(rig->sequences[i])};
            if (item.row_count > 0)
                select_append(rig->select, rig->stream, layer, &item, 1, (struct span){.buffer = NULL});
        }
    assert_ok(attention_set_select(rig->attention, rig->select, &rig->error), rig->error);
    attention_set_observer(rig->attention, note, rig);
}

static void use(struct rig *rig, struct select_options options, const float *importance) {
    use_calibrated(rig, options, importance, NULL);
}

struct expectation {
    struct rig *rig;
    const struct attend_operation *operation;
};

static bool expected_queries(void *context, size_t layer, struct attend_operation *next) {
    const struct expectation *expectation = context;
    if (layer >= LAYERS) return false;
    *next = *expectation->operation;
    next->q = host_span(expectation->rig->expected[0]);
    return true;
}

/* New rows of `count` sequences from `first` on, attended to by their choice; chooses false: a prompt. */
static void rows(struct rig *rig, size_t first, size_t count, size_t row_count, bool chooses) {
    const struct select_options *options = select_get_options(rig->select);
    const struct select_rule rule = select_rule_of(options);
    const struct select_rule *rules[SEQUENCES] = {&rule, &rule};
    float *kv = calloc(2 * count * row_count, KV_SIZE * sizeof *kv);
    float *q = calloc(count * row_count, Q_SIZE * sizeof *q),
          *out = calloc(count * row_count, Q_SIZE * sizeof *out);
    struct attend_item items[SEQUENCES];
    struct attention_rows new_rows = {.kv_head_count = KV_HEADS,
                                      .k = host_span(kv),
                                      .v = host_span(kv + count * row_count * KV_SIZE),
                                      .k_stride = KV_SIZE,
                                      .v_stride = KV_SIZE,
                                      .sequences = &rig->sequences[first],
                                      .items = items,
                                      .item_count = count};
    for (size_t i = 0; i < count * row_count; i++)
        memcpy(q + i * Q_SIZE, rig->q[first + i / row_count], sizeof rig->q[0]);
    for (size_t i = 0; i < count; i++) {
        const uint64_t length = kv_sequence_length(rig->sequences[first + i]);
        items[i] = (struct attend_item){
            .row_first = i * row_count, .row_count = row_count, .position_first = length};
        assert_ok(kv_sequence_reserve(rig->sequences[first + i], length + row_count, &rig->error),
                  rig->error);
    }
    for (size_t layer = 0; layer < LAYERS; layer++) {
        struct attention_layer step = {.index = layer,
                                       .sequences = &rig->sequences[first],
                                       .rules = chooses ? rules : NULL,
                                       .operation = {.q = host_span(q),
                                                     .q_stride = Q_SIZE,
                                                     .out = host_span(out),
                                                     .out_stride = Q_SIZE,
                                                     .head_count = HEADS,
                                                     .kv_head_count = KV_HEADS,
                                                     .scale = 0.2F,
                                                     .items = items,
                                                     .item_count = count}};
        struct expectation expectation = {rig, &step.operation};
        step.math.context = &expectation;
        if (chooses) step.math.queries = expected_queries;
        new_rows.layer_index = layer;
        fill_kv(kv, &new_rows, first, row_count);
        assert_ok(attention_begin_layer(rig->attention, &new_rows, &rig->error), rig->error);
        attention_append(rig->attention, rig->stream, &new_rows);
        attention_attend(rig->attention, rig->stream, &step);
        const enum status status = attention_end_layer(rig->attention, rig->stream, &new_rows, &rig->error);
        assert_int_equal(status, rig->lacks_memory ? STATUS_MEMORY : STATUS_OK);
        if (rig->lacks_memory) break;
        for (size_t i = 0; i < count; i++)
            memcpy(rig->out[layer][first + i], out + ((i + 1) * row_count - 1) * Q_SIZE,
                   sizeof rig->out[0][0]);
    }
    attention_end_step(rig->attention);
    for (size_t i = 0; i < count && !rig->lacks_memory; i++)
        kv_sequence_set_length(rig->sequences[first + i],
                               kv_sequence_length(rig->sequences[first + i]) + row_count);
    free(kv);
    free(q);
    free(out);
}

static void step(struct rig *rig, size_t sequence) { rows(rig, sequence, 1, 1, true); }

static struct reuse_counts counts(const struct rig *rig) {
    return attention_statistics(rig->attention).reuse;
}

/* Since the last call, of so many lookups. */
static uint64_t hits_of(struct rig *rig, uint64_t lookups) {
    const struct reuse_counts now = counts(rig);
    attention_reset_statistics(rig->attention);
    assert_int_equal(now.hits + now.misses, lookups);
    return now.hits;
}

enum { STEP_LOOKUPS = LAYERS * KV_HEADS };

static void rig_open(struct rig *rig, struct select_options options, const float *importance) {
    const struct device_options device = {.thread_count = 2, .mask = cpu_default()};
    const struct kv_cache_config config = {.layer_count = LAYERS,
                                           .kv_head_count = KV_HEADS,
                                           .k_dimension = DIMENSION,
                                           .v_dimension = DIMENSION,
                                           .k_type = KV_F16,
                                           .v_type = KV_F16,
                                           .token_capacity = SEQUENCES * CONTEXT,
                                           .sequence_capacity = SEQUENCES};
    const struct attention_options attention = {.kv_head_count = KV_HEADS,
                                                .layer_count = LAYERS,
                                                .head_count = HEADS,
                                                .k_dimension = DIMENSION,
                                                .sequence_capacity = SEQUENCES,
                                                .context_size = CONTEXT};
    *rig = (struct rig){.select = NULL};
    random_init(&rig->random, 7);
    assert_ok(device_cpu_create(&rig->device, &device, &rig->error), rig->error);
    assert_ok(rig->device->operations->stream_create(rig->device, &rig->stream, &rig->error), rig->error);
    assert_ok(kv_cache_create(&rig->cache, rig->device, &config, &rig->error), rig->error);
    for (size_t i = 0; i < SEQUENCES; i++)
        assert_ok(kv_sequence_create(&rig->sequences[i], rig->cache, CONTEXT, &rig->error), rig->error);
    assert_ok(attention_create(&rig->attention, rig->device, &attention, &rig->error), rig->error);
    use(rig, options, importance);
    fill(rig, rig->q[0], SEQUENCES * Q_SIZE);
    fill(rig, rig->expected[0], SEQUENCES * Q_SIZE);
    for (size_t i = 0; i < SEQUENCES; i++) rows(rig, i, 1, LENGTH, false);
}

static void rig_close(struct rig *rig) {
    attention_destroy(rig->attention);
    select_destroy(rig->select);
    for (size_t i = 0; i < SEQUENCES; i++) kv_sequence_destroy(rig->sequences[i]);
    kv_cache_destroy(rig->cache);
    rig->device->operations->stream_destroy(rig->stream);
    device_destroy(rig->device);
}

/* ---- what is hit ---- */

static void a_constant_query_selects_once(void **state) {
    (void)state;
    static const size_t ages[2] = {0, 9};
    enum { STEPS = 40 };
    for (size_t round = 0; round < 2; round++) {
        struct rig rig;
        rig_open(&rig, similar(1, 0, ages[round]), NULL);
        for (size_t i = 0; i < STEPS; i++) {
            step(&rig, 0);
            /* chosen in step 0, and with an age of 9 in steps 10, 20, ... */
            bool chooses = ages[round] == 0 ? i == 0 : i % (ages[round] + 1) == 0;
            assert_int_equal(hits_of(&rig, STEP_LOOKUPS), chooses ? 0 : STEP_LOOKUPS);
        }
        rig_close(&rig);
    }
}

static bool is_in(const uint32_t *list, size_t count, uint32_t row) {
    for (size_t i = 0; i < count; i++)
        if (list[i] == row) return true;
    return false;
}

/* A hit attends to what was chosen and, with an age, to every row since: none is in neither.  Without one, as
 * published, rows that leave the window are in neither. */
static void no_row_falls_between(void **state) {
    (void)state;
    static const size_t ages[2] = {RECENT, 0};
    for (size_t round = 0; round < 2; round++) {
        struct rig rig;
        rig_open(&rig, similar(1, 0, ages[round]), NULL);
        step(&rig, 0);
        const size_t chosen = rig.counts[0][0][0];
        uint32_t first[CONTEXT];
        assert_int_equal(chosen, KEEP);
        memcpy(first, rig.rows[0][0][0], sizeof first);
        const uint32_t window = LENGTH + 1 - RECENT; /* where it began */
        size_t lost = 0;
        for (uint32_t age = 1; age <= RECENT; age++) {
            step(&rig, 0);
            const uint32_t *list = rig.rows[0][0][0];
            const size_t count = rig.counts[0][0][0];
            assert_int_equal(count, chosen + (round == 0 ? age : 0));
            assert_memory_equal(list, first, (chosen - RECENT) * sizeof *list);
            for (uint32_t row = window; row <= LENGTH + age; row++) lost += !is_in(list, count, row);
            for (size_t i = 1; i < count; i++) assert_true(list[i] > list[i - 1]);
            assert_true(is_in(list, count, LENGTH + age));
        }
        assert_int_equal(counts(&rig).age_max, RECENT);
        if (round == 0) assert_int_equal(lost, 0);
        if (round == 1) assert_int_equal(lost, RECENT * (RECENT + 1) / 2);
        rig_close(&rig);
    }
}

static void heads_hit_one_by_one(void **state) {
    (void)state;
    struct rig rig;
    rig_open(&rig, similar(0.9, 0, 64), NULL);
    step(&rig, 0);
    (void)hits_of(&rig, STEP_LOOKUPS);
    fill(&rig, rig.q[0], GROUP * DIMENSION); /* of KV head 0 */
    step(&rig, 0);
    assert_int_equal(hits_of(&rig, STEP_LOOKUPS), LAYERS);
    /* The label has been replaced where it missed, and only there. */
    step(&rig, 0);
    assert_int_equal(hits_of(&rig, STEP_LOOKUPS), STEP_LOOKUPS);
    rig_close(&rig);
}

static void queries_that_are_no_numbers_choose(void **state) {
    (void)state;
    static const float values[3] = {NAN, 0, INFINITY};
    static const float nothing[LAYERS * HEADS]; /* so that any similarity at all is enough */
    for (size_t round = 0; round < 3; round++) {
        struct rig rig;
        rig_open(&rig, similar(0.8, 3, 64), nothing);
        step(&rig, 0);
        (void)hits_of(&rig, STEP_LOOKUPS);
        for (size_t i = 0; i < Q_SIZE; i++) rig.q[0][i] = values[round];
        for (size_t again = 0; again < 2; again++) {
            step(&rig, 0);
            assert_int_equal(hits_of(&rig, STEP_LOOKUPS), 0);
        }
        fill(&rig, rig.q[0], Q_SIZE); /* against a label that is no number */
        step(&rig, 0);
        assert_int_equal(hits_of(&rig, STEP_LOOKUPS), 0);
        fill(&rig, rig.q[0], Q_SIZE);
        step(&rig, 0);
        assert_int_equal(hits_of(&rig, STEP_LOOKUPS), STEP_LOOKUPS);
        rig_close(&rig);
    }
}

static void opposite_queries(void **state) {
    (void)state;
    static const float nothing[LAYERS * HEADS];
    for (size_t round = 0; round < 2; round++) {
        struct rig rig;
        rig_open(&rig, similar(0.8, round == 0 ? 3 : 0, 64), nothing);
        step(&rig, 0);
        (void)hits_of(&rig, STEP_LOOKUPS);
        for (size_t i = 0; i < Q_SIZE; i++) rig.q[0][i] = -rig.q[0][i];
        step(&rig, 0); /* without importance all is alike enough; held to eta, nothing is */
        assert_int_equal(hits_of(&rig, STEP_LOOKUPS), round == 0 ? STEP_LOOKUPS : 0);
        rig_close(&rig);
    }
}

/* Thresholds by what was measured: in layer 0 KV head 0 loses nothing by reuse, in layer 1 KV head 1; the others lose a
 * lot.  Without a measurement there is no selection: no one similarity is safe on every model. */
static void measured_thresholds(void **state) {
    (void)state;
    static struct reuse_point curves[LAYERS * KV_HEADS * REUSE_CURVE_POINTS];
    static const float nothing[LAYERS * HEADS]; /* by which importance alone would reuse everything */
    for (size_t i = 0; i < LAYERS * KV_HEADS * REUSE_CURVE_POINTS; i++) {
        const size_t point = i % REUSE_CURVE_POINTS, lane = i / REUSE_CURVE_POINTS;
        const float hits = 1 - (float)point / (REUSE_CURVE_POINTS - 1);
        const bool is_free = lane == 0 || lane == 3;
        curves[i] = (struct reuse_point){(float)reuse_curve_thresholds[point], hits, is_free ? 0 : hits};
    }
    for (size_t round = 0; round < 2; round++) {
        struct select_options options = similar(round == 1 ? 1.01 : 0.8, 3, 64);
        struct rig rig;
        rig_open(&rig, options, nothing);
        options.reuse.reused = 0.5;
        use_calibrated(&rig, options, nothing, round == 1 ? NULL : curves);
        step(&rig, 0);
        (void)hits_of(&rig, STEP_LOOKUPS);
        for (size_t i = 0; i < 3; i++) {
            fill(&rig, rig.q[0], Q_SIZE);
            step(&rig, 0); /* queries that are unlike those of before */
            assert_int_equal(hits_of(&rig, STEP_LOOKUPS), round == 0 ? 2 : 0);
        }
        step(&rig, 0); /* the same once more: above 1 nothing is reused */
        assert_int_equal(hits_of(&rig, STEP_LOOKUPS), round == 0 ? 2 : 0);
        options.reuse.eta = 0.8;
        const struct select_shape shape = {LAYERS, HEADS, KV_HEADS, DIMENSION, DIMENSION, NULL, NULL};
        const struct select_calibration calibration = {.path = "none", .head_importance = nothing};
        struct select *none;
        assert_int_equal(select_create(&none, rig.device,
                                       &(struct select_setup){.shape = &shape,
                                                              .options = &options,
                                                              .calibration = round == 0 ? NULL : &calibration,
                                                              .row_capacity = CONTEXT,
                                                              .sequence_capacity = SEQUENCES},
                                       &rig.error),
                         STATUS_USAGE);
        assert_non_null(strstr(rig.error.message, round == 0 ? "there is no calibration of this model"
                                                             : "was made before that was measured"));
        rig_close(&rig);
    }
}

/* What is left out while reusing is the receipt's part of heads that hit: nothing where none does, all of it where all
 * do; and a list that is as old as its query is new leaves out more than one that was chosen now. */
static void what_reuse_leaves_out(void **state) {
    (void)state;
    struct select_options options = similar(0.9, 0, 64);
    options.receipt = true;
    options.keep.tokens = KEEP;
    struct rig rig;
    rig_open(&rig, options, NULL);
    step(&rig, 0); /* all miss */
    struct select_statistics found = attention_statistics(rig.attention);
    assert_int_equal(found.reuse.estimated, 0);
    assert_int_equal(found.receipt.count, LAYERS * HEADS);
    attention_reset_statistics(rig.attention);
    step(&rig, 0); /* all hit */
    found = attention_statistics(rig.attention);
    assert_int_equal(found.reuse.estimated, LAYERS * HEADS);
    assert_true(found.reuse.left_out == found.receipt.sum && found.receipt.sum > 0);
    assert_true(found.reuse.worst.left_out == found.receipt.worst.left_out);
    attention_reset_statistics(rig.attention);
    fill(&rig, rig.q[0], GROUP * DIMENSION); /* KV head 0 misses */
    step(&rig, 0);
    found = attention_statistics(rig.attention);
    assert_int_equal(found.reuse.estimated, LAYERS * HEADS / KV_HEADS);
    assert_true(found.reuse.left_out > 0 && found.reuse.left_out < found.receipt.sum);
    /* all heads hit, whatever their queries */
    options.reuse.eta = -1;
    use(&rig, options, NULL);
    step(&rig, 0);
    attention_reset_statistics(rig.attention);
    step(&rig, 0);
    const double same = attention_statistics(rig.attention).reuse.left_out;
    for (size_t i = 0; i < Q_SIZE; i++) rig.q[0][i] = -rig.q[0][i]; /* wants what was of least weight */
    attention_reset_statistics(rig.attention);
    step(&rig, 0);
    found = attention_statistics(rig.attention);
    assert_int_equal(found.reuse.hits, STEP_LOOKUPS);
    assert_true(found.reuse.left_out > 1.2 * same);
    struct select_statistics sum = {.evaluated = 0};
    select_statistics_add(&sum, &found);
    select_statistics_add(&sum, &found);
    assert_true(sum.reuse.estimated == 2 * found.reuse.estimated &&
                sum.reuse.worst.left_out == found.reuse.worst.left_out);
    rig_close(&rig);
}

/* A hit does not replace the label, so queries that turn slowly are noticed. */
static void labels_do_not_drift(void **state) {
    (void)state;
    struct rig rig;
    float from[Q_SIZE], to[Q_SIZE];
    rig_open(&rig, similar(0.9, 0, 64), NULL); /* 25.8 degrees */
    fill(&rig, from, Q_SIZE);
    for (size_t i = 0; i < Q_SIZE; i += 2) { /* as long, and at right angles */
        to[i] = -from[i + 1];
        to[i + 1] = from[i];
    }
    for (int i = 0; i <= 6; i++) {
        const double turned = i * 10 * 3.141592653589793 / 180;
        for (size_t d = 0; d < Q_SIZE; d++)
            rig.q[0][d] = (float)(cos(turned) * (double)from[d] + sin(turned) * (double)to[d]);
        step(&rig, 0);
        assert_int_equal(hits_of(&rig, STEP_LOOKUPS),
                         i % 3 == 0 ? 0 : STEP_LOOKUPS); /* at 0, 30, 60 degrees */
    }
    rig_close(&rig);
}

/* ---- what is forgotten ---- */

static void what_is_forgotten(void **state) {
    (void)state;
    struct rig rig;
    const struct select_options options = similar(1, 0, 64);
    rig_open(&rig, options, NULL);
    step(&rig, 0);
    step(&rig, 0);
    assert_int_equal(hits_of(&rig, 2 * STEP_LOOKUPS), STEP_LOOKUPS);
    /* labels are per sequence, for any query */
    memcpy(rig.q[1], rig.q[0], sizeof rig.q[0]);
    step(&rig, 1);
    assert_int_equal(hits_of(&rig, STEP_LOOKUPS), 0);
    step(&rig, 0);
    assert_int_equal(hits_of(&rig, STEP_LOOKUPS), STEP_LOOKUPS);
    /* cut back to a length that it had: the rows behind it are others */
    const uint64_t length = kv_sequence_length(rig.sequences[0]);
    kv_sequence_set_length(rig.sequences[0], length - 2);
    rows(&rig, 0, 1, 2, false);
    step(&rig, 0);
    assert_int_equal(hits_of(&rig, STEP_LOOKUPS), 0);
    /* a prompt in between */
    rows(&rig, 0, 1, 5, false);
    step(&rig, 0);
    assert_int_equal(hits_of(&rig, STEP_LOOKUPS), 0);
    /* another sequence in the same place */
    kv_sequence_destroy(rig.sequences[1]);
    assert_ok(kv_sequence_create(&rig.sequences[1], rig.cache, CONTEXT, &rig.error), rig.error);
    rows(&rig, 1, 1, LENGTH + 1, false);
    step(&rig, 1);
    assert_int_equal(hits_of(&rig, STEP_LOOKUPS), 0);
    /* another method, or the same anew */
    step(&rig, 0);
    assert_int_equal(hits_of(&rig, STEP_LOOKUPS), STEP_LOOKUPS);
    use(&rig, options, NULL);
    step(&rig, 0);
    assert_int_equal(hits_of(&rig, STEP_LOOKUPS), 0);
    rig_close(&rig);
}

static enum status no_memory(struct device *device, enum memory_kind kind, size_t size_bytes,
                             struct buffer *buffer, struct error *error) {
    (void)device, (void)kind, (void)size_bytes, (void)buffer;
    return error_set(error, STATUS_MEMORY, "none");
}

/* Where a head could not choose anew, its label is that of no list: the step that is tried again misses. */
static void a_step_that_failed(void **state) {
    (void)state;
    struct rig rig;
    struct select_options options = similar(1, 0, 300);
    options.keep = (struct select_keep){.ratio = 0.2};
    rig_open(&rig, options, NULL);
    step(&rig, 0);
    rows(&rig, 0, 1, 200, false); /* lists that are half as long again need memory */
    const struct device_operations *own = rig.device->operations;
    struct device_operations broken = *own;
    broken.allocate = no_memory;
    rig.device->operations = &broken;
    rig.lacks_memory = true;
    step(&rig, 0);
    rig.device->operations = own;
    rig.lacks_memory = false;
    attention_reset_statistics(rig.attention);
    step(&rig, 0);
    assert_int_equal(hits_of(&rig, STEP_LOOKUPS), 0);
    step(&rig, 0);
    assert_int_equal(hits_of(&rig, STEP_LOOKUPS), STEP_LOOKUPS);
    rig_close(&rig);
}

/* Sequences that step together get what each alone gets. */
static void company_changes_nothing(void **state) {
    (void)state;
    enum { STEPS = 12 };
    static float together[STEPS][SEQUENCES][Q_SIZE];
    for (int alone = 0; alone < 2; alone++) {
        struct rig rig;
        rig_open(&rig, similar(0.5, 0, 6), NULL);
        struct random queries;
        random_init(&queries, 3);
        uint64_t hits = 0;
        for (size_t i = 0; i < STEPS; i++) {
            for (size_t s = 0; s < SEQUENCES; s++)
                for (size_t d = 0; d < Q_SIZE; d++) rig.q[s][d] += 0.5F * (float)random_normal(&queries);
            if (alone == 0) rows(&rig, 0, SEQUENCES, 1, true);
            for (size_t s = 0; s < SEQUENCES && alone == 1; s++) rows(&rig, s, 1, 1, true);
            hits += hits_of(&rig, SEQUENCES * STEP_LOOKUPS);
            if (alone == 0)
                memcpy(together[i], rig.out[1], sizeof together[i]);
            else
                assert_memory_equal(rig.out[1], together[i], sizeof together[i]);
        }
        assert_true(hits > STEPS && hits < STEPS * SEQUENCES * STEP_LOOKUPS - STEPS);
        rig_close(&rig);
    }
}

/* ---- speculation ---- */

/* Layer 1 looks up, chooses and labels by what layer 0 expected of it. */
static void labels_are_speculated(void **state) {
    (void)state;
    for (size_t round = 0; round < 2; round++) {
        struct select_options options = similar(1, 0, 64);
        options.reuse.labels = round == 0 ? REUSE_SPECULATED : REUSE_EXACT;
        struct rig rig;
        rig_open(&rig, options, NULL);
        step(&rig, 0);
        (void)hits_of(&rig, STEP_LOOKUPS);
        fill(&rig, rig.q[0], Q_SIZE);
        step(&rig, 0); /* the queries are others, what was expected is not */
        assert_int_equal(hits_of(&rig, STEP_LOOKUPS), round == 0 ? KV_HEADS : 0);
        fill(&rig, rig.expected[0], Q_SIZE);
        step(&rig, 0); /* the other way round */
        assert_int_equal(hits_of(&rig, STEP_LOOKUPS), round == 0 ? KV_HEADS : STEP_LOOKUPS);
        rig_close(&rig);
    }
}

/* Above 1 nothing is reused, and nothing is speculated: the outputs are those of a selection without reuse. */
static void a_threshold_above_one_is_no_reuse(void **state) {
    (void)state;
    enum { STEPS = 6 };
    static float without[STEPS][LAYERS][Q_SIZE];
    for (size_t round = 0; round < 3; round++) {
        struct select_options options = similar(1.01, 3, 64);
        if (round == 0) options.reuse.kind = REUSE_NONE;
        if (round == 2) options.reuse.labels = REUSE_SPECULATED;
        struct rig rig;
        rig_open(&rig, options, NULL);
        for (size_t i = 0; i < STEPS; i++) {
            step(&rig, 0);
            assert_int_equal(hits_of(&rig, round == 0 ? 0 : STEP_LOOKUPS), 0);
            for (size_t layer = 0; layer < LAYERS; layer++) {
                if (round == 0)
                    memcpy(without[i][layer], rig.out[layer][0], sizeof without[0][0]);
                else
                    assert_memory_equal(rig.out[layer][0], without[i][layer], sizeof without[0][0]);
            }
        }
        rig_close(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thresholds_follow_importance),
        cmocka_unit_test(groups_are_aggregated),
        cmocka_unit_test(cosines_have_an_outcome),
        cmocka_unit_test(a_constant_query_selects_once),
        cmocka_unit_test(no_row_falls_between),
        cmocka_unit_test(heads_hit_one_by_one),
        cmocka_unit_test(queries_that_are_no_numbers_choose),
        cmocka_unit_test(opposite_queries),
        cmocka_unit_test(measured_thresholds),
        cmocka_unit_test(what_reuse_leaves_out),
        cmocka_unit_test(labels_do_not_drift),
        cmocka_unit_test(what_is_forgotten),
        cmocka_unit_test(a_step_that_failed),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(labels_are_speculated),
        cmocka_unit_test(a_threshold_above_one_is_no_reuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A decode step that is captured once and launched for each token has the bits of the same step run operation by
 * operation, whoever comes, leaves, is cut or watched meanwhile; and the host waits for its logits alone.  On the cpu
 * device, and on one with a queue, whose orders LOAM_TEST_SEED draws as it does models and histories. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "cache/kv_watch_internal.h"
#include "device/queued_device.h"
#include "engine/engine_internal.h"
#include "model/tiny_model.h"
#include "seed.h"

enum { SEQUENCES = 4, CONTEXT = 256, ROUNDS = 60, MODELS = 10, SLOTS = 8, TURNS = 200 };

#define REUSES(eta) "planes=1,page=8,sinks=8,recent=16,dense=1,age=5,reused=0,power=0,eta=" eta
/* preset, --set, --keep */
static const char *const settings[][3] = {{"full", NULL, NULL},
                                          {"hata", "planes=1,page=8,sinks=8,recent=16,dense=1", "40"},
                                          {"clo", REUSES("0.2"), "40"},
                                          {"quest", "page=16,sinks=16,recent=16,dense=0", "48"},
                                          {"hata", "sinks=4,recent=8,dense=0", "30%"}};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

/* The same history on two engines: one whose steps are graphs, and one that is observed, whose steps are not. */
enum which { GRAPH, PLAIN, ENGINES };

struct rig {
    struct device *device[ENGINES];
    struct model *model[ENGINES];
    struct engine *engine[ENGINES];
    struct sequence *sequences[ENGINES][SLOTS]; /* NULL: it is not there; histories have SEQUENCES */
    struct random random;
    size_t width;
    uint64_t launches;     /* that there must be */
    uint64_t hits, misses; /* of lists that are kept */
    bool chooses, reuses;
    struct error error;
};

static void nothing(void *context, const struct attention_event *event) {
    (void)context;
    (void)event;
}

static void rig_open(struct rig *rig, uint64_t seed, bool queued, const char *const setting[3]) {
    const struct device_options machine = {.thread_count = 1 + seed % 2, .mask = cpu_default()};
    *rig = (struct rig){.chooses = setting[2] != NULL, .reuses = strcmp(setting[0], "clo") == 0};
    random_init(&rig->random, seed);
    /* The last family has no graphs. */
    struct tiny_model tiny = tiny_model_random(&rig->random, tiny_families, TINY_FAMILIES - 1);
    if (rig->chooses) tiny.head_dimension = 32;
    const bool must_slide = strcmp(tiny.family, "gpt-oss") == 0 || strcmp(tiny.family, "gemma4") == 0 ||
                            strcmp(tiny.family, "cohere2") == 0;
    if (rig->chooses && !must_slide) tiny.window = 0;
    if (queued) tiny.input_size = 0; /* per-layer embeddings are the cpu device's alone */
    if (rig->chooses) tiny.layer_count = must_slide ? 4 : max_size(tiny.layer_count, 2); /* one may be dense */
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = SLOTS,
                        .batch_size = 40,
                        .k_type = KV_F16,
                        .v_type = KV_F16};
    assert_ok(plan_set_axes(&plan, setting[0], setting[1], setting[2], &rig->error), rig->error);
    rig->width = tiny.vocabulary_size;
    assert_ok(device_cpu_create(&rig->device[PLAIN], &machine, &rig->error), rig->error);
    if (queued)
        rig->device[GRAPH] = queued_device_create(&machine, seed);
    else
        assert_ok(device_cpu_create(&rig->device[GRAPH], &machine, &rig->error), rig->error);
    for (size_t i = 0; i < ENGINES; i++) {
        tiny_model_load_on(&tiny, "step-graph", rig->device[i], &rig->model[i]);
        assert_ok(engine_create(&rig->engine[i], rig->model[i], &plan, NULL, &rig->error), rig->error);
    }
    plan_deinit(&plan);
    engine_set_attention_observer(rig->engine[PLAIN], nothing, NULL);
}

/* Both have counted the same, each step once. */
static void statistics_compare(struct rig *rig) {
    struct select_statistics found = attention_statistics(engine_attention(rig->engine[GRAPH])),
                             expected = attention_statistics(engine_attention(rig->engine[PLAIN]));
    assert_int_equal(found.kept, expected.kept);
    assert_int_equal(found.visible, expected.visible);
    assert_int_equal(found.evaluated, expected.evaluated);
    assert_int_equal(found.reuse.hits, expected.reuse.hits);
    assert_int_equal(found.reuse.misses, expected.reuse.misses);
    assert_int_equal(found.reuse.rows, expected.reuse.rows);
    assert_int_equal(found.reuse.age_sum, expected.reuse.age_sum);
    assert_int_equal(found.reuse.age_max, expected.reuse.age_max);
    assert_true(rig->reuses || found.reuse.hits + found.reuse.misses == 0);
    rig->hits = found.reuse.hits;
    rig->misses = found.reuse.misses;
    assert_int_equal(found.lists_read, 0);
    assert_met(found.kept < found.visible && found.evaluated > 0); /* of some drawn models no layer chooses */
}

static void rig_close(struct rig *rig) {
    const struct step_graph_counts counts = engine_step_graph_counts(rig->engine[GRAPH]);
    const struct step_graph_counts none = engine_step_graph_counts(rig->engine[PLAIN]);
    assert_int_equal(counts.launches, rig->launches);
    assert_true(counts.launches == 0 || counts.captures > 0);
    assert_int_equal(none.launches + none.captures, 0);
    for (size_t i = 0; i < ENGINES; i++) {
        for (size_t s = 0; s < SLOTS; s++)
            if (rig->sequences[i][s] != NULL) sequence_destroy(rig->sequences[i][s]);
        engine_destroy(rig->engine[i]);
        model_destroy(rig->model[i]);
        device_destroy(rig->device[i]);
    }
}

/* ---- a history ---- */

static void prompt(struct rig *rig, size_t index, size_t count_min) {
    int32_t tokens[CONTEXT];
    const size_t count = count_min + random_below(&rig->random, 90);
    for (size_t i = 0; i < count; i++) tokens[i] = (int32_t)random_below(&rig->random, rig->width);
    for (size_t i = 0; i < ENGINES; i++) {
        const struct prefill_request request = {.tokens = tokens, .token_count = count};
        const float *logits;
        assert_ok(sequence_create(&rig->sequences[i][index], rig->engine[i], &rig->error), rig->error);
        assert_ok(engine_prefill(rig->engine[i], rig->sequences[i][index], &request, &logits, &rig->error),
                  rig->error);
    }
}

static void leave(struct rig *rig, size_t index) {
    for (size_t i = 0; i < ENGINES; i++) {
        sequence_destroy(rig->sequences[i][index]);
        rig->sequences[i][index] = NULL;
    }
}

static void cut(struct rig *rig, size_t index) {
    const uint64_t length = sequence_length(rig->sequences[GRAPH][index]);
    const uint64_t kept = random_below(&rig->random, length) + 1;
    for (size_t i = 0; i < ENGINES; i++) sequence_truncate(rig->sequences[i][index], kept);
}

static void give_back(struct rig *rig) {
    for (size_t s = 0; s < SEQUENCES; s++)
        if (rig->sequences[GRAPH][s] != NULL) leave(rig, s);
    for (size_t i = 0; i < ENGINES; i++) engine_give_back_memory(rig->engine[i]);
}

/* Until the next map that is compared, however long this machine takes for a step; or from now on no more. */
static void watch(struct rig *rig, bool goes_on) {
    for (size_t i = 0; i < ENGINES; i++) rig->engine[i]->cache->watch_until_ns = goes_on ? UINT64_MAX : 1;
}

/* What the map says of the last token. */
static void maps_compare(struct rig *rig, size_t index) {
    struct kv_map map[ENGINES];
    for (size_t i = 0; i < ENGINES; i++)
        assert_ok(kv_sequence_read_map(sequence_kv(rig->sequences[i][index]), 0, &map[i], &rig->error), rig->error);
    assert_int_equal(map[GRAPH].chunks.attended, map[PLAIN].chunks.attended);
    assert_int_equal(map[GRAPH].token.rows, map[PLAIN].token.rows);
    assert_int_equal(map[GRAPH].watched.rows, map[PLAIN].watched.rows);
    assert_string_equal(map[GRAPH].cells, map[PLAIN].cells);
    for (size_t i = 0; i < ENGINES; i++) kv_map_deinit(&map[i]);
}

static uint64_t launches(const struct rig *rig) {
    return engine_step_graph_counts(rig->engine[GRAPH]).launches;
}

/* A step of those that are drawn, several times, so that the kind of step stays the same. */
static void steps(struct rig *rig, bool queued) {
    struct sequence *members[ENGINES][SEQUENCES];
    int32_t tokens[SEQUENCES];
    size_t count = 0;
    const size_t times = 1 + random_below(&rig->random, 4);
    const bool is_watched = random_below(&rig->random, 4) == 0 && !rig->chooses;
    for (size_t s = 0; s < SEQUENCES; s++) {
        if (rig->sequences[GRAPH][s] == NULL || random_below(&rig->random, 4) == 0) continue;
        if (sequence_length(rig->sequences[GRAPH][s]) + times > CONTEXT) continue;
        for (size_t i = 0; i < ENGINES; i++) members[i][count] = rig->sequences[i][s];
        count++;
    }
    if (count == 0) return;
    for (size_t s = 0; s < SEQUENCES && is_watched; s++)
        if (rig->sequences[GRAPH][s] != NULL) maps_compare(rig, s);
    watch(rig, is_watched);
    for (size_t t = 0; t < times; t++) {
        float *expected = NULL;
        for (size_t s = 0; s < count; s++) tokens[s] = (int32_t)random_below(&rig->random, rig->width);
        for (size_t i = ENGINES; i-- > 0;) {
            const float *logits;
            const struct step_graph_counts before = engine_step_graph_counts(rig->engine[GRAPH]);
            const uint64_t waits = queued && i == GRAPH ? queued_device_counts(rig->device[i]).waits : 0;
            assert_ok(engine_step(rig->engine[i], members[i], tokens, count, &logits, &rig->error),
                      rig->error);
            /* The host waits for the logits, and for nothing else; where memory for lists grows, in a first step, and
             * where lists are kept, in one that is no graph, or whose lists have moved. */
            const struct step_graph_counts now = engine_step_graph_counts(rig->engine[GRAPH]);
            const bool is_graph = now.launches > before.launches && now.changes == before.changes;
            if (queued && i == GRAPH && (t > 0 || !rig->chooses) && (is_graph || !rig->reuses))
                assert_int_equal(queued_device_counts(rig->device[i]).waits, waits + 1);
            if (i == PLAIN) {
                expected = malloc(count * rig->width * sizeof *expected);
                assert_non_null(expected);
                memcpy(expected, logits, count * rig->width * sizeof *expected);
            } else {
                assert_memory_equal(logits, expected, count * rig->width * sizeof *expected);
            }
        }
        free(expected);
        if (t > 0 && !rig->chooses) rig->launches++; /* at least; where a first row comes to choose it is none */
    }
    for (size_t s = 0; s < SEQUENCES && is_watched; s++)
        if (rig->sequences[GRAPH][s] != NULL) maps_compare(rig, s);
    watch(rig, false);
}

/* Of so many rounds, and of more where these were few that a graph ran. */
static void history(uint64_t seed, bool queued, const char *const setting[3], uint64_t *hits, uint64_t *misses) {
    struct rig rig;
    rig_open(&rig, seed, queued, setting);
    for (size_t round = 0; round < ROUNDS || (launches(&rig) <= 20 && round < 4 * ROUNDS); round++) {
        const size_t index = random_below(&rig.random, SEQUENCES);
        const bool is_there = rig.sequences[GRAPH][index] != NULL;
        const uint64_t what = random_below(&rig.random, 16);
        if (!is_there && what < 10) prompt(&rig, index, 1);
        if (is_there && what == 0) leave(&rig, index);
        if (is_there && what < 3 && rig.sequences[GRAPH][index] != NULL) cut(&rig, index);
        if (what == 15 && round % 3 == 0) give_back(&rig);
        steps(&rig, queued);
    }
    assert_true(launches(&rig) >= rig.launches && launches(&rig) > 20);
    if (rig.chooses) statistics_compare(&rig);
    rig.launches = launches(&rig);
    *hits += rig.hits;
    *misses += rig.misses;
    rig_close(&rig);
}

static void histories(uint64_t seed, bool queued) {
    uint64_t hits = 0, misses = 0;
    for (size_t i = 0; i < MODELS; i++) history(seed + i, queued, settings[i % SETTINGS], &hits, &misses);
    assert_met(hits > 0 && misses > 0);
}

static void steps_as_graphs_have_the_bits_of_their_operations(void **state) {
    (void)state;
    histories(test_seed(10), false);
}

static void the_same_on_a_device_with_a_queue_where_only_the_logits_are_waited_for(void **state) {
    (void)state;
    histories(test_seed(3), true);
}

/* ---- who comes and goes, as in a server ---- */

/* The sequence's rule: what the engine was made for, its window alone, or everything. */
static void change_rule(struct rig *rig, size_t index) {
    const struct select_method *const methods[] = {&select_hash, &select_window, &select_all};
    const struct select_method *method = methods[random_below(&rig->random, 3)];
    for (size_t i = 0; i < ENGINES; i++)
        assert_ok(sequence_set_select(rig->sequences[i][index], method, (struct select_keep){.tokens = 40},
                                      &rig->error),
                  rig->error);
}

/* Requests come, change what they choose by and end at random, and all that are there step together: a graph is
 * captured for each number of them, and becomes one of others that are as many. */
static void trace(uint64_t seed, const char *const setting[3]) {
    struct rig rig;
    uint64_t taken = 0;
    rig_open(&rig, seed, false, setting);
    for (size_t turn = 0; turn < TURNS; turn++) {
        struct sequence *members[ENGINES][SLOTS];
        int32_t tokens[SLOTS];
        float *expected = NULL;
        size_t count = 0;
        for (size_t s = 0; s < SLOTS; s++) {
            const bool is_there = rig.sequences[GRAPH][s] != NULL;
            if (!is_there && random_below(&rig.random, 12) == 0) prompt(&rig, s, 1); /* some choose */
            if (is_there && (random_below(&rig.random, 40) == 0 || sequence_length(rig.sequences[GRAPH][s]) == CONTEXT))
                leave(&rig, s);
            if (rig.sequences[GRAPH][s] == NULL) continue;
            if (rig.chooses && random_below(&rig.random, 3) == 0) change_rule(&rig, s);
            for (size_t i = 0; i < ENGINES; i++) members[i][count] = rig.sequences[i][s];
            tokens[count++] = (int32_t)random_below(&rig.random, rig.width);
        }
        for (size_t i = ENGINES; i-- > 0 && count > 0;) {
            const float *logits;
            const size_t bytes = count * rig.width * sizeof *logits;
            assert_ok(engine_step(rig.engine[i], members[i], tokens, count, &logits, &rig.error), rig.error);
            if (i == GRAPH) assert_memory_equal(logits, expected, bytes);
            if (i == PLAIN) expected = malloc(bytes);
            assert_non_null(expected);
            if (i == PLAIN) memcpy(expected, logits, bytes);
        }
        free(expected);
        taken += count > 0;
    }
    const struct step_graph_counts counts = engine_step_graph_counts(rig.engine[GRAPH]);
    assert_true(counts.captures <= SLOTS * (rig.chooses ? 2 : 1));
    assert_met(counts.changes > TURNS / 10 && counts.launches + TURNS / 5 > taken);
    if (rig.chooses) statistics_compare(&rig);
    rig.launches = counts.launches;
    rig_close(&rig);
}

static void graphs_go_from_requests_to_others(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++)
        if (test_takes_next()) trace(test_seed(3) + i, settings[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_go_from_requests_to_others),
        cmocka_unit_test(steps_as_graphs_have_the_bits_of_their_operations),
        cmocka_unit_test(the_same_on_a_device_with_a_queue_where_only_the_logits_are_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Selection in the decode path, on tiny random models: 100% equals the dense path for every method, budgets hold at the
 * edges of pages and chunks, batches and blocks and threads change nothing, the key index survives truncation. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/logits.h"
#include "lab/methods/methods.h"
#include "model/tiny_calibration.h"
#include "model/tiny_model.h"

enum { PROMPT = 400, CONTEXT = 512, METHODS = 10 };

static const struct select_method *const methods[METHODS] = {
    &select_window, &select_quest, &select_meanstd, &select_hash,    &select_h2o,
    &select_tree,   &select_exact, &select_lowrank, &select_cluster, &select_product};

/* What ranks is of chunks that are full. */
static bool needs_full_chunks(const struct select_method *method) {
    return method == &select_hash || method == &select_cluster || method == &select_product;
}

struct rig {
    struct device *device;
    struct model *model;
    struct engine *engine;
    char *calibration; /* owned: the path of lowrank's, and of heads=importance */
    int32_t tokens[PROMPT];
    size_t width;
    struct error error;
};

static struct plan options_of(struct select_options select) {
    return (struct plan){.context_size = CONTEXT, .sequence_capacity = 4, .batch_size = 64, .select = select};
}

static struct select_options small(const struct select_method *method, uint64_t keep) {
    struct select_options select = select_options_default();
    select.method = method;
    select.keep = (struct select_keep){.tokens = keep};
    select.dense_layers = 0;
    select.recent = needs_full_chunks(method) ? 64 : 16;
    return select;
}

static void rig_open_model(struct rig *rig, const struct tiny_model *given, cpu_mask mask, size_t threads,
                           struct select_options select) {
    struct random random;
    struct plan options = options_of(select);
    const struct tiny_model tiny = *given;
    const struct device_options device = {.thread_count = threads, .mask = mask};
    tiny_model_load(&tiny, "select", &device, &rig->device, &rig->model);
    rig->calibration = tiny_calibration_write(rig->model);
    assert_ok(engine_create(&rig->engine, rig->model, &options, NULL, &rig->error), rig->error);
    rig->width = tiny.vocabulary_size;
    random_init(&random, 99);
    tiny_model_tokens(&tiny, &random, rig->tokens, PROMPT);
}

static void rig_open_layers(struct rig *rig, cpu_mask mask, size_t threads, struct select_options select,
                            size_t layer_count) {
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.layer_count = layer_count;
    rig_open_model(rig, &tiny, mask, threads, select);
}

static void rig_open(struct rig *rig, cpu_mask mask, size_t threads, struct select_options select) {
    rig_open_layers(rig, mask, threads, select, 2);
}

static void rig_close(struct rig *rig) {
    engine_destroy(rig->engine);
    model_destroy(rig->model);
    device_destroy(rig->device);
    unlink(rig->calibration);
    free(rig->calibration);
}

static struct sequence *filled(struct rig *rig, size_t count) {
    struct sequence *sequence;
    struct prefill_request request = {.tokens = rig->tokens, .token_count = count};
    assert_ok(sequence_create(&sequence, rig->engine, &rig->error), rig->error);
    assert_ok(engine_prefill(rig->engine, sequence, &request, NULL, &rig->error), rig->error);
    return sequence;
}

static const float *step(struct rig *rig, struct sequence *sequence, size_t position) {
    const float *logits;
    assert_ok(engine_step(rig->engine, &sequence, &rig->tokens[position], 1, &logits, &rig->error),
              rig->error);
    return logits;
}

/* Logits of steps from `first` on: [count][width]; the caller frees. */
static float *decode(struct rig *rig, size_t first, size_t count) {
    float *all = calloc(count, rig->width * sizeof *all);
    struct sequence *sequence = filled(rig, first);
    for (size_t i = 0; i < count; i++)
        memcpy(all + i * rig->width, step(rig, sequence, first + i), rig->width * sizeof *all);
    sequence_destroy(sequence);
    return all;
}

/* Of a logit, relative to the largest, where scores are wanted: gather, which gives them, sums rows in other tiles than
 * decode (found: 1.4e-7; one row left out of 300: 5e-3). */
static const double gather_bound = 2e-6;

/* Invariant 1: by the short cut, and through score and top-k, on the reference kernels and on the fastest. */
static void everything_equals_full(void **state) {
    (void)state;
    static const struct { bool fast, gathers; } rounds[] = {{false, true}, {true, false}, {true, true}};
    for (size_t round = 0; round < sizeof rounds / sizeof rounds[0]; round++) {
        cpu_mask mask = rounds[round].fast ? cpu_default() : 0;
        size_t first = 290, count = 12;
        struct rig full = {0};
        rig_open(&full, mask, 1, select_options_default());
        float *expected = decode(&full, first, count);
        rig_close(&full);
        for (size_t i = 0; i < METHODS; i++) {
            struct select_options select = small(methods[i], UINT64_MAX);
            select.gather_all = rounds[round].gathers;
            struct rig rig = {0};
            rig_open(&rig, mask, 1, select);
            float *found = decode(&rig, first, count);
            double apart = difference(found, expected, count * rig.width);
            const double bound = rounds[round].fast && methods[i]->attend != NULL ? gather_bound : 0;
            if (!(apart <= bound))
                fail_msg("select=%s, round %zu: 100%% differs from full by %g, bound %g", methods[i]->name,
                         round, apart, bound);
            struct select_statistics s = attention_statistics(engine_attention(rig.engine));
            assert_true(s.visible > 0 && s.kept == s.visible);
            free(found);
            rig_close(&rig);
        }
        free(expected);
    }
}

/* What is chosen: the budget, the window, no row twice, every row there is once. */
struct watch {
    const struct select_options *options;
    const struct layer_config *layers;
    size_t events;
    uint64_t keep, kept;
};

static uint64_t unit_of(const struct select_options *options) {
    const struct select_method *method = options->method;
    bool pages = method == &select_quest || method == &select_meanstd;
    bool tokens = method == &select_hash || method == &select_lowrank || method == &select_product ||
                  method == &select_exact;
    if (method == &select_tree) return options->leaf;
    if (options->page > 0 && (pages || tokens)) return options->page;
    return pages ? 16 : 1;
}

static void check_event(void *context, const struct select_event *event) {
    struct watch *watch = context;
    uint64_t visible = event->position + 1, unit = unit_of(watch->options);
    uint64_t sinks = (watch->options->sinks + unit - 1) / unit * unit, recent = watch->options->recent;
    uint64_t window = sinks + recent + unit - 1;
    if (needs_full_chunks(watch->options->method) && recent < 64) window = sinks + 64 + unit - 1;
    const size_t kv_heads = watch->layers[event->layer_index].kv.kv_head_count;
    assert_true(kv_heads > 0);
    for (size_t head = 0; head < kv_heads; head++) {
        const uint32_t *rows = event->lists[head].rows;
        const size_t row_count = event->lists[head].count;
        assert_true(row_count <= visible);
        assert_true(row_count <= (watch->keep > window ? watch->keep : window));
        /* no more is left unused than a page */
        if (watch->keep < visible) assert_true(row_count + unit > watch->keep);
        for (size_t i = 1; i < row_count; i++) assert_true(rows[i] > rows[i - 1]);
        for (size_t i = 0; i < sinks && i < visible; i++) assert_int_equal(rows[i], i);
        for (size_t i = 0; i < recent && i < visible; i++)
            assert_int_equal(rows[row_count - 1 - i], visible - 1 - i);
    }
    watch->events++;
}

static void budgets_hold_at_every_edge(void **state) {
    (void)state;
    static const uint64_t keeps[] = {1,   19,  20,  21,  35,  36,  63,  64, 65,
                                     127, 128, 129, 200, 255, 256, 257, 300};
    for (size_t round = 0; round < 2 * METHODS; round++) {
        struct select_options select = small(methods[round % METHODS], 100);
        if (round >= METHODS) select.page = 8;
        struct rig rig = {0};
        rig_open(&rig, cpu_default(), 1, select);
        struct sequence *sequence = filled(&rig, 252);
        for (size_t k = 0; k < sizeof keeps / sizeof keeps[0]; k++) {
            select.keep.tokens = keeps[k];
            struct watch watch = {&select, rig.model->config.layers, 0, keeps[k], 0};
            sequence_truncate(sequence, 252);
            assert_ok(engine_set_select(rig.engine, &select, &rig.error), rig.error);
            attention_set_observer(engine_attention(rig.engine), check_event, &watch);
            for (size_t length = 252; length < 262; length++) {
                const float *logits = step(&rig, sequence, length);
                for (size_t i = 0; i < rig.width; i++) assert_true(isfinite(logits[i]));
            }
            if (keeps[k] <= 252) assert_true(watch.events > 0);
        }
        sequence_destroy(sequence);
        rig_close(&rig);
    }
}

/* Layers that keep a state have nothing to choose: the others do, by every method, within the budget, and all of it is
 * full attention. */
static void layers_with_states_are_passed_over(void **state) {
    (void)state;
    enum { FIRST = 170, COUNT = 4 };
    for (size_t i = 0; i < METHODS; i++) {
        const struct tiny_model tiny = tiny_model_default(tiny_state_families[i % TINY_STATE_FAMILIES]);
        struct select_options select = small(methods[i], UINT64_MAX);
        struct rig full = {0}, rig = {0};
        rig_open_model(&full, &tiny, 0, 1, select_options_default());
        float *expected = decode(&full, FIRST, COUNT);
        select.gather_all = true;
        rig_open_model(&rig, &tiny, 0, 1, select);
        float *found = decode(&rig, FIRST, COUNT);
        if (memcmp(found, expected, COUNT * rig.width * sizeof *found) != 0)
            fail_msg("%s, select=%s: 100%% differs from full", tiny.family, methods[i]->name);
        const struct select_statistics all = attention_statistics(engine_attention(rig.engine));
        assert_true(all.visible > 0 && all.kept == all.visible);
        for (size_t dense = 0; dense < 3; dense++) { /* of two layers that attend */
            select.gather_all = false;
            select.keep.tokens = 100;
            select.dense_layers = dense;
            struct watch watch = {&select, rig.model->config.layers, 0, 100, 0};
            assert_ok(engine_set_select(rig.engine, &select, &rig.error), rig.error);
            attention_set_observer(engine_attention(rig.engine), check_event, &watch);
            float *less = decode(&rig, FIRST, COUNT);
            if ((memcmp(less, expected, COUNT * rig.width * sizeof *less) == 0) != (dense == 2))
                fail_msg("%s, select=%s, dense=%zu: %s was left out", tiny.family, methods[i]->name, dense,
                         dense == 2 ? "something" : "nothing");
            assert_int_equal(watch.events, COUNT * (2 - dense));
            free(less);
        }
        free(found);
        free(expected);
        rig_close(&rig);
        rig_close(&full);
    }
}

struct units {
    uint64_t unit, recent, picked; /* picked: units of each KV head beside the window */
    size_t kv_heads, events;
};

static void check_units(void *context, const struct select_event *event) {
    struct units *units = context;
    const uint64_t visible = event->position + 1, sinks = (4 + units->unit - 1) / units->unit * units->unit;
    const uint64_t window = sinks + visible - (visible - units->recent) / units->unit * units->unit;
    for (size_t head = 0; head < units->kv_heads; head++)
        assert_int_equal(event->lists[head].count, window + units->picked * units->unit);
    units->events++;
}

/* A fraction of a short context is few pieces: not fewer than units_min, of clusters too.  A number of tokens is what
 * it says. */
static void a_fraction_takes_units(void **state) {
    (void)state;
    enum { LENGTH = 300, CLUSTER_TOKENS = 16 };
    const struct select_method *const of[] = {&select_quest, &select_tree, &select_cluster};
    for (size_t round = 0; round < 12; round++) {
        struct select_options select = small(of[round / 4], 20);
        if (round % 4 != 3) select.keep = (struct select_keep){.ratio = 0.05};
        select.units_min = round % 4 == 2 ? 1000 : round % 4 == 1 ? 0 : 5;
        struct rig rig = {0};
        rig_open(&rig, cpu_default(), 1, select);
        struct units units = {.unit = unit_of(&select),
                              .recent = select.recent,
                              .picked = round % 4 == 0 ? 5 : 0,
                              .kv_heads = rig.model->config.kv_head_count};
        if (of[round / 4] == &select_cluster) units.picked *= CLUSTER_TOKENS; /* they are picked one by one */
        struct sequence *sequence = filled(&rig, LENGTH);
        const struct select_shape shape = {2,
                                           rig.model->config.head_count,
                                           units.kv_heads,
                                           rig.model->config.k_dimension,
                                           rig.model->config.v_dimension,
                                           NULL,
                                           NULL};
        uint64_t kept_max;
        assert_ok(select_options_kept_max(&select, &shape, LENGTH + 1, &kept_max, &rig.error), rig.error);
        if (round % 4 == 2) { /* all there are */
            attention_set_observer(engine_attention(rig.engine), NULL, NULL);
            (void)step(&rig, sequence, LENGTH);
            const struct select_statistics statistics = attention_statistics(engine_attention(rig.engine));
            assert_int_equal(statistics.kept, statistics.visible);
            assert_int_equal(kept_max, LENGTH + 1);
        } else {
            attention_set_observer(engine_attention(rig.engine), check_units, &units);
            (void)step(&rig, sequence, LENGTH);
            assert_true(units.events > 0);
            assert_true(kept_max >= units.picked * units.unit + 20);
        }
        sequence_destroy(sequence);
        rig_close(&rig);
    }
}

/* What tiny_calibration_write says is important: the first KV head of the first layer, half as much that of the second.
 * The shares are 0.2 + 0.8 a / 0.375, the largest cut to 2, and what is cut off divided again. */
static const double expected_fractions[2][2] = {{2, 0.24}, {1.52, 0.24}};

static void check_shares(void *context, const struct select_event *event) {
    struct watch *watch = context;
    const struct select_options *options = watch->options;
    const double visible = (double)event->position + 1;
    uint64_t unit = unit_of(options);
    uint64_t recent = options->recent, sinks = (options->sinks + unit - 1) / unit * unit;
    if (options->method->recent_fraction * (double)watch->keep > (double)recent)
        recent = (uint64_t)(options->method->recent_fraction * (double)watch->keep);
    const uint64_t growing = event->position % KV_CHUNK_TOKENS + 1; /* of the chunk that is not full */
    const bool from_keys = options->method == &select_cluster || options->method == &select_product;
    if (from_keys && recent < growing) recent = growing;
    uint64_t window = sinks + (event->position + 1) - (event->position + 1 - recent) / unit * unit;
    for (size_t head = 0; head < watch->layers[event->layer_index].kv.kv_head_count; head++) {
        double gone = pow(1 - (double)watch->keep / visible, expected_fractions[event->layer_index][head]);
        uint64_t own = (uint64_t)(visible * (1 - gone)),
                 picks = own > window ? (own - window) / unit * unit : 0;
        if (options->method == &select_window) picks = 0, window = watch->keep;
        if (event->lists[head].count != window + picks)
            fail_msg("select=%s, layer %zu, KV head %zu: %zu rows of %g, expected %llu",
                     options->method->name, event->layer_index, head, event->lists[head].count, visible,
                     (unsigned long long)(window + picks));
        watch->kept += event->lists[head].count;
    }
    watch->events++;
}

/* heads=importance: heads have different budgets, all together keep at most what they would keep evenly, and no more
 * than memory is planned for. */
static void heads_keep_by_importance(void **state) {
    (void)state;
    enum { LENGTH = 300, KEEP = 150, STEPS = 5, LAYERS = 2 };
    for (size_t m = 0; m < METHODS; m++) {
        struct select_options select = small(methods[m], KEEP);
        select.heads = SELECT_HEADS_IMPORTANCE;
        if (m % 2 == 1) select.page = 32;
        select.recent = 16;
        select.code = SELECT_CODE_SIGN; /* levels are of complete chunks: a longer window */
        struct rig rig = {0};
        rig_open(&rig, cpu_default(), 1, select);
        const size_t kv_heads = rig.model->config.kv_head_count;
        const struct select_shape shape = {LAYERS,
                                           rig.model->config.head_count,
                                           kv_heads,
                                           rig.model->config.k_dimension,
                                           rig.model->config.v_dimension,
                                           NULL,
                                           NULL};
        struct sequence *sequence = filled(&rig, LENGTH);
        struct watch watch = {&select, rig.model->config.layers, 0, KEEP, 0};
        attention_set_observer(engine_attention(rig.engine), check_shares, &watch);
        for (size_t i = 0; i < STEPS; i++) step(&rig, sequence, LENGTH + i);
        assert_int_equal(watch.events, LAYERS * STEPS);
        assert_true(watch.kept <= watch.events * kv_heads * KEEP);
        assert_int_equal(attention_statistics(engine_attention(rig.engine)).kept, watch.kept);
        uint64_t kept_max;
        assert_ok(select_options_kept_max(&select, &shape, LENGTH + STEPS, &kept_max, &rig.error), rig.error);
        if (methods[m] != &select_window)
            assert_true(kept_max > KEEP && watch.kept < watch.events * kv_heads * kept_max);
        const char *fallback =
            select_fallback(engine_select(rig.engine)); /* of hash, which has no codes there */
        assert_true(fallback == NULL || strstr(fallback, "heads=") == NULL);
        sequence_destroy(sequence);
        rig_close(&rig);
    }
}

/* Without a calibration every head keeps as much, and that is said. */
static void importance_needs_a_calibration(void **state) {
    (void)state;
    struct select_options select = small(&select_quest, 100);
    struct rig rig = {0};
    rig_open(&rig, cpu_default(), 1, select);
    float *expected = decode(&rig, 300, 4);
    unlink(rig.calibration);
    select.heads = SELECT_HEADS_IMPORTANCE;
    assert_ok(engine_set_select(rig.engine, &select, &rig.error), rig.error);
    float *found = decode(&rig, 300, 4);
    assert_memory_equal(found, expected, 4 * rig.width * sizeof *found);
    assert_non_null(strstr(select_fallback(engine_select(rig.engine)), "heads=importance"));
    free(expected);
    free(found);
    rig_close(&rig);
}

/* ---- company ---- */

/* Sequences of other lengths and with other rules in the batch change nothing (reference kernels: bit for bit). */
static void a_batch_equals_each_alone(void **state) {
    (void)state;
    static const size_t lengths[4] = {300, 77, 200, 130};
    static const struct select_keep keeps[4] = {
        {.tokens = 60}, {.ratio = 0.5}, {.tokens = 40}, {.tokens = 100}};
    for (size_t m = 1; m < METHODS; m++) {
        struct rig rig = {0};
        rig_open(&rig, 0, 1, small(methods[m], 110));
        const struct select_method *used[4] = {methods[m], methods[m], &select_window, &select_all};
        struct sequence *together[4], *alone[4];
        for (size_t i = 0; i < 4; i++) {
            together[i] = filled(&rig, lengths[i]);
            struct select_keep keep = used[i] == &select_all ? select_keep_all() : keeps[i];
            assert_ok(sequence_set_select(together[i], used[i], keep, &rig.error), rig.error);
        }
        float *logits_together = calloc(12 * rig.width, sizeof(float));
        for (size_t n = 0; n < 3; n++) {
            int32_t tokens[4];
            const float *logits;
            for (size_t i = 0; i < 4; i++) tokens[i] = rig.tokens[lengths[i] + n];
            assert_ok(engine_step(rig.engine, together, tokens, 4, &logits, &rig.error), rig.error);
            memcpy(logits_together + n * 4 * rig.width, logits, 4 * rig.width * sizeof(float));
        }
        for (size_t i = 0; i < 4; i++) sequence_destroy(together[i]);
        for (size_t i = 0; i < 4; i++) {
            alone[i] = filled(&rig, lengths[i]);
            struct select_keep keep = used[i] == &select_all ? select_keep_all() : keeps[i];
            assert_ok(sequence_set_select(alone[i], used[i], keep, &rig.error), rig.error);
            for (size_t n = 0; n < 3; n++)
                assert_memory_equal(step(&rig, alone[i], lengths[i] + n),
                                    logits_together + (n * 4 + i) * rig.width, rig.width * sizeof(float));
            sequence_destroy(alone[i]);
        }
        free(logits_together);
        assert_int_equal(engine_kv_used_bytes(rig.engine), 0);
        struct sequence *other = filled(&rig, 20);
        const struct select_method *foreign = m == 1 ? &select_hash : &select_quest;
        assert_int_equal(sequence_set_select(other, foreign, keeps[0], &rig.error), STATUS_USAGE);
        sequence_destroy(other);
        rig_close(&rig);
    }
}

static void threads_change_nothing(void **state) {
    (void)state;
    for (size_t m = 0; m < METHODS; m++) {
        float *expected = NULL;
        for (size_t threads = 1; threads <= 3; threads++) {
            struct rig rig = {0};
            rig_open(&rig, cpu_default(), threads, small(methods[m], 110));
            float *found = decode(&rig, 300, 6);
            if (expected == NULL)
                expected = found;
            else {
                assert_memory_equal(found, expected, 6 * rig.width * sizeof *found);
                free(found);
            }
            rig_close(&rig);
        }
        free(expected);
    }
}

/* ---- the key index follows from the stored KV alone (invariant 2) ---- */

static void truncation_and_rebuilding_change_nothing(void **state) {
    (void)state;
    enum { LENGTH = 270, STEPS = 8 }; /* in the middle of a page and of a chunk */
    for (size_t m = 1; m < METHODS; m++) {
        if (methods[m]->watches_prefill) continue; /* h2o has seen what was taken back */
        struct rig rig = {0};
        rig_open(&rig, 0, 1, small(methods[m], 110));
        float *expected = decode(&rig, LENGTH, STEPS);
        struct sequence *sequence = filled(&rig, LENGTH);
        for (size_t i = 0; i < 100; i++) step(&rig, sequence, i); /* other tokens, into the next chunks */
        sequence_truncate(sequence, LENGTH);
        for (size_t i = 0; i < STEPS; i++)
            assert_memory_equal(step(&rig, sequence, LENGTH + i), expected + i * rig.width,
                                rig.width * sizeof *expected);
        /* another method and back: a key index is made of what is stored */
        struct select_options own = *select_get_options(engine_select(rig.engine));
        struct select_options other = small(methods[m == 1 ? 2 : 1], 50);
        sequence_truncate(sequence, LENGTH);
        assert_ok(engine_set_select(rig.engine, &other, &rig.error), rig.error);
        uint64_t other_bytes = engine_kv_used_bytes(rig.engine);
        step(&rig, sequence, 3);
        other = select_options_default(); /* all */
        assert_ok(engine_set_select(rig.engine, &other, &rig.error), rig.error);
        assert_null(engine_select(rig.engine));
        assert_true(engine_kv_used_bytes(rig.engine) < other_bytes);
        sequence_truncate(sequence, LENGTH);
        assert_ok(engine_set_select(rig.engine, &own, &rig.error), rig.error);
        for (size_t i = 0; i < STEPS; i++)
            assert_memory_equal(step(&rig, sequence, LENGTH + i), expected + i * rig.width,
                                rig.width * sizeof *expected);
        sequence_destroy(sequence);
        free(expected);
        rig_close(&rig);
    }
}

/* The one method whose key index remembers what was asked: tokens of the answer earn their place, too. */
static void latest_heavy(void *context, const struct select_event *event) {
    uint32_t *latest = context;
    const struct host_list *list = &event->lists[0];
    for (size_t i = 0; i < list->count; i++)
        if (list->rows[i] + 30 <= event->position && list->rows[i] > *latest) *latest = list->rows[i];
}

static void h2o_learns_from_steps(void **state) {
    (void)state;
    struct rig rig = {0};
    uint32_t latest = 0;
    rig_open(&rig, cpu_default(), 1, small(&select_h2o, 60));
    struct sequence *sequence = filled(&rig, 20);
    for (size_t i = 20; i < 300; i++) step(&rig, sequence, i);
    attention_set_observer(engine_attention(rig.engine), latest_heavy, &latest);
    step(&rig, sequence, 300);
    assert_true(latest > 50); /* 79; without what the steps gave it is 29, the end of the first tokens */
    sequence_destroy(sequence);
    rig_close(&rig);
}

/* A block that selects (evaluation) gives what steps give. */
struct collected {
    float *logits;
    size_t width;
};
static enum status collect(void *context, uint64_t index, const float *logits, struct error *error) {
    struct collected *collected = context;
    (void)error;
    memcpy(collected->logits + index * collected->width, logits, collected->width * sizeof *logits);
    return STATUS_OK;
}

static void a_block_that_selects_equals_steps(void **state) {
    (void)state;
    enum { FIRST = 250, COUNT = 40 };
    for (size_t m = 0; m < METHODS; m++) {
        struct rig rig = {0};
        struct select_options select = small(methods[m], 100);
        select.recent = 16; /* the chunk that 256 completes is chosen from by none of the rows before */
        rig_open(&rig, 0, 1, select);
        float *expected = decode(&rig, FIRST, COUNT);
        struct collected found = {calloc(COUNT, rig.width * sizeof(float)), rig.width};
        struct sequence *sequence = filled(&rig, FIRST);
        struct prefill_request request = {.tokens = rig.tokens + FIRST,
                                          .token_count = COUNT,
                                          .each = collect,
                                          .each_context = &found,
                                          .selects = true};
        assert_ok(engine_prefill(rig.engine, sequence, &request, NULL, &rig.error), rig.error);
        printf("%s: %.1e\n", methods[m]->name, difference(found.logits, expected, COUNT * rig.width));
        assert_memory_equal(found.logits, expected, COUNT * rig.width * sizeof(float));
        sequence_destroy(sequence);
        free(found.logits), free(expected);
        rig_close(&rig);
    }
}

/* Steps of shorter contexts are those of full attention, bit for bit; from there on they choose. */
static void short_contexts_are_exact(void **state) {
    (void)state;
    enum { FIRST = 250, COUNT = 40, BELOW = 270 }; /* the step at position p sees p + 1 tokens */
    struct rig rig = {0};
    rig_open(&rig, cpu_default(), 1, select_options_default());
    float *full = decode(&rig, FIRST, COUNT);
    for (size_t m = 0; m < METHODS; m++) {
        struct select_options select = small(methods[m], 120);
        assert_ok(engine_set_select(rig.engine, &select, &rig.error), rig.error);
        float *chosen = decode(&rig, FIRST, COUNT);
        select.exact_below = BELOW;
        assert_ok(engine_set_select(rig.engine, &select, &rig.error), rig.error);
        float *found = decode(&rig, FIRST, COUNT);
        const size_t exact = BELOW - 1 - FIRST, rest = (COUNT - exact) * rig.width;
        assert_memory_equal(found, full, exact * rig.width * sizeof(float));
        assert_true(difference(found + exact * rig.width, full + exact * rig.width, rest) > 1e-6);
        assert_true(difference(chosen, full, exact * rig.width) > 1e-6); /* it makes one */
        free(chosen);
        free(found);
    }
    free(full);
    rig_close(&rig);
}

/* Less than everything is not everything: the methods are in use, and no two choose alike. */
static void less_is_different(void **state) {
    (void)state;
    float *found[METHODS + 1];
    struct rig rig = {0};
    rig_open(&rig, cpu_default(), 1, select_options_default());
    found[METHODS] = decode(&rig, 300, 2);
    for (size_t m = 0; m < METHODS; m++) {
        struct select_options select = small(methods[m], 120);
        assert_ok(engine_set_select(rig.engine, &select, &rig.error), rig.error);
        found[m] = decode(&rig, 300, 2);
    }
    for (size_t a = 0; a <= METHODS; a++)
        for (size_t b = 0; b < a; b++)
            if (difference(found[a], found[b], 2 * rig.width) <= 1e-6)
                fail_msg("%s chooses what %s does", a < METHODS ? methods[a]->name : "full",
                         methods[b]->name);
    for (size_t m = 0; m <= METHODS; m++) free(found[m]);
    rig_close(&rig);
}

/* Leaves of 16 tokens by their bounds are the pages that quest ranks, from any start level (layers from 2 on change it
 * on the way). */
static void a_tree_of_pages_is_quest(void **state) {
    (void)state;
    enum { FIRST = 250, COUNT = 140, LAYERS = 4 };
    struct select_options quest = small(&select_quest, 100), tree = small(&select_tree, 100);
    tree.leaf = quest.page = 16;
    struct rig rig = {0};
    rig_open_layers(&rig, cpu_default(), 1, quest, LAYERS);
    float *expected = decode(&rig, FIRST, COUNT);
    assert_ok(engine_set_select(rig.engine, &tree, &rig.error), rig.error);
    float *found = decode(&rig, FIRST, COUNT);
    assert_memory_equal(found, expected, COUNT * rig.width * sizeof *found);
    struct tree_counts counts = attention_statistics(engine_attention(rig.engine)).tree;
    uint64_t opened = 0;
    for (size_t level = 0; level < TREE_LEVEL_COUNT; level++) opened += counts.opened[level];
    assert_true(counts.searches > 0 && counts.leaves > 0 && opened > 0);
    char kinds[2][SELECT_KIND_BYTES]; /* a key index of one rank is not taken for one of the other */
    select_key_index_kind(engine_select(rig.engine), kinds[0]);
    tree.rank = TREE_MEAN_DEVIATION;
    assert_ok(engine_set_select(rig.engine, &tree, &rig.error), rig.error);
    select_key_index_kind(engine_select(rig.engine), kinds[1]);
    assert_string_not_equal(kinds[0], kinds[1]);
    free(found);
    found = decode(&rig, FIRST, COUNT);
    assert_true(difference(found, expected, COUNT * rig.width) > 1e-6); /* another rank */
    free(found), free(expected);
    rig_close(&rig);
}

/* Pages of 64 tokens by their best leaf of 16, a tree's or quest's: other pages than those of leaves of 64. */
static void pages_are_kept_by_their_best_leaf(void **state) {
    (void)state;
    enum { FIRST = 250, COUNT = 140, LAYERS = 4 };
    struct select_options quest = small(&select_quest, 160), tree = small(&select_tree, 160), alone = tree;
    tree.leaf = quest.page = 16;
    tree.take = quest.take = alone.leaf = 64;
    struct rig rig = {0};
    rig_open_layers(&rig, cpu_default(), 1, quest, LAYERS);
    float *expected = decode(&rig, FIRST, COUNT);
    char kinds[3][SELECT_KIND_BYTES];
    select_key_index_kind(engine_select(rig.engine), kinds[0]);
    assert_ok(engine_set_select(rig.engine, &tree, &rig.error), rig.error);
    float *found = decode(&rig, FIRST, COUNT);
    assert_memory_equal(found, expected, COUNT * rig.width * sizeof *found);
    assert_true(attention_statistics(engine_attention(rig.engine)).kept > 0);
    select_key_index_kind(engine_select(rig.engine), kinds[1]);
    assert_string_equal(kinds[0], kinds[1]); /* the same bytes */
    tree.rank = TREE_MEAN_DEVIATION;
    assert_ok(engine_set_select(rig.engine, &tree, &rig.error), rig.error);
    select_key_index_kind(engine_select(rig.engine), kinds[2]);
    assert_string_not_equal(kinds[0], kinds[2]);
    assert_ok(engine_set_select(rig.engine, &alone, &rig.error), rig.error);
    free(found);
    found = decode(&rig, FIRST, COUNT);
    assert_true(difference(found, expected, COUNT * rig.width) > 1e-6);
    static const size_t refused[] = {8, 48, 128};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        tree.take = refused[i];
        assert_int_equal(engine_set_select(rig.engine, &tree, &rig.error), STATUS_USAGE);
        assert_non_null(strstr(rig.error.message, "take="));
    }
    free(found), free(expected);
    rig_close(&rig);
}

static void filled_rows_have_key_index(void **state) {
    (void)state;
    for (size_t m = 1; m < METHODS; m++) {
        struct select_options select = small(methods[m], 110), all = select_options_default();
        struct rig rig = {0};
        rig_open(&rig, cpu_default(), 1, select);
        struct sequence *sequence;
        assert_ok(sequence_create(&sequence, rig.engine, &rig.error), rig.error);
        assert_ok(engine_fill_random(rig.engine, sequence, 333, 1, &rig.error), rig.error);
        float *expected = calloc(rig.width, sizeof *expected);
        memcpy(expected, step(&rig, sequence, 0), rig.width * sizeof *expected);
        sequence_truncate(sequence, 333);
        assert_ok(engine_set_select(rig.engine, &all, &rig.error), rig.error);
        assert_ok(engine_set_select(rig.engine, &select, &rig.error), rig.error);
        assert_memory_equal(step(&rig, sequence, 0), expected, rig.width * sizeof *expected);
        sequence_destroy(sequence);
        free(expected);
        rig_close(&rig);
    }
}

/* ---- words ---- */

/* One step at 301 tokens, keep 120, 16 of them recent: per layer and KV head all tokens, or pages, between the window's
 * ends; of leaves no fewer than are chosen. */
static void evaluations_are_counted(void **state) {
    (void)state;
    static const struct {
        const struct select_method *method;
        uint64_t min, max; /* per layer and KV head */
    } cases[] = {{&select_exact, 301 - 16 - 4, 301 - 16 - 4},
                 {&select_quest, 256 / 16, 256 / 16},
                 {&select_window, 0, 0},
                 {&select_tree, 5, 2 * 256 / 16}};
    struct rig rig = {0};
    rig_open(&rig, cpu_default(), 1, select_options_default());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct select_options select = small(cases[i].method, 120);
        select.leaf = 16;
        assert_ok(engine_set_select(rig.engine, &select, &rig.error), rig.error);
        struct sequence *sequence = filled(&rig, 300);
        attention_reset_statistics(engine_attention(rig.engine));
        step(&rig, sequence, 300);
        struct select_statistics found = attention_statistics(engine_attention(rig.engine));
        assert_int_equal(found.visible % 301, 0);
        uint64_t heads = found.visible / 301;
        assert_in_range(found.evaluated, cases[i].min * heads, cases[i].max * heads);
        sequence_destroy(sequence);
    }
    rig_close(&rig);
}

static void keeps_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double ratio;
        uint64_t tokens;
    } good[] = {{"2048", 0, 2048},       {"8K", 0, 8192},       {"1", 0, 1},
                {"10%", 0.1, 0},         {"0.25", 0.25, 0},     {"1M", 0, 1 << 20},
                {"100%", 0, UINT64_MAX}, {"1.0", 0, UINT64_MAX}};
    static const char *const bad[] = {"",   "0",   "-5",  "0%",  "101%", "1.5", "x",
                                      "5x", "8KK", "nan", "1e3", "inf",  "%"};
    struct select_keep keep;
    struct error error;
    char text[32];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_ok(select_keep_parse(&keep, good[i].text, &error), error);
        assert_true(fabs(keep.ratio - good[i].ratio) < 1e-12);
        assert_int_equal(keep.tokens, good[i].tokens);
        select_keep_text(keep, text, sizeof text);
        struct select_keep again;
        assert_ok(select_keep_parse(&again, text, &error), error);
        assert_int_equal(again.tokens, keep.tokens);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (select_keep_parse(&keep, bad[i], &error) != STATUS_USAGE) fail_msg("'%s' was taken", bad[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_equals_full),
        cmocka_unit_test(budgets_hold_at_every_edge),
        cmocka_unit_test(layers_with_states_are_passed_over),
        cmocka_unit_test(heads_keep_by_importance),
        cmocka_unit_test(importance_needs_a_calibration),
        cmocka_unit_test(a_batch_equals_each_alone),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(a_fraction_takes_units),
        cmocka_unit_test(truncation_and_rebuilding_change_nothing),
        cmocka_unit_test(h2o_learns_from_steps),
        cmocka_unit_test(a_block_that_selects_equals_steps),
        cmocka_unit_test(less_is_different),
        cmocka_unit_test(short_contexts_are_exact),
        cmocka_unit_test(a_tree_of_pages_is_quest),
        cmocka_unit_test(pages_are_kept_by_their_best_leaf),
        cmocka_unit_test(filled_rows_have_key_index),
        cmocka_unit_test(evaluations_are_counted),
        cmocka_unit_test(keeps_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

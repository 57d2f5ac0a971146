/* Selection in the decode path, on tiny random models: 100% equals the dense path for every method, budgets hold at the
 * edges of pages and chunks, batches and blocks and threads change nothing, metadata survive truncation. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "engine/engine.h"
#include "model/tiny_model.h"

enum { PROMPT = 400, CONTEXT = 512, METHODS = 5 };

/* lowrank needs a calibration: test_calibration.c */
static const struct select_method *const methods[METHODS] = {&select_window, &select_quest, &select_meanstd,
                                                             &select_hash, &select_h2o};

struct rig {
    struct device *device;
    struct model *model;
    struct engine *engine;
    int32_t tokens[PROMPT];
    size_t width;
    struct error error;
};

static struct engine_options options_of(struct select_options select) {
    return (struct engine_options){
        .context_size = CONTEXT, .sequence_capacity = 4, .batch_size = 64, .select = select};
}

static struct select_options small(const struct select_method *method, uint64_t keep) {
    struct select_options select = select_options_default();
    select.method = method;
    select.keep = (struct select_keep){.tokens = keep};
    select.dense_layers = 0;
    select.recent = 16;
    return select;
}

static void rig_open(struct rig *rig, cpu_mask mask, size_t threads, struct select_options select) {
    char path[64];
    struct random random;
    struct tiny_model tiny = tiny_model_default("llama");
    struct engine_options options = options_of(select);
    tiny_model_write(&tiny, tiny_model_path("select", path, sizeof path));
    const struct device_options device = {.thread_count = threads, .mask = mask};
    assert_ok(device_cpu_create(&rig->device, &device, &rig->error), rig->error);
    assert_ok(model_load(&rig->model, path, rig->device, &rig->error), rig->error);
    unlink(path);
    assert_ok(engine_create(&rig->engine, rig->model, &options, &rig->error), rig->error);
    rig->width = tiny.vocabulary_size;
    random_init(&random, 99);
    for (size_t i = 0; i < PROMPT; i++) rig->tokens[i] = (int32_t)random_below(&random, tiny.vocabulary_size);
}

static void rig_close(struct rig *rig) {
    engine_destroy(rig->engine);
    model_destroy(rig->model);
    device_destroy(rig->device);
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

static double difference(const float *a, const float *b, size_t count) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    return worst / largest;
}

/* Invariant 1: by the short cut on any kernels, and on the reference kernels through score, top-k and gather too. */
static void everything_equals_full(void **state) {
    (void)state;
    for (size_t round = 0; round < 2; round++) {
        cpu_mask mask = round == 0 ? 0 : cpu_features();
        size_t first = 290, count = 12;
        struct rig full = {0};
        rig_open(&full, mask, 2, select_options_default());
        float *expected = decode(&full, first, count);
        rig_close(&full);
        for (size_t i = 0; i < METHODS; i++) {
            struct select_options select = small(methods[i], UINT64_MAX);
            select.gather_all = round == 0;
            struct rig rig = {0};
            rig_open(&rig, mask, 2, select);
            float *found = decode(&rig, first, count);
            if (memcmp(found, expected, count * rig.width * sizeof *found) != 0)
                fail_msg("select=%s, round %zu: 100%% differs from full by %g", methods[i]->name, round,
                         difference(found, expected, count * rig.width));
            struct select_statistics s = select_statistics(engine_select(rig.engine));
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
    size_t kv_heads, events;
    uint64_t keep;
};

static void check_event(void *context, const struct select_event *event) {
    struct watch *watch = context;
    uint64_t visible = event->position + 1, unit = 1;
    if (watch->options->method == &select_quest || watch->options->method == &select_meanstd)
        unit = watch->options->page;
    uint64_t sinks = (watch->options->sinks + unit - 1) / unit * unit, recent = watch->options->recent;
    uint64_t window = sinks + recent + unit - 1;
    assert_true(event->row_count <= visible);
    assert_true(event->row_count <= (watch->keep > window ? watch->keep : window));
    /* no more is left unused than a page */
    if (watch->keep < visible) assert_true(event->row_count + unit > watch->keep);
    for (size_t head = 0; head < watch->kv_heads; head++) {
        const uint32_t *rows = event->rows + head * event->row_stride;
        for (size_t i = 1; i < event->row_count; i++) assert_true(rows[i] > rows[i - 1]);
        for (size_t i = 0; i < sinks && i < visible; i++) assert_int_equal(rows[i], i);
        for (size_t i = 0; i < recent && i < visible; i++)
            assert_int_equal(rows[event->row_count - 1 - i], visible - 1 - i);
    }
    watch->events++;
}

static void budgets_hold_at_every_edge(void **state) {
    (void)state;
    static const uint64_t keeps[] = {1,   19,  20,  21,  35,  36,  63,  64, 65,
                                     127, 128, 129, 200, 255, 256, 257, 300};
    for (size_t m = 0; m < METHODS; m++) {
        struct select_options select = small(methods[m], 100);
        struct rig rig = {0};
        rig_open(&rig, cpu_features(), 2, select);
        struct sequence *sequence = filled(&rig, 252);
        for (size_t k = 0; k < sizeof keeps / sizeof keeps[0]; k++) {
            select.keep.tokens = keeps[k];
            struct watch watch = {&select, rig.model->config.kv_head_count, 0, keeps[k]};
            sequence_truncate(sequence, 252);
            assert_ok(engine_set_select(rig.engine, &select, &rig.error), rig.error);
            select_set_observer(engine_select(rig.engine), check_event, &watch);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_equals_full),
        cmocka_unit_test(budgets_hold_at_every_edge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

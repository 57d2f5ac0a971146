/* Prompts in segments, layer by layer, give bit for bit the results of block by block, and so do the steps behind
 * them: over random families, windows, KV types, selections, lengths, blocks and segments, with a printed seed.  An
 * interrupted prompt keeps a whole number of segments, and continues from there to the same result. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/random.h"
#include "engine/engine.h"
#include "lab/methods/methods.h"
#include "model/tiny_model.h"
#include "seed.h"

enum { ROUNDS = 60, PROMPT_MAX = 400, STEPS = 4, CONTEXT = 512, METHODS = 6 };

static const struct select_method *const methods[METHODS] = {&select_all,     &select_window, &select_quest,
                                                             &select_meanstd, &select_hash,   &select_h2o};

enum way { WAY_LAST, WAY_EACH, WAY_SELECTS, WAYS };

struct rig {
    struct random random;
    struct device *device;
    struct model *model;
    struct engine *engines[2]; /* by segments, and by blocks: segments of one block */
    size_t block, segment, count, width;
    int32_t tokens[PROMPT_MAX + STEPS];
    struct error error;
};

static void rig_open(struct rig *rig, uint64_t seed) {
    *rig = (struct rig){0};
    random_init(&rig->random, seed);
    static const char *const families[] = {"llama", "llama", "opt"};
    const struct tiny_model tiny = tiny_model_random(&rig->random, families, 3);
    const struct device_options device = {.thread_count = 2, .mask = cpu_default()};
    tiny_model_load(&tiny, "segments", &device, &rig->device, &rig->model);
    rig->block = random_between(&rig->random, 1, 64);
    size_t wanted = random_between(&rig->random, 1, 300);
    rig->segment = max_size(wanted / rig->block, 1) * rig->block;
    rig->count = random_between(&rig->random, 1, PROMPT_MAX);
    rig->width = tiny.vocabulary_size;
    struct plan options = {.context_size = CONTEXT,
                           .sequence_capacity = 2,
                           .batch_size = rig->block,
                           .segment_size = wanted,
                           .k_type = random_below(&rig->random, 2) ? KV_Q8 : KV_F16,
                           .v_type = random_below(&rig->random, 2) ? KV_Q8 : KV_F16,
                           .select = select_options_default()};
    options.select.method = methods[random_below(&rig->random, METHODS)];
    options.select.keep = (struct select_keep){.tokens = random_between(&rig->random, 20, 100)};
    options.select.recent = 16;
    options.select.dense_layers = random_below(&rig->random, 2);
    assert_ok(engine_create(&rig->engines[0], rig->model, &options, NULL, &rig->error), rig->error);
    options.segment_size = rig->block;
    assert_ok(engine_create(&rig->engines[1], rig->model, &options, NULL, &rig->error), rig->error);
    tiny_model_tokens(&tiny, &rig->random, rig->tokens, PROMPT_MAX + STEPS);
}

static void rig_close(struct rig *rig) {
    for (size_t i = 0; i < 2; i++) engine_destroy(rig->engines[i]);
    model_destroy(rig->model);
    device_destroy(rig->device);
}

/* Logits in the order they come. */
struct results {
    float *logits; /* [PROMPT_MAX + STEPS][width] */
    size_t width, count;
};

static void results_add(struct results *results, const float *logits) {
    memcpy(results->logits + results->count++ * results->width, logits, results->width * sizeof *logits);
}

static enum status each(void *context, uint64_t index, const float *logits, struct error *error) {
    struct results *results = context;
    (void)error;
    assert_int_equal(index, results->count);
    results_add(results, logits);
    return STATUS_OK;
}

struct watch {
    uint64_t done, total, calls;
    uint64_t stop_at_call; /* 0: never */
};

static bool watch_progress(void *context, uint64_t done, uint64_t total) {
    struct watch *watch = context;
    assert_true(done >= watch->done && done <= total);
    assert_int_equal(total, watch->total);
    watch->done = done;
    return ++watch->calls == watch->stop_at_call;
}

static void run_steps(struct rig *rig, size_t engine, struct sequence *sequence, struct results *results) {
    const float *logits;
    for (size_t i = 0; i < STEPS; i++) {
        assert_ok(engine_step(rig->engines[engine], &sequence, &rig->tokens[PROMPT_MAX + i], 1, &logits,
                              &rig->error),
                  rig->error);
        results_add(results, logits);
    }
}

/* A sequence in two requests (the second begins wherever the first ended), then steps.  The caller frees. */
static struct results run(struct rig *rig, size_t engine, enum way way, size_t first_count) {
    struct results results = {calloc((PROMPT_MAX + STEPS) * rig->width, sizeof(float)), rig->width, 0};
    struct sequence *sequence;
    assert_ok(sequence_create(&sequence, rig->engines[engine], &rig->error), rig->error);
    const size_t counts[2] = {first_count, rig->count - first_count};
    for (size_t i = 0; i < 2; i++) {
        struct watch watch = {.total = counts[i]};
        struct results part = {results.logits + results.count * results.width, results.width, 0};
        struct prefill_request request = {.tokens = rig->tokens + (i == 0 ? 0 : first_count),
                                          .token_count = counts[i],
                                          .progress = watch_progress,
                                          .progress_context = &watch,
                                          .each = way == WAY_LAST ? NULL : each,
                                          .each_context = &part,
                                          .selects = way == WAY_SELECTS};
        const float *logits;
        if (counts[i] == 0) continue;
        assert_ok(engine_prefill(rig->engines[engine], sequence, &request, &logits, &rig->error), rig->error);
        assert_int_equal(watch.done, counts[i]);
        if (way != WAY_LAST) assert_int_equal(part.count, counts[i]);
        results.count += part.count;
        if (way == WAY_LAST) results_add(&results, logits);
    }
    assert_int_equal(sequence_length(sequence), rig->count);
    run_steps(rig, engine, sequence, &results);
    sequence_destroy(sequence);
    return results;
}

static void test_segments_change_nothing(void **state) {
    (void)state;
    uint64_t seed = test_seed(20261121);
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        struct rig rig;
        rig_open(&rig, seed + round);
        enum way way = (enum way)random_below(&rig.random, WAYS);
        size_t first_count = random_between(&rig.random, 0, rig.count);
        struct results found = run(&rig, 0, way, first_count), expected = run(&rig, 1, way, first_count);
        assert_int_equal(found.count, expected.count);
        if (memcmp(found.logits, expected.logits, found.count * rig.width * sizeof(float)) != 0)
            fail_msg("seed %llu, way %d: %zu + %zu tokens, blocks of %zu, segments of %zu: other logits",
                     (unsigned long long)(seed + round), (int)way, first_count, rig.count - first_count,
                     rig.block, rig.segment);
        free(found.logits), free(expected.logits);
        rig_close(&rig);
    }
}

static bool goes_by_blocks(const struct rig *rig) {
    const struct select *select = engine_select(rig->engines[0]);
    return select != NULL && select_watches_prefill(select);
}

/* Stopped at any call, any number of times. */
static void test_interrupted_prompts_go_on(void **state) {
    (void)state;
    uint64_t seed = test_seed(20261121);
    size_t stops = 0, inside = 0; /* within a segment */
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        struct rig rig;
        rig_open(&rig, seed + round);
        struct results expected = run(&rig, 1, WAY_LAST, 0);
        struct results found = {calloc((1 + STEPS) * rig.width, sizeof(float)), rig.width, 0};
        struct sequence *sequence;
        assert_ok(sequence_create(&sequence, rig.engines[0], &rig.error), rig.error);
        size_t unit = goes_by_blocks(&rig) ? rig.block : rig.segment;
        for (size_t tries = 0;; tries++) {
            size_t before = sequence_length(sequence), left = rig.count - before;
            struct watch watch = {.total = left};
            if (tries < 3) watch.stop_at_call = random_between(&rig.random, 1, 20);
            struct prefill_request request = {.tokens = rig.tokens + before,
                                              .token_count = left,
                                              .progress = watch_progress,
                                              .progress_context = &watch};
            const float *logits;
            enum status status = engine_prefill(rig.engines[0], sequence, &request, &logits, &rig.error);
            if (status == STATUS_OK) {
                results_add(&found, logits);
                break;
            }
            assert_int_equal(status, STATUS_INTERRUPTED);
            assert_int_equal(watch.calls, watch.stop_at_call);
            assert_int_equal(sequence_length(sequence), before + watch.done / unit * unit);
            char message[64];
            snprintf(message, sizeof message, "after %zu of %zu tokens", (size_t)watch.done / unit * unit,
                     left);
            assert_non_null(strstr(rig.error.message, message));
            stops++;
            inside += watch.done % unit != 0;
        }
        run_steps(&rig, 0, sequence, &found);
        assert_int_equal(found.count, expected.count);
        assert_memory_equal(found.logits, expected.logits, found.count * rig.width * sizeof(float));
        sequence_destroy(sequence);
        free(found.logits), free(expected.logits);
        rig_close(&rig);
    }
    printf("%zu interruptions, %zu inside of a segment\n", stops, inside);
    assert_met(stops > ROUNDS / 2 && inside > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segments_change_nothing),
        cmocka_unit_test(test_interrupted_prompts_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A prefill that pauses has the bits of one that does not, whatever runs meanwhile: steps of another sequence, or
 * another prompt that needs the same buffers.  In RAM, with tiers and documents at the least budget, with the key index
 * on disk, and where the suffix of a document selects. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "engine/engine_internal.h"
#include "lab/methods/methods.h"
#include "model/tiny_model.h"
#include "platform/scratch.h"

enum { BLOCK = 32, SEGMENT = 96, FIRST = 330, SECOND = 210, DECODER = 40, STEPS = 3, MEANWHILE = 64 };
enum { CONTEXT = FIRST + STEPS + 64, LOGITS_MAX = 128 };

static struct device *device;
static struct model *model;
static size_t width;
static int32_t tokens[3][CONTEXT]; /* of the first prompt, the second one, and the sequence that decodes */
static const size_t counts[3] = {FIRST, SECOND, DECODER};

struct bits {
    float logits[1 + STEPS][LOGITS_MAX]; /* of the prompt's last token and of the steps */
};

struct pauses {
    size_t every, asked;
};

static bool pause_sometimes(void *context) {
    struct pauses *pauses = context;
    return ++pauses->asked % pauses->every == 0;
}

static void take(struct bits *bits, size_t index, const float *logits) {
    memcpy(bits->logits[index], logits, width * sizeof *logits);
}

static void step(struct engine *engine, struct sequence *sequence, int32_t token, const float **logits) {
    struct error error;
    assert_ok(engine_step(engine, &sequence, &token, 1, logits, &error), error);
}

/* The steps after a prompt. */
static void finish(struct engine *engine, struct sequence *sequence, size_t which, struct bits *bits) {
    const float *logits;
    for (size_t i = 0; i < STEPS; i++) {
        step(engine, sequence, tokens[which][counts[which] + i], &logits);
        take(bits, 1 + i, logits);
    }
}

/* A part of a prefill, to its pause or its end; true: it is over. */
static bool go_on(struct engine *engine, struct sequence *sequence, size_t which, struct pauses *pauses,
                  size_t block_size, struct bits *bits) {
    struct error error;
    size_t done = (size_t)sequence_length(sequence);
    const float *logits;
    const struct prefill_request request = {.tokens = tokens[which] + done,
                                            .token_count = counts[which] - done,
                                            .pauses = pauses != NULL ? pause_sometimes : NULL,
                                            .pauses_context = pauses,
                                            .block_size = block_size};
    assert_ok(engine_prefill(engine, sequence, &request, &logits, &error), error);
    if (logits == NULL) return false;
    take(bits, 0, logits);
    return true;
}

static struct engine *make_engine(const struct plan *plan, struct sequence *sequences[3]) {
    struct error error;
    struct engine *engine;
    assert_ok(engine_create(&engine, model, plan, NULL, &error), error);
    for (size_t i = 0; i < 3; i++) assert_ok(sequence_create(&sequences[i], engine, &error), error);
    return engine;
}

static void end_engine(struct engine *engine, struct sequence *sequences[3]) {
    for (size_t i = 0; i < 3; i++) sequence_destroy(sequences[i]);
    engine_destroy(engine);
}

/* Each prompt in one piece, one after the other. */
static void alone(const struct plan *plan, struct bits bits[3], float *meanwhile) {
    struct sequence *sequences[3];
    struct engine *engine = make_engine(plan, sequences);
    const float *logits;
    for (size_t i = 0; i < 3; i++) {
        assert_true(go_on(engine, sequences[i], i, NULL, 0, &bits[i]));
        finish(engine, sequences[i], i, &bits[i]);
    }
    for (size_t i = 0; i < MEANWHILE; i++) {
        step(engine, sequences[2], tokens[2][DECODER + STEPS + i], &logits);
        memcpy(meanwhile + i * width, logits, width * sizeof *logits);
    }
    end_engine(engine, sequences);
}

static void assert_bits(const void *got, const void *expected, size_t bytes, const char *what, size_t every) {
    if (memcmp(got, expected, bytes) != 0) fail_msg("%s: other bits (every %zu)", what, every);
}

/* Two prompts in turns, and steps of the third sequence between them. */
static void in_turns(const struct plan *plan, size_t every, size_t block_size, const struct bits expected[3],
                     const float *meanwhile, uint64_t reused) {
    struct sequence *sequences[3];
    struct engine *engine = make_engine(plan, sequences);
    struct bits bits[3] = {0};
    struct pauses pauses = {.every = every};
    bool over[2] = {false};
    const float *logits;
    size_t steps = 0, parts = 0;
    assert_true(go_on(engine, sequences[2], 2, NULL, 0, &bits[2]));
    finish(engine, sequences[2], 2, &bits[2]);
    while (!over[0] || !over[1]) {
        for (size_t i = 0; i < 2; i++) {
            if (over[i]) continue;
            parts++;
            over[i] = go_on(engine, sequences[i], i, &pauses, block_size, &bits[i]);
        }
        if (steps == MEANWHILE) continue;
        step(engine, sequences[2], tokens[2][DECODER + STEPS + steps], &logits);
        assert_bits(logits, meanwhile + steps * width, width * sizeof *logits, "a step meanwhile", every);
        steps++;
    }
    assert_true(parts > 4 && steps > 2);
    assert_int_equal(sequence_reused_tokens(sequences[0]), reused);
    for (size_t i = 0; i < 2; i++) finish(engine, sequences[i], i, &bits[i]);
    for (size_t i = 0; i < 3; i++)
        assert_bits(&bits[i], &expected[i], sizeof bits[i], i == 0 ? "first" : "second or third", every);
    end_engine(engine, sequences);
}

static struct plan plain_plan(void) {
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = 3,
                        .batch_size = BLOCK,
                        .segment_size = SEGMENT,
                        .select = select_options_default()};
    plan.select.method = &select_quest;
    plan.select.dense_layers = 0;
    plan.select.recent = 32;
    plan.select.keep = (struct select_keep){.tokens = 160};
    return plan;
}

static void compare(struct plan plan, struct scratch *scratch, uint64_t reused) {
    static const size_t everies[] = {1, 2, 5};
    static struct bits expected[3];
    float *meanwhile = calloc(MEANWHILE * width, sizeof *meanwhile);
    alone(&plan, expected, meanwhile);
    for (size_t i = 0; i < sizeof everies / sizeof *everies; i++) {
        if (scratch != NULL && reused == 0) scratch_empty(scratch);
        in_turns(&plan, everies[i], i == 1 ? BLOCK / 2 : 0, expected, meanwhile, reused);
    }
    free(meanwhile);
}

static void test_in_ram(void **state) {
    (void)state;
    struct plan plan = plain_plan();
    compare(plan, NULL, 0);
    plan.select.method = NULL;
    compare(plan, NULL, 0);
}

static void with_disk(enum plan_key_index key_index) {
    struct scratch scratch;
    struct error error;
    struct plan plan = plain_plan();
    scratch_create(&scratch, SCRATCH_MEMORY);
    plan.disk_directory = scratch.path;
    plan.key_index = key_index;
    if (key_index == PLAN_KEY_INDEX_DISK) plan.select.leaf = 16;
    assert_ok(plan_host_bytes_min(&plan, &model->config, &plan.host_bytes, &error), error);
    compare(plan, &scratch, 0);
    scratch_destroy(&scratch);
}

static void test_tiers(void **state) {
    (void)state;
    with_disk(PLAN_KEY_INDEX_RAM);
}

static void test_key_index_on_disk(void **state) {
    (void)state;
    with_disk(PLAN_KEY_INDEX_DISK);
}

static void save_beginning(struct plan plan) {
    struct error error;
    struct sequence *sequences[3];
    const struct prefill_request request = {.tokens = tokens[0], .token_count = 256};
    struct engine *engine = make_engine(&plan, sequences);
    assert_ok(engine_prefill(engine, sequences[0], &request, NULL, &error), error);
    assert_ok(sequence_flush(sequences[0], &error), error);
    end_engine(engine, sequences);
}

/* The beginning of a prompt is saved; what follows selects, in pieces as in one. */
static void test_suffix(void **state) {
    static struct bits expected[3];
    struct scratch scratch;
    struct plan plan = plain_plan();
    float *meanwhile = calloc(MEANWHILE * width, sizeof *meanwhile);
    (void)state;
    scratch_create(&scratch, SCRATCH_MEMORY);
    plan.disk_directory = scratch.path;
    plan.host_bytes = 1 << 24;
    plan.suffix = SUFFIX_SELECTS;
    for (size_t run = 0; run < 3; run++) {
        scratch_empty(&scratch); /* each run saves its answers */
        save_beginning(plan);
        if (run == 0)
            alone(&plan, expected, meanwhile);
        else
            in_turns(&plan, 1, BLOCK / 2 * run, expected, meanwhile, 256);
    }
    free(meanwhile);
    scratch_destroy(&scratch);
}

/* What a paused segment had computed is dropped with it; the sequence goes on as if it had not been. */
static void test_dropped(void **state) {
    struct plan plan = plain_plan();
    struct sequence *sequences[3];
    struct bits expected = {0}, bits = {0};
    struct pauses pauses = {.every = 1};
    (void)state;
    struct engine *engine = make_engine(&plan, sequences);
    assert_true(go_on(engine, sequences[0], 0, NULL, 0, &expected));
    finish(engine, sequences[0], 0, &expected);
    for (size_t i = 0; i < 7; i++) assert_false(go_on(engine, sequences[1], 0, &pauses, 0, &bits));
    sequence_truncate(sequences[1], sequence_length(sequences[1]));
    assert_true(go_on(engine, sequences[1], 0, NULL, 0, &bits));
    finish(engine, sequences[1], 0, &bits);
    assert_bits(&bits, &expected, sizeof bits, "after a drop", 1);
    for (size_t i = 0; i < 2; i++) assert_false(go_on(engine, sequences[2], 1, &pauses, 0, &bits));
    end_engine(engine, sequences); /* with a paused one */
}

/* A pass of a step and a short prompt runs beside a paused segment: its rows are not copied away and back. */
static void test_together_beside(void **state) {
    struct plan plan = plain_plan();
    struct sequence *sequences[3];
    struct bits expected[3] = {0}, bits[3] = {0};
    struct pauses pauses = {.every = 1};
    struct error error;
    const float *logits;
    float *meanwhile = calloc(MEANWHILE * width, sizeof *meanwhile);
    (void)state;
    plan.select.method = NULL;
    alone(&plan, expected, meanwhile);
    struct engine *engine = make_engine(&plan, sequences);
    assert_true(go_on(engine, sequences[2], 2, NULL, 0, &bits[2]));
    for (size_t i = 0; i < 5; i++) assert_false(go_on(engine, sequences[0], 0, &pauses, 0, &bits[0]));
    const struct prefill_part parts[] = {
        {.sequence = sequences[2], .tokens = tokens[2] + DECODER, .token_count = 1, .is_step = true},
        {.sequence = sequences[1], .tokens = tokens[1], .token_count = BLOCK - 1, .tokens_after = SECOND - BLOCK + 1}};
    assert_ok(engine_prefill_together(engine, parts, 2, NULL, &logits, &error), error);
    assert_ptr_equal(engine->paused, sequences[0]);
    assert_null(sequences[0]->paused.rows);
    assert_bits(logits, expected[2].logits[1], width * sizeof *logits, "the step", 1);
    for (size_t i = 0; i < 2; i++) {
        assert_true(go_on(engine, sequences[i], i, NULL, 0, &bits[i]));
        finish(engine, sequences[i], i, &bits[i]);
        assert_bits(&bits[i], &expected[i], sizeof bits[i], i == 0 ? "the paused one" : "the short one", 1);
    }
    end_engine(engine, sequences);
    free(meanwhile);
}

int main(void) {
    const struct tiny_model tiny = tiny_model_default("llama");
    const struct device_options options = {.thread_count = 2,
                                           .mask = cpu_default()};
    struct random random;
    tiny_model_load(&tiny, "prefill_pauses", &options, &device, &model);
    width = model->config.vocabulary_size;
    random_init(&random, 5);
    for (size_t i = 0; i < 3; i++) tiny_model_tokens(&tiny, &random, tokens[i], CONTEXT);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_ram),
        cmocka_unit_test(test_tiers),
        cmocka_unit_test(test_key_index_on_disk),
        cmocka_unit_test(test_suffix),
        cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_together_beside),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    model_destroy(model);
    device_destroy(device);
    return failed;
}

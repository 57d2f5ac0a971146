/* receipt=1: choices and logits do not depend on it, for every method, in RAM and on disk; the kind of a saved
 * document includes whether samples are stored; on the bundled model and a real one the estimates are as close to the
 * exact figures, computed from all keys, as their errors say. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../platform/scratch.h"
#include "attention/dial.h"
#include "engine/engine.h"
#include "lab/eval/recall.h"
#include "real_model.h"
#include "lab/methods/methods.h"
#include "token/tokenizer.h"

#define TEXT LOAM_SOURCE_DIR "/tests/data/a-scandal-in-bohemia.txt"

/* A prompt of the real model costs seconds: as short as leaves something out. */
enum {
    TEXT_BYTES = 1 << 14,
    PROMPT_MAX = 2000,
    REAL_PROMPT = 700,
    DIAL_PROMPT = 500,
    STEPS = 40,
    HEADS_MAX = 1024,
    BLOCKS = 128
};

struct rig {
    struct device *device;
    struct model *model;
    struct token_list list;
    struct error error;
};

static void rig_open(struct rig *rig, const char *path) {
    static char text[TEXT_BYTES];
    struct tokenizer *tokenizer;
    const struct device_options device = {.thread_count = 1, .mask = cpu_default()};
    FILE *file = fopen(TEXT, "rb");
    assert_non_null(file);
    const size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    assert_ok(device_cpu_create(&rig->device, &device, &rig->error), rig->error);
    assert_ok(model_load(&rig->model, path, rig->device, &rig->error), rig->error);
    assert_ok(tokenizer_create(&tokenizer, &rig->model->gguf, false, &rig->error), rig->error);
    assert_ok(
        tokenizer_encode(tokenizer, text, length, (struct tokenize_options){0}, &rig->list, &rig->error),
        rig->error);
    tokenizer_destroy(tokenizer);
    assert_true(rig->list.count >= PROMPT_MAX + STEPS);
}

static void rig_close(struct rig *rig) {
    token_list_deinit(&rig->list);
    model_destroy(rig->model);
    device_destroy(rig->device);
}

/* Estimates and exact fractions, summed over steps, layers and query heads. */
struct comparison {
    struct recall recall;
    size_t head_count;
    double estimated, exact;       /* sums */
    double step_worst, step_exact; /* the largest estimated and exact mean of a step */
    double now_estimated, now_exact;
    uint64_t count, now_count, within, step_count;
    uint64_t position;
    double loss; /* of the dial; 0: none */
    uint64_t steps_below, heads_below;
};

static void end_step(struct comparison *c) {
    if (c->now_count == 0) return;
    c->step_worst = fmax(c->step_worst, c->now_estimated / (double)c->now_count);
    c->step_exact = fmax(c->step_exact, c->now_exact / (double)c->now_count);
    c->step_count++;
    c->steps_below += c->now_exact / (double)c->now_count <= c->loss;
    c->now_estimated = c->now_exact = 0;
    c->now_count = 0;
}

static void compare(void *context, const struct select_event *event) {
    struct comparison *c = context;
    double before[HEADS_MAX];
    if (event->position != c->position) end_step(c);
    c->position = event->position;
    for (size_t head = 0; head < c->head_count; head++)
        before[head] = recall_get(&c->recall, event->layer_index, head)->mass;
    recall_add(&c->recall, event);
    for (size_t head = 0; head < c->head_count && event->left_out != NULL; head++) {
        const double exact = 1 - (recall_get(&c->recall, event->layer_index, head)->mass - before[head]);
        const struct mass_estimate found = event->left_out[head];
        assert_true(found.left_out >= 0 && found.error >= 0);
        c->now_estimated += found.left_out;
        c->now_exact += exact;
        c->now_count++;
        c->estimated += found.left_out;
        c->exact += exact;
        c->heads_below += exact <= c->loss;
        c->count++;
        c->within += fabs(found.left_out - exact) <= 2 * found.error + 0.005;
    }
}

struct outcome {
    float *logits; /* owned: [STEPS][width] */
    struct select_statistics chosen;
    char kind[SELECT_KIND_BYTES];
};

struct way {
    const char *preset, *set, *keep, *directory;
    size_t prompt;
    double error_max; /* of the mean */
};

/* comparison NULL: nothing is compared. */
static struct outcome decode(struct rig *rig, const struct way *way, struct comparison *comparison) {
    const struct model_config *config = &rig->model->config;
    struct plan plan = {.context_size = 2048, .sequence_capacity = 1};
    struct outcome outcome = {.logits = calloc(STEPS, config->vocabulary_size * sizeof(float))};
    struct engine *engine;
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = rig->list.ids, .token_count = way->prompt};
    plan.disk_directory = (char *)(uintptr_t)way->directory;
    assert_ok(plan_set_axes(&plan, way->preset, way->set, way->keep, &rig->error), rig->error);
    if (way->directory != NULL)
        assert_ok(plan_host_bytes_min(&plan, config, &plan.host_bytes, &rig->error), rig->error);
    assert_ok(engine_create(&engine, rig->model, &plan, NULL, &rig->error), rig->error);
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig->error), rig->error);
    if (comparison != NULL) attention_set_observer(engine_attention(engine), compare, comparison);
    for (size_t i = 0; i < STEPS; i++) {
        const float *logits;
        assert_ok(engine_step(engine, &sequence, &rig->list.ids[way->prompt + i], 1, &logits, &rig->error),
                  rig->error);
        memcpy(outcome.logits + i * config->vocabulary_size, logits,
               config->vocabulary_size * sizeof *logits);
    }
    outcome.chosen = attention_statistics(engine_attention(engine));
    select_key_index_kind(engine_select(engine), outcome.kind);
    sequence_destroy(sequence);
    engine_destroy(engine);
    return outcome;
}

static void it_changes_nothing_else(void **state) {
    (void)state;
    static const char *const presets[] = {"streaming", "quest", "hata", "h2o", "leoam", "clo"};
    struct rig rig = {0};
    struct scratch scratch;
    rig_open(&rig, LOAM_SOURCE_DIR "/models/loam-nano.gguf");
    const size_t bytes = STEPS * rig.model->config.vocabulary_size * sizeof(float);
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        struct way way = {.preset = presets[i], .set = "dense=1", .keep = "150", .prompt = 400};
        struct outcome without = decode(&rig, &way, NULL);
        way.set = "dense=1,receipt=1";
        struct outcome with = decode(&rig, &way, NULL);
        const struct mass_receipt *receipt = &with.chosen.receipt;
        assert_memory_equal(with.logits, without.logits, bytes);
        assert_int_equal(without.chosen.receipt.count, 0);
        assert_int_equal(receipt->count,
                         STEPS * rig.model->config.head_count * (rig.model->config.layer_count - 1));
        assert_int_equal(receipt->steps, STEPS);
        assert_true(strcmp(with.kind, without.kind) != 0 && strstr(with.kind, "-keys4") != NULL);
        const struct mass_estimate mean = mass_receipt_mean(receipt);
        assert_true(mean.left_out > 0 && mean.left_out < receipt->step_worst && mean.error > 0);
        assert_true(receipt->step_worst < receipt->worst.left_out && receipt->worst.left_out <= 1);
        if (strcmp(presets[i], "hata") == 0 || strcmp(presets[i], "clo") == 0) { /* the same on disk */
            scratch_create(&scratch, SCRATCH_MEMORY);
            way.directory = scratch.path;
            struct outcome tiers = decode(&rig, &way, NULL);
            assert_memory_equal(tiers.logits, with.logits, bytes);
            assert_true(tiers.chosen.receipt.sum > receipt->sum * (1 - 1e-9) &&
                        tiers.chosen.receipt.sum < receipt->sum * (1 + 1e-9));
            assert_true(tiers.chosen.receipt.step_worst == receipt->step_worst);
            free(tiers.logits);
            scratch_destroy(&scratch);
        }
        free(with.logits), free(without.logits);
    }
    rig_close(&rig);
}

/* The mean within two of its standard errors of the exact one, the worst step near its own, and single heads mostly
 * within two of theirs, of which some are drawn from few heavy keys. */
static void expect_estimates(const char *path, const struct way *ways, size_t way_count) {
    struct rig rig = {0};
    rig_open(&rig, path);
    const struct model_config *config = &rig.model->config;
    const struct recall_shape shape = {.layer_count = config->layer_count,
                                       .head_count = config->head_count,
                                       .kv_head_count = config->kv_head_count,
                                       .k_dimension = config->k_dimension,
                                       .scale = config->attention_scale};
    assert_true(config->head_count <= HEADS_MAX);
    for (size_t i = 0; i < way_count; i++) {
        struct comparison c = {.head_count = config->head_count};
        assert_ok(recall_create(&c.recall, &shape, 2048, &rig.error), rig.error);
        struct outcome outcome = decode(&rig, &ways[i], &c);
        end_step(&c);
        const struct mass_receipt *receipt = &outcome.chosen.receipt;
        const struct mass_estimate mean = mass_receipt_mean(receipt);
        const double exact = c.exact / (double)c.count, within = (double)c.within / (double)c.count;
        print_message(
            "%s %s: left out %.3f +- %.3f%%, exactly %.3f%%; worst step %.3f%%, exactly %.3f%%; heads within "
            "two errors %.1f%%\n",
            ways[i].preset, ways[i].keep, 100 * mean.left_out, 100 * mean.error, 100 * exact,
            100 * receipt->step_worst, 100 * c.step_exact, 100 * within);
        assert_int_equal(c.count, receipt->count);
        assert_int_equal(c.step_count, receipt->steps);
        assert_true(fabs(c.estimated - receipt->sum) < 1e-9 * c.estimated);
        assert_true(c.step_worst == receipt->step_worst);
        assert_true(exact > 0.001); /* something is left out */
        assert_true(fabs(mean.left_out - exact) < 2 * mean.error);
        assert_true(mean.error < ways[i].error_max);
        assert_true(fabs(receipt->step_worst - c.step_exact) < 0.3 * c.step_exact);
        assert_true(within > 0.6);
        free(outcome.logits);
        recall_destroy(&c.recall);
    }
    rig_close(&rig);
}

static void right_on_the_bundled_model(void **state) {
    (void)state;
    static const struct way ways[] = {
        {"hata", "dense=0,receipt=1", "200", NULL, PROMPT_MAX, 0.03},
        /* few keys hold what a window leaves out: a sample of a 16th says little, and says so */
        {"streaming", "dense=0,receipt=1", "200", NULL, PROMPT_MAX, 0.5}};
    expect_estimates(LOAM_SOURCE_DIR "/models/loam-nano.gguf", ways, sizeof ways / sizeof ways[0]);
}

static void right_on_a_real_model(void **state) {
    (void)state;
    static const struct way ways[] = {{"hata", "receipt=1", "256", NULL, REAL_PROMPT, 0.005},
                                      {"quest", "receipt=1", "256", NULL, REAL_PROMPT, 0.09}};
    if (real_model_missing() != 0) { /* it says so */
        skip();
        return;
    }
    expect_estimates(REAL_MODEL, ways, sizeof ways / sizeof ways[0]);
}

/* --loss: the exact fraction left out, a step's mean over its heads, is below the dial in at least 95 of 100 steps,
 * without reading everything. */
static void expect_the_dial_holds(const char *path, const struct way *way, double loss, double kept_max) {
    struct rig rig = {0};
    rig_open(&rig, path);
    const struct model_config *config = &rig.model->config;
    const struct recall_shape shape = {.layer_count = config->layer_count,
                                       .head_count = config->head_count,
                                       .kv_head_count = config->kv_head_count,
                                       .k_dimension = config->k_dimension,
                                       .scale = config->attention_scale};
    struct comparison c = {.head_count = config->head_count, .loss = loss};
    assert_ok(recall_create(&c.recall, &shape, 2048, &rig.error), rig.error);
    struct outcome outcome = decode(&rig, way, &c);
    end_step(&c);
    const double kept = (double)outcome.chosen.kept / (double)outcome.chosen.visible;
    print_message(
        "%s %s: kept %.1f%%; left out %.2f%%, estimated %.2f%%; steps below %llu of %llu, heads below "
        "%.1f%%; worst step %.2f%%\n",
        way->preset, way->set, 100 * kept, 100 * c.exact / (double)c.count,
        100 * c.estimated / (double)c.count, (unsigned long long)c.steps_below,
        (unsigned long long)c.step_count, 100 * (double)c.heads_below / (double)c.count, 100 * c.step_exact);
    assert_int_equal(c.step_count, STEPS);
    assert_true((double)c.steps_below >= 0.95 * (double)c.step_count);
    assert_true(kept < kept_max);
    free(outcome.logits);
    recall_destroy(&c.recall);
    rig_close(&rig);
}

static void the_dial_holds_on_a_real_model(void **state) {
    (void)state;
    static const struct way ways[] = {{"hata", "loss=0.05", NULL, NULL, DIAL_PROMPT, 0},
                                      {"quest", "loss=0.05", NULL, NULL, DIAL_PROMPT, 0}};
    if (real_model_missing() != 0) { /* it says so */
        skip();
        return;
    }
    expect_the_dial_holds(REAL_MODEL, &ways[0], 0.05, 0.8);
    expect_the_dial_holds(REAL_MODEL, &ways[1], 0.05, 0.8);
}

/* A row whose step failed picks again what it picked, and counts once. */
static void the_dial_forgets_a_failed_step(void **state) {
    (void)state;
    enum { ROWS = 6 };
    const struct dial_shape shape = {.layer_count = 1, .kv_head_count = 1, .sequence_capacity = 1, .loss = 0.05};
    uint64_t expected[ROWS];
    for (size_t round = 0; round < 2; round++) {
        struct dial *dial;
        struct error error;
        assert_ok(dial_create(&dial, &shape, &error), error);
        for (size_t row = 0; row < ROWS; row++) {
            const struct dial_choice choice = {.position = 1000 + row, .candidates = 900 + row};
            const struct mass_estimate estimate = {.left_out = 0.1 / (double)(row + 1)};
            for (size_t tries = 0; tries < 1 + round * (row % 3); tries++) {
                const uint64_t picks = dial_picks(dial, &choice, 1);
                if (round == 0) expected[row] = picks;
                assert_int_equal(picks, expected[row]);
                dial_add(dial, &choice, &estimate, 1);
            }
        }
        assert_true(expected[0] != expected[1] && expected[1] != expected[2]);
        dial_destroy(dial);
    }
}

static struct sequence *prompted(struct rig *rig, struct engine *engine, size_t first, size_t count) {
    const struct prefill_request request = {.tokens = rig->list.ids + first, .token_count = count};
    struct sequence *sequence;
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig->error), rig->error);
    return sequence;
}

/* Beside: a second sequence of other tokens is in the first half of the steps, and a third one, which is the first of
 * a step, in the others.  Logits of the one that is asked about: [STEPS][vocabulary]. */
static float *decode_beside(struct rig *rig, const struct way *way, bool beside) {
    const struct model_config *config = &rig->model->config;
    struct plan plan = {.context_size = 2048, .sequence_capacity = 2};
    float *logits = calloc(STEPS, config->vocabulary_size * sizeof *logits);
    struct engine *engine;
    struct sequence *own, *other = NULL;
    assert_ok(plan_set_axes(&plan, way->preset, way->set, way->keep, &rig->error), rig->error);
    assert_ok(engine_create(&engine, rig->model, &plan, NULL, &rig->error), rig->error);
    own = prompted(rig, engine, 0, way->prompt);
    if (beside) other = prompted(rig, engine, 300, way->prompt);
    for (size_t step = 0; step < STEPS; step++) {
        const size_t behind = beside && step >= STEPS / 2, width = config->vocabulary_size;
        if (beside && step == STEPS / 2) {
            void *elsewhere[BLOCKS]; /* so that the new one does not lie where the old one lay */
            sequence_destroy(other);
            for (size_t i = 0; i < BLOCKS; i++) elsewhere[i] = malloc((i + 1) * 16);
            other = prompted(rig, engine, 500, way->prompt);
            for (size_t i = 0; i < BLOCKS; i++) free(elsewhere[i]);
        }
        const int32_t token = rig->list.ids[way->prompt + step], others = rig->list.ids[way->prompt + 300 + step];
        struct sequence *const sequences[] = {behind ? other : own, behind ? own : other};
        const int32_t tokens[] = {behind ? others : token, behind ? token : others};
        const float *found;
        assert_ok(engine_step(engine, sequences, tokens, 1 + (size_t)beside, &found, &rig->error), rig->error);
        memcpy(logits + step * width, found + behind * width, width * sizeof *found);
    }
    sequence_destroy(own);
    sequence_destroy(other);
    engine_destroy(engine);
    return logits;
}

/* What a sequence reads by the dial, or by a list that it keeps, depends on its own steps alone: not on what is in RAM,
 * nor on the other sequences of a step.  keep is the dial's limit. */
static void the_dial_is_a_sequence_s_own(void **state) {
    (void)state;
    struct rig rig = {0};
    struct scratch scratch;
    rig_open(&rig, LOAM_SOURCE_DIR "/models/loam-nano.gguf");
    const size_t bytes = STEPS * rig.model->config.vocabulary_size * sizeof(float);
    struct way way = {.preset = "hata", .set = "dense=1,loss=0.3", .prompt = 700};
    struct outcome memory = decode(&rig, &way, NULL);
    scratch_create(&scratch, SCRATCH_MEMORY);
    way.directory = scratch.path;
    struct outcome tiers = decode(&rig, &way, NULL);
    way.directory = NULL;
    assert_memory_equal(tiers.logits, memory.logits, bytes);
    assert_true(tiers.chosen.kept == memory.chosen.kept && memory.chosen.kept < memory.chosen.visible);
    float *alone = decode_beside(&rig, &way, false), *beside = decode_beside(&rig, &way, true);
    assert_memory_equal(alone, memory.logits, bytes);
    assert_memory_equal(beside, memory.logits, bytes);
    const struct way reuses = {.preset = "clo", .set = "dense=1,reused=0,eta=0.6,power=0", .keep = "64", .prompt = 700};
    float *kept = decode_beside(&rig, &reuses, false), *kept_beside = decode_beside(&rig, &reuses, true);
    assert_memory_equal(kept_beside, kept, bytes);
    free(kept), free(kept_beside);
    way.keep = "150";
    struct outcome capped = decode(&rig, &way, NULL);
    const uint64_t lanes = rig.model->config.kv_head_count * (rig.model->config.layer_count - 1),
                   dense = STEPS * 750;
    assert_true(capped.chosen.kept <= STEPS * 150 * lanes + dense * rig.model->config.kv_head_count);
    way.set = "dense=1,loss=0.0001";
    struct outcome all = decode(&rig, &way, NULL);
    assert_true(all.chosen.kept >= capped.chosen.kept);
    free(memory.logits), free(tiers.logits), free(alone), free(beside), free(capped.logits), free(all.logits);
    scratch_destroy(&scratch);
    rig_close(&rig);
}

static void the_dial_needs_picks(void **state) {
    (void)state;
    static const struct {
        const char *preset, *set, *says;
    } refused[] = {{"full", "loss=0.05", "select=all leaves nothing out"},
                   {"hata", "loss=1.5", "a share of the attention"},
                   {"hata", "loss=x", "a share of the attention"}};
    static const struct select_method *const without[] = {&select_window, &select_h2o};
    struct error error;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct plan plan = {.sequence_capacity = 1};
        assert_int_equal(plan_set_axes(&plan, refused[i].preset, refused[i].set, NULL, &error), STATUS_USAGE);
        assert_non_null(strstr(error.message, refused[i].says));
    }
    for (size_t i = 0; i < 2; i++) {
        struct select_options options = select_options_default();
        const struct select_shape shape = {1, 4, 2, 64, 64, NULL, NULL};
        size_t bytes;
        options.method = without[i];
        options.loss = 0.1;
        assert_int_equal(select_options_key_index_bytes(&options, &shape, &bytes, &error), STATUS_USAGE);
        assert_non_null(strstr(error.message, "needs a method that picks all its tokens by a score"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_changes_nothing_else),      cmocka_unit_test(right_on_the_bundled_model),
        cmocka_unit_test(the_dial_forgets_a_failed_step),
        cmocka_unit_test(the_dial_is_a_sequence_s_own), cmocka_unit_test(the_dial_needs_picks),
        cmocka_unit_test(right_on_a_real_model),        cmocka_unit_test(the_dial_holds_on_a_real_model),
    };
    if (real_model_looks_alone()) cmocka_set_test_filter("*_a_real_model");
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Prompts of several sequences in one pass give bit for bit what each gives alone, and so do the steps behind them:
 * over random families, windows, KV types, selections, lengths and tiers, with a printed seed.  Each is saved as it
 * would be alone.  Where attention is full, a pass has steps of some sequences and prompts of others; some prompts
 * come in two parts, and some leave their pass between two layers. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/engine.h"
#include "lab/methods/methods.h"
#include "model/tiny_model.h"
#include "platform/scratch.h"
#include "seed.h"

enum {
    ROUNDS = 40,
    FIRST_MAX = 150,
    PROMPT_MAX = 250,
    STEPS = 3,
    SEQUENCES = 4,
    CONTEXT = 320,
    BLOCK = 256,
    METHODS = 4
};

static const struct select_method *const methods[METHODS] = {&select_all, &select_quest, &select_hash,
                                                             &select_h2o};

struct rig {
    struct random random;
    struct tiny_model tiny;
    struct device *device;
    struct model *model;
    struct engine *engines[2]; /* alone, together */
    struct scratch scratches[2];
    bool has_disk;
    size_t mixed;          /* passes of steps and prompts */
    size_t parts;          /* first parts of prompts */
    size_t left, left_all; /* passes that prompts left: with steps in them, and without */
    size_t firsts[SEQUENCES], counts[SEQUENCES]; /* tokens that are there before; of the prompt in all */
    int32_t tokens[SEQUENCES][PROMPT_MAX + STEPS];
    struct error error;
};

static void rig_open(struct rig *rig, uint64_t seed) {
    *rig = (struct rig){0};
    random_init(&rig->random, seed);
    static const char *const families[] = {"llama", "qwen3", "opt"};
    rig->tiny = tiny_model_random(&rig->random, families, 3);
    const struct device_options device = {.thread_count = 2, .mask = cpu_default()};
    tiny_model_load(&rig->tiny, "together", &device, &rig->device, &rig->model);
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = SEQUENCES,
                        .batch_size = BLOCK,
                        .segment_size = random_between(&rig->random, 1, 300),
                        .k_type = random_below(&rig->random, 2) ? KV_Q8 : KV_F16,
                        .select = select_options_default()};
    plan.v_type = plan.k_type;
    plan.select.method = methods[random_below(&rig->random, METHODS)];
    if (plan.select.method != &select_all) plan.select.keep = (struct select_keep){.tokens = 160};
    plan.select.recent = 32;
    rig->has_disk =
        rig->tiny.window == 0 && plan.select.method != &select_h2o && random_below(&rig->random, 2) == 0;
    for (size_t i = 0; i < 2; i++) {
        if (rig->has_disk) {
            scratch_create(&rig->scratches[i], SCRATCH_MEMORY);
            plan.disk_directory = rig->scratches[i].path;
            assert_ok(plan_host_bytes_min(&plan, &rig->model->config, &plan.host_bytes, &rig->error),
                      rig->error);
        }
        assert_ok(engine_create(&rig->engines[i], rig->model, &plan, NULL, &rig->error), rig->error);
    }
    size_t left = BLOCK;
    for (size_t s = 0; s < SEQUENCES; s++) {
        const size_t others = SEQUENCES - 1 - s, most = min_size(left - others, PROMPT_MAX - FIRST_MAX);
        const size_t count = random_between(&rig->random, 1, most);
        rig->firsts[s] = random_below(&rig->random, 2) ? random_between(&rig->random, 0, FIRST_MAX) : 0;
        rig->counts[s] = rig->firsts[s] + count;
        left -= count;
        tiny_model_tokens(&rig->tiny, &rig->random, rig->tokens[s], PROMPT_MAX + STEPS);
    }
}

static void rig_close(struct rig *rig) {
    for (size_t i = 0; i < 2; i++) {
        engine_destroy(rig->engines[i]);
        if (rig->has_disk) scratch_destroy(&rig->scratches[i]);
    }
    model_destroy(rig->model);
    device_destroy(rig->device);
}

static void prefill(struct rig *rig, size_t engine, struct sequence *sequence, size_t index, size_t first,
                    size_t count, float *found) {
    const struct prefill_request request = {.tokens = rig->tokens[index] + first, .token_count = count};
    const float *logits;
    if (count == 0) return;
    assert_ok(engine_prefill(rig->engines[engine], sequence, &request, &logits, &rig->error), rig->error);
    if (found != NULL) memcpy(found, logits, rig->tiny.vocabulary_size * sizeof *found);
}

/* Logits of a sequence's prompt, then of its steps: [SEQUENCES][1 + STEPS][vocabulary_size]. */
static float *place(const struct rig *rig, float *all, size_t sequence, size_t index) {
    return all + (sequence * (1 + STEPS) + index) * rig->tiny.vocabulary_size;
}

static bool leave_sometimes(void *context, size_t layers_done, size_t layer_count) {
    struct rig *rig = context;
    assert_true(layers_done > 0 && layers_done < layer_count);
    return random_below(&rig->random, 2) == 0;
}

struct growth {
    const struct sequence *sequence;
    uint64_t length;
};

static bool has_grown(void *context) {
    const struct growth *growth = context;
    return sequence_length(growth->sequence) > growth->length;
}

/* A prompt that has left its pass goes on alone, to the end of what it had in it. */
static void go_on(struct rig *rig, struct sequence *sequence, size_t index, float *all) {
    struct growth growth = {.sequence = sequence, .length = sequence_length(sequence)};
    const struct prefill_request request = {.tokens = rig->tokens[index] + growth.length,
                                            .token_count = rig->counts[index] - (size_t)growth.length,
                                            .pauses = has_grown,
                                            .pauses_context = &growth};
    const float *logits;
    assert_ok(engine_prefill(rig->engines[1], sequence, &request, &logits, &rig->error), rig->error);
    if (logits != NULL) memcpy(place(rig, all, index, 0), logits, rig->tiny.vocabulary_size * sizeof *logits);
}

/* A pass; its prompts may leave it.  which: the sequences' indexes. */
static void run_together(struct rig *rig, const struct prefill_part *parts, const size_t *which, size_t count,
                         float *all) {
    const struct prefill_pauses pauses = {.asks = leave_sometimes, .context = rig};
    const float *logits;
    size_t done;
    assert_ok(engine_prefill_together(rig->engines[1], parts, count, &pauses, &logits, &rig->error),
              rig->error);
    const bool leaves = sequence_paused_tokens(parts[count - 1].sequence, &done) > 0;
    rig->left += leaves && parts[0].is_step;
    rig->left_all += leaves && !parts[0].is_step;
    assert_int_equal(logits == NULL, leaves && !parts[0].is_step);
    for (size_t i = 0; i < count && logits != NULL; i++) {
        if (parts[i].tokens_after > 0 || (leaves && !parts[i].is_step)) continue;
        memcpy(place(rig, all, which[i], parts[i].is_step), logits + i * rig->tiny.vocabulary_size,
               rig->tiny.vocabulary_size * sizeof *logits);
    }
    for (size_t i = 0; i < count && leaves; i++) {
        if (parts[i].is_step) continue;
        assert_int_equal(sequence_paused_tokens(parts[i].sequence, &done), parts[i].token_count);
        go_on(rig, parts[i].sequence, which[i], all);
    }
}

/* The first parts of some prompts. */
static void run_parts(struct rig *rig, struct sequence **sequences, float *all) {
    struct prefill_part parts[SEQUENCES] = {0};
    size_t count = 0, which[SEQUENCES];
    for (size_t s = 0; s < SEQUENCES; s++) {
        const size_t at = (size_t)sequence_length(sequences[s]), left = rig->counts[s] - at;
        if (left < 2 || random_below(&rig->random, 2)) continue;
        const size_t some = random_between(&rig->random, 1, left - 1);
        parts[count] = (struct prefill_part){.sequence = sequences[s],
                                             .tokens = rig->tokens[s] + at,
                                             .token_count = some,
                                             .tokens_after = left - some};
        which[count++] = s;
    }
    if (count == 0) return;
    run_together(rig, parts, which, count, all);
    rig->parts += count;
}

/* Prompts of the sequences [first, end) and the first step of those before, where they share a pass. */
static void run_pass(struct rig *rig, struct sequence **sequences, size_t first, size_t end, bool *stepped,
                     float *all) {
    struct prefill_part parts[SEQUENCES] = {0};
    size_t count = 0, which[SEQUENCES];
    for (size_t s = 0; s < end; s++) {
        const bool is_step = s < first;
        if (is_step && !engine_mixes(rig->engines[1])) continue;
        const size_t at = (size_t)sequence_length(sequences[s]);
        parts[count] = (struct prefill_part){.sequence = sequences[s],
                                             .tokens = rig->tokens[s] + at,
                                             .token_count = is_step ? 1 : rig->counts[s] - at,
                                             .is_step = is_step};
        stepped[s] = is_step;
        which[count++] = s;
    }
    run_together(rig, parts, which, count, all);
}

/* false: a selection watches prompts, and nothing was done. */
static bool prefill_together(struct rig *rig, struct sequence **sequences, bool *stepped, float *all) {
    for (size_t s = 0; s < SEQUENCES; s++) {
        if (rig->firsts[s] == 0)
            assert_ok(sequence_attach(sequences[s], rig->tokens[s], rig->counts[s] - 1, &rig->error),
                      rig->error);
        if (!sequence_prefills_together(sequences[s])) return false;
    }
    const size_t split = random_between(&rig->random, 1, SEQUENCES);
    run_parts(rig, sequences, all);
    run_pass(rig, sequences, 0, split, stepped, all);
    if (split < SEQUENCES) run_pass(rig, sequences, split, SEQUENCES, stepped, all);
    return true;
}

static void run_steps(struct rig *rig, bool together, struct sequence **sequences, const bool *stepped,
                      float *all) {
    const float *logits;
    for (size_t step = 0; step < STEPS; step++) {
        struct sequence *some[SEQUENCES];
        int32_t tokens[SEQUENCES];
        size_t count = 0, which[SEQUENCES];
        for (size_t s = 0; s < SEQUENCES; s++) {
            if (step == 0 && stepped[s]) continue;
            some[count] = sequences[s];
            tokens[count] = rig->tokens[s][rig->counts[s] + step];
            which[count++] = s;
        }
        if (count == 0) continue;
        assert_ok(engine_step(rig->engines[together], some, tokens, count, &logits, &rig->error), rig->error);
        for (size_t i = 0; i < count; i++)
            memcpy(place(rig, all, which[i], 1 + step), logits + i * rig->tiny.vocabulary_size,
                   rig->tiny.vocabulary_size * sizeof *logits);
    }
}

/* The caller frees; NULL: not together. */
static float *run(struct rig *rig, bool together) {
    struct sequence *sequences[SEQUENCES];
    bool stepped[SEQUENCES] = {false};
    float *all = calloc(SEQUENCES * (1 + STEPS) * rig->tiny.vocabulary_size, sizeof *all);
    for (size_t s = 0; s < SEQUENCES; s++) {
        assert_ok(sequence_create(&sequences[s], rig->engines[together], &rig->error), rig->error);
        prefill(rig, together, sequences[s], s, 0, rig->firsts[s], NULL);
    }
    const bool did = !together || prefill_together(rig, sequences, stepped, all);
    for (size_t s = 0; s < SEQUENCES && !together; s++)
        prefill(rig, 0, sequences[s], s, rig->firsts[s], rig->counts[s] - rig->firsts[s],
                place(rig, all, s, 0));
    if (did) run_steps(rig, together, sequences, stepped, all);
    rig->mixed += stepped[0];
    for (size_t s = 0; s < SEQUENCES; s++) sequence_destroy(sequences[s]);
    if (did) return all;
    free(all);
    return NULL;
}

/* What the engine saved: the whole chunks of each prompt are not computed again. */
static void check_saved(struct rig *rig) {
    for (size_t s = 0; s < SEQUENCES; s++) {
        uint64_t found[2];
        for (size_t i = 0; i < 2; i++) {
            struct sequence *sequence;
            assert_ok(sequence_create(&sequence, rig->engines[i], &rig->error), rig->error);
            assert_ok(sequence_attach(sequence, rig->tokens[s], rig->counts[s], &rig->error), rig->error);
            found[i] = sequence_length(sequence);
            sequence_destroy(sequence);
        }
        assert_int_equal(found[0], found[1]);
        if (rig->counts[s] >= 64) assert_true(found[0] >= 64);
    }
}

static void test_as_alone(void **state) {
    (void)state;
    const uint64_t seed = test_seed(20261123);
    size_t compared = 0, refused = 0, with_disk = 0, mixed = 0, parts = 0, left = 0, left_all = 0;
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        struct rig rig;
        rig_open(&rig, seed + round);
        float *expected = run(&rig, false), *found = run(&rig, true);
        refused += found == NULL;
        compared += found != NULL;
        with_disk += rig.has_disk;
        mixed += rig.mixed;
        parts += rig.parts;
        left += rig.left;
        left_all += rig.left_all;
        if (found != NULL &&
            memcmp(found, expected, SEQUENCES * (1 + STEPS) * rig.tiny.vocabulary_size * sizeof *found) != 0)
            fail_msg("seed %llu: other logits", (unsigned long long)(seed + round));
        if (rig.has_disk && found != NULL) check_saved(&rig);
        free(found), free(expected);
        rig_close(&rig);
    }
    assert_met(compared > ROUNDS / 2 && refused > 0 && with_disk > 0 && mixed > 2 && parts > 0 && left > 0 &&
               left_all > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

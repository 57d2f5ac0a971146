/* Several steps of a sequence in one pass (engine_step_ahead): the logits of as many steps, bit for bit, and once more
 * behind rows that were dropped, for every preset, in RAM and on disk, for every family too.
 * LOAM_TEST_SEED draws how many go together, and what of them is dropped. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "base/checked.h"
#include "base/random.h"
#include "engine/decode_rig.h"
#include "engine/engine.h"
#include "model/tiny_model.h"
#include "seed.h"

enum { PROMPT = 300, STEPS = 40, /* the steps fill a chunk */
       CONTEXT = PROMPT + STEPS + 4 };

struct rig {
    struct decode_rig decode;
    struct random random;
    size_t passes, kept, dropped; /* rows that stayed ahead of a step, rows that went */
    size_t alone, refused;        /* presets that step alone, that are not to be had */
};

static int rig_open(void **state) {
    struct rig *rig = calloc(1, sizeof *rig);
    assert_non_null(rig);
    random_init(&rig->random, test_seed(31));
    *state = rig;
    return 0;
}

static void open_model(struct rig *rig, const char *family) {
    decode_rig_open(&rig->decode, "ahead", family, NULL, PROMPT + STEPS + ENGINE_AHEAD_MAX, 11);
}

static int rig_close(void **state) {
    free(*state);
    return 0;
}

/* The logits of STEPS steps, in passes of random rows behind which others were dropped; [STEPS][width]. */
static float *passes(struct rig *rig, struct engine *engine, struct sequence *sequence) {
    struct decode_rig *decode = &rig->decode;
    float *all = calloc(STEPS * decode->width, sizeof *all);
    const float *logits;
    assert_non_null(all);
    for (size_t done = 0, right; done < STEPS; done += right) {
        int32_t tokens[ENGINE_AHEAD_MAX];
        const size_t most = min_size(sequence_ahead_max(sequence), STEPS - done);
        const size_t count = 1 + random_below(&rig->random, most);
        memcpy(tokens, decode->tokens + PROMPT + done, count * sizeof *tokens);
        right = 1 + random_below(&rig->random, count);
        for (size_t i = right; i < count; i++) tokens[i] = (int32_t)random_below(&rig->random, decode->width);
        if (count == 1)
            assert_ok(engine_step(engine, &sequence, tokens, 1, &logits, &decode->error), decode->error);
        else
            assert_ok(engine_step_ahead(engine, sequence, tokens, count, &logits, &decode->error), decode->error);
        memcpy(all + done * decode->width, logits, right * decode->width * sizeof *all);
        for (size_t i = 1; i < right; i++) assert_ok(sequence_keep_next(sequence, &decode->error), decode->error);
        rig->passes += count > 1;
        rig->kept += right - 1;
        rig->dropped += count - right;
    }
    return all;
}

/* NULL: the model has no such preset. */
static float *answers(struct rig *rig, const struct preset *preset, bool disk, bool ahead) {
    struct decode_rig *decode = &rig->decode;
    struct scratch scratch;
    struct engine *engine;
    scratch_create(&scratch, SCRATCH_MEMORY);
    const char *keep = strcmp(preset->keep, "100%") == 0 ? NULL : "96";
    struct plan plan = decode_rig_plan(decode, preset->name, NULL, keep, disk ? scratch.path : NULL);
    plan.context_size = CONTEXT;
    plan.batch_size = 96;
    if (disk)
        assert_ok(plan_host_bytes_min(&plan, &decode->model->config, &plan.host_bytes, &decode->error), decode->error);
    const enum status status = engine_create(&engine, decode->model, &plan, NULL, &decode->error);
    if (status == STATUS_UNSUPPORTED) { /* some of what is on disk needs layers that are alike */
        plan_deinit(&plan);
        scratch_destroy(&scratch);
        rig->refused++;
        return NULL;
    }
    assert_ok(status, decode->error);
    struct sequence *sequence = decode_rig_prompt(decode, engine, PROMPT);
    if (ahead && sequence_ahead_max(sequence) == 1) rig->alone++;
    float *all = ahead ? passes(rig, engine, sequence) : decode_rig_steps(decode, engine, sequence, STEPS);
    sequence_destroy(sequence);
    engine_destroy(engine);
    plan_deinit(&plan);
    scratch_destroy(&scratch);
    return all;
}

/* Of a preset that may be on disk, if it is to be. */
static bool takes(struct rig *rig, const struct preset *preset, bool disk) {
    if (preset_is_auto(preset)) return false;
    struct plan plan = {.context_size = CONTEXT};
    assert_ok(plan_set_axes(&plan, preset->name, NULL, NULL, &rig->decode.error), rig->decode.error);
    const bool watches = plan.select.method != NULL && plan.select.method->watches_prefill;
    plan_deinit(&plan);
    return !(disk && watches);
}

static void same_as_steps(struct rig *rig, const char *family, const struct preset *preset, bool disk) {
    float *expected = answers(rig, preset, disk, false), *found = answers(rig, preset, disk, true);
    for (size_t row = 0; row < STEPS && expected != NULL; row++)
        if (memcmp(found + row * rig->decode.width, expected + row * rig->decode.width,
                   rig->decode.width * sizeof *found) != 0)
            fail_msg("%s %s %s: other logits from step %zu on", family, preset->name, disk ? "on disk" : "in RAM",
                     row);
    free(expected);
    free(found);
}

static void assert_met_all(const struct rig *rig) {
    print_message("%zu passes, %zu rows kept, %zu dropped, %zu presets alone, %zu refused\n", rig->passes, rig->kept,
                  rig->dropped, rig->alone, rig->refused);
    assert_true(rig->passes > 0 && rig->kept > 0 && rig->dropped > 0 && rig->refused / 2 <= 3);
}

static void every_preset(struct rig *rig, bool disk) {
    open_model(rig, "llama");
    for (size_t i = 0; i < preset_count; i++)
        if (takes(rig, preset_table[i], disk)) same_as_steps(rig, "llama", preset_table[i], disk);
    decode_rig_close(&rig->decode);
    assert_met_all(rig);
}

static void in_ram(void **state) { every_preset(*state, false); }
static void on_disk(void **state) { every_preset(*state, true); }

/* Each family with some presets, in RAM and on disk by turns. */
static void every_family(void **state) {
    struct rig *rig = *state;
    const size_t first = random_below(&rig->random, 2);
    for (size_t f = 1; f < TINY_FAMILIES + TINY_STATE_FAMILIES; f++) {
        const char *family = f < TINY_FAMILIES ? tiny_families[f] : tiny_state_families[f - TINY_FAMILIES];
        open_model(rig, family);
        for (size_t i = f % 3; i < preset_count; i += 3) {
            const bool disk = (first + f + i / 3) % 2 == 0;
            if (takes(rig, preset_table[i], disk)) same_as_steps(rig, family, preset_table[i], disk);
        }
        decode_rig_close(&rig->decode);
    }
    assert_met_all(rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(in_ram, rig_open, rig_close),
                                       cmocka_unit_test_setup_teardown(on_disk, rig_open, rig_close),
                                       cmocka_unit_test_setup_teardown(every_family, rig_open, rig_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Whoever leaves a pass, pauses in it, is cut or goes between two layers leaves nothing behind that is read as somebody
 * else's: at every layer boundary, for every preset with KV on disk, the sequences that stay, and those that go on,
 * have the bits of a run in which nobody left and all KV was in RAM. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "engine/decode_rig.h"
#include "engine/engine.h"

enum {
    LAYERS = DECODE_RIG_LAYERS,
    SEQUENCES = 4, /* the first two decode; the others have a prompt's last token to read */
    DECODING = 2,
    FIRST = 272, /* tokens of each before */
    CUT = 256,   /* whole chunks, so that no row of a chunk in 4 bits is computed from again */
    STEPS = 2,
    BLOCK = 96,
    LONG = 2 * BLOCK, /* tokens of the prompt that pauses: two blocks */
    ASKS = 2 * LAYERS - 1,
    CONTEXT = 512,
    AMPLE_BYTES = 1 << 27
};

enum fate { GOES_ON, IS_CUT, IS_GONE, FATES };

struct rig {
    struct decode_rig base;
    struct engine *engine;
    struct sequence *sequences[SEQUENCES];
    float *found;        /* owned; [SEQUENCES][CONTEXT][width]: the logits of each position */
    size_t left, paused; /* that did so, for the test to know that they did */
};

static const int32_t *tokens_of(const struct rig *rig, size_t sequence, size_t at) {
    return rig->base.tokens + sequence * CONTEXT + at;
}

/* The logits of the last token that the sequence has. */
static void take(struct rig *rig, size_t index, const float *logits) {
    const size_t position = (size_t)sequence_length(rig->sequences[index]) - 1;
    memcpy(rig->found + (index * CONTEXT + position) * rig->base.width, logits,
           rig->base.width * sizeof *logits);
}

static void prefill(struct rig *rig, size_t index, size_t count) {
    const size_t at = (size_t)sequence_length(rig->sequences[index]);
    const struct prefill_request request = {.tokens = tokens_of(rig, index, at), .token_count = count};
    const float *logits;
    assert_ok(engine_prefill(rig->engine, rig->sequences[index], &request, &logits, &rig->base.error),
              rig->base.error);
    take(rig, index, logits);
}

/* Steps of all that are there. */
static void step_all(struct rig *rig, size_t end) {
    struct sequence *some[SEQUENCES];
    int32_t tokens[SEQUENCES];
    const float *logits;
    size_t count = 0, which[SEQUENCES];
    for (size_t i = 0; i < end; i++) {
        if (rig->sequences[i] == NULL) continue;
        some[count] = rig->sequences[i];
        which[count] = i;
        tokens[count++] = *tokens_of(rig, i, (size_t)sequence_length(rig->sequences[i]));
    }
    assert_ok(engine_step(rig->engine, some, tokens, count, &logits, &rig->base.error), rig->base.error);
    for (size_t i = 0; i < count; i++) take(rig, which[i], logits + i * rig->base.width);
}

static void begin(struct rig *rig) {
    for (size_t i = 0; i < SEQUENCES; i++) {
        assert_ok(sequence_create(&rig->sequences[i], rig->engine, &rig->base.error), rig->base.error);
        prefill(rig, i, FIRST);
    }
}

/* What becomes of a sequence that has left, or stayed where nobody leaves, and is to have so many tokens. */
static void meet(struct rig *rig, size_t index, enum fate fate, size_t token_count) {
    struct sequence **sequence = &rig->sequences[index];
    if (fate == IS_GONE) {
        sequence_destroy(*sequence);
        *sequence = NULL;
        return;
    }
    if (fate == IS_CUT) sequence_truncate(*sequence, CUT);
    const size_t left = token_count - (size_t)sequence_length(*sequence);
    if (left > 0) prefill(rig, index, left);
}

static void end(struct rig *rig) {
    for (size_t i = 0; i < STEPS; i++) step_all(rig, SEQUENCES);
    for (size_t i = 0; i < SEQUENCES; i++) sequence_destroy(rig->sequences[i]);
}

static bool asks(void *context, size_t done, size_t layer_count) {
    const size_t *at = context; /* layers that are done; 0: nobody leaves */
    assert_true(done > 0 && done < layer_count);
    return done == *at;
}

/* Steps and prompts of a token share a pass, which the prompts leave: so the next layer was asked for. */
static void leave(struct rig *rig, size_t at, enum fate fate) {
    const struct prefill_pauses pauses = {.asks = asks, .context = &at};
    struct prefill_part parts[SEQUENCES] = {0};
    const float *logits;
    size_t count = 0, steps = 0, done;
    begin(rig);
    if (!engine_mixes(rig->engine)) step_all(rig, DECODING);
    for (size_t i = engine_mixes(rig->engine) ? 0 : DECODING; i < SEQUENCES; i++) {
        const bool is_step = i < DECODING;
        steps += is_step;
        parts[count++] = (struct prefill_part){.sequence = rig->sequences[i],
                                               .tokens = tokens_of(rig, i, FIRST),
                                               .token_count = 1,
                                               .is_step = is_step};
    }
    assert_ok(engine_prefill_together(rig->engine, parts, count, &pauses, &logits, &rig->base.error),
              rig->base.error);
    for (size_t i = 0; i < steps; i++) take(rig, i, logits + i * rig->base.width);
    for (size_t i = DECODING; i < SEQUENCES && at == 0 && fate != IS_GONE; i++)
        take(rig, i, logits + (steps + i - DECODING) * rig->base.width);
    for (size_t i = DECODING; i < SEQUENCES; i++) {
        const bool has_left = sequence_paused_tokens(rig->sequences[i], &done) > 0;
        assert_int_equal(has_left, at > 0);
        rig->left += has_left;
        meet(rig, i, fate, FIRST + 1);
        step_all(rig, DECODING); /* over what is left of it */
    }
    end(rig);
}

static bool pauses_at(void *context) {
    size_t *left = context;
    return *left > 0 && --*left == 0;
}

/* A prompt pauses behind that question, and others make steps before it meets its fate. */
static void pause(struct rig *rig, size_t ask, enum fate fate) {
    struct sequence *sequence;
    size_t left = ask, done;
    const float *logits;
    begin(rig);
    sequence = rig->sequences[DECODING];
    const struct prefill_request request = {.tokens = tokens_of(rig, DECODING, FIRST),
                                            .token_count = LONG,
                                            .pauses = pauses_at,
                                            .pauses_context = &left,
                                            .block_size = BLOCK};
    assert_ok(engine_prefill(rig->engine, sequence, &request, &logits, &rig->base.error), rig->base.error);
    assert_int_equal(logits == NULL, ask > 0);
    assert_int_equal(sequence_paused_tokens(sequence, &done) > 0, ask > 0);
    rig->paused += ask > 0;
    if (logits != NULL && fate != IS_GONE) take(rig, DECODING, logits);
    step_all(rig, DECODING);
    meet(rig, DECODING, fate, FIRST + LONG);
    step_all(rig, DECODING);
    end(rig);
}

/* at 0: nobody leaves, and all KV is in RAM. */
typedef void run_scene(struct rig *rig, size_t at, enum fate fate);

static struct plan plan_of(struct rig *rig, const char *preset, bool ample, const char *folder) {
    static const uint8_t fractions[LAYERS] = {7, 12, 16, 0}; /* whatever this machine would choose */
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = SEQUENCES,
                        .batch_size = BLOCK,
                        .k_type = KV_F16,
                        .v_type = KV_F16};
    const struct preset *row;
    assert_ok(preset_find(&row, preset, &rig->base.error), rig->base.error);
    const char *keep = strcmp(row->keep, "100%") == 0 ? NULL : "160";
    assert_ok(plan_set_disk(&plan, folder, strlen(folder), 0, &rig->base.error), rig->base.error);
    assert_ok(plan_set_axes(&plan, preset, NULL, keep, &rig->base.error), rig->base.error);
    if (plan.mixes_pages) {
        plan.fractions.layer_count = LAYERS;
        memcpy(plan.fractions.sixteenths, fractions, sizeof fractions);
        page_fractions_keep_first(&plan.fractions);
    }
    if (ample)
        plan.host_bytes = AMPLE_BYTES;
    else
        assert_ok(plan_host_bytes_min(&plan, &rig->base.model->config, &plan.host_bytes, &rig->base.error),
                  rig->base.error);
    return plan;
}

static float *run(struct rig *rig, const char *preset, run_scene *scene, size_t at, enum fate fate) {
    struct scratch scratch;
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct plan plan = plan_of(rig, preset, at == 0, scratch.path);
    assert_ok(engine_create(&rig->engine, rig->base.model, &plan, NULL, &rig->base.error), rig->base.error);
    rig->found = calloc(SEQUENCES * CONTEXT * rig->base.width, sizeof *rig->found);
    assert_non_null(rig->found);
    scene(rig, at, fate);
    const struct kv_tier_statistics did = engine_tier_statistics(rig->engine);
    assert_int_equal(did.read_pages > 0, at > 0);
    engine_destroy(rig->engine);
    plan_deinit(&plan);
    scratch_destroy(&scratch);
    return rig->found;
}

static void compare(struct rig *rig, const char *preset, const char *what, run_scene *scene, size_t ats) {
    float *expected[FATES];
    for (size_t i = 0; i < FATES; i++) expected[i] = run(rig, preset, scene, 0, (enum fate)i);
    for (size_t at = 1; at <= ats; at++) {
        const enum fate fate = (enum fate)(at % FATES);
        float *found = run(rig, preset, scene, at, fate);
        if (memcmp(found, expected[fate], SEQUENCES * CONTEXT * rig->base.width * sizeof *found) != 0)
            fail_msg("%s: %s %zu, fate %d: other logits", preset, what, at, (int)fate);
        free(found);
    }
    for (size_t i = 0; i < FATES; i++) free(expected[i]);
}

static void test_at_every_boundary(void **state) {
    (void)state;
    struct rig rig = {0};
    size_t presets = 0;
    decode_rig_open(&rig.base, "leaving", "llama", NULL, SEQUENCES * CONTEXT, 12);
    for (size_t i = 0; i < preset_count; i++) {
        const struct preset *preset = preset_table[i];
        if (preset_is_auto(preset) || strcmp(preset->name, "h2o") == 0) continue;
        compare(&rig, preset->name, "left behind layer", leave, LAYERS - 1);
        compare(&rig, preset->name, "paused behind block", pause, ASKS);
        presets++;
    }
    assert_true(presets >= 8);
    assert_int_equal(rig.left, presets * (LAYERS - 1) * (SEQUENCES - DECODING));
    assert_int_equal(rig.paused, presets * ASKS);
    decode_rig_close(&rig.base);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_at_every_boundary)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

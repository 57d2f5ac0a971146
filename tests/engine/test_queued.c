/* The engine on a device with a queue (device/queued_device.h), whose work runs late and in an order that is drawn: the
 * same logits, bit for bit, as on the cpu device.  Of a model whose layers are alike, and of one whose layers differ in
 * KV heads and dimensions, with a window, and also with a layer that attends to the KV of another one.  LOAM_TEST_SEED
 * draws the orders. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "base/random.h"
#include "device/queued_device.h"
#include "engine/decode_rig.h"
#include "engine/engine.h"
#include "model/tiny_model.h"
#include "seed.h"

enum { PROMPT = 700, STEPS = 5, CONTEXT = 768, RUNS = 2 };
static const char UNITS[] = "page=8,sinks=8,recent=16,dense=0";

struct rig {
    struct random random;
    struct decode_rig cpu;
    enum { ALIKE, DIFFER, SHARE } layers; /* of the model */
    const char *set;                      /* of plans on disk; NULL: nothing */
    bool is_ample;                        /* their RAM */
    uint64_t unit_bytes; /* K and V in RAM, behind so many bytes of slots, and units of 8 tokens; 0: not so */
    struct fetch_counts fetched; /* by the engine that answered last */
    uint64_t late;               /* operations that ran behind the call that launched them */
};

static void open_model(const struct rig *rig, struct decode_rig *on, const char *name,
                       struct device *device) {
    const struct tiny_model tiny = tiny_model_of_groups(rig->layers == SHARE);
    if (rig->layers == ALIKE) {
        decode_rig_open(on, name, "llama", device, PROMPT + STEPS, 11);
        return;
    }
    decode_rig_open_model(on, name, &tiny, device, PROMPT + STEPS, 11);
    tiny_model_unslide(on->model, 1);
}

static int open_with(void **state, int layers) {
    struct rig *rig = calloc(1, sizeof *rig);
    assert_non_null(rig);
    rig->layers = layers;
    random_init(&rig->random, test_seed(14));
    open_model(rig, &rig->cpu, "queued-cpu", NULL);
    *state = rig;
    return 0;
}
static int open_alike(void **state) { return open_with(state, ALIKE); }
static int open_differing(void **state) { return open_with(state, DIFFER); }
static int open_sharing(void **state) { return open_with(state, SHARE); }

static int rig_close(void **state) {
    struct rig *rig = *state;
    decode_rig_close(&rig->cpu);
    free(rig);
    return 0;
}

/* On disk, by its own settings. */
static bool has_codec(const struct preset *preset) {
    return preset->disk_settings != NULL && strstr(preset->disk_settings, "codec=") != NULL;
}

static struct plan plan_of(struct rig *rig, const struct preset *preset, const char *folder) {
    static const uint8_t fractions[DECODE_RIG_LAYERS] = {7, 12, 16, 0};
    struct error *error = &rig->cpu.error;
    const char *keep = strcmp(preset->keep, "100%") == 0 ? NULL : "160";
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = 1,
                        .batch_size = 96,
                        .k_type = KV_F16,
                        .v_type = KV_F16};
    if (folder != NULL) assert_ok(plan_set_disk(&plan, folder, strlen(folder), 0, error), *error);
    const char *in_f16 = rig->layers == SHARE && has_codec(preset) ? "codec=f16" : NULL,
               *set = rig->set != NULL ? rig->set : in_f16;
    const char *in_ram = rig->unit_bytes > 0 ? UNITS : NULL;
    assert_ok(plan_set_axes(&plan, preset->name, folder != NULL ? set : in_ram, keep, error), *error);
    plan.rows_in_host = rig->unit_bytes > 1;
    plan.unit_bytes = plan.rows_in_host ? rig->unit_bytes : 0;
    if (plan.mixes_pages) {
        plan.fractions.layer_count = DECODE_RIG_LAYERS;
        memcpy(plan.fractions.sixteenths, fractions, sizeof fractions);
        page_fractions_keep_first(&plan.fractions);
    }
    if (folder != NULL && rig->is_ample) plan.host_bytes = 1 << 28;
    if (folder != NULL && !rig->is_ample)
        assert_ok(plan_host_bytes_min(&plan, &rig->cpu.model->config, &plan.host_bytes, error), *error);
    return plan;
}

/* A prompt and its steps, on disk once more by a second engine, which opens what the first has saved:
 * [RUNS][STEPS][width], the caller frees; NULL: the method cannot be on disk. */
static float *answers(struct rig *rig, struct decode_rig *on, const struct preset *preset, bool disk) {
    const size_t floats = STEPS * on->width;
    struct scratch scratch;
    struct engine *engine;
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct plan plan = plan_of(rig, preset, disk ? scratch.path : NULL);
    float *all = calloc(RUNS * floats, sizeof *all);
    assert_non_null(all);
    for (size_t i = 0; i < (disk ? RUNS : 1) && all != NULL; i++) {
        if (disk && plan.select.method->watches_prefill) {
            free(all);
            all = NULL;
            continue;
        }
        assert_ok(engine_create(&engine, on->model, &plan, NULL, &on->error), on->error);
        struct sequence *sequence = decode_rig_prompt(on, engine, PROMPT);
        float *steps = decode_rig_steps(on, engine, sequence, STEPS);
        memcpy(all + i * floats, steps, floats * sizeof *all);
        free(steps);
        assert_ok(engine_fetch_counts(engine, &rig->fetched, &on->error), on->error);
        assert_ok(sequence_flush(sequence, &on->error), on->error);
        if (disk && !rig->is_ample) assert_true(engine_tier_statistics(engine).read_pages > 0);
        assert_int_equal(sequence_reused_tokens(sequence) > 0, i > 0);
        sequence_destroy(sequence);
        engine_destroy(engine);
    }
    plan_deinit(&plan);
    scratch_destroy(&scratch);
    return all;
}

static void same_answers(struct rig *rig, const struct preset *preset, bool disk) {
    const uint64_t seed = random_next(&rig->random);
    float *expected = answers(rig, &rig->cpu, preset, disk);
    if (expected == NULL) return;
    if (disk && (preset->disk_settings == NULL || rig->set != NULL)) {
        rig->is_ample = rig->set != NULL; /* pages may be in 4 bits */
        float *in_ram = answers(rig, &rig->cpu, preset, rig->is_ample);
        rig->is_ample = false;
        if (memcmp(expected, in_ram, STEPS * rig->cpu.width * sizeof *in_ram) != 0)
            fail_msg("%s: from disk other logits than in RAM", preset->name);
        free(in_ram);
    }
    struct decode_rig on;
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    open_model(rig, &on, "queued", queued_device_create(&options, seed));
    float *found = answers(rig, &on, preset, disk);
    if (memcmp(found, expected, (size_t)(disk ? RUNS : 1) * STEPS * on.width * sizeof *found) != 0)
        fail_msg("%s %s: other logits", preset->name, disk ? "on disk" : "in RAM");
    rig->late += queued_device_counts(on.device).late;
    decode_rig_close(&on);
    free(found);
    free(expected);
}

static void presets(struct rig *rig, bool disk) {
    const uint64_t late = rig->late;
    for (size_t i = 0; i < preset_count; i++)
        if (!preset_is_auto(preset_table[i]))
            same_answers(rig, preset_table[i], disk);
    assert_met(rig->late > late);
}

static void in_ram(void **state) { presets(*state, false); }
static void on_disk(void **state) { presets(*state, true); }

/* Slots change no bit, be they many or few; nor does a launch of a captured step. */
static void behind_slots(void **state) {
    struct rig *rig = *state;
    const struct preset *hata = NULL;
    for (size_t i = 0; i < preset_count; i++)
        if (strcmp(preset_table[i]->name, "hata") == 0) hata = preset_table[i];
    assert_non_null(hata);
    rig->unit_bytes = 1; /* the same choice, all in memory */
    float *expected = answers(rig, &rig->cpu, hata, false);
    uint64_t hits = 0;
    assert_true(rig->fetched.hits + rig->fetched.misses + rig->fetched.direct == 0);
    for (size_t n = 0; n < 2; n++) {
        rig->unit_bytes = n == 0 ? 4 << 20 : rig->layers == ALIKE ? 160 << 10 : 800 << 10; /* of more heads */
        float *found = answers(rig, &rig->cpu, hata, false);
        assert_memory_equal(found, expected, STEPS * rig->cpu.width * sizeof *found);
        const struct fetch_counts on_cpu = rig->fetched;
        assert_true(on_cpu.hits > 0 && on_cpu.misses > 0 && on_cpu.direct > 0 && on_cpu.absent == 0);
        if (n == 0) hits = on_cpu.hits;
        assert_true(on_cpu.misses > on_cpu.direct); /* each step of a graph takes slots of earlier ones */
        assert_int_equal(on_cpu.hits<hits, n> 0);   /* slots are too few */
        same_answers(rig, hata, false);
        assert_memory_equal(&rig->fetched, &on_cpu, sizeof on_cpu);
        free(found);
    }
    rig->unit_bytes = 0;
    free(expected);
}

/* What layers that share KV cannot have: pages in 4 bits, and a key index on disk. */
static void differing_on_disk(void **state) {
    struct rig *rig = *state;
    for (size_t i = 0; i < preset_count; i++) {
        const struct preset *preset = preset_table[i];
        const bool has_index = strcmp(preset->name, "quest") == 0 || strcmp(preset->name, "clo") == 0;
        rig->set = has_index ? "key_index=disk" : "codec=q4";
        if (has_index || has_codec(preset)) same_answers(rig, preset, true);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_ram), cmocka_unit_test(behind_slots),
                                       cmocka_unit_test(on_disk)};
    const struct CMUnitTest differing[] = {cmocka_unit_test(differing_on_disk)};
    const int failed = cmocka_run_group_tests(tests, open_alike, rig_close) +
                       cmocka_run_group_tests(differing, open_differing, rig_close);
    return failed + cmocka_run_group_tests(tests, open_sharing, rig_close);
}

/* Every preset as it is shipped, its settings at their defaults, over a context of which it leaves something out:
 *   in RAM     keeping 100% it is full attention, bit for bit; at its default it is not
 *   on disk    at the least budget as with all of its KV in RAM, bit for bit, in its own form, and with f16 rows as
 *              without a disk; keeping 100% of f16 rows it is full attention again
 * The budget that a refusal names is enough, and is the same whatever was given. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "engine/decode_rig.h"
#include "engine/engine.h"

enum { PROMPT = 2200, STEPS = 6, CONTEXT = 2240, AMPLE_BYTES = 1 << 28 }; /* no preset keeps more than 2048 tokens */

struct rig {
    struct decode_rig base;
    float *full;     /* owned; [STEPS][width]: of full attention in RAM */
    float **shipped; /* owned; [preset_count]: of each preset in RAM, once it was asked for */
};

enum budget { IN_RAM, AMPLE, BUDGET_MIN };

static struct plan plan_of(struct rig *rig, const char *preset, const char *set, const char *keep,
                           enum budget budget, const char *folder) {
    struct plan plan = decode_rig_plan(&rig->base, preset, set, keep, budget != IN_RAM ? folder : NULL);
    plan.context_size = CONTEXT;
    plan.batch_size = 256;
    if (budget == AMPLE) plan.host_bytes = AMPLE_BYTES;
    if (budget == BUDGET_MIN)
        assert_ok(plan_host_bytes_min(&plan, &rig->base.model->config, &plan.host_bytes, &rig->base.error),
                  rig->base.error);
    return plan;
}

/* Logits of every step, [STEPS][width], the caller frees; NULL: it is rejected as one that cannot be on disk. */
static float *run(struct rig *rig, const char *preset, const char *set, const char *keep,
                  enum budget budget) {
    struct scratch scratch;
    struct engine *engine;
    struct decode_rig *base = &rig->base;
    float *all = NULL;
    scratch_create(&scratch, SCRATCH_MEMORY);
    struct plan plan = plan_of(rig, preset, set, keep, budget, scratch.path);
    if (budget != IN_RAM && plan.select.method != NULL && plan.select.method->watches_prefill) {
        assert_int_equal(engine_create(&engine, base->model, &plan, NULL, &base->error), STATUS_UNSUPPORTED);
    } else {
        assert_ok(engine_create(&engine, base->model, &plan, NULL, &base->error), base->error);
        struct sequence *sequence = decode_rig_prompt(base, engine, PROMPT);
        all = decode_rig_steps(base, engine, sequence, STEPS);
        const struct kv_tier_statistics did = engine_tier_statistics(engine);
        if (budget == BUDGET_MIN) assert_true(did.read_pages > 0);
        if (budget == AMPLE) assert_int_equal(did.read_pages, 0);
        assert_true(did.host_bytes <= plan.host_bytes);
        sequence_destroy(sequence);
        engine_destroy(engine);
    }
    plan_deinit(&plan);
    scratch_destroy(&scratch);
    return all;
}

static int rig_open(void **state) {
    struct rig *rig = calloc(1, sizeof *rig);
    assert_non_null(rig);
    decode_rig_open(&rig->base, "presets", "llama", NULL, PROMPT + STEPS, 11);
    rig->full = run(rig, "full", NULL, NULL, IN_RAM);
    rig->shipped = calloc(preset_count, sizeof *rig->shipped);
    assert_non_null(rig->shipped);
    *state = rig;
    return 0;
}

static int rig_close(void **state) {
    struct rig *rig = *state;
    for (size_t i = 0; i < preset_count; i++) free(rig->shipped[i]);
    free(rig->shipped);
    free(rig->full);
    decode_rig_close(&rig->base);
    free(rig);
    return 0;
}

static size_t bytes_of(const struct rig *rig) { return STEPS * rig->base.width * sizeof(float); }

/* Frees both.  what: for the message of a failure. */
static void expect_same(const struct rig *rig, const char *preset, const char *what, float *found,
                        float *expected) {
    if (memcmp(found, expected, bytes_of(rig)) != 0) fail_msg("%s: %s: other logits", preset, what);
    free(found);
    if (expected != rig->full) free(expected);
}

static bool keeps_everything(const struct preset *preset) { return strcmp(preset->keep, "100%") == 0; }

static const float *shipped_in_ram(struct rig *rig, size_t preset) {
    if (rig->shipped[preset] == NULL) rig->shipped[preset] = run(rig, preset_table[preset]->name, NULL, NULL, IN_RAM);
    return rig->shipped[preset];
}

/* loam's own end with auto; it knows the names of the others. */
static void others_are_known_as_the_labs(void **state) {
    (void)state;
    bool is_of_lab = false;
    size_t others = 0;
    for (size_t i = 0; i < preset_count; i++) {
        const char *name = preset_table[i]->name;
        if (preset_is_of_lab(name, strlen(name)) != is_of_lab) fail_msg("%s: whose preset?", name);
        others += is_of_lab;
        is_of_lab |= preset_is_auto(preset_table[i]);
    }
    assert_true(others >= 5);
}

static void in_ram(void **state) {
    struct rig *rig = *state;
    size_t selecting = 0;
    for (size_t i = 0; i < preset_count; i++) {
        const struct preset *preset = preset_table[i];
        if (preset_is_auto(preset)) continue;
        expect_same(rig, preset->name, "all of it", run(rig, preset->name, NULL, "100%", IN_RAM), rig->full);
        if (keeps_everything(preset)) continue;
        if (memcmp(shipped_in_ram(rig, i), rig->full, bytes_of(rig)) == 0)
            fail_msg("%s: nothing was left out", preset->name);
        selecting++;
    }
    assert_true(selecting >= 5);
}

static float *copy_of(const struct rig *rig, const float *logits) {
    return memcpy(malloc(bytes_of(rig)), logits, bytes_of(rig));
}

static void on_disk(void **state) {
    struct rig *rig = *state;
    size_t on_disk = 0, in_4_bits = 0;
    for (size_t i = 0; i < preset_count; i++) {
        const struct preset *preset = preset_table[i];
        if (preset_is_auto(preset)) continue;
        float *found = run(rig, preset->name, NULL, NULL, BUDGET_MIN);
        if (found == NULL) continue;
        on_disk++;
        if (preset->disk_settings == NULL)
            expect_same(rig, preset->name, "as without a disk", copy_of(rig, found),
                        copy_of(rig, shipped_in_ram(rig, i)));
        expect_same(rig, preset->name, "as shipped, at the least budget and in RAM", found,
                    run(rig, preset->name, NULL, NULL, AMPLE));
        expect_same(rig, preset->name, "all of it, in f16",
                    run(rig, preset->name, "codec=f16", "100%", BUDGET_MIN), rig->full);
        if (preset->disk_settings == NULL) continue;
        in_4_bits += strstr(preset->disk_settings, "codec=") != NULL;
        char in_ram_set[120]; /* the settings of the disk, without those that it alone has, which are last */
        snprintf(in_ram_set, sizeof in_ram_set, "%s", preset->disk_settings);
        static const char *const of_disks[] = {"codec=", "reuse=lfu"};
        for (size_t s = 0; s < sizeof of_disks / sizeof of_disks[0]; s++) {
            char *found_at = strstr(in_ram_set, of_disks[s]);
            if (found_at != NULL) found_at[found_at > in_ram_set ? -1 : 0] = '\0';
        }
        expect_same(rig, preset->name, "in f16 rows, as without a disk",
                    run(rig, preset->name, "codec=f16", NULL, BUDGET_MIN),
                    run(rig, preset->name, in_ram_set, preset->disk_keep, IN_RAM));
    }
    assert_true(on_disk >= 5 && in_4_bits > 0);
}

/* The least budget by the refusal of the one that the plan has. */
static uint64_t named_least(struct decode_rig *base, const struct plan *plan) {
    struct engine *engine;
    unsigned long long given, least = 0;
    if (engine_create(&engine, base->model, plan, NULL, &base->error) != STATUS_MEMORY)
        fail_msg("%s of %llu tokens for %zu sequences: %llu bytes were enough", plan->preset,
                 (unsigned long long)plan->context_size, plan->sequence_capacity,
                 (unsigned long long)plan->host_bytes);
    if (sscanf(base->error.message, "--kv-host: %llu bytes, but this context needs at least %llu", &given,
               &least) != 2 ||
        given != plan->host_bytes)
        fail_msg("%s: %s", plan->preset, base->error.message);
    return least;
}

/* Of many contexts the sizes alone; in the least budget of the smallest all sequences run. */
static void a_refusal_names_enough(void **state) {
    static const struct {
        uint64_t context;
        size_t sequences;
    } sizes[] = {{PROMPT, 1}, {PROMPT, 4}, {1 << 16, 1}, {1 << 16, 16}};
    struct rig *rig = *state;
    struct decode_rig *base = &rig->base;
    size_t asked = 0, rebuilding = 0;
    for (size_t i = 0; i < preset_count * 2; i++) {
        struct scratch scratch;
        const struct preset *preset = preset_table[i / 2];
        scratch_create(&scratch, SCRATCH_MEMORY);
        struct plan plan = plan_of(rig, preset->name, NULL, NULL, AMPLE, scratch.path);
        plan.pools_key_index = i % 2 == 1;
        const bool runs =
            !preset_is_auto(preset) && (plan.select.method == NULL || !plan.select.method->watches_prefill);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes && runs; k++) {
            struct engine *engine;
            plan.context_size = sizes[k].context;
            plan.sequence_capacity = sizes[k].sequences;
            plan.host_bytes = 1 << 20;
            const uint64_t least = named_least(base, &plan), others[] = {1, least / 8, least / 2, least - 1};
            for (size_t j = 0; j < sizeof others / sizeof *others; j++) {
                plan.host_bytes = others[j];
                const uint64_t other = named_least(base, &plan);
                if (other != least)
                    fail_msg("%s, %zu sequences: of %llu bytes at least %llu, of %llu at least %llu",
                             preset->name, sizes[k].sequences, 1ull << 20, (unsigned long long)least,
                             (unsigned long long)others[j], (unsigned long long)other);
            }
            plan.host_bytes = least;
            rebuilding += plan_keeps_inputs(&plan, &base->model->config);
            assert_ok(engine_create(&engine, base->model, &plan, NULL, &base->error), base->error);
            struct sequence *sequences[4];
            const size_t count = k == 1 ? sizes[k].sequences : 0; /* of one on_disk has it */
            for (size_t j = 0; j < count; j++) sequences[j] = decode_rig_prompt(base, engine, 200);
            for (size_t j = 0; j < count; j++) decode_rig_step(base, engine, sequences[j]);
            assert_true(engine_tier_statistics(engine).host_bytes <= least);
            for (size_t j = 0; j < count; j++) sequence_destroy(sequences[j]);
            engine_destroy(engine);
            asked++;
        }
        plan_deinit(&plan);
        scratch_destroy(&scratch);
    }
    assert_true(asked >= 40 && rebuilding > 0);
}

/* Lists that are kept by what the layer before expects of its queries, which a layer that keeps a state does too. */
static void expected_queries(void **state) {
    (void)state;
    struct rig rig = {.full = NULL};
    decode_rig_open(&rig.base, "families", "qwen35", NULL, PROMPT + STEPS, 12);
    float *in_ram = run(&rig, "clo-published", "dense=0", NULL, IN_RAM),
          *exact = run(&rig, "clo-published", "dense=0,labels=exact", NULL, IN_RAM);
    if (memcmp(in_ram, exact, bytes_of(&rig)) == 0) fail_msg("nothing was expected");
    free(exact);
    expect_same(&rig, "clo-published", "on disk", run(&rig, "clo-published", "dense=0", NULL, BUDGET_MIN), in_ram);
    decode_rig_close(&rig.base);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_are_known_as_the_labs), cmocka_unit_test(in_ram), cmocka_unit_test(on_disk),
        cmocka_unit_test(a_refusal_names_enough), cmocka_unit_test(expected_queries)};
    return cmocka_run_group_tests(tests, rig_open, rig_close);
}

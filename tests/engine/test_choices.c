/* A choice stays on the device (attention/choice.h): with all KV in memory every selection has the cpu device's bits on
 * a device with a queue, where lists are out of the host's reach; a step waits for no list and reads none, unless
 * somebody observes.  Where layers differ, each KV head chooses what the formulas say.  LOAM_TEST_SEED draws the
 * orders. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "base/random.h"
#include "device/queued_device.h"
#include "engine/choice_reference.h"
#include "engine/decode_rig.h"
#include "engine/engine.h"
#include "model/tiny_calibration.h"
#include "model/tiny_model.h"
#include "seed.h"

/* Of settings that are compared with the formulas. */
#define WINDOW "dense=0,sinks=16,recent=64"
enum { LAYERS = DECODE_RIG_LAYERS, PROMPT = 600, STEPS = 9, CONTEXT = 640 };

struct rig {
    struct random random;
    struct decode_rig cpu;
};

static int rig_open(void **state) {
    struct rig *rig = calloc(1, sizeof *rig);
    assert_non_null(rig);
    random_init(&rig->random, test_seed(91));
    decode_rig_open(&rig->cpu, "choices-cpu", "llama", NULL, PROMPT + STEPS, 5);
    *state = rig;
    return 0;
}

static int rig_close(void **state) {
    struct rig *rig = *state;
    decode_rig_close(&rig->cpu);
    free(rig);
    return 0;
}

static void open_queued(struct rig *rig, struct decode_rig *on) {
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    decode_rig_open(on, "choices", "llama", queued_device_create(&options, random_next(&rig->random)),
                    PROMPT + STEPS, 5);
}

/* ---- waits ---- */

/* How often the host waited for the device. */
static struct {
    struct device_operations table;
    const struct device_operations *own;
    uint64_t count;
} waits;

static enum status counted_synchronize(struct stream *stream, struct error *error) {
    waits.count++;
    return waits.own->stream_synchronize(stream, error);
}

static enum status counted_ticket_wait(struct ticket ticket, struct error *error) {
    waits.count++;
    return waits.own->ticket_wait(ticket, error);
}

/* A list is where the host cannot see it. */
static void checked_choose(struct stream *stream, const struct choose_operation *operation) {
    assert_int_equal(operation->rows.buffer->kind, MEMORY_DEVICE);
    assert_null(operation->rows.buffer->host);
    waits.own->choose(stream, operation);
}

static void count_waits(struct device *device) {
    waits.own = device->operations;
    waits.table = *device->operations;
    waits.table.stream_synchronize = counted_synchronize;
    waits.table.ticket_wait = counted_ticket_wait;
    waits.table.choose = checked_choose;
    device->operations = &waits.table;
}

/* ---- a setting ---- */

struct setting {
    const char *preset, *set, *keep;
};

static struct engine *engine_of(struct decode_rig *on, const struct setting *setting) {
    struct engine *engine;
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = 1,
                        .batch_size = 96,
                        .k_type = KV_F16,
                        .v_type = KV_F16};
    assert_ok(plan_set_axes(&plan, setting->preset, setting->set, setting->keep, &on->error), on->error);
    assert_ok(engine_create(&engine, on->model, &plan, NULL, &on->error), on->error);
    plan_deinit(&plan);
    return engine;
}

struct seen {
    uint64_t events, lists, rows;
};

static void look(void *context, const struct select_event *event) {
    struct seen *seen = context;
    seen->events++;
    for (size_t head = 0; head < 2; head++) { /* KV heads of the model */
        const struct host_list *list = &event->lists[head];
        assert_true(list->count > 0 && list->rows[list->count - 1] == event->position);
        for (size_t i = 1; i < list->count; i++) assert_true(list->rows[i] > list->rows[i - 1]);
        seen->rows += list->count;
    }
    seen->lists += 2;
}

/* What a run of the setting's steps gives. */
struct outcome {
    float *logits; /* [STEPS][width], the caller frees */
    struct select_statistics did;
    uint64_t waits; /* of the steps */
};

static struct outcome outcome_of(struct decode_rig *on, const struct setting *setting, struct seen *seen) {
    struct outcome outcome = {.logits = calloc(STEPS * on->width, sizeof(float))};
    struct engine *engine = engine_of(on, setting);
    struct sequence *sequence = decode_rig_prompt(on, engine, PROMPT);
    assert_non_null(outcome.logits);
    attention_reset_statistics(engine_attention(engine));
    if (seen != NULL) attention_set_observer(engine_attention(engine), look, seen);
    waits.count = 0;
    for (size_t i = 0; i < STEPS; i++)
        memcpy(outcome.logits + i * on->width, decode_rig_step(on, engine, sequence),
               on->width * sizeof(float));
    outcome.waits = waits.count;
    outcome.did = attention_statistics(engine_attention(engine));
    sequence_destroy(sequence);
    engine_destroy(engine);
    return outcome;
}

/* ---- bits ---- */

static void assert_same(const struct setting *setting, const struct outcome *found,
                        const struct outcome *expected, size_t width) {
    const struct select_statistics *a = &found->did, *b = &expected->did;
    if (memcmp(found->logits, expected->logits, STEPS * width * sizeof(float)) != 0)
        fail_msg("%s, %s: other logits", setting->preset, setting->set);
    assert_true(a->kept == b->kept && a->visible == b->visible && a->evaluated == b->evaluated);
    assert_true(a->kept < a->visible);
    assert_memory_equal(&a->tree, &b->tree, sizeof a->tree);
    assert_true(a->mass_bound.sum == b->mass_bound.sum && a->receipt.sum == b->receipt.sum);
    assert_true(a->reuse.hits == b->reuse.hits && a->reuse.rows == b->reuse.rows);
    assert_true(a->lists_read == b->lists_read && a->verdicts_read == b->verdicts_read);
}

/* The presets, and what they leave out of scorers, of what is said of a choice, and of what makes the next one. */
static const struct setting settings[] = {
    {"streaming", NULL, "100"},
    {"quest", NULL, "160"},
    {"quest", "select=meanstd", "160"},
    {"quest", "mass_bound=1", "160"},
    {"hata", "dense=1", "160"},
    {"hata", "select=exact", "160"},
    {"hata", "code=sign,receipt=1", "160"},
    {"hata", "loss=0.05", NULL},
    {"h2o", NULL, "160"},
    {"infinigen", NULL, "160"},
    {"infinigen", "alpha=0.5", "200"},
    {"infinigen-published", "alpha=0.5,eta=0.3", "200"},
    {"leoam", NULL, "160"},
    {"leoam", "rank=bound,group=max,mass_bound=1,receipt=1", "160"},
    {"clo", "dense=0", "160"},
    {"clo", "dense=0,reused=0,eta=0.3,power=0,labels=speculated,age=2", "160"},
    {"clo", "dense=0,reused=0,eta=0.3,power=0,age=0,receipt=1", "160"},
    {"leoam-published", NULL, "160"},
    {"clo-published", NULL, "160"},
    {"retroinfer", NULL, "30%"},
    {"pqcache", NULL, "160"},
};
enum { SETTING_COUNT = sizeof settings / sizeof settings[0] };

static void same_bits(void **state) {
    struct rig *rig = *state;
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        struct decode_rig queued;
        struct seen seen = {0};
        const bool observes = random_below(&rig->random, 2) == 0;
        const struct outcome expected = outcome_of(&rig->cpu, &settings[i], observes ? &seen : NULL);
        open_queued(rig, &queued);
        const struct outcome found = outcome_of(&queued, &settings[i], observes ? &seen : NULL);
        assert_same(&settings[i], &found, &expected, queued.width);
        decode_rig_close(&queued);
        free(expected.logits), free(found.logits);
    }
}

/* What a search counts is known in the step that follows: a tree's layers come to be searched from above the leaves. */
static void trees_are_measured(void **state) {
    struct rig *rig = *state;
    static const struct setting tree = {"leoam", "rank=bound,group=max", "160"};
    struct decode_rig queued;
    open_queued(rig, &queued);
    for (size_t i = 0; i < 2; i++) {
        const struct outcome found = outcome_of(i == 0 ? &rig->cpu : &queued, &tree, NULL);
        size_t levels = 0;
        for (enum tree_level level = 0; level < TREE_LEVEL_COUNT; level++)
            levels += found.did.tree.nodes[level] > 0;
        assert_int_equal(levels, 2);
        free(found.logits);
    }
    decode_rig_close(&queued);
}

/* ---- lists ---- */

/* With no list to read, steps wait as often as those that attend to everything.  CLO's verdicts are read where somebody
 * observes, so that a step is no graph: all but those of the first step. */
static void lists_stay(void **state) {
    struct rig *rig = *state;
    static const struct setting full = {"full", NULL, NULL};
    static const struct setting stay[] = {{"hata", "dense=0", "160"},
                                          {"quest", "dense=0", "160"},
                                          {"leoam", "dense=0", "160"},
                                          {"infinigen", "dense=0,alpha=0.5", "200"},
                                          {"clo", "dense=0,reused=0,eta=0.3,power=0", "160"}};
    for (size_t i = 0; i < sizeof stay / sizeof stay[0]; i++) {
        struct decode_rig queued;
        struct seen seen = {0};
        const bool keeps = strcmp(stay[i].preset, "clo") == 0;
        open_queued(rig, &queued);
        count_waits(queued.device);
        const struct outcome everything = outcome_of(&queued, &full, NULL),
                             alone = outcome_of(&queued, &stay[i], NULL),
                             observed = outcome_of(&queued, &stay[i], &seen);
        assert_int_equal(alone.waits, everything.waits);
        assert_int_equal(alone.did.lists_read, 0);
        assert_int_equal(alone.did.verdicts_read, 0);
        assert_int_equal(observed.did.verdicts_read, keeps ? (STEPS - 1) * seen.lists / STEPS : 0);
        assert_int_equal(alone.did.reuse.hits, observed.did.reuse.hits);
        assert_int_equal(alone.did.kept, observed.did.kept);
        assert_true(!keeps || (alone.did.reuse.hits > 0 && alone.did.reuse.misses > seen.lists / STEPS));
        assert_int_equal(seen.events, STEPS * LAYERS);
        assert_int_equal(observed.did.lists_read, seen.lists);
        assert_int_equal(observed.did.kept, seen.rows);
        assert_true(observed.waits > alone.waits);
        assert_memory_equal(observed.logits, alone.logits, STEPS * queued.width * sizeof(float));
        free(everything.logits), free(alone.logits), free(observed.logits);
        decode_rig_close(&queued);
    }
}

/* ---- layers that differ ---- */

struct way {
    struct setting setting;
    enum reference_rank rank;
    size_t unit;
    bool keeps; /* half of the heads keep their lists */
};

/* With a folder: in as little RAM as can be. */
static struct engine *engine_over(struct decode_rig *on, const struct setting *setting, char *folder) {
    struct engine *engine;
    struct plan plan = {
        .context_size = CONTEXT + 64, .sequence_capacity = 1, .batch_size = 96, .disk_directory = folder};
    assert_ok(plan_set_axes(&plan, setting->preset, setting->set, setting->keep, &on->error), on->error);
    if (folder != NULL)
        assert_ok(plan_host_bytes_min(&plan, &on->model->config, &plan.host_bytes, &on->error), on->error);
    assert_ok(engine_create(&engine, on->model, &plan, NULL, &on->error), on->error);
    plan.disk_directory = NULL;
    plan_deinit(&plan);
    return engine;
}

/* Of every layer but for the one that slides. */
enum { LISTS_OF_STEP = 2 + 1 + 4 + 2 + 1 + 1 };

static void check_way(struct decode_rig *on, const struct way *way) {
    struct engine *engine = engine_over(on, &way->setting, NULL);
    struct sequence *sequence = decode_rig_prompt(on, engine, PROMPT);
    struct calibration *calibration;
    struct choice_reference *reference = calloc(1, sizeof *reference);
    assert_non_null(reference);
    assert_ok(calibration_open(&calibration, on->model, on->calibration, &on->error), on->error);
    *reference = (struct choice_reference){.rank = way->rank,
                                           .unit = way->unit,
                                           .model = on->model,
                                           .options = select_get_options(engine_select(engine)),
                                           .calibration = calibration,
                                           .bits = TINY_HASH_BITS,
                                           .keeps_even_lanes = way->keeps};
    attention_reset_statistics(engine_attention(engine));
    attention_set_observer(engine_attention(engine), choice_reference_check, reference);
    free(decode_rig_steps(on, engine, sequence, STEPS));
    const struct select_statistics did = attention_statistics(engine_attention(engine));
    print_message("%s, %s: %llu lists, %llu of %llu units among the best\n", way->setting.preset,
                  way->setting.set, (unsigned long long)reference->lists,
                  (unsigned long long)reference->wanted, (unsigned long long)reference->units);
    assert_int_equal(reference->lists, STEPS * LISTS_OF_STEP);
    assert_int_equal(did.reuse.hits, reference->kept);
    assert_int_equal(reference->kept > 0, way->keeps);
    assert_true((double)reference->wanted > 0.97 * (double)reference->units);
    calibration_close(calibration);
    free(reference);
    sequence_destroy(sequence);
    engine_destroy(engine);
}

static void open_layers(struct decode_rig *on, bool shares) {
    const struct tiny_model tiny = tiny_model_of_groups(shares);
    decode_rig_open_model(on, "choices-layers", &tiny, NULL, CONTEXT + 64, 5);
    tiny_model_unslide(on->model, 1);
}

/* Each KV head of each layer takes the best by the formulas over its keys: layers have 1, 2 and 4 of them, of 32 and of
 * 64 dimensions, and the last layer chooses from the keys of the one before it. */
static void each_layer_chooses_by_its_own(void **state) {
    static const struct way ways[] = {
        {{"quest", "select=meanstd,group=max,page=16," WINDOW, "160"}, RANK_MEAN_DEVIATION, 16, false},
        {{"quest", "group=max,page=8," WINDOW, "160"}, RANK_BOUND, 8, false},
        {{"leoam", "rank=meanstd,leaf=16,group=max," WINDOW, "160"}, RANK_MEAN_DEVIATION, 16, false},
        {{"leoam", "rank=bound,leaf=16,group=max," WINDOW, "160"}, RANK_BOUND, 16, false},
        {{"hata", "code=sign,bits=96,group=sum," WINDOW, "160"}, RANK_SIGNS, 1, false},
        {{"clo", "code=sign,bits=96,group=sum,age=0,similarity=minimum," WINDOW, "160"}, RANK_SIGNS, 1, true},
    };
    (void)state;
    struct decode_rig on;
    open_layers(&on, true);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) check_way(&on, &ways[i]);
    decode_rig_close(&on);
}

/* A key index on disk passes through places in RAM that have lanes for the heads of any layer: the logits of one that
 * stays in RAM, whose choices are those of the formulas.  A chunk fills up on the way, and is then chosen from; the
 * next layer's index comes while this one's is written. */
#define NEAR "dense=0,sinks=16,recent=16"
enum { BEFORE_FULL = 630, STEPS_ON = 40 };

static void places_hold_any_layer(void **state) {
    static const struct setting settings_of[][2] = {
        {{"quest", "select=meanstd,group=max,page=16," NEAR, "160"},
         {"quest", "select=meanstd,group=max,page=16,key_index=disk,speculate=next-layer," NEAR, "160"}},
        {{"leoam", "rank=bound,leaf=16,group=max," NEAR, "160"},
         {"leoam",
          "select=tree,rank=bound,leaf=16,group=max,codec=f16,key_index=disk,speculate=next-layer," NEAR,
          "160"}}};
    (void)state;
    struct decode_rig on;
    open_layers(&on, false);
    for (size_t i = 0; i < sizeof settings_of / sizeof settings_of[0]; i++) {
        struct scratch scratch;
        float *logits[2];
        scratch_create(&scratch, SCRATCH_MEMORY);
        for (size_t run = 0; run < 2; run++) {
            struct engine *engine = engine_over(&on, &settings_of[i][run], run > 0 ? scratch.path : NULL);
            struct sequence *sequence = decode_rig_prompt(&on, engine, BEFORE_FULL);
            logits[run] = decode_rig_steps(&on, engine, sequence, STEPS_ON);
            sequence_destroy(sequence);
            engine_destroy(engine);
        }
        assert_memory_equal(logits[1], logits[0], STEPS_ON * on.width * sizeof(float));
        free(logits[0]), free(logits[1]);
        scratch_destroy(&scratch);
    }
    decode_rig_close(&on);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits), cmocka_unit_test(trees_are_measured), cmocka_unit_test(lists_stay),
        cmocka_unit_test(each_layer_chooses_by_its_own), cmocka_unit_test(places_hold_any_layer)};
    return cmocka_run_group_tests(tests, rig_open, rig_close);
}

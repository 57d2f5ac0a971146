/* The engine on a device whose memory the host cannot touch and whose work runs late (device/queued_device.h): the same
 * logits, bit for bit, as on the cpu device, wherever KV lies and however it is chosen from. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "device/queued_device.h"
#include "engine/decode_rig.h"
#include "engine/engine.h"
#include "lab/eval/recall.h"
#include "lab/replay/copy.h"
#include "lab/methods/methods.h"

enum { PROMPT = 900, STEPS = 8, CONTEXT = 1024 };

enum side { CPU, QUEUED };

static void rig_open(struct decode_rig *rig, const char *architecture, enum side side) {
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    struct device *device = side == CPU ? NULL : queued_device_create(&options, 1);
    decode_rig_open(rig, "memory_kinds", architecture, device, PROMPT + STEPS, 7);
}

static struct plan options_of(const struct select_method *method) {
    struct plan options = {.context_size = CONTEXT,
                           .sequence_capacity = 2,
                           .batch_size = 96,
                           .k_type = KV_F16,
                           .v_type = KV_F16,
                           .select = select_options_default()};
    options.select.method = method;
    options.select.dense_layers = 1;
    options.select.recent = 32;
    if (method != &select_all) options.select.keep = (struct select_keep){.tokens = 160};
    return options;
}

/* Half of what all KV takes beyond the minimum, so that chunks come and go. */
static void on_disk(const struct decode_rig *rig, struct plan *options, const char *directory) {
    struct error error;
    uint64_t bytes_min;
    options->disk_directory = directory;
    assert_ok(plan_host_bytes_min(options, &rig->model->config, &bytes_min, &error), error);
    options->host_bytes = bytes_min + (128 << 10);
}

/* Logits of all steps behind the prompt, [STEPS][width]; the caller frees. */
static float *run(struct decode_rig *rig, const struct plan *options, struct kv_tier_statistics *did,
                  uint64_t *reused) {
    struct engine *engine;
    assert_ok(engine_create(&engine, rig->model, options, NULL, &rig->error), rig->error);
    struct sequence *sequence = decode_rig_prompt(rig, engine, PROMPT);
    float *all = decode_rig_steps(rig, engine, sequence, STEPS);
    assert_ok(sequence_flush(sequence, &rig->error), rig->error);
    *did = engine_tier_statistics(engine);
    *reused = sequence_reused_tokens(sequence);
    sequence_destroy(sequence);
    engine_destroy(engine);
    return all;
}

/* The options on the cpu device and on the queued one: a fresh prompt, and with a disk the same again, opened. */
static void same_logits(const char *architecture, struct plan options, bool disk) {
    float *logits[2][2] = {{NULL}};
    size_t runs = disk ? 2 : 1, width = 0;
    for (size_t side = 0; side < 2; side++) {
        struct decode_rig rig;
        struct scratch scratch;
        struct kv_tier_statistics did;
        uint64_t reused;
        rig_open(&rig, architecture, side == 0 ? CPU : QUEUED);
        scratch_create(&scratch, SCRATCH_MEMORY);
        if (disk) on_disk(&rig, &options, scratch.path);
        for (size_t i = 0; i < runs; i++) {
            logits[side][i] = run(&rig, &options, &did, &reused);
            if (disk && i == 0) assert_true(did.write_bytes > 0);
            if (disk) assert_true(options.select.method == &select_window || did.read_pages > 0);
            assert_int_equal(reused > 0, i > 0);
        }
        width = rig.width;
        scratch_destroy(&scratch);
        decode_rig_close(&rig);
    }
    for (size_t i = 0; i < runs; i++)
        assert_memory_equal(logits[0][i], logits[1][i], STEPS * width * sizeof(float));
    for (size_t i = 0; i < runs; i++) free(logits[0][i]), free(logits[1][i]);
}

static const struct select_method *const METHODS[] = {
    &select_all,    &select_hash, &select_tree,  &select_quest,   &select_meanstd, &select_lowrank,
    &select_window, &select_h2o,  &select_exact, &select_cluster, &select_product};
enum { METHOD_COUNT = sizeof METHODS / sizeof METHODS[0] };

static void kv_in_device_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < METHOD_COUNT; i++) {
        struct plan options = options_of(METHODS[i]);
        options.select.mass_bound = METHODS[i] == &select_tree || METHODS[i] == &select_quest;
        same_logits("llama", options, false);
        same_logits(i % 2 == 0 ? "qwen3" : "qwen2", options, false);
    }
}

static void kv_on_disk(void **state) {
    (void)state;
    for (size_t i = 0; i < METHOD_COUNT; i++) {
        struct plan options = options_of(METHODS[i]);
        if (METHODS[i]->watches_prefill) continue;
        options.prefetches = i % 2 == 1;
        options.resident_layers = i % 3;
        same_logits("llama", options, true);
        options.quantized_pages = !METHODS[i]->reads_keys;
        if (options.quantized_pages) same_logits("llama", options, true);
    }
}

/* A document that was saved with another key index, or none: it is built from the keys. */
static void key_index_built_from_pages(void **state) {
    (void)state;
    float *logits[2] = {NULL};
    size_t width = 0;
    for (size_t side = 0; side < 2; side++) {
        struct decode_rig rig;
        struct scratch scratch;
        struct kv_tier_statistics did;
        uint64_t reused;
        rig_open(&rig, "llama", side == 0 ? CPU : QUEUED);
        scratch_create(&scratch, SCRATCH_MEMORY);
        struct plan options = options_of(&select_all);
        on_disk(&rig, &options, scratch.path);
        free(run(&rig, &options, &did, &reused));
        options = options_of(&select_quest);
        on_disk(&rig, &options, scratch.path);
        logits[side] = run(&rig, &options, &did, &reused);
        assert_true(reused > 0);
        width = rig.width;
        scratch_destroy(&scratch);
        decode_rig_close(&rig);
    }
    assert_memory_equal(logits[0], logits[1], STEPS * width * sizeof(float));
    free(logits[0]);
    free(logits[1]);
}

/* A copy of another engine's KV, then made-up rows, then what was caught, measured from the stored keys and bounded by
 * what is kept of them, and what the search counted. */
static void copies_fills_and_observers(void **state) {
    (void)state;
    float *logits[2] = {NULL};
    struct recall_cell cells[2];
    struct select_statistics did[2];
    size_t width = 0;
    for (size_t side = 0; side < 2; side++) {
        struct decode_rig rig;
        struct engine *source_engine, *engine;
        struct sequence *sequence;
        struct recall recall;
        rig_open(&rig, "llama", side == 0 ? CPU : QUEUED);
        const struct plan plain = options_of(&select_all);
        struct plan options = options_of(&select_tree);
        options.select.mass_bound = true;
        const struct model_config *config = &rig.model->config;
        const struct recall_shape shape = {config->layer_count, config->head_count, config->kv_head_count,
                                           config->k_dimension, config->attention_scale, config->score_softcap};
        assert_ok(engine_create(&source_engine, rig.model, &plain, NULL, &rig.error), rig.error);
        struct sequence *source = decode_rig_prompt(&rig, source_engine, 300);
        assert_ok(engine_create(&engine, rig.model, &options, NULL, &rig.error), rig.error);
        assert_ok(sequence_create(&sequence, engine, &rig.error), rig.error);
        assert_ok(copy_kv(rig.model, engine, sequence, source, 300, &rig.error), rig.error);
        assert_ok(engine_fill_random(engine, sequence, 400, 5, &rig.error), rig.error);
        assert_ok(recall_create(&recall, &shape, CONTEXT, &rig.error), rig.error);
        attention_set_observer(engine_attention(engine), recall_add, &recall);
        logits[side] = decode_rig_steps(&rig, engine, sequence, STEPS);
        cells[side] = *recall_get(&recall, 2, 1);
        did[side] = attention_statistics(engine_attention(engine));
        recall_destroy(&recall);
        width = rig.width;
        sequence_destroy(source);
        sequence_destroy(sequence);
        engine_destroy(source_engine);
        engine_destroy(engine);
        decode_rig_close(&rig);
    }
    assert_memory_equal(logits[0], logits[1], STEPS * width * sizeof(float));
    assert_int_equal(cells[0].count, STEPS);
    assert_true(cells[0].mass == cells[1].mass && cells[0].top == cells[1].top && cells[0].mass > 0);
    assert_true(cells[0].mass_bound == cells[1].mass_bound && cells[0].mass_bound_count == STEPS);
    assert_true(did[0].mass_bound.sum == did[1].mass_bound.sum && did[0].mass_bound.count > 0);
    assert_memory_equal(&did[0].tree, &did[1].tree, sizeof did[0].tree);
    assert_true(did[0].tree.searches > 0);
    free(logits[0]);
    free(logits[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kv_in_device_memory), cmocka_unit_test(kv_on_disk),
                                       cmocka_unit_test(key_index_built_from_pages),
                                       cmocka_unit_test(copies_fills_and_observers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

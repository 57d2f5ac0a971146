/* What of a long context is not used takes no memory: a sequence's KV, key index and tables are there as it grows, and
 * go with the last one. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "model/tiny_model.h"
#include "platform/scratch.h"

enum { CONTEXT = 131072, USED = 8192, SEQUENCES = 4, LAYERS = 4, HEADS = 4, DIMENSION = 64 };
enum { ROW_BYTES = LAYERS * HEADS * 2 * DIMENSION * 2 /* 4 KiB a token: 2 GiB for all contexts */ };
enum { SLACK = 16 << 20 /* buffers, huge pages that are used in part */ };

static uint64_t resident_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long all, resident;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu %llu", &all, &resident), 2);
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static struct model *load(struct device *device) {
    struct error error;
    struct model *model;
    char path[64];
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.layer_count = LAYERS;
    tiny.kv_head_count = tiny.head_count = HEADS;
    tiny.head_dimension = DIMENSION;
    tiny_model_write(&tiny, tiny_model_path("kv_memory", path, sizeof path));
    assert_ok(model_load(&model, path, device, &error), error);
    unlink(path);
    return model;
}

/* Memory that was given back is there again when it is used: for a prompt, and with a folder for a saved one. */
static void check_answers(struct engine *engine) {
    struct error error;
    struct sequence *sequence;
    int32_t tokens[600] = {0};
    float logits[2][80];
    for (size_t round = 0; round < 2; round++) {
        const struct prefill_request request = {.tokens = tokens, .token_count = 600};
        const float *found;
        assert_ok(sequence_create(&sequence, engine, &error), error);
        assert_ok(engine_prefill(engine, sequence, &request, &found, &error), error);
        assert_ok(engine_step(engine, &sequence, tokens, 1, &found, &error), error);
        memcpy(logits[round], found, sizeof logits[round]);
        sequence_destroy(sequence);
        engine_give_back_memory(engine);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

/* host_bytes 0: all in RAM. */
static void check_growth(struct model *model, uint64_t host_bytes) {
    struct error error;
    struct engine *engine;
    struct sequence *sequences[SEQUENCES];
    struct scratch scratch;
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = SEQUENCES,
                        .batch_size = 256,
                        .segment_size = 256,
                        .select = select_options_default()};
    plan.select.method = &select_tree;
    plan.select.dense_layers = 0;
    plan.select.keep = (struct select_keep){.tokens = 2048};
    scratch_create(&scratch, SCRATCH_DISK);
    if (host_bytes > 0) {
        plan.disk_directory = scratch.path;
        assert_ok(plan_host_bytes_min(&plan, &model->config, &plan.host_bytes, &error), error);
        plan.host_bytes += host_bytes;
    }
    const uint64_t empty = resident_bytes();
    assert_ok(engine_create(&engine, model, &plan, NULL, &error), error);
    for (size_t i = 0; i < SEQUENCES; i++) assert_ok(sequence_create(&sequences[i], engine, &error), error);
    const uint64_t created = resident_bytes();
    assert_ok(engine_fill_random(engine, sequences[0], USED, 1, &error), error);
    const uint64_t filled = resident_bytes(), used = engine_kv_used_bytes(engine);
    assert_true(created - empty < SLACK);
    assert_in_range(filled - created, used, used + used / 4 + SLACK);
    assert_in_range(used, (uint64_t)USED * ROW_BYTES, (uint64_t)USED * ROW_BYTES * 4 / 3); /* and key index */
    for (size_t i = 0; i < SEQUENCES; i++) sequence_destroy(sequences[i]);
    engine_give_back_memory(engine);
    assert_true(resident_bytes() < created + SLACK);
    check_answers(engine);
    engine_destroy(engine);
    scratch_destroy(&scratch);
}

static void test_grows(void **state) {
    struct error error;
    struct device *device;
    (void)state;
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    assert_ok(device_cpu_create(&device, &options, &error), error);
    struct model *model = load(device);
    check_growth(model, 0);
    check_growth(model, 256 << 20);
    model_destroy(model);
    device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

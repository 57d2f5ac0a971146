#include "decode_rig.h"

#include "testing.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "model/tiny_calibration.h"
#include "model/tiny_model.h"

void decode_rig_open(struct decode_rig *rig, const char *name, const char *architecture,
                     struct device *device, size_t token_count, uint64_t seed) {
    struct tiny_model tiny = tiny_model_default(architecture);
    tiny.head_dimension = 32;
    if (tiny.taps == 0) tiny.layer_count = DECODE_RIG_LAYERS; /* layers with states and others have their own order */
    decode_rig_open_model(rig, name, &tiny, device, token_count, seed);
}

void decode_rig_open_model(struct decode_rig *rig, const char *name, const struct tiny_model *tiny,
                           struct device *device, size_t token_count, uint64_t seed) {
    char path[64];
    tiny_model_write(tiny, tiny_model_path(name, path, sizeof path));
    decode_rig_open_file(rig, path, device, token_count, seed);
    unlink(path);
}

void decode_rig_open_file(struct decode_rig *rig, const char *path, struct device *device, size_t token_count,
                          uint64_t seed) {
    struct random random;
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    *rig = (struct decode_rig){.device = device};
    if (device == NULL) assert_ok(device_cpu_create(&rig->device, &options, &rig->error), rig->error);
    assert_ok(model_load(&rig->model, path, rig->device, &rig->error), rig->error);
    rig->width = rig->model->config.vocabulary_size;
    rig->calibration = tiny_calibration_write(rig->model);
    rig->tokens = calloc(token_count, sizeof *rig->tokens);
    assert_non_null(rig->tokens);
    random_init(&random, seed);
    for (size_t i = 0; i < token_count; i++) rig->tokens[i] = (int32_t)random_below(&random, rig->width);
}

void decode_rig_close(struct decode_rig *rig) {
    unlink(rig->calibration);
    free(rig->calibration);
    free(rig->tokens);
    model_destroy(rig->model);
    device_destroy(rig->device);
}

struct plan decode_rig_plan(struct decode_rig *rig, const char *preset, const char *set, const char *keep,
                            const char *folder) {
    static const uint8_t sixteenths[] = {7, 12, 16, 0, 9, 4, 16, 11};
    struct plan plan = {.sequence_capacity = 1, .k_type = KV_F16, .v_type = KV_F16};
    if (folder != NULL) assert_ok(plan_set_disk(&plan, folder, strlen(folder), 0, &rig->error), rig->error);
    assert_ok(plan_set_axes(&plan, preset, set, keep, &rig->error), rig->error);
    if (plan.mixes_pages) {
        plan.fractions.layer_count = (uint16_t)rig->model->config.layer_count;
        assert_true(plan.fractions.layer_count <= sizeof sixteenths);
        memcpy(plan.fractions.sixteenths, sixteenths, plan.fractions.layer_count);
        page_fractions_keep_first(&plan.fractions);
    }
    return plan;
}

struct sequence *decode_rig_prompt(struct decode_rig *rig, struct engine *engine, size_t token_count) {
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = rig->tokens, .token_count = token_count};
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig->error), rig->error);
    return sequence;
}

const float *decode_rig_step(struct decode_rig *rig, struct engine *engine, struct sequence *sequence) {
    const float *logits;
    const int32_t *token = &rig->tokens[sequence_length(sequence)];
    assert_ok(engine_step(engine, &sequence, token, 1, &logits, &rig->error), rig->error);
    return logits;
}

float *decode_rig_steps(struct decode_rig *rig, struct engine *engine, struct sequence *sequence,
                        size_t count) {
    float *all = calloc(count * rig->width, sizeof *all);
    assert_non_null(all);
    for (size_t step = 0; step < count; step++)
        memcpy(all + step * rig->width, decode_rig_step(rig, engine, sequence), rig->width * sizeof *all);
    return all;
}

/* cuda_rig: a tiny model on the cuda device, over the fake driver in orders that the seed draws, and on the cpu device
 * with its reference kernels.  A bound for logits: the cuda device rounds the inputs of products to halves, or to codes
 * of 8 bits as the cpu does; each product's errors are independent, and add up over the layers as random ones do. */
#pragma once

#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "counted_device.h"
#include "device/cuda/card.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/images.h"
#include "engine/engine.h"
#include "engine/logits.h"
#include "model/tiny_model.h"
#include "seed.h"

#define CHOOSES     "planes=1,page=8,sinks=8,recent=64,dense=0"
#define CODES       "planes=1,page=8,sinks=8,recent=16,dense=0"
#define REUSES(eta) CHOOSES ",reused=0,power=0,eta=" eta
enum { PROMPT = 110, STEPS = 4, DOCUMENT = 330, CONTEXT = 512, BLOCK = 96, CPU = 0, CUDA = 1, BOTH = 2 };

struct rig {
    struct device *device[BOTH];
    struct model *model[BOTH];
    int32_t tokens[CONTEXT];
    size_t width;
    struct error error;
};

static inline void devices_open(struct rig *rig, uint64_t seed) {
    char settings[80];
    snprintf(settings, sizeof settings, "seed=%llu,capability=%d", (unsigned long long)seed,
             seed % 2 ? 90 : 86);
    (void)setenv("FAKE_CUDA", settings, 1);
    const struct cuda_device_options cuda = {.driver_file = card_driver(FAKE_LIBRARY), .thread_count = 1};
    const struct device_options cpu = {.thread_count = 1, .mask = cpu_default()};
    assert_ok(device_cpu_create(&rig->device[CPU], &cpu, &rig->error), rig->error);
    assert_ok(device_cuda_create(&rig->device[CUDA], &cuda, &rig->error), rig->error);
}

static inline void rig_open(struct rig *rig, const struct tiny_model *tiny, uint64_t seed) {
    struct random random;
    *rig = (struct rig){.width = tiny->vocabulary_size};
    devices_open(rig, seed);
    for (size_t on = 0; on < BOTH; on++)
        tiny_model_load_on(tiny, "cuda-engine", rig->device[on], &rig->model[on]);
    random_init(&random, seed);
    tiny_model_tokens(tiny, &random, rig->tokens, CONTEXT);
}

static inline void rig_free(struct rig *rig) {
    for (size_t on = 0; on < BOTH; on++) {
        model_destroy(rig->model[on]);
        device_destroy(rig->device[on]);
    }
}
static inline void rig_close(struct rig *rig) {
    const struct cuda_counts counts = device_cuda_counts(rig->device[CUDA]);
    assert_true(counts.launches > 50 && counts.copies > 0); /* nothing else has computed */
    rig_free(rig);
}

static inline struct plan plan_with(struct rig *rig, const char *preset, const char *settings, const char *keep,
                             enum kv_type type) {
    struct plan plan = {
        .context_size = CONTEXT, .sequence_capacity = 3, .batch_size = BLOCK, .k_type = type, .v_type = type};
    assert_ok(plan_set_axes(&plan, preset, settings, keep, &rig->error), rig->error);
    return plan;
}
static inline struct plan plan_of(struct rig *rig, const char *preset, enum kv_type type) {
    return plan_with(rig, preset, NULL, NULL, type);
}

static inline struct engine *engine_open(struct rig *rig, size_t on, const struct plan *plan) {
    struct engine *engine;
    assert_ok(engine_create(&engine, rig->model[on], plan, NULL, &rig->error), rig->error);
    return engine;
}

/* It has read `count` tokens from number `first` on.  logits: of the last one; NULL: nobody wants them. */
static inline struct sequence *sequence_read(struct rig *rig, struct engine *engine, size_t first, size_t count,
                                      const float **logits) {
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = rig->tokens + first, .token_count = count};
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(engine_prefill(engine, sequence, &request, logits, &rig->error), rig->error);
    return sequence;
}

/* ---- how near ---- */

/* share: of the logits' own spread, by which one may be off. */
static inline void logits_check(const float *found, const float *expected, size_t width, double share,
                         const char *what, size_t at) {
    const double bound = share * deviation_of(expected, width);
    size_t best[BOTH] = {0, 0};
    double worst = 0;
    for (size_t i = 0; i < width; i++) {
        worst = fmax(worst, fabs((double)found[i] - (double)expected[i]));
        if (!(worst <= bound))
            fail_msg("%s, token %zu: logit %zu is %g, expected %g, by %g at most", what, at, i,
                     (double)found[i], (double)expected[i], bound);
        if (expected[i] > expected[best[CPU]]) best[CPU] = i;
        if (found[i] > found[best[CUDA]]) best[CUDA] = i;
    }
    if (best[CPU] != best[CUDA]) /* a near-tie */
        assert_true((double)(expected[best[CPU]] - expected[best[CUDA]]) <= 2 * bound);
}

static inline float *rows_create(size_t rows, size_t width) {
    float *made = calloc(rows * width, sizeof *made);
    assert_non_null(made);
    return made;
}

/* As published models of gemma4 have them. */
static inline void widen_heads(struct tiny_model *tiny, size_t dimension) {
    static const int32_t slides[] = {1, 0};
    tiny->slides = slides, tiny->window_period = 0;
    tiny->head_count = 2, tiny->kv_head_count = 1;
    tiny->head_dimension = dimension, tiny->sliding_dimension = dimension / 2;
}

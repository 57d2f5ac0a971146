/* What 4-bit pages cost the bundled model: next-token distributions of a text, teacher-forced behind a prompt whose
 * full chunks were rounded, against those of f16 KV.  Measured on 2026-11-21 (AVX2): KLD 0.0042, same top 0.93; the
 * bounds leave room. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "engine/engine.h"
#include "eval/divergence.h"
#include "token/tokenizer.h"

#define MODEL LOAM_SOURCE_DIR "/models/loam-nano.gguf"
#define TEXT  LOAM_SOURCE_DIR "/tests/data/a-scandal-in-bohemia.txt"

enum { PROMPT = 1500, STEPS = 96 };

struct rig {
    struct device *device;
    struct model *model;
    struct token_list list;
    size_t width;
    struct error error;
};

static void tokens_read(struct rig *rig) {
    static char text[1 << 16];
    struct tokenizer *tokenizer;
    const struct tokenize_options options = {.add_special = true};
    FILE *file = fopen(TEXT, "rb");
    assert_non_null(file);
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    assert_ok(tokenizer_create(&tokenizer, &rig->model->gguf, false, &rig->error), rig->error);
    assert_ok(tokenizer_encode(tokenizer, text, length, options, &rig->list, &rig->error), rig->error);
    assert_true(rig->list.count >= PROMPT + STEPS);
    tokenizer_destroy(tokenizer);
}

/* Logits behind the prompt and each of STEPS - 1 tokens: [STEPS][width]; the caller frees. */
static float *forced(struct rig *rig, const char *directory) {
    struct engine *engine;
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = rig->list.ids, .token_count = PROMPT};
    struct plan options = {.context_size = 2048, .sequence_capacity = 1, .select = select_options_default()};
    options.disk_directory = directory;
    options.q4_pages = directory != NULL;
    if (directory != NULL)
        assert_ok(plan_host_bytes_min(&options, &rig->model->config, &options.host_bytes, &rig->error),
                  rig->error);
    const float *logits;
    float *all = malloc(STEPS * rig->width * sizeof *all);
    assert_non_null(all);
    assert_ok(engine_create(&engine, rig->model, &options, NULL, &rig->error), rig->error);
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(engine_prefill(engine, sequence, &request, &logits, &rig->error), rig->error);
    for (size_t step = 0; step < STEPS; step++) {
        memcpy(all + step * rig->width, logits, rig->width * sizeof *all);
        assert_ok(engine_step(engine, &sequence, &rig->list.ids[PROMPT + step], 1, &logits, &rig->error),
                  rig->error);
    }
    assert_true(directory == NULL || engine_tier_statistics(engine).read_pages > 0);
    sequence_destroy(sequence);
    engine_destroy(engine);
    for (size_t step = 0; step < STEPS; step++)
        log_softmax(all + step * rig->width, (uint32_t)rig->width, all + step * rig->width);
    return all;
}

static void close_to_f16(void **state) {
    (void)state;
    struct rig rig = {0};
    struct scratch scratch;
    const struct device_options device = {.thread_count = 1, .mask = cpu_features()};
    scratch_create(&scratch, SCRATCH_MEMORY);
    assert_ok(device_cpu_create(&rig.device, &device, &rig.error), rig.error);
    assert_ok(model_load(&rig.model, MODEL, rig.device, &rig.error), rig.error);
    rig.width = rig.model->config.vocabulary_size;
    tokens_read(&rig);
    float *base = forced(&rig, NULL), *own = forced(&rig, scratch.path);
    struct divergence divergence = {0};
    for (size_t step = 0; step < STEPS; step++)
        (void)divergence_add(&divergence, base + step * rig.width, own + step * rig.width, rig.width,
                             -INFINITY,
                             (uint32_t)rig.list.ids[PROMPT + step]);
    double kld = tally_mean(&divergence.kld), same = (double)divergence.same_top / STEPS;
    print_message("%d tokens behind %d: KLD %.5f +- %.5f, same top %.3f, loss %.4f of %.4f\n", STEPS, PROMPT,
                  kld, tally_error(&divergence.kld), same, tally_mean(&divergence.loss),
                  tally_mean(&divergence.base_loss));
    assert_true(kld > 0 && kld < 0.02);
    assert_true(same > 0.85);
    free(base);
    free(own);
    token_list_deinit(&rig.list);
    model_destroy(rig.model);
    device_destroy(rig.device);
    scratch_destroy(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(close_to_f16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

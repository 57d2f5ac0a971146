/* What 4-bit pages cost the bundled model: next-token distributions of texts of several kinds, teacher-forced behind a
 * prompt whose full chunks were rounded, against those of f16 KV.  The bounds are half as much again as was measured,
 * and codes whose scales are off by a twentieth are beyond them. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../platform/scratch.h"
#include "base/random.h"
#include "engine/engine.h"
#include "lab/eval/divergence.h"
#include "token/tokenizer.h"

#define MODEL LOAM_SOURCE_DIR "/models/loam-nano.gguf"

enum { PROMPT = 1500, STEPS = 96 };

struct rig {
    struct device *device;
    struct model *model;
    struct token_list list;
    size_t width;
    struct error error;
};

/* Texts: prose, a program, and records in which every digit matters. */
struct text {
    const char *name, *path; /* path NULL: made here */
    double kld_max, same_min;
};
static const struct text texts[] = {
    {"prose", LOAM_SOURCE_DIR "/tests/data/a-scandal-in-bohemia.txt", 0.0055, 0.9},
    {"C", LOAM_SOURCE_DIR "/tests/model/rope_fixture.h", 0.038, 0.79},
    {"records", NULL, 0.031, 0.9},
};

static size_t records_write(char *text, size_t capacity) {
    struct random random;
    size_t length = 0;
    random_init(&random, 20261122);
    while (length + 100 < capacity)
        length += (size_t)snprintf(text + length, capacity - length, "%04llu;account %06llu;%llu.%02llu;%s\n",
                                   (unsigned long long)random_below(&random, 10000),
                                   (unsigned long long)random_below(&random, 1000000),
                                   (unsigned long long)random_below(&random, 5000),
                                   (unsigned long long)random_below(&random, 100),
                                   random_below(&random, 3) == 0 ? "open" : "closed");
    return length;
}

static void tokens_read(struct rig *rig, const struct text *kind) {
    static char text[1 << 15];
    struct tokenizer *tokenizer;
    const struct tokenize_options options = {.add_special = true};
    size_t length;
    if (kind->path != NULL) {
        FILE *file = fopen(kind->path, "rb");
        assert_non_null(file);
        length = fread(text, 1, sizeof text, file);
        fclose(file);
    } else
        length = records_write(text, sizeof text);
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
    options.quantized_pages = directory != NULL;
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
    const struct device_options device = {.thread_count = 1, .mask = cpu_default()};
    assert_ok(device_cpu_create(&rig.device, &device, &rig.error), rig.error);
    assert_ok(model_load(&rig.model, MODEL, rig.device, &rig.error), rig.error);
    rig.width = rig.model->config.vocabulary_size;
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        const struct text *text = &texts[t];
        struct scratch scratch;
        scratch_create(&scratch, SCRATCH_MEMORY);
        tokens_read(&rig, text);
        float *base = forced(&rig, NULL), *own = forced(&rig, scratch.path);
        struct divergence divergence = {0};
        for (size_t step = 0; step < STEPS; step++)
            (void)divergence_add(&divergence, base + step * rig.width, own + step * rig.width, rig.width,
                                 -INFINITY, (uint32_t)rig.list.ids[PROMPT + step]);
        double kld = tally_mean(&divergence.kld), same = (double)divergence.same_top / STEPS;
        print_message("%s: %d tokens behind %d: KLD %.5f +- %.5f, same top %.3f, loss %.4f of %.4f\n",
                      text->name, STEPS, PROMPT, kld, tally_error(&divergence.kld), same,
                      tally_mean(&divergence.loss), tally_mean(&divergence.base_loss));
        assert_true(kld > 0 && kld < text->kld_max);
        assert_true(same > text->same_min);
        free(base);
        free(own);
        token_list_deinit(&rig.list);
        rig.list = (struct token_list){0};
        scratch_destroy(&scratch);
    }
    model_destroy(rig.model);
    device_destroy(rig.device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(close_to_f16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

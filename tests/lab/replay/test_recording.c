/* A recording of a run, replayed: other tokens decoded with its rows attend as the run did, layer by layer; what is
 * made of it for other lengths and shapes holds its rows, rotated by as far as they were moved; damage is refused.  And
 * a copy of KV for another engine. */
#include "testing.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "engine/engine.h"
#include "lab/replay/copy.h"
#include "lab/replay/recording.h"
#include "model/tiny_model.h"

enum { TOKENS = 320, STEPS = 24, LAYERS = 3, DEPTH = 1500, CONTEXT = 512 };

struct rig {
    struct device *device;
    struct model *model;
    struct recorder *recorder;
    int32_t tokens[TOKENS];
    size_t width;    /* of attended */
    float *attended; /* owned, [LAYERS][TOKENS][width], of the run or of the replay */
    char path[200];
    struct error error;
};

static void observe(void *context, const struct attention_event *event) {
    struct rig *rig = context;
    if (rig->recorder != NULL) recorder_observe(rig->recorder, event);
    for (size_t row = 0; row < event->row_count; row++)
        if (event->positions[row] < TOKENS)
            memcpy(rig->attended + (event->layer_index * TOKENS + event->positions[row]) * rig->width,
                   event->attended + row * rig->width, rig->width * sizeof(float));
}

static struct engine *engine_of(struct rig *rig, struct sequence **sequence) {
    struct engine *engine;
    const struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1, .batch_size = 64};
    assert_ok(engine_create(&engine, rig->model, &plan, NULL, &rig->error), rig->error);
    assert_ok(sequence_create(sequence, engine, &rig->error), rig->error);
    engine_set_attention_observer(engine, observe, rig);
    return engine;
}

static void rig_open(struct rig *rig, const char *family) {
    struct random random;
    struct tiny_model tiny = tiny_model_default(family);
    const size_t layers[LAYERS] = {0, 1, 2};
    const struct device_options device = {.thread_count = 2, .mask = cpu_default()};
    *rig = (struct rig){0};
    tiny.layer_count = LAYERS;
    tiny_model_load(&tiny, "recording", &device, &rig->device, &rig->model);
    (void)tiny_model_path("recording.qkv", rig->path, sizeof rig->path);
    random_init(&random, 11);
    tiny_model_tokens(&tiny, &random, rig->tokens, TOKENS);
    rig->width = rig->model->config.head_count * rig->model->config.v_dimension;
    rig->attended = calloc(LAYERS * TOKENS, rig->width * sizeof(float));
    assert_ok(recorder_create(&rig->recorder, rig->model, layers, LAYERS, TOKENS, &rig->error), rig->error);
    struct sequence *sequence;
    struct engine *engine = engine_of(rig, &sequence);
    const struct prefill_request request = {.tokens = rig->tokens, .token_count = TOKENS};
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig->error), rig->error);
    sequence_destroy(sequence);
    engine_destroy(engine);
    assert_ok(recorder_write(rig->recorder, rig->path, &rig->error), rig->error);
    recorder_destroy(rig->recorder);
    rig->recorder = NULL;
}

static void rig_close(struct rig *rig) {
    assert_int_equal(remove(rig->path), 0);
    free(rig->attended);
    model_destroy(rig->model);
    device_destroy(rig->device);
}

/* Decodes tokens that were not there, behind rows that no prompt computed. */
static void steps_attend_as_the_run_did(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "qwen2", "opt"};
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        struct rig rig;
        rig_open(&rig, families[f]);
        float *run = rig.attended;
        rig.attended = calloc(LAYERS * TOKENS, rig.width * sizeof(float));
        struct recording recording;
        struct replay replay;
        struct sequence *sequence;
        struct engine *engine = engine_of(&rig, &sequence);
        assert_ok(recording_open(&recording, rig.path, &rig.error), rig.error);
        assert_ok(replay_create(&replay, &recording, TOKENS - STEPS, STEPS, 1, &rig.error), rig.error);
        struct replay_steps steps = {.replays = &replay};
        const struct step_replay given = {replay_steps_rows, &steps};
        assert_ok(replay_fit(&replay, &rig.model->config, &rig.error), rig.error);
        assert_ok(engine_fill(engine, sequence, replay_rows, &replay, replay.depth, &rig.error), rig.error);
        assert_int_equal(sequence_length(sequence), TOKENS - STEPS);
        engine_replay_steps(engine, &given);
        for (size_t step = 0; step < STEPS; step++) {
            const float *logits;
            assert_ok(engine_step(engine, &sequence, &rig.tokens[step], 1, &logits, &rig.error), rig.error);
        }
        for (size_t layer = 0; layer < LAYERS; layer++)
            for (size_t at = TOKENS - STEPS; at < TOKENS; at++)
                for (size_t i = 0; i < rig.width; i++) {
                    size_t place = (layer * TOKENS + at) * rig.width + i;
                    if (!(fabsf(run[place] - rig.attended[place]) < 4e-3F * (1 + fabsf(run[place]))))
                        fail_msg("%s: layer %zu, token %zu, %zu: found %g, expected %g", families[f], layer,
                                 at, i, (double)rig.attended[place], (double)run[place]);
                }
        free(run);
        free(steps.floats);
        sequence_destroy(sequence);
        engine_destroy(engine);
        replay_destroy(&replay);
        recording_close(&recording);
        rig_close(&rig);
    }
}

/* Behind a copy of its KV another engine computes what the source's does, to the bit. */
static void a_copy_goes_on_as_its_source(void **state) {
    (void)state;
    struct rig rig;
    struct sequence *sequences[2];
    struct engine *engines[2];
    rig_open(&rig, "llama");
    for (size_t i = 0; i < 2; i++) engines[i] = engine_of(&rig, &sequences[i]);
    const struct prefill_request request = {.tokens = rig.tokens, .token_count = TOKENS - 1};
    assert_ok(engine_prefill(engines[0], sequences[0], &request, NULL, &rig.error), rig.error);
    assert_ok(copy_kv(rig.model, engines[1], sequences[1], sequences[0], TOKENS - 1, &rig.error), rig.error);
    const size_t bytes = rig.model->config.vocabulary_size * sizeof(float);
    float *kept = malloc(bytes);
    for (size_t i = 0; i < 2; i++) {
        const float *logits;
        assert_ok(engine_step(engines[i], &sequences[i], &rig.tokens[TOKENS - 1], 1, &logits, &rig.error), rig.error);
        if (i == 0) memcpy(kept, logits, bytes);
        if (i == 1) assert_memory_equal(kept, logits, bytes);
    }
    free(kept);
    for (size_t i = 0; i < 2; i++) {
        sequence_destroy(sequences[i]);
        engine_destroy(engines[i]);
    }
    rig_close(&rig);
}

/* Of a recorded row of K, rotated on by the distance, in double. */
static double rotated(const struct recording_shape *s, const float *frequencies, const float *row, size_t i,
                      double distance) {
    if (i >= 2 * s->pair_count) return (double)row[i];
    bool split = s->rope_order == ROPE_SPLIT;
    size_t pair = split ? i % s->pair_count : i / 2;
    double angle = distance * (double)frequencies[pair];
    double a = (double)row[split ? pair : 2 * pair],
           b = (double)row[split ? pair + s->pair_count : 2 * pair + 1];
    bool first = split ? i < s->pair_count : i % 2 == 0;
    return first ? a * cos(angle) - b * sin(angle) : a * sin(angle) + b * cos(angle);
}

static void other_lengths_and_shapes_hold_its_rows(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "qwen2"};
    for (size_t f = 0; f < 2; f++) {
        struct rig rig;
        struct recording recording;
        struct replay near, far;
        rig_open(&rig, families[f]);
        assert_ok(recording_open(&recording, rig.path, &rig.error), rig.error);
        const struct recording_shape *s = &recording.shape;
        const struct replay_shape same = {LAYERS, s->head_count, s->kv_head_count},
                                  larger = {2 * LAYERS, 2 * s->head_count, 2 * s->kv_head_count};
        /* At this depth nothing is moved, so it is what the others are compared with. */
        assert_ok(replay_create(&near, &recording, TOKENS - STEPS, STEPS, 5, &rig.error), rig.error);
        assert_ok(replay_create(&far, &recording, DEPTH, STEPS, 5, &rig.error), rig.error);
        const size_t size = (size_t)s->kv_head_count * s->k_dimension;
        float *row = calloc(size, sizeof *row), *k = calloc(2 * size, sizeof *k),
              *v = calloc(2 * size, sizeof *v);
        size_t follows = 0, repeats = 0, aligned = 0;
        for (uint64_t at = 0; at < DEPTH; at++) {
            const uint32_t source = far.source[at];
            assert_true(source < TOKENS - STEPS && (at < REPLAY_SINKS) == (source < REPLAY_SINKS));
            if (at >= DEPTH - (TOKENS - STEPS - REPLAY_SINKS))
                assert_int_equal(source, TOKENS - STEPS - (DEPTH - at));
            follows += at > 0 && source == far.source[at - 1] + 1;
            repeats += at >= TOKENS && source == far.source[at - TOKENS];
            aligned += source % 64 == at % 64;
            double distance = (double)at - DEPTH + (TOKENS - STEPS) - source;
            const size_t layer = at % LAYERS;
            replay_keys_values(&near, &same, layer, source, row, v);
            replay_keys_values(&far, &larger, 2 * layer + at % 2, at, k, v);
            for (size_t i = 0; i < 2 * size; i++) {
                double expected =
                    rotated(s, recording.frequencies, row + i % size / s->k_dimension * s->k_dimension,
                            i % s->k_dimension, distance);
                if (!(fabs((double)k[i] - expected) < 1e-4 * (1 + fabs(expected))))
                    fail_msg("%s: position %d, %zu: found %g, expected %g", families[f], (int)at, i,
                             (double)k[i], expected);
            }
        }
        assert_true(follows > DEPTH - 40 && repeats < DEPTH / 20 && aligned < DEPTH / 4);
        free(row);
        free(k);
        free(v);
        replay_destroy(&near);
        replay_destroy(&far);
        recording_close(&recording);
        rig_close(&rig);
    }
}

static void check_damaged(const uint8_t *bytes, size_t count, const char *says) {
    char path[200];
    struct recording recording;
    struct error error;
    (void)tiny_model_path("damaged.qkv", path, sizeof path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
    assert_int_equal(recording_open(&recording, path, &error), STATUS_DOCUMENT);
    assert_int_equal(remove(path), 0);
    if (strstr(error.message, says) == NULL) fail_msg("found '%s', expected '%s'", error.message, says);
}

static void damage_is_refused(void **state) {
    (void)state;
    struct rig rig;
    struct recording recording;
    rig_open(&rig, "llama");
    assert_ok(recording_open(&recording, rig.path, &rig.error), rig.error);
    const size_t count = (size_t)recording.map.size_bytes;
    uint8_t *bytes = malloc(count);
    memcpy(bytes, recording.map.data, count);
    struct replay replay;
    assert_int_equal(replay_create(&replay, &recording, 10, TOKENS - 70, 1, &rig.error), STATUS_USAGE);
    assert_non_null(strstr(rig.error.message, "expected 80 more"));
    recording_close(&recording);
    check_damaged(bytes, 20, "not a recording");
    check_damaged(bytes, count - 1, "another size");
    static const struct {
        size_t offset;
        uint8_t xor ;
        const char *says;
    } changes[] = {{0, 1, "not a recording"},  {11, 0x80, "tokens: found"}, {12, 0xff, "heads"},
                   {19, 1, "KV heads: found"}, {28, 0xff, "rotated pairs"}, {32, 8, "order of pairs"},
                   {36, 2, "another size"},    {40, 1, "checksum"},         {1000, 1, "checksum"}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        bytes[changes[i].offset] ^= changes[i].xor ;
        check_damaged(bytes, count, changes[i].says);
        bytes[changes[i].offset] ^= changes[i].xor ;
    }
    bytes[count - 1] ^= 1;
    check_damaged(bytes, count, "checksum");
    free(bytes);
    rig_close(&rig);
}

static void layers_that_rotate_differently_are_refused(void **state) {
    (void)state;
    const struct tiny_model tiny = tiny_model_default("smollm3");
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    const size_t layers[] = {0};
    struct device *device;
    struct model *model;
    struct recorder *recorder;
    struct error error = {0};
    tiny_model_load(&tiny, "recording", &options, &device, &model);
    assert_int_equal(recorder_create(&recorder, model, layers, 1, TOKENS, &error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "rotate q and k in different ways"));
    recorder_destroy(recorder);
    model_destroy(model);
    device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_attend_as_the_run_did),
        cmocka_unit_test(a_copy_goes_on_as_its_source),
        cmocka_unit_test(other_lengths_and_shapes_hold_its_rows),
        cmocka_unit_test(damage_is_refused),
        cmocka_unit_test(layers_that_rotate_differently_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

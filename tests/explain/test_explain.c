/* What explain adds up is the softmax weights of all heads and layers; sentences cover a text, and what stands out
 * comes first. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../device/queued_device.h"
#include "engine/engine.h"
#include "explain/explain.h"
#include "model/tiny_model.h"

enum { PROMPT = 150, STEPS = 5, ROWS = PROMPT + STEPS, LAYERS_MAX = 7, HEADS_MAX = 8 };

/* Keys and weights, noted and computed here. */
struct plain {
    const struct model_config *config;
    float *keys; /* [LAYERS_MAX][ROWS] of `stride`, [kv_head_count][k_dimension] */
    size_t stride;
    float sinks[LAYERS_MAX][HEADS_MAX]; /* -INFINITY: none */
    double *steps; /* [STEPS][ROWS] */
    size_t step;
    struct explain explain, parts; /* the second one works in parts */
};

/* Asked behind each KV head. */
static bool always(void *context) {
    ++*(size_t *)context;
    return true;
}

static void note(void *context, const struct attention_event *event) {
    struct plain *plain = context;
    const struct model_config *config = plain->config;
    const struct layer_config *layer = &config->layers[event->layer_index];
    const size_t dimension = layer->kv.k_dimension, width = layer->kv.kv_head_count * dimension;
    float *keys = plain->keys + layer->kv_layer * ROWS * plain->stride;
    for (size_t i = 0; i < event->row_count && layer->kv_layer == event->layer_index; i++)
        memcpy(keys + event->positions[i] * width, event->k + i * width, width * sizeof *keys);
    explain_add(&plain->explain, event);
    explain_note(&plain->parts, event);
    const size_t rows = (size_t)event->positions[0] + 1;
    if (event->row_count > 1 || rows <= PROMPT || layer->attention == ATTENTION_SLIDING) return;
    plain->step = rows - PROMPT - 1;
    for (size_t head = 0; head < config->head_count; head++) {
        const size_t kv_head = head / (config->head_count / layer->kv.kv_head_count);
        double weights[ROWS], all = 0;
        for (size_t row = 0; row < rows; row++) {
            double sum = 0;
            for (size_t i = 0; i < dimension; i++)
                sum += (double)event->q[head * dimension + i] *
                       (double)keys[row * width + kv_head * dimension + i];
            const double cap = (double)config->score_softcap, score = sum * (double)layer->scale;
            all += weights[row] = exp(cap != 0 ? cap * tanh(score / cap) : score);
        }
        all += exp((double)plain->sinks[event->layer_index][head]);
        for (size_t row = 0; row < rows; row++) plain->steps[plain->step * ROWS + row] += weights[row] / all;
    }
}

static void read_sinks(const struct model *model, struct plain *plain) {
    const struct device_operations *operations = model->device->operations;
    struct stream *stream;
    struct error error;
    assert_ok(operations->stream_create(model->device, &stream, &error), error);
    for (size_t layer = 0; layer < model->config.layer_count; layer++) {
        for (size_t head = 0; head < HEADS_MAX; head++) plain->sinks[layer][head] = -INFINITY;
        if (!span_exists(model->layers[layer].sinks)) continue;
        assert_true(model->config.head_count <= HEADS_MAX);
        assert_ok(device_read(model->device, stream, plain->sinks[layer], model->layers[layer].sinks,
                              model->config.head_count * sizeof(float), &error),
                  error);
    }
    operations->stream_destroy(stream);
}

/* family NULL: layers of several shapes, the last one with the KV of another. */
static void check_weights(struct device *device, const char *family) {
    struct tiny_model tiny = family == NULL ? tiny_model_of_groups(true) : tiny_model_default(family);
    struct model *model;
    struct engine *engine;
    struct sequence *sequence;
    struct error error;
    const float *logits;
    int32_t tokens[ROWS];
    struct random random;
    tiny_model_load_on(&tiny, "explain", device, &model);
    if (family == NULL) tiny_model_unslide(model, 1);
    random_init(&random, 3);
    tiny_model_tokens(&tiny, &random, tokens, ROWS);
    const struct plan plan = {
        .context_size = ROWS, .sequence_capacity = 1, .select = select_options_default()};
    assert_ok(engine_create(&engine, model, &plan, NULL, &error), error);
    assert_ok(sequence_create(&sequence, engine, &error), error);
    struct plain plain = {.config = &model->config};
    read_sinks(model, &plain);
    plain.stride = model->config.kv_head_count * model->config.k_dimension;
    plain.keys = calloc(LAYERS_MAX * ROWS * plain.stride, sizeof *plain.keys);
    plain.steps = calloc(STEPS * ROWS, sizeof *plain.steps);
    assert_ok(explain_create(&plain.explain, model, PROMPT, STEPS, false, &error), error);
    assert_ok(explain_create(&plain.parts, model, PROMPT, STEPS, false, &error), error);
    engine_set_attention_observer(engine, note, &plain);
    const struct prefill_request request = {.tokens = tokens, .token_count = PROMPT - 1};
    assert_ok(engine_prefill(engine, sequence, &request, &logits, &error), error);
    for (size_t i = PROMPT - 1; i < ROWS; i++) { /* the prompt's last token is stepped, too, and does not count */
        size_t pauses = 0, calls = 1;
        assert_ok(engine_step(engine, &sequence, &tokens[i], 1, &logits, &error), error);
        while (explain_work(&plain.parts, sequence_kv(sequence), always, &pauses)) calls++;
        size_t heads = 0;
        for (size_t layer = 0; layer < tiny.layer_count; layer++)
            heads += model->config.layers[layer].kv.kv_head_count;
        assert_int_equal(calls, i < PROMPT ? 1 : heads);
        assert_int_equal(pauses, i < PROMPT ? 0 : heads);
    }
    assert_int_equal(plain.explain.step_count, STEPS);
    assert_int_equal(plain.parts.step_count, STEPS);
    assert_memory_equal(plain.parts.steps, plain.explain.steps, STEPS * ROWS * sizeof(float));
    double mass[ROWS];
    explain_mass(&plain.explain, ROWS, mass);
    for (size_t row = 0; row < ROWS; row++) {
        double mean = 0, expected = 0;
        for (size_t step = 0; step < STEPS; step++) {
            const double own = plain.steps[step * ROWS + row];
            const double found = (double)plain.explain.steps[step * ROWS + row];
            if (fabs(own - found) > 0.01 * own + 1e-4)
                fail_msg("step %zu, row %zu: %g != %g", step, row, found, own);
            mean += own / STEPS;
        }
        for (size_t step = 0; step < STEPS; step++)
            expected += fmax(plain.steps[step * ROWS + row] - mean, 0);
        assert_true(fabs(mass[row] - expected) < 0.01 * expected + 2e-3);
    }
    explain_destroy(&plain.explain);
    explain_destroy(&plain.parts);
    free(plain.keys), free(plain.steps);
    sequence_destroy(sequence);
    engine_destroy(engine);
    model_destroy(model);
    device_destroy(device);
}

static void test_weights(void **state) {
    (void)state;
    const struct device_options options = {.thread_count = 2, .mask = cpu_default()};
    struct device *device;
    struct error error;
    static const char *const families[] = {"llama", NULL, "gpt-oss", "gemma2", "lfm2", "qwen35"};
    enum { FAMILIES = sizeof families / sizeof *families };
    for (size_t i = 0; i < FAMILIES; i++) {
        assert_ok(device_cpu_create(&device, &options, &error), error);
        check_weights(device, families[i]);
    }
    for (uint64_t seed = 1; seed <= 4; seed++) /* it keeps no states */
        check_weights(queued_device_create(&options, seed), families[seed % 3]);
}

static void test_sentences(void **state) {
    (void)state;
    static const char text[] = "\n  One two. \"Three four!\" Five\n\nSix 3.5 seven?\nEight";
    static const char *const expected[] = {"One two.", "\"Three four!\"", "Five", "Six 3.5 seven?", "Eight"};
    static const size_t lines[] = {2, 2, 2, 4, 5};
    struct explain_span *spans;
    struct error error;
    size_t count;
    assert_ok(explain_sentences(text, strlen(text), &spans, &count, &error), error);
    assert_int_equal(count, 5);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(spans[i].end - spans[i].begin, strlen(expected[i]));
        assert_memory_equal(text + spans[i].begin, expected[i], strlen(expected[i]));
        assert_int_equal(spans[i].place.line, lines[i]);
        spans[i].token_count = 4;
        spans[i].mass = i == 3 ? 6 : i == 1 ? 2 : 1;
    }
    explain_rank(spans, count);
    assert_int_equal(spans[0].place.line, 4);
    assert_true(fabs(spans[0].share - 6.0 / 11) < 1e-9 && fabs(spans[0].lift - 6.0 * 5 / 11) < 1e-9);
    free(spans);
    assert_ok(explain_sentences("", 0, &spans, &count, &error), error);
    assert_int_equal(count, 0);
    explain_rank(spans, 0);
    free(spans);
    char *endless = malloc(5000);
    memset(endless, 'x', 5000);
    assert_ok(explain_sentences(endless, 5000, &spans, &count, &error), error);
    assert_int_equal(count, 1);
    free(endless), free(spans);
}

/* Two hundred sentences that get as much as their place does, give or take; the last ones most.  The one that answers
 * stands far before them, with six times as much as its place gets, and a short one with little. */
static void test_rank_is_beside_the_place(void **state) {
    (void)state;
    enum { COUNT = 200, ANSWER = 40, TOKENS = 20 };
    struct explain_span spans[COUNT] = {0};
    struct random random;
    random_init(&random, 7);
    for (size_t i = 0; i < COUNT; i++) {
        spans[i].place.line = i;
        spans[i].token_count = i == 10 ? 2 : TOKENS;
        spans[i].distance = (double)((COUNT - i) * TOKENS);
        const double noise = 0.5 + random_double(&random) + (i == ANSWER ? 5 : 0);
        spans[i].mass = noise * (double)spans[i].token_count / spans[i].distance;
    }
    assert_true(spans[COUNT - 1].mass > 5 * spans[ANSWER].mass);
    explain_rank(spans, COUNT);
    assert_int_equal(spans[0].place.line, ANSWER);
    for (size_t i = 1; i < COUNT; i++) assert_true(spans[i - 1].rank >= spans[i].rank);
    /* Two are no trend, wherever they stand. */
    struct explain_span pair[2] = {{.distance = 30, .token_count = 4, .mass = 1},
                                   {.distance = 10, .token_count = 4, .mass = 3}};
    for (int turn = 0; turn < 2; turn++) {
        explain_rank(pair, 2);
        assert_true(pair[0].mass > pair[1].mass);
        pair[0].distance = 40 - pair[0].distance, pair[1].distance = 40 - pair[1].distance;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_weights), cmocka_unit_test(test_sentences),
                                       cmocka_unit_test(test_rank_is_beside_the_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The forward pass of every family and rope kind against plain_forward, layer by layer.
 *
 * Bound: weights are F32, and K and V are halves in both.  An element of them close to the middle of two halves may
 * become either: 1.3e-4 of the largest value is the worst measured, 1e-5 usual, 5e-4 is asserted.  A wrong formula is
 * off by tenths. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "model/model_size.h"
#include "model/tiny_model.h"

enum { TOKENS = 100 };

static const double bound = 5e-4;

struct observed {
    const double *hidden; /* [layer][TOKENS][hidden_size], from plain_forward */
    size_t width, layers_seen;
    double worst;
};

/* Largest difference, as a fraction of the largest value. */
static double difference(const float *found, const double *expected, size_t count) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(found[i])) return INFINITY;
        worst = fmax(worst, fabs((double)found[i] - expected[i]));
        largest = fmax(largest, fabs(expected[i]));
    }
    return worst / largest;
}

static void observe(void *context, size_t layer_index, const float *hidden, size_t row_count) {
    struct observed *observed = context;
    assert_int_equal(row_count, TOKENS);
    assert_int_equal(layer_index, observed->layers_seen++);
    observed->worst =
        fmax(observed->worst, difference(hidden, observed->hidden + layer_index * TOKENS * observed->width,
                                         TOKENS * observed->width));
}

static struct kv_cache *cache_for(const struct model *model) {
    struct kv_cache_config kv = model_cache_config(&model->config, KV_F16, KV_F16);
    kv.token_capacity = 256;
    struct kv_cache *cache;
    struct error error;
    assert_ok(kv_cache_create(&cache, model->device, &kv, &error), error);
    return cache;
}

/* All tokens in one batch; logits of the given rows. */
static void run(struct model *model, const int32_t *tokens, struct observed *observed, const uint32_t *rows,
                size_t row_count, float *logits) {
    struct error error = {0};
    struct kv_cache *cache = cache_for(model);
    struct kv_sequence *sequence;
    struct forward *forward;
    const float *found;
    uint64_t positions[TOKENS];
    for (size_t i = 0; i < TOKENS; i++) positions[i] = i;
    struct attend_item item = {.row_count = TOKENS};
    assert_ok(kv_sequence_create(&sequence, cache, 256, &error), error);
    assert_ok(kv_sequence_reserve(sequence, TOKENS, &error), error);
    struct attention *attention;
    const struct attention_options everything = {.groups = model->config.kv_groups};
    assert_ok(attention_create(&attention, model->device, &everything, &error), error);
    assert_ok(forward_create(&forward, model,
                             &(struct forward_options){.attention = attention,
                                                       .row_capacity = TOKENS,
                                                       .block_capacity = TOKENS,
                                                       .logit_row_capacity = TOKENS},
                             &error),
              error);
    if (observed != NULL) forward_set_observer(forward, observe, observed);
    struct forward_batch batch = {.tokens = tokens,
                                  .positions = positions,
                                  .row_count = TOKENS,
                                  .sequences = &sequence,
                                  .items = &item,
                                  .item_count = 1,
                                  .logit_rows = rows,
                                  .logit_row_count = row_count};
    assert_ok(forward_run(forward, &batch, &found, &error), error);
    memcpy(logits, found, row_count * model->config.vocabulary_size * sizeof *logits);
    forward_destroy(forward);
    attention_destroy(attention);
    kv_sequence_destroy(sequence);
    kv_cache_destroy(cache);
}

static void check(struct tiny_model tiny, const char *name) {
    struct device *device;
    struct model *model;
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    tiny_model_load(&tiny, "forward", &options, &device, &model);
    size_t width = tiny.hidden_size, vocabulary = tiny.vocabulary_size;
    int32_t tokens[TOKENS];
    uint32_t rows[TOKENS];
    struct random random;
    random_init(&random, tiny.seed + 7);
    for (size_t i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)random_below(&random, vocabulary);
        rows[i] = (uint32_t)i;
    }
    double *expected = calloc(TOKENS * vocabulary, sizeof *expected);
    double *hidden = calloc(tiny.layer_count * TOKENS * width, sizeof *hidden);
    float *logits = calloc(TOKENS * vocabulary, sizeof *logits);
    plain_forward(model, tokens, TOKENS, true, expected, hidden);
    struct observed observed = {.hidden = hidden, .width = width};
    run(model, tokens, &observed, rows, TOKENS, logits);
    double worst = difference(logits, expected, TOKENS * vocabulary);
    printf("%s: hidden %.2e, logits %.2e\n", name, observed.worst, worst);
    assert_int_equal(observed.layers_seen, tiny.layer_count);
    if (!(observed.worst <= bound && worst <= bound)) fail_msg("%s: beyond %g", name, bound);

    /* Narrowed to some rows in the last layer: the same values. */
    uint32_t some[3] = {5, 64, TOKENS - 1};
    run(model, tokens, NULL, some, 3, logits);
    for (size_t i = 0; i < 3; i++)
        assert_true(difference(logits + i * vocabulary, expected + some[i] * vocabulary, vocabulary) <=
                    bound);
    free(expected), free(hidden), free(logits);
    model_destroy(model);
    device_destroy(device);
}

static void test_families(void **state) {
    (void)state;
    for (size_t i = 0; i < TINY_FAMILIES; i++) {
        struct tiny_model tiny = tiny_model_default(tiny_families[i]);
        check(tiny, tiny_families[i]);
        tiny.tied = false, tiny.seed = 2, tiny.layer_count++;
        check(tiny, "untied, three layers");
    }
}

/* Layers that keep a state, first, last and in between. */
static void test_states(void **state) {
    (void)state;
    for (size_t i = 0; i < TINY_STATE_FAMILIES; i++) {
        struct tiny_model tiny = tiny_model_default(tiny_state_families[i]);
        check(tiny, tiny_state_families[i]);
        static const int32_t kv_heads[] = {1, 0, 2, 0, 4};
        tiny.tied = false, tiny.seed = 2;
        if (tiny.attention_interval == 0) tiny.layer_count = 5, tiny.kv_heads = kv_heads;
        if (tiny.attention_interval != 0) tiny.layer_count = 4, tiny.key_heads = 3;
        check(tiny, "untied, attention last");
    }
}

static void test_heads(void **state) {
    (void)state;
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.kv_head_count = 4;
    check(tiny, "multi-head");
    tiny.kv_head_count = 1;
    check(tiny, "multi-query");
    tiny.key = "rope.dimension_count", tiny.value = 8;
    check(tiny, "half of the head rotated");
}

/* Layers of different KV heads, first more and first fewer, against the formulas. */
static void test_layers_differ(void **state) {
    (void)state;
    static const int32_t heads[][4] = {{4, 1, 2, 4}, {1, 4, 1, 2}, {2, 2, 4, 4}};
    static const char *const names[] = {"llama", "qwen2", "qwen3"};
    for (size_t i = 0; i < 3; i++)
        for (size_t f = 0; f < 3; f++) {
            struct tiny_model tiny = tiny_model_default(names[f]);
            tiny.layer_count = 4;
            tiny.kv_heads = heads[i];
            if (f == 1) tiny.window = 20, tiny.window_period = 2;
            check(tiny, "layers of different KV heads");
        }
}

/* Other dimensions in layers with a window, which rotate by a table of their own, and a layer that attends to the KV of
 * the one before it. */
static void test_shapes_differ(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "qwen2", "qwen3"};
    for (size_t f = 0; f < 3; f++)
        for (int shares = 0; shares < 2; shares++) {
            struct tiny_model tiny = tiny_model_of_groups(shares == 1);
            tiny.family = names[f];
            tiny.window = 20;
            check(tiny,
                  shares ? "layers of different shapes, and a shared one" : "layers of different shapes");
        }
}

static void test_rope_kinds(void **state) {
    (void)state;
    static const char *const kinds[] = {"linear", "yarn", "llama3", "tensor"};
    for (size_t i = 0; i < 4; i++) {
        struct tiny_model tiny = tiny_model_default(i % 2 == 0 ? "llama" : "qwen2");
        tiny.scaling = kinds[i], tiny.factor = 4, tiny.original_context = 32;
        check(tiny, kinds[i]);
    }
}

static void test_sliding_window(void **state) {
    (void)state;
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.window = 20;
    check(tiny, "sliding");
    tiny.window = 70, tiny.window_period = 2, tiny.layer_count = 4;
    check(tiny, "every second layer sliding");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),      cmocka_unit_test(test_heads),
        cmocka_unit_test(test_layers_differ), cmocka_unit_test(test_shapes_differ),
        cmocka_unit_test(test_rope_kinds),    cmocka_unit_test(test_sliding_window),
        cmocka_unit_test(test_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

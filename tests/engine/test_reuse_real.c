/* The age of kept lists (trap of [clo]: a head that keeps hitting never sees what was generated since) on a real model:
 * a span that the model has gone through in decode steps, more than the recent window ago, is gone through again.  A
 * model that sees it expects each of its tokens; it is of random tokens, so that nothing else tells of them. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>

#include "base/random.h"
#include "engine/engine.h"
#include "real_model.h"

enum {
    PROMPT = 600,
    SPAN = 24,
    BETWEEN = 72, /* more than the recent window's 64 */
    LED_IN = 4,   /* tokens of the span after which it is told from others */
    TOKENS = PROMPT + 2 * SPAN + BETWEEN
};

/* Mean log-probability of the span's tokens, the second time. */
static double expects_the_span(struct model *model, const char *preset, const char *set) {
    struct plan plan = {.context_size = 1024, .sequence_capacity = 1};
    struct engine *engine;
    struct sequence *sequence;
    struct error error;
    struct random random;
    int32_t tokens[TOKENS];
    double sum = 0;
    random_init(&random, 5);
    for (size_t i = 0; i < TOKENS; i++) tokens[i] = (int32_t)(1000 + random_below(&random, 20000));
    for (size_t i = 0; i < SPAN; i++) tokens[TOKENS - SPAN + i] = tokens[PROMPT + i];
    assert_ok(plan_set_axes(&plan, preset, set, set != NULL ? "200" : NULL, &error), error);
    assert_ok(engine_create(&engine, model, &plan, NULL, &error), error);
    assert_ok(sequence_create(&sequence, engine, &error), error);
    const struct prefill_request request = {.tokens = tokens, .token_count = PROMPT};
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &error), error);
    for (size_t i = PROMPT; i + 1 < TOKENS; i++) {
        const float *logits;
        double total = 0;
        assert_ok(engine_step(engine, &sequence, &tokens[i], 1, &logits, &error), error);
        if (i + 1 < TOKENS - SPAN + LED_IN) continue;
        const double own = (double)logits[tokens[i + 1]];
        for (size_t j = 0; j < model->config.vocabulary_size; j++) total += exp((double)logits[j] - own);
        sum -= log(total);
    }
    sequence_destroy(sequence);
    engine_destroy(engine);
    return sum / (SPAN - LED_IN);
}

static void generated_text_is_found(void **state) {
    struct model *model = *state;
    /* Heads that find every query alike, as the published thresholds let heads without importance. */
    const double full = expects_the_span(model, "full", NULL),
                 aged = expects_the_span(model, "clo", "reused=0,eta=-1,power=0,age=64,labels=speculated"),
                 ageless = expects_the_span(model, "clo", "reused=0,eta=-1,power=0,age=0,labels=speculated"),
                 usual = expects_the_span(model, "clo", "reused=0,power=0,labels=speculated");
    print_message("mean log-probability: full %.2f, clo %.2f, every query alike %.2f, and without age %.2f\n",
                  full, usual, aged, ageless);
    assert_true(full > -6); /* any token: -10.8 */
    assert_true(usual > full - 2);
    assert_true(aged > full - 2);
    assert_true(ageless < full - 4);
}

static int open_model(void **state) {
    static struct device *device;
    const struct device_options options = {.thread_count = 2, .mask = cpu_default()};
    struct model *model;
    struct error error;
    if (device_cpu_create(&device, &options, &error) != STATUS_OK) return -1;
    if (model_load(&model, REAL_MODEL, device, &error) != STATUS_OK) return -1;
    *state = model;
    return 0;
}

static int close_model(void **state) {
    struct model *model = *state;
    struct device *device = model->device;
    model_destroy(model);
    device_destroy(device);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(generated_text_is_found)};
    const int missing = real_model_missing();
    if (missing != 0) return missing;
    return cmocka_run_group_tests(tests, open_model, close_model);
}

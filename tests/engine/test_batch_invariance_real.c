/* Of a real model the same logits, bit for bit, of a prompt at once and one thread, and in blocks of 7 with two threads
 * and steps behind it: at every level of instructions of batch_invariance. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "engine/engine.h"
#include "real_model.h"

enum { TOKENS = 300, STEPPED = 8 };

/* The last token's, [vocabulary_size]; the caller frees. */
static float *answer(cpu_mask mask, bool in_blocks, size_t *bytes) {
    const struct device_options options = {.thread_count = 1 + in_blocks, .mask = mask};
    const struct plan plan = {.context_size = TOKENS, .sequence_capacity = 1, .batch_size = in_blocks ? 7 : 512};
    struct device *device;
    struct model *model;
    struct engine *engine;
    struct sequence *sequence;
    struct error error;
    struct random random;
    const float *row;
    int32_t tokens[TOKENS];
    assert_ok(device_cpu_create(&device, &options, &error), error);
    assert_ok(model_load(&model, REAL_MODEL, device, &error), error);
    assert_ok(engine_create(&engine, model, &plan, NULL, &error), error);
    assert_ok(sequence_create(&sequence, engine, &error), error);
    random_init(&random, 5);
    for (size_t i = 0; i < TOKENS; i++) tokens[i] = (int32_t)(1000 + random_below(&random, 20000));
    const size_t prompt = in_blocks ? TOKENS - STEPPED : TOKENS;
    const struct prefill_request request = {.tokens = tokens, .token_count = prompt};
    assert_ok(engine_prefill(engine, sequence, &request, &row, &error), error);
    for (size_t i = prompt; i < TOKENS; i++)
        assert_ok(engine_step(engine, &sequence, tokens + i, 1, &row, &error), error);
    *bytes = model->config.vocabulary_size * sizeof *row;
    float *logits = malloc(*bytes);
    assert_non_null(logits);
    memcpy(logits, row, *bytes);
    sequence_destroy(sequence);
    engine_destroy(engine);
    model_destroy(model);
    device_destroy(device);
    return logits;
}

static void blocks_and_steps_give_the_same_bits(void **state) {
    (void)state;
    const cpu_mask have = cpu_features(), masks[] = {have & CPU_AVX2, have & ~(cpu_mask)CPU_AMX};
    if ((have & CPU_NEON) != 0) skip(); /* its matmul multiplies floats where its matvec multiplies int8 */
    for (size_t m = 0; m < (have & CPU_AVX512 ? 2 : 1) && masks[m] != 0; m++) {
        size_t bytes;
        float *whole = answer(masks[m], false, &bytes), *parts = answer(masks[m], true, &bytes);
        assert_memory_equal(parts, whole, bytes);
        free(whole), free(parts);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_and_steps_give_the_same_bits)};
    const int missing = real_model_missing();
    return missing != 0 ? missing : cmocka_run_group_tests(tests, NULL, NULL);
}

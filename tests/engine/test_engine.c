/* The engine on tiny random models of every family: a sequence gives the same logits alone, in a batch and
 * with its prompt in any blocks; thread counts change nothing; q8 KV stays near f16.
 *
 * Bounds, as fractions of the largest logit of the row:
 *   blocks and batches   bit-equal (test_batch_invariance.c: every weight type and level of instructions)
 *   AMX tiles            tiles_bound: many rows are multiplied in bf16; worst measured 2.4e-3
 *   threads              bit-equal
 *   q8 KV                q8_bound: int8 per 32 elements is a rounding of at most 1/254 of the group's largest
 *                        value for K and V; worst measured 2.8e-3 */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/logits.h"
#include "generate/sampler.h"
#include "model/tiny_model.h"

enum { PROMPT = 150, CONTEXT = 256 };

static const double tiles_bound = 1e-2, q8_bound = 1e-2;

struct rig {
    struct device *device;
    struct model *model;
    struct engine *engine;
    int32_t tokens[PROMPT];
    struct error error;
};

static void rig_open_with(struct rig *rig, const struct tiny_model *tiny, size_t threads, cpu_mask mask,
                          const struct plan *options) {
    struct random random;
    const struct device_options device = {.thread_count = threads, .mask = mask};
    tiny_model_load(tiny, "engine", &device, &rig->device, &rig->model);
    if (tiny->sliding_dimension != 0) tiny_model_unslide(rig->model, 1);
    assert_ok(engine_create(&rig->engine, rig->model, options, NULL, &rig->error), rig->error);
    random_init(&random, 99);
    tiny_model_tokens(tiny, &random, rig->tokens, PROMPT);
}

static void rig_open(struct rig *rig, const struct tiny_model *tiny, size_t threads,
                     const struct plan *options) {
    rig_open_with(rig, tiny, threads, cpu_default(), options);
}

static void rig_close(struct rig *rig) {
    engine_destroy(rig->engine);
    model_destroy(rig->model);
    device_destroy(rig->device);
}

static struct sequence *new_sequence(struct rig *rig) {
    struct sequence *sequence;
    assert_ok(sequence_create(&sequence, rig->engine, &rig->error), rig->error);
    return sequence;
}

static const float *prefill(struct rig *rig, struct sequence *sequence, const int32_t *tokens, size_t count) {
    const float *logits;
    struct prefill_request request = {.tokens = tokens, .token_count = count};
    assert_ok(engine_prefill(rig->engine, sequence, &request, &logits, &rig->error), rig->error);
    return logits;
}

static const struct plan f16_options = {.context_size = CONTEXT, .sequence_capacity = 8, .batch_size = 64};

/* Logits of all prompt tokens, one block. */
struct collected {
    float *logits;
    size_t width, count;
};
static enum status collect(void *context, uint64_t index, const float *logits, struct error *error) {
    struct collected *collected = context;
    (void)error;
    assert_int_equal(index, collected->count);
    memcpy(collected->logits + collected->count++ * collected->width, logits,
           collected->width * sizeof *logits);
    return STATUS_OK;
}

/* The caller frees. */
static float *all_logits(struct rig *rig, size_t count) {
    size_t width = rig->model->config.vocabulary_size;
    struct collected collected = {calloc(count, width * sizeof(float)), width, 0};
    struct sequence *sequence = new_sequence(rig);
    struct prefill_request request = {
        .tokens = rig->tokens, .token_count = count, .each = collect, .each_context = &collected};
    assert_ok(engine_prefill(rig->engine, sequence, &request, NULL, &rig->error), rig->error);
    assert_int_equal(collected.count, count);
    assert_int_equal(sequence_length(sequence), count);
    sequence_destroy(sequence);
    return collected.logits;
}

static void test_blocks(void **state) {
    (void)state;
    static const size_t splits[] = {1, 7, 8, 9, 63, 64, 65, 128, PROMPT};
    double worst = 0;
    for (size_t f = 0; f < TINY_FAMILIES; f++) {
        struct tiny_model tiny = tiny_model_default(tiny_families[f]);
        struct rig rig = {0};
        struct plan options = f16_options;
        static const int32_t kv_heads[] = {1, 4}; /* of two layers that differ */
        if (f == 0) tiny.window = 40, tiny.window_period = 2;
        if (f == 1) tiny.kv_heads = kv_heads;
        options.batch_size = PROMPT;
        rig_open(&rig, &tiny, 2, &options);
        size_t width = tiny.vocabulary_size;
        float *expected = all_logits(&rig, PROMPT);
        for (size_t s = 0; s < sizeof splits / sizeof splits[0]; s++) {
            struct sequence *sequence = new_sequence(&rig);
            for (size_t done = 0; done < PROMPT;) {
                size_t count = PROMPT - done < splits[s] ? PROMPT - done : splits[s];
                const float *logits = prefill(&rig, sequence, rig.tokens + done, count);
                done += count;
                worst = fmax(worst, difference(logits, expected + (done - 1) * width, width));
            }
            sequence_destroy(sequence);
        }
        free(expected);
        rig_close(&rig);
    }
    printf("blocks: %.2e\n", worst);
    assert_true(worst == 0);
}

/* What --cpu-mask amx computes is near what is computed without it. */
static void test_tiles(void **state) {
    (void)state;
    if ((cpu_features() & CPU_AMX) == 0) skip();
    double worst = 0;
    for (size_t f = 0; f < TINY_FAMILIES; f++) {
        struct tiny_model tiny = tiny_model_default(tiny_families[f]);
        float *logits[2];
        for (size_t tiles = 0; tiles < 2; tiles++) {
            struct rig rig = {0};
            struct plan options = f16_options;
            options.batch_size = PROMPT;
            rig_open_with(&rig, &tiny, 2, tiles ? cpu_features() : cpu_default(), &options);
            logits[tiles] = all_logits(&rig, PROMPT);
            rig_close(&rig);
        }
        const size_t width = tiny.vocabulary_size;
        for (size_t t = 0; t < PROMPT; t++)
            worst = fmax(worst, difference(logits[1] + t * width, logits[0] + t * width, width));
        free(logits[0]);
        free(logits[1]);
    }
    printf("tiles: %.2e\n", worst);
    assert_true(worst > 0); /* else they were not used */
    assert_true(worst <= tiles_bound);
}

/* Eight sequences of different lengths step together; each is compared with itself alone. */
static void test_batch(void **state) {
    (void)state;
    double worst = 0;
    for (size_t f = 0; f < TINY_FAMILIES; f++) {
        struct tiny_model tiny = tiny_model_default(tiny_families[f]);
        struct rig rig = {0};
        rig_open(&rig, &tiny, 2, &f16_options);
        size_t width = tiny.vocabulary_size;
        float *expected = all_logits(&rig, PROMPT);
        struct sequence *sequences[8];
        size_t lengths[8];
        for (size_t i = 0; i < 8; i++) {
            sequences[i] = new_sequence(&rig);
            lengths[i] = 1 + i * 17;
            prefill(&rig, sequences[i], rig.tokens, lengths[i]);
        }
        for (size_t step = 0; step < 20; step++) {
            int32_t tokens[8];
            const float *logits;
            for (size_t i = 0; i < 8; i++) tokens[i] = rig.tokens[lengths[i]];
            assert_ok(engine_step(rig.engine, sequences, tokens, 8, &logits, &rig.error), rig.error);
            for (size_t i = 0; i < 8; i++)
                worst = fmax(worst, difference(logits + i * width, expected + lengths[i]++ * width, width));
        }
        for (size_t i = 0; i < 8; i++) sequence_destroy(sequences[i]);
        free(expected);
        rig_close(&rig);
    }
    printf("batch: %.2e\n", worst);
    assert_true(worst == 0);
}

static void test_threads(void **state) {
    (void)state;
    for (size_t f = 0; f < TINY_FAMILIES; f++) {
        struct tiny_model tiny = tiny_model_default(tiny_families[f]);
        float *first = NULL;
        size_t bytes = PROMPT * tiny.vocabulary_size * sizeof(float);
        for (size_t threads = 1; threads <= 3; threads++) {
            struct rig rig = {0};
            rig_open(&rig, &tiny, threads, &f16_options);
            float *logits = all_logits(&rig, PROMPT);
            if (first == NULL)
                first = logits;
            else {
                assert_memory_equal(first, logits, bytes);
                free(logits);
            }
            rig_close(&rig);
        }
        free(first);
    }
}

static void test_q8(void **state) {
    (void)state;
    double worst = 0;
    for (size_t f = 0; f < TINY_FAMILIES; f++) {
        struct tiny_model tiny = tiny_model_default(tiny_families[f]);
        tiny.head_dimension = 32;
        struct rig rig = {0};
        struct plan options = f16_options;
        if (f == 3) tiny.head_count = tiny.kv_head_count = 2; /* opt has no key_length */
        tiny.expert_used = tiny.expert_count; /* all: q8 would pick others, 4e-2 away */
        rig_open(&rig, &tiny, 2, &options);
        float *expected = all_logits(&rig, PROMPT);
        uint64_t f16_bytes = engine_kv_bytes_per_token(rig.engine);
        rig_close(&rig);
        options.k_type = options.v_type = KV_Q8;
        rig_open(&rig, &tiny, 2, &options);
        float *found = all_logits(&rig, PROMPT);
        double here = difference(found, expected, PROMPT * tiny.vocabulary_size);
        worst = fmax(worst, here);
        assert_true(here > 2e-4); /* q8 was really used */
        assert_true(engine_kv_bytes_per_token(rig.engine) < f16_bytes);
        free(expected), free(found);
        rig_close(&rig);
    }
    printf("q8: %.2e\n", worst);
    assert_true(worst <= q8_bound);
}

static bool stop_after_two(void *context, uint64_t done, uint64_t total) {
    uint64_t *before = context;
    assert_int_equal(total, PROMPT);
    assert_true(done > *before && done <= *before + 64);
    *before = done;
    return done == 128;
}

static void test_interrupt_and_truncate(void **state) {
    (void)state;
    struct tiny_model tiny = tiny_model_default("llama");
    struct rig rig = {0};
    struct plan options = f16_options;
    options.segment_size = 64;
    rig_open(&rig, &tiny, 1, &options);
    uint64_t before = 0;
    size_t width = tiny.vocabulary_size;
    struct sequence *sequence = new_sequence(&rig);
    struct prefill_request request = {
        .tokens = rig.tokens, .token_count = PROMPT, .progress = stop_after_two, .progress_context = &before};
    const float *logits;
    assert_int_equal(engine_prefill(rig.engine, sequence, &request, &logits, &rig.error), STATUS_INTERRUPTED);
    assert_int_equal(sequence_length(sequence), 128);
    logits = prefill(&rig, sequence, rig.tokens + 128, PROMPT - 128); /* goes on from there */
    float *expected = calloc(width, sizeof *expected);
    memcpy(expected, logits, width * sizeof *expected);
    assert_true(engine_kv_used_bytes(rig.engine) > 0);
    sequence_truncate(sequence, 100);
    sequence_truncate(sequence, 120); /* longer than it is: nothing */
    assert_int_equal(sequence_length(sequence), 100);
    logits = prefill(&rig, sequence, rig.tokens + 100, PROMPT - 100);
    assert_true(difference(logits, expected, width) == 0);
    sequence_destroy(sequence);
    assert_int_equal(engine_kv_used_bytes(rig.engine), 0);
    free(expected);
    rig_close(&rig);
}

static void test_fill_random(void **state) {
    (void)state;
    struct tiny_model tiny = tiny_model_default("qwen2");
    struct rig rig = {0};
    rig_open(&rig, &tiny, 2, &f16_options);
    float *kept = calloc(2 * tiny.vocabulary_size, sizeof *kept);
    for (size_t round = 0; round < 4; round++) { /* seeds 5, 5, 6; then one that is cut back */
        struct sequence *sequence = new_sequence(&rig);
        assert_ok(engine_fill_random(rig.engine, sequence, 200, round == 2 ? 6 : 5, &rig.error), rig.error);
        assert_int_equal(sequence_length(sequence), 200);
        const float *logits = prefill(&rig, sequence, rig.tokens, 1);
        size_t bytes = tiny.vocabulary_size * sizeof *kept;
        if (round == 0) memcpy(kept, logits, bytes);
        if (round == 1 || round == 3) assert_memory_equal(kept, logits, bytes);
        if (round == 2) assert_true(difference(logits, kept, tiny.vocabulary_size) > 1e-3);
        sequence_destroy(sequence);
    }
    free(kept);
    rig_close(&rig);
}

static void test_refusals(void **state) {
    (void)state;
    struct tiny_model tiny = tiny_model_default("opt");
    struct rig rig = {0};
    rig_open(&rig, &tiny, 1, &f16_options);
    struct sequence *sequence = new_sequence(&rig);
    const float *logits;
    int32_t bad[3] = {1, 80, 2}, negative[1] = {-1};
    struct prefill_request request = {.tokens = bad, .token_count = 3};
    assert_int_equal(engine_prefill(rig.engine, sequence, &request, &logits, &rig.error), STATUS_USAGE);
    assert_non_null(strstr(rig.error.message, "token 1 of the prompt: id 80"));
    assert_int_equal(engine_step(rig.engine, &sequence, negative, 1, &logits, &rig.error), STATUS_USAGE);
    request.token_count = 0;
    assert_int_equal(engine_prefill(rig.engine, sequence, &request, &logits, &rig.error), STATUS_USAGE);
    assert_int_equal(sequence_length(sequence), 0);

    assert_ok(engine_fill_random(rig.engine, sequence, CONTEXT - 10, 1, &rig.error), rig.error);
    request = (struct prefill_request){.tokens = rig.tokens, .token_count = 11};
    assert_int_equal(engine_prefill(rig.engine, sequence, &request, &logits, &rig.error), STATUS_USAGE);
    assert_non_null(strstr(rig.error.message, "256 tokens"));
    assert_int_equal(sequence_length(sequence), CONTEXT - 10);
    prefill(&rig, sequence, rig.tokens, 10); /* exactly full */
    assert_int_equal(engine_step(rig.engine, &sequence, rig.tokens, 1, &logits, &rig.error), STATUS_USAGE);

    struct sequence *others[8];
    for (size_t i = 0; i < 7; i++) others[i] = new_sequence(&rig);
    assert_int_equal(sequence_create(&others[7], rig.engine, &rig.error), STATUS_FULL);
    for (size_t i = 0; i < 7; i++) sequence_destroy(others[i]);
    sequence_destroy(sequence);

    struct engine *engine;
    static const struct plan wrong[] = {
        {.context_size = 513, .sequence_capacity = 1}, /* opt: 512 learned positions */
        {.context_size = 128, .sequence_capacity = 0},
        {.context_size = 128, .sequence_capacity = 65},
        {.context_size = 128, .sequence_capacity = 1, .batch_size = 1 << 20},
        {.context_size = 128, .sequence_capacity = 1, .k_type = KV_Q8}, /* head dimension 16 */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(engine_create(&engine, rig.model, &wrong[i], NULL, &rig.error), STATUS_USAGE);
    rig_close(&rig);
    tiny = tiny_model_default("llama");
    rig_open(&rig, &tiny, 1, &f16_options);
    struct plan huge = {.context_size = UINT64_MAX / 2, .sequence_capacity = 64};
    assert_int_equal(engine_create(&engine, rig.model, &huge, NULL, &rig.error), STATUS_MEMORY);
    huge.context_size = 0;
    assert_ok(engine_create(&engine, rig.model, &huge, NULL, &rig.error), rig.error);
    assert_int_equal(engine_context_size(engine), 512);
    engine_destroy(engine);
    rig_close(&rig);
}

/* A million tokens of context: reserved, not touched; the last positions work. */
static void test_million(void **state) {
    (void)state;
    struct tiny_model tiny = tiny_model_default("llama");
    struct rig rig = {0};
    struct plan options = {.context_size = 3000000000u, .sequence_capacity = 1, .batch_size = 64};
    rig_open(&rig, &tiny, 1, &options);
    struct sequence *sequence = new_sequence(&rig);
    assert_ok(engine_fill_random(rig.engine, sequence, 1100, 1, &rig.error), rig.error);
    const float *logits = prefill(&rig, sequence, rig.tokens, 3);
    for (size_t i = 0; i < tiny.vocabulary_size; i++) assert_true(isfinite(logits[i]));
    assert_int_equal(sequence_length(sequence), 1103);
    sequence_destroy(sequence);
    rig_close(&rig);
}

/* Prompt, sampler, steps: the same seed gives the same tokens on any number of threads. */
static void test_generation(void **state) {
    (void)state;
    int32_t first[64];
    for (size_t threads = 1; threads <= 3; threads += 2) {
        struct tiny_model tiny = tiny_model_default("qwen3");
        struct rig rig = {0};
        struct sampler *sampler;
        struct sampler_options options = sampler_options_default();
        options.repeat_penalty = 1.1F;
        options.seed = 3;
        rig_open(&rig, &tiny, threads, &f16_options);
        assert_ok(sampler_create(&sampler, &options, NULL, tiny.vocabulary_size, &rig.error), rig.error);
        struct sequence *sequence = new_sequence(&rig);
        const float *logits = prefill(&rig, sequence, rig.tokens, 20);
        for (size_t i = 0; i < 64; i++) {
            int32_t token;
            assert_ok(sampler_pick(sampler, logits, &token, &rig.error), rig.error);
            sampler_accept(sampler, token);
            if (threads == 1) first[i] = token;
            assert_int_equal(token, first[i]);
            assert_ok(engine_step(rig.engine, &sequence, &token, 1, &logits, &rig.error), rig.error);
        }
        sampler_destroy(sampler);
        sequence_destroy(sequence);
        rig_close(&rig);
    }
}

/* Layers that differ take the memory that the sum over their groups gives; what needs layers that are alike says so. */
static void test_layers_differ(void **state) {
    (void)state;
    static const int32_t kv_heads[] = {4, 1, 2};
    struct tiny_model tiny = tiny_model_default("qwen3");
    struct rig rig = {0};
    tiny.layer_count = 3;
    tiny.kv_heads = kv_heads;
    rig_open(&rig, &tiny, 2, &f16_options);
    const struct model_config *config = &rig.model->config;
    const size_t row = (config->k_dimension + config->v_dimension) * 2;
    assert_int_equal(config->kv_groups->group_count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(config->layers[i].kv.kv_head_count, kv_heads[i]);
        assert_int_equal(config->layers[i].kv_layer, i);
    }
    assert_int_equal(engine_kv_bytes_per_token(rig.engine), 7 * row);
    assert_int_equal(engine_kv_row_bytes(rig.engine), row);
    /* A step has the bits of a prompt that ends there. */
    const size_t width = config->vocabulary_size;
    float *all = all_logits(&rig, PROMPT);
    struct sequence *sequence = new_sequence(&rig);
    const float *logits = prefill(&rig, sequence, rig.tokens, PROMPT - 1);
    assert_ok(engine_step(rig.engine, &sequence, &rig.tokens[PROMPT - 1], 1, &logits, &rig.error), rig.error);
    assert_memory_equal(logits, all + (PROMPT - 1) * width, width * sizeof *logits);
    sequence_destroy(sequence);
    free(all);
    struct plan plan = f16_options;
    struct engine *none;
    plan.disk_directory = "nowhere";
    plan.host_bytes = 1 << 24;
    plan.quantized_pages = plan.mixes_pages = true;
    assert_int_equal(engine_create(&none, rig.model, &plan, NULL, &rig.error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(rig.error.message, "3 different shapes, which codec=dynamic does not"));
    rig_close(&rig);
}

/* Of layers of different shapes, one of which attends to the KV of another: the steps behind a prompt that came in
 * pieces, with so many other sequences beside it.  [3][width], the caller frees. */
static float *steps_of(const struct tiny_model *tiny, const struct plan *plan, size_t threads, size_t piece,
                       size_t others) {
    enum { START = PROMPT - 3 };
    struct rig rig = {0};
    struct sequence *sequences[3];
    const float *logits;
    rig_open(&rig, tiny, threads, plan);
    float *all = calloc(3 * tiny->vocabulary_size, sizeof *all);
    assert_non_null(all);
    for (size_t i = 0; i <= others; i++) {
        sequences[i] = new_sequence(&rig);
        const size_t end = i == others ? START : START - 20 * (i + 1);
        for (size_t at = 0; at < end; at += piece)
            prefill(&rig, sequences[i], rig.tokens + at, end - at < piece ? end - at : piece);
    }
    for (size_t step = 0; step < 3; step++) {
        int32_t tokens[3];
        for (size_t i = 0; i <= others; i++) tokens[i] = rig.tokens[START + step];
        assert_ok(engine_step(rig.engine, sequences, tokens, others + 1, &logits, &rig.error), rig.error);
        memcpy(all + step * tiny->vocabulary_size, logits + others * tiny->vocabulary_size,
               tiny->vocabulary_size * sizeof *all);
    }
    for (size_t i = 0; i <= others; i++) sequence_destroy(sequences[i]);
    rig_close(&rig);
    return all;
}

static void test_shapes_differ(void **state) {
    (void)state;
    static const struct {
        size_t threads, piece, others;
    } cases[] = {{1, PROMPT, 0}, {3, PROMPT, 0}, {2, 1, 0}, {2, 63, 1}, {2, 65, 2}};
    const struct tiny_model tiny = tiny_model_of_groups(true);
    const size_t bytes = 3 * tiny.vocabulary_size * sizeof(float);
    for (int selects = 0; selects < 2; selects++) {
        struct plan plan = f16_options;
        plan.select = select_options_default();
        plan.select.method = selects ? &select_hash : &select_all;
        plan.select.keep = (struct select_keep){.tokens = 48};
        plan.select.dense_layers = 1;
        float *expected = steps_of(&tiny, &plan, 2, PROMPT, 0);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            float *found = steps_of(&tiny, &plan, cases[i].threads, cases[i].piece, cases[i].others);
            if (memcmp(found, expected, bytes) != 0) fail_msg("case %zu, %s", i, selects ? "hash" : "all");
            free(found);
        }
        free(expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_layers_differ),
        cmocka_unit_test(test_shapes_differ),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_q8),
        cmocka_unit_test(test_interrupt_and_truncate),
        cmocka_unit_test(test_fill_random),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_million),
        cmocka_unit_test(test_generation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

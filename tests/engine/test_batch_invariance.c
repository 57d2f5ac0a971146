/* The same logits, bit for bit, however a prompt is split, batched or threaded: for every family, every weight type and
 * every level of instructions that this processor has but AMX, which multiplies many rows in bf16. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/random.h"
#include "engine/engine.h"
#include "model/tiny_model.h"

enum { PROMPT = 70, PROMPT_LONG = 610, SEQUENCES = 8, STEPS = 3 };

struct engine_rig {
    struct device *device;
    struct model *model;
    struct engine *engine;
    struct error error;
    size_t width;
    int32_t tokens[PROMPT_LONG + STEPS];
};

/* path: of tiny's file. */
static void engine_rig_open(struct engine_rig *rig, const struct tiny_model *tiny, const char *path,
                            cpu_mask mask, size_t threads, size_t batch, size_t segment) {
    const struct device_options device = {.thread_count = threads, .mask = mask};
    const struct plan plan = {.context_size = PROMPT_LONG + STEPS + 6,
                              .sequence_capacity = SEQUENCES,
                              .batch_size = batch,
                              .segment_size = segment};
    struct random random;
    memset(rig, 0, sizeof *rig);
    assert_ok(device_cpu_create(&rig->device, &device, &rig->error), rig->error);
    assert_ok(model_load(&rig->model, path, rig->device, &rig->error), rig->error);
    assert_ok(engine_create(&rig->engine, rig->model, &plan, NULL, &rig->error), rig->error);
    rig->width = rig->model->config.vocabulary_size;
    random_init(&random, 99);
    tiny_model_tokens(tiny, &random, rig->tokens, PROMPT_LONG + STEPS);
}

static void engine_rig_close(struct engine_rig *rig) {
    engine_destroy(rig->engine);
    model_destroy(rig->model);
    device_destroy(rig->device);
}

/* The logits of the prompt's last token and of the steps after it, [1 + STEPS][width], of the last of `count` sequences
 * that step together; their prompts are read in pieces of `piece` tokens. */
static void answer(struct engine_rig *rig, size_t prompt, size_t piece, size_t count, float *logits) {
    struct sequence *sequences[SEQUENCES];
    int32_t tokens[SEQUENCES];
    const float *row = NULL;
    for (size_t i = 0; i < count; i++) {
        const size_t length = i + 1 == count ? prompt : 1 + i * 5; /* the others are elsewhere */
        assert_ok(sequence_create(&sequences[i], rig->engine, &rig->error), rig->error);
        for (size_t done = 0; done < length; done += min_size(piece, length - done)) {
            struct prefill_request request = {.tokens = rig->tokens + done,
                                              .token_count = min_size(piece, length - done)};
            assert_ok(engine_prefill(rig->engine, sequences[i], &request, &row, &rig->error), rig->error);
        }
    }
    memcpy(logits, row, rig->width * sizeof *row);
    for (size_t step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < count; i++) tokens[i] = rig->tokens[prompt + step];
        assert_ok(engine_step(rig->engine, sequences, tokens, count, &row, &rig->error), rig->error);
        memcpy(logits + (step + 1) * rig->width, row + (count - 1) * rig->width, rig->width * sizeof *row);
    }
    for (size_t i = 0; i < count; i++) sequence_destroy(sequences[i]);
}

struct way {
    size_t threads, batch, segment, piece, sequences;
};

/* The others are compared with the first.  A piece is what a caller passes at once, a batch is a pass. */
static const struct way ways[] = {
    {1, 512, 0, PROMPT_LONG, 1},
    {2, 1, 0, PROMPT_LONG, 1},
    {1, 7, 0, PROMPT_LONG, 3},
    {1, 8, 0, PROMPT_LONG, 8},
    {2, 64, 128, PROMPT_LONG, 1},
    {3, 512, 64, PROMPT_LONG, 8},
    {1, 32, 0, 9, 3},
};
enum { WAYS = sizeof ways / sizeof *ways };

static void compare_ways(const struct tiny_model *tiny, cpu_mask mask, size_t prompt) {
    float *want = NULL, *got = NULL;
    char path[64];
    tiny_model_write(tiny, tiny_model_path("invariance", path, sizeof path));
    for (size_t w = 0; w < WAYS; w++) {
        struct engine_rig rig;
        engine_rig_open(&rig, tiny, path, mask, ways[w].threads, ways[w].batch, ways[w].segment);
        const size_t bytes = (1 + STEPS) * rig.width * sizeof(float);
        got = calloc(1, bytes);
        answer(&rig, prompt, ways[w].piece, ways[w].sequences, got);
        if (w == 0) {
            want = got;
        } else {
            if (memcmp(got, want, bytes) != 0) {
                size_t at = 0;
                while (memcmp(got + at, want + at, sizeof *got) == 0) at++;
                fail_msg("%s mask %x, %s, way %zu: logit %zu of row %zu is %.9g, not %.9g", tiny->family,
                         (unsigned)mask, tensor_type_info(tiny->type)->name, w, at % rig.width,
                         at / rig.width, (double)got[at], (double)want[at]);
            }
            free(got);
        }
        engine_rig_close(&rig);
    }
    unlink(path);
    free(want);
}

static size_t masks_known(cpu_mask masks[3]) {
    const cpu_mask have = cpu_features();
    size_t count = 0;
    masks[count++] = 0;
    if (have & (CPU_AVX2 | CPU_NEON)) masks[count++] = have & (CPU_AVX2 | CPU_NEON);
    if (have & CPU_AVX512) masks[count++] = have & ~(cpu_mask)CPU_AMX;
    return count;
}

/* NEON's matmul multiplies floats where its matvec multiplies int8. */
static bool is_promised(cpu_mask mask, enum tensor_type type) {
    return (mask & CPU_NEON) == 0 || type == TENSOR_F32;
}

static void every_weight_type(void **state) {
    (void)state;
    static const enum tensor_type types[] = {
        TENSOR_F32,    TENSOR_F16,   TENSOR_BF16,  TENSOR_Q4_0,  TENSOR_Q4_1,  TENSOR_Q5_0,  TENSOR_Q5_1,
        TENSOR_Q8_0,   TENSOR_Q2_K,  TENSOR_Q3_K,  TENSOR_Q4_K,  TENSOR_Q5_K,  TENSOR_Q6_K,  TENSOR_IQ4_NL,
        TENSOR_IQ4_XS, TENSOR_MXFP4, TENSOR_NVFP4, TENSOR_IQ3_S, TENSOR_IQ2_S, TENSOR_IQ1_M,
    };
    cpu_mask masks[3];
    const size_t mask_count = masks_known(masks);
    for (size_t m = 0; m < mask_count; m++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            if (!is_promised(masks[m], types[t])) continue;
            const bool is_mxfp4 = types[t] == TENSOR_MXFP4; /* gpt-oss's type */
            struct tiny_model tiny = tiny_model_default(is_mxfp4 ? "gpt-oss" : t % 4 == 0 ? "qwen3moe" : "llama");
            tiny.type = types[t];
            tiny.expert_size = 256;
            tiny.hidden_size = 256, tiny.ffn_size = 512, tiny.layer_count = 1;
            tiny.head_count = 4, tiny.kv_head_count = 2, tiny.head_dimension = 64;
            compare_ways(&tiny, masks[m], masks[m] == 0 ? 9 : PROMPT);
        }
}

/* More rows than a range of attention has, a window that begins within one, and the other families. */
static void every_family(void **state) {
    (void)state;
    cpu_mask masks[3];
    const size_t mask_count = masks_known(masks);
    for (size_t m = 1; m < mask_count; m++)
        for (size_t f = 0; f < TINY_FAMILIES; f++) {
            struct tiny_model tiny = tiny_model_default(tiny_families[f]);
            if (f == 0) tiny.window = 530, tiny.window_period = 2;
            if (f == 3) continue; /* 512 learned positions */
            compare_ways(&tiny, masks[m], PROMPT_LONG);
        }
    for (size_t m = 0; m < mask_count; m++) /* layers that hand a state on from row to row */
        for (size_t f = 0; f < TINY_STATE_FAMILIES; f++) {
            const struct tiny_model tiny = tiny_model_default(tiny_state_families[f]);
            compare_ways(&tiny, masks[m], m == 0 ? PROMPT : PROMPT_LONG);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_type),
        cmocka_unit_test(every_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

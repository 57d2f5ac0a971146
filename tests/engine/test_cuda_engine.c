/* The engine on the cuda device, over the fake driver in orders that the seed draws: prompts by blocks, steps, batches
 * and saved documents of every family, against the cpu device with its reference kernels.  A bound for logits: the cuda
 * device rounds the inputs of products to halves, or to codes of 8 bits as the cpu does; each product's errors are
 * independent, and add up over the layers as random ones do. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../platform/scratch.h"
#include "base/random.h"
#include "cache/inputs.h"
#include "counted_device.h"
#include "device/cuda/card.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/images.h"
#include "engine/engine.h"
#include "engine/logits.h"
#include "model/tiny_model.h"
#include "seed.h"

#define CHOOSES            "planes=1,page=8,sinks=8,recent=64,dense=0"
#define CODES              "planes=1,page=8,sinks=8,recent=16,dense=0"
#define CHOOSES_PAGES      "page=16,sinks=16,recent=40,dense=0"
#define CHOOSES_LEAVES     "leaf=16,sinks=16,recent=40"
#define REUSES(eta)        CHOOSES ",reused=0,power=0,eta=" eta
#define CHOOSES_BEHIND_ONE "planes=1,page=8,sinks=8,recent=64,dense=1"
enum { LAYERS_MAX = 5, KV_HEADS_MAX = 4 };
enum { PROMPT = 110, STEPS = 4, DOCUMENT = 330, CONTEXT = 512, BLOCK = 96, CPU = 0, CUDA = 1, BOTH = 2 };

struct rig {
    struct device *device[BOTH];
    struct model *model[BOTH];
    int32_t tokens[CONTEXT];
    size_t width;
    struct error error;
};

static void devices_open(struct rig *rig, uint64_t seed) {
    char settings[80];
    snprintf(settings, sizeof settings, "seed=%llu,capability=%d", (unsigned long long)seed,
             seed % 2 ? 90 : 80);
    (void)setenv("FAKE_CUDA", settings, 1);
    const struct cuda_device_options cuda = {.driver_file = card_driver(FAKE_LIBRARY), .thread_count = 1};
    const struct device_options cpu = {.thread_count = 1, .mask = cpu_default()};
    assert_ok(device_cpu_create(&rig->device[CPU], &cpu, &rig->error), rig->error);
    assert_ok(device_cuda_create(&rig->device[CUDA], &cuda, &rig->error), rig->error);
}

static void rig_open(struct rig *rig, const struct tiny_model *tiny, uint64_t seed) {
    struct random random;
    *rig = (struct rig){.width = tiny->vocabulary_size};
    devices_open(rig, seed);
    for (size_t on = 0; on < BOTH; on++)
        tiny_model_load_on(tiny, "cuda-engine", rig->device[on], &rig->model[on]);
    random_init(&random, seed);
    tiny_model_tokens(tiny, &random, rig->tokens, CONTEXT);
}

static void rig_free(struct rig *rig) {
    for (size_t on = 0; on < BOTH; on++) {
        model_destroy(rig->model[on]);
        device_destroy(rig->device[on]);
    }
}
static void rig_close(struct rig *rig) {
    const struct cuda_counts counts = device_cuda_counts(rig->device[CUDA]);
    assert_true(counts.launches > 50 && counts.copies > 0); /* nothing else has computed */
    rig_free(rig);
}

static struct plan plan_with(struct rig *rig, const char *preset, const char *settings, const char *keep,
                             enum kv_type type) {
    struct plan plan = {
        .context_size = CONTEXT, .sequence_capacity = 3, .batch_size = BLOCK, .k_type = type, .v_type = type};
    assert_ok(plan_set_axes(&plan, preset, settings, keep, &rig->error), rig->error);
    return plan;
}
static struct plan plan_of(struct rig *rig, const char *preset, enum kv_type type) {
    return plan_with(rig, preset, NULL, NULL, type);
}

static struct engine *engine_open(struct rig *rig, size_t on, const struct plan *plan) {
    struct engine *engine;
    assert_ok(engine_create(&engine, rig->model[on], plan, NULL, &rig->error), rig->error);
    return engine;
}

/* It has read `count` tokens from number `first` on.  logits: of the last one; NULL: nobody wants them. */
static struct sequence *sequence_read(struct rig *rig, struct engine *engine, size_t first, size_t count,
                                      const float **logits) {
    struct sequence *sequence;
    const struct prefill_request request = {.tokens = rig->tokens + first, .token_count = count};
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(engine_prefill(engine, sequence, &request, logits, &rig->error), rig->error);
    return sequence;
}

/* ---- how near ---- */

/* share: of the logits' own spread, by which one may be off. */
static void logits_check(const float *found, const float *expected, size_t width, double share,
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

/* ---- prompts and steps ---- */

struct kept {
    float *logits;
    size_t width;
};

static enum status keep_logits(void *context, uint64_t index, const float *logits, struct error *error) {
    const struct kept *kept = context;
    (void)error;
    memcpy(kept->logits + index * kept->width, logits, kept->width * sizeof *logits);
    return STATUS_OK;
}

static float *rows_create(size_t rows, size_t width) {
    float *made = calloc(rows * width, sizeof *made);
    assert_non_null(made);
    return made;
}

/* The logits of all tokens of a prompt, and of the steps behind it. */
static float *answer(struct rig *rig, size_t on, const struct plan *plan) {
    struct engine *engine = engine_open(rig, on, plan);
    struct sequence *sequence;
    struct kept kept = {rows_create(PROMPT + STEPS, rig->width), rig->width};
    const struct prefill_request request = {
        .tokens = rig->tokens, .token_count = PROMPT, .each = keep_logits, .each_context = &kept};
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig->error), rig->error);
    for (size_t i = PROMPT; i < PROMPT + STEPS; i++) {
        const float *logits;
        assert_ok(engine_step(engine, &sequence, &rig->tokens[i], 1, &logits, &rig->error), rig->error);
        memcpy(kept.logits + i * rig->width, logits, rig->width * sizeof *logits);
    }
    sequence_destroy(sequence);
    engine_destroy(engine);
    return kept.logits;
}

struct family {
    const char *name;
    enum tensor_type type;
    enum kv_type kv;
    uint32_t window;
    double share; /* of logits_check */
};

/* As published models of gemma4 have them. */
static void widen_heads(struct tiny_model *tiny, size_t dimension) {
    static const int32_t slides[] = {1, 0};
    tiny->slides = slides, tiny->window_period = 0;
    tiny->head_count = 2, tiny->kv_head_count = 1;
    tiny->head_dimension = dimension, tiny->sliding_dimension = dimension / 2;
}

static void family_check(const struct family *family, uint64_t seed) {
    struct rig rig;
    struct tiny_model tiny = tiny_model_default(family->name);
    tiny.type = family->type;
    if (family->kv == KV_Q8) tiny.head_dimension = 32;
    tiny.window = family->window;
    tiny.window_period = family->window > 0 ? 2 : 0;
    if (strcmp(family->name, "gemma4") == 0) widen_heads(&tiny, 512);
    tiny.expert_used = tiny.expert_count; /* of others a near-tie would pick; test_golden compares picks */
    rig_open(&rig, &tiny, seed);
    struct plan plan = plan_of(&rig, "full", family->kv);
    float *found = answer(&rig, CUDA, &plan), *expected = answer(&rig, CPU, &plan);
    for (size_t i = 0; i < PROMPT + STEPS; i++)
        logits_check(found + i * rig.width, expected + i * rig.width, rig.width, family->share, family->name,
                     i);
    free(found), free(expected);
    plan_deinit(&plan);
    rig_close(&rig);
}

static void families_match(void **state) {
    (void)state;
    static const struct family families[] = {
        {"llama", TENSOR_F32, KV_F16, 0, 0.02}, {"llama", TENSOR_Q8_0, KV_F16, 40, 0.1},
        {"qwen2", TENSOR_Q4_0, KV_Q8, 0, 0.1},  {"qwen3", TENSOR_BF16, KV_F16, 0, 0.02},
        {"opt", TENSOR_F16, KV_F16, 0, 0.02},   {"qwen3moe", TENSOR_Q8_0, KV_F16, 0, 0.1},
        {"gemma4", TENSOR_Q5_0, KV_F16, 40, 0.1},
    };
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (test_takes_next()) family_check(&families[i], test_seed(31) + i);
}

/* ---- weights in RAM ---- */

static uint64_t layer_bytes(const struct layer_weights *layer) {
    const struct layer_input_weights *input = &layer->input;
    const struct mixture_weights *mixture = &layer->mixture;
    const struct weight *weights[] = {&layer->q,          &layer->k,          &layer->v,
                                      &layer->output,     &layer->gate,       &layer->up,
                                      &layer->down,       &mixture->router,   &mixture->shared.gate,
                                      &mixture->shared.up, &mixture->shared.down, &input->projection,
                                      &input->gate,       &input->output};
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++)
        bytes += weights[i]->matrix.rows * weights[i]->matrix.row_bytes;
    return bytes;
}

/* The device reads some layers' weights over the bus, stacks of experts and rows of tables in place: the same bits, for
 * prompts and for steps. */
static void weights_may_stay_in_ram(void **state) {
    (void)state;
    struct rig rig;
    struct tiny_model tiny = tiny_model_default("gemma4");
    char path[64];
    tiny.type = TENSOR_Q8_0;
    rig_open(&rig, &tiny, test_seed(13));
    struct plan plan = plan_of(&rig, "full", KV_F16);
    float *expected = answer(&rig, CUDA, &plan);
    tiny_model_write(&tiny, tiny_model_path("cuda-split", path, sizeof path));
    const size_t layers = rig.model[CUDA]->config.layer_count;
    model_destroy(rig.model[CUDA]);
    assert_ok(model_load_split(&rig.model[CUDA], path, rig.device[CUDA], 1, 0, &rig.error), rig.error);
    unlink(path);
    const struct model *model = rig.model[CUDA];
    uint64_t bytes = 0;
    for (size_t i = 0; i < layers; i++) {
        const bool in_ram = i + 1 < layers;
        assert_int_equal(model->layers[i].q.memory.kind, in_ram ? MEMORY_SHARED : MEMORY_DEVICE);
        assert_int_equal(model->layers[i].down.memory.kind, in_ram ? MEMORY_SHARED : MEMORY_DEVICE);
        if (in_ram) bytes += layer_bytes(&model->layers[i]);
    }
    assert_int_equal(model->bus_bytes, bytes);
    assert_int_equal(model->input_table.memory.kind, MEMORY_SHARED);
    assert_int_equal(model->output.memory.kind, MEMORY_DEVICE);
    float *found = answer(&rig, CUDA, &plan);
    assert_memory_equal(found, expected, (PROMPT + STEPS) * rig.width * sizeof *found);
    free(found), free(expected);
    plan_deinit(&plan);
    rig_close(&rig);
}

/* ---- batches ---- */

/* Three sequences step together and alone: the same bits. */
static void batch_check(const char *family, uint64_t seed) {
    static const size_t lengths[3] = {70, 1, 33};
    struct rig rig;
    struct tiny_model tiny = tiny_model_default(family);
    tiny.type = TENSOR_Q8_0;
    rig_open(&rig, &tiny, seed);
    struct plan plan = plan_of(&rig, "full", KV_F16);
    float *steps[2] = {rows_create(3, rig.width), rows_create(3, rig.width)};
    for (int together = 0; together < 2; together++) {
        struct engine *engine = engine_open(&rig, CUDA, &plan);
        struct sequence *sequences[3];
        const float *logits;
        int32_t tokens[3];
        for (size_t i = 0; i < 3; i++) {
            sequences[i] = sequence_read(&rig, engine, i, lengths[i], NULL);
            tokens[i] = rig.tokens[i + 100];
        }
        for (size_t i = 0; i < (together ? 1 : 3); i++) {
            const size_t count = together ? 3 : 1;
            assert_ok(engine_step(engine, sequences + i, tokens + i, count, &logits, &rig.error), rig.error);
            memcpy(steps[together] + i * rig.width, logits, count * rig.width * sizeof *logits);
        }
        for (size_t i = 0; i < 3; i++) sequence_destroy(sequences[i]);
        engine_destroy(engine);
    }
    assert_memory_equal(steps[1], steps[0], 3 * rig.width * sizeof(float));
    free(steps[0]), free(steps[1]);
    plan_deinit(&plan);
    rig_close(&rig);
}

static void batches_give_the_same_bits(void **state) {
    (void)state;
    if (test_takes_next()) batch_check("qwen2", test_seed(7));
    if (test_takes_next()) batch_check("gemma4", test_seed(8));
}

/* Behind the prompt, as many steps in a pass as may be (engine_step_ahead): the logits of steps, bit for bit. */
static void ahead_check(struct rig *rig, const struct plan *plan, const float *expected) {
    struct engine *engine = engine_open(rig, CUDA, plan);
    struct sequence *sequence = sequence_read(rig, engine, 0, PROMPT, NULL);
    const float *logits;
    const size_t count = min_size(sequence_ahead_max(sequence), STEPS);
    const int32_t *tokens = rig->tokens + PROMPT;
    assert_int_equal(count, STEPS);
    assert_ok(engine_step_ahead(engine, sequence, tokens, count, &logits, &rig->error), rig->error);
    assert_memory_equal(logits, expected, count * rig->width * sizeof *logits);
    sequence_destroy(sequence);
    engine_destroy(engine);
}

/* However a prompt is cut, as long as no part goes as steps do; what shares a tile with whom changes with it. */
static void prompts_may_be_cut(void **state) {
    (void)state;
    struct rig rig;
    struct tiny_model tiny = tiny_model_default("qwen3moe");
    if (!test_takes_next()) return;
    tiny.type = TENSOR_Q8_0;
    rig_open(&rig, &tiny, test_seed(21));
    struct plan plan = plan_of(&rig, "full", KV_F16);
    float *expected = answer(&rig, CUDA, &plan);
    plan.batch_size = PROMPT;
    float *found = answer(&rig, CUDA, &plan);
    assert_memory_equal(found, expected, (PROMPT + STEPS) * rig.width * sizeof *found);
    ahead_check(&rig, &plan, expected + PROMPT * rig.width);
    free(found), free(expected);
    plan_deinit(&plan);
    rig_close(&rig);
}

/* Rows that choose are steps as well. */
static void rows_ahead_choose(void **state) {
    (void)state;
    struct rig rig;
    struct tiny_model tiny = tiny_model_default("llama");
    if (!test_takes_next()) return;
    tiny.head_dimension = 32;
    rig_open(&rig, &tiny, test_seed(23));
    struct plan plan = plan_with(&rig, "hata", CODES, "64", KV_F16);
    float *expected = answer(&rig, CUDA, &plan);
    ahead_check(&rig, &plan, expected + PROMPT * rig.width);
    free(expected);
    plan_deinit(&plan);
    rig_close(&rig);
}

/* ---- steps as graphs ---- */

enum { GRAPH_STEPS = 4, GRAPH_STEPS_MAX = GRAPH_STEPS + 2 /* of states, which go two ways */ };

static void nothing(void *context, const struct attention_event *event) {
    (void)context;
    (void)event;
}

/* Three sequences together, then one alone; observed: operation by operation.  [2 * GRAPH_STEPS_MAX][3][width];
 * kernels: of the last step. */
static float *graph_steps(struct rig *rig, const struct plan *plan, bool observed, uint64_t *kernels) {
    const bool chooses = plan->select.method != NULL, has_states = rig->model[CUDA]->config.state.layer_count > 0;
    const size_t ways = has_states ? 2 : 1, steps = has_states ? GRAPH_STEPS_MAX : GRAPH_STEPS;
    /* One beyond a window of 40; a few rows go by the products of steps, which cost the executor least. */
    const size_t lengths[3] = {chooses ? 160 : has_states ? 4 : 60, chooses ? 80 : 1, chooses ? BLOCK : 6};
    struct engine *engine = engine_open(rig, CUDA, plan);
    struct sequence *sequences[3];
    const float *logits;
    float *all = rows_create((size_t)2 * GRAPH_STEPS_MAX * 3, rig->width);
    for (size_t i = 0; i < 3; i++) sequences[i] = sequence_read(rig, engine, i, lengths[i], NULL);
    if (observed) engine_set_attention_observer(engine, nothing, NULL);
    const struct step_graph_counts before = engine_step_graph_counts(engine);
    const uint64_t launches = device_cuda_counts(rig->device[CUDA]).graph_launches;
    count_device(rig->device[CUDA]);
    for (size_t i = 0; i < 2 * steps; i++) {
        const size_t count = i < steps ? 3 : 1;
        if (i == steps + 2 && !has_states) sequence_truncate(sequences[0], lengths[0] - 20);
        *kernels = device_cuda_counts(rig->device[CUDA]).launches;
        const uint64_t graphs = engine_step_graph_counts(engine).launches, waited = counted.waits;
        assert_ok(engine_step(engine, sequences, rig->tokens + 100 + i, count, &logits, &rig->error), rig->error);
        if (engine_step_graph_counts(engine).launches > graphs) /* for the logits alone, states or none */
            assert_int_equal(counted.waits - waited, 1);
        memcpy(all + i * 3 * rig->width, logits, count * rig->width * sizeof *logits);
        *kernels = device_cuda_counts(rig->device[CUDA]).launches - *kernels;
    }
    count_no_more(rig->device[CUDA]);
    const struct step_graph_counts counts = engine_step_graph_counts(engine);
    const size_t moved = plan->rows_in_host; /* what is cut has other slots */
    assert_int_equal(counts.captures - before.captures, observed ? 0 : 2 * ways + moved);
    const uint64_t replays = observed ? 0 : 2 * (steps - ways) - moved, found = counts.launches - before.launches;
    assert_in_range(found, replays - (has_states && !observed ? 2 : 0), replays); /* the first may read a slot apart */
    assert_int_equal(device_cuda_counts(rig->device[CUDA]).graph_launches - launches,
                     counts.launches - before.launches);
    for (size_t i = 0; i < 3; i++) sequence_destroy(sequences[i]);
    engine_destroy(engine);
    return all;
}

#define REUSED CODES ",age=5,reused=0,power=0,eta=0.3"

/* A step that chooses, where all KV is on the card, and in RAM behind slots.  nodes: of a step of one row. */
static void choosing_graphs_check(const char *family, const char *preset, const char *settings, uint64_t nodes,
                                  bool in_ram) {
    struct rig rig;
    struct tiny_model tiny = tiny_model_default(family);
    uint64_t kernels, kernels_apart;
    tiny.type = tiny.taps == 0 ? TENSOR_Q8_0 : TENSOR_F16; /* rows of states are no whole blocks */
    tiny.head_dimension = 32;
    rig_open(&rig, &tiny, test_seed(53) + in_ram);
    struct plan plan = plan_with(&rig, preset, settings, "64", KV_F16);
    if (in_ram) plan.rows_in_host = true, plan.unit_bytes = 300 << 10;
    float *found = graph_steps(&rig, &plan, false, &kernels),
          *expected = graph_steps(&rig, &plan, true, &kernels_apart);
    assert_int_equal(kernels, nodes);
    assert_true(kernels_apart > kernels);
    assert_memory_equal(found, expected, 2 * GRAPH_STEPS_MAX * 3 * rig.width * sizeof *found);
    free(found), free(expected);
    plan_deinit(&plan);
    rig_close(&rig);
}

static void graphs_that_choose_give_the_bits_of_their_operations(void **state) {
    (void)state;
    static const char codes[] = CODES;
    /* 7 of each of two layers and 3 beside; codes of keys; queries, scores and choice; fetching.  Pages; scores and
     * choice.  And the verdict.  Of qwen35 two of five layers choose. */
    if (test_takes_next()) choosing_graphs_check("qwen3", "hata", codes, 2 * (7 + 4) + 3, false);
    if (test_takes_next()) choosing_graphs_check("qwen3", "hata", codes, 2 * (7 + 4 + 1) + 3, true);
    if (test_takes_next())
        choosing_graphs_check("qwen3", "meanstd", "page=16,sinks=16,recent=16,dense=0", 2 * (7 + 3 + 1) + 3, true);
    if (test_takes_next()) choosing_graphs_check("qwen35", "leoam", "leaf=16,sinks=16,recent=16", 64 + 2 * 3, false);
    if (test_takes_next()) choosing_graphs_check("qwen3", "clo", REUSED, 2 * (7 + 5 + 1) + 3, true);
}

static void graphs_give_the_bits_of_their_operations(void **state) {
    (void)state;
    static const struct family families[] = {{"llama", TENSOR_Q4_0, KV_F16, 40, 0},
                                             {"qwen2", TENSOR_Q8_0, KV_Q8, 0, 0},
                                             {"qwen3", TENSOR_Q4_K, KV_F16, 0, 0},
                                             {"llama", TENSOR_F16, KV_F16, 0, 0},
                                             {"opt", TENSOR_Q8_0, KV_F16, 0, 0},
                                             {"qwen3moe", TENSOR_Q4_0, KV_F16, 0, 0},
                                             {"gemma4", TENSOR_Q4_0, KV_F16, 40, 0},
                                             {"olmo2", TENSOR_Q4_0, KV_F16, 40, 0},
                                             {"lfm2", TENSOR_Q8_0, KV_F16, 0, 0},
                                             {"qwen35", TENSOR_F16, KV_F16, 0, 0}};
    /* Of a step of one row: of a layer, and beside.  7: norm with q, k, v; rotation with append; attention; its merge;
     * output; norm with gate and up; down.  Heads of 16 are quantised apart from
     * the merge; weights in halves take no inputs of 8 bits.  With experts 5 and 10: norm; inputs of 8 bits, router;
     * route; inputs, gate and up; activation; inputs, down and the sum of it.  With norms behind
     * 2 more, and 2 as GeGLU and the inputs behind it are nodes (gemma4: norms of values, experts, a dense part and
     * what tokens give a layer, in two layers that differ); without norms before, and with those of q's and k's
     * whole rows, nearly every operation is one; beside the layers the angles of windows. Layers of states
     * differ from others: all of them together. */
    static const uint64_t nodes[][2] = {{8, 3},  {7, 3},  {7, 3},  {10, 4}, {10, 2},
                                        {15, 3}, {0, 75}, {18, 4}, {0, 45}, {0, 64}};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        struct rig rig;
        struct tiny_model tiny = tiny_model_default(families[i].name);
        if (!test_takes_next()) continue;
        tiny.type = families[i].type;
        if (families[i].kv == KV_Q8) tiny.head_dimension = 32;
        if (tiny.type == TENSOR_Q4_K) {
            tiny.layer_count = 1; /* of 16 times the weights */
            tiny.hidden_size = tiny.ffn_size = 256;
            tiny.head_dimension = 256 / tiny.head_count;
        }
        tiny.window = families[i].window;
        tiny.window_period = families[i].window > 0 ? 2 : 0;
        rig_open(&rig, &tiny, test_seed(47) + i);
        struct plan plan = plan_of(&rig, "full", families[i].kv);
        uint64_t kernels, kernels_apart;
        float *found = graph_steps(&rig, &plan, false, &kernels),
              *expected = graph_steps(&rig, &plan, true, &kernels_apart);
        assert_int_equal(kernels, nodes[i][0] * tiny.layer_count + nodes[i][1]);
        assert_true(kernels_apart > kernels);
        assert_memory_equal(found, expected, 2 * GRAPH_STEPS_MAX * 3 * rig.width * sizeof *found);
        free(found), free(expected);
        plan_deinit(&plan);
        rig_close(&rig);
    }
}

/* ---- KV on disk ---- */

enum { WORKSPACE = 48 << 10 }; /* beyond the least: for several chunks of all heads at once */

/* Chunks that are not there are computed again from their inputs (kvpr): two of a layer; all; none. */
static void rebuild_check(struct rig *rig, struct engine *engine, size_t run) {
    const struct rebuild_statistics rebuilt = attention_rebuild_statistics(engine_attention(engine));
    const struct model_config *config = &rig->model[CUDA]->config;
    /* Halves and a power of two: what products of many rows are of. */
    const struct inputs_shape halves = {config->layer_count, config->hidden_size, INPUTS_F16};
    const uint64_t most[] = {0, 2 * rebuilt.layers, rebuilt.missing_chunks, 0}; /* a run of neighbours */
    assert_true(rebuilt.refusals == 0 && rebuilt.missing_chunks > 2 * rebuilt.layers && rebuilt.layers > 0);
    assert_true(rebuilt.chunks <= most[run] && (rebuilt.chunks > rebuilt.layers || run == 3));
    assert_true(rebuilt.input_bytes == (double)inputs_chunk_bytes(&halves) / KV_CHUNK_TOKENS);
}

/* Inputs are kept of the prompt alone: rows of steps went through other products. */
static void kept_check(struct rig *rig, const char *directory) {
    struct store *store;
    struct kept_inputs kept;
    assert_ok(store_open(&store, &(struct store_options){.directory = directory}, &rig->error), rig->error);
    assert_ok(kept_inputs_find(store, 1, &kept, &rig->error), rig->error);
    assert_int_equal(kept.held, DOCUMENT);
    store_close(store);
}

/* --kv-device beside KV on disk: what the key index of the context takes, and no byte less. */
static uint64_t device_bytes_of(struct rig *rig, struct plan *plan) {
    const struct model_config *config = &rig->model[CUDA]->config;
    struct kv_cache_config cache;
    struct engine *engine;
    assert_ok(plan_cache_config(plan, config, &cache, &rig->error), rig->error);
    const uint64_t bytes =
        config->layer_count * cache.kv_head_count * cache.key_index_bytes * kv_chunks_of(CONTEXT);
    plan->device_bytes = bytes - 1;
    assert_int_equal(engine_create(&engine, rig->model[CUDA], plan, NULL, &rig->error), STATUS_MEMORY);
    assert_non_null(strstr(rig->error.message, "the key index of 512 tokens needs"));
    return bytes;
}

/* The first token behind an opened document: each head's blocks of the key index came by one copy, and lists and places
 * of chunks by a copy for two launches, in however many groups these come.  K and V are not copied: the card reads what
 * is listed where it lies in RAM, and of a page RAM has the parts that are listed. */
static void opening_check(const struct rig *rig, const struct plan *plan, const struct engine *engine,
                          const struct cuda_counts *before) {
    enum { TOLD = 1024, PAGE = 8192 };
    const struct model_config *config = &rig->model[CUDA]->config;
    const struct cuda_counts after = device_cuda_counts(rig->device[CUDA]);
    const uint64_t lanes = config->layer_count * config->kv_head_count, chunks = DOCUMENT / KV_CHUNK_TOKENS,
                   index = plan->device_bytes / kv_chunks_of(CONTEXT) * chunks,
                   told = (after.launches - before->launches) / 2;
    assert_in_range(after.copies - before->copies, lanes, lanes + told);
    assert_in_range(after.copied_bytes - before->copied_bytes, index, index + told * TOLD);
    assert_in_range(engine_tier_statistics(engine).read_bytes, 1, lanes * (chunks + 1) * PAGE - 1);
}

struct documented {
    const char *family, *preset, *settings, *keep;
};

/* Chunks come from the disk into slots that are pinned memory, few enough that they are used again; a second engine
 * opens what the first has saved. */
static void documents_check(const struct documented *of, uint64_t seed) {
    struct rig rig;
    struct scratch scratch;
    struct tiny_model tiny = tiny_model_default(of->family);
    const char *const preset = of->preset, *const keep = of->keep;
    const bool differs = tiny.window > 0; /* some layers from others */
    const size_t length = differs ? 140 : DOCUMENT;
    if (!differs) tiny.layer_count = 4;
    tiny.head_dimension = 32;
    tiny.expert_used = tiny.expert_count;
    if (strcmp(of->family, "gemma4") == 0) widen_heads(&tiny, 64);
    static const size_t forced[] = {0, 2, SIZE_MAX, REBUILD_NOTHING};
    const bool rebuilds = strcmp(preset, "kvpr") == 0;
    const size_t run_count = rebuilds ? 4 : 3;
    float *last[4] = {NULL, NULL, NULL, NULL};
    scratch_create(&scratch, SCRATCH_MEMORY);
    rig_open(&rig, &tiny, seed);
    for (size_t run = 0; run < run_count; run++) { /* in device memory; on disk; opened again */
        struct plan plan = plan_with(&rig, preset, of->settings, keep, KV_F16);
        const float *logits;
        plan.sequence_capacity = 1;
        plan.rebuilds = rebuilds && run > 0;
        if (run > 0) {
            assert_ok(plan_set_disk(&plan, scratch.path, strlen(scratch.path), 0, &rig.error), rig.error);
            assert_ok(plan_host_bytes_min(&plan, &rig.model[CUDA]->config, &plan.host_bytes, &rig.error), rig.error);
            if (rebuilds) plan.host_bytes += WORKSPACE;
            if (keep != NULL && !differs) plan.device_bytes = device_bytes_of(&rig, &plan);
        }
        struct engine *engine = engine_open(&rig, CUDA, &plan);
        if (plan.rebuilds) attention_force_rebuild(engine_attention(engine), forced[run]);
        const struct cuda_counts before = device_cuda_counts(rig.device[CUDA]);
        struct sequence *sequence = sequence_read(&rig, engine, 0, length, &logits);
        assert_int_equal(sequence_reused_tokens(sequence) > 0, run >= 2);
        if (run == 2 && plan.device_bytes > 0) opening_check(&rig, &plan, engine, &before);
        for (size_t i = 0; i < STEPS; i++)
            assert_ok(engine_step(engine, &sequence, &rig.tokens[length + i], 1, &logits, &rig.error), rig.error);
        if (run > differs) assert_true(engine_tier_statistics(engine).read_pages > 0);
        if (plan.rebuilds) rebuild_check(&rig, engine, run);
        if (keep != NULL) { /* lists: by the host, where it fetches what they name */
            const struct select_statistics chosen = attention_statistics(engine_attention(engine));
            assert_true(chosen.evaluated > 0 && chosen.kept < chosen.visible);
            assert_int_equal(chosen.lists_read > 0, run > 0);
            const struct kv_tier_statistics tier = engine_tier_statistics(engine);
            /* Chunks that the next layer's expected queries choose are read before it does. */
            if (run > 0 && !differs) assert_in_range(tier.prefetch_hits, 1, tier.prefetched);
            if (plan.device_bytes > 0) assert_in_range(engine_kv_device_bytes(engine), 1, plan.device_bytes);
        }
        last[run] = rows_create(1, rig.width);
        memcpy(last[run], logits, rig.width * sizeof *logits);
        if (run == 1) assert_ok(sequence_save(sequence, &rig.error), rig.error);
        assert_ok(sequence_flush(sequence, &rig.error), rig.error);
        sequence_destroy(sequence);
        engine_destroy(engine);
        if (plan.rebuilds) kept_check(&rig, scratch.path);
        plan_deinit(&plan);
    }
    assert_memory_equal(last[1], last[0], rig.width * sizeof(float)); /* the same chunks, elsewhere */
    logits_check(last[2], last[0], rig.width, 0.01, "opened again", length + STEPS - 1);
    if (rebuilds) assert_memory_equal(last[2], last[3], rig.width * sizeof(float));
    for (size_t i = 0; i < run_count; i++) free(last[i]);
    rig_close(&rig);
    scratch_destroy(&scratch);
}

static void documents_match(void **state) {
    (void)state;
    static const char chooses[] = CHOOSES ",speculate=next-layer";
    static const struct documented cases[] = {{"llama", "kvpr", NULL, NULL}, /* full, but for that */
                                              {"llama", "hata", chooses, "160"},
                                              {"gemma3", "hata", chooses, "100"}, /* a window in every other layer */
                                              {"gpt-oss", "full", NULL, NULL},    /* and sinks */
                                              {"gemma4", "full", NULL, NULL}};    /* K and V of two shapes */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (test_takes_next()) documents_check(&cases[i], test_seed(9) + i);
}

/* Chunks that were written in 4 bits are attended to as they lie. */
static void pages_in_4_bits_check(const char *preset, const char *settings, const char *keep, uint64_t seed) {
    struct rig rig;
    struct tiny_model tiny = tiny_model_default("llama");
    float *last[BOTH];
    tiny.layer_count = 4;
    tiny.head_dimension = 32;
    rig_open(&rig, &tiny, seed);
    for (size_t on = 0; on < BOTH; on++) {
        struct scratch scratch;
        const float *logits;
        struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1, .batch_size = BLOCK};
        scratch_create(&scratch, SCRATCH_MEMORY);
        assert_ok(plan_set_disk(&plan, scratch.path, strlen(scratch.path), 0, &rig.error), rig.error);
        assert_ok(plan_set_axes(&plan, preset, settings, keep, &rig.error), rig.error);
        assert_ok(plan_host_bytes_min(&plan, &rig.model[on]->config, &plan.host_bytes, &rig.error), rig.error);
        struct engine *engine = engine_open(&rig, on, &plan);
        struct sequence *sequence = sequence_read(&rig, engine, 0, DOCUMENT, NULL);
        for (size_t i = 0; i < 2; i++)
            assert_ok(engine_step(engine, &sequence, &rig.tokens[DOCUMENT + i], 1, &logits, &rig.error), rig.error);
        const struct select_statistics chosen = attention_statistics(engine_attention(engine));
        assert_true(plan.quantized_pages && engine_tier_statistics(engine).read_pages > 0);
        assert_true(chosen.evaluated > 0 && chosen.kept < chosen.visible);
        last[on] = rows_create(1, rig.width);
        memcpy(last[on], logits, rig.width * sizeof *logits);
        sequence_destroy(sequence);
        engine_destroy(engine);
        plan_deinit(&plan);
        scratch_destroy(&scratch);
    }
    logits_check(last[CUDA], last[CPU], rig.width, 0.1, preset, DOCUMENT + 1);
    free(last[CPU]), free(last[CUDA]);
    rig_close(&rig);
}

static void pages_in_4_bits_match(void **state) {
    (void)state;
    if (test_takes_next()) pages_in_4_bits_check("hata", CHOOSES ",codec=q4", "160", test_seed(19));
    if (test_takes_next()) pages_in_4_bits_check("leoam", "units_min=1,sinks=64,recent=64", "256", test_seed(20));
}

/* ---- a model that says something ---- */

static size_t greedy(const float *logits, size_t width) {
    size_t best = 0;
    for (size_t i = 1; i < width; i++) best = logits[i] > logits[best] ? i : best;
    return best;
}

/* The bundled model reads a text and goes on by itself: the same tokens. */
static void nano_says_the_same(void **state) {
    (void)state;
    enum { TEXT = 44, ANSWER = 8 };
    struct rig rig = {.width = 0};
    int32_t tokens[BOTH][ANSWER];
    char path[400];
    snprintf(path, sizeof path, "%s/models/loam-nano.gguf", card_source());
    devices_open(&rig, test_seed(3));
    for (size_t on = 0; on < BOTH; on++) {
        const float *logits;
        assert_ok(model_load(&rig.model[on], path, rig.device[on], &rig.error), rig.error);
        struct plan plan = plan_of(&rig, "full", KV_F16);
        const size_t width = rig.model[on]->config.vocabulary_size;
        for (size_t i = 0; i < TEXT; i++) rig.tokens[i] = (int32_t)((i % 20 * 37 + 11) % width);
        struct engine *engine = engine_open(&rig, on, &plan);
        struct sequence *sequence = sequence_read(&rig, engine, 0, TEXT, &logits);
        for (size_t i = 0; i < ANSWER; i++) {
            tokens[on][i] = (int32_t)greedy(logits, width);
            assert_ok(engine_step(engine, &sequence, &tokens[on][i], 1, &logits, &rig.error), rig.error);
        }
        sequence_destroy(sequence);
        engine_destroy(engine);
        plan_deinit(&plan);
    }
    assert_memory_equal(tokens[CUDA], tokens[CPU], sizeof tokens[CPU]);
    rig_close(&rig);
}

/* ---- what chooses ---- */

/* What was chosen for a row of a layer. */
struct chosen {
    size_t kv_head_count;
    bool takes[LAYERS_MAX][KV_HEADS_MAX][CONTEXT];
    size_t count; /* of all */
};

static void keep_chosen(void *context, const struct select_event *event) {
    struct chosen *chosen = context;
    for (size_t head = 0; head < chosen->kv_head_count; head++)
        for (size_t i = 0; i < event->lists[head].count; i++) {
            chosen->takes[event->layer_index][head][event->lists[head].rows[i]] = true;
            chosen->count++;
        }
}

/* Both devices choose from the same prompt: as many tokens, nearly the same ones, and near logits, in steps alone and
 * of sequences together. */
static void choices_match(void **state) {
    (void)state;
    static const char *const presets[][3] = {{"hata", CHOOSES, "llama"},
                                             {"hata", "planes=4,page=8,sinks=8,recent=64,dense=0", "qwen35"},
                                             {"meanstd", CHOOSES_PAGES, "llama"},
                                             {"leoam", CHOOSES_LEAVES, "gemma4"},
                                             {"clo", REUSES("-1"), "llama"}}; /* each list is taken once more */
    for (size_t n = 0; n < sizeof presets / sizeof presets[0]; n++) {
        struct rig rig;
        struct tiny_model tiny = tiny_model_default(presets[n][2]);
        static struct chosen chosen[BOTH];
        float *logits_of[BOTH];
        if (!test_takes_next()) continue;
        tiny.head_dimension = 32;
        if (n == 3) widen_heads(&tiny, 512), tiny.expert_used = tiny.expert_count;
        rig_open(&rig, &tiny, test_seed(71) + n);
        struct plan plan = plan_with(&rig, presets[n][0], presets[n][1], "160", KV_F16);
        for (size_t on = 0; on < BOTH; on++) {
            struct engine *engine = engine_open(&rig, on, &plan);
            struct sequence *sequences[2];
            const float *logits;
            for (size_t i = 0; i < 2; i++) sequences[i] = sequence_read(&rig, engine, i, DOCUMENT - 60 * i, NULL);
            chosen[on] = (struct chosen){.kv_head_count = tiny.kv_head_count};
            attention_set_observer(engine_attention(engine), keep_chosen, &chosen[on]);
            assert_ok(engine_step(engine, sequences, &rig.tokens[DOCUMENT], 1, &logits, &rig.error), rig.error);
            attention_set_observer(engine_attention(engine), NULL, NULL);
            logits_of[on] = rows_create(3, rig.width);
            memcpy(logits_of[on], logits, rig.width * sizeof *logits);
            assert_ok(engine_step(engine, sequences, &rig.tokens[DOCUMENT + 1], 2, &logits, &rig.error), rig.error);
            memcpy(logits_of[on] + rig.width, logits, 2 * rig.width * sizeof *logits);
            const struct reuse_counts reuse = attention_statistics(engine_attention(engine)).reuse;
            assert_int_equal(reuse.hits, n == 4 ? tiny.layer_count * tiny.kv_head_count : 0);
            for (size_t i = 0; i < 2; i++) sequence_destroy(sequences[i]);
            engine_destroy(engine);
        }
        size_t same = 0;
        for (size_t i = 0; i < sizeof chosen[CPU].takes; i++)
            same += ((const bool *)chosen[CPU].takes)[i] && ((const bool *)chosen[CUDA].takes)[i];
        assert_true(chosen[CPU].count > 0 && chosen[CPU].count < 200 * tiny.layer_count * tiny.kv_head_count);
        assert_int_equal(chosen[CUDA].count, chosen[CPU].count);
        assert_true((double)same >= 0.95 * (double)chosen[CPU].count); /* near-ties of products in halves */
        for (size_t i = 0; i < 3; i++)
            logits_check(logits_of[CUDA] + i * rig.width, logits_of[CPU] + i * rig.width, rig.width, 0.1,
                         presets[n][1], i);
        free(logits_of[CPU]), free(logits_of[CUDA]);
        plan_deinit(&plan);
        rig_close(&rig);
    }
}

/* A sequence of the engine's that attends to its window alone: whole units of it. */
static void windows_are_whole_units(void **state) {
    (void)state;
    struct rig rig;
    struct tiny_model tiny = tiny_model_default("llama");
    const float *logits;
    if (!test_takes_next()) return;
    tiny.head_dimension = 32;
    rig_open(&rig, &tiny, test_seed(97));
    struct plan plan = plan_with(&rig, "hata", CHOOSES, "160", KV_F16);
    struct engine *engine = engine_open(&rig, CUDA, &plan);
    struct sequence *sequence = sequence_read(&rig, engine, 0, DOCUMENT, NULL);
    assert_ok(sequence_set_select(sequence, &select_window, (struct select_keep){.tokens = 100}, &rig.error),
              rig.error);
    for (size_t i = 0; i < STEPS; i++)
        assert_ok(engine_step(engine, &sequence, &rig.tokens[i], 1, &logits, &rig.error), rig.error);
    const struct select_statistics chosen = attention_statistics(engine_attention(engine));
    assert_true(chosen.kept < chosen.visible && chosen.evaluated == 0);
    sequence_destroy(sequence);
    engine_destroy(engine);
    plan_deinit(&plan);
    rig_close(&rig);
}

/* ---- K and V in RAM ---- */

enum { FETCH_STEPS = 12 };

/* Two sequences read and go on, together and alone; one is cut back and goes on with other tokens.  The last logits of
 * each step. */
struct fetched {
    struct fetch_counts units;
    struct reuse_counts reuse;
    struct rebuild_statistics rebuilt;
    uint64_t kernels; /* of the third step, a graph that was captured before */
    uint64_t bytes;   /* of the card's memory, at any time */
};
static float *fetched_steps(struct rig *rig, const struct plan *plan, size_t rebuilt_chunks, struct fetched *counts) {
    static const uint8_t who[FETCH_STEPS] = {0, 0, 0, 2, 1, 1, 0, 2, 2, 0, 1, 2}; /* 2: both */
    struct sequence *sequences[2];
    const float *logits;
    float *all = rows_create((size_t)2 * FETCH_STEPS, rig->width);
    struct device *device = rig->device[CUDA];
    count_device(device);
    struct engine *engine = engine_open(rig, CUDA, plan);
    attention_force_rebuild(engine_attention(engine), rebuilt_chunks);
    for (size_t i = 0; i < 2; i++) sequences[i] = sequence_read(rig, engine, i, DOCUMENT - 60 * i, NULL);
    for (size_t i = 0; i < FETCH_STEPS; i++) {
        const size_t first = who[i] == 1, count = who[i] == 2 ? 2 : 1;
        const uint64_t kernels = device_cuda_counts(rig->device[CUDA]).launches;
        if (i == FETCH_STEPS / 2) sequence_truncate(sequences[0], 200);
        assert_ok(engine_step(engine, sequences + first, &rig->tokens[i * 7], count, &logits, &rig->error),
                  rig->error);
        memcpy(all + i * 2 * rig->width, logits, count * rig->width * sizeof *logits);
        if (i == 2) counts->kernels = device_cuda_counts(rig->device[CUDA]).launches - kernels;
    }
    assert_ok(engine_fetch_counts(engine, &counts->units, &rig->error), rig->error);
    counts->reuse = attention_statistics(engine_attention(engine)).reuse;
    counts->rebuilt = attention_rebuild_statistics(engine_attention(engine));
    if (plan->rows_in_host && plan->select.method == NULL) /* no key index */
        assert_int_equal(engine_kv_device_bytes(engine) * rig->model[CUDA]->config.layer_count,
                         engine_kv_used_bytes(engine) * plan->near_layers);
    for (size_t i = 0; i < 2; i++) sequence_destroy(sequences[i]);
    engine_destroy(engine);
    count_no_more(device);
    assert_int_equal(counted.now, 0);
    counts->bytes = counted.most;
    return all;
}

/* Of the two layers behind the first one, in steps of a sequence alone whose prompt is as it was: a first part of K and
 * V is computed again, beside attention to the rest. */
static void rebuilt_check(const struct fetched *read, const struct fetched *counts, size_t chunks) {
    enum { ALONE = 3 + 3, CHUNKS = 3 * 5 + 3 * 4, EACH = 6 }; /* EACH: a tile; halves, angles, 2, rotation, append */
    const struct rebuild_statistics *rebuilt = &counts->rebuilt;
    assert_true(rebuilt->input_bytes == 64 * 2 + 4 && rebuilt->kv_bytes == 2 * 32 * 2 * 2);
    assert_int_equal(rebuilt->layers, 2 * ALONE);
    assert_int_equal(rebuilt->missing_chunks, 2 * CHUNKS);
    if (chunks == 0) { /* three steps are timed */
        assert_true(rebuilt->chunks >= 2 * 3 * 4 && rebuilt->bytes_per_second > 0);
        return;
    }
    assert_int_equal(rebuilt->chunks, 2 * (3 * chunks + 3 * 4));
    /* Attention in two parts, whose outputs are no inputs of 8 bits yet. */
    assert_int_equal(counts->kernels, read->kernels + 2 * (2 * EACH + 2));
}

/* Slots change no bit, however few they are, nor do rows of the first layer on the device, nor rows that are computed
 * again. */
static void units_are_fetched_from_ram(void **state) {
    (void)state;
    static const struct {
        const char *preset[3];
        struct {
            size_t unit_bytes, near_layers; /* unit_bytes 0: no such plan */
            size_t rebuilt;                 /* of kvpr: chunks; 0: as it is timed */
        } plans[2];
    } cases[] = {{{"hata", CHOOSES, "160"}, {{4 << 20, 0, 0}, {280 << 10, 0, 0}}}, /* many slots; few */
                 {{"full", NULL, NULL}, {{280 << 10, 0, 0}}},                   /* nobody chooses; all attend to all */
                 {{"kvpr", NULL, NULL}, {{280 << 10, 1, 5}, {280 << 10, 0, 0}}},
                 {{"hata", CHOOSES_BEHIND_ONE, "160"}, {{280 << 10, 1, 0}}}, /* the first layer attends to all */
                 {{"clo", REUSES("0.2"), "160"}, {{280 << 10, 0, 0}}}};      /* lists that are taken once more */
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        struct rig rig;
        struct tiny_model tiny = tiny_model_default("llama");
        struct fetched none, counts;
        if (!test_takes_next()) continue;
        tiny.head_dimension = 32;
        if (n == 2) tiny.layer_count = 3, tiny.type = TENSOR_Q8_0;
        rig_open(&rig, &tiny, test_seed(83) + n);
        const char *const *preset = cases[n].preset;
        const bool rebuilds = strcmp(preset[0], "kvpr") == 0;
        struct plan plan = plan_with(&rig, preset[0], preset[1], preset[2], KV_F16);
        plan.rebuilds = rebuilds;
        float *expected = fetched_steps(&rig, &plan, 0, &none);
        assert_true(none.units.hits + none.units.misses + none.units.direct + none.rebuilt.layers == 0);
        plan.rows_in_host = true;
        for (size_t i = 0; i < 2 && cases[n].plans[i].unit_bytes > 0; i++) {
            const bool is_few = cases[n].plans[i].unit_bytes < 4 << 20, chooses = preset[1] != NULL;
            plan.unit_bytes = cases[n].plans[i].unit_bytes;
            plan.near_layers = cases[n].plans[i].near_layers;
            float *found = fetched_steps(&rig, &plan, cases[n].plans[i].rebuilt, &counts);
            const struct fetch_counts units = counts.units;
            assert_memory_equal(found, expected, 2 * FETCH_STEPS * rig.width * sizeof *found);
            assert_int_equal(units.absent, 0);
            assert_int_equal(counts.reuse.hits, none.reuse.hits);
            assert_int_equal(counts.reuse.hits > 0 && counts.reuse.misses > 0, strcmp(preset[0], "clo") == 0);
            assert_int_equal(units.hits > 0 && units.misses > 0 && units.direct > 0, chooses);
            if (!is_few) assert_true(units.hits > units.misses);
            if (n == 0 && is_few) assert_true(units.misses > units.hits / 4); /* slots are too few */
            /* Slots or a workspace in place of the rows of far layers, at every instant. */
            const uint64_t far = tiny.layer_count - plan.near_layers, rows = far * 3 * CONTEXT * 2 * 32 * 2 * 2;
            assert_in_range(counts.bytes + rows, none.bytes + (chooses || rebuilds), none.bytes + plan.unit_bytes);
            if (rebuilds) rebuilt_check(&none, &counts, cases[n].plans[i].rebuilt);
            free(found);
        }
        free(expected);
        plan_deinit(&plan);
        rig_close(&rig);
    }
}

/* ---- what it cannot do ---- */

static void check_refused(struct rig *rig, const struct plan *plan, const char *message) {
    struct engine *engine;
    const enum status status = engine_create(&engine, rig->model[CUDA], plan, NULL, &rig->error);
    assert_string_equal(rig->error.message, message);
    assert_int_equal(status, STATUS_UNSUPPORTED);
}

static void what_it_cannot_choose_by_is_refused(void **state) {
    (void)state;
    static const char *const settings[][3] = {{"quest", NULL, "quest"},
                                              {"hata", "planes=1", "hash"}, /* single tokens */
                                              {"hata", "planes=1,page=8,receipt=1", "hash"},
                                              {"clo", "planes=1,reused=0", "hash"}};
    struct rig rig;
    struct tiny_model tiny = tiny_model_default("llama");
    char message[120];
    tiny.head_dimension = 32;
    rig_open(&rig, &tiny, 1);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        struct plan plan = plan_with(&rig, settings[i][0], settings[i][1], NULL, KV_F16);
        snprintf(message, sizeof message, "select=%s: the cuda device cannot choose so: try --preset full",
                 settings[i][2]);
        check_refused(&rig, &plan, message);
        plan_deinit(&plan);
    }
    rig_free(&rig);
    tiny = tiny_model_default("gemma4");
    widen_heads(&tiny, 64);
    rig_open(&rig, &tiny, 1);
    for (int on_disk = 0; on_disk < 2; on_disk++) {
        struct plan plan = plan_with(&rig, "hata", CODES, NULL, KV_F16);
        plan.rows_in_host = !on_disk;
        plan.host_bytes = 1 << 20;
        if (on_disk) assert_ok(plan_set_disk(&plan, "none", 4, 0, &rig.error), rig.error);
        check_refused(&rig, &plan,
                      "select=hash: the cuda device chooses from K and V of 2 shapes where it holds all of them: "
                      "try a shorter context, or --preset full");
        plan_deinit(&plan);
    }
    rig_free(&rig);
}

/* At load, before anything is on the card, which works on. */
static void wide_heads_are_refused(void **state) {
    (void)state;
    struct rig rig = {.width = 0};
    struct tiny_model tiny = tiny_model_default("llama");
    struct model *model;
    char path[64], message[200];
    devices_open(&rig, 1);
    for (size_t n = 0; n < 2; n++) {
        tiny.head_dimension = n == 0 ? 520 : 512;
        tiny_model_write(&tiny, tiny_model_path("cuda-wide", path, sizeof path));
        const enum status status = model_load(&model, path, rig.device[CUDA], &rig.error);
        unlink(path);
        assert_int_equal(status, n == 0 ? STATUS_UNSUPPORTED : STATUS_OK);
        if (n == 1) model_destroy(model);
        if (n == 1) continue;
        snprintf(message, sizeof message,
                 "%s: layer 0 has heads of 520 elements, the cuda device takes at most 512: try --device cpu", path);
        assert_string_equal(rig.error.message, message);
    }
    for (size_t on = 0; on < BOTH; on++) device_destroy(rig.device[on]);
}

int main(void) {
    if (cuda_image_count == 0) {
        printf("skipped: %s\n", cuda_images_missing);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_match),
        cmocka_unit_test(weights_may_stay_in_ram),
        cmocka_unit_test(batches_give_the_same_bits),
        cmocka_unit_test(prompts_may_be_cut),
        cmocka_unit_test(rows_ahead_choose),
        cmocka_unit_test(graphs_give_the_bits_of_their_operations),
        cmocka_unit_test(graphs_that_choose_give_the_bits_of_their_operations),
        cmocka_unit_test(documents_match),
        cmocka_unit_test(pages_in_4_bits_match),
        cmocka_unit_test(nano_says_the_same),
        cmocka_unit_test(choices_match),
        cmocka_unit_test(windows_are_whole_units),
        cmocka_unit_test(units_are_fetched_from_ram),
        cmocka_unit_test(what_it_cannot_choose_by_is_refused),
        cmocka_unit_test(wide_heads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The engine on the cuda device, against the cpu device (cuda_rig.h): prompts by blocks, steps and batches of every
 * family. */
#include <unistd.h>

#include "cuda_rig.h"

#define CHOOSES_PAGES  "page=16,sinks=16,recent=40,dense=0"
#define CHOOSES_LEAVES "leaf=16,sinks=16,recent=40"
enum { LAYERS_MAX = 5, KV_HEADS_MAX = 4 };

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
    const struct model_load_options one = {.device_layers = 1};
    assert_ok(model_load_with(&rig.model[CUDA], path, rig.device[CUDA], &one, &rig.error), rig.error);
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

/* Three sequences together, then one alone, in the last step another one; observed: operation by operation.
 * [2 * GRAPH_STEPS_MAX][3][width]; kernels: of the last step. */
static float *graph_steps(struct rig *rig, const struct plan *plan, bool observed, uint64_t *kernels) {
    const bool chooses = plan->select.method != &select_all;
    const bool has_states = rig->model[CUDA]->config.state.layer_count > 0;
    const size_t ways = has_states ? 2 : 1, steps = has_states ? GRAPH_STEPS_MAX : GRAPH_STEPS;
    /* One beyond a window of 40; a few rows go by the products of steps, which cost the executor least.  Of three that
     * choose the last one does from the third step on, beyond its 64 tokens. */
    const size_t lengths[3] = {chooses ? 126 : has_states ? 4 : 60, chooses ? 80 : 1, chooses ? 62 : 6};
    struct engine *engine = engine_open(rig, CUDA, plan);
    struct sequence *sequences[3];
    const float *logits;
    float *all = rows_create((size_t)2 * GRAPH_STEPS_MAX * 3, rig->width);
    for (size_t i = 0; i < 3; i++) sequences[i] = sequence_read(rig, engine, i, lengths[i], NULL);
    if (observed) engine_set_attention_observer(engine, nothing, NULL);
    const struct step_graph_counts before = engine_step_graph_counts(engine);
    const struct cuda_counts on_card = device_cuda_counts(rig->device[CUDA]);
    count_device(rig->device[CUDA]);
    for (size_t i = 0; i < 2 * steps; i++) {
        const size_t count = i < steps ? 3 : 1;
        struct sequence *const *of = i + 1 < 2 * steps ? sequences : sequences + 1;
        if (i == steps + 2 && !has_states) sequence_truncate(sequences[0], lengths[0] - 20);
        *kernels = device_cuda_counts(rig->device[CUDA]).launches;
        const uint64_t graphs = engine_step_graph_counts(engine).launches, waited = counted.waits;
        assert_ok(engine_step(engine, of, rig->tokens + 100 + i, count, &logits, &rig->error), rig->error);
        if (engine_step_graph_counts(engine).launches > graphs) /* for the logits alone, states or none */
            assert_int_equal(counted.waits - waited, 1);
        memcpy(all + i * 3 * rig->width, logits, count * rig->width * sizeof *logits);
        *kernels = device_cuda_counts(rig->device[CUDA]).launches - *kernels;
    }
    count_no_more(rig->device[CUDA]);
    const struct step_graph_counts counts = engine_step_graph_counts(engine);
    const struct cuda_counts now = device_cuda_counts(rig->device[CUDA]);
    /* What is cut has other slots.  Blocks that score are for at most twice the tokens: 128, 256, 128 again; of two
     * ways neither has a graph before. */
    const size_t moved = 1 + (!chooses ? plan->rows_in_host : has_states ? 0U : 2U);
    assert_int_equal(counts.captures - before.captures, observed ? 0 : 2 * ways);
    assert_int_equal(counts.changes - before.changes, observed ? 0 : moved);
    const uint64_t replays = observed ? 0 : 2 * (steps - ways), found = counts.launches - before.launches;
    assert_in_range(found, replays - (has_states && !observed ? 2 : 0), replays); /* the first may read a slot apart */
    assert_int_equal(now.graphs - on_card.graphs, counts.captures - before.captures);
    assert_int_equal(now.graph_changes - on_card.graph_changes, counts.changes - before.changes);
    assert_int_equal(now.graph_launches - on_card.graph_launches, counts.launches - before.launches);
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

/* Whether the lists of a row look, by the definition of what is picked of 80: beside 8 sinks and the window, which
 * begins at the last whole chunk that is 16 tokens behind, or 16 tokens back where that is within a chunk. */
static bool list_looks(uint64_t visible) {
    const uint64_t whole = visible / 64 * 64, recent = (visible - 16) / 8 * 8, end = whole < recent ? whole : recent,
                   window = visible - (end - 8), picks = window < 80 ? (80 - window) / 8 * 8 : 0;
    return picks > 0 && end - 8 > 64 * picks;
}

/* Steps of which a list comes to look, and then does not: only the graph of those that look has nodes of chunks. */
static void graphs_look_where_a_list_does(void **state) {
    (void)state;
    enum { FIRST = 631, LAST = 640 /* its chunk is there */, COUNT = LAST + 1 - FIRST, BEHIND = 7 + 4 + 3, CHUNKS = 2 };
    struct rig rig;
    struct tiny_model tiny = tiny_model_default("qwen3");
    int32_t tokens[LAST];
    if (!test_takes_next()) return;
    tiny.type = TENSOR_Q8_0, tiny.head_dimension = 32, tiny.layer_count = 1;
    rig_open(&rig, &tiny, test_seed(59));
    for (size_t i = 0; i < LAST; i++) tokens[i] = rig.tokens[i * 7 % CONTEXT];
    struct plan plan = plan_with(&rig, "hata", CODES, "80", KV_F16);
    plan.context_size = 1024;
    struct engine *engine = engine_open(&rig, CUDA, &plan);
    struct sequence *sequence;
    const float *logits;
    const struct prefill_request request = {.tokens = tokens, .token_count = FIRST - 1};
    assert_ok(sequence_create(&sequence, engine, &rig.error), rig.error);
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig.error), rig.error);
    float *found = rows_create((size_t)2 * COUNT, rig.width), *expected = found + COUNT * rig.width;
    size_t looking = 0, replays[2] = {0, 0};
    for (size_t i = 0; i < COUNT; i++) {
        const bool looks = list_looks(FIRST + i);
        const struct step_graph_counts before = engine_step_graph_counts(engine);
        const uint64_t kernels = device_cuda_counts(rig.device[CUDA]).launches;
        assert_ok(engine_step(engine, &sequence, &tokens[FIRST - 1 + i], 1, &logits, &rig.error), rig.error);
        memcpy(found + i * rig.width, logits, rig.width * sizeof *logits);
        looking += looks;
        if (engine_step_graph_counts(engine).launches == before.launches) continue; /* the first of its kind */
        assert_int_equal(device_cuda_counts(rig.device[CUDA]).launches - kernels, BEHIND + (looks ? CHUNKS : 0));
        replays[looks]++;
    }
    assert_int_equal(looking, 7);
    assert_int_equal(replays[1], looking - 1);
    assert_int_equal(replays[0], COUNT - looking - 1);
    assert_int_equal(engine_step_graph_counts(engine).captures, 2);
    assert_int_equal(engine_step_graph_counts(engine).changes, 0);
    sequence_truncate(sequence, FIRST - 1);
    engine_set_attention_observer(engine, nothing, NULL);
    for (size_t i = 0; i < COUNT; i++) {
        assert_ok(engine_step(engine, &sequence, &tokens[FIRST - 1 + i], 1, &logits, &rig.error), rig.error);
        memcpy(expected + i * rig.width, logits, rig.width * sizeof *logits);
    }
    assert_memory_equal(found, expected, COUNT * rig.width * sizeof *found);
    free(found);
    sequence_destroy(sequence);
    engine_destroy(engine);
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

/* ---- what it cannot do ---- */

static void check_refused(struct rig *rig, const struct plan *plan, const char *message) {
    struct engine *engine;
    const enum status status = engine_create(&engine, rig->model[CUDA], plan, NULL, &rig->error);
    assert_string_equal(rig->error.message, message);
    assert_int_equal(status, STATUS_UNSUPPORTED);
}

static void what_it_cannot_choose_by_is_refused(void **state) {
    (void)state;
    static const char *const settings[][4] = {
        {"quest", NULL, "quest", "--preset full"},
        {"hata", "planes=1", "hash", "--set page=8"}, /* single tokens */
        {"hata", "planes=3,page=8", "hash", "--set planes=1"},
        {"hata", "planes=1,page=8,receipt=1", "hash", "it without --receipt and --loss"},
        {"clo", "planes=1,reused=0", "hash", "--set page=8"}};
    struct rig rig;
    struct tiny_model tiny = tiny_model_default("llama");
    char message[120];
    tiny.head_dimension = 32;
    rig_open(&rig, &tiny, 1);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        struct plan plan = plan_with(&rig, settings[i][0], settings[i][1], NULL, KV_F16);
        snprintf(message, sizeof message, "select=%s: the cuda device cannot choose so: try %s",
                 settings[i][2], settings[i][3]);
        check_refused(&rig, &plan, message);
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
        cmocka_unit_test(graphs_look_where_a_list_does),
        cmocka_unit_test(nano_says_the_same),
        cmocka_unit_test(choices_match),
        cmocka_unit_test(windows_are_whole_units),
        cmocka_unit_test(what_it_cannot_choose_by_is_refused),
        cmocka_unit_test(wide_heads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

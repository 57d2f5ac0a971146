/* Models with layers that keep a state, or attend to windows, and others: sequences that are cut, shared, paused,
 * stopped and stepped in any order, alone or in passes that they leave, have bit for bit what a sequence has that
 * computed the same tokens at once; and a prompt that leaves another one close to its end finds a snapshot close to
 * that. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/random.h"
#include "device/queued_device.h"
#include "engine/engine.h"
#include "model/model_size.h"
#include "model/tiny_model.h"
#include "platform/scratch.h"
#include "seed.h"

enum { CONTEXT = 2048, SEQUENCES = 3, ROUNDS = TINY_STATE_FAMILIES + 8, ACTIONS = 14, STEPS = 2, WIDTH = 80 };

struct line {
    struct sequence *sequence;
    int32_t tokens[CONTEXT];
    size_t count;
};

struct rig {
    struct random random;
    struct device *device;
    struct model *model;
    struct engine *engine;
    struct error error;
    struct line lines[SEQUENCES];
};

static struct device_options device_options_of(const struct select_method *method) {
    return (struct device_options){.thread_count = 1, .mask = method == NULL ? cpu_default() : 0};
}

/* device: taken over; NULL: one of its own.  method, NULL: none: chooses all of the context, which on the reference
 * kernels has the bits of full attention. */
static void rig_open_on(struct rig *rig, struct device *device, const struct tiny_model *tiny, size_t batch,
                        size_t segment, const struct select_method *method) {
    const struct device_options options = device_options_of(method);
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = SEQUENCES + 1,
                        .batch_size = batch,
                        .segment_size = segment};
    plan.select = select_options_default();
    plan.select.method = method;
    plan.select.keep.tokens = UINT64_MAX;
    plan.select.dense_layers = 0;
    plan.select.gather_all = true;
    assert_int_equal(tiny->vocabulary_size, WIDTH);
    rig->device = device;
    if (device == NULL) assert_ok(device_cpu_create(&rig->device, &options, &rig->error), rig->error);
    tiny_model_load_on(tiny, "states", rig->device, &rig->model);
    assert_ok(engine_create(&rig->engine, rig->model, &plan, NULL, &rig->error), rig->error);
    for (size_t i = 0; i < SEQUENCES; i++) {
        rig->lines[i].count = 0;
        assert_ok(sequence_create(&rig->lines[i].sequence, rig->engine, &rig->error), rig->error);
    }
}

static void rig_open(struct rig *rig, const char *family, size_t batch, size_t segment) {
    const struct tiny_model tiny = tiny_model_default(family);
    rig_open_on(rig, NULL, &tiny, batch, segment, NULL);
}

/* Layers with windows, which differ in their dimensions, or attend to others' KV; from number 6 on any family without
 * states but opt, which has 512 positions. */
static struct tiny_model tiny_model_of_windows(struct random *random, size_t number) {
    if (number > 5) {
        struct tiny_model any;
        do any = tiny_model_random(random, tiny_families, TINY_FAMILIES);
        while (strcmp(any.family, "opt") == 0);
        if (any.window != 0) any.window = (uint32_t)random_between(random, 1, 140);
        return any;
    }
    static const char *const families[] = {"gemma3", "gpt-oss", "exaone4", "llama"};
    if (number % 5 == 4) return tiny_model_of_groups(number % 2 == 0);
    struct tiny_model tiny = tiny_model_default(families[number % 5]);
    tiny.window = (uint32_t)random_between(random, 1, 140);
    return tiny;
}

static void rig_close(struct rig *rig) {
    for (size_t i = 0; i < SEQUENCES; i++) sequence_destroy(rig->lines[i].sequence);
    engine_destroy(rig->engine);
    model_destroy(rig->model);
    device_destroy(rig->device);
}

static bool sometimes(void *context) { return random_below(context, 4) == 0; }
static bool stops(void *context, uint64_t done, uint64_t total) { return done < total && sometimes(context); }

/* Tokens that the line does not have yet. */
static void add_tokens(struct rig *rig, struct line *line, size_t most) {
    const size_t count = min_size(random_between(&rig->random, 1, most), CONTEXT - STEPS - line->count);
    for (size_t i = 0; i < count; i++) line->tokens[line->count++] = (int32_t)random_below(&rig->random, WIDTH);
}

/* All that the sequence lacks; it pauses in between, or is stopped and goes on with the rest. */
static void prefill(struct rig *rig, struct line *line, bool pauses, bool is_stopped) {
    const float *logits = NULL;
    while (sequence_length(line->sequence) < line->count) {
        const size_t length = (size_t)sequence_length(line->sequence);
        const struct prefill_request request = {.tokens = line->tokens + length,
                                                .token_count = line->count - length,
                                                .pauses = pauses ? sometimes : NULL,
                                                .pauses_context = &rig->random,
                                                .progress = is_stopped ? stops : NULL,
                                                .progress_context = &rig->random};
        const enum status status = engine_prefill(rig->engine, line->sequence, &request, &logits, &rig->error);
        if (status == STATUS_INTERRUPTED) is_stopped = false;
        assert_true(status == STATUS_OK || status == STATUS_INTERRUPTED);
        if (pauses && sequence_length(line->sequence) < line->count && random_below(&rig->random, 3) == 0) {
            sequence_truncate(line->sequence, sequence_length(line->sequence)); /* what had paused is dropped */
        }
    }
}

static void step(struct rig *rig, struct line *line, const float **logits) {
    line->tokens[line->count] = (int32_t)random_below(&rig->random, WIDTH);
    assert_ok(engine_step(rig->engine, &line->sequence, &line->tokens[line->count], 1, logits, &rig->error),
              rig->error);
    line->count++;
}

/* Steps of the line, and of one that computes its tokens at once. */
static void assert_as_alone(struct rig *rig, struct line *line) {
    struct line *alone = malloc(sizeof *alone);
    float found[WIDTH];
    const float *logits;
    for (size_t i = 0; i < STEPS && line->count > 0 && line->count < CONTEXT; i++) {
        step(rig, line, &logits);
        memcpy(found, logits, sizeof found);
        memcpy(alone, line, sizeof *alone);
        assert_ok(sequence_create(&alone->sequence, rig->engine, &rig->error), rig->error);
        const struct prefill_request request = {.tokens = alone->tokens, .token_count = alone->count};
        assert_ok(engine_prefill(rig->engine, alone->sequence, &request, &logits, &rig->error), rig->error);
        assert_memory_equal(found, logits, sizeof found);
        sequence_destroy(alone->sequence);
    }
    free(alone);
}

static void cut(struct rig *rig, struct line *line) {
    const size_t wanted = (size_t)random_below(&rig->random, line->count + 1);
    const uint64_t length = sequence_cut_of(line->sequence, wanted);
    assert_true(length <= wanted);
    sequence_truncate(line->sequence, wanted);
    assert_int_equal(sequence_length(line->sequence), length);
    assert_true(sequence_cuts_at(line->sequence, length));
    line->count = (size_t)length;
}

static void share(struct rig *rig, struct line *line, const struct line *source) {
    const size_t count = (size_t)sequence_cut_of(source->sequence, random_below(&rig->random, source->count + 1));
    if (count == 0 || source == line) return;
    sequence_destroy(line->sequence);
    assert_ok(sequence_create(&line->sequence, rig->engine, &rig->error), rig->error);
    assert_ok(sequence_share(line->sequence, source->sequence, count, &rig->error), rig->error);
    memcpy(line->tokens, source->tokens, count * sizeof *line->tokens);
    line->count = count;
}

static bool leave(void *context, size_t done, size_t layer_count) { return done < layer_count && sometimes(context); }

/* The first ones may step; prompts may leave the pass between two layers, and go on or are dropped. */
static void together(struct rig *rig) {
    struct prefill_part parts[SEQUENCES];
    const struct prefill_pauses pauses = {.asks = leave, .context = &rig->random};
    const float *logits;
    size_t rows = engine_batch_size(rig->engine);
    const size_t drawn = random_below(&rig->random, SEQUENCES), steps = engine_mixes(rig->engine) ? drawn : 0;
    for (size_t i = 0; i < SEQUENCES; i++) {
        struct line *line = &rig->lines[i];
        const size_t first = line->count, most = min_size(rows / SEQUENCES, CONTEXT - STEPS - first);
        if (most == 0) return;
        const bool is_step = i < steps && (i == 0 || parts[i - 1].is_step) && first > 0;
        add_tokens(rig, line, is_step ? 1 : most);
        parts[i] = (struct prefill_part){.sequence = line->sequence,
                                         .tokens = line->tokens + first,
                                         .token_count = line->count - first,
                                         .is_step = is_step};
    }
    assert_ok(engine_prefill_together(rig->engine, parts, SEQUENCES, &pauses, &logits, &rig->error), rig->error);
    for (size_t i = 0; i < SEQUENCES; i++) prefill(rig, &rig->lines[i], true, false);
}

/* Steps in one pass, of which some are right; nothing where a chunk is about to be full. */
static void ahead(struct rig *rig, struct line *line) {
    if (line->count == 0 || line->count >= CONTEXT - STEPS) return;
    const size_t most = min_size(sequence_ahead_max(line->sequence), CONTEXT - STEPS - line->count);
    int32_t tokens[ENGINE_AHEAD_MAX];
    const float *logits;
    if (most < 2) return;
    for (size_t i = 0; i < most; i++) tokens[i] = (int32_t)random_below(&rig->random, WIDTH);
    assert_ok(engine_step_ahead(rig->engine, line->sequence, tokens, most, &logits, &rig->error), rig->error);
    const size_t right = random_between(&rig->random, 1, most);
    memcpy(line->tokens + line->count, tokens, right * sizeof *tokens);
    line->count += right;
    for (size_t i = 1; i < right; i++) assert_ok(sequence_keep_next(line->sequence, &rig->error), rig->error);
}

static void act(struct rig *rig) {
    struct line *line = &rig->lines[random_below(&rig->random, SEQUENCES)];
    const float *logits;
    switch (random_below(&rig->random, 8)) {
    case 0: together(rig); break;
    case 1: cut(rig, line); break;
    case 2: share(rig, line, &rig->lines[random_below(&rig->random, SEQUENCES)]); break;
    case 3:
        for (size_t i = 0; i < 40 && line->count > 0 && line->count < CONTEXT - STEPS; i++) step(rig, line, &logits);
        break;
    case 4: assert_as_alone(rig, line); break;
    case 5: ahead(rig, line); break;
    default:
        if (line->count >= CONTEXT - STEPS) break;
        add_tokens(rig, line, 400);
        prefill(rig, line, random_below(&rig->random, 2) == 0, random_below(&rig->random, 2) == 0);
    }
}

static void test_histories(void **state) {
    (void)state;
    struct rig *rig = calloc(1, sizeof *rig);
    random_init(&rig->random, test_seed(71));
    for (size_t round = 0; round < ROUNDS; round++) {
        const size_t batch = random_between(&rig->random, 6, 130);
        static const struct select_method *const methods[] = {NULL, &select_hash, &select_tree};
        const bool has_states = round < TINY_STATE_FAMILIES;
        const struct select_method *method = has_states ? methods[round % 3] : NULL;
        const struct tiny_model tiny = has_states
                                           ? tiny_model_default(tiny_state_families[round])
                                           : tiny_model_of_windows(&rig->random, round - TINY_STATE_FAMILIES);
        const struct device_options options = device_options_of(method);
        struct device *queued = !has_states && random_below(&rig->random, 2) == 0
                                    ? queued_device_create(&options, random_next(&rig->random))
                                    : NULL; /* whose work runs late, in an order that is drawn */
        rig_open_on(rig, queued, &tiny, batch, batch * random_between(&rig->random, 1, 4), method);
        for (size_t i = 0; i < ACTIONS; i++) act(rig);
        for (size_t i = 0; i < SEQUENCES; i++) assert_as_alone(rig, &rig->lines[i]);
        rig_close(rig);
    }
    free(rig);
}

/* Counted by the operations of the device below. */
static struct {
    const struct device_operations *device;
    size_t products, states; /* states: that were written */
} counted;

static void count_matmul(struct stream *stream, const struct matmul_operation *operation) {
    counted.products++;
    counted.device->matmul(stream, operation);
}
static void count_convolve(struct stream *stream, const struct convolve_operation *operation) {
    counted.states += operation->item_count;
    counted.device->convolve(stream, operation);
}

/* A pass writes a layer's state behind the row that stays, and one that goes; a row that is kept takes one more, and no
 * product. */
static void test_ahead_counts(void **state) {
    (void)state;
    struct rig *rig = calloc(1, sizeof *rig);
    random_init(&rig->random, 75);
    for (size_t f = 0; f < TINY_STATE_FAMILIES; f++) {
        rig_open(rig, tiny_state_families[f], 64, 64);
        struct line *line = &rig->lines[0];
        const float *logits;
        add_tokens(rig, line, 40);
        prefill(rig, line, false, false);
        struct device_operations operations = *rig->device->operations;
        counted.device = rig->device->operations;
        counted.products = counted.states = 0;
        operations.matmul = count_matmul;
        operations.convolve = count_convolve;
        rig->device->operations = &operations;
        const size_t layers = rig->model->config.state.layer_count;
        step(rig, line, &logits);
        const size_t products = counted.products;
        assert_int_equal(counted.states, layers);
        const int32_t tokens[ENGINE_AHEAD_MAX] = {1, 2, 3, 4, 5, 6, 7, 8};
        assert_ok(engine_step_ahead(rig->engine, line->sequence, tokens, ENGINE_AHEAD_MAX, &logits, &rig->error),
                  rig->error);
        assert_int_equal(counted.states, 3 * layers);
        for (size_t i = 0; i < 3; i++) assert_ok(sequence_keep_next(line->sequence, &rig->error), rig->error);
        assert_int_equal(counted.states, 6 * layers);
        assert_int_equal(counted.products, 2 * products);
        rig->device->operations = counted.device;
        rig_close(rig);
    }
    free(rig);
}

/* A prompt that ends d tokens before another one's end is computed from a snapshot that is not much further. */
static void test_distances(void **state) {
    (void)state;
    struct rig *rig = calloc(1, sizeof *rig);
    random_init(&rig->random, test_seed(72));
    rig_open(rig, tiny_state_families[0], 256, 512);
    struct line *line = &rig->lines[0];
    while (line->count < 1500) add_tokens(rig, line, 200);
    prefill(rig, line, false, false);
    const uint64_t end = line->count;
    for (uint64_t d = 0; d <= end; d++) {
        const uint64_t found = sequence_cut_of(line->sequence, end - d), far = d == 0 ? 0 : max_size(4 * d, 64) + 64;
        assert_true(found <= end - d && (far >= end || found >= end - far));
    }
    const float *logits;
    for (size_t i = 0; i < 300; i++) step(rig, line, &logits); /* an answer: what is behind the prompt's end */
    assert_int_equal(sequence_cut_of(line->sequence, end), end);
    assert_true(sequence_cut_of(line->sequence, line->count - 1) >= line->count - 257);
    rig_close(rig);
    free(rig);
}

/* The bytes are those of the formula, and the cache and the budget count them. */
static void test_bytes(void **state) {
    (void)state;
    struct rig *rig = calloc(1, sizeof *rig);
    random_init(&rig->random, 1);
    rig_open(rig, "lfm2", 64, 64);
    const struct model_config *config = &rig->model->config;
    assert_int_equal(model_state_floats(config), 4 * 2 * 64); /* layers, rows, channels */
    const uint64_t states = model_state_floats(config) * sizeof(float) * model_state_slots(config, SEQUENCES + 1);
    assert_int_equal(engine_kv_used_bytes(rig->engine), SEQUENCES * states);
    struct plan plan = {.context_size = 64, .sequence_capacity = SEQUENCES + 1, .has_budget = true};
    const struct kv_cache_config cache = model_cache_config(config, KV_F16, KV_F16);
    const uint64_t kv = kv_cache_bytes_per_token(&cache) * 64 * (SEQUENCES + 1);
    plan.budget_bytes = kv + (SEQUENCES + 1) * states;
    assert_ok(plan_check_budget(&plan, config, 64, &rig->error), rig->error);
    plan.budget_bytes--;
    assert_int_equal(plan_check_budget(&plan, config, 64, &rig->error), STATUS_MEMORY);
    plan.budget_bytes = (SEQUENCES + 1) * states - 1;
    assert_int_equal(plan_check_budget(&plan, config, 64, &rig->error), STATUS_MEMORY);
    assert_non_null(strstr(rig->error.message, "the states of 4 sequences need"));
    rig_close(rig);
    free(rig);
}

/* Chunks that the windows of rows at such positions see, each once, and that of the last one, which grows. */
static uint64_t seen_chunks(const uint64_t *positions, size_t count, uint64_t window) {
    bool is_seen[CONTEXT / KV_CHUNK_TOKENS] = {false};
    uint64_t seen = 0;
    for (size_t i = 0; i < count; i++)
        for (uint64_t row = positions[i] + 1 > window ? positions[i] + 1 - window : 0; row < positions[i]; row++)
            is_seen[row / KV_CHUNK_TOKENS] = true;
    for (size_t i = 0; i < CONTEXT / KV_CHUNK_TOKENS; i++) seen += is_seen[i];
    return seen;
}

/* Of layers with windows a sequence has what the windows of the next row see, and of those behind its snapshots, at
 * whole chunks; the plan counts what that is at most; and a prompt may be cut to its end, behind its newest message,
 * and to where windows touch. */
static void test_windows(void **state) {
    (void)state;
    enum { WINDOW = 100, END = 1900, TURN = 1501, STEPS_BEHIND = 100, DEPTH = 1030, BLOCK = 64 };
    static const char *const families[] = {"gemma3", "gpt-oss", "gemma4", "llama"};
    for (size_t i = 0; i < 4; i++) {
        struct rig *rig = calloc(1, sizeof *rig);
        random_init(&rig->random, test_seed(75));
        struct tiny_model tiny = tiny_model_default(families[i]);
        tiny.layer_count = 6;
        tiny.window = WINDOW;
        rig_open_on(rig, NULL, &tiny, BLOCK, BLOCK, NULL);
        struct line *line = &rig->lines[0];
        while (line->count < END) line->tokens[line->count++] = (int32_t)random_below(&rig->random, WIDTH);
        sequence_set_turn(line->sequence, TURN, false);
        prefill(rig, line, false, false);
        const size_t sliding = i == 3 ? 6 : 3; /* all; or every other one */
        const uint64_t row = 2 * 2 * 16 * sizeof(uint16_t) * KV_CHUNK_TOKENS; /* K and V, heads, dimension */
        /* The end, behind the message, and distances of a window and of four, at whole chunks. */
        uint64_t positions[] = {1472, TURN, 1792, END, END};
        const uint64_t whole = (END / KV_CHUNK_TOKENS + 1) * row * (6 - sliding);
        assert_int_equal(engine_kv_used_bytes(rig->engine), whole + seen_chunks(positions, 4, WINDOW) * row * sliding);
        assert_int_equal(sequence_cut_of(line->sequence, END), END);
        assert_int_equal(sequence_cut_of(line->sequence, END - 10), END - 10);
        assert_int_equal(sequence_cut_of(line->sequence, TURN), TURN);
        assert_true(sequence_cut_of(line->sequence, 1000) == 0);
        const float *logits;
        for (size_t steps = 0; steps < STEPS_BEHIND; steps++) step(rig, line, &logits);
        assert_int_equal(sequence_cut_of(line->sequence, END), END);
        assert_int_equal(sequence_cut_of(line->sequence, TURN), TURN);
        positions[4] = line->count; /* below 2048: the answer has no snapshot */
        const uint64_t then = kv_chunks_of(line->count) * row * (6 - sliding);
        assert_int_equal(engine_kv_used_bytes(rig->engine), then + seen_chunks(positions, 5, WINDOW) * row * sliding);
        assert_as_alone(rig, line);
        line = &rig->lines[1]; /* a benchmark goes back to its depth */
        assert_ok(engine_fill_random(rig->engine, line->sequence, DEPTH, 7, &rig->error), rig->error);
        line->count = DEPTH;
        for (size_t steps = 0; steps < STEPS_BEHIND; steps++) step(rig, line, &logits);
        assert_int_equal(sequence_cut_of(line->sequence, DEPTH), DEPTH);
        struct plan plan = {.context_size = CONTEXT,
                            .sequence_capacity = SEQUENCES,
                            .batch_size = BLOCK,
                            .segment_size = BLOCK,
                            .has_budget = true};
        const uint64_t tails = 5 * 3, batch = PLAN_BLOCK_MIN / KV_CHUNK_TOKENS + 1; /* a window lies in 3 chunks */
        plan.budget_bytes = SEQUENCES * row * (CONTEXT / KV_CHUNK_TOKENS * (6 - sliding) + (tails + batch) * sliding);
        assert_ok(plan_check_budget(&plan, &rig->model->config, CONTEXT, &rig->error), rig->error);
        plan.budget_bytes--;
        assert_int_equal(plan_check_budget(&plan, &rig->model->config, CONTEXT, &rig->error),
                         STATUS_MEMORY);
        rig_close(rig);
        free(rig);
    }
}

/* ---- saved ---- */

enum { TURNS = 10, THOUGHT = 24, ANSWER = 9, ASK = 4 };

/* Of an engine of its own, over a folder or in RAM: a prompt and an answer, tokens behind each other. */
static void ask(struct rig *rig, const struct plan *plan, const int32_t *tokens, size_t prompt, size_t count,
                float *logits, uint64_t *reused, char notice[512]) {
    struct engine *engine;
    struct sequence *sequence;
    const float *row;
    assert_ok(engine_create(&engine, rig->model, plan, NULL, &rig->error), rig->error);
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    sequence_set_turn(sequence, prompt - ASK, true);
    const struct prefill_request request = {.tokens = tokens, .token_count = prompt};
    assert_ok(engine_prefill(engine, sequence, &request, &row, &rig->error), rig->error);
    memcpy(logits, row, WIDTH * sizeof *logits);
    *reused = sequence_reused_tokens(sequence);
    snprintf(notice, 512, "%s", sequence_notice(sequence));
    for (size_t i = prompt; i < count; i++) {
        assert_ok(engine_step(engine, &sequence, &tokens[i], 1, &row, &rig->error), rig->error);
        memcpy(logits + (i - prompt + 1) * WIDTH, row, WIDTH * sizeof *logits);
    }
    assert_ok(sequence_save(sequence, &rig->error), rig->error);
    assert_ok(sequence_flush(sequence, &rig->error), rig->error);
    sequence_destroy(sequence);
    engine_destroy(engine);
}

static void add_random(struct rig *rig, int32_t *tokens, size_t *count, size_t more) {
    for (size_t i = 0; i < more; i++) tokens[(*count)++] = (int32_t)random_below(&rig->random, WIDTH);
}

/* A conversation over a folder, each turn by a new engine, and by a template that drops what the model thought: a turn
 * computes the last answer, the new question and the words around them, no more; with the bits of one that computes
 * everything; and there is one document. */
static void turns(size_t models, struct tiny_model (*model_of)(struct random *random, size_t number), bool quantizes) {
    struct rig *rig = calloc(1, sizeof *rig);
    float *found = calloc((THOUGHT + ANSWER + 1) * WIDTH, sizeof *found),
          *expected = calloc((THOUGHT + ANSWER + 1) * WIDTH, sizeof *expected);
    int32_t tokens[CONTEXT];
    random_init(&rig->random, test_seed(73));
    for (size_t number = 0; number < models; number++) {
        struct scratch scratch, other;
        scratch_create(&scratch, SCRATCH_MEMORY);
        scratch_create(&other, SCRATCH_MEMORY);
        const struct tiny_model tiny = model_of(&rig->random, number);
        rig_open_on(rig, NULL, &tiny, 64, 128, NULL);
        struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1, .batch_size = 64, .segment_size = 128};
        struct plan alone = plan;
        plan.disk_directory = scratch.path;
        plan.document_name = "turns";
        plan.quantized_pages = quantizes;
        assert_ok(plan_host_bytes_min(&plan, &rig->model->config, &plan.host_bytes, &rig->error), rig->error);
        size_t history = 0, last = 0; /* last: behind the newest message of the turn before */
        for (size_t turn = 0; turn < TURNS; turn++) {
            size_t count = history;
            char notice[512], ignored[512];
            uint64_t reused, none;
            add_random(rig, tokens, &count, turn == 0 ? 300 : random_between(&rig->random, 1, 60));
            add_random(rig, tokens, &count, ASK); /* what makes the model answer; its thought follows */
            const size_t prompt = count;
            add_random(rig, tokens, &count, THOUGHT + ANSWER);
            ask(rig, &plan, tokens, prompt, count, found, &reused, notice);
            if (quantizes) { /* 4 bits are of chunks that have a page */
                scratch_empty(&other);
                alone = plan;
                alone.disk_directory = other.path;
            }
            ask(rig, &alone, tokens, prompt, count, expected, &none, ignored);
            assert_int_equal(none, 0);
            assert_memory_equal(found, expected, (THOUGHT + ANSWER + 1) * WIDTH * sizeof *found);
            assert_string_equal(notice, "");
            assert_int_equal(reused, last);
            memmove(tokens + prompt, tokens + prompt + THOUGHT, ANSWER * sizeof *tokens);
            history = prompt + ANSWER;
            last = prompt - ASK;
        }
        assert_int_equal(scratch_count(&scratch), 4); /* the catalog, its journal, the document's two files */
        rig_close(rig);
        scratch_destroy(&scratch);
        scratch_destroy(&other);
    }
    free(found);
    free(expected);
    free(rig);
}

static struct tiny_model tiny_model_of_states(struct random *random, size_t number) {
    (void)random;
    return tiny_model_default(tiny_state_families[number]);
}

static void test_turns(void **state) {
    (void)state;
    turns(TINY_STATE_FAMILIES, tiny_model_of_states, false);
    turns(6, tiny_model_of_windows, false);
}

/* States stand within chunks that are rounded when they are full: those are no place to go on from. */
static void test_turns_in_4_bits(void **state) {
    (void)state;
    turns(1, tiny_model_of_states, true);
    turns(2, tiny_model_of_windows, true);
}

static uint64_t bytes_on_disk(const struct scratch *scratch, const char *name) {
    struct stat info;
    assert_int_equal(stat(scratch_name(scratch, name), &info), 0);
    return (uint64_t)info.st_blocks * 512;
}

/* Of layers with windows a document has what the windows behind its positions see, within 1% of the formula, and no
 * more was written for it, with as little RAM as can be; and prompts that leave it anywhere, and documents that are cut
 * out of it, have the bits of an engine that keeps everything. */
static void test_saved_windows(void **state) {
    (void)state;
    enum { WINDOW = 100, END = 1900, PROMPTS = 9, ROW = 2 * 16 * sizeof(uint16_t) * KV_CHUNK_TOKENS, HEADS = 2 };
    static const char *const families[] = {"gemma3", "gpt-oss", "gemma4", "llama"};
    static const int32_t slides[] = {1, 0, 1, 0, 1, 0};
    struct rig *rig = calloc(1, sizeof *rig);
    float *found = calloc((ANSWER + 1) * WIDTH, sizeof *found), *expected = calloc((ANSWER + 1) * WIDTH, sizeof *found);
    for (size_t i = 0; i < 4; i++) {
        struct scratch scratch;
        int32_t tokens[CONTEXT];
        size_t count = 0;
        char notice[512];
        uint64_t reused;
        random_init(&rig->random, test_seed(76));
        scratch_create(&scratch, SCRATCH_MEMORY);
        struct tiny_model tiny = tiny_model_default(families[i]);
        tiny.layer_count = 6;
        tiny.window = WINDOW;
        const bool is_gemma4 = i == 2; /* heads of layers with windows are twice as wide, two layers have others' KV */
        if (is_gemma4) tiny.slides = slides, tiny.window_period = 0;
        if (is_gemma4) tiny.sliding_dimension = 32, tiny.shared_layers = 2;
        rig_open_on(rig, NULL, &tiny, 64, 256, NULL);
        struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1, .batch_size = 64, .segment_size = 256};
        const struct plan alone = plan;
        plan.disk_directory = scratch.path;
        assert_ok(plan_host_bytes_min(&plan, &rig->model->config, &plan.host_bytes, &rig->error), rig->error);
        add_random(rig, tokens, &count, END);
        ask(rig, &plan, tokens, END, END, found, &reused, notice);
        assert_string_equal(notice, "");
        /* The document ends behind the newest message; distances of a window and of four, at whole chunks. */
        const uint64_t positions[] = {1472, 1792, END - ASK}, full = i == 3 ? 0 : is_gemma4 ? 2 : 3,
                       sliding = is_gemma4 ? 2 * 2 : 6 - full, /* by their width */
                       seen = seen_chunks(positions, 3, WINDOW) - 1,
                       chunks = (END / KV_CHUNK_TOKENS + 1) * full + (seen + 1) * sliding, /* with tails, a page each */
                       formula = chunks * ROW * HEADS, bytes = bytes_on_disk(&scratch, "1.pages");
        assert_true(bytes >= formula - formula / 100 && bytes <= formula + formula / 100);
        uint64_t all = 0;
        for (size_t prompt = 0; prompt < PROMPTS; prompt++) {
            const size_t back = random_between(&rig->random, 0, prompt % 3 == 0 ? count - 1 : WINDOW);
            size_t shared = count > back ? count - back : count, asked = shared;
            add_random(rig, tokens, &asked, min_size(random_between(&rig->random, 1, 200), CONTEXT - ANSWER - shared));
            const size_t end = asked;
            add_random(rig, tokens, &asked, ANSWER);
            ask(rig, &plan, tokens, end, asked, found, &reused, notice);
            const bool may_lack = shared < KV_CHUNK_TOKENS || strstr(notice, "has no window") != NULL;
            assert_true(reused <= shared && (reused > 0 || may_lack));
            all += reused;
            ask(rig, &alone, tokens, end, asked, expected, &reused, notice);
            assert_memory_equal(found, expected, (ANSWER + 1) * WIDTH * sizeof *found);
            count = end;
        }
        assert_true(all > 0);
        rig_close(rig);
        scratch_destroy(&scratch);
    }
    free(found);
    free(expected);
    free(rig);
}

/* The next prompt leaves this one behind the newest message: its state is kept, within a chunk, too; but for chunks
 * that were rounded to 4 bits when they were full, which are left whole. */
static void test_cuts_behind_a_turn(void **state) {
    (void)state;
    /* States are at 192, TURN, 384, 448 and the end. */
    enum { PROMPT = 500, TURN = 300, BELOW_384 = 383, WHOLE = 192 };
    struct rig *rig = calloc(1, sizeof *rig);
    int32_t tokens[CONTEXT];
    size_t count = 0;
    struct scratch scratch;
    scratch_create(&scratch, SCRATCH_MEMORY);
    random_init(&rig->random, test_seed(74));
    rig_open(rig, tiny_state_families[0], 64, 128);
    add_random(rig, tokens, &count, PROMPT);
    for (int quantizes = 0; quantizes < 2; quantizes++) {
        struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1, .batch_size = 64, .segment_size = 128};
        struct engine *engine;
        struct sequence *sequence;
        const float *row;
        if (quantizes) {
            plan.disk_directory = scratch.path;
            plan.quantized_pages = true;
            assert_ok(plan_host_bytes_min(&plan, &rig->model->config, &plan.host_bytes, &rig->error), rig->error);
        }
        assert_ok(engine_create(&engine, rig->model, &plan, NULL, &rig->error), rig->error);
        assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
        sequence_set_turn(sequence, TURN, false);
        const struct prefill_request request = {.tokens = tokens, .token_count = count};
        assert_ok(engine_prefill(engine, sequence, &request, &row, &rig->error), rig->error);
        assert_int_equal(sequence_cut_of(sequence, PROMPT - 1), 448);
        assert_int_equal(sequence_cut_of(sequence, BELOW_384), quantizes ? WHOLE : TURN);
        sequence_destroy(sequence);
        engine_destroy(engine);
    }
    rig_close(rig);
    free(rig);
    scratch_destroy(&scratch);
}

/* A prompt that leaves a document takes its pages and states over: the next one goes on from a state that came so, with
 * the bits of one that computes everything. */
static void test_copied_states(void **state) {
    (void)state;
    enum { COUNT = 500, TURN = 300, BRANCHES = 3 }; /* states are at 192, TURN, 384, 448 and the end */
    static const struct {
        size_t shared, reused; /* with the prompt before */
    } branches[BRANCHES] = {{0, 0}, {400, 384}, {250, 192}};
    struct rig *rig = calloc(1, sizeof *rig);
    float *logits[2] = {calloc(WIDTH, sizeof(float)), calloc(WIDTH, sizeof(float))};
    int32_t tokens[CONTEXT];
    struct scratch scratch;
    scratch_create(&scratch, SCRATCH_MEMORY);
    random_init(&rig->random, test_seed(76));
    rig_open(rig, tiny_state_families[0], 64, 128);
    const struct plan alone = {.context_size = CONTEXT, .sequence_capacity = 1, .batch_size = 64, .segment_size = 128};
    struct plan saves = alone;
    saves.disk_directory = scratch.path;
    assert_ok(plan_host_bytes_min(&saves, &rig->model->config, &saves.host_bytes, &rig->error), rig->error);
    for (size_t i = 0; i < BRANCHES; i++) {
        size_t count = branches[i].shared;
        add_random(rig, tokens, &count, COUNT - count);
        for (int saved = 0; saved < 2; saved++) {
            struct engine *engine;
            struct sequence *sequence;
            const float *row;
            const struct prefill_request request = {.tokens = tokens, .token_count = COUNT};
            assert_ok(engine_create(&engine, rig->model, saved ? &saves : &alone, NULL, &rig->error), rig->error);
            assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
            sequence_set_turn(sequence, TURN, false);
            assert_ok(engine_prefill(engine, sequence, &request, &row, &rig->error), rig->error);
            memcpy(logits[saved], row, WIDTH * sizeof *row);
            assert_int_equal(sequence_reused_tokens(sequence), saved ? branches[i].reused : 0);
            assert_ok(sequence_save(sequence, &rig->error), rig->error);
            assert_ok(sequence_flush(sequence, &rig->error), rig->error);
            sequence_destroy(sequence);
            engine_destroy(engine);
        }
        assert_memory_equal(logits[1], logits[0], WIDTH * sizeof *logits[0]);
        if (i != 1) continue;
        struct store *store; /* what the second prompt left goes */
        assert_ok(store_open(&store, &(struct store_options){.directory = scratch.path}, &rig->error), rig->error);
        assert_ok(store_remove(store, 1, &rig->error), rig->error);
        store_close(store);
    }
    rig_close(rig);
    scratch_destroy(&scratch);
    free(logits[0]), free(logits[1]);
    free(rig);
}

/* What is not there yet is refused by one line. */
static void test_refusals(void **state) {
    (void)state;
    struct rig *rig = calloc(1, sizeof *rig);
    rig_open(rig, "lfm2", 64, 64);
    struct plan plan = {.context_size = 256, .sequence_capacity = 1};
    struct engine *engine;
    assert_ok(plan_set_disk(&plan, "nowhere", 7, 0, &rig->error), rig->error);
    plan.host_bytes = 1 << 26;
    plan.rebuilds = true;
    assert_int_equal(engine_create(&engine, rig->model, &plan, NULL, &rig->error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(rig->error.message, "rebuild=recompute: 4 of the 6 layers of"));
    plan_deinit(&plan);
    /* A preset whose pages are in 4 bits but for the first ones has rows. */
    plan = (struct plan){.context_size = 256, .sequence_capacity = 1, .k_type = KV_F16, .v_type = KV_F16};
    assert_ok(plan_set_disk(&plan, "nowhere", 7, 0, &rig->error), rig->error);
    assert_ok(plan_set_axes(&plan, "leoam", NULL, NULL, &rig->error), rig->error);
    plan.host_bytes = 1 << 20;
    assert_int_equal(plan_check(&plan, &rig->model->config, &rig->error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(rig->error.message, "try --set codec=q4"));
    assert_ok(plan_set_host_bytes(&plan, &rig->model->config, &rig->error), rig->error);
    assert_true(!plan.quantized_pages && plan.host_bytes > 0);
    assert_ok(plan_check(&plan, &rig->model->config, &rig->error), rig->error);
    plan_deinit(&plan);
    rig_close(rig);
    free(rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_histories), cmocka_unit_test(test_distances),
                                       cmocka_unit_test(test_bytes), cmocka_unit_test(test_windows),
                                       cmocka_unit_test(test_copied_states), cmocka_unit_test(test_turns),
                                       cmocka_unit_test(test_turns_in_4_bits),
                                       cmocka_unit_test(test_saved_windows),
                                       cmocka_unit_test(test_cuts_behind_a_turn),
                                       cmocka_unit_test(test_ahead_counts),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

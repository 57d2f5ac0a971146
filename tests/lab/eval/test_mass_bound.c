/* mass_bound=1 on tiny random models: choices and logits do not depend on it; the bound is never above what recall
 * finds; the kind of a saved document includes whether bounds are stored; methods without bounds reject it. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "engine/engine.h"
#include "lab/eval/recall.h"
#include "lab/methods/methods.h"
#include "model/tiny_model.h"

enum { PROMPT = 700, CONTEXT = 768, STEPS = 20, LAYERS = 3 };

struct rig {
    struct device *device;
    struct model *model;
    int32_t tokens[PROMPT + STEPS];
    size_t width;
    struct error error;
};

static void rig_open(struct rig *rig) {
    struct random random;
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.layer_count = LAYERS;
    tiny.head_dimension = 32;
    const struct device_options device = {.thread_count = 2, .mask = cpu_default()};
    tiny_model_load(&tiny, "mass_bound", &device, &rig->device, &rig->model);
    rig->width = tiny.vocabulary_size;
    random_init(&random, 7);
    tiny_model_tokens(&tiny, &random, rig->tokens, PROMPT + STEPS);
}

static void rig_close(struct rig *rig) {
    model_destroy(rig->model);
    device_destroy(rig->device);
}

struct outcome {
    float *logits; /* owned: [STEPS][width] */
    struct recall_cell caught;
    struct mass_bounds mass_bound;
    char kind[SELECT_KIND_BYTES];
};

static struct outcome decode(struct rig *rig, const struct select_options *select, enum kv_type type) {
    struct plan options = {.context_size = CONTEXT,
                           .sequence_capacity = 1,
                           .batch_size = 64,
                           .k_type = type,
                           .v_type = type,
                           .select = *select};
    struct outcome outcome = {.logits = calloc(STEPS, rig->width * sizeof(float))};
    struct engine *engine;
    struct sequence *sequence;
    struct recall recall;
    const struct model_config *config = &rig->model->config;
    const struct recall_shape shape = {.layer_count = config->layer_count,
                                       .head_count = config->head_count,
                                       .kv_head_count = config->kv_head_count,
                                       .k_dimension = config->k_dimension,
                                       .scale = config->attention_scale};
    const struct prefill_request request = {.tokens = rig->tokens, .token_count = PROMPT};
    assert_ok(recall_create(&recall, &shape, CONTEXT, &rig->error), rig->error);
    assert_ok(engine_create(&engine, rig->model, &options, NULL, &rig->error), rig->error);
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(engine_prefill(engine, sequence, &request, NULL, &rig->error), rig->error);
    attention_set_observer(engine_attention(engine), recall_add, &recall);
    for (size_t i = 0; i < STEPS; i++) {
        const float *logits;
        assert_ok(engine_step(engine, &sequence, &rig->tokens[PROMPT + i], 1, &logits, &rig->error),
                  rig->error);
        memcpy(outcome.logits + i * rig->width, logits, rig->width * sizeof *logits);
    }
    for (size_t layer = 0; layer < config->layer_count; layer++)
        for (size_t head = 0; head < config->head_count; head++)
            recall_cell_add(&outcome.caught, recall_get(&recall, layer, head));
    outcome.mass_bound = attention_statistics(engine_attention(engine)).mass_bound;
    select_key_index_kind(engine_select(engine), outcome.kind);
    sequence_destroy(sequence);
    engine_destroy(engine);
    recall_destroy(&recall);
    return outcome;
}

static void mass_bounds_change_no_choice(void **state) {
    (void)state;
    static const struct {
        const struct select_method *method;
        enum tree_rank rank;
        size_t leaf, page;
        bool apart; /* bounds are kept for it alone */
    } cases[] = {{&select_tree, TREE_BOUND, 8, 0, false},
                 {&select_tree, TREE_MEAN_DEVIATION, 8, 0, true},
                 {&select_tree, TREE_MEAN_DEVIATION, 64, 0, true},
                 {&select_quest, TREE_BOUND, 8, 8, false},
                 {&select_meanstd, TREE_BOUND, 8, 0, true}};
    struct rig rig = {0};
    rig_open(&rig);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (enum kv_type type = KV_F16; type <= KV_Q8; type++) {
            struct select_options select = select_options_default();
            select.method = cases[i].method;
            select.rank = cases[i].rank;
            select.leaf = cases[i].leaf;
            select.page = cases[i].page;
            select.dense_layers = 1;
            select.recent = 16;
            select.keep = (struct select_keep){.tokens = 200};
            struct outcome without = decode(&rig, &select, type);
            select.mass_bound = true;
            struct outcome with = decode(&rig, &select, type);
            assert_memory_equal(with.logits, without.logits, STEPS * rig.width * sizeof *with.logits);
            assert_int_equal(without.mass_bound.count + without.caught.mass_bound_count, 0);
            assert_int_equal(with.mass_bound.count, with.caught.count);
            assert_int_equal(with.caught.mass_bound_count, with.caught.count);
            assert_true(with.caught.mass_bound_excess <= 1e-12);
            assert_true(with.caught.mass == without.caught.mass);
            assert_true(with.caught.mass_bound > 0 && with.caught.mass_bound < with.caught.mass);
            assert_true(with.mass_bound.sum > with.caught.mass_bound * (1 - 1e-9) &&
                        with.mass_bound.sum < with.caught.mass_bound * (1 + 1e-9));
            assert_true(with.mass_bound.min == with.caught.mass_bound_min);
            assert_int_equal(strcmp(with.kind, without.kind) != 0, cases[i].apart);
            free(with.logits), free(without.logits);
        }
    rig_close(&rig);
}

static void only_bounds_give_a_mass_bound(void **state) {
    (void)state;
    static const struct select_method *const others[] = {&select_window, &select_hash, &select_h2o,
                                                         &select_exact};
    const struct select_shape shape = {1, 4, 2, 64, 64, NULL, NULL};
    struct error error;
    size_t bytes;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        struct select_options options = select_options_default();
        options.method = others[i];
        options.mass_bound = true;
        assert_int_equal(select_options_key_index_bytes(&options, &shape, &bytes, &error), STATUS_USAGE);
        assert_non_null(strstr(error.message, "mass_bound"));
    }
    /* as docs/command_line.md has them */
    static const struct {
        size_t leaf, without, with;
    } sizes[] = {{8, 4160, 6208}, {16, 2112, 3136}, {32, 1088, 1600}, {64, 256, 512}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t with_bound = 0; with_bound < 2; with_bound++) {
            struct select_options options = select_options_default();
            options.method = &select_tree;
            options.leaf = sizes[i].leaf;
            options.mass_bound = with_bound;
            assert_ok(select_options_key_index_bytes(&options, &shape, &bytes, &error), error);
            assert_int_equal(bytes, sizes[i].without); /* bounds rank */
            options.rank = TREE_MEAN_DEVIATION;
            assert_ok(select_options_key_index_bytes(&options, &shape, &bytes, &error), error);
            assert_int_equal(bytes, with_bound ? sizes[i].with : sizes[i].without);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mass_bounds_change_no_choice),
        cmocka_unit_test(only_bounds_give_a_mass_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Every family and rotary scaling against Hugging Face transformers in float32 (tools/golden/make_golden.py).
 *
 * Each folder goes through the same door as a user's model: model_import, model_load, forward_run.  Compared
 * are the residual stream after every layer, for every token, and the logits of every eighth; of a mixture of experts,
 * whose folder has the GGUF file itself, also the experts that each token picks.
 *
 * The same on the cuda device over the fake driver, in an order that its seed draws.
 *
 * The bound.  Weights are bfloat16 in both, products are summed in float in both.  What differs is the KV cache:
 * loam keeps K and V as halves, a relative error of at most 2^-11 per element.  V's goes straight into the
 * output of attention: 2^-11 of its size.  K's moves a score q.k by at most 2^-11 * sum|q_i k_i|; the scores of
 * these models are below 16 in size, so a weight moves by less than 16 * 2^-11 = 0.8% in the worst case and,
 * errors being independent over 16 dimensions, by about a quarter of that.  Two layers deep, with residuals of
 * size about 5, that allows 0.02 on the residual stream; logits are sums over 32 of it with weights of 0.5:
 * 0.05.  The cuda device also rounds weights and inputs of products to halves, 2^-11 of each factor in seven products a
 * layer: twice as much.  Tried: a window one token short, the q bias left out, an epsilon of 1e-3 each fail. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda/cuda_device.h"
#include "device/cuda/images.h"
#include "lab/import/safetensors.h"
#include "model/forward_internal.h"
#include "lab/import/import.h"
#include "model/model.h"
#include "model/tiny_model.h"

#define HIDDEN_BOUND 0.02
#define LOGIT_BOUND  0.05
/* Of the formulas in double (plain_forward), without halves: what transformers rounds in float. */
#define PLAIN_BOUND 1e-3
/* Of the same formulas with K and V rounded to halves, as a share of the largest value: what loam rounds in float.  An
 * element of K or V close to the middle of two halves may become either, which then has a 2^-11 of its own. */
#define HALVES_BOUND 5e-4

enum { LOGIT_STRIDE = 8, TOKENS_MAX = 64 };

/* The residual stream after every layer, [layers][tokens][hidden_size], and the logits of every eighth token. */
struct values {
    double *hidden, *logits; /* owned */
};

struct comparison {
    const struct forward *forward;
    const struct safetensors_tensor *hidden; /* [layers][tokens][hidden_size] */
    const struct safetensors_tensor *picks;  /* [layers with experts][tokens][experts of a token]; NULL: none */
    struct values found;
    size_t layers_seen;
};

static double *to_double(double *to, const float *from, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = (double)from[i];
    return to;
}

static double largest_difference(const double *found, const double *expected, size_t count) {
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        const double d = fabs(found[i] - expected[i]);
        worst = fmax(worst, isnan(d) ? (double)INFINITY : d);
    }
    return worst;
}

static double share_of_largest(const double *found, const double *expected, size_t count) {
    double largest = 0;
    for (size_t i = 0; i < count; i++) largest = fmax(largest, fabs(expected[i]));
    return largest_difference(found, expected, count) / largest;
}

static void observe_layer(void *context, size_t layer, const float *hidden, size_t row_count) {
    struct comparison *comparison = context;
    size_t tokens = comparison->hidden->dimensions[1], width = comparison->hidden->dimensions[2];
    assert_true(layer < comparison->hidden->dimensions[0] && layer == comparison->layers_seen);
    assert_int_equal(row_count, tokens);
    comparison->layers_seen++;
    to_double(comparison->found.hidden + layer * tokens * width, hidden, tokens * width);
    const struct model_config *config = &comparison->forward->model->config;
    if (!model_layer_has_experts(config, layer)) return;
    const struct forward *forward = comparison->forward;
    const size_t bytes = tokens * comparison->picks->dimensions[2] * sizeof(uint32_t);
    struct error error;
    uint8_t *picks = malloc(bytes);
    assert_non_null(picks);
    assert_ok(device_read(forward->model->device, forward->stream, picks, forward->routes.picks, bytes, &error),
              error);
    assert_memory_equal(picks, comparison->picks->data + (layer - config->experts.dense_layers) * bytes, bytes);
    free(picks);
}

static void run(struct model *model, const int32_t *ids, size_t count, struct comparison *comparison) {
    struct error error;
    struct forward *forward;
    struct kv_cache *cache;
    struct kv_sequence *sequence;
    const struct model_config *config = &model->config;
    struct kv_cache_config kv = {.layer_count = model_stored_layers(config),
                                 .kv_head_count = config->kv_head_count,
                                 .k_dimension = config->k_dimension,
                                 .v_dimension = config->v_dimension,
                                 .groups = config->kv_groups,
                                 .state_floats = model_state_floats(config),
                                 .state_slots = KV_STATE_SLOTS_BESIDE + 1,
                                 .token_capacity = TOKENS_MAX,
                                 .sequence_capacity = 1};
    assert_ok(kv_cache_create(&cache, model->device, &kv, &error), error);
    assert_ok(kv_sequence_create(&sequence, cache, TOKENS_MAX, &error), error);
    assert_ok(kv_sequence_reserve(sequence, count, &error), error);
    struct attention *attention;
    const struct attention_options everything = {.groups = config->kv_groups};
    assert_ok(attention_create(&attention, model->device, &everything, &error), error);
    assert_ok(forward_create(&forward, model,
                             &(struct forward_options){.attention = attention,
                                                       .row_capacity = count,
                                                       .block_capacity = count,
                                                       .logit_row_capacity = count},
                             &error),
              error);
    uint64_t positions[TOKENS_MAX];
    uint32_t rows[TOKENS_MAX / LOGIT_STRIDE];
    for (size_t i = 0; i < count; i++) positions[i] = i;
    for (size_t i = 0; i < count / LOGIT_STRIDE; i++)
        rows[i] = (uint32_t)(i * LOGIT_STRIDE + LOGIT_STRIDE - 1);
    struct attend_item item = {.row_count = count};
    struct forward_batch batch = {.tokens = ids,
                                  .positions = positions,
                                  .row_count = count,
                                  .sequences = &sequence,
                                  .items = &item,
                                  .item_count = 1,
                                  .logit_rows = rows,
                                  .logit_row_count = count / LOGIT_STRIDE,
                                  .keep_rows = true};
    const float *logits;
    comparison->forward = forward;
    forward_set_observer(forward, observe_layer, comparison);
    assert_ok(forward_run(forward, &batch, &logits, &error), error);
    to_double(comparison->found.logits, logits, count / LOGIT_STRIDE * config->vocabulary_size);
    forward_destroy(forward);
    attention_destroy(attention);
    kv_sequence_destroy(sequence);
    kv_cache_destroy(cache);
}

/* The formulas themselves, to which test_forward holds loam. */
static void run_plain(const struct model *model, const int32_t *ids, size_t count, bool rounds_kv,
                      struct values *found) {
    const size_t width = model->config.vocabulary_size;
    double *logits = calloc(count * width, sizeof *logits);
    assert_non_null(logits);
    plain_forward(model, ids, count, rounds_kv, logits, found->hidden);
    for (size_t i = LOGIT_STRIDE - 1; i < count; i += LOGIT_STRIDE)
        memcpy(found->logits + i / LOGIT_STRIDE * width, logits + i * width, width * sizeof *logits);
    free(logits);
}

struct golden_case {
    const char *name; /* of the folder */
    bool on_card;
    char title[40];
};

static void device_open(struct device **device, bool on_card) {
    struct error error;
#ifdef FAKE_LIBRARY
    const struct cuda_device_options cuda = {.driver_file = FAKE_LIBRARY, .thread_count = 1};
    if (on_card) {
        (void)setenv("FAKE_CUDA", "capability=90", 1); /* kernels start early */
        assert_ok(device_cuda_create(device, &cuda, &error), error);
        return;
    }
#endif
    assert_false(on_card);
    const struct device_options cpu = {.thread_count = 2, .mask = cpu_default()};
    assert_ok(device_cpu_create(device, &cpu, &error), error);
}

static void compare_case(void **state) {
    const struct golden_case *golden_case = *state;
    const char *name = golden_case->name;
    const double share = golden_case->on_card ? 2 : 1; /* of the bounds */
    struct error error;
    char folder[512], file[64] = "/tmp/loam-golden-XXXXXX";
    snprintf(folder, sizeof folder, "%s/tests/golden/%s", LOAM_SOURCE_DIR, name);
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    struct import_options options = {0};
    struct import_report report;
    char golden_path[600], model_path[600];
    snprintf(model_path, sizeof model_path, "%s/model.gguf", folder);
    const bool is_made = access(model_path, F_OK) == 0;
    if (!is_made) assert_ok(model_import(folder, file, &options, &report, &error), error);

    snprintf(golden_path, sizeof golden_path, "%s/golden.safetensors", folder);
    struct file_map map;
    struct safetensors golden = {0};
    assert_ok(file_map_open(&map, golden_path, &error), error);
    assert_ok(safetensors_open_memory(&golden, map.data, map.size_bytes, golden_path, &error), error);
    const struct safetensors_tensor *ids = safetensors_find(&golden, "input_ids");
    const struct safetensors_tensor *logits = safetensors_find(&golden, "logits");
    struct comparison comparison = {.hidden = safetensors_find(&golden, "hidden"),
                                    .picks = safetensors_find(&golden, "picks")};
    assert_true(ids != NULL && logits != NULL && comparison.hidden != NULL);

    struct device *device;
    device_open(&device, golden_case->on_card);
    struct model *model;
    assert_ok(model_load(&model, is_made ? model_path : file, device, &error), error);
    assert_int_equal(model->config.experts.count > 0, comparison.picks != NULL);
    const int32_t *tokens = (const int32_t *)(const void *)ids->data;
    const size_t count = ids->dimensions[0], layers = comparison.hidden->dimensions[0],
                 layer_size = count * model->config.hidden_size,
                 logit_count = count / LOGIT_STRIDE * model->config.vocabulary_size;
    double *values = calloc(3 * (layers * layer_size + logit_count), sizeof *values), *at = values;
    struct values transformers, plain, *const each[] = {&transformers, &plain, &comparison.found};
    assert_non_null(values);
    for (size_t i = 0; i < 3; i++, at += logit_count) each[i]->hidden = at, each[i]->logits = at += layers * layer_size;
    to_double(transformers.hidden, (const float *)(const void *)comparison.hidden->data, layers * layer_size);
    to_double(transformers.logits, (const float *)(const void *)logits->data, logit_count);
    run(model, tokens, count, &comparison);
    assert_int_equal(comparison.layers_seen, layers);
    const struct values *found = &comparison.found;
    double hidden = 0, worst;
    printf("%-24s largest difference: ", golden_case->title);
    for (size_t i = 0; i < layers; i++) {
        worst = largest_difference(found->hidden + i * layer_size, transformers.hidden + i * layer_size, layer_size);
        hidden = fmax(hidden, worst);
        if (i == 0 || i + 1 == layers) printf("layer %zu %.1e, ", i, worst);
    }
    worst = largest_difference(found->logits, transformers.logits, logit_count);
    printf("logits %.1e\n", worst);
    assert_true(hidden <= share * HIDDEN_BOUND && worst <= share * LOGIT_BOUND);
    if (!golden_case->on_card) { /* the formulas, once; a layer's values and the logits are behind each other */
        run_plain(model, tokens, count, false, &plain);
        const size_t all = layers * layer_size + logit_count;
        const double by_formula = largest_difference(plain.hidden, transformers.hidden, all);
        run_plain(model, tokens, count, true, &plain);
        const double hidden_share = share_of_largest(found->hidden, plain.hidden, layers * layer_size),
                     logit_share = share_of_largest(found->logits, plain.logits, logit_count);
        printf("%-24s formulas: %.1e; with K and V in halves, from loam: layers %.1e, logits %.1e of the largest\n",
               name, by_formula, hidden_share, logit_share);
        assert_true(by_formula <= PLAIN_BOUND && hidden_share <= HALVES_BOUND && logit_share <= HALVES_BOUND);
    }
    free(values);
    model_destroy(model);
    device_destroy(device);
    safetensors_close(&golden);
    file_map_close(&map);
    unlink(file);
}

int main(void) {
    static const char *const names[] = {
        "llama-gqa-tied", "llama-mha-untied", "llama-linear", "llama-yarn",  "llama3-factors", "mistral-window",
        "qwen2-bias",     "qwen2-yarn",       "qwen3-norms",  "opt",         "qwen3moe",       "smollm3",
        "seed-oss",       "mistral3",         "qwen2moe",     "glm4moe",
        "gpt-oss",        "lfm2",             "qwen35",       "qwen35moe",   "lfm2moe",      "qwen3next",
        "gemma2",         "gemma3",           "olmo2",        "olmo3",       "exaone4",        "minimax-m2",
        "gemma4",         "gemma4-experts",   "gemma4-inputs", "phi3",       "phi3-longrope", "glm4",
        "granite",        "granitemoe",       "granitemoe-shared", "cohere2"};
    enum { CASES = sizeof names / sizeof names[0] };
    static struct golden_case cases[2][CASES];
    struct CMUnitTest tests[CASES];
    int failed = 0;
#ifdef FAKE_LIBRARY
    const bool has_card = cuda_image_count > 0;
#else
    const bool has_card = false;
#endif
    for (int on_card = 0; on_card <= has_card; on_card++) {
        for (size_t i = 0; i < CASES; i++) {
            struct golden_case *one = &cases[on_card][i];
            *one = (struct golden_case){.name = names[i], .on_card = on_card};
            snprintf(one->title, sizeof one->title, "%s%s", names[i], on_card ? ", cuda" : "");
            tests[i] = (struct CMUnitTest){one->title, compare_case, NULL, NULL, one};
        }
        failed += _cmocka_run_group_tests(on_card ? "on a card" : "on the cpu", tests, CASES, NULL, NULL);
    }
    return failed;
}

/* Calibration on a small random model: what is sampled, what a study of a layer finds, the file and the threads. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "device/queued_device.h"
#include "lab/calibrate/attended.h"
#include "lab/calibrate/calibrate.h"
#include "lab/calibrate/hash_head.h"
#include "lab/calibrate/skew.h"
#include "model/calibration.h"
#include "model/tiny_model.h"
#include "platform/file.h"
#include "tensor/half.h"

enum { WINDOW = 512, WINDOWS = 4, TEXT_QUERIES = 12, PROBE_QUERIES = 6 };

static struct device *device;
static struct model *model;
static char model_file[200], written[2][200], heads_file[200];
static int32_t tokens[WINDOW * WINDOWS];

static int setup(void **state) {
    (void)state;
    struct error error;
    struct random random;
    struct tiny_model tiny = tiny_model_default("llama");
    device = queued_device_create(&(struct device_options){.thread_count = 2, .mask = cpu_default()}, 1);
    tiny_model_write(&tiny, tiny_model_path("study.gguf", model_file, sizeof model_file));
    tiny_model_path("one.calib.gguf", written[0], sizeof written[0]);
    tiny_model_path("two.calib.gguf", written[1], sizeof written[1]);
    tiny_model_path("heads.tsv", heads_file, sizeof heads_file);
    assert_ok(model_load(&model, model_file, device, &error), error);
    random_init(&random, 1);
    for (size_t i = 0; i < WINDOW * WINDOWS; i++)
        tokens[i] = (int32_t)random_below(&random, model->config.vocabulary_size);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    model_destroy(model);
    device_destroy(device);
    unlink(model_file), unlink(written[0]), unlink(written[1]), unlink(heads_file);
    return 0;
}

static struct samples_options sampling(void) {
    return (struct samples_options){.window_size = WINDOW,
                                    .window_count = 2,
                                    .held_out = 1,
                                    .text_queries = TEXT_QUERIES,
                                    .probe_queries = PROBE_QUERIES,
                                    .seed = 3,
                                    .bos = 1,
                                    .block = 200};
}

/* ---- samples ---- */

static void test_samples(void **state) {
    (void)state;
    struct samples s;
    struct error error;
    struct samples_options options = sampling();
    assert_ok(samples_collect(&s, model, tokens, &options, &error), error);
    size_t text = WINDOW - s.probe_count;
    assert_int_equal(s.probe_count, WINDOW / 8 / SAMPLES_SPAN * SAMPLES_SPAN);
    for (size_t window = 0; window < 2; window++) {
        const int32_t *run = s.tokens + window * WINDOW;
        assert_int_equal(run[0], 1);
        assert_memory_equal(run + 1, tokens + window * WINDOW + 1, (text - 1) * sizeof *run);
        for (size_t at = text; at < WINDOW; at += SAMPLES_SPAN) { /* each probe stood somewhere before */
            bool found = false;
            for (size_t from = 1; from + SAMPLES_SPAN <= text && !found; from++)
                found = memcmp(run + from, run + at, SAMPLES_SPAN * sizeof *run) == 0;
            assert_true(found);
        }
        for (size_t i = 0; i < s.query_count; i++) {
            size_t position = samples_position(&s, window, i);
            bool probe = i >= TEXT_QUERIES;
            assert_true(probe ? position >= text + 4 && position < WINDOW
                              : position >= text / 2 && position < text);
            if (i != 0 && i != TEXT_QUERIES) assert_true(position > samples_position(&s, window, i - 1));
        }
    }
    assert_int_equal(s.similarity_count, 2 * (text - 2));
    for (size_t i = 0; i < model->config.layer_count * model->config.head_count; i++) {
        uint64_t pairs = 0;
        for (size_t bin = 0; bin < SIMILARITY_BINS; bin++) pairs += s.similarity[i * SIMILARITY_BINS + bin];
        assert_int_equal(pairs, s.similarity_count);
        assert_true(fabs(s.similarity_sum[i]) <= (double)pairs);
    }
    samples_deinit(&s);
}

/* Layers that keep a state give no samples; behind what the model writes a window goes on from the state that the text
 * left, so the rest of it is as if nothing had been written. */
static void test_samples_with_states(void **state) {
    (void)state;
    const struct tiny_model tiny = tiny_model_default("qwen35");
    const struct device_options cpu = {.thread_count = 2, .mask = cpu_default()};
    struct samples_options options = sampling();
    struct samples plain, written_on;
    struct device *own;
    struct model *hybrid;
    struct error error;
    tiny_model_load(&tiny, "states", &cpu, &own, &hybrid);
    const struct model_config *config = &hybrid->config;
    assert_ok(samples_collect(&plain, hybrid, tokens, &options, &error), error);
    options.decode_windows = options.window_count;
    options.decode_count = 9;
    assert_ok(samples_collect(&written_on, hybrid, tokens, &options, &error), error);
    assert_int_equal(written_on.decoded_count, 2 * 9);
    assert_int_equal(written_on.similarity_count, 2 * (WINDOW - plain.probe_count - 2));
    float *keys[2] = {calloc(WINDOW, config->k_dimension * sizeof(float)),
                      calloc(WINDOW, config->k_dimension * sizeof(float))};
    size_t attending = 0;
    for (size_t layer = 0; layer < config->layer_count; layer++) {
        const bool attends = config->layers[layer].mixer == MIXER_ATTENTION;
        const size_t last = plain.query_count - 1, bytes = config->head_count * config->k_dimension * sizeof(float);
        const float *q = samples_query(&plain, layer, 1, last, 0); /* of a probe, behind the text */
        assert_memory_equal(q, samples_query(&written_on, layer, 1, last, 0), bytes);
        assert_true((q[0] != 0) == attends);
        attending += attends;
        if (!attends) continue;
        assert_ok(samples_keys(&plain, layer, 1, 1, keys[0], &error), error);
        assert_ok(samples_keys(&written_on, layer, 1, 1, keys[1], &error), error);
        assert_memory_equal(keys[0], keys[1], WINDOW * config->k_dimension * sizeof(float));
    }
    assert_int_equal(attending, 2);
    free(keys[0]), free(keys[1]);
    samples_deinit(&plain);
    samples_deinit(&written_on);
    model_destroy(hybrid);
    device_destroy(own);
}

/* The model writes behind a text: as many pairs as tokens, and keys and queries of the window are those of a window
 * behind which nothing was written. */
static void test_decoding(void **state) {
    (void)state;
    enum { WRITTEN = 20 };
    const size_t k = model->config.k_dimension, heads = model->config.layer_count * model->config.head_count;
    struct samples with, without;
    struct error error;
    struct samples_options options = sampling();
    float *keys[2] = {calloc(WINDOW * k, sizeof(float)), calloc(WINDOW * k, sizeof(float))};
    assert_ok(samples_collect(&without, model, tokens, &options, &error), error);
    options.decode_windows = 1, options.decode_count = WRITTEN;
    assert_ok(samples_collect(&with, model, tokens, &options, &error), error);
    assert_int_equal(without.decoded_count, 0);
    assert_int_equal(with.decoded_count, WRITTEN);
    bool differ = false;
    for (size_t i = 0; i < heads; i++) {
        const double mean = with.decoded_sum[i] / WRITTEN;
        assert_true(without.decoded_sum[i] == 0 && mean != 0 && fabs(mean) <= 1);
        assert_true(with.similarity_sum[i] == without.similarity_sum[i]);
        differ = differ || fabs(mean - with.similarity_sum[i] / (double)with.similarity_count) > 1e-3;
    }
    assert_true(differ);
    assert_int_equal(with.similarity_count, without.similarity_count);
    assert_memory_equal(with.queries, without.queries,
                        heads * with.options.window_count * with.query_count * k * sizeof(float));
    for (size_t window = 0; window < 2; window++) {
        assert_ok(samples_keys(&with, 1, window, 0, keys[0], &error), error);
        assert_ok(samples_keys(&without, 1, window, 0, keys[1], &error), error);
        assert_memory_equal(keys[0], keys[1], WINDOW * k * sizeof(float));
    }
    free(keys[0]), free(keys[1]);
    samples_deinit(&with);
    samples_deinit(&without);
}

static bool stop(void *context, uint64_t done) {
    *(uint64_t *)context = done;
    return done >= 400;
}

static void test_stopped(void **state) {
    (void)state;
    struct samples s;
    struct error error;
    uint64_t done = 0;
    struct samples_options options = sampling();
    options.progress = stop, options.progress_context = &done;
    assert_int_equal(samples_collect(&s, model, tokens, &options, &error), STATUS_INTERRUPTED);
    assert_int_equal(done, 400);
    assert_null(s.cache);
}

/* ---- attention of the samples ---- */

/* One query by the formula, in double; visible: 1 where it may look. */
static void plain_attention(const struct samples *s, size_t layer, size_t query, size_t head, bool stream,
                            size_t sinks, size_t recent, const float *keys, const float *values,
                            double *out) {
    const struct model_config *config = &model->config;
    size_t position = samples_position(s, 0, query), kv = head / (config->head_count / config->kv_head_count);
    const float *q = samples_query(s, layer, 0, query, head);
    double sum = 0;
    memset(out, 0, config->v_dimension * sizeof *out);
    for (size_t i = 0; i <= position; i++) {
        if (stream && i >= sinks && i + recent <= position) continue;
        double score = 0;
        for (size_t d = 0; d < config->k_dimension; d++)
            score += (double)q[d] * (double)keys[(kv * WINDOW + i) * config->k_dimension + d];
        double weight = exp(score * (double)config->attention_scale);
        sum += weight;
        for (size_t d = 0; d < config->v_dimension; d++)
            out[d] += weight * (double)values[(kv * WINDOW + i) * config->v_dimension + d];
    }
    for (size_t d = 0; d < config->v_dimension; d++) out[d] /= sum;
}

static void test_attended(void **state) {
    (void)state;
    const struct model_config *config = &model->config;
    struct samples s;
    struct error error;
    struct samples_options options = sampling();
    assert_ok(samples_collect(&s, model, tokens, &options, &error), error);
    size_t kv = config->kv_head_count * WINDOW, rows = s.query_count * config->head_count;
    float *keys = calloc(kv * config->k_dimension, sizeof *keys);
    float *values = calloc(kv * config->v_dimension, sizeof *values);
    float *out = calloc(rows * config->v_dimension, sizeof *out),
          *scratch = calloc(2 * WINDOW, sizeof *scratch);
    double expected[256], worst = 0;
    assert_ok(attended_load(&s, 1, 0, keys, values, &error), error);
    for (int stream = 0; stream < 2; stream++) {
        attended_run(device_pool(device), &(struct attended_args){.samples = &s,
                                                                  .layer = 1,
                                                                  .query_count = s.query_count,
                                                                  .keys = keys,
                                                                  .values = values,
                                                                  .stream = stream == 1,
                                                                  .sinks = 4,
                                                                  .recent = 64,
                                                                  .scratch = scratch,
                                                                  .out = out});
        for (size_t i = 0; i < rows; i++) {
            plain_attention(&s, 1, i / config->head_count, i % config->head_count, stream == 1, 4, 64, keys,
                            values, expected);
            for (size_t d = 0; d < config->v_dimension; d++)
                worst = fmax(worst, fabs(expected[d] - (double)out[i * config->v_dimension + d]));
        }
    }
    assert_true(worst < 1e-5);
    free(keys), free(values), free(out), free(scratch);
    samples_deinit(&s);
}

/* ---- what codes find ---- */

enum { BITS = 64, SINKS = 4, RECENT = 64 };
static const double keep = 0.1;

static void code_of(const uint16_t *weights, const float *x, size_t dimension, bool code[BITS]) {
    for (size_t j = 0; j < BITS; j++) {
        double product = 0;
        for (size_t d = 0; d < dimension; d++)
            product += (double)x[d] * (double)half_to_float(weights[d * BITS + j]);
        code[j] = product > 0;
    }
}

/* Marks the k greatest of scores[begin, end). */
static void mark_greatest(const double *scores, size_t begin, size_t end, size_t k, bool *marked) {
    memset(marked, 0, end * sizeof *marked);
    for (; k > 0; k--) {
        size_t best = SIZE_MAX;
        for (size_t i = begin; i < end; i++)
            if (!marked[i] && (best == SIZE_MAX || scores[i] > scores[best])) best = i;
        marked[best] = true;
    }
}

/* One query of window 0 by the definition of hash_caught, in double. */
static struct hash_caught plain_caught(const struct hash_head *head, const uint16_t *weights, size_t query) {
    const size_t n = head->dimension, position = samples_position(head->samples, 0, query);
    const size_t end = position + 1 - RECENT, k = (size_t)ceil(keep * (double)(end - SINKS));
    const float *q = samples_query(head->samples, head->layer, 0, query, head->kv_head * head->group);
    double products[4][WINDOW], summed[WINDOW] = {0}, by_code[WINDOW] = {0};
    bool best[WINDOW], found[WINDOW], few[WINDOW], code[BITS], key_code[BITS];
    for (size_t i = 0; i <= position; i++) {
        const float *key = head->keys + i * n;
        double square = 0;
        size_t distance = 0;
        code_of(weights, key, n, key_code);
        for (size_t d = 0; d < n; d++) square += (double)key[d] * (double)key[d];
        for (size_t g = 0; g < head->group; g++) {
            products[g][i] = 0;
            for (size_t d = 0; d < n; d++) products[g][i] += (double)q[g * n + d] * (double)key[d];
            summed[i] += products[g][i];
            code_of(weights, q + g * n, n, code);
            for (size_t j = 0; j < BITS; j++) distance += code[j] != key_code[j];
        }
        by_code[i] = ((double)head->group - 2.0 * (double)distance / BITS) *
                     (double)half_to_float(float_to_half((float)sqrt(square)));
    }
    mark_greatest(summed, SINKS, end, k, best);
    mark_greatest(by_code, SINKS, end, k, found);
    mark_greatest(by_code, SINKS, end, k / HASH_MASS_DIVISOR, few);
    struct hash_caught caught = {0};
    for (size_t i = SINKS; i < end; i++) caught.recall += best[i] && found[i] ? 1.0 / (double)k : 0;
    for (size_t g = 0; g < head->group; g++) {
        double all = 0, held = 0;
        for (size_t i = 0; i <= position; i++) {
            double weight = exp(products[g][i] * (double)model->config.attention_scale);
            all += weight;
            if (i < SINKS || i >= end || few[i]) held += weight;
        }
        caught.mass += held / all / (double)head->group;
    }
    return caught;
}

static void test_caught(void **state) {
    (void)state;
    struct samples s;
    struct error error;
    struct random random;
    struct kernels kernels;
    struct hash_head *head;
    struct hash_caught caught, expected = {0};
    uint16_t weights[256 * BITS];
    struct samples_options options = sampling();
    assert_ok(samples_collect(&s, model, tokens, &options, &error), error);
    for (size_t i = 0; i < s.query_count * model->config.head_count * model->config.k_dimension; i++)
        s.queries[i] *= 8; /* layer 0, window 0: else a random model attends to everything alike */
    kernels_init(&kernels, cpu_default());
    const struct hash_head_options pairs = {.query_count = 4, .keys_per_query = 4};
    assert_ok(hash_head_create(&head, &s, &kernels, device_pool(device), &pairs, &error), error);
    random_init(&random, 5);
    assert_true(head->dimension <= 256 && head->group <= 4);
    assert_ok(hash_random_weights(&random, head->dimension, BITS, weights, &error), error);
    assert_ok(hash_head_load(head, 0, 1, 0, 1, &error), error);
    assert_ok(hash_head_caught(head, weights, BITS, (struct hash_keep){keep, SINKS, RECENT}, &caught, &error),
              error);
    for (size_t i = 0; i < s.query_count; i++) {
        struct hash_caught one = plain_caught(head, weights, i);
        expected.recall += one.recall / (double)s.query_count;
        expected.mass += one.mass / (double)s.query_count;
    }
    /* Scores that are nearly equal may change places. */
    assert_true(fabs(caught.recall - expected.recall) < 0.004);
    assert_true(fabs(caught.mass - expected.mass) < 0.002);
    assert_true(expected.mass > 0.2 && expected.mass < 0.9);
    hash_head_destroy(head);
    samples_deinit(&s);
}

/* ---- the study of a layer ---- */

static void test_importance(void **state) {
    (void)state;
    struct samples s;
    struct error error;
    struct kernels kernels;
    struct layer_study *study;
    struct samples_options options = sampling();
    float importance[64], alone[64], sensitivity[STUDY_ROUNDINGS], before[64];
    size_t heads = model->config.head_count;
    kernels_init(&kernels, cpu_default());
    assert_ok(samples_collect(&s, model, tokens, &options, &error), error);
    /* A window that holds everything loses nothing: no head matters. */
    struct layer_study_options how = {.sinks = 4, .recent = WINDOW, .lambda = 0.05};
    const struct layer_figures figures = {importance, alone, sensitivity};
    assert_ok(layer_study_create(&study, &s, &kernels, device_pool(device), &how, &error), error);
    assert_ok(layer_study_run(study, 0, 0, &figures, &error), error);
    for (size_t h = 0; h < heads; h++) assert_true(importance[h] == 0 && alone[h] == 0);
    assert_true(sensitivity[STUDY_K8] > 0 && sensitivity[STUDY_K8] < 0.5f * sensitivity[STUDY_K4]);
    assert_true(sensitivity[STUDY_V8] > 0 && sensitivity[STUDY_V8] < 0.2f * sensitivity[STUDY_V4]);
    layer_study_destroy(study);
    /* What a head must not lose grows as alpha costs less. */
    for (int round = 0; round < 2; round++) {
        how.recent = 16, how.lambda = round == 0 ? 10 : 1e-6;
        assert_ok(layer_study_create(&study, &s, &kernels, device_pool(device), &how, &error), error);
        assert_ok(layer_study_run(study, 0, 0, &figures, &error), error);
        for (size_t h = 0; h < heads; h++) {
            assert_true(alone[h] > 0);
            if (round == 0) assert_true(importance[h] == 0);
            if (round == 1) assert_true(importance[h] > 0.9f);
        }
        memcpy(before, importance, sizeof before);
        layer_study_destroy(study);
    }
    samples_deinit(&s);
}

static void test_rounding(void **state) {
    (void)state;
    enum { COUNT = 130, DIMENSION = 72 };
    float *x = calloc(3 * COUNT * DIMENSION, sizeof *x), *kept = x + COUNT * DIMENSION;
    struct random random;
    random_init(&random, 8);
    for (size_t i = 0; i < COUNT * DIMENSION; i++) kept[i] = (float)random_normal(&random);
    for (int kind = 0; kind < 3; kind++) {
        double worst = 0;
        memcpy(x, kept, COUNT * DIMENSION * sizeof *x);
        if (kind == 0) study_round_q8(x, COUNT, DIMENSION);
        if (kind == 1) study_round_tokens_4(x, COUNT, DIMENSION);
        if (kind == 2) study_round_channel_4(x, COUNT, DIMENSION);
        for (size_t i = 0; i < COUNT * DIMENSION; i++) worst = fmax(worst, fabs((double)(x[i] - kept[i])));
        /* Half a step: of 127 of the largest; of 15 of the range. |x| < 5. */
        assert_true(worst > 1e-3 && worst <= (kind == 0 ? 5.0 / 254 : 10.0 / 30));
        memcpy(x + 2 * COUNT * DIMENSION, x, COUNT * DIMENSION * sizeof *x);
        if (kind == 2) { /* 16 values per channel and 64 tokens */
            for (size_t d = 0; d < DIMENSION; d++) {
                size_t different = 0;
                for (size_t i = 0; i < 64; i++) {
                    bool is_new = true;
                    for (size_t j = 0; j < i; j++)
                        is_new = is_new && fabsf(x[i * DIMENSION + d] - x[j * DIMENSION + d]) > 1e-5f;
                    different += is_new;
                }
                assert_true(different <= 16);
            }
        }
    }
    free(x);
}

/* ---- skewing ---- */

static void test_skew(void **state) {
    (void)state;
    enum { N = 40, ROWS = 300 };
    double q[N * N] = {0}, k[N * N] = {0}, skew[N * N], kept, last = INFINITY,
                 *work = calloc(3 * N * N, sizeof *work);
    float x[N];
    double *rows = calloc(2 * ROWS * N, sizeof *rows);
    struct random random;
    random_init(&random, 6);
    for (size_t i = 0; i < 2 * ROWS; i++) {
        for (size_t d = 0; d < N; d++) /* energy in some directions: a fixed mix of few */
            x[d] = (float)(random_normal(&random) * exp2(-(double)(i < ROWS ? d : (d * 7) % N) / 4));
        for (size_t d = 0; d < N; d++) rows[i * N + d] = (double)x[d];
        for (size_t a = 0; a < N * N; a++) (i < ROWS ? q : k)[a] += (double)x[a / N] * (double)x[a % N];
    }
    skew_find(q, k, N, work, skew, &kept);
    assert_true(kept > 0.5 && kept <= 1);
    for (size_t a = 0; a < N; a++) {
        double sigma_q = 0, sigma_k = 0;
        for (size_t b = 0; b < N; b++) {
            double dot = 0;
            for (size_t d = 0; d < N; d++) dot += skew[d * N + a] * skew[d * N + b];
            assert_true(fabs(dot - (a == b)) < 1e-10); /* so q.k stays what it is */
        }
        for (size_t i = 0; i < ROWS; i++) {
            double of_q = 0, of_k = 0;
            for (size_t d = 0; d < N; d++) {
                of_q += rows[i * N + d] * skew[d * N + a];
                of_k += rows[(ROWS + i) * N + d] * skew[d * N + a];
            }
            sigma_q += of_q * of_q, sigma_k += of_k * of_k;
        }
        double product = sqrt(sigma_q * sigma_k);
        assert_true(product <= last * (1 + 1e-6));
        last = product;
    }
    free(work), free(rows);
}

/* ---- the whole ---- */

static struct calibrate_options quick(void) {
    struct calibrate_options options = calibrate_options_default();
    options.window_size = WINDOW, options.window_count = WINDOWS, options.held_out = 1;
    options.text_queries = TEXT_QUERIES, options.probe_queries = PROBE_QUERIES;
    options.bits[0] = 64, options.bits_count = 1;
    options.training.epochs = 1, options.training.steps = 3, options.training.batch_queries = 16,
    options.training.batch_keys = 32;
    return options;
}

static void check_file(const struct calibration_result *result) {
    struct calibration *calibration;
    struct error error;
    size_t columns = 64, heads = result->layer_count * result->head_count;
    assert_ok(calibration_open(&calibration, model, written[0], &error), error);
    const uint16_t *hash = calibration_find(calibration, "hash", 1, &columns);
    assert_non_null(hash);
    size_t layer_size = result->kv_head_count * result->k_dimension * 64;
    assert_memory_equal(hash, result->hash[0] + layer_size, layer_size * sizeof *hash);
    columns = 0;
    assert_non_null(calibration_find(calibration, "skew", 1, &columns));
    assert_int_equal(columns, result->k_dimension);
    assert_memory_equal(calibration_head_importance(calibration), result->importance, heads * sizeof(float));
    assert_memory_equal(calibration_query_similarity(calibration), result->similarity, heads * sizeof(float));
    assert_memory_equal(calibration_decoded_similarity(calibration), result->similarity_decoded,
                        heads * sizeof(float));
    const size_t lanes = result->layer_count * result->kv_head_count;
    const struct reuse_point *curves =
        (const struct reuse_point *)(const void *)calibration_reuse_curve(calibration, REUSE_CURVE_POINTS);
    assert_non_null(curves);
    assert_memory_equal(curves, result->reuse, lanes * REUSE_CURVE_POINTS * sizeof *curves);
    assert_null(calibration_reuse_curve(calibration, REUSE_CURVE_POINTS + 1)); /* of another build */
    for (size_t i = 0; i < lanes; i++)
        assert_true(curves[i * REUSE_CURVE_POINTS].hits > 0.9F &&
                    curves[(i + 1) * REUSE_CURVE_POINTS - 1].hits == 0);
    calibration_close(calibration);
}

static void test_whole(void **state) {
    (void)state;
    struct error error;
    struct calibrate_options options = quick();
    char *texts[2];
    size_t sizes[2];
    for (size_t threads = 1; threads <= 2; threads++) { /* the same bytes whatever the number of threads */
        struct device *own;
        struct model *same;
        struct calibration_result result;
        assert_ok(device_cpu_create(
                      &own, &(struct device_options){.thread_count = threads, .mask = cpu_default()}, &error),
                  error);
        assert_ok(model_load(&same, model_file, own, &error), error);
        assert_ok(calibrate_run(&result, same, tokens, &options, &error), error);
        assert_ok(calibration_write(&result, same, written[threads - 1], &error), error);
        if (threads == 1) check_file(&result);
        for (size_t i = 0; i < result.layer_count * result.kv_head_count; i++) {
            const struct hash_learned *l = &result.learned[0][i];
            assert_true(l->random > options.keep && l->random < 1 && l->learned > options.keep &&
                        l->learned < 1);
        }
        for (size_t i = 0; i < result.layer_count * result.head_count; i++) {
            const float *quantiles = result.similarity_quantiles + i * CALIBRATE_QUANTILES;
            for (size_t j = 1; j < CALIBRATE_QUANTILES; j++) assert_true(quantiles[j] >= quantiles[j - 1]);
            assert_true(result.similarity[i] > quantiles[0] &&
                        result.similarity[i] < quantiles[CALIBRATE_QUANTILES - 1]);
        }
        calibration_result_deinit(&result);
        model_destroy(same);
        device_destroy(own);
    }
    for (size_t i = 0; i < 2; i++)
        assert_ok(file_read_all(written[i], 1 << 26, &texts[i], &sizes[i], &error), error);
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(texts[0], texts[1], sizes[0]);
    free(texts[0]), free(texts[1]);
}

static void test_fit(void **state) {
    (void)state;
    struct error error;
    struct calibrate_options options = calibrate_options_default();
    assert_int_equal(calibrate_options_fit(&options, model, 2000, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "2000 tokens"));
    options = calibrate_options_default();
    assert_ok(calibrate_options_fit(&options, model, 4 * 512, &error), error);
    assert_true(options.window_size == 512 && options.window_count == 4 && options.held_out == 1);
}

/* ---- published head scores ---- */

static enum status import(const char *text, float *importance, struct error *error) {
    struct calibration_result result = {.layer_count = 2, .head_count = 4, .kv_head_count = 2};
    FILE *file = fopen(heads_file, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    result.importance = calloc(8, sizeof(float));
    enum status status = calibrate_import_heads(&result, heads_file, error);
    memcpy(importance, result.importance, 8 * sizeof(float));
    if (status == STATUS_OK) assert_string_equal(result.importance_source, heads_file);
    calibration_result_deinit(&result);
    return status;
}

static void test_heads(void **state) {
    (void)state;
    struct error error;
    float found[8];
    const float groups[8] = {0.5f, 0.5f, 1, 1, 0, 0, 0.25f, 0.25f};
    assert_ok(import("5.0e-01\t1.01\n-2.2e-05\t0.25\n\n", found, &error), error);
    assert_memory_equal(found, groups, sizeof groups);
    const float each[8] = {0, 0.25f, 0.5f, 1, 1, 0.5f, 0.25f, 0};
    assert_ok(import("0 0.25 0.5 1\r\n1 0.5 0.25 0", found, &error), error);
    assert_memory_equal(found, each, sizeof each);
    const char *const wrong[][2] = {
        {"0.5\t1\n", "1 lines of scores; this model has 2 layers"},
        {"0 1\n0 1\n0 1\n", "line 3: this model has only 2 layers"},
        {"0 1 0\n0 1 0\n", "line 1: 3 scores; this model has 2 KV heads and 4 heads"},
        {"0 1\n0 1.5\n", "line 2: score 1.5, expected 0 to 1"},
        {"0 1\n0 nan\n", "line 2: score nan"},
        {"0 1\n0 x\n", "line 2: 'x' is no number"},
        {"0 1\n0 1x\n", "line 2: '1x' is no number"},
        {"", "0 lines"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(import(wrong[i][0], found, &error), STATUS_USAGE);
        if (strstr(error.message, wrong[i][1]) == NULL)
            fail_msg("no '%s' in: %s", wrong[i][1], error.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),  cmocka_unit_test(test_samples_with_states),
        cmocka_unit_test(test_decoding), cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_attended), cmocka_unit_test(test_caught),   cmocka_unit_test(test_importance),
        cmocka_unit_test(test_rounding), cmocka_unit_test(test_skew),     cmocka_unit_test(test_whole),
        cmocka_unit_test(test_fit),      cmocka_unit_test(test_heads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

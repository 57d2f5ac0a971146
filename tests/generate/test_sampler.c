/* The sampler: which tokens may be drawn, how often, and that a seed repeats. */
#include "testing.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate/sampler.h"

enum { SMALL = 8, LARGE = 128256 };

static const struct sampler_options plain = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 42};

static struct sampler *make(const struct sampler_options *options, size_t size) {
    struct sampler *sampler;
    struct error error;
    assert_ok(sampler_create(&sampler, options, NULL, size, &error), error);
    return sampler;
}

static int32_t pick(struct sampler *sampler, const float *logits) {
    int32_t token = -1;
    struct error error;
    assert_ok(sampler_pick(sampler, logits, &token, &error), error);
    return token;
}

/* Draws n tokens and counts them. */
static void histogram(const struct sampler_options *options, const float *logits, size_t size, size_t n,
                      size_t *counts) {
    struct sampler *sampler = make(options, size);
    memset(counts, 0, size * sizeof *counts);
    for (size_t i = 0; i < n; i++) counts[pick(sampler, logits)]++;
    sampler_destroy(sampler);
}

static double chi_square(const size_t *counts, const double *probabilities, size_t size, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < size; i++) {
        double expected = probabilities[i] * (double)n;
        if (expected == 0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        sum += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
    }
    return sum;
}

/* With the seed fixed this is exact, not a matter of luck; 24.3 is the 0.1% point of 7 degrees. */
static void test_distribution(void **state) {
    (void)state;
    enum { DRAWS = 100000 };
    float logits[SMALL] = {0.5F, -1, 2, 0, 1.5F, -3, 0.25F, 1};
    const float temperatures[] = {1, 0.7F, 2.5F};
    for (size_t t = 0; t < 3; t++) {
        struct sampler_options options = plain;
        options.temperature = temperatures[t];
        double probabilities[SMALL], sum = 0;
        for (size_t i = 0; i < SMALL; i++)
            sum += probabilities[i] = exp((double)logits[i] / (double)temperatures[t]);
        for (size_t i = 0; i < SMALL; i++) probabilities[i] /= sum;
        size_t counts[SMALL];
        histogram(&options, logits, SMALL, DRAWS, counts);
        assert_true(chi_square(counts, probabilities, SMALL, DRAWS) < 24.3);
        /* and the test can fail: the same counts against another temperature */
        for (size_t i = 0; i < SMALL; i++) probabilities[i] = 1.0 / SMALL;
        assert_true(chi_square(counts, probabilities, SMALL, DRAWS) > 1000);
    }
}

static void test_filters(void **state) {
    (void)state;
    /* probabilities 0.4, 0.3, 0.2, 0.1 at ids 3, 1, 0, 2; -inf elsewhere */
    float logits[SMALL];
    for (size_t i = 0; i < SMALL; i++) logits[i] = -INFINITY;
    logits[3] = logf(0.4F), logits[1] = logf(0.3F), logits[0] = logf(0.2F), logits[2] = logf(0.1F);
    static const struct {
        uint32_t top_k;
        float top_p, min_p;
        double expected[SMALL];
    } cases[] = {
        {0, 1, 0, {0.2, 0.3, 0.1, 0.4}},
        {2, 1, 0, {0, 3.0 / 7, 0, 4.0 / 7}},
        {0, 0.69F, 0, {0, 3.0 / 7, 0, 4.0 / 7}},
        {0, 0.75F, 0, {2.0 / 9, 3.0 / 9, 0, 4.0 / 9}},
        {3, 0.5F, 0, {0, 3.0 / 7, 0, 4.0 / 7}}, /* top-p of what top-k left */
        {3, 0.4F, 0, {0, 0, 0, 1}},
        {0, 0, 0, {0, 0, 0, 1}},
        {0, 1, 0.6F, {0, 3.0 / 7, 0, 4.0 / 7}},
        {0, 1, 1, {0, 0, 0, 1}},
        {1, 1, 0, {0, 0, 0, 1}},
        {100, 1, 0.26F, {2.0 / 9, 3.0 / 9, 0, 4.0 / 9}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sampler_options options = plain;
        options.top_k = cases[c].top_k;
        options.top_p = cases[c].top_p;
        options.min_p = cases[c].min_p;
        size_t counts[SMALL];
        histogram(&options, logits, SMALL, 20000, counts);
        double chi = chi_square(counts, cases[c].expected, SMALL, 20000);
        if (!(chi < 24.3)) fail_msg("case %zu: chi-square %g", c, chi);
    }
}

/* A large vocabulary: the partial selection gives what a full sort would. */
static int by_logit(const void *a, const void *b) {
    const float *x = *(const float *const *)a, *y = *(const float *const *)b;
    return *x > *y ? -1 : *x < *y ? 1 : x < y ? -1 : x > y;
}

static void test_large_vocabulary(void **state) {
    (void)state;
    float *logits = malloc(LARGE * sizeof *logits);
    const float **order = malloc(LARGE * sizeof *order);
    bool *allowed = calloc(LARGE, sizeof *allowed);
    struct random random;
    random_init(&random, 5);
    for (size_t i = 0; i < LARGE; i++) { /* many ties: multiples of 1/16 */
        logits[i] = (float)round(random_normal(&random) * 32) / 16;
        order[i] = &logits[i];
    }
    qsort(order, LARGE, sizeof *order, by_logit);
    static const struct {
        uint32_t top_k;
        float top_p;
    } cases[] = {{40, 1}, {1000, 0.5F}, {0, 0.01F}, {0, 0.9F}, {0, 0.999F}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        size_t count = cases[c].top_k != 0 ? cases[c].top_k : LARGE, kept = 0;
        double total = 0, sum = 0;
        for (size_t i = 0; i < count; i++) total += exp((double)*order[i]);
        memset(allowed, 0, LARGE * sizeof *allowed);
        for (; kept < count && (kept == 0 || sum < (double)cases[c].top_p * total); kept++) {
            sum += exp((double)*order[kept]);
            allowed[order[kept] - logits] = true;
        }
        struct sampler_options options = plain;
        options.top_k = cases[c].top_k;
        options.top_p = cases[c].top_p;
        options.temperature = 100; /* nearly uniform over what is allowed */
        struct sampler *sampler = make(&options, LARGE);
        bool reached_end = false;
        for (size_t i = 0; i < 20; i++) {
            int32_t token = pick(sampler, logits);
            assert_true(allowed[token]);
            for (size_t j = kept / 2; j < kept; j++)
                if (order[j] - logits == token) reached_end = true;
        }
        assert_true(reached_end); /* the tail is drawn from as well */
        sampler_destroy(sampler);
    }
    free(logits);
    free(order);
    free(allowed);
}

static void test_greedy_and_ties(void **state) {
    (void)state;
    float logits[SMALL] = {1, 3, 2, 3, 3, 0, -1, 2}, equal[SMALL] = {0};
    struct sampler_options options = plain;
    options.temperature = 0;
    struct sampler *sampler = make(&options, SMALL);
    assert_int_equal(pick(sampler, logits), 1);
    assert_int_equal(pick(sampler, equal), 0);
    sampler_destroy(sampler);
    options = plain;
    options.top_k = 2; /* of three equal ones: the lower two ids */
    size_t counts[SMALL];
    histogram(&options, logits, SMALL, 1000, counts);
    assert_int_equal(counts[1] + counts[3], 1000);
    assert_true(counts[1] > 400 && counts[3] > 400);
    histogram(&plain, equal, SMALL, 8000, counts);
    for (size_t i = 0; i < SMALL; i++) assert_true(counts[i] > 850 && counts[i] < 1150);
}

static void test_repetition_penalty(void **state) {
    (void)state;
    float logits[SMALL] = {2, 3, -1, 0, 1, -2, -3, 2.5F};
    struct sampler_options options = plain;
    options.temperature = 0;
    options.repeat_penalty = 2;
    options.repeat_last = 2;
    struct sampler *sampler = make(&options, SMALL);
    assert_int_equal(pick(sampler, logits), 1);
    sampler_accept(sampler, 1); /* 3 -> 1.5 */
    assert_int_equal(pick(sampler, logits), 7);
    sampler_accept(sampler, 7); /* 2.5 -> 1.25 */
    assert_int_equal(pick(sampler, logits), 0);
    sampler_accept(sampler, 0); /* 1 is forgotten: two are looked back at */
    assert_int_equal(pick(sampler, logits), 1);
    sampler_accept(sampler, 1), sampler_accept(sampler, 1); /* once, not twice: 1.5, below 2.5 and 2 */
    assert_int_equal(pick(sampler, logits), 7);
    sampler_accept(sampler, -5), sampler_accept(sampler, 1000); /* ignored */
    sampler_destroy(sampler);
}

/* Each occurrence counts for one penalty, the first alone for the other; what leaves the window is forgotten. */
static void test_presence_and_frequency(void **state) {
    (void)state;
    float logits[SMALL] = {2, 3, -1, 0, 1, -2, -3, 2.5F};
    struct sampler_options options = plain;
    options.temperature = 0;
    options.frequency_penalty = 0.375F;
    options.repeat_last = 3;
    struct sampler *sampler = make(&options, SMALL);
    sampler_accept(sampler, 1); /* 3 -> 2.625 */
    assert_int_equal(pick(sampler, logits), 1);
    sampler_accept(sampler, 1); /* 2.25 */
    assert_int_equal(pick(sampler, logits), 7);
    sampler_accept(sampler, 5), sampler_accept(sampler, 5); /* one of the two is forgotten: 2.625 */
    assert_int_equal(pick(sampler, logits), 1);
    sampler_destroy(sampler);
    options.frequency_penalty = 0;
    options.presence_penalty = 0.75F;
    sampler = make(&options, SMALL);
    sampler_accept(sampler, 1), sampler_accept(sampler, 1); /* 2.25, however often */
    assert_int_equal(pick(sampler, logits), 7);
    sampler_accept(sampler, 7); /* 1.75 */
    assert_int_equal(pick(sampler, logits), 1);
    sampler_destroy(sampler);
    options.presence_penalty = -1.5F;
    options.repeat_penalty = 2; /* divides first: 2 / 2 + 1.5 = 2.5; -1 * 2 + 1.5 = -0.5 */
    sampler = make(&options, SMALL);
    sampler_accept(sampler, 0), sampler_accept(sampler, 2);
    logits[1] = 2.25F, logits[7] = 2.375F;
    assert_int_equal(pick(sampler, logits), 0);
    sampler_destroy(sampler);
}

static void test_biases(void **state) {
    (void)state;
    float logits[SMALL] = {2, 3, -1, 0, 1, -2, -INFINITY, 2.5F};
    struct token_bias biases[] = {{1, -INFINITY}, {0, 0.75F}, {3, 1}, {3, 1.5F}, {6, 100}};
    struct sampler_options options = plain;
    struct error error;
    options.temperature = 0;
    options.biases = biases;
    options.bias_count = 2;
    struct sampler *sampler = make(&options, SMALL);
    assert_int_equal(pick(sampler, logits), 0); /* 2.75 */
    sampler_destroy(sampler);
    options.bias_count = 5; /* 0 + 1 + 1.5 is less than 2.75; what the model excludes stays excluded */
    biases[1].bias = 0.25F;
    sampler = make(&options, SMALL);
    biases[3].bias = 100; /* they are copied */
    assert_int_equal(pick(sampler, logits), 3);
    sampler_destroy(sampler);
    options.temperature = 1;
    options.bias_count = 1;
    size_t counts[SMALL];
    histogram(&options, logits, SMALL, 20000, counts);
    assert_true(counts[1] == 0 && counts[6] == 0 && counts[0] > 0);
    struct token_bias all[SMALL];
    for (int32_t i = 0; i < SMALL; i++) all[i] = (struct token_bias){i, -INFINITY};
    options.biases = all;
    options.bias_count = SMALL;
    sampler = make(&options, SMALL);
    int32_t token;
    assert_int_equal(sampler_pick(sampler, logits, &token, &error), STATUS_FAILED);
    assert_non_null(strstr(error.message, "biases"));
    sampler_destroy(sampler);
    static const struct token_bias bad[] = {{-1, 0}, {SMALL, 0}, {1, NAN}, {1, INFINITY}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        options.biases = &bad[i];
        options.bias_count = 1;
        assert_int_equal(sampler_create(&sampler, &options, NULL, SMALL, &error), STATUS_USAGE);
    }
}

/* A vocabulary of SMALL tokens whose file suppresses some; and one whose list is no list of tokens. */
static void test_suppressed(void **state) {
    (void)state;
    static const int32_t ids[] = {-1, 1, SMALL, 4};
    const float logits[SMALL] = {0, 9, 1, 2, 8, 7, 3, 4}, scores[SMALL] = {0};
    struct gguf_string words[SMALL];
    for (size_t i = 0; i < SMALL; i++) words[i] = (struct gguf_string){"abcdefgh" + i, 1};
    for (int is_list = 0; is_list < 2; is_list++) {
        char path[64];
        struct gguf_writer *w;
        struct gguf gguf;
        struct error error;
        struct tokenizer *t;
        snprintf(path, sizeof path, "test_sampler.%d.gguf", (int)getpid());
        assert_ok(gguf_writer_create(&w, path, &error), error);
        assert_ok(gguf_writer_add_string(w, "tokenizer.ggml.model", "llama", 5, &error), error);
        assert_ok(gguf_writer_add_strings(w, "tokenizer.ggml.tokens", words, SMALL, &error), error);
        assert_ok(gguf_writer_add_floats(w, "tokenizer.ggml.scores", scores, SMALL, &error), error);
        if (is_list) assert_ok(gguf_writer_add_ints(w, "tokenizer.ggml.suppress_tokens", ids, 4, &error), error);
        if (!is_list) assert_ok(gguf_writer_add_uint(w, "tokenizer.ggml.suppress_tokens", 1, &error), error);
        assert_ok(gguf_writer_begin_data(w, &error), error);
        assert_ok(gguf_writer_commit(w, &error), error);
        gguf_writer_destroy(w);
        assert_ok(gguf_open(&gguf, path, &error), error);
        unlink(path);
        const enum status status = tokenizer_create(&t, &gguf, false, &error);
        gguf_close(&gguf);
        assert_int_equal(status, is_list ? STATUS_OK : STATUS_MODEL);
        if (!is_list) assert_non_null(strstr(error.message, "tokenizer.ggml.suppress_tokens"));
        if (!is_list) continue;
        const struct token_bias bias = {5, -INFINITY};
        struct sampler_options options = plain;
        options.temperature = 0;
        struct sampler *sampler;
        for (options.bias_count = 0; options.bias_count < 2; options.bias_count++) {
            options.biases = &bias;
            assert_ok(sampler_create(&sampler, &options, t, SMALL, &error), error);
            assert_int_equal(pick(sampler, logits), options.bias_count == 0 ? 5 : 7);
            sampler_destroy(sampler);
        }
        tokenizer_destroy(t);
    }
}

static void test_broken_logits(void **state) {
    (void)state;
    struct sampler *sampler = make(&plain, 4);
    struct error error;
    int32_t token = -7;
    float none[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, nan[4] = {0, NAN, 1, 2},
          inf[4] = {0, 1, INFINITY, 2};
    float one[4] = {-INFINITY, -INFINITY, -5, -INFINITY};
    assert_int_equal(sampler_pick(sampler, none, &token, &error), STATUS_FAILED);
    assert_int_equal(sampler_pick(sampler, nan, &token, &error), STATUS_FAILED);
    assert_non_null(strstr(error.message, "token 1"));
    assert_int_equal(sampler_pick(sampler, inf, &token, &error), STATUS_FAILED);
    assert_int_equal(token, -7);
    for (int i = 0; i < 100; i++) assert_int_equal(pick(sampler, one), 2);
    sampler_destroy(sampler);
    static const struct sampler_options bad[] = {
        {.temperature = -1, .top_p = 1, .repeat_penalty = 1},
        {.temperature = NAN, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 1.5F, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 1, .min_p = -0.1F, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 0},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .repeat_last = 1u << 31},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .presence_penalty = NAN},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .frequency_penalty = -101},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(sampler_create(&sampler, &bad[i], NULL, 4, &error), STATUS_USAGE);
}

static void test_seed(void **state) {
    (void)state;
    float logits[64];
    for (size_t i = 0; i < 64; i++) logits[i] = (float)(i % 7);
    struct sampler_options options = sampler_options_default();
    options.repeat_penalty = 1.1F;
    options.seed = 7;
    struct sampler *a = make(&options, 64), *b = make(&options, 64);
    options.seed = 8;
    struct sampler *c = make(&options, 64);
    size_t different = 0;
    for (size_t i = 0; i < 1000; i++) {
        int32_t x = pick(a, logits), y = pick(b, logits), z = pick(c, logits);
        assert_int_equal(x, y);
        different += x != z;
        sampler_accept(a, x), sampler_accept(b, y), sampler_accept(c, z);
    }
    assert_true(different > 500);
    sampler_destroy(a), sampler_destroy(b), sampler_destroy(c);
}

static void test_top(void **state) {
    (void)state;
    const float logits[6] = {1, 3, 2, 3, -INFINITY, 0};
    struct token_probability top[8];
    sampler_top(logits, 6, top, 8);
    const int32_t ids[6] = {1, 3, 2, 0, 5, 4};
    double sum = 2 * exp(3) + exp(2) + exp(1) + 1;
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(top[i].id, ids[i]);
        assert_true(fabs((double)top[i].log_probability - ((double)logits[ids[i]] - log(sum))) < 1e-6);
    }
    assert_int_equal(top[5].id, 4);
    assert_int_equal(top[6].id, -1);
    sampler_top(logits, 6, top, 2);
    assert_int_equal(top[0].id, 1);
    assert_int_equal(top[1].id, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_greedy_and_ties),
        cmocka_unit_test(test_repetition_penalty),
        cmocka_unit_test(test_presence_and_frequency),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_suppressed),
        cmocka_unit_test(test_broken_logits),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_top),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Rope frequencies of every kind against values from an independent program (rope_fixture.py). */
#include "testing.h"

#include <math.h>
#include <stdio.h>

#include "model/rope_scaling.h"

struct rope_case {
    const char *name;
    enum rope_scaling scaling;
    size_t dimension;
    double base, factor;
    uint64_t original_context;
    double low_factor, high_factor, attention_factor;
    double frequency[ROPE_PAIRS_MAX];
};

#include "rope_fixture.h"

static struct model_config config_of(const struct rope_case *c) {
    return (struct model_config){.has_rope = true,
                                 .rope_dimension = c->dimension,
                                 .rope_base = (float)c->base,
                                 .rope_scaling = c->scaling,
                                 .rope_factor = (float)c->factor,
                                 .rope_original_context = c->original_context,
                                 .llama3_low_factor = (float)c->low_factor,
                                 .llama3_high_factor = (float)c->high_factor,
                                 .yarn_extrapolation = 1,
                                 .yarn_beta_fast = 32,
                                 .yarn_beta_slow = 1};
}

/* Both sides compute in double; the table is float: half a unit in the last place, and one spare. */
static void check(const struct rope_case *c, const float *frequency) {
    for (size_t j = 0; j < c->dimension / 2; j++)
        if (!(fabs((double)frequency[j] - c->frequency[j]) <= 0x1.0p-23 * c->frequency[j]))
            fail_msg("%s pair %zu: %.9g, expected %.9g", c->name, j, (double)frequency[j], c->frequency[j]);
}

static void test_frequencies(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rope_cases / sizeof rope_cases[0]; i++) {
        float frequency[ROPE_PAIRS_MAX];
        struct model_config config = config_of(&rope_cases[i]);
        rope_frequencies(&config, config.rope_dimension, NULL, frequency);
        check(&rope_cases[i], frequency);
    }
}

/* The same model with its divisors in a tensor, as GGUF files carry them (floats: one rounding more). */
static void test_llama3_by_tensor(void **state) {
    (void)state;
    size_t tested = 0;
    for (size_t i = 0; i < sizeof rope_cases / sizeof rope_cases[0]; i++) {
        const struct rope_case *c = &rope_cases[i];
        if (c->scaling != ROPE_SCALING_LLAMA3) continue;
        double divisors[ROPE_PAIRS_MAX];
        float stored[ROPE_PAIRS_MAX], frequency[ROPE_PAIRS_MAX];
        rope_llama3_divisors(c->base, c->dimension, c->factor, c->low_factor, c->high_factor,
                             (double)c->original_context, divisors);
        for (size_t j = 0; j < c->dimension / 2; j++) stored[j] = (float)divisors[j];
        struct model_config config = config_of(c);
        config.llama3_low_factor = config.llama3_high_factor = 0;
        config.rope_factor = 1;
        rope_frequencies(&config, config.rope_dimension, stored, frequency);
        for (size_t j = 0; j < c->dimension / 2; j++)
            assert_true(fabs((double)frequency[j] - c->frequency[j]) <= 0x1.0p-22 * c->frequency[j]);
        tested++;
    }
    assert_true(tested >= 2);
}

static void test_yarn_magnitude(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rope_cases / sizeof rope_cases[0]; i++)
        if (rope_cases[i].scaling == ROPE_SCALING_YARN)
            assert_true(fabs(rope_yarn_magnitude(rope_cases[i].factor, 1) - rope_cases[i].attention_factor) <
                        1e-12);
    assert_true(rope_yarn_magnitude(0.5, 1) == 1.0);
    assert_true(fabs(rope_yarn_magnitude(40, 0.707) - 1.2608037774058554) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_llama3_by_tensor),
        cmocka_unit_test(test_yarn_magnitude),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

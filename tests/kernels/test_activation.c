/* activation: every variant against double.
 *
 * eps = 2^-24.  floats_exp is off by at most 2 units in the last place, 4 eps; its argument -x is exact in
 * silu, so silu(x) * up is off by (4 + 1 + 1 + 1) eps of itself, taken as 8; where exp overflows or
 * is flushed the result is below 2.4e-38 |x|.  gelu's exponent 2u is rounded 4 times, each worth |2u| eps, and its
 * product once.  softcap is off by 4e-7 of its cap (kernels/floats.h). */
#include "check.h"

#include "kernels/activation/activation.h"

static const double eps = 0x1p-24;

#if defined(LOAM_EMULATED)
void emulated_activation_avx512_install(struct activation_kernels *kernels);
#endif
CHECK_LEVELS_WITH(activation, emulated_activation_avx512_install)

/* Magnitudes from 1.5e-8 to 403, both signs, through each function. */
static void functions_match(void **state) {
    (void)state;
    enum { COUNT = 4096 };
    static float x[COUNT], up[COUNT], y[COUNT];
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(41));
    for (size_t round = 0; round < 60; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            double size = exp(random_double(&random) * 24 - 18); /* 1.5e-8 .. 403 */
            x[i] = (float)(random_next(&random) & 1 ? size : -size);
            up[i] = (float)(random_normal(&random) * (i % 8 == 0 ? 9 : 1));
        }
        for (size_t l = 0; l < level_count; l++) {
            const struct activation_kernels *kernels = &levels[l].kernels;
            fill_nan(y, COUNT);
            kernels->silu_multiply(x, up, COUNT, y);
            for (size_t i = 0; i < COUNT; i++) {
                double v = (double)x[i], want = v / (1 + exp(-v)) * (double)up[i];
                check_near(y[i], want, 8 * eps * fabs(want) + 3e-38 * fabs(v * (double)up[i]), "%s silu(%g)",
                           levels[l].name, v);
            }
            fill_nan(y, COUNT);
            kernels->swiglu_clamped(x, up, COUNT, y);
            for (size_t i = 0; i < COUNT; i++) {
                double g = fmin((double)x[i], 7), v = 1.702 * g, u = fmax(-7, fmin((double)up[i], 7)) + 1;
                double want = g / (1 + exp(-v)) * u;
                check_near(y[i], want, (10 + fabs(v)) * eps * fabs(want) + eps * fabs(g) + 3e-38 * fabs(v),
                           "%s swiglu(%g, %g)", levels[l].name, (double)x[i], (double)up[i]);
            }
            fill_nan(y, COUNT);
            kernels->gelu_multiply(x, up, COUNT, y);
            for (size_t i = 0; i < COUNT; i++) {
                double v = (double)x[i], u = 0.79788456080286536 * (v + 0.044715 * v * v * v);
                double want = v / (1 + exp(-2 * u)) * (double)up[i];
                double tiny = 3e-38 * fabs(v * (double)up[i]) + 1e-40;
                check_near(y[i], want, (9 + 5 * fabs(2 * u)) * eps * fabs(want) + tiny, "%s gelu(%g)",
                           levels[l].name, v);
            }
            fill_nan(y, COUNT);
            kernels->softcap(x, 30, COUNT, y);
            for (size_t i = 0; i < COUNT; i++)
                check_near(y[i], 30 * tanh((double)x[i] / 30), 4e-7 * 30, "%s softcap(%g)", levels[l].name,
                           (double)x[i]);
            fill_nan(y, COUNT);
            kernels->relu(x, COUNT, y);
            for (size_t i = 0; i < COUNT; i++) assert_true(y[i] == (x[i] < 0 ? 0 : x[i]));
            kernels->add(x, up, COUNT, y);
            for (size_t i = 0; i < COUNT; i++) assert_true(y[i] == x[i] + up[i]);
        }
    }
}

/* Every count from 0, so that each tail is met; input and output end at guard pages; in place. */
static void tails_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct activation_kernels ref;
    activation_kernels_init(&ref, 0);
    struct random random;
    random_init(&random, test_seed(42));
    for (size_t l = 0; l < level_count; l++)
        for (size_t count = 0; count < 70; count++) {
            struct guarded x = guarded_create(count * 4), up = guarded_create(count * 4),
                           y = guarded_create(count * 4);
            const struct activation_kernels *kernels = &levels[l].kernels;
            fill_normal(&random, x.data, count, 3.0);
            fill_normal(&random, up.data, count, 1.0);
            float want[70], *got = y.data;
            const float *x_in = x.data, *up_in = up.data;
            ref.relu(x.data, count, want);
            fill_nan(got, count);
            kernels->relu(x.data, count, got);
            assert_memory_equal(got, want, count * 4);
            ref.gelu_multiply(x.data, up.data, count, want);
            fill_nan(got, count);
            kernels->gelu_multiply(x.data, up.data, count, got);
            for (size_t i = 0; i < count; i++) /* far below zero exp overflows in float: gelu is 0 then */
                check_near(got[i], want[i],
                           1e-5 * fabs((double)want[i]) + 3e-38 * fabs((double)x_in[i] * (double)up_in[i]),
                           "%s gelu count %zu", levels[l].name, count);
            ref.softcap(x.data, 5, count, want);
            fill_nan(got, count);
            kernels->softcap(x.data, 5, count, got);
            for (size_t i = 0; i < count; i++)
                check_near(got[i], want[i], 4e-7 * 5, "%s softcap count %zu", levels[l].name, count);
            ref.add(x.data, up.data, count, want);
            fill_nan(got, count);
            kernels->add(x.data, up.data, count, got);
            assert_memory_equal(got, want, count * 4);
            ref.swiglu_clamped(x.data, up.data, count, want);
            fill_nan(got, count);
            kernels->swiglu_clamped(x.data, up.data, count, got);
            for (size_t i = 0; i < count; i++)
                check_near(got[i], want[i], 1e-5 * fabs((double)want[i]) + 1e-6, "%s swiglu count %zu",
                           levels[l].name, count);
            ref.silu_multiply(x.data, up.data, count, want);
            kernels->silu_multiply(x.data, up.data, count, x.data);
            for (size_t i = 0; i < count; i++)
                check_near(((float *)x.data)[i], want[i], 1e-6 * fabs((double)want[i]),
                           "%s silu in place count %zu", levels[l].name, count);
            guarded_destroy(&x);
            guarded_destroy(&up);
            guarded_destroy(&y);
        }
}

/* y is off by 4 eps for exp, |x - maximum| eps for its argument, eps for the product; the sum of n by
 * (64 + 8 + 4) eps as 64 registers are added before it goes to double. */
static void check_softmax(const struct level *level, size_t count, double spread, struct random *random) {
    struct guarded x = guarded_create(count * 4), y = guarded_create(count * 4);
    fill_normal(random, x.data, count, spread);
    float *in = x.data, *out = y.data;
    fill_nan(out, count);
    double largest = -INFINITY, sum = 0;
    for (size_t i = 0; i < count; i++) largest = fmax(largest, (double)in[i]);
    for (size_t i = 0; i < count; i++) sum += exp((double)in[i] - largest);
    double logarithm = level->kernels.softmax(in, count, out);
    check_near(logarithm, largest + log(sum), 100 * eps, "%s log of the sum, count %zu", level->name, count);
    for (size_t i = 0; i < count; i++) {
        double want = exp((double)in[i] - largest) / sum;
        check_near(out[i], want, (90 + largest - (double)in[i]) * eps * want + 2.5e-38,
                   "%s softmax %zu of %zu", level->name, i, count);
    }
    level->kernels.softmax(in, count, in);
    assert_memory_equal(in, out, count * 4);
    guarded_destroy(&x);
    guarded_destroy(&y);
}

static void softmax_matches(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(43));
    size_t counts[] = {1, 2, 7, 8, 15, 17, 64, 511, 512, 513, 1025, 5000, 32003};
    for (size_t l = 0; l < level_count; l++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            check_softmax(&levels[l], counts[i], 3.0, &random);
            check_softmax(&levels[l], counts[i], 1e4, &random);
        }
}

static void edges_hold(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    for (size_t l = 0; l < level_count; l++) {
        const struct activation_kernels *kernels = &levels[l].kernels;
        float x[21], y[21];
        for (size_t i = 0; i < 21; i++) x[i] = -INFINITY; /* masked logits */
        x[5] = x[20] = 3.0f;
        kernels->softmax(x, 21, y);
        for (size_t i = 0; i < 21; i++) assert_true(y[i] == (i == 5 || i == 20 ? 0.5f : 0.0f));
        x[5] = x[20] = -INFINITY; /* nothing is left */
        assert_true(kernels->softmax(x, 21, y) == -INFINITY);
        for (size_t i = 0; i < 21; i++) assert_true(y[i] == 0);
        assert_true(kernels->softmax(x, 0, y) == -INFINITY);
        for (size_t at = 0; at < 21; at++) {
            for (size_t i = 0; i < 21; i++) x[i] = (float)i;
            x[at] = NAN;
            float ones[21];
            for (size_t i = 0; i < 21; i++) ones[i] = 1;
            assert_true(isnan(kernels->softmax(x, 21, y)));
            for (size_t i = 0; i < 21; i++) assert_true(isnan(y[i]));
            kernels->silu_multiply(x, ones, 21, y);
            assert_true(isnan(y[at]) && !isnan(y[(at + 1) % 21]));
            kernels->swiglu_clamped(x, ones, 21, y);
            assert_true(isnan(y[at]) && !isnan(y[(at + 1) % 21]));
            kernels->swiglu_clamped(ones, x, 21, y);
            assert_true(isnan(y[at]) && !isnan(y[(at + 1) % 21]));
            kernels->relu(x, 21, y);
            assert_true(isnan(y[at]) && !isnan(y[(at + 1) % 21]));
            kernels->gelu_multiply(x, ones, 21, y);
            assert_true(isnan(y[at]) && !isnan(y[(at + 1) % 21]));
            kernels->gelu_multiply(ones, x, 21, y);
            assert_true(isnan(y[at]) && !isnan(y[(at + 1) % 21]));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_match),
        cmocka_unit_test(tails_match),
        cmocka_unit_test(softmax_matches),
        cmocka_unit_test(edges_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* norm: every variant against sums in double written out here.
 *
 * eps = 2^-24.  A sum of n squares in at least 8 partial sums is off by (n / 8 + 8) eps of itself; mean,
 * eps, root and reciprocal add 4 roundings, scaling 2: so RMSNorm's y is off by (n / 16 + 12) eps |y|.
 * LayerNorm: the second pass takes what the first left of the mean, whose own sum is of x - mean: the mean is off by
 * at most (n / 8 + 8) eps sum|x - mean| / n + 2 eps |mean|, and by its square of the first's sum|x|, which moves each y
 * by that times |w| / deviation, and x - mean is rounded. */
#include "check.h"

#include "kernels/norm/norm.h"

static const double eps = 0x1p-24;

#if defined(LOAM_EMULATED)
void emulated_norm_avx512_install(struct norm_kernels *kernels);
#endif
CHECK_LEVELS_WITH(norm, emulated_norm_avx512_install)

static const size_t counts[] = {1, 3, 7, 8, 9, 16, 31, 33, 64, 100, 127, 128, 896, 1000, 4096, 8191};

struct vectors {
    struct guarded x, w, b, y;
};

static struct vectors vectors_create(struct random *random, size_t count, double offset, double spread) {
    struct vectors v = {guarded_create(count * 4), guarded_create(count * 4), guarded_create(count * 4),
                        guarded_create(count * 4)};
    fill_normal(random, v.x.data, count, spread);
    for (size_t i = 0; i < count; i++) ((float *)v.x.data)[i] += (float)offset;
    fill_normal(random, v.w.data, count, 1.0);
    fill_normal(random, v.b.data, count, 1.0);
    fill_nan(v.y.data, count);
    return v;
}

static void vectors_destroy(struct vectors *v) {
    guarded_destroy(&v->x);
    guarded_destroy(&v->w);
    guarded_destroy(&v->b);
    guarded_destroy(&v->y);
}

static void check_rms(const struct level *level, size_t count, double spread, struct random *random) {
    struct vectors v = vectors_create(random, count, 0, spread);
    const float *x = v.x.data, *w = v.w.data;
    double squares = 0;
    for (size_t i = 0; i < count; i++) squares += (double)x[i] * (double)x[i];
    double inverse = 1 / sqrt(squares / (double)count + (double)1e-5f);
    float *want = malloc(count * sizeof(float));
    assert_non_null(want);
    for (size_t i = 0; i < count; i++) want[i] = (float)((double)x[i] * inverse * (double)w[i]);
    level->kernels.rms(x, w, 1e-5f, count, v.y.data);
    double bound = ((double)count / 16 + 12) * eps;
    for (size_t i = 0; i < count; i++)
        check_near(((float *)v.y.data)[i], want[i], bound * fabs((double)want[i]) + 1e-40,
                   "%s rms %zu of %zu", level->name, i, count);
    level->kernels.rms(v.x.data, w, 1e-5f, count, v.x.data); /* in place */
    assert_memory_equal(v.x.data, v.y.data, count * sizeof(float));
    free(want);
    vectors_destroy(&v);
}

static void check_layer(const struct level *level, size_t count, double offset, struct random *random) {
    struct vectors v = vectors_create(random, count, offset, 1.0);
    const float *x = v.x.data, *w = v.w.data, *b = v.b.data;
    double sum = 0, magnitude = 0, squares = 0, apart = 0, n = (double)count;
    for (size_t i = 0; i < count; i++) sum += (double)x[i], magnitude += fabs((double)x[i]);
    double mean = sum / n;
    for (size_t i = 0; i < count; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    for (size_t i = 0; i < count; i++) apart += fabs((double)x[i] - mean);
    double deviation = sqrt(squares / n + (double)1e-5f), order = (n / 8 + 8) * eps;
    double off = order * apart / n + order * order * magnitude / n + 2 * eps * fabs(mean);
    level->kernels.layer(x, w, b, 1e-5f, count, v.y.data);
    for (size_t i = 0; i < count; i++) {
        double scaled = ((double)x[i] - mean) / deviation * (double)w[i];
        double bound = (n / 16 + 16) * eps * fabs(scaled) + 2 * eps * fabs((double)b[i]) +
                       (2 * off + eps * fabs((double)x[i] - mean)) / deviation * fabs((double)w[i]) *
                           (1 + fabs((double)x[i] - mean) / deviation * off / deviation);
        check_near(((float *)v.y.data)[i], scaled + (double)b[i], bound, "%s layer %zu of %zu offset %g",
                   level->name, i, count, offset);
    }
    level->kernels.layer(v.x.data, w, b, 1e-5f, count, v.x.data);
    assert_memory_equal(v.x.data, v.y.data, count * sizeof(float));
    vectors_destroy(&v);
}

static void norms_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(21));
    for (size_t l = 0; l < level_count; l++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            check_rms(&levels[l], counts[i], 1.0, &random);
            check_rms(&levels[l], counts[i], 1e4, &random);
            check_rms(&levels[l], counts[i], 1e-4, &random);
            check_layer(&levels[l], counts[i], 0, &random);
            check_layer(&levels[l], counts[i], 100, &random); /* a mean far above the spread */
        }
}

static void nan_comes_out(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    for (size_t l = 0; l < level_count; l++)
        for (size_t at = 0; at < 37; at++) {
            float x[37], w[37], y[37];
            for (size_t i = 0; i < 37; i++) x[i] = w[i] = 1.0f + (float)i;
            x[at] = NAN;
            levels[l].kernels.rms(x, w, 1e-5f, 37, y);
            for (size_t i = 0; i < 37; i++) assert_true(isnan(y[i]));
            levels[l].kernels.layer(x, w, w, 1e-5f, 37, y);
            for (size_t i = 0; i < 37; i++) assert_true(isnan(y[i]));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_match),
        cmocka_unit_test(nan_comes_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* group: every variant against shares in double.  A share is off by 2 eps |scale (score - m)|, the exponential by
 * 3 eps, the sum of up to count / 16 + 4 terms one after the other by as many, the product and the additions by one
 * each. */
#include "check.h"

#include "selection_emulated.h"

enum { COUNT_MAX = 1000, HEADS_MAX = 16 };
static const double eps = 0x1p-24;

CHECK_LEVELS_WITH(group, emulated_group_avx512_install)

/* The result and what it may be off by, of each unit. */
static void expect(const float *scores, size_t stride, size_t heads, size_t count, const float *scales,
                   double *want, double *bound) {
    for (size_t head = 0; head < heads; head++) {
        double greatest = -INFINITY, sum = 0, terms = (double)count / 16 + 4;
        for (size_t i = 0; i < count; i++) greatest = fmax(greatest, (double)scores[head * stride + i]);
        for (size_t i = 0; i < count; i++)
            sum += exp((double)scales[head] * ((double)scores[head * stride + i] - greatest));
        for (size_t i = 0; i < count; i++) {
            double x = (double)scales[head] * ((double)scores[head * stride + i] - greatest);
            double share = exp(x) / sum;
            if (head == 0) want[i] = bound[i] = 0;
            want[i] += share;
            bound[i] += share * (2 * fabs(x) + 6 + terms + (double)heads) * eps;
        }
    }
}

static void shares_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(31));
    static const size_t groups[] = {1, 2, 3, 4, 7, 16}, counts[] = {0, 1, 7, 8, 9, 16, 17, 31, 100, 1000};
    for (size_t round = 0; round < 6 * 10; round++) {
        size_t heads = groups[round % 6], count = counts[round / 6], stride = count + round % 4;
        struct guarded scores = guarded_create(((heads - 1) * stride + count) * sizeof(float));
        float *before = calloc(scores.bytes / sizeof(float) + 1, sizeof *before), scales[HEADS_MAX];
        double want[COUNT_MAX], bound[COUNT_MAX];
        fill_normal(&random, before, scores.bytes / sizeof(float), 20.0);
        for (size_t head = 0; head < heads; head++) scales[head] = (float)random_double(&random);
        expect(before, stride, heads, count, scales, want, bound);
        for (size_t level = 0; level < level_count; level++) {
            memcpy(scores.data, before, scores.bytes);
            levels[level].kernels.softmax(
                &(struct group_softmax_args){scores.data, stride, heads, count, scales});
            for (size_t i = 0; i < count; i++)
                check_near(((float *)scores.data)[i], want[i], bound[i] + 1e-36, "%s: %zu heads, %zu of %zu",
                           levels[level].name, heads, i, count);
        }
        guarded_destroy(&scores);
        free(before);
    }
}

/* A unit that is no number does not spoil the others, wherever it lies. */
static void nan_comes_out(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    for (size_t level = 0; level < level_count; level++)
        for (size_t bad = 0; bad < 21; bad++) {
            float scores[2 * 21] = {0}, scales[2] = {1, 0};
            scores[21 + bad] = NAN;
            levels[level].kernels.softmax(&(struct group_softmax_args){scores, 21, 2, 21, scales});
            for (size_t i = 0; i < 21; i++)
                if (i == bad)
                    assert_true(isnan(scores[i]));
                else
                    check_near(scores[i], 1.0 / 21 + 1.0 / 20, 1e-6, "%s: %zu beside %zu", levels[level].name,
                               i, bad);
        }
}

/* Bit for bit, with infinities, and NaN in some of the units. */
static void best_matches(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(32));
    static const size_t parts[] = {1, 2, 3, 4, 8, 16, 32, 48, 64}, counts[] = {0, 1, 2, 15, 16, 17, 40};
    for (size_t round = 0; round < 9 * 7; round++) {
        const size_t each = parts[round % 9], count = counts[round / 9];
        struct guarded scores = guarded_create(each * count * sizeof(float));
        float *values = scores.data, best[40], want[40];
        fill_normal(&random, values, each * count, 3.0);
        for (size_t i = 0; i < count / 4; i++) {
            static const float odd[] = {NAN, INFINITY, -INFINITY};
            values[random_below(&random, each * count)] = odd[i % 3];
        }
        for (size_t i = 0; i < count; i++) {
            want[i] = -INFINITY;
            for (size_t p = 0; p < each; p++) {
                const float x = values[i * each + p];
                if (x != x || x > want[i]) want[i] = x;
                if (x != x) break;
            }
        }
        for (size_t level = 0; level < level_count; level++) {
            levels[level].kernels.best(&(struct group_best_args){values, count, each, best});
            for (size_t i = 0; i < count; i++)
                if (best[i] != want[i] && (best[i] == best[i] || want[i] == want[i]))
                    fail_msg("%s: unit %zu of %zu, %zu parts: %g, expected %g", levels[level].name, i, count,
                             each, (double)best[i], (double)want[i]);
        }
        guarded_destroy(&scores);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shares_match), cmocka_unit_test(nan_comes_out),
                                       cmocka_unit_test(best_matches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

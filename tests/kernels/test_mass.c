/* mass: every variant against sums in double.  score - m is off by eps |score - m|, exp by 3 units of 2^-24 and so
 * much more, the division and the additions of the group by one eps each. */
#include "check.h"

#include "selection_emulated.h"

enum { TOKENS = 3000, GROUP_MAX = 16 };
static const double eps = 0x1p-24;

CHECK_LEVELS_WITH(mass, emulated_mass_avx512_install)

static void masses_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(30));
    static const size_t groups[] = {1, 2, 3, 4, 5, 8, 16}, counts[] = {0, 1, 7, 8, 9, 17, 100, 1000};
    for (size_t round = 0; round < 7 * 8 * 2; round++) {
        size_t group = groups[round % 7], count = counts[round / 7 % 8], stride = count + 3;
        struct guarded scores = guarded_create(((group - 1) * stride + count) * sizeof(float));
        struct guarded rows = guarded_create(count * sizeof(uint32_t)),
                       mass = guarded_create(TOKENS * sizeof(float));
        float m[GROUP_MAX], s[GROUP_MAX], before[TOKENS];
        fill_normal(&random, scores.data, scores.bytes / sizeof(float), 5.0);
        fill_normal(&random, before, TOKENS, 1.0);
        uint32_t next = 0, *list = rows.data;
        for (size_t i = 0; i < count; i++) list[i] = next += 1 + (uint32_t)random_below(&random, 2);
        uint64_t first = round / 56 && count > 0 ? TOKENS - count : 0; /* consecutive rows up to the last */
        for (size_t head = 0; head < group; head++) {
            m[head] = 15;
            s[head] = head == 2 ? 0 : (float)(1 + random_double(&random) * 100);
            if (head == 2) m[head] = -INFINITY;
        }
        for (size_t level = 0; level < level_count; level++) {
            memcpy(mass.data, before, sizeof before);
            struct mass_add_args args = {.scores = scores.data,
                                         .scores_stride = stride,
                                         .group = group,
                                         .m = m,
                                         .s = s,
                                         .rows = round / 56 ? NULL : list,
                                         .row_first = first,
                                         .row_count = count,
                                         .mass = mass.data};
            levels[level].kernels.add(&args);
            size_t at = 0;
            for (size_t row = 0; row < TOKENS; row++) {
                double want = (double)before[row], bound = 0;
                if (at < count && row == (round / 56 ? first + at : list[at])) {
                    for (size_t head = 0; head < group; head++) {
                        if (s[head] == 0) continue;
                        double x = (double)((float *)scores.data)[head * stride + at] - (double)m[head];
                        want += exp(x) / (double)s[head];
                        bound += exp(x) / (double)s[head] * (fabs(x) + 3 + 2 + (double)group) * eps;
                    }
                    bound += eps * fabs(want) + 1e-37; /* floats_exp has no denormals */
                    at++;
                }
                check_near(((float *)mass.data)[row], want, bound, "%s: group %zu count %zu row %zu",
                           levels[level].name, group, count, row);
            }
            assert_true(at == count);
        }
        guarded_destroy(&scores);
        guarded_destroy(&rows);
        guarded_destroy(&mass);
    }
}

static void nan_comes_out(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    for (size_t level = 0; level < level_count; level++) {
        float scores[2 * 20] = {0}, mass[20] = {0}, m[2] = {0, 0}, s[2] = {1, 1};
        scores[20 + 17] = NAN;
        struct mass_add_args args = {scores, 20, 2, m, s, NULL, 0, 20, mass};
        levels[level].kernels.add(&args);
        for (size_t i = 0; i < 20; i++) assert_true(isnan(mass[i]) == (i == 17));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(masses_match), cmocka_unit_test(nan_comes_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

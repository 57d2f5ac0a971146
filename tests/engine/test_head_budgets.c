/* head_budgets: budgets are 1 on average, at most HEAD_BUDGET_MAX, and ordered by importance.  All heads together keep
 * at most what they would keep evenly. */
#include "testing.h"

#include <math.h>

#include "lab/methods/head_budgets.h"
#include "base/random.h"
#include "seed.h"

enum { HEADS_MAX = 64, ROUNDS = 2000 };

/* Some unimportant, some equal, some alone. */
static size_t draw(struct random *random, double *importance) {
    size_t count = 1 + random_below(random, HEADS_MAX);
    double none = random_double(random);
    for (size_t i = 0; i < count; i++)
        importance[i] = random_double(random) < none ? 0 : (double)random_below(random, 5) / 4;
    return count;
}

static void budgets_are_of_the_whole(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(17));
    for (size_t round = 0; round < ROUNDS; round++) {
        double importance[HEADS_MAX], budgets[HEADS_MAX], sum = 0, all = 0;
        size_t count = draw(&random, importance), important = 0;
        for (size_t i = 0; i < count; i++) budgets[i] = importance[i];
        for (size_t i = 0; i < count; i++) important += importance[i] > 0, all += importance[i];
        head_budgets_divide(budgets, count);
        for (size_t i = 0; i < count; i++) {
            sum += budgets[i];
            assert_true(budgets[i] <= HEAD_BUDGET_MAX + 1e-12 && budgets[i] >= HEAD_BUDGET_BASE - 1e-12);
            for (size_t j = 0; j < count; j++)
                if (importance[i] >= importance[j]) assert_true(budgets[i] >= budgets[j] - 1e-12);
            if (all == 0) assert_true(budgets[i] == 1);
        }
        assert_true(fabs(sum - (double)count) < 1e-9 * (double)count);
    }
}

static void the_formula(void **state) {
    (void)state;
    double budgets[4] = {0.5, 0.25, 0.25, 0}; /* 0.2 + 0.8 a / 0.25 */
    head_budgets_divide(budgets, 4);
    static const double expected[4] = {1.8, 1, 1, 0.2};
    for (size_t i = 0; i < 4; i++) assert_true(fabs(budgets[i] - expected[i]) < 1e-12);
    assert_int_equal(head_budget_keep(100, 1000, 2), 190);  /* 1 - 0.9^2 */
    assert_int_equal(head_budget_keep(100, 1000, 0.5), 51); /* 1 - 0.9^0.5 = 0.0513 */
}

static void heads_keep_at_max_keep(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(18));
    for (size_t round = 0; round < ROUNDS; round++) {
        double budgets[HEADS_MAX];
        size_t count = draw(&random, budgets);
        uint64_t visible = 1 + random_below(&random, 1 << (1 + random_below(&random, 24)));
        uint64_t keep = 1 + random_below(&random, visible), sum = 0;
        head_budgets_divide(budgets, count);
        for (size_t i = 0; i < count; i++) {
            uint64_t kept = head_budget_keep(keep, visible, budgets[i]);
            assert_true(kept <= visible && (double)kept <= fmax(budgets[i], 1) * (double)keep + 1e-3);
            assert_int_equal(head_budget_keep(visible, visible, budgets[i]), visible);
            sum += kept;
        }
        assert_true(sum <= keep * count);
        assert_int_equal(head_budget_keep(keep, visible, 1), keep);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets_are_of_the_whole),
        cmocka_unit_test(the_formula),
        cmocka_unit_test(heads_keep_at_max_keep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

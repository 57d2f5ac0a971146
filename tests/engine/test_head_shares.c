/* head_shares: shares are 1 on average, none above the most, in the order of importance; together heads keep at most
 * what they would keep evenly. */
#include "testing.h"

#include <math.h>

#include "attention/head_shares.h"
#include "base/random.h"
#include "seed.h"

enum { HEADS_MOST = 64, ROUNDS = 2000 };

/* Some unimportant, some equal, some alone. */
static size_t draw(struct random *random, double *importance) {
    size_t count = 1 + random_below(random, HEADS_MOST);
    double none = random_double(random);
    for (size_t i = 0; i < count; i++)
        importance[i] = random_double(random) < none ? 0 : (double)random_below(random, 5) / 4;
    return count;
}

static void shares_are_of_the_whole(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(17));
    for (size_t round = 0; round < ROUNDS; round++) {
        double importance[HEADS_MOST], shares[HEADS_MOST], sum = 0, all = 0;
        size_t count = draw(&random, importance), important = 0;
        for (size_t i = 0; i < count; i++) shares[i] = importance[i];
        for (size_t i = 0; i < count; i++) important += importance[i] > 0, all += importance[i];
        head_shares_divide(shares, count);
        for (size_t i = 0; i < count; i++) {
            sum += shares[i];
            assert_true(shares[i] <= HEAD_SHARE_MOST + 1e-12 && shares[i] >= HEAD_SHARE_BASE - 1e-12);
            for (size_t j = 0; j < count; j++)
                if (importance[i] >= importance[j]) assert_true(shares[i] >= shares[j] - 1e-12);
            if (all == 0) assert_true(shares[i] == 1);
        }
        assert_true(fabs(sum - (double)count) < 1e-9 * (double)count);
    }
}

static void the_formula(void **state) {
    (void)state;
    double shares[4] = {0.5, 0.25, 0.25, 0}; /* 0.2 + 0.8 a / 0.25 */
    head_shares_divide(shares, 4);
    static const double expected[4] = {1.8, 1, 1, 0.2};
    for (size_t i = 0; i < 4; i++) assert_true(fabs(shares[i] - expected[i]) < 1e-12);
    assert_int_equal(head_share_keep(100, 1000, 2), 190);  /* 1 - 0.9^2 */
    assert_int_equal(head_share_keep(100, 1000, 0.5), 51); /* 1 - 0.9^0.5 = 0.0513 */
}

static void heads_keep_at_most_keep(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(18));
    for (size_t round = 0; round < ROUNDS; round++) {
        double shares[HEADS_MOST];
        size_t count = draw(&random, shares);
        uint64_t visible = 1 + random_below(&random, 1 << (1 + random_below(&random, 24)));
        uint64_t keep = 1 + random_below(&random, visible), sum = 0;
        head_shares_divide(shares, count);
        for (size_t i = 0; i < count; i++) {
            uint64_t kept = head_share_keep(keep, visible, shares[i]);
            assert_true(kept <= visible && (double)kept <= fmax(shares[i], 1) * (double)keep + 1e-3);
            assert_int_equal(head_share_keep(visible, visible, shares[i]), visible);
            sum += kept;
        }
        assert_true(sum <= keep * count);
        assert_int_equal(head_share_keep(keep, visible, 1), keep);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_of_the_whole),
        cmocka_unit_test(the_formula),
        cmocka_unit_test(heads_keep_at_most_keep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

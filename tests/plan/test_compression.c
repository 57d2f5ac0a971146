/* The fraction of compressed reads: the closed form against a search of the model that it minimises, and what must
 * follow from dimensions and signs. */
#include "plan/compression.h"

#include "seed.h"
#include "testing.h"

#include <math.h>

#include "base/random.h"

enum { ROUNDS = 2000, STEPS = 400 };

static double between(struct random *random, double low, double high) { /* evenly in the logarithm */
    return low * exp(random_double(random) * log(high / low));
}

static struct compression_costs any_costs(struct random *random) {
    return (struct compression_costs){.bytes = between(random, 1e4, 1e9),
                                      .read_rate = between(random, 1e8, 1e10),
                                      .decode_rate = between(random, 1e8, 1e11),
                                      .ratio = between(random, 0.1, 0.99),
                                      .compute_seconds = between(random, 1e-6, 1),
                                      .other_seconds = between(random, 1e-7, 1e-2)};
}

static void is_the_min(void **state) {
    (void)state;
    struct random random;
    size_t none = 0, all = 0;
    random_init(&random, test_seed(51));
    for (size_t round = 0; round < ROUNDS; round++) {
        struct compression_costs costs = any_costs(&random);
        double fraction = compression_fraction(&costs), seconds = compression_layer_seconds(&costs, fraction);
        assert_true(fraction >= 0 && fraction <= 1);
        for (size_t i = 0; i <= STEPS; i++)
            assert_true(compression_layer_seconds(&costs, (double)i / STEPS) >= seconds * (1 - 1e-12));
        double read = compression_read_seconds(&costs, fraction),
               compute = compression_compute_seconds(&costs, fraction);
        if (fraction > 0 && fraction < 1) assert_true(fabs(read - compute) <= 1e-9 * seconds);
        if (fraction == 0) assert_true(read <= compute);
        if (fraction == 1) assert_true(read >= compute * (1 - 1e-12));
        none += fraction == 0;
        all += fraction == 1;
    }
    assert_true(none > ROUNDS / 20 && all > ROUNDS / 20 &&
                none + all < ROUNDS * 19 / 20); /* all three cases came up */
}

static void units_do_not_matter(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(52));
    for (size_t round = 0; round < ROUNDS; round++) {
        struct compression_costs costs = any_costs(&random), other = costs;
        double bytes = between(&random, 1e-6, 1e6), seconds = between(&random, 1e-6, 1e6);
        other.bytes *= bytes;
        other.read_rate *= bytes / seconds;
        other.decode_rate *= bytes / seconds;
        other.compute_seconds *= seconds;
        other.other_seconds *= seconds;
        assert_true(fabs(compression_fraction(&costs) - compression_fraction(&other)) < 1e-9);
    }
}

/* A slower disk, a faster decoder, more to read, less to compute: never less compressed. */
static void signs_are_right(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(53));
    for (size_t round = 0; round < ROUNDS; round++) {
        struct compression_costs costs = any_costs(&random), other = costs;
        double by = between(&random, 1, 100), fraction_min = compression_fraction(&costs) - 1e-12;
        other.decode_rate *= by;
        assert_true(compression_fraction(&other) >= fraction_min);
        other = costs;
        other.compute_seconds /= by;
        assert_true(compression_fraction(&other) >= fraction_min);
        other = costs;
        other.other_seconds *= by;
        assert_true(compression_fraction(&other) >= fraction_min);
    }
}

/* A disk of 0.5 GB/s and pages of 8 KiB for 16: 8 MB a layer take 16 ms; decoded at 6.5 GB/s. */
static void as_worked_out_by_hand(void **state) {
    (void)state;
    struct compression_costs costs = {
        .bytes = 8e6, .read_rate = 0.5e9, .decode_rate = 6.5e9, .ratio = 0.5, .compute_seconds = 10e-3};
    double fraction = (16e-3 - 10e-3) / (8e-3 + 8e6 / 6.5e9);
    assert_true(fabs(compression_fraction(&costs) - fraction) < 1e-12 && fraction > 0.6 && fraction < 0.7);
    costs.compute_seconds = 17e-3; /* hidden as it is */
    assert_true(compression_fraction(&costs) == 0);
    costs.compute_seconds = 1e-3; /* cannot be hidden */
    assert_true(compression_fraction(&costs) == 1);
    costs.bytes = 0;
    assert_true(compression_fraction(&costs) == 0);
    costs.bytes = 8e6;
    costs.ratio = 1;
    assert_true(compression_fraction(&costs) == 0);
}

static double sum_of(const double *fractions, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += fractions[i];
    return sum;
}

/* As many pages in all as the fractions say, also of the first layers alone; with sensitivities the same sum, and no
 * layer more than one that bears it better. */
static void spreads_what_there_is(void **state) {
    (void)state;
    enum { LAYERS = 40 };
    struct random random;
    random_init(&random, test_seed(54));
    for (size_t round = 0; round < ROUNDS; round++) {
        size_t count = 1 + random_below(&random, LAYERS);
        double fractions[LAYERS], same = random_double(&random), sum = 0;
        float sensitivity[LAYERS];
        uint8_t found[LAYERS];
        for (size_t i = 0; i < count; i++) {
            fractions[i] =
                random_below(&random, 8) == 0 ? (double)random_below(&random, 2) : random_double(&random);
            sensitivity[i] = (float)between(&random, 1e-3, 1);
        }
        compression_spread(fractions, NULL, count, found);
        for (size_t i = 0; i < count; i++) {
            assert_true(found[i] <= 16 && fabs(found[i] - 16 * fractions[i]) <= 1 + 1e-9);
            sum += found[i];
            assert_true(fabs(sum - 16 * sum_of(fractions, i + 1)) <= 0.5 + 1e-9);
        }
        compression_spread(fractions, sensitivity, count, found);
        sum = 0;
        for (size_t i = 0; i < count; i++) {
            sum += found[i];
            if (fractions[i] == 0) assert_true(found[i] <= 1); /* what rounding of others owed */
        }
        assert_true(fabs(sum - 16 * sum_of(fractions, count)) <= 0.5 + 1e-6);
        for (size_t i = 0; i < count; i++) fractions[i] = same;
        compression_spread(fractions, sensitivity, count, found);
        for (size_t i = 0; i < count; i++)
            for (size_t j = 0; j < count; j++)
                if (sensitivity[i] < sensitivity[j]) assert_true(found[i] + 1 >= found[j]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_the_min),
        cmocka_unit_test(units_do_not_matter),
        cmocka_unit_test(signs_are_right),
        cmocka_unit_test(as_worked_out_by_hand),
        cmocka_unit_test(spreads_what_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

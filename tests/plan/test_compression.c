/* The fraction of pages in 4 bits where RAM holds none: the paper's closed form, and what must follow from dimensions
 * and signs; and how the fractions of layers become sixteenths. */
#include "plan/quantized_pages.h"

#include "seed.h"
#include "testing.h"

#include <math.h>

#include "base/random.h"
#include "plan/compression.h"

enum { ROUNDS = 500, SEARCH_STEPS = 256, CHUNKS = 500, ROW_BYTES = 16384 };

static double between(struct random *random, double low, double high) { /* evenly in the logarithm */
    return low * exp(random_double(random) * log(high / low));
}

/* Of a layer that attends to everything, so that what is in 4 bits is decoded. */
static const struct page_work work = {.layer_count = 1,
                                      .dense_layers = 1,
                                      .kv_head_count = 1,
                                      .thread_count = 1,
                                      .rows_bytes = ROW_BYTES,
                                      .quantized_bytes = ROW_BYTES * 9 / 32,
                                      .chunks = CHUNKS,
                                      .kept = CHUNKS};

static struct page_costs any_costs(struct random *random) {
    const double tail = between(random, 1e-6, 1e-4);
    return (struct page_costs){.disk = {.page_seconds = tail * between(random, 0.1, 0.99),
                                        .tail_seconds = tail,
                                        .alone_seconds = between(random, 1e-7, 1e-2)},
                               .rows_attend = between(random, 1e-7, 1e-5),
                               .decode = between(random, 1e-7, 1e-4),
                               .layer = between(random, 1e-6, 1)};
}

/* LeoAM, 4.4, with t(D theta): D bytes, B and R bytes a second, delta the ratio of what is read. */
static double closed_form(const struct page_costs *costs) {
    const double D = (double)CHUNKS * ROW_BYTES, B = ROW_BYTES / costs->disk.tail_seconds,
                 R = ROW_BYTES / costs->decode, delta = costs->disk.page_seconds / costs->disk.tail_seconds,
                 late = costs->disk.alone_seconds + D / B - (CHUNKS * costs->rows_attend + costs->layer);
    return fmin(fmax(late / (D * ((1 - delta) / B + 1 / R)), 0), 1);
}

static void without_ram_it_is_the_closed_form(void **state) {
    (void)state;
    struct random random;
    size_t none = 0, all = 0;
    random_init(&random, test_seed(51));
    for (size_t round = 0; round < ROUNDS; round++) {
        const struct page_costs costs = any_costs(&random);
        const double found = quantized_pages_fraction(&costs, &work, 0), expected = closed_form(&costs);
        if (fabs(found - expected) > 1.01 / SEARCH_STEPS) fail_msg("found %g, expected %g", found, expected);
        none += found == 0;
        all += found == 1;
    }
    assert_met(none > ROUNDS / 20 && all > ROUNDS / 20 &&
               none + all < ROUNDS * 19 / 20); /* all three cases came up */
}

static void units_do_not_matter(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(52));
    for (size_t round = 0; round < ROUNDS; round++) {
        const struct page_costs costs = any_costs(&random);
        struct page_costs other = costs;
        const double seconds = between(&random, 1e-3, 1e3);
        double *const times[] = {&other.disk.page_seconds,
                                 &other.disk.tail_seconds,
                                 &other.disk.alone_seconds,
                                 &other.rows_attend,
                                 &other.decode,
                                 &other.layer};
        for (size_t i = 0; i < sizeof times / sizeof *times; i++) *times[i] *= seconds;
        assert_true(fabs(quantized_pages_fraction(&costs, &work, 0) -
                         quantized_pages_fraction(&other, &work, 0)) <= 1.01 / SEARCH_STEPS);
    }
}

/* A faster decoder, less to compute, a later beginning: never less in 4 bits. */
static void signs_are_right(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(53));
    for (size_t round = 0; round < ROUNDS; round++) {
        const struct page_costs costs = any_costs(&random);
        struct page_costs other = costs;
        const double by = between(&random, 1, 100),
                     least = quantized_pages_fraction(&costs, &work, 0) - 1.01 / SEARCH_STEPS;
        other.decode /= by;
        assert_true(quantized_pages_fraction(&other, &work, 0) >= least);
        other = costs;
        other.layer /= by;
        assert_true(quantized_pages_fraction(&other, &work, 0) >= least);
        other = costs;
        other.disk.alone_seconds *= by;
        assert_true(quantized_pages_fraction(&other, &work, 0) >= least);
    }
}

static double sum_of(const double *fractions, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += fractions[i];
    return sum;
}

/* As many pages are in 4 bits as the fractions say, in all and of the first layers alone; with sensitivities the sum is
 * the same, and no layer has more than one that is less sensitive. */
static void spreads_what_there_is(void **state) {
    (void)state;
    enum { LAYERS = 40 };
    struct random random;
    random_init(&random, test_seed(54));
    for (size_t round = 0; round < 2000; round++) {
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
        cmocka_unit_test(without_ram_it_is_the_closed_form),
        cmocka_unit_test(units_do_not_matter),
        cmocka_unit_test(signs_are_right),
        cmocka_unit_test(spreads_what_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

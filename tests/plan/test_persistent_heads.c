/* Persistent heads (plan/persistent_heads.h): Eq. 11 to 13 of [clo] on numbers, and on the head scores that
 * DuoAttention published for Llama-3-8B-Gradient-1048k where they are at hand. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/random.h"
#include "lab/calibrate/calibrate.h"
#include "plan/persistent_heads.h"
#include "shared_data.h"

enum { LAYERS = 32, HEADS = 32, KV_HEADS = 8, GROUP = HEADS / KV_HEADS }; /* of Llama-3-8B */

static struct reuse_options options;
static float importance[LAYERS * HEADS], similarity[LAYERS * HEADS];
static double thresholds[LAYERS * KV_HEADS];

static struct persistent_question question_of(size_t layer_first, size_t prefetchable) {
    options = reuse_options_default();
    return (struct persistent_question){.layer_count = LAYERS,
                                        .layer_first = layer_first,
                                        .head_count = HEADS,
                                        .kv_head_count = KV_HEADS,
                                        .options = &options,
                                        .thresholds = thresholds,
                                        .similarity = similarity,
                                        .importance = importance,
                                        .prefetchable = prefetchable};
}

/* Seconds times bytes per second, over the bytes of a head: heads.  As printed it would be seconds^2 / bytes^2. */
static void dimensions_are_heads(void **state) {
    (void)state;
    assert_int_equal(persistent_prefetchable(2e-3, 1e9, 500e3), 4);
    assert_int_equal(persistent_prefetchable(2e-3, 2e9, 500e3), 8); /* a faster tier: more of them */
    assert_int_equal(persistent_prefetchable(4e-3, 1e9, 500e3), 8);
    assert_int_equal(persistent_prefetchable(2e-3, 1e9, 1e6), 2); /* longer lists: fewer */
    assert_int_equal(persistent_prefetchable(2e-3, 1e9, 2.1e6), 0);
    assert_int_equal(persistent_prefetchable(0, 1e9, 5e5), 0);
    assert_int_equal(persistent_prefetchable(NAN, 1e9, 5e5), 0);
    assert_true(persistent_prefetchable(INFINITY, 1e9, 5e5) > LAYERS * KV_HEADS);
}

/* A layer of 0.4 ms, a choice of 0.3, and 64 chunks of 10 us on two threads: 1.02 ms, in which 1 GB/s reads two heads
 * of 500 kB. */
static void time_is_of_the_whole_step(void **state) {
    (void)state;
    const struct persistent_times times = {
        .layer = 0.4e-3, .choose = 0.3e-3, .attend = 10e-6, .chunks = 64, .thread_count = 2};
    assert_true(fabs(persistent_compute_seconds(&times) - 1.02e-3) < 1e-12);
    assert_int_equal(persistent_prefetchable(persistent_compute_seconds(&times), 1e9, 500e3), 2);
    assert_int_equal(persistent_prefetchable(times.layer, 1e9, 500e3), 0);
}

/* For any thresholds: no lane twice, none of the first layers, the hardest first; in each layer as many fewer than are
 * hard as may be prefetched, and no harder one of the layer left out. */
static void check(const struct persistent_question *question) {
    uint32_t lanes[LAYERS * KV_HEADS];
    bool chosen[LAYERS * KV_HEADS] = {false};
    const size_t count = persistent_choose(question, lanes);
    for (size_t i = 0; i < count; i++) {
        const size_t layer = lanes[i] / KV_HEADS;
        assert_true(lanes[i] < LAYERS * KV_HEADS && layer >= question->layer_first && !chosen[lanes[i]]);
        chosen[lanes[i]] = true;
        if (i > 0)
            assert_true(persistent_difficulty(question, layer, lanes[i] % KV_HEADS) <=
                        persistent_difficulty(question, lanes[i - 1] / KV_HEADS, lanes[i - 1] % KV_HEADS));
    }
    for (size_t layer = question->layer_first; layer < LAYERS; layer++) {
        size_t hard = 0, found = 0;
        double hardest_left = -INFINITY, easiest = INFINITY;
        for (size_t head = 0; head < KV_HEADS; head++) {
            const double difficulty = persistent_difficulty(question, layer, head);
            hard += difficulty > 0;
            if (chosen[layer * KV_HEADS + head]) {
                found++;
                easiest = fmin(easiest, difficulty);
            } else {
                hardest_left = fmax(hardest_left, difficulty);
            }
        }
        assert_int_equal(found, hard > question->prefetchable ? hard - question->prefetchable : 0);
        assert_true(found == 0 || easiest >= hardest_left);
        assert_true(found == 0 || easiest > 0);
    }
}

static void any_scores(void **state) {
    (void)state;
    struct random random;
    random_init(&random, 17);
    for (size_t round = 0; round < 40; round++) {
        const struct persistent_question question =
            question_of((size_t)random_below(&random, 3), (size_t)random_below(&random, KV_HEADS + 2));
        for (size_t i = 0; i < LAYERS * HEADS; i++) {
            importance[i] = (float)random_double(&random);
            similarity[i] = (float)(2 * random_double(&random) - 1);
        }
        for (size_t i = 0; i < LAYERS * KV_HEADS; i++)
            thresholds[i] = random_below(&random, 8) == 0 ? INFINITY : 2 * random_double(&random) - 1;
        check(&question);
    }
}

/* With every query alike by 0.85 and epsilon 0.1 a head is hard where tau > 0.75: where s^3 (pi - arccos 0.8) >
 * pi - arccos 0.75. */
static void published_scores(void **state) {
    (void)state;
    static char path[512];
    struct error error;
    if (!shared_path("heads/Llama-3-8B-Instruct-Gradient-1048k.tsv", path)) {
        print_message("skipped: no published scores (set LOAM_SHARED to the folder that holds data/heads)\n");
        skip();
    }
    struct calibration_result result = {
        .layer_count = LAYERS, .head_count = HEADS, .kv_head_count = KV_HEADS, .importance = importance};
    assert_ok(calibrate_import_heads(&result, path, &error), error);
    const double needed = cbrt((acos(-1) - acos(0.75)) / (acos(-1) - acos(0.8)));
    struct persistent_question question = question_of(1, 0);
    size_t hard = 0;
    for (size_t lane = 0; lane < LAYERS * KV_HEADS; lane++) {
        for (size_t i = 0; i < GROUP; i++) similarity[lane * GROUP + i] = 0.85F;
        thresholds[lane] = reuse_threshold(&options, (double)importance[lane * GROUP]);
        if (lane >= KV_HEADS) hard += (double)importance[lane * GROUP] > needed;
    }
    uint32_t lanes[LAYERS * KV_HEADS];
    const size_t all = persistent_choose(&question, lanes);
    print_message("%zu of %d KV heads are hard to reuse\n", all, LAYERS * KV_HEADS);
    assert_int_equal(all, hard);
    assert_in_range(all, 1, LAYERS * KV_HEADS / 2);
    check(&question);
    question.prefetchable = 1; /* one of each layer hides under its computation */
    assert_true(persistent_choose(&question, lanes) < all);
    check(&question);
    question.prefetchable = KV_HEADS;
    assert_int_equal(persistent_choose(&question, lanes), 0);
    options.epsilon = 2; /* no similarity is near enough */
    question.prefetchable = 0;
    size_t positive = 0;
    for (size_t lane = KV_HEADS; lane < LAYERS * KV_HEADS; lane++) positive += thresholds[lane] > -1.15;
    assert_int_equal(persistent_choose(&question, lanes), positive);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dimensions_are_heads),
        cmocka_unit_test(time_is_of_the_whole_step),
        cmocka_unit_test(any_scores),
        cmocka_unit_test(published_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tree_density: the cost model against evaluations counted by searches, and against Eq. 2 of LeoAM as it is printed,
 * which always starts from a single node. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/tree_density.h"
#include "base/random.h"
#include "kernels/kernels.h"
#include "seed.h"
#include "tensor/half.h"

enum { CHUNKS = 64, TOKENS = CHUNKS * 64, DIMENSION = 32, SEARCHES = 24 };

/* Keys of which every 64 tokens, or every `period`, some stand out. */
struct keys {
    struct kv_layout kv;
    struct tree_layout layout;
    void *chunks[CHUNKS], *blocks[CHUNKS];
    struct kernels kernels;
    struct random random;
    float direction[DIMENSION];
};

static void keys_create(struct keys *keys, size_t period, double noise) {
    float key[DIMENSION], value[DIMENSION] = {0};
    random_init(&keys->random, test_seed(5));
    kernels_init(&keys->kernels, cpu_features());
    kv_layout_init(&keys->kv, KV_F16, KV_F16, DIMENSION, DIMENSION);
    tree_layout_init(&keys->layout, 8, DIMENSION, TREE_BOUND, false);
    for (size_t d = 0; d < DIMENSION; d++) keys->direction[d] = (float)random_normal(&keys->random);
    for (size_t i = 0; i < CHUNKS; i++) {
        keys->chunks[i] = calloc(1, keys->kv.chunk_bytes);
        keys->blocks[i] = aligned_alloc(64, keys->layout.bytes);
        for (size_t t = 0; t < 64; t++) {
            bool is_large = (i * 64 + t) / 8 * 8 % period == 0;
            for (size_t d = 0; d < DIMENSION; d++)
                key[d] = (float)(random_normal(&keys->random) * noise) + (is_large ? keys->direction[d] : 0);
            keys->kernels.attention.store(&keys->kv, keys->chunks[i], t, key, value);
        }
        tree_build(
            &keys->kernels.abstract,
            &(struct tree_build_args){&keys->layout, &keys->kv, keys->chunks[i], 0, 64, keys->blocks[i]});
        if (i % TREE_RUN_CHUNKS == TREE_RUN_CHUNKS - 1)
            tree_build_run(&keys->layout, keys->blocks + i + 1 - TREE_RUN_CHUNKS);
    }
}

static void keys_destroy(struct keys *keys) {
    for (size_t i = 0; i < CHUNKS; i++) free(keys->chunks[i]), free(keys->blocks[i]);
}

/* One search, from a level, with a query near the direction. */
static void search(struct keys *keys, enum tree_level start, size_t k, struct tree_counts *counts) {
    float q[DIMENSION], query[2 * 2 * DIMENSION], scores[TOKENS / 8];
    uint32_t indices[TOKENS / 8];
    for (size_t d = 0; d < DIMENSION; d++)
        q[d] = keys->direction[d] + (float)random_normal(&keys->random) * 0.2F;
    tree_query(&keys->layout, q, DIMENSION, 1, query);
    uint64_t nodes = TOKENS / tree_tokens(start);
    void *scratch = aligned_alloc(64, 1 << 20);
    assert_true(tree_search_scratch_bytes(&keys->layout, &keys->kernels.top_k, TOKENS) <= 1 << 20);
    tree_score(&keys->kernels.score,
               &(struct tree_score_args){&keys->layout, start, (const void *const *)keys->blocks, 0, nodes,
                                         query, 1, scores, scratch});
    if (start == keys->layout.leaf)
        counts->evaluated[start] += nodes;
    else
        tree_search(&keys->kernels.score, &keys->kernels.top_k,
                    &(struct tree_search_args){&keys->layout, (const void *const *)keys->blocks, 0, TOKENS, k,
                                               query, 1, start, scores, indices, counts, scratch});
    free(scratch);
}

static double evaluations(const struct tree_counts *counts) {
    double sum = 0;
    for (size_t level = 0; level < TREE_LEVEL_COUNT; level++) sum += (double)counts->evaluated[level];
    return sum;
}

/* Several large keys, few, and none that stand out: the level that the model takes for cheapest is, when counted. */
static void the_model_predicts_what_is_counted(void **state) {
    (void)state;
    static const struct {
        size_t period, k;
        double noise;
    } cases[] = {{16, 256, 0.05}, {64, 64, 0.05},  {128, 32, 0.05},
                 {512, 8, 0.02},  {1024, 4, 0.02}, {8, 100, 1}};
    enum tree_level chosen[6];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct keys keys;
        struct tree_density density = {0};
        keys_create(&keys, cases[i].period, cases[i].noise);
        double counted, cost[TREE_LEVEL_COUNT], cost_min = INFINITY;
        struct tree_counts probe = {0};
        for (size_t n = 0; n < SEARCHES; n++) {
            struct tree_counts one = {0};
            search(&keys, TREE_RUN, cases[i].k, &one);
            tree_density_add(&density, TREE_8, 5, TREE_RUN, &one);
            tree_counts_add(&probe, &one);
        }
        for (enum tree_level start = TREE_8; start <= TREE_RUN; start++) {
            struct tree_counts counts = {0};
            for (size_t n = 0; n < SEARCHES; n++) search(&keys, start, cases[i].k, &counts);
            counted = evaluations(&counts) / SEARCHES;
            double expected = tree_density_cost(&density, TREE_8, start, 1) * TOKENS;
            double in_row = (double)(TOKENS / tree_tokens(start));
            printf("period %zu: from %zu tokens %.1f evaluations, %.1f expected\n", cases[i].period,
                   (size_t)tree_tokens(start), counted, expected);
            assert_true(fabs(expected - counted) <= 0.1 * counted);
            cost[start] = in_row + TREE_SCATTERED_COST * (counted - in_row);
            cost_min = fmin(cost_min, cost[start]);
        }
        density.steps = TREE_FINE_STEPS + 1;
        chosen[i] = tree_density_start(&density, TREE_8, 5);
        assert_true(cost[chosen[i]] <= 1.05 * cost_min);
        keys_destroy(&keys);
    }
    assert_int_equal(chosen[0], TREE_8); /* both ends occur */
    assert_int_equal(chosen[4], TREE_RUN);
}

/* Eq. 2, with n the number of tokens and m that of the first chunks: m sum (2 rho)^i, i below log2(n / m). */
static double equation_2(double m, double n, double rho) {
    double sum = 0;
    for (double size = n / m, term = 1; size > 1.5; size /= 2, term *= 2 * rho) sum += term;
    return m * sum;
}

static void equation_2_is_degenerate(void **state) {
    (void)state;
    const double n = 32768;
    for (double rho = 0.01; rho < 0.495; rho += 0.01) {
        double best_m = 1;
        for (double m = 1; m <= n / 8; m *= 2)
            if (equation_2(m, n, rho) < equation_2(best_m, n, rho)) best_m = m;
        assert_true(best_m == 1); /* whatever the density is */
    }
    /* Ours, where important leaves lie apart with probability p each: a node of 2^i of them has one with 1 - (1-p)^2^i.
     * The best start is no node for all densities, and grows as they fall. */
    enum tree_level last = TREE_8;
    size_t changes = 0;
    for (double p = 0.9; p > 0.0005; p *= 0.9) {
        struct tree_density density = {.steps = TREE_FINE_STEPS + 1, .measured = TREE_RUN};
        for (enum tree_level level = TREE_16; level <= TREE_RUN; level++)
            density.rho[level] = 1 - pow(1 - p, (double)tree_tokens(level) / 8);
        enum tree_level start = tree_density_start(&density, TREE_8, 5);
        assert_true(start >= last);
        changes += start > last;
        last = start;
    }
    assert_true(changes >= 3 && last == TREE_RUN);
}

static void steps_and_layers_start_as_said(void **state) {
    (void)state;
    struct tree_density density = {0};
    struct tree_counts counts = {.nodes = {80, 40, 20, 10, 2}};
    enum {
        LAYER = 7,
        FIRST = TREE_FINE_STEPS + LAYER,
        CLIMB = FIRST + 3 * TREE_PROBE_STEPS,
        DESERT = CLIMB + 4 * TREE_PROBE_STEPS
    };
    for (size_t step = 0; step < DESERT + 2 * TREE_PROBE_STEPS; step++) {
        enum tree_level start = tree_density_start(&density, TREE_8, LAYER);
        bool probe = step >= FIRST && (step - FIRST) % TREE_PROBE_STEPS == 0;
        if (step < FIRST) assert_int_equal(start, TREE_8);
        if (step == FIRST) assert_int_equal(start, TREE_16); /* the first probe */
        /* Up to CLIMB nodes of 64 are all opened, so the climb stops below them but for the probes. */
        if (step > CLIMB && step < CLIMB + TREE_PROBE_STEPS) assert_int_equal(start, TREE_32);
        if (step == CLIMB) assert_int_equal(start, TREE_64);
        if (step > DESERT && !probe) assert_int_equal(start, TREE_RUN);
        for (size_t layer = 0; layer < TREE_FINE_LAYERS; layer++)
            assert_int_equal(tree_density_start(&density, TREE_8, layer), TREE_8);
        for (enum tree_level level = TREE_16; level < TREE_LEVEL_COUNT; level++)
            counts.opened[level] = step > CLIMB || level < TREE_64 ? 0 : counts.nodes[level];
        tree_density_add(&density, TREE_8, LAYER, start, &counts);
    }
    /* A context without a whole run measures no runs. */
    struct tree_density small = {0};
    counts.nodes[TREE_RUN] = 0;
    tree_density_add(&small, TREE_8, LAYER, TREE_RUN, &counts);
    assert_int_equal(small.measured, TREE_64);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_predicts_what_is_counted),
        cmocka_unit_test(equation_2_is_degenerate),
        cmocka_unit_test(steps_and_layers_start_as_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

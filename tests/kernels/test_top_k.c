/* top_k: every variant against a sort, exactly. */
#include "check.h"

#include "selection_emulated.h"

CHECK_LEVELS_WITH(top_k, emulated_top_k_avx512_install)

static const float *sort_scores;

/* Best first: NaN, then larger, then the lower index. */
static int better(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    float x = sort_scores[a], y = sort_scores[b];
    if (isnan(x) != isnan(y)) return isnan(x) ? -1 : 1;
    if (!isnan(x) && x != y) return x > y ? -1 : 1;
    return a < b ? -1 : 1;
}

static int ascending(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

static void select_check(const struct level *level, const float *scores, size_t count, size_t k,
                         const uint32_t *ranked, const char *text) {
    size_t taken = k < count ? k : count;
    const uint32_t first = 1000;
    struct guarded indices = guarded_create(taken * sizeof(uint32_t));
    struct guarded scratch = guarded_create((level->kernels.scratch_bytes(count, k) + 63) / 64 * 64);
    uint32_t *want = malloc((taken + 1) * sizeof *want);
    assert_true(want != NULL);
    memcpy(want, ranked, taken * sizeof *want);
    qsort(want, taken, sizeof *want, ascending);
    struct top_k_args args = {.scores = scores,
                              .count = count,
                              .k = k,
                              .index_first = first,
                              .indices = indices.data,
                              .scratch = scratch.data};
    level->kernels.select(&args);
    for (size_t i = 0; i < taken; i++)
        if (((uint32_t *)indices.data)[i] != want[i] + first)
            fail_msg("%s: %s: count %zu k %zu: place %zu is %u, not %u", level->name, text, count, k, i,
                     ((uint32_t *)indices.data)[i], want[i] + first);
    free(want);
    guarded_destroy(&indices);
    guarded_destroy(&scratch);
}

/* Scores that are hard on some way of selecting. */
enum shape { NORMAL, TIES, EQUAL, RISING, FALLING, SPECIAL, CLUSTER, NANS, ZEROS, SPIKES, SHAPES };
static const char *const shape_names[SHAPES] = {"normal",  "ties",     "equal", "rising", "falling",
                                                "special", "clusters", "NaNs",  "zeros",  "spikes"};

static float score_of(enum shape shape, struct random *random, size_t i) {
    static const float special[] = {INFINITY, -INFINITY, 0.0f,     -0.0f,     1.0f,
                                    -1.0f,    0x1p-149f, 0x1p120f, -0x1p120f, 65504};
    switch (shape) {
    case NORMAL: return (float)random_normal(random);
    case TIES: return -(float)random_below(random, 12);
    case EQUAL: return 2.5f;
    case RISING: return (float)i;
    case FALLING: return -(float)i * 0.25f;
    case SPECIAL: return random_below(random, 20) == 0 ? NAN : special[random_below(random, 10)];
    case CLUSTER:
        return 1.0f + (float)random_below(random, 1 << 12) * 0x1p-23f; /* alike in the high digits */
    case NANS: return random_below(random, 3) ? copysignf(NAN, (float)random_normal(random)) : 1.0f;
    case ZEROS: return random_below(random, 2) ? 0.0f : -0.0f;
    case SPIKES: return i / 64 % 16 == 3 ? (float)random_normal(random) + 100 : (float)random_normal(random);
    case SHAPES: break;
    }
    return 0;
}

static void selects_what_a_sort_does(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(21));
    static const size_t counts[] = {1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 100, 1000, 4097, 20011, 70001};
    for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++)
        for (enum shape shape = 0; shape < SHAPES; shape++) {
            if (!test_takes_next()) continue;
            size_t count = counts[n];
            struct guarded scores = guarded_create(count * sizeof(float));
            uint32_t *ranked = malloc(count * sizeof *ranked);
            assert_true(ranked != NULL);
            for (size_t i = 0; i < count; i++) {
                ((float *)scores.data)[i] = score_of(shape, &random, i);
                ranked[i] = (uint32_t)i;
            }
            sort_scores = scores.data;
            qsort(ranked, count, sizeof *ranked, better);
            size_t ks[] = {
                0,         1,         2,     count / 100, count / 16,
                count / 3, count - 1, count, count + 5,   (size_t)random_below(&random, count + 1)};
            for (size_t level = 0; level < level_count; level++)
                for (size_t k = 0; k < sizeof ks / sizeof ks[0]; k++)
                    select_check(&levels[level], scores.data, count, ks[k], ranked, shape_names[shape]);
            free(ranked);
            guarded_destroy(&scores);
        }
}

static void nothing_of_nothing(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    float none = 0;
    uint32_t ranked = 0;
    for (size_t level = 0; level < level_count; level++)
        select_check(&levels[level], &none, 0, 10, &ranked, "empty");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selects_what_a_sort_does),
        cmocka_unit_test(nothing_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

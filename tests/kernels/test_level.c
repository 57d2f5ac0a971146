/* level: codes against their keys, scores against sums over a token's levels. */
#include "check.h"

#include "selection_emulated.h"
#include "tensor/half.h"

static const double eps = 0x1p-24;

CHECK_LEVELS_WITH(level, emulated_level_avx512_install)

enum { BLOCKS = 3, HEADS_MAX = 9 };

static double dot(const float *a, const float *b, size_t count) {
    double sum = 0;
    for (size_t j = 0; j < count; j++) sum += (double)a[j] * (double)b[j];
    return sum;
}

/* Levels are those nearest to the key, in steps of its own length, and the factor that of least squares. */
static void levels_are_the_nearest(void **state) {
    (void)state;
    static const float steps[] = {1.5958f, 0.9957f, 0.5860f, 0.3352f, 0.1881f, 0.1041f, 0.0569f, 0.0308f};
    static const size_t dimensions[] = {8, 32, 64, 96, 128, 512};
    struct random random;
    random_init(&random, test_seed(31));
    for (size_t round = 0; round < 6 * LEVEL_PLANES_MAX; round++) {
        const size_t dimension = dimensions[round % 6], planes = round / 6 + 1;
        if (!level_fits(dimension, planes)) continue;
        struct level_layout layout;
        level_layout_init(&layout, dimension, planes, false);
        assert_true(layout.bytes == 64 * (dimension * planes / 8 + 2) + 2 * dimension);
        struct guarded block = guarded_create(layout.bytes);
        float keys[64][LEVEL_DIMENSION_MAX];
        int levels[LEVEL_DIMENSION_MAX];
        memset(keys, 0, sizeof keys);
        level_set_center(&layout, block.data, keys[0]);
        for (size_t t = 0; t < 64; t++) { /* twice: nothing of the first is left */
            fill_normal(&random, keys[t], dimension, 5.0);
            level_store(&layout, block.data, t, keys[t]);
            fill_normal(&random, keys[t], dimension, 3.0);
            level_store(&layout, block.data, t, keys[t]);
        }
        for (size_t t = 0; t < 64; t++) {
            const double unit = sqrt(dot(keys[t], keys[t], dimension) / (double)dimension);
            const int top = (1 << planes) - 1;
            float factor;
            double product = 0, own = 0;
            level_load(&layout, block.data, t, levels, &factor);
            for (size_t j = 0; j < dimension; j++) {
                const double wanted = 2 * (double)keys[t][j] / (unit * (double)steps[planes - 1]);
                const double off = fabs(fmax(fmin(wanted, top), -top) - levels[j]);
                if (levels[j] % 2 == 0 || abs(levels[j]) > top || off > 1 + 1e-4)
                    fail_msg("%zu planes: level %d for %g", planes, levels[j], wanted);
                product += (double)keys[t][j] * levels[j];
                own += (double)(levels[j] * levels[j]);
            }
            check_near(factor, product / own, 0x1p-11 * product / own, "%zu planes: factor", planes);
        }
        guarded_destroy(&block);
    }
}

/* What all keys of a chunk have in common costs no levels: the error follows from their differences. */
static void the_mean_is_exact(void **state) {
    (void)state;
    enum { DIMENSION = 64 };
    static const double distortions[] = {0.3634, 0.1188, 0.03744, 0.01154}; /* Max 1960 */
    struct random random;
    random_init(&random, test_seed(32));
    for (size_t planes = 1; planes <= 4; planes++) {
        struct level_layout layout;
        level_layout_init(&layout, DIMENSION, planes, false);
        struct guarded block = guarded_create(layout.bytes);
        float keys[64][DIMENSION], common[DIMENSION];
        double squares = 0;
        size_t count = 0;
        for (size_t round = 0; round < 20; round++) {
            fill_normal(&random, common, DIMENSION, 20.0);
            fill_normal(&random, keys[0], 64 * DIMENSION, 1.0);
            for (size_t i = 0; i < 64 * DIMENSION; i++)
                keys[i / DIMENSION][i % DIMENSION] += common[i % DIMENSION];
            level_set_center(&layout, block.data, keys[0]);
            for (size_t t = 0; t < 64; t++) level_store(&layout, block.data, t, keys[t]);
            const void *pointer = block.data;
            float q[DIMENSION], scores[64];
            fill_normal(&random, q, DIMENSION, 1.0);
            struct guarded query = guarded_create(level_query_bytes(&layout));
            level_prepare(&layout, q, query.data);
            struct level_kernels kernels;
            level_kernels_init(&kernels, 0);
            kernels.score(
                &(struct level_score_args){&layout, &pointer, 0, 64, query.data, 1, scores, 64, NULL});
            for (size_t t = 0; t < 64; t++, count++) {
                const double off = (double)scores[t] - dot(q, keys[t], DIMENSION);
                squares += off * off / dot(q, q, DIMENSION);
            }
            guarded_destroy(&query);
        }
        check_near((float)(squares / (double)count), distortions[planes - 1], distortions[planes - 1] / 4,
                   "%zu planes", planes);
        guarded_destroy(&block);
    }
}

struct score_case {
    struct level_layout layout;
    struct guarded blocks[BLOCKS], queries;
    const void *pointers[BLOCKS];
    float q[HEADS_MAX][LEVEL_DIMENSION_MAX];
};

static void case_init(struct score_case *c, struct random *random, size_t dimension, size_t planes,
                      size_t heads) {
    static float keys[64][LEVEL_DIMENSION_MAX];
    level_layout_init(&c->layout, dimension, planes, true);
    for (size_t b = 0; b < BLOCKS; b++) {
        c->blocks[b] = guarded_create(c->layout.bytes);
        c->pointers[b] = c->blocks[b].data;
        fill_normal(random, keys[0], 64 * dimension, 3.0);
        level_set_spread(&c->layout, c->blocks[b].data, keys[0]);
        level_set_center(&c->layout, c->blocks[b].data, keys[0]);
        for (size_t t = 0; t < 64; t++)
            level_store(&c->layout, c->blocks[b].data, t, keys[0] + t * dimension);
        if (b == 2) memset(c->blocks[b].data, 0xff, dimension * planes / 8 * 64); /* the greatest sums */
    }
    const size_t bytes = level_query_bytes(&c->layout);
    c->queries = guarded_create(heads * bytes);
    for (size_t head = 0; head < heads; head++) {
        fill_normal(random, c->q[head], dimension, 2.0);
        for (size_t j = 0; head == 1 && j < dimension; j++) c->q[head][j] = 2; /* bytes of 127 */
        level_prepare(&c->layout, c->q[head], (char *)c->queries.data + head * bytes);
    }
}

static void case_deinit(struct score_case *c) {
    for (size_t b = 0; b < BLOCKS; b++) guarded_destroy(&c->blocks[b]);
    guarded_destroy(&c->queries);
}

/* A query's coordinate is off by half of a 127th of the greatest, and a token's levels by nothing. */
static void scores_match(void **state) {
    (void)state;
    struct level levels[CHECK_LEVELS_MAX];
    const size_t level_count = levels_init(levels);
    static const size_t dimensions[] = {8, 32, 64, 72, 96, 128, 512}, heads_of[] = {1, 2, 3, 4, 5, 9};
    static const uint64_t ranges[][2] = {{0, 192}, {17, 18}, {63, 65}, {5, 192}, {100, 127}, {64, 64}};
    struct random random;
    random_init(&random, test_seed(33));
    for (size_t round = 0; round < 7 * LEVEL_PLANES_MAX * 2; round++) {
        const size_t dimension = dimensions[round % 7], planes = round / 7 % LEVEL_PLANES_MAX + 1;
        const size_t heads = heads_of[random_below(&random, 6)];
        const uint64_t *range = ranges[random_below(&random, 6)], count = range[1] - range[0];
        if (!level_fits(dimension, planes)) continue;
        struct score_case c;
        case_init(&c, &random, dimension, planes, heads);
        const size_t stride = (size_t)count + 3;
        struct guarded scores = guarded_create((heads * stride + 1) * sizeof(float));
        for (size_t i = 0; i < level_count; i++) {
            fill_nan(scores.data, heads * stride);
            levels[i].kernels.score(&(struct level_score_args){&c.layout, c.pointers, range[0], range[1],
                                                               c.queries.data, heads, scores.data, stride,
                                                               i % 2 ? c.pointers : NULL});
            for (size_t head = 0; head < heads; head++)
                for (uint64_t t = range[0]; t < range[1]; t++) {
                    int own[LEVEL_DIMENSION_MAX];
                    float factor, greatest = 0;
                    double want = 0, size = 0, steps = 0;
                    const char *block = c.pointers[t / 64];
                    const uint16_t *center = (const uint16_t *)(const void *)(block + c.layout.center_offset);
                    level_load(&c.layout, block, t % 64, own, &factor);
                    for (size_t j = 0; j < dimension; j++) {
                        const double common = (double)c.q[head][j] * (double)half_to_float(center[j]);
                        const double level = (double)c.q[head][j] * (double)factor * own[j];
                        want += common + level;
                        size += fabs(common) + (double)fabsf(c.q[head][j] * factor) * (1 << planes);
                        steps += fabs((double)factor * own[j]);
                        greatest = fmaxf(greatest, fabsf(c.q[head][j]));
                    }
                    const double bound = (double)greatest / 127 * 0.5001 * steps + 20 * eps * size;
                    check_near(((float *)scores.data)[head * stride + (t - range[0])], want, bound,
                               "%s: dimension %zu planes %zu head %zu of %zu token %zu", levels[i].name,
                               dimension, planes, head, heads, (size_t)t);
                }
        }
        guarded_destroy(&scores);
        case_deinit(&c);
    }
}

/* All variants add the same integers, so that they differ by the rounding of four float operations and of q . c. */
static void variants_agree(void **state) {
    (void)state;
    struct level levels[CHECK_LEVELS_MAX];
    const size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(34));
    for (size_t planes = 1; planes <= LEVEL_PLANES_MAX; planes++) {
        struct score_case c;
        case_init(&c, &random, 128, planes, 3);
        static float scores[CHECK_LEVELS_MAX][3][BLOCKS * 64];
        for (size_t i = 0; i < level_count; i++)
            levels[i].kernels.score(&(struct level_score_args){
                &c.layout, c.pointers, 0, BLOCKS * 64, c.queries.data, 3, scores[i][0], BLOCKS * 64, NULL});
        for (size_t i = 1; i < level_count; i++)
            for (size_t head = 0; head < 3; head++)
                for (size_t t = 0; t < BLOCKS * 64; t++)
                    check_near(
                        scores[i][head][t], scores[0][head][t],
                        /* |q| |k| is at most about 2 * 3 * 128, a level's number of bits more in between */
                        32 * eps * 800 * (t >= 128 ? 16 : 4), "%s: planes %zu head %zu token %zu",
                        levels[i].name, planes, head, t);
        case_deinit(&c);
    }
}

/* Of each coordinate the deviation, within the 16th that a byte has; what no half has, and what is no number. */
static void spreads_are_deviations(void **state) {
    (void)state;
    static const size_t dimensions[] = {8, 32, 72, 128, 512};
    static float keys[64][LEVEL_DIMENSION_MAX];
    struct random random;
    random_init(&random, test_seed(35));
    for (size_t round = 0; round < 10; round++) {
        const size_t dimension = dimensions[round % 5];
        struct level_layout layout, plain;
        level_layout_init(&layout, dimension, 4, true);
        level_layout_init(&plain, dimension, 4, false);
        assert_int_equal(layout.spread_offset, plain.bytes);
        assert_true(layout.bytes % 64 == 0 && layout.bytes >= plain.bytes + dimension && plain.spread_offset == 0);
        struct guarded block = guarded_create(layout.bytes);
        memset(block.data, 0xa5, layout.bytes);
        for (size_t j = 0; j < dimension; j++) { /* from a millionth to thousands, around any mean */
            const double mean = 50 * random_normal(&random), size = exp(random_normal(&random) * 4);
            for (size_t t = 0; t < 64; t++)
                keys[0][t * dimension + j] = (float)(mean + size * random_normal(&random));
        }
        keys[0][3 * dimension] = NAN;
        for (size_t t = 0; t < 64; t++) keys[0][t * dimension + 1] = t % 2 ? 65504 : -65504;
        for (size_t t = 0; t < 64; t++) keys[0][t * dimension + 2] = 7;
        level_set_spread(&layout, block.data, keys[0]);
        for (size_t i = 0; i < layout.spread_offset; i++) assert_int_equal(((uint8_t *)block.data)[i], 0xa5);
        const uint8_t *spread = (uint8_t *)block.data + layout.spread_offset;
        assert_true(isnan(half_to_float(level_spread_half(spread[0]))));
        assert_true(half_to_float(level_spread_half(spread[1])) == 61440);
        assert_int_equal(spread[2], 0);
        for (size_t j = 3; j < dimension; j++) {
            double sum = 0, squares = 0;
            for (size_t t = 0; t < 64; t++) sum += (double)keys[0][t * dimension + j] / 64;
            for (size_t t = 0; t < 64; t++) {
                const double off = (double)keys[0][t * dimension + j] - sum;
                squares += off * off / 64;
            }
            check_near(half_to_float(level_spread_half(spread[j])), fmin(sqrt(squares), 61440),
                       (0x1p-4 + 0x1p-9) * sqrt(squares) + 0x1p-18 + 64 * eps * fabs(sum),
                       "dimension %zu, coordinate %zu", dimension, j);
        }
        guarded_destroy(&block);
    }
}

/* Of each head, q . c and the sizes of its coordinates, not rotated, times the deviations. */
static void chunks_match(void **state) {
    (void)state;
    enum { STRIDE = BLOCKS + 3 };
    struct level levels[CHECK_LEVELS_MAX];
    const size_t level_count = levels_init(levels);
    static const size_t dimensions[] = {8, 32, 64, 72, 128, 512}, heads_of[] = {1, 3, 4, 9};
    static float own[HEADS_MAX][LEVEL_DIMENSION_MAX + 8];
    struct random random;
    random_init(&random, test_seed(36));
    for (size_t round = 0; round < 24; round++) {
        const size_t dimension = dimensions[round % 6], planes = round / 6 + 1, heads = heads_of[round % 4];
        if (!level_fits(dimension, planes)) continue;
        struct score_case c;
        case_init(&c, &random, dimension, planes, heads);
        fill_normal(&random, own[0], sizeof own / sizeof own[0][0], 2.0);
        for (size_t i = 0; i < level_count; i++) {
            float scores[HEADS_MAX * STRIDE];
            const struct level_chunks_args args = {
                &c.layout, c.pointers, BLOCKS, c.queries.data, own[0], LEVEL_DIMENSION_MAX + 8, heads, scores, STRIDE};
            for (size_t k = 0; k < HEADS_MAX * STRIDE; k++) scores[k] = -7;
            levels[i].kernels.chunks(&args);
            for (size_t k = 0; k < heads * STRIDE; k++) {
                const size_t head = k / STRIDE, b = k % STRIDE;
                if (b >= BLOCKS) {
                    assert_true(scores[k] == -7);
                    continue;
                }
                const char *block = c.pointers[b];
                const uint16_t *center = (const uint16_t *)(const void *)(block + c.layout.center_offset);
                const uint8_t *spread = (const uint8_t *)block + c.layout.spread_offset;
                double score = 0, terms = 0;
                for (size_t j = 0; j < dimension; j++) {
                    const double common = (double)c.q[head][j] * (double)half_to_float(center[j]),
                                 around = fabs((double)own[head][j]) *
                                          (double)half_to_float(level_spread_half(spread[j]));
                    score += common + around, terms += fabs(common) + around;
                }
                check_near(scores[k], score, 20 * eps * terms, "%s: dimension %zu planes %zu head %zu chunk %zu",
                           levels[i].name, dimension, planes, head, b);
            }
            const float kept = own[0][dimension / 2];
            own[0][dimension / 2] = NAN;
            levels[i].kernels.chunks(&args);
            for (size_t b = 0; b < BLOCKS; b++) assert_true(isnan(scores[b]));
            for (size_t b = 0; b < BLOCKS && heads > 1; b++) assert_true(scores[STRIDE + b] == scores[STRIDE + b]);
            own[0][dimension / 2] = kept;
        }
        case_deinit(&c);
    }
}

static void broken_keys_stay_alone(void **state) {
    (void)state;
    struct level levels[CHECK_LEVELS_MAX];
    const size_t level_count = levels_init(levels);
    struct level_layout layout;
    level_layout_init(&layout, 32, 1, false);
    struct guarded block = guarded_create(layout.bytes), query = guarded_create(level_query_bytes(&layout));
    float keys[64][32], q[32], scores[64], factor;
    int own[32];
    struct random random;
    random_init(&random, test_seed(35));
    fill_normal(&random, keys[0], 64 * 32, 1.0);
    fill_normal(&random, q, 32, 1.0);
    keys[9][3] = NAN;
    keys[11][0] = INFINITY;
    for (size_t j = 0; j < 32; j++) keys[10][j] = 0;
    level_set_center(&layout, block.data, keys[0]); /* it would be no number, and is 0 */
    for (size_t t = 0; t < 64; t++) level_store(&layout, block.data, t, keys[t]);
    level_load(&layout, block.data, 10, own, &factor);
    assert_true(factor == 0);
    level_load(&layout, block.data, 11, own, &factor);
    assert_true(factor == 65504);
    const void *pointer = block.data;
    for (size_t i = 0; i < level_count; i++)
        for (size_t broken = 0; broken < 2; broken++) {
            if (broken) q[5] = NAN;
            level_prepare(&layout, q, query.data);
            levels[i].kernels.score(
                &(struct level_score_args){&layout, &pointer, 0, 64, query.data, 1, scores, 64, NULL});
            for (size_t t = 0; t < 64; t++) assert_true(!isnan(scores[t]) == (t != 9 && !broken));
            q[5] = 1;
        }
    guarded_destroy(&block);
    guarded_destroy(&query);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_the_nearest), cmocka_unit_test(the_mean_is_exact),
        cmocka_unit_test(scores_match),           cmocka_unit_test(variants_agree),
        cmocka_unit_test(spreads_are_deviations), cmocka_unit_test(chunks_match),
        cmocka_unit_test(broken_keys_stay_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

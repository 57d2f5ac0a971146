/* abstract: every variant against minima, maxima, means and deviations in double.
 *
 * eps = 2^-24, n tokens.  Minima and maxima of f16 rows are exact; of q8 rows they are bounds, at most one half
 * off (and a rounding of the product).  A mean is off by (n + 1) eps mean|k|, call it e, then rounded to a half
 * (2^-11 of it, 2^-25 where subnormal).  With a mean off by e the deviation is off by at most e, its n squares by
 * (n + 8) eps relative; then rounded to a half. */
#include "check.h"

#include "selection_emulated.h"
#include "tensor/half.h"

enum { CHUNKS = 5, TOKENS = CHUNKS * 64, GROUP_MAX = 8 };
static const double eps = 0x1p-24;

CHECK_LEVELS_WITH(abstract, emulated_abstract_avx512_install)

struct keys {
    struct kv_layout kv;
    struct guarded chunks[CHUNKS];
    float *k; /* [TOKENS][dimension], as load reads them back */
};

static void keys_create(struct keys *keys, struct random *random, enum kv_type type, size_t dimension) {
    struct attention_kernels ref;
    attention_kernels_init(&ref, 0);
    kv_layout_init(&keys->kv, type, type, dimension, dimension);
    keys->k = malloc(TOKENS * dimension * sizeof(float));
    float *v = calloc(dimension, sizeof *v);
    assert_true(keys->k != NULL && v != NULL);
    for (size_t i = 0; i < CHUNKS; i++) {
        keys->chunks[i] = guarded_create(keys->kv.chunk_bytes);
        memset(keys->chunks[i].data, 0xff, keys->kv.chunk_bytes);
    }
    for (size_t t = 0; t < TOKENS; t++) {
        float *k = keys->k + t * dimension;
        for (size_t d = 0; d < dimension; d++) k[d] = (float)(random_normal(random) + (double)(d % 5) * 2);
        ref.store(&keys->kv, keys->chunks[t / 64].data, t % 64, k, v);
        ref.load(&keys->kv, keys->chunks[t / 64].data, t % 64, k, v);
    }
    free(v);
}

static void keys_destroy(struct keys *keys) {
    for (size_t i = 0; i < CHUNKS; i++) guarded_destroy(&keys->chunks[i]);
    free(keys->k);
}

static const uint16_t *pair_of(const struct abstract_layout *layout, enum abstract_kind kind,
                               const void *block, size_t page) {
    return (const uint16_t *)(const void *)((const uint8_t *)block + layout->offset[kind]) +
           page * 2 * layout->dimension;
}

/* Element d of a page of tokens [begin, end). */
static void element_check(const struct abstract_layout *layout, const struct keys *keys, const void *block,
                          size_t page, size_t begin, size_t end, size_t d, const char *text) {
    double low = INFINITY, high = -INFINITY, sum = 0, size = 0, squares = 0, n = (double)(end - begin);
    for (size_t t = begin; t < end; t++) {
        double k = (double)keys->k[t * layout->dimension + d];
        low = fmin(low, k);
        high = fmax(high, k);
        sum += k;
        size += fabs(k);
    }
    for (size_t t = begin; t < end; t++) {
        double off = (double)keys->k[t * layout->dimension + d] - sum / n;
        squares += off * off;
    }
    if (layout->has[ABSTRACT_MIN_MAX]) {
        const uint16_t *pair = pair_of(layout, ABSTRACT_MIN_MAX, block, page);
        double got_low = (double)half_to_float(pair[d]),
               got_high = (double)half_to_float(pair[layout->dimension + d]);
        double slack = keys->kv.k_type == KV_F16 ? 0 : 0x1p-9; /* a half is 2^-10 from the next */
        assert_true(got_low <= low && got_high >= high);
        check_near(got_low, low, slack * fabs(low) + slack * 0x1p-15, "%s: minimum", text);
        check_near(got_high, high, slack * fabs(high) + slack * 0x1p-15, "%s: maximum", text);
    }
    if (layout->has[ABSTRACT_MEAN_DEVIATION]) {
        const uint16_t *pair = pair_of(layout, ABSTRACT_MEAN_DEVIATION, block, page);
        double mean = sum / n, deviation = sqrt(squares / n), off = (n + 1) * eps * size / n;
        check_near(half_to_float(pair[d]), mean, off + fabs(mean) * 0x1p-11 + 0x1p-25, "%s: mean", text);
        check_near(half_to_float(pair[layout->dimension + d]), deviation,
                   off + (n + 8) * eps * deviation + deviation * 0x1p-11 + 0x1p-25, "%s: deviation", text);
    }
}

static void build_run(const struct level *level, const struct abstract_layout *layout,
                      const struct keys *keys, size_t chunk, size_t begin, size_t end, void *block) {
    struct abstract_build_args args = {.layout = layout,
                                       .kv = &keys->kv,
                                       .chunk = keys->chunks[chunk].data,
                                       .token_begin = begin,
                                       .token_end = end,
                                       .abstract = block};
    level->kernels.build(&args);
}

/* One chunk filled in steps: pages that fill are built again, those after the end are left alone. */
static void pages_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(26));
    static const size_t dimensions[] = {8, 24, 32, 64, 96, 128, 256}, page_tokens[] = {8, 16, 32, 64};
    for (size_t round = 0; round < 7 * 4 * 2; round++) {
        if (!test_takes_next()) continue;
        size_t dimension = dimensions[round % 7];
        enum kv_type type = round / 7 % 2 && dimension % 32 == 0 ? KV_Q8 : KV_F16;
        struct abstract_layout layout;
        abstract_layout_init(&layout, page_tokens[round / 14], dimension, round % 3 != 1, round % 3 != 2);
        struct keys keys;
        keys_create(&keys, &random, type, dimension);
        struct guarded block = guarded_create(layout.bytes);
        for (size_t i = 0; i < level_count; i++) {
            memset(block.data, 0xff, block.bytes);
            size_t steps[] = {0, 1, 5, 16, 43, 64};
            for (size_t step = 1; step < 6; step++) {
                size_t end = steps[step];
                build_run(&levels[i], &layout, &keys, 1, steps[step - 1], end, block.data);
                for (size_t page = 0; page < layout.chunk_pages; page++) {
                    size_t first = page * layout.page_tokens, last = first + layout.page_tokens;
                    const uint16_t *pair =
                        pair_of(&layout, layout.has[0] ? ABSTRACT_MIN_MAX : ABSTRACT_MEAN_DEVIATION,
                                block.data, page);
                    for (size_t d = 0; d < dimension; d++) {
                        char text[160];
                        snprintf(text, sizeof text,
                                 "%s: dimension %zu type %d page %zu of %zu, %zu tokens, d %zu",
                                 levels[i].name, dimension, (int)type, page, layout.page_tokens, end, d);
                        if (first < end)
                            element_check(&layout, &keys, block.data, page, 64 + first,
                                          64 + (last < end ? last : end), d, text);
                        else
                            assert_true(pair[d] == 0xffff);
                    }
                }
            }
        }
        guarded_destroy(&block);
        keys_destroy(&keys);
    }
}

/* Scores of all pages: those of the formulas in double, and bounds above every key. */
struct score_case {
    size_t dimension, page_tokens, group;
    enum kv_type type;
    enum abstract_kind kind;
    enum score_aggregate aggregate;
};

static double page_score(const struct score_case *c, const struct abstract_layout *layout, const void *block,
                         size_t page, const float *q, double *size) {
    const uint16_t *pair = pair_of(layout, c->kind, block, page);
    double sum = 0;
    *size = 0;
    for (size_t d = 0; d < c->dimension; d++) {
        double a = (double)q[d] * (double)half_to_float(pair[d]),
               b = (double)half_to_float(pair[c->dimension + d]), x = (double)q[d];
        double term = c->kind == ABSTRACT_MIN_MAX ? fmax(a, x * b) : a + fabs(x) * b;
        sum += term;
        *size += fabs(a) + fabs(x * b);
    }
    return sum;
}

static void scores_check(const struct level *level, const struct score_case *c, const struct keys *keys,
                         struct random *random) {
    struct abstract_layout layout;
    abstract_layout_init(&layout, c->page_tokens, c->dimension, true, c->group % 2 == 0 || c->kind == 1);
    struct guarded blocks[CHUNKS];
    const void *pointers[CHUNKS];
    for (size_t i = 0; i < CHUNKS; i++) {
        blocks[i] = guarded_create(layout.bytes);
        pointers[i] = blocks[i].data;
        build_run(level, &layout, keys, i, 0, 64, blocks[i].data);
    }
    uint64_t end = 1 + random_below(random, CHUNKS * layout.chunk_pages), begin = random_below(random, end);
    size_t q_stride = c->dimension + 3, count = (size_t)(end - begin);
    struct guarded q = guarded_create(((c->group - 1) * q_stride + c->dimension) * sizeof(float));
    struct guarded scores = guarded_create(count * sizeof(float));
    struct guarded scratch = guarded_create(level->kernels.score_scratch_bytes(&layout, c->group));
    fill_normal(random, q.data, q.bytes / sizeof(float), 1.0);
    fill_nan(scores.data, count);
    struct abstract_score_args args = {.layout = &layout,
                                       .kind = c->kind,
                                       .aggregate = c->aggregate,
                                       .abstracts = pointers,
                                       .page_begin = begin,
                                       .page_end = end,
                                       .q = q.data,
                                       .q_stride = q_stride,
                                       .group = c->group,
                                       .scores = scores.data,
                                       .scratch = scratch.data};
    level->kernels.score(&args);
    for (uint64_t page = begin; page < end; page++) {
        double want = 0, bound = 0, best = -INFINITY;
        for (size_t head = 0; head < c->group; head++) {
            const float *query = (float *)q.data + head * q_stride;
            double size, score = page_score(c, &layout, pointers[page / layout.chunk_pages],
                                            page % layout.chunk_pages, query, &size);
            double off = (double)(2 * c->dimension + c->group + 1) * eps * size;
            want = c->aggregate == SCORE_SUM ? want + score : head == 0 || score > want ? score : want;
            bound = c->aggregate == SCORE_SUM ? bound + off : fmax(bound, off);
            for (uint64_t t = page * c->page_tokens; t < (page + 1) * c->page_tokens; t++) {
                double dot = 0;
                for (size_t d = 0; d < c->dimension; d++)
                    dot += (double)query[d] * (double)keys->k[t * c->dimension + d];
                best = fmax(best, dot);
            }
        }
        double got = (double)((float *)scores.data)[page - begin];
        check_near(got, want, bound + eps * fabs(want),
                   "%s: kind %d aggregate %d dimension %zu group %zu pages of %zu: %zu of %zu..%zu",
                   level->name, (int)c->kind, (int)c->aggregate, c->dimension, c->group, c->page_tokens,
                   (size_t)page, (size_t)begin, (size_t)end);
        if (c->kind == ABSTRACT_MIN_MAX && c->aggregate == SCORE_MAX)
            assert_true(got >= best - bound - eps * fabs(best));
    }
    guarded_destroy(&q);
    guarded_destroy(&scores);
    guarded_destroy(&scratch);
    for (size_t i = 0; i < CHUNKS; i++) guarded_destroy(&blocks[i]);
}

static void scores_match(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(27));
    static const size_t dimensions[] = {8, 24, 64, 96, 128};
    for (size_t i = 0; i < 5; i++)
        for (int type = 0; type < 2; type++) {
            if (type == KV_Q8 && dimensions[i] % 32 != 0) continue;
            struct keys keys;
            keys_create(&keys, &random, type ? KV_Q8 : KV_F16, dimensions[i]);
            for (size_t n = 0; n < 4 * 8 * 4; n++) {
                if (!test_takes_next()) continue;
                struct score_case c = {dimensions[i],
                                       (size_t)8 << n % 4,
                                       1 + n / 4 % 8,
                                       keys.kv.k_type,
                                       n / 32 % 2 ? ABSTRACT_MEAN_DEVIATION : ABSTRACT_MIN_MAX,
                                       n / 64 ? SCORE_SUM : SCORE_MAX};
                for (size_t level = 0; level < level_count; level++)
                    scores_check(&levels[level], &c, &keys, &random);
            }
            keys_destroy(&keys);
        }
}

static void nan_comes_out(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(28));
    struct keys keys;
    keys_create(&keys, &random, KV_F16, 64);
    struct abstract_layout layout;
    abstract_layout_init(&layout, 16, 64, true, true);
    struct guarded block = guarded_create(layout.bytes);
    const void *pointer = block.data;
    float q[2 * 64], scores[4], scratch[3 * 2 * 64];
    fill_normal(&random, q, 128, 1.0);
    for (size_t level = 0; level < level_count; level++)
        for (size_t t = 0; t < 64; t++) {
            uint16_t *row = (uint16_t *)(uintptr_t)kv_k_row(&keys.kv, keys.chunks[0].data, t), was = row[t];
            row[t] = t % 2 ? 0x7e01 : 0xfe00;
            build_run(&levels[level], &layout, &keys, 0, 0, 64, block.data);
            row[t] = was;
            for (size_t n = 0; n < 4; n++) {
                struct abstract_score_args args = {&layout,
                                                   n % 2 ? ABSTRACT_MIN_MAX : ABSTRACT_MEAN_DEVIATION,
                                                   n / 2 ? SCORE_SUM : SCORE_MAX,
                                                   &pointer,
                                                   0,
                                                   4,
                                                   q,
                                                   64,
                                                   2,
                                                   scores,
                                                   scratch,
                                                   NULL};
                assert_true(levels[level].kernels.score_scratch_bytes(&layout, 2) <= sizeof scratch);
                levels[level].kernels.score(&args);
                for (size_t page = 0; page < 4; page++) assert_true(isnan(scores[page]) == (page == t / 16));
            }
        }
    guarded_destroy(&block);
    keys_destroy(&keys);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_match),
        cmocka_unit_test(scores_match),
        cmocka_unit_test(nan_comes_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

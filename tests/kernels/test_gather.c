/* gather: attention over selected rows.
 *
 * The reference must equal, bit for bit, its own decode over a copy of the selected rows; that decode is held to its
 * definition by test_attention.c.  The other variants are held to the reference by the bounds derived there:
 *     d = ((n + 4) eps scale sum |q k| + 3 eps |score| + 4e-7 softcap), the largest over the rows,
 *     r = expm1(2 d) + (4 rows + 32) eps;  m is off by d, s by r s, and o by r sum(weight |v|). */
#include "gather_cases.h"
#include "selection_emulated.h"

enum { CHUNKS = 20, TOKENS = CHUNKS * 64 };
static const double eps = 0x1p-24;

CHECK_LEVELS_WITH(attention, emulated_gather_avx512_install)

/* KV of one head, twice: where the rows are, and the selected ones packed. */
struct cache {
    struct kv_layout layout;
    struct guarded memory[2][CHUNKS];
    const void *chunks[2][CHUNKS];
    float *k, *v; /* [TOKENS][dimension], as load reads them back */
};

static void cache_create(struct cache *cache, struct random *random, enum kv_type k_type, enum kv_type v_type,
                         size_t k_dimension, size_t v_dimension, const uint32_t *rows, size_t row_count,
                         double spread) {
    struct attention_kernels ref;
    attention_kernels_init(&ref, 0);
    kv_layout_init(&cache->layout, k_type, v_type, k_dimension, v_dimension);
    for (size_t i = 0; i < 2 * CHUNKS; i++) {
        struct guarded *memory = &cache->memory[i / CHUNKS][i % CHUNKS];
        *memory = guarded_create(cache->layout.chunk_bytes);
        memset(memory->data, 0xff, memory->bytes); /* NaN: rows that are not selected must not be seen */
        cache->chunks[i / CHUNKS][i % CHUNKS] = memory->data;
    }
    cache->k = malloc(TOKENS * k_dimension * sizeof(float));
    cache->v = malloc(TOKENS * v_dimension * sizeof(float));
    assert_true(cache->k != NULL && cache->v != NULL);
    for (size_t i = 0; i < row_count; i++) {
        float *k = cache->k + i * k_dimension, *v = cache->v + i * v_dimension;
        void *chunk = cache->memory[0][rows[i] / 64].data;
        fill_normal(random, k, k_dimension, spread);
        fill_normal(random, v, v_dimension, 1.0);
        ref.store(&cache->layout, chunk, rows[i] % 64, k, v);
        ref.store(&cache->layout, cache->memory[1][i / 64].data, i % 64, k, v);
        ref.load(&cache->layout, chunk, rows[i] % 64, k, v);
    }
}

static void cache_destroy(struct cache *cache) {
    for (size_t i = 0; i < 2 * CHUNKS; i++) guarded_destroy(&cache->memory[i / CHUNKS][i % CHUNKS]);
    free(cache->k);
    free(cache->v);
}

struct gather_case {
    enum kv_type k_type, v_type;
    size_t k_dimension, v_dimension;
    struct gather_heads heads;
    double spread;
};

static void rows_run(const struct attention_kernels *kernels, const struct cache *cache,
                     const struct guarded *rows, const float *q, size_t q_stride, const struct gather_case *c,
                     bool scores, struct partial *partial) {
    gather_run(kernels->gather, kernels->gather_scratch_bytes(c->heads.group, &cache->layout), &cache->layout,
               cache->chunks[0], rows, q, q_stride, &c->heads, scores, partial);
}

/* The reference's decode over the packed rows. */
static void packed_run(const struct attention_kernels *ref, const struct cache *cache, size_t row_count,
                       const float *q, size_t q_stride, const struct gather_case *c,
                       struct partial *partial) {
    void *scratch = malloc(ref->decode_scratch_bytes(c->heads.group, &cache->layout));
    assert_true(scratch != NULL);
    struct attention_decode_args args = {
        .layout = &cache->layout,
        .chunks = cache->chunks[1],
        .row_end = row_count,
        .q = q,
        .q_stride = q_stride,
        .group = c->heads.group,
        .scale = c->heads.scale,
        .softcap = c->heads.softcap,
        .m = partial->m,
        .s = partial->s,
        .o = partial->o.data,
        .o_stride = partial->o_stride,
        .scratch = scratch,
    };
    ref->decode(&args);
    free(scratch);
}

/* One head of `got` against one of `want`, whose scores are in double here. */
static void head_check(const struct cache *cache, const struct gather_case *c, size_t row_count,
                       const float *q, const struct partial *want, const struct partial *got, size_t head,
                       bool scores, const char *text) {
    static double magnitude[DIMENSION_MAX];
    double off = 0, n = (double)c->k_dimension, m = (double)want->m[head];
    memset(magnitude, 0, sizeof magnitude);
    for (size_t i = 0; i < row_count; i++) {
        double dot = 0, size = 0, cap = (double)c->heads.softcap;
        for (size_t d = 0; d < c->k_dimension; d++) {
            double product = (double)q[d] * (double)cache->k[i * c->k_dimension + d];
            dot += product;
            size += fabs(product);
        }
        double score = dot * (double)c->heads.scale, bound = (n + 4) * eps * (double)c->heads.scale * size;
        if (c->heads.softcap != 0) {
            score = cap * tanh(score / cap);
            bound += 4e-7 * cap;
        }
        bound += 3 * eps * fabs(score);
        off = fmax(off, bound);
        if (scores)
            check_near(((float *)got->scores.data)[head * got->scores_stride + i], score, bound,
                       "%s: score %zu", text, i);
        const double weight = exp(score - m); /* once: gcc does not take it out of the loop */
        for (size_t d = 0; d < c->v_dimension; d++)
            magnitude[d] += weight * fabs((double)cache->v[i * c->v_dimension + d]);
    }
    if (row_count == 0) {
        assert_true(got->m[head] == -INFINITY && got->s[head] == 0);
        for (size_t d = 0; d < c->v_dimension; d++)
            assert_true(((float *)got->o.data)[head * got->o_stride + d] == 0);
        return;
    }
    double r = expm1(2 * off) + (4 * (double)row_count + 32) * eps;
    check_near(got->m[head], m, off + eps * fabs(m), "%s: m", text);
    double shift = exp((double)got->m[head] - m);
    check_near((double)got->s[head] * shift, want->s[head], r * (double)want->s[head], "%s: s", text);
    for (size_t d = 0; d < c->v_dimension; d++)
        check_near((double)((float *)got->o.data)[head * got->o_stride + d] * shift,
                   ((float *)want->o.data)[head * want->o_stride + d], r * magnitude[d], "%s: o[%zu]", text,
                   d);
}

static void gather_check(const struct level *levels, size_t level_count, const struct gather_case *c,
                         const struct guarded *rows, const char *selection, struct random *random) {
    if (!test_takes_next()) return;
    size_t row_count = rows->bytes / sizeof(uint32_t), q_stride = c->k_dimension + 3;
    struct cache cache;
    cache_create(&cache, random, c->k_type, c->v_type, c->k_dimension, c->v_dimension, rows->data, row_count,
                 c->spread);
    struct guarded q = guarded_create(((c->heads.group - 1) * q_stride + c->k_dimension) * sizeof(float));
    fill_normal(random, q.data, q.bytes / sizeof(float), c->spread);
    struct partial want, got;
    partial_create(&want, c->heads.group, c->v_dimension, row_count);
    packed_run(&levels[0].kernels, &cache, row_count, q.data, q_stride, c, &want);
    for (size_t i = 0; i < level_count * 2; i++) {
        const struct level *level = &levels[i / 2];
        bool scores = i % 2;
        rows_run(&level->kernels, &cache, rows, q.data, q_stride, c, scores, &got);
        if (i / 2 == 0) {
            assert_memory_equal(got.m, want.m, c->heads.group * sizeof(float));
            assert_memory_equal(got.s, want.s, c->heads.group * sizeof(float));
            assert_memory_equal(got.o.data, want.o.data, got.o.bytes);
        }
        for (size_t head = 0; head < c->heads.group; head++) {
            char text[200];
            snprintf(text, sizeof text, "%s: %s, %zu rows, k %zu v %zu types %d %d group %zu head %zu cap %g",
                     level->name, selection, row_count, c->k_dimension, c->v_dimension, (int)c->k_type,
                     (int)c->v_type, c->heads.group, head, (double)c->heads.softcap);
            head_check(&cache, c, row_count, (float *)q.data + head * q_stride, &want, &got, head, scores,
                       text);
        }
        partial_destroy(&got);
    }
    partial_destroy(&want);
    guarded_destroy(&q);
    cache_destroy(&cache);
}

static void gather_matches(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(31));
    static const size_t dimensions[] = {8, 24, 64, 72, 96, 128, 256}, groups[] = {1, 2, 3, 4, 5, 7, 8, 16};
    for (size_t d = 0; d < 7; d++)
        for (size_t g = 0; g < 8; g++)
            for (enum selection n = 0; n < SELECTIONS; n++) {
                if ((d + g + n) % 3 != 0) continue; /* a third of the combinations; all pairs occur */
                struct guarded rows = rows_select(n, TOKENS, &random);
                size_t dimension = dimensions[d];
                struct gather_case c = {
                    KV_F16,
                    KV_F16,
                    dimension,
                    dimension,
                    {groups[g], 1.0f / sqrtf((float)dimension), n % 3 == 2 ? 30.0f : 0.0f},
                    1.0};
                gather_check(levels, level_count, &c, &rows, selection_names[n], &random);
                if (dimension % KV_SCALE_GROUP == 0) {
                    c.v_type = KV_Q8;
                    if (n % 2 == 0) gather_check(levels, level_count, &c, &rows, selection_names[n], &random);
                    c.k_type = KV_Q8;
                    gather_check(levels, level_count, &c, &rows, selection_names[n], &random);
                    c.v_type = KV_F16;
                    c.v_dimension = 40;
                    if (n % 2 == 1) gather_check(levels, level_count, &c, &rows, selection_names[n], &random);
                }
                guarded_destroy(&rows);
            }
}

static void gather_survives_large_scores(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(32));
    for (size_t group = 1; group <= 8; group++) {
        struct guarded rows = rows_select(DENSE, TOKENS, &random);
        struct gather_case c = {KV_F16, KV_F16, 128, 128, {group, 1.0f, 0}, 30.0};
        gather_check(levels, level_count, &c, &rows, "large scores", &random);
        guarded_destroy(&rows);
    }
}

static void nan_comes_out(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(33));
    struct guarded rows = rows_select(SPARSE, TOKENS, &random);
    size_t count = rows.bytes / sizeof(uint32_t), at = count - 2;
    struct gather_case c = {KV_F16, KV_F16, 64, 64, {4, 0.1f, 0}, 1.0};
    for (size_t i = 0; i < level_count; i++)
        for (int where = 0; where < 3; where++) {
            struct cache cache;
            struct partial partial;
            float q[4 * 64], k[64], v[64];
            cache_create(&cache, &random, KV_F16, KV_F16, 64, 64, rows.data, count, 1.0);
            fill_normal(&random, q, 4 * 64, 1.0);
            uint32_t row = ((uint32_t *)rows.data)[at];
            levels[i].kernels.load(&cache.layout, cache.chunks[0][row / 64], row % 64, k, v);
            if (where == 0) q[64 + 9] = NAN;
            if (where == 1) k[9] = NAN;
            if (where == 2) v[9] = NAN;
            levels[i].kernels.store(&cache.layout, cache.memory[0][row / 64].data, row % 64, k, v);
            rows_run(&levels[i].kernels, &cache, &rows, q, 64, &c, true, &partial);
            if (where != 2) assert_true(isnan(partial.s[1]));
            assert_true(isnan(((float *)partial.o.data)[partial.o_stride + 9]));
            assert_true(where != 0 || !isnan(partial.s[0])); /* the other heads are not touched */
            const float *scores = partial.scores.data;
            assert_true(isnan(scores[partial.scores_stride + at]) == (where != 2));
            partial_destroy(&partial);
            cache_destroy(&cache);
        }
    guarded_destroy(&rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gather_matches),
        cmocka_unit_test(gather_survives_large_scores),
        cmocka_unit_test(nan_comes_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

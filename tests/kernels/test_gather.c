/* gather: attention over selected rows.
 *
 * The reference must equal, bit for bit, its own decode over a copy of the selected rows; that decode is held to its
 * definition by test_attention.c.  The other variants are held to the reference by the bounds derived there:
 *     d = ((n + 4) eps scale sum |q k| + 3 eps |score| + 4e-7 softcap), the largest over the rows,
 *     r = expm1(2 d) + (4 rows + 32) eps;  m is off by d, s by r s, and o by r sum(weight |v|). */
#include "check.h"

#include "selection_emulated.h"

enum { CHUNKS = 20, TOKENS = CHUNKS * 64, HEADS_MOST = 16, DIMENSION_MOST = 256 };
static const double eps = 0x1p-24;

CHECK_LEVELS_OF(attention)

static size_t levels_init(struct level levels[8]) {
    size_t count = levels_known(levels);
#if defined(LOAM_EMULATED)
    if ((cpu_features() & CPU_AVX2) != 0) {
        levels[count].name = "avx512 emulated";
        attention_kernels_init(&levels[count].kernels, CPU_AVX2);
        emulated_gather_avx512_install(&levels[count++].kernels);
    }
#endif
    return count;
}

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
    size_t k_dimension, v_dimension, group;
    float scale, softcap;
    double spread;
};

struct partial {
    float m[HEADS_MOST], s[HEADS_MOST];
    struct guarded o, scores; /* [group][stride] */
    size_t o_stride, scores_stride;
};

static void partial_create(struct partial *partial, const struct gather_case *c, size_t row_count) {
    partial->o_stride = c->v_dimension + 5;
    partial->scores_stride = row_count + 3;
    partial->o = guarded_create(((c->group - 1) * partial->o_stride + c->v_dimension) * sizeof(float));
    partial->scores = guarded_create(((c->group - 1) * partial->scores_stride + row_count) * sizeof(float));
    fill_nan(partial->o.data, partial->o.bytes / sizeof(float));
    fill_nan(partial->scores.data, partial->scores.bytes / sizeof(float));
    fill_nan(partial->m, HEADS_MOST);
    fill_nan(partial->s, HEADS_MOST);
}

static void partial_destroy(struct partial *partial) {
    guarded_destroy(&partial->o);
    guarded_destroy(&partial->scores);
}

static void gather_run(const struct attention_kernels *kernels, const struct cache *cache,
                       const struct guarded *rows, const float *q, size_t q_stride,
                       const struct gather_case *c, bool scores, struct partial *partial) {
    struct guarded scratch =
        guarded_create((kernels->gather_scratch_bytes(c->group, &cache->layout) + 63) / 64 * 64);
    memset(scratch.data, 0xff, scratch.bytes);
    struct attention_gather_args args = {
        .layout = &cache->layout,
        .chunks = cache->chunks[0],
        .rows = rows->data,
        .row_count = rows->bytes / sizeof(uint32_t),
        .q = q,
        .q_stride = q_stride,
        .group = c->group,
        .scale = c->scale,
        .softcap = c->softcap,
        .m = partial->m,
        .s = partial->s,
        .o = partial->o.data,
        .o_stride = partial->o_stride,
        .scores = scores ? partial->scores.data : NULL,
        .scores_stride = partial->scores_stride,
        .scratch = scratch.data,
    };
    kernels->gather(&args);
    guarded_destroy(&scratch);
}

/* The reference's decode over the packed rows. */
static void packed_run(const struct attention_kernels *ref, const struct cache *cache, size_t row_count,
                       const float *q, size_t q_stride, const struct gather_case *c,
                       struct partial *partial) {
    void *scratch = malloc(ref->decode_scratch_bytes(c->group, &cache->layout));
    assert_true(scratch != NULL);
    struct attention_decode_args args = {
        .layout = &cache->layout,
        .chunks = cache->chunks[1],
        .row_end = row_count,
        .q = q,
        .q_stride = q_stride,
        .group = c->group,
        .scale = c->scale,
        .softcap = c->softcap,
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
    static double magnitude[DIMENSION_MOST];
    double off = 0, n = (double)c->k_dimension, m = (double)want->m[head];
    memset(magnitude, 0, sizeof magnitude);
    for (size_t i = 0; i < row_count; i++) {
        double dot = 0, size = 0, cap = (double)c->softcap;
        for (size_t d = 0; d < c->k_dimension; d++) {
            double product = (double)q[d] * (double)cache->k[i * c->k_dimension + d];
            dot += product;
            size += fabs(product);
        }
        double score = dot * (double)c->scale, bound = (n + 4) * eps * (double)c->scale * size;
        if (c->softcap != 0) {
            score = cap * tanh(score / cap);
            bound += 4e-7 * cap;
        }
        bound += 3 * eps * fabs(score);
        off = fmax(off, bound);
        if (scores)
            check_near(((float *)got->scores.data)[head * got->scores_stride + i], score, bound,
                       "%s: score %zu", text, i);
        for (size_t d = 0; d < c->v_dimension; d++)
            magnitude[d] += exp(score - m) * fabs((double)cache->v[i * c->v_dimension + d]);
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
    size_t row_count = rows->bytes / sizeof(uint32_t), q_stride = c->k_dimension + 3;
    struct cache cache;
    cache_create(&cache, random, c->k_type, c->v_type, c->k_dimension, c->v_dimension, rows->data, row_count,
                 c->spread);
    struct guarded q = guarded_create(((c->group - 1) * q_stride + c->k_dimension) * sizeof(float));
    fill_normal(random, q.data, q.bytes / sizeof(float), c->spread);
    struct partial want, got;
    partial_create(&want, c, row_count);
    packed_run(&levels[0].kernels, &cache, row_count, q.data, q_stride, c, &want);
    for (size_t i = 0; i < level_count * 2; i++) {
        const struct level *level = &levels[i / 2];
        bool scores = i % 2;
        partial_create(&got, c, row_count);
        gather_run(&level->kernels, &cache, rows, q.data, q_stride, c, scores, &got);
        if (i / 2 == 0) {
            assert_memory_equal(got.m, want.m, c->group * sizeof(float));
            assert_memory_equal(got.s, want.s, c->group * sizeof(float));
            assert_memory_equal(got.o.data, want.o.data, got.o.bytes);
        }
        for (size_t head = 0; head < c->group; head++) {
            char text[200];
            snprintf(text, sizeof text, "%s: %s, %zu rows, k %zu v %zu types %d %d group %zu head %zu cap %g",
                     level->name, selection, row_count, c->k_dimension, c->v_dimension, (int)c->k_type,
                     (int)c->v_type, c->group, head, (double)c->softcap);
            head_check(&cache, c, row_count, (float *)q.data + head * q_stride, &want, &got, head, scores,
                       text);
        }
        partial_destroy(&got);
    }
    partial_destroy(&want);
    guarded_destroy(&q);
    cache_destroy(&cache);
}

/* Rows of one kind of selection. */
enum selection { ALL, RANGE, SPARSE, DENSE, BLOCKS, ONE, NONE, LAST, SELECTIONS };
static const char *const selection_names[SELECTIONS] = {"all",    "range", "sparse", "dense",
                                                        "blocks", "one",   "none",   "last"};

static struct guarded rows_select(enum selection selection, struct random *random) {
    static uint32_t rows[TOKENS];
    size_t count = 0;
    for (uint32_t row = 0; row < TOKENS; row++) {
        bool take = false;
        switch (selection) {
        case ALL: take = row < 333; break;
        case RANGE: take = row >= 37 && row < 301; break;
        case SPARSE: take = random_below(random, 17) == 0; break;
        case DENSE: take = random_below(random, 5) > 1 && row < 400; break;
        case BLOCKS: take = row / 8 * 2654435761u % 7 == 0; break;
        case ONE: take = row == 777; break;
        case NONE: break;
        case LAST: take = row == 0 || row == TOKENS - 1; break;
        case SELECTIONS: break;
        }
        if (take) rows[count++] = row;
    }
    struct guarded list = guarded_create(count * sizeof(uint32_t));
    memcpy(list.data, rows, count * sizeof(uint32_t));
    return list;
}

static void gather_matches(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, 31);
    static const size_t dimensions[] = {8, 24, 64, 72, 96, 128, 256}, groups[] = {1, 2, 3, 4, 5, 7, 8, 16};
    for (size_t d = 0; d < 7; d++)
        for (size_t g = 0; g < 8; g++)
            for (enum selection n = 0; n < SELECTIONS; n++) {
                if ((d + g + n) % 3 != 0) continue; /* a third of the combinations; all pairs occur */
                struct guarded rows = rows_select(n, &random);
                size_t dimension = dimensions[d];
                struct gather_case c = {KV_F16,
                                        KV_F16,
                                        dimension,
                                        dimension,
                                        groups[g],
                                        1.0f / sqrtf((float)dimension),
                                        n % 3 == 2 ? 30.0f : 0.0f,
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
    random_init(&random, 32);
    for (size_t group = 1; group <= 8; group++) {
        struct guarded rows = rows_select(DENSE, &random);
        struct gather_case c = {KV_F16, KV_F16, 128, 128, group, 1.0f, 0, 30.0};
        gather_check(levels, level_count, &c, &rows, "large scores", &random);
        guarded_destroy(&rows);
    }
}

static void nan_comes_out(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, 33);
    struct guarded rows = rows_select(SPARSE, &random);
    size_t count = rows.bytes / sizeof(uint32_t), at = count - 2;
    struct gather_case c = {KV_F16, KV_F16, 64, 64, 4, 0.1f, 0, 1.0};
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
            partial_create(&partial, &c, count);
            gather_run(&levels[i].kernels, &cache, &rows, q, 64, &c, true, &partial);
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

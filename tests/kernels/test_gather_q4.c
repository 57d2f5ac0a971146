/* gather_q4: attention over selected rows of chunks in 4 bits, against sums in double made here of what the codes
 * stand for, low + code (high - low) / 15, which in turn are what the codec decodes but for the rounding to a half.
 *
 * Bounds, as in test_gather.c, with sizes that know of the two parts a product is made of (q low and q step code):
 *     size = sum |q| (|low| + code step)
 *     d = ((n + 8) eps scale size + 4 eps |score| + 4e-7 softcap), the largest over the rows,
 *     r = expm1(2 d) + (4 rows + 40) eps;  m is off by d, s by r s, and o by r sum weight (|low| + code step). */
#include "gather_cases.h"
#include "selection_emulated.h"

#include "kernels/codec/codec.h"
#include "kernels/codec/q4_parts.h"
#include "tensor/half.h"

enum { CHUNKS = 7, TOKENS = CHUNKS * 64 };
static const double eps = 0x1p-24;

CHECK_LEVELS_WITH(attention, emulated_gather_q4_avx512_install)

struct element {
    double value, size;
};

/* KV of one head: its chunks in 4 bits, and what the codes stand for. */
struct cache {
    struct kv_layout layout;
    struct guarded q4[CHUNKS];
    const void *chunks[CHUNKS];
    struct element *k, *v; /* [TOKENS][dimension] */
};

static struct element element_of(const uint16_t *low, const uint16_t *high, size_t group,
                                 const uint8_t *codes, size_t token) {
    double min = (double)half_to_float(low[group]), max = (double)half_to_float(high[group]);
    double rise = (*codes >> token % 2 * 4 & 15) * (max - min) / 15;
    return (struct element){min + rise, fabs(min) + rise};
}

static void elements_make(struct cache *cache, size_t chunk) {
    const struct q4_parts parts = q4_parts_of(&cache->layout);
    const uint8_t *q4 = cache->q4[chunk].data;
    const uint16_t *halves = cache->q4[chunk].data;
    for (size_t t = 0; t < 64; t++) {
        struct element *k = cache->k + (chunk * 64 + t) * parts.k_dimension;
        struct element *v = cache->v + (chunk * 64 + t) * parts.v_dimension;
        for (size_t d = 0; d < parts.k_dimension; d++)
            k[d] = element_of(halves, halves + parts.k_high / 2, d,
                              q4 + parts.k_codes + t / 2 * parts.k_dimension + d, t);
        for (size_t d = 0; d < parts.v_dimension; d++)
            v[d] = element_of(halves + parts.v_low / 2, halves + parts.v_high / 2,
                              t * parts.groups + d / Q4_V_GROUP,
                              q4 + parts.v_codes + t / 2 * parts.v_dimension + d, t);
    }
}

static void cache_create(struct cache *cache, struct random *random, size_t k_dimension, size_t v_dimension,
                         double spread) {
    struct attention_kernels ref;
    struct codec_kernels codec;
    attention_kernels_init(&ref, 0);
    codec_kernels_init(&codec, 0);
    kv_layout_init(&cache->layout, KV_F16, KV_F16, k_dimension, v_dimension);
    cache->k = malloc(TOKENS * k_dimension * sizeof *cache->k);
    cache->v = malloc(TOKENS * v_dimension * sizeof *cache->v);
    void *chunk = malloc(cache->layout.chunk_bytes), *again = malloc(cache->layout.chunk_bytes);
    assert_true(cache->k != NULL && cache->v != NULL && chunk != NULL && again != NULL);
    for (size_t c = 0; c < CHUNKS; c++) {
        static float k[DIMENSION_MAX], v[DIMENSION_MAX], offset[DIMENSION_MAX];
        fill_normal(random, offset, k_dimension, c % 2 == 0 ? 0 : 3 * spread); /* as keys with a bias */
        for (size_t t = 0; t < 64; t++) {
            fill_normal(random, k, k_dimension, spread);
            fill_normal(random, v, v_dimension, 1.0);
            for (size_t d = 0; d < k_dimension; d++) k[d] += offset[d];
            ref.store(&cache->layout, chunk, t, k, v);
        }
        cache->q4[c] = guarded_create(kv_q4_chunk_bytes(&cache->layout));
        codec.q4_encode(&cache->layout, chunk, cache->q4[c].data);
        cache->chunks[c] = cache->q4[c].data;
        elements_make(cache, c);
        codec.q4_decode(&cache->layout, cache->q4[c].data, again);
        for (size_t t = 0; t < 64; t++) {
            ref.load(&cache->layout, again, t, k, v);
            for (size_t d = 0; d < k_dimension; d++) {
                struct element element = cache->k[(c * 64 + t) * k_dimension + d];
                check_near(k[d], element.value, 0x1p-11 * fabs(element.value) + 0x1p-20 * element.size,
                           "k of token %zu, channel %zu", t, d);
            }
            for (size_t d = 0; d < v_dimension; d++) {
                struct element element = cache->v[(c * 64 + t) * v_dimension + d];
                check_near(v[d], element.value, 0x1p-11 * fabs(element.value) + 0x1p-20 * element.size,
                           "v of token %zu, channel %zu", t, d);
            }
        }
    }
    free(chunk);
    free(again);
}

static void cache_destroy(struct cache *cache) {
    for (size_t i = 0; i < CHUNKS; i++) guarded_destroy(&cache->q4[i]);
    free(cache->k);
    free(cache->v);
}

static void q4_run(const struct attention_kernels *kernels, const struct cache *cache,
                   const struct guarded *rows, const struct guarded *q, size_t q_stride,
                   const struct gather_heads *heads, bool scores, struct partial *partial) {
    gather_run(kernels->gather_q4, kernels->gather_q4_scratch_bytes(heads->group, &cache->layout),
               &cache->layout, cache->chunks, rows, q->data, q_stride, heads, scores, partial);
}

struct score {
    double value, bound;
};

static struct score score_of(const struct cache *cache, const struct gather_heads *c, const float *q,
                             uint32_t row) {
    const size_t n = cache->layout.k_dimension;
    double dot = 0, size = 0, cap = (double)c->softcap;
    for (size_t d = 0; d < n; d++) {
        struct element k = cache->k[row * n + d];
        dot += (double)q[d] * k.value;
        size += fabs((double)q[d]) * k.size;
    }
    struct score score = {dot * (double)c->scale, ((double)n + 8) * eps * (double)c->scale * size};
    if (c->softcap != 0) {
        score.value = cap * tanh(score.value / cap);
        score.bound += 4e-7 * cap;
    }
    score.bound += 4 * eps * fabs(score.value);
    return score;
}

static void head_check(const struct cache *cache, const struct gather_heads *c, const struct guarded *rows,
                       const float *q, const struct partial *got, size_t head, bool scores,
                       const char *text) {
    const size_t count = rows->bytes / sizeof(uint32_t), v_dimension = cache->layout.v_dimension;
    const uint32_t *row = rows->data;
    const float *o = (float *)got->o.data + head * got->o_stride;
    double m = -INFINITY, off = 0, s = 0;
    static double sums[DIMENSION_MAX], sizes[DIMENSION_MAX];
    memset(sums, 0, sizeof sums);
    memset(sizes, 0, sizeof sizes);
    for (size_t i = 0; i < count; i++) {
        struct score score = score_of(cache, c, q, row[i]);
        m = fmax(m, score.value);
        off = fmax(off, score.bound);
        if (scores)
            check_near(((float *)got->scores.data)[head * got->scores_stride + i], score.value, score.bound,
                       "%s: score %zu", text, i);
    }
    for (size_t i = 0; i < count; i++) {
        double weight = exp(score_of(cache, c, q, row[i]).value - m);
        s += weight;
        for (size_t d = 0; d < v_dimension; d++) {
            sums[d] += weight * cache->v[row[i] * v_dimension + d].value;
            sizes[d] += weight * cache->v[row[i] * v_dimension + d].size;
        }
    }
    if (count == 0) assert_true(got->m[head] == -INFINITY && got->s[head] == 0);
    double r = expm1(2 * off) + (4 * (double)count + 40) * eps;
    double shift = count > 0 ? exp((double)got->m[head] - m) : 1;
    if (count > 0) check_near(got->m[head], m, off + eps * fabs(m), "%s: m", text);
    check_near((double)got->s[head] * shift, s, r * s, "%s: s", text);
    for (size_t d = 0; d < v_dimension; d++)
        check_near((double)o[d] * shift, sums[d], r * sizes[d], "%s: o[%zu]", text, d);
}

static void case_check(struct random *random, size_t k_dimension, size_t v_dimension,
                       enum selection selection, const struct gather_heads *c, double spread) {
    struct level levels[8];
    struct cache cache;
    struct partial got;
    if (!test_takes_next()) return;
    size_t level_count = levels_init(levels), q_stride = k_dimension + 3;
    cache_create(&cache, random, k_dimension, v_dimension, spread);
    struct guarded rows = rows_select(selection, TOKENS, random);
    struct guarded q = guarded_create(((c->group - 1) * q_stride + k_dimension) * sizeof(float));
    fill_normal(random, q.data, q.bytes / sizeof(float), spread);
    for (size_t i = 0; i < level_count * 2; i++) {
        q4_run(&levels[i / 2].kernels, &cache, &rows, &q, q_stride, c, i % 2 == 1, &got);
        for (size_t head = 0; head < c->group; head++) {
            char text[200];
            snprintf(text, sizeof text, "%s: %s, k %zu v %zu group %zu head %zu cap %g", levels[i / 2].name,
                     selection_names[selection], k_dimension, v_dimension, c->group, head,
                     (double)c->softcap);
            head_check(&cache, c, &rows, (float *)q.data + head * q_stride, &got, head, i % 2 == 1, text);
        }
        partial_destroy(&got);
    }
    guarded_destroy(&rows);
    guarded_destroy(&q);
    cache_destroy(&cache);
}

static void gather_matches(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(41));
    static const size_t dimensions[] = {8, 24, 64, 72, 96, 128, 256}, groups[] = {1, 2, 3, 4, 5, 7, 8, 16};
    for (size_t d = 0; d < 7; d++)
        for (size_t g = 0; g < 8; g++)
            for (enum selection n = 0; n < SELECTIONS; n++) {
                if ((d + g + n) % 3 != 0) continue; /* a third of the combinations; all pairs occur */
                struct gather_heads c = {groups[g], 1.0f / sqrtf((float)dimensions[d]),
                                         n % 3 == 2 ? 30.0f : 0.0f};
                case_check(&random, dimensions[d], n % 2 == 0 ? dimensions[d] : 40, n, &c, 1.0);
            }
}

static void gather_survives_large_scores(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(42));
    for (size_t group = 1; group <= 8; group++)
        case_check(&random, 128, 128, DENSE, &(struct gather_heads){group, 1.0f, 0}, 30.0);
}

/* NaN is passed on, and only where it is selected. */
static void nan_comes_out(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(43));
    const struct gather_heads c = {4, 0.1f, 0};
    struct guarded rows = rows_select(SPARSE, TOKENS, &random), q = guarded_create(4 * 64 * sizeof(float));
    const uint32_t *list = rows.data;
    const size_t count = rows.bytes / sizeof(uint32_t), at = count - 2;
    bool selected[TOKENS] = {false};
    for (size_t i = 0; i < count; i++) selected[list[i]] = true;
    for (size_t i = 0; i < level_count; i++)
        for (int where = 0; where < 4; where++) {
            struct cache cache;
            struct partial got;
            cache_create(&cache, &random, 64, 64, 1.0);
            const struct q4_parts parts = q4_parts_of(&cache.layout);
            uint16_t *halves = cache.q4[list[at] / 64].data;
            uint16_t *lows = halves + parts.v_low / 2, *highs = halves + parts.v_high / 2;
            fill_normal(&random, q.data, 4 * 64, 1.0);
            if (where == 0) ((float *)q.data)[64 + 9] = NAN;
            if (where == 1) halves[9] = halves[64 + 9] = 0x7e00;
            size_t token = list[at] % 64;
            if (where == 2) lows[token * 2 + 1] = highs[token * 2 + 1] = 0x7e00;
            for (size_t t = 0; where == 3 && t < 64; t++)
                if (!selected[list[at] / 64 * 64 + t])
                    lows[t * 2] = lows[t * 2 + 1] = highs[t * 2] = highs[t * 2 + 1] = 0x7e00;
            q4_run(&levels[i].kernels, &cache, &rows, &q, 64, &c, true, &got);
            const float *o = (float *)got.o.data + got.o_stride, *scores = got.scores.data;
            assert_true(isnan(got.s[1]) == (where < 2));
            assert_true(isnan(got.s[0]) == (where == 1));
            assert_true(isnan(scores[got.scores_stride + at]) == (where < 2));
            assert_true(isnan(o[40]) == (where < 3) && isnan(o[9]) == (where < 2));
            partial_destroy(&got);
            cache_destroy(&cache);
        }
    guarded_destroy(&rows);
    guarded_destroy(&q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gather_matches),
        cmocka_unit_test(gather_survives_large_scores),
        cmocka_unit_test(nan_comes_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

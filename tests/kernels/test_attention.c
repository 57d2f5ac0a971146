/* attention: every variant against sums in double written out here.
 *
 * The bounds.  eps = 2^-24.  A score is a float dot product of n = k_dimension terms in some order, so it
 * is off by at most (n + 4) eps * scale * sum |q k| (Higham, Accuracy and Stability of Numerical
 * Algorithms, 3.1; the 4 are the roundings of scale, of a q8 element and of the product), plus
 * 3 eps |score| for the roundings of the score and of score - maximum, plus 4e-7 softcap where there is
 * one (floats_softcap).  Let d be the largest of these over the rows.  A weight exp(score - m) is then off
 * by a factor of exp(2 d) and by the 2 units of floats_exp; sums over the rows add (rows + 8) eps of
 * the sum of magnitudes, and each rise of the maximum a rounding and an exp.  So with
 *     r = expm1(2 d) + (4 rows + 32) eps
 * s is off by r s, and o by r sum(weight |v|). */
#include "check.h"

#include "attention_emulated.h"
#include "tensor/half.h"

enum { CHUNKS_MAX = 24, HEADS_MAX = 16, DIMENSION_MAX = 256 };
static const double eps = 0x1p-24;

struct level {
    const char *name;
    struct attention_kernels kernels;
    double rounding; /* of a product in prefill, where factors are rounded to bf16: 2^-8 + 2^-18 */
};

static size_t levels_init(struct level levels[8]) {
    struct check_level known[6];
    size_t count = check_levels(known);
    for (size_t i = 0; i < count; i++) {
        levels[i].name = known[i].name;
        levels[i].rounding = (known[i].mask & CPU_AMX) != 0 ? 0x1p-8 + 0x1p-18 : 0;
        attention_kernels_init(&levels[i].kernels, known[i].mask);
    }
#if defined(LOAM_EMULATED)
    if ((cpu_features() & CPU_AVX2) != 0) {
        levels[count].name = "avx512 emulated";
        attention_kernels_init(&levels[count].kernels, CPU_AVX2);
        emulated_decode_avx512_install(&levels[count].kernels);
        emulated_prefill_avx512_install(&levels[count].kernels);
        levels[count++].rounding = 0;
        levels[count].name = "amx emulated";
        attention_kernels_init(&levels[count].kernels, CPU_AVX2);
        emulated_prefill_amx_install(&levels[count].kernels);
        levels[count++].rounding = 0x1p-8 + 0x1p-18;
    }
#endif
    return count;
}

/* KV rows of one head: each chunk ends at a guard page, and rows that nobody stored are NaN. */
struct rows {
    struct kv_layout layout;
    struct guarded memory[CHUNKS_MAX];
    const void *chunks[CHUNKS_MAX];
    size_t chunk_count;
    float *k, *v; /* [rows][dimension], as load reads them back */
};

static void rows_create(struct rows *rows, struct random *random, enum kv_type k_type, enum kv_type v_type,
                        size_t k_dimension, size_t v_dimension, uint64_t begin, uint64_t end, double spread) {
    struct attention_kernels ref;
    attention_kernels_init(&ref, 0);
    kv_layout_init(&rows->layout, k_type, v_type, k_dimension, v_dimension);
    rows->chunk_count = (size_t)(end + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS;
    assert_true(rows->chunk_count <= CHUNKS_MAX);
    for (size_t i = 0; i < rows->chunk_count; i++) {
        rows->memory[i] = guarded_create(rows->layout.chunk_bytes);
        memset(rows->memory[i].data, 0xff, rows->layout.chunk_bytes); /* NaN as halves and as scales */
        rows->chunks[i] = rows->memory[i].data;
    }
    rows->k = malloc((size_t)end * k_dimension * sizeof(float) + 1);
    rows->v = malloc((size_t)end * v_dimension * sizeof(float) + 1);
    assert_true(rows->k != NULL && rows->v != NULL);
    for (uint64_t row = begin; row < end; row++) {
        float *k = rows->k + row * k_dimension, *v = rows->v + row * v_dimension;
        void *chunk = rows->memory[row / KV_CHUNK_TOKENS].data;
        fill_normal(random, k, k_dimension, spread);
        fill_normal(random, v, v_dimension, 1.0);
        ref.store(&rows->layout, chunk, row % KV_CHUNK_TOKENS, k, v);
        ref.load(&rows->layout, chunk, row % KV_CHUNK_TOKENS, k, v);
    }
}

static void rows_destroy(struct rows *rows) {
    for (size_t i = 0; i < rows->chunk_count; i++) guarded_destroy(&rows->memory[i]);
    free(rows->k);
    free(rows->v);
}

/* What one head should give. */
struct expected {
    double m, s, o[DIMENSION_MAX];
    double magnitude[DIMENSION_MAX]; /* sum of weight |v| */
    double largest;                  /* of |score| */
    double off;                      /* d above */
};

static double score_of(const struct rows *rows, const float *q, const float *k, float scale, float softcap,
                       double *off, double extra) {
    double dot = 0, size = 0, n = (double)rows->layout.k_dimension;
    for (size_t d = 0; d < rows->layout.k_dimension; d++) {
        dot += (double)q[d] * (double)k[d];
        size += fabs((double)q[d] * (double)k[d]);
    }
    dot *= (double)scale;
    *off = ((n + 4) * eps + extra) * fabs((double)scale) * size;
    if (softcap != 0) {
        dot = (double)softcap * tanh(dot / (double)softcap);
        *off += 4e-7 * (double)softcap;
    }
    *off += 3 * eps * fabs(dot);
    return dot;
}

static void expect(const struct rows *rows, uint64_t begin, uint64_t end, const float *q, float scale,
                   float softcap, double extra, struct expected *want) {
    static double scores[CHUNKS_MAX * KV_CHUNK_TOKENS];
    memset(want, 0, sizeof *want);
    want->m = -INFINITY;
    for (uint64_t row = begin; row < end; row++) {
        double off;
        scores[row] =
            score_of(rows, q, rows->k + row * rows->layout.k_dimension, scale, softcap, &off, extra);
        want->m = fmax(want->m, scores[row]);
        want->off = fmax(want->off, off);
    }
    for (uint64_t row = begin; row < end; row++) {
        const float *v = rows->v + row * rows->layout.v_dimension;
        double weight = exp(scores[row] - want->m);
        want->s += weight;
        for (size_t d = 0; d < rows->layout.v_dimension; d++) {
            want->o[d] += weight * (double)v[d];
            want->magnitude[d] += weight * fabs((double)v[d]);
        }
    }
}

static double relative(const struct expected *want, uint64_t row_count) {
    return expm1(2 * want->off) + (4 * (double)row_count + 32) * eps;
}

/* The partial (m, s, o) of rows [begin, end). */
static void check_partial(const struct expected *want, size_t dimension, uint64_t row_count, float m, float s,
                          const float *o, const char *text) {
    if (row_count == 0) {
        assert_true(m == -INFINITY && s == 0);
        for (size_t d = 0; d < dimension; d++) assert_true(o[d] == 0);
        return;
    }
    check_near(m, want->m, want->off + eps * fabs(want->m), "m of %s", text);
    double shift = exp((double)m - want->m), r = relative(want, row_count);
    check_near((double)s * shift, want->s, r * want->s, "s of %s", text);
    for (size_t d = 0; d < dimension; d++)
        check_near((double)o[d] * shift, want->o[d], r * want->magnitude[d], "o[%zu] of %s", d, text);
}

struct decode_case {
    enum kv_type k_type, v_type;
    size_t k_dimension, v_dimension, group;
    uint64_t begin, end;
    float scale, softcap;
    double spread; /* of q and k */
};

struct partial {
    float m[HEADS_MAX], s[HEADS_MAX], *o;
    size_t o_stride;
};

static void decode_run(const struct attention_kernels *kernels, const struct rows *rows, uint64_t begin,
                       uint64_t end, const float *q, size_t q_stride, const struct decode_case *c,
                       struct partial *partial) {
    size_t scratch_bytes = kernels->decode_scratch_bytes(c->group, &rows->layout);
    struct guarded scratch = guarded_create((scratch_bytes + 63) / 64 * 64);
    fill_nan(scratch.data, scratch_bytes / sizeof(float));
    fill_nan(partial->m, c->group);
    fill_nan(partial->s, c->group);
    struct attention_decode_args args = {
        .layout = &rows->layout,
        .chunks = rows->chunks,
        .row_begin = begin,
        .row_end = end,
        .q = q,
        .q_stride = q_stride,
        .group = c->group,
        .scale = c->scale,
        .softcap = c->softcap,
        .m = partial->m,
        .s = partial->s,
        .o = partial->o,
        .o_stride = partial->o_stride,
        .scratch = scratch.data,
        .then = begin < end ? rows->chunks[begin / KV_CHUNK_TOKENS] : NULL,
    };
    kernels->decode(&args);
    guarded_destroy(&scratch);
}

/* q and o with a stride of their own, the last row ending at a guard page. */
static struct guarded heads_create(size_t group, size_t dimension, size_t stride) {
    return guarded_create(((group - 1) * stride + dimension) * sizeof(float));
}

/* A head has the same bits by itself as in a group: rows of a draft are attended to as one group. */
static void decode_alone(const struct attention_kernels *kernels, const struct rows *rows, const float *q,
                         const struct decode_case *c, size_t head, const struct partial *group) {
    struct decode_case alone = *c;
    struct guarded o = heads_create(1, c->v_dimension, c->v_dimension);
    struct partial partial = {.o = o.data, .o_stride = c->v_dimension};
    alone.group = 1;
    fill_nan(o.data, o.bytes / sizeof(float));
    decode_run(kernels, rows, c->begin, c->end, q, c->k_dimension, &alone, &partial);
    assert_memory_equal(partial.m, group->m + head, sizeof(float));
    assert_memory_equal(partial.s, group->s + head, sizeof(float));
    assert_memory_equal(partial.o, group->o + head * group->o_stride, o.bytes);
    guarded_destroy(&o);
}

static void decode_check(const struct level *levels, size_t level_count, const struct decode_case *c,
                         struct random *random) {
    struct rows rows;
    if (!test_takes_next()) return;
    rows_create(&rows, random, c->k_type, c->v_type, c->k_dimension, c->v_dimension, c->begin, c->end,
                c->spread);
    size_t q_stride = c->k_dimension + 3, o_stride = c->v_dimension + 5;
    struct guarded q = heads_create(c->group, c->k_dimension, q_stride);
    struct guarded o = heads_create(c->group, c->v_dimension, o_stride);
    fill_normal(random, q.data, q.bytes / sizeof(float), c->spread);
    static struct expected want[HEADS_MAX];
    for (size_t head = 0; head < c->group; head++)
        expect(&rows, c->begin, c->end, (float *)q.data + head * q_stride, c->scale, c->softcap, 0,
               &want[head]);
    for (size_t i = 0; i < level_count; i++) {
        struct partial partial = {.o = o.data, .o_stride = o_stride};
        fill_nan(o.data, o.bytes / sizeof(float));
        decode_run(&levels[i].kernels, &rows, c->begin, c->end, q.data, q_stride, c, &partial);
        for (size_t head = 0; head < c->group; head++) {
            char text[160];
            snprintf(text, sizeof text, "%s: k %zu v %zu types %d %d group %zu head %zu rows %zu..%zu cap %g",
                     levels[i].name, c->k_dimension, c->v_dimension, (int)c->k_type, (int)c->v_type, c->group,
                     head, (size_t)c->begin, (size_t)c->end, (double)c->softcap);
            check_partial(&want[head], c->v_dimension, c->end - c->begin, partial.m[head], partial.s[head],
                          partial.o + head * o_stride, text);
        }
        const size_t last = c->group - 1;
        decode_alone(&levels[i].kernels, &rows, (float *)q.data + last * q_stride, c, last, &partial);
    }
    guarded_destroy(&q);
    guarded_destroy(&o);
    rows_destroy(&rows);
}

static const uint64_t ranges[][2] = {{0, 1},   {0, 0},    {17, 17}, {5, 6},    {0, 64},
                                     {63, 65}, {10, 200}, {64, 80}, {7, 1007}, {128, 191}};

static void decode_matches(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(11));
    size_t dimensions[] = {8, 24, 64, 72, 80, 96, 128, 256}, groups[] = {1, 2, 3, 4, 5, 7, 8, 16};
    for (size_t d = 0; d < 8; d++)
        for (size_t g = 0; g < 8; g++)
            for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
                if ((d + g + r) % 3 != 0) continue; /* a third of the combinations; all pairs occur */
                struct decode_case c = {KV_F16,
                                        KV_F16,
                                        dimensions[d],
                                        dimensions[d],
                                        groups[g],
                                        ranges[r][0],
                                        ranges[r][1],
                                        1.0f / sqrtf((float)dimensions[d]),
                                        r % 3 == 2 ? 30.0f : 0.0f,
                                        1.0};
                decode_check(levels, level_count, &c, &random);
                if (dimensions[d] % KV_SCALE_GROUP != 0) continue;
                c.v_type = KV_Q8;
                if (r % 2 == 0) decode_check(levels, level_count, &c, &random);
                c.k_type = KV_Q8;
                decode_check(levels, level_count, &c, &random);
                c.v_type = KV_F16;
                c.v_dimension = 40; /* K and V need not be alike */
                if (r % 2 == 1) decode_check(levels, level_count, &c, &random);
            }
}

/* Scores of +-1e4: the weights are 0 or 1 but for a few, nothing overflows, and the maximum rises often. */
static void decode_survives_large_scores(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(12));
    for (size_t group = 1; group <= 8; group++) {
        struct decode_case c = {KV_F16, KV_F16, 128, 128, group, 3, 500, 1.0f, 0, 30.0};
        decode_check(levels, level_count, &c, &random);
        c.softcap = 50.0f;
        decode_check(levels, level_count, &c, &random);
    }
}

/* Any split of the rows merges to the unsplit partial, in any order, with empty partials between. */
static void partials_merge(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(13));
    for (size_t round = 0; round < 40; round++) {
        if (!test_takes_next()) continue;
        struct decode_case c = {KV_F16, KV_F16, 64, 64, 1 + round % 5, 0, 1 + random_below(&random, 700),
                                0.3f,   0,      1.0};
        struct rows rows;
        rows_create(&rows, &random, KV_F16, KV_F16, 64, 64, 0, c.end, 1.0);
        float q[HEADS_MAX * 64], o[HEADS_MAX * 64], part_o[HEADS_MAX * 64];
        fill_normal(&random, q, c.group * 64, 1.0);
        static struct expected want[HEADS_MAX];
        for (size_t head = 0; head < c.group; head++)
            expect(&rows, 0, c.end, q + head * 64, c.scale, 0, 0, &want[head]);
        uint64_t cuts[6] = {0, 0, 0, 0, 0, c.end}; /* cuts[0] == cuts[1]: an empty part */
        for (size_t i = 2; i < 5; i++) cuts[i] = cuts[i - 1] + random_below(&random, c.end - cuts[i - 1] + 1);
        for (size_t i = 0; i < level_count; i++) {
            const struct attention_kernels *kernels = &levels[i].kernels;
            struct partial whole = {.o = o, .o_stride = 64}, part = {.o = part_o, .o_stride = 64};
            decode_run(kernels, &rows, 0, 0, q, 64, &c, &whole); /* empty: merging into it is a copy */
            for (size_t n = 0; n < 5; n++) {
                size_t at = round % 2 ? n : 4 - n;
                decode_run(kernels, &rows, cuts[at], cuts[at + 1], q, 64, &c, &part);
                kernels->merge(c.group, 64, whole.m, whole.s, whole.o, 64, part.m, part.s, part.o, 64);
            }
            for (size_t head = 0; head < c.group; head++)
                check_partial(&want[head], 64, c.end + 16, whole.m[head], whole.s[head], o + head * 64,
                              levels[i].name);
            kernels->finish(c.group, 64, whole.s, o, 64, part_o, 64);
            for (size_t n = 0; n < c.group * 64; n++)
                check_near(part_o[n], (double)o[n] / (double)whole.s[n / 64],
                           eps * 2 * fabs((double)part_o[n]), "finish %s", levels[i].name);
        }
        rows_destroy(&rows);
    }
}

static void empty_partials_finish_as_zeros(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    for (size_t i = 0; i < level_count; i++) {
        float m[2] = {-INFINITY, -INFINITY}, s[2] = {0, 0}, o[16] = {0}, out[16];
        float m2[2] = {-INFINITY, -INFINITY}, s2[2] = {0, 0}, o2[16] = {0};
        levels[i].kernels.merge(2, 8, m, s, o, 8, m2, s2, o2, 8);
        assert_true(m[0] == -INFINITY && s[1] == 0 && o[3] == 0);
        fill_nan(out, 16);
        levels[i].kernels.finish(2, 8, s, o, 8, out, 8);
        for (size_t n = 0; n < 16; n++) assert_true(out[n] == 0);
    }
}

/* A NaN in q, in a key or in a value that is attended must come out as NaN. */
static void nan_comes_out(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(14));
    for (size_t i = 0; i < level_count; i++)
        for (int where = 0; where < 3; where++)
            for (enum kv_type type = KV_F16; type <= KV_Q8; type++) {
                struct decode_case c = {type, type, 64, 64, 4, 0, 100, 0.1f, 0, 1.0};
                struct rows rows;
                rows_create(&rows, &random, type, type, 64, 64, 0, 100, 1.0);
                float q[4 * 64], o[4 * 64], k[64], v[64];
                fill_normal(&random, q, 4 * 64, 1.0);
                levels[i].kernels.load(&rows.layout, rows.chunks[0], 37, k, v);
                if (where == 0) q[64 + 9] = NAN;
                if (where == 1) k[9] = NAN;
                if (where == 2) v[9] = NAN;
                levels[i].kernels.store(&rows.layout, rows.memory[0].data, 37, k, v);
                struct partial partial = {.o = o, .o_stride = 64};
                decode_run(&levels[i].kernels, &rows, 0, 100, q, 64, &c, &partial);
                if (where != 2) assert_true(isnan(partial.s[1]));
                assert_true(isnan(o[64 + 9]));
                assert_true(where != 0 || !isnan(partial.s[0])); /* the other heads are not touched */
                float out[4 * 64];
                fill_normal(&random, out, 4 * 64, 1.0);
                struct guarded scratch =
                    guarded_create_aligned(levels[i].kernels.prefill_scratch_bytes(1, &rows.layout));
                struct attention_prefill_args args = {.layout = &rows.layout,
                                                      .chunks = rows.chunks,
                                                      .position_first = 98,
                                                      .query_count = 2,
                                                      .q = q,
                                                      .q_stride = 64,
                                                      .group = 1,
                                                      .scale = 0.1f,
                                                      .out = out,
                                                      .out_stride = 64,
                                                      .scratch = scratch.data};
                levels[i].kernels.prefill(&args);
                assert_true(isnan(out[64 + 9]));
                guarded_destroy(&scratch);
                rows_destroy(&rows);
            }
}

struct prefill_case {
    enum kv_type k_type, v_type;
    size_t dimension, group;
    uint64_t position_first;
    size_t query_count;
    uint64_t window;
    float softcap;
    double spread;
    const float *sinks; /* [group]; NULL: none */
};

static void prefill_run(const struct attention_kernels *kernels, const struct rows *rows,
                        const struct prefill_case *c, uint64_t position_first, size_t query_count,
                        const float *q, size_t q_stride, float *out, size_t out_stride) {
    size_t scratch_bytes = kernels->prefill_scratch_bytes(c->group, &rows->layout);
    struct guarded scratch = guarded_create((scratch_bytes + 63) / 64 * 64);
    fill_nan(scratch.data, scratch_bytes / sizeof(float));
    struct attention_prefill_args args = {
        .layout = &rows->layout,
        .chunks = rows->chunks,
        .position_first = position_first,
        .query_count = query_count,
        .window = c->window,
        .q = q,
        .q_stride = q_stride,
        .group = c->group,
        .scale = 1.0f / sqrtf((float)c->dimension),
        .softcap = c->softcap,
        .sinks = c->sinks,
        .out = out,
        .out_stride = out_stride,
        .scratch = scratch.data,
    };
    kernels->prefill(&args);
    guarded_destroy(&scratch);
}

/* Fails unless the query's output is, bit for bit, what decode, merge and finish make of its ranges. */
static void decode_is_equal(const struct level *level, const struct rows *rows, const struct prefill_case *c,
                            uint64_t position, const float *q, const float *got) {
    const struct attention_kernels *kernels = &level->kernels;
    const size_t group = c->group, dimension = c->dimension;
    const struct decode_case decode = {
        .group = group, .scale = 1.0f / sqrtf((float)dimension), .softcap = c->softcap};
    const uint64_t begin = c->window == 0 || c->window > position ? 0 : position + 1 - c->window;
    const uint64_t range_rows = attention_range_rows(position + 1 - begin);
    static float o[2][HEADS_MAX * DIMENSION_MAX], out[HEADS_MAX * DIMENSION_MAX];
    struct partial merged = {.o = o[0], .o_stride = dimension}, next = {.o = o[1], .o_stride = dimension};
    for (uint64_t from = begin, to; from <= position; from = to) {
        to = from / range_rows * range_rows + range_rows;
        if (to > position + 1) to = position + 1;
        decode_run(kernels, rows, from, to, q, dimension, &decode, from == begin ? &merged : &next);
        if (from != begin)
            kernels->merge(group, dimension, merged.m, merged.s, merged.o, dimension, next.m, next.s, next.o,
                           dimension);
    }
    if (c->sinks != NULL) {
        static const float nothing[DIMENSION_MAX];
        float ones[HEADS_MAX];
        for (size_t i = 0; i < group; i++) ones[i] = 1;
        kernels->merge(group, dimension, merged.m, merged.s, merged.o, dimension, c->sinks, ones, nothing, 0);
    }
    kernels->finish(group, dimension, merged.s, merged.o, dimension, out, dimension);
    for (size_t i = 0; i < group * dimension; i++)
        if (memcmp(out + i, got + i, sizeof *got) != 0)
            fail_msg(
                "%s: d %zu type %d group %zu position %zu window %zu: element %zu of prefill %.9g, of decode "
                "%.9g",
                level->name, dimension, (int)c->k_type, group, (size_t)position, (size_t)c->window, i,
                (double)got[i], (double)out[i]);
}

/* The same bounds as for decode, divided by s.  Also: two blocks give what one gives, and decode the same bits.
 * Expected values are computed once for levels that round alike. */
static void prefill_check(const struct level *levels, size_t level_count, const struct prefill_case *c,
                          struct random *random) {
    struct rows rows;
    if (!test_takes_next()) return;
    uint64_t end = c->position_first + c->query_count;
    uint64_t begin = c->window == 0 || c->window > c->position_first ? 0 : c->position_first + 1 - c->window;
    rows_create(&rows, random, c->k_type, c->v_type, c->dimension, c->dimension, begin, end, c->spread);
    size_t width = c->group * c->dimension, q_stride = width + 3, out_stride = width + 5;
    struct guarded q = heads_create(c->query_count, width, q_stride);
    struct guarded out = heads_create(c->query_count, width, out_stride);
    float scale = 1.0f / sqrtf((float)c->dimension);
    fill_normal(random, q.data, q.bytes / sizeof(float), c->spread);
    struct expected *wanted = malloc(c->query_count * c->group * sizeof *wanted);
    float *whole = malloc(out.bytes);
    double known = -1; /* the rounding that they are for */
    for (size_t i = 0; i < level_count * 2; i++) {
        const struct level *level = &levels[i / 2];
        const bool is_new = known != level->rounding;
        known = level->rounding;
        size_t cut = i % 2 ? c->query_count / 3 : 0; /* the second time in two calls */
        fill_nan(out.data, out.bytes / sizeof(float));
        if (cut > 0)
            prefill_run(&level->kernels, &rows, c, c->position_first, cut, q.data, q_stride, out.data,
                        out_stride);
        prefill_run(&level->kernels, &rows, c, c->position_first + cut, c->query_count - cut,
                    (float *)q.data + cut * q_stride, q_stride, (float *)out.data + cut * out_stride,
                    out_stride);
        if (i % 2 && level->rounding == 0) {
            assert_memory_equal(out.data, whole, out.bytes);
            continue;
        }
        memcpy(whole, out.data, out.bytes);
        size_t step = c->query_count > 10 ? 7 : 1; /* of long prompts every seventh query, and the last */
        for (size_t n = 0; n < c->query_count;
             n += n + step < c->query_count || n + 1 == c->query_count ? step : c->query_count - 1 - n)
            for (size_t head = 0; head < c->group; head++) {
                struct expected *want = &wanted[n * c->group + head];
                uint64_t position = c->position_first + n;
                uint64_t first = c->window == 0 || c->window > position ? 0 : position + 1 - c->window;
                if (is_new) {
                    expect(&rows, first, position + 1, (float *)q.data + n * q_stride + head * c->dimension,
                           scale, c->softcap, level->rounding, want);
                    if (c->sinks != NULL) want->s += exp((double)c->sinks[head] - want->m);
                }
                double r = 2 * (relative(want, position + 1 - first) + level->rounding);
                if (c->sinks != NULL) /* by its distance exp is off further */
                    r += fabs((double)c->sinks[head] - want->m) * eps;
                const float *got = (float *)out.data + n * out_stride + head * c->dimension;
                for (size_t d = 0; d < c->dimension; d++)
                    check_near(
                        got[d], want->o[d] / want->s, r * want->magnitude[d] / want->s,
                        "%s: prefill d %zu type %d group %zu position %zu + %zu head %zu window %zu cut %zu",
                        level->name, c->dimension, (int)c->k_type, c->group, (size_t)c->position_first, n,
                        head, (size_t)c->window, cut);
            }
        for (size_t n = 0; n < c->query_count && level->rounding == 0;
             n += c->query_count > 10 ? 1 + c->query_count / 9 : 1)
            decode_is_equal(level, &rows, c, c->position_first + n, (float *)q.data + n * q_stride,
                            (float *)out.data + n * out_stride);
    }
    free(wanted);
    free(whole);
    guarded_destroy(&q);
    guarded_destroy(&out);
    rows_destroy(&rows);
}

static void prefill_matches(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(15));
    size_t dimensions[] = {8, 24, 64, 72, 80, 96, 128}, groups[] = {1, 2, 3, 4, 7, 8, 16};
    struct {
        uint64_t position;
        size_t queries;
        uint64_t window;
    } shapes[] = {{0, 1, 0},   {0, 5, 0},   {63, 3, 0},   {100, 17, 0},  {300, 2, 0},
                  {0, 70, 20}, {150, 9, 1}, {200, 5, 64}, {130, 17, 100}};
    float sinks[16]; /* some are larger than any score */
    for (size_t i = 0; i < 16; i++) sinks[i] = (float)(3 * random_normal(&random) + (i % 5 == 4 ? 30 : 0));
    for (size_t d = 0; d < 7; d++)
        for (size_t g = 0; g < 7; g++)
            for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++) {
                if ((d + g + n) % 4 != 0) continue; /* a quarter of the combinations; all pairs occur */
                struct prefill_case c = {KV_F16,
                                         KV_F16,
                                         dimensions[d],
                                         groups[g],
                                         shapes[n].position,
                                         shapes[n].queries,
                                         shapes[n].window,
                                         n % 4 == 1 ? 30.0f : 0.0f,
                                         1.0,
                                         n % 3 == 1 ? sinks : NULL};
                prefill_check(levels, level_count, &c, &random);
                if (dimensions[d] % KV_SCALE_GROUP != 0) continue;
                c.k_type = c.v_type = KV_Q8;
                prefill_check(levels, level_count, &c, &random);
            }
}

/* More rows than a query block holds, and large scores. */
static void prefill_matches_long(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(16));
    static const float sinks[8] = {-2, 0, 1, 3, -20, 2, 40, 5};
    struct prefill_case cases[] = {
        {KV_F16, KV_F16, 64, 1, 0, 400, 0, 0, 1.0, NULL},    {KV_F16, KV_F16, 64, 4, 777, 70, 0, 0, 1.0, NULL},
        {KV_Q8, KV_Q8, 128, 3, 500, 100, 130, 0, 1.0, NULL}, {KV_F16, KV_F16, 128, 2, 400, 40, 0, 0, 30.0, NULL},
        {KV_F16, KV_Q8, 96, 16, 1000, 14, 0, 0, 1.0, NULL},  {KV_F16, KV_F16, 64, 8, 1000, 40, 0, 0, 1.0, sinks},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        prefill_check(levels, level_count, &cases[i], &random);
}

/* A peak of score 0 whose value is 0, and `below` (0: from 10 to 40 by chance) lower all other scores, with
 * values of 1: the output is what the tail weighs. */
static void tail_create(struct rows *rows, struct random *random, uint64_t end, double below) {
    struct attention_kernels ref;
    attention_kernels_init(&ref, 0);
    rows_create(rows, random, KV_F16, KV_F16, 64, 64, 0, end, 1.0);
    for (uint64_t row = 0; row < end; row++) {
        float *k = rows->k + row * 64, *v = rows->v + row * 64;
        memset(k, 0, 64 * sizeof *k);
        for (size_t d = 0; d < 64; d++) v[d] = row == 3 ? 0.0f : 1.0f;
        if (row != 3) k[0] = (float)-(below != 0 ? below : 10 + 30 * random_double(random));
        ref.store(&rows->layout, rows->memory[row / KV_CHUNK_TOKENS].data, row % KV_CHUNK_TOKENS, k, v);
        ref.load(&rows->layout, rows->chunks[row / KV_CHUNK_TOKENS], row % KV_CHUNK_TOKENS, k, v);
    }
}

static void tail_check(const struct level *level, const struct rows *rows, const struct prefill_case *c,
                       const float *q, const float *out, double below) {
    size_t width = c->group * c->dimension;
    double spare = below != 0 && below < 19 ? 0 : 0x1p-24; /* so near, a weight always counts */
    for (size_t n = 0; n < c->query_count; n++)
        for (size_t head = 0; head < c->group; head++) {
            static struct expected want;
            uint64_t end = c->position_first + n + 1;
            expect(rows, 0, end, q + n * width + head * 64, 0.125f, 0, level->rounding, &want);
            double r = 2 * (relative(&want, end) + level->rounding);
            for (size_t d = 0; d < 64; d++)
                check_near(out[n * width + head * 64 + d], want.o[d] / want.s,
                           r * want.magnitude[d] / want.s + spare, "%s: tail %g query %zu head %zu",
                           level->name, below, n, head);
        }
}

/* What lies so far below the maximum that it is left out is together at most 2^-24 of the sum, and no NaN. */
static void prefill_tail_counts(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(18));
    /* 22.1875 and 23.59375 are just within what 8 and what 16 tokens may take at first */
    static const double belows[] = {8, 15, 18.5, 21.5, 22.1875, 22.875, 23.59375, 24, 25, 27, 60, 0};
    enum { QUERIES = 37, GROUP = 3, WIDTH = GROUP * 64 };
    static float q[QUERIES * WIDTH], out[QUERIES * WIDTH];
    for (size_t i = 0; i < sizeof belows / sizeof belows[0]; i++) {
        if (!test_takes_next()) continue;
        struct prefill_case c = {KV_F16, KV_F16, 64, GROUP, 1480, QUERIES, 0, 0, 1.0, NULL};
        struct rows rows;
        tail_create(&rows, &random, c.position_first + QUERIES, belows[i]);
        memset(q, 0, sizeof q);
        for (size_t row = 0; row < QUERIES * GROUP; row++)
            q[row * 64] = i % 3 == 2 && row % 3 == 0 ? 0.0f : i % 2 == 1 && row % 4 == 0 ? 4.0f : 8.0f;
        for (size_t n = 0; n < level_count; n++) {
            fill_nan(out, QUERIES * WIDTH);
            prefill_run(&levels[n].kernels, &rows, &c, c.position_first, QUERIES, q, WIDTH, out, WIDTH);
            tail_check(&levels[n], &rows, &c, q, out, belows[i]);
        }
        float nan[64] = {NAN}, one[64] = {1};
        levels[0].kernels.store(&rows.layout, rows.memory[12].data, i, nan, one);
        for (size_t n = 0; n < level_count; n++) {
            prefill_run(&levels[n].kernels, &rows, &c, c.position_first, QUERIES, q, WIDTH, out, WIDTH);
            for (size_t at = 0; at < QUERIES * WIDTH; at++) assert_true(isnan(out[at]));
        }
        rows_destroy(&rows);
    }
}

/* On every level the bytes of the reference, NaN and infinity among them.  f16: half an ulp of the half.  q8: half a
 * step of scale = largest / 127, and the scale's own rounding to f16 (2^-11, and 2^-25 where it is subnormal) that
 * clips the largest element, 127 steps. */
static void rows_come_back(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    struct random random;
    random_init(&random, test_seed(17));
    for (size_t i = 0; i < level_count; i++)
        for (size_t round = 0; round < 200; round++) {
            enum kv_type type = round % 2 ? KV_Q8 : KV_F16;
            size_t dimension = 32 * (1 + random_below(&random, 4)), token = random_below(&random, 64);
            double spread = exp(random_double(&random) * 18 - 9); /* within the range of f16 */
            struct kv_layout layout;
            kv_layout_init(&layout, type, type, dimension, dimension);
            struct guarded chunk = guarded_create(layout.chunk_bytes);
            float k[128], v[128], k2[128], v2[128];
            fill_normal(&random, k, dimension, spread);
            fill_normal(&random, v, dimension, spread);
            if (round % 10 == 9) memset(v, 0, sizeof v);
            struct guarded same = guarded_create(layout.chunk_bytes);
            if (round % 10 == 8) k[7] = NAN, k[8] = -INFINITY;
            memset(chunk.data, 0, layout.chunk_bytes);
            memset(same.data, 0, layout.chunk_bytes);
            levels[i].kernels.store(&layout, chunk.data, token, k, v);
            levels[0].kernels.store(&layout, same.data, token, k, v);
            assert_memory_equal(chunk.data, same.data, layout.chunk_bytes);
            guarded_destroy(&same);
            if (round % 10 == 8) {
                guarded_destroy(&chunk);
                continue;
            }
            fill_nan(k2, 128);
            fill_nan(v2, 128);
            levels[i].kernels.load(&layout, chunk.data, token, k2, v2);
            for (size_t d = 0; d < dimension; d++) {
                float largest_k = 0, largest_v = 0;
                for (size_t n = d / 32 * 32; n < d / 32 * 32 + 32; n++) {
                    largest_k = fmaxf(largest_k, fabsf(k[n]));
                    largest_v = fmaxf(largest_v, fabsf(v[n]));
                }
                double step = 1.0 / 254 * (1 + 0x1p-10) + 0x1p-11;
                check_near(k2[d], k[d],
                           type == KV_Q8 ? (double)largest_k * step + 0x1p-18
                                         : fabs((double)k[d]) * 0x1p-11 + 0x1p-25,
                           "k[%zu] %s type %d", d, levels[i].name, type);
                check_near(v2[d], v[d],
                           type == KV_Q8 ? (double)largest_v * step + 0x1p-18
                                         : fabs((double)v[d]) * 0x1p-11 + 0x1p-25,
                           "v[%zu] %s type %d", d, levels[i].name, type);
            }
            guarded_destroy(&chunk);
        }
}

static void layouts_are_as_promised(void **state) {
    (void)state;
    struct kv_layout layout;
    kv_layout_init(&layout, KV_F16, KV_F16, 128, 128);
    assert_int_equal(layout.block_bytes, 4096); /* the smallest unit read from disk */
    for (size_t d = 32; d <= 256; d += 32)
        for (int type = 0; type < 4; type++) {
            kv_layout_init(&layout, type & 1 ? KV_Q8 : KV_F16, type >> 1 ? KV_Q8 : KV_F16, d, 64);
            assert_true(layout.block_bytes % 64 == 0 && layout.chunk_bytes == 8 * layout.block_bytes);
            assert_true(layout.k_scales_offset >= 8 * layout.k_row_bytes);
            assert_true(layout.v_offset - layout.k_scales_offset == (type & 1 ? 8 * d / 32 * 2 : 0));
            assert_true(layout.v_scales_offset == layout.v_offset + 8 * layout.v_row_bytes);
            assert_true(layout.block_bytes - layout.v_scales_offset >= (type >> 1 ? 32u : 0u));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_are_as_promised), cmocka_unit_test(rows_come_back),
        cmocka_unit_test(decode_matches),          cmocka_unit_test(decode_survives_large_scores),
        cmocka_unit_test(partials_merge),          cmocka_unit_test(empty_partials_finish_as_zeros),
        cmocka_unit_test(nan_comes_out),           cmocka_unit_test(prefill_matches),
        cmocka_unit_test(prefill_matches_long),    cmocka_unit_test(prefill_tail_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tree: boxes hold their keys and their children, and the search finds what ranking every leaf finds: the same leaves,
 * ties by index, over random and adversarial keys, starts, ranges and numbers.  It opens what any exact search must
 * open, and little more. */
#include "check.h"

#include "kernels/attention/attention.h"
#include "kernels/tree/tree.h"
#include "selection_emulated.h"
#include "tensor/half.h"

enum { CHUNKS_MAX = 40, DIMENSION_MAX = 128, GROUP_MAX = 7 };

CHECK_LEVELS_WITH(score, emulated_score_avx512_install)

enum key_shape { /* what the keys of a case are like */
                 NORMAL,
                 EQUAL,    /* all the same: nothing but ties */
                 STEPS,    /* few values: many ties */
                 FLAT,     /* a chunk's keys are the same: its lower bound is its importance */
                 SPIKES,   /* a desert with a few large keys */
                 DRIFTING, /* the mean wanders from chunk to chunk */
                 BROKEN,   /* NaN and infinities here and there */
                 ZERO,
                 SHAPES
};
static const char *const shape_names[SHAPES] = {"normal", "equal",    "steps",  "flat",
                                                "spikes", "drifting", "broken", "zero"};

struct tree_case {
    struct random random;
    enum key_shape shape;
    struct kv_layout kv;
    struct tree_layout layout;
    size_t chunk_count, token_count, group;
    void *chunks[CHUNKS_MAX], *blocks[CHUNKS_MAX]; /* blocks: guard pages behind */
    struct guarded guards[CHUNKS_MAX];
    float *keys; /* [token_count][dimension], as stored */
    float q[GROUP_MAX * DIMENSION_MAX];
    float query[2 * GROUP_MAX * 2 * DIMENSION_MAX];
};

static float element(struct tree_case *c, size_t token, size_t d, const float *centre) {
    double normal = random_normal(&c->random);
    switch (c->shape) {
    case EQUAL: return (float)(d % 3) - 0.5F;
    case STEPS: return (float)random_below(&c->random, 2);
    case FLAT: return token % 64 == 0 ? (float)normal : 0;
    case SPIKES: return (float)(normal * 0.05) + (token % 301 == 7 ? 3 * centre[d] : 0);
    case DRIFTING: return (float)(normal * 0.2) + (float)sin((double)(token / 64) * 0.7 + (double)d);
    case BROKEN:
        if (random_below(&c->random, 3000) == 0) return random_below(&c->random, 2) ? NAN : INFINITY;
        return (float)normal;
    case ZERO: return 0;
    case NORMAL:
    case SHAPES: break;
    }
    return (float)normal;
}

static void store_keys(struct tree_case *c) {
    struct attention_kernels ref;
    attention_kernels_init(&ref, 0);
    const size_t dimension = c->layout.dimension;
    float value[DIMENSION_MAX] = {0}, centre[DIMENSION_MAX];
    for (size_t d = 0; d < dimension; d++) centre[d] = (float)random_normal(&c->random);
    for (size_t t = 0; t < c->token_count; t++) {
        float *key = c->keys + t * dimension;
        for (size_t d = 0; d < dimension; d++) key[d] = element(c, t, d, centre);
        if (c->shape == FLAT && t % 64 > 0) memcpy(key, key - dimension, dimension * sizeof *key);
        ref.store(&c->kv, c->chunks[t / 64], t % 64, key, value);
        ref.load(&c->kv, c->chunks[t / 64], t % 64, key, value);
    }
}

/* In parts, as a sequence grows: blocks of many sizes, each over tokens that are there. */
static void build_blocks(struct tree_case *c) {
    struct abstract_kernels abstract;
    abstract_kernels_init(&abstract, random_below(&c->random, 2) ? cpu_features() : 0);
    for (size_t t = 0; t < c->token_count;) {
        size_t length_max = random_below(&c->random, 2) ? 64 : 9,
               end = t + 1 + random_below(&c->random, length_max);
        if (end > c->token_count) end = c->token_count;
        if (end > t / 64 * 64 + 64) end = t / 64 * 64 + 64;
        tree_build(&abstract, &(struct tree_build_args){&c->layout, &c->kv, c->chunks[t / 64], t % 64,
                                                        end - t / 64 * 64, c->blocks[t / 64]});
        if (end % (64 * TREE_RUN_CHUNKS) == 0 && tree_top(c->layout.leaf) == TREE_RUN)
            tree_build_run(&c->layout, c->blocks + end / 64 - TREE_RUN_CHUNKS);
        t = end;
    }
}

static void case_create(struct tree_case *c, uint64_t seed, enum key_shape shape, size_t leaf,
                        enum tree_rank rank) {
    static const size_t dimensions[] = {8, 24, 32, 64, 128};
    *c = (struct tree_case){.shape = shape};
    random_init(&c->random, seed);
    size_t dimension = dimensions[random_below(&c->random, 5)];
    enum kv_type type =
        shape != BROKEN && dimension % 32 == 0 && random_below(&c->random, 3) == 0 ? KV_Q8 : KV_F16;
    kv_layout_init(&c->kv, type, type, dimension, dimension);
    tree_layout_init(&c->layout, leaf, dimension, rank, random_below(&c->random, 2) == 1);
    c->group = 1 + random_below(&c->random, GROUP_MAX);
    c->chunk_count = 1 + random_below(&c->random, CHUNKS_MAX);
    c->token_count = c->chunk_count * 64 - random_below(&c->random, 64);
    c->keys = calloc(c->token_count * dimension, sizeof *c->keys);
    for (size_t i = 0; i < c->chunk_count; i++) {
        c->chunks[i] = calloc(1, c->kv.chunk_bytes);
        c->guards[i] = guarded_create(c->layout.bytes);
        memset(c->guards[i].data, 0xff, c->layout.bytes); /* of somebody before: NaN */
        c->blocks[i] = c->guards[i].data;
    }
    store_keys(c);
    build_blocks(c);
    fill_normal(&c->random, c->q, c->group * dimension, 1);
    if (shape == STEPS)
        for (size_t i = 0; i < c->group * dimension; i++) c->q[i] = rintf(c->q[i]);
    tree_query(&c->layout, c->q, dimension, c->group, c->query);
}

static void case_destroy(struct tree_case *c) {
    for (size_t i = 0; i < c->chunk_count; i++) {
        free(c->chunks[i]);
        guarded_destroy(&c->guards[i]);
    }
    free(c->keys);
}

/* ---- boxes ---- */

static const uint16_t *box_of(const struct tree_case *c, enum tree_level level, size_t node) {
    size_t tokens = (size_t)tree_tokens(level), chunk = ((node + 1) * tokens - 1) / 64;
    size_t place = level == TREE_RUN ? 0 : node % (64 / tokens);
    return (const uint16_t *)(const void *)((const uint8_t *)c->blocks[chunk] + c->layout.offset[level] +
                                            place * c->layout.node_bytes);
}

/* Importance in double, of the box as it is stored. */
static double importance(const struct tree_case *c, enum tree_level level, size_t node, size_t head) {
    const uint16_t *box = box_of(c, level, node);
    const size_t dimension = c->layout.dimension;
    double sum = 0;
    for (size_t d = 0; d < dimension; d++) {
        double q = (double)c->q[head * dimension + d];
        sum += fmax(q * (double)half_to_float(box[d]), q * (double)half_to_float(box[dimension + d]));
    }
    return sum;
}

static void check_leaf(const struct tree_case *c, size_t node) {
    const size_t dimension = c->layout.dimension, tokens = (size_t)tree_tokens(c->layout.leaf);
    size_t begin = node * tokens, end = begin + tokens < c->token_count ? begin + tokens : c->token_count;
    const uint16_t *box = box_of(c, c->layout.leaf, node);
    for (size_t d = 0; d < dimension; d++) {
        double low = INFINITY, high = -INFINITY, sum = 0, squares = 0, n = (double)(end - begin);
        for (size_t t = begin; t < end; t++) {
            double k = (double)c->keys[t * dimension + d];
            low = fmin(low, k), high = fmax(high, k), sum += k / n;
        }
        for (size_t t = begin; t < end; t++) squares += pow((double)c->keys[t * dimension + d] - sum, 2) / n;
        double got_low = (double)half_to_float(box[d]), got_high = (double)half_to_float(box[dimension + d]);
        double size = fmax(fabs(low), fabs(high));
        if (c->layout.rank ==
            TREE_MEAN_DEVIATION) { /* mean and deviation rounded to halves, then their sum */
            check_near(got_low, sum - sqrt(squares), size * 0x1p-9 + 0x1p-22, "mean - deviation");
            check_near(got_high, sum + sqrt(squares), size * 0x1p-9 + 0x1p-22, "mean + deviation");
            continue;
        }
        assert_true(got_low <= low && got_high >= high);
        double slack = c->kv.k_type == KV_F16 ? 0 : size * 0x1p-9 + 0x1p-24;
        check_near(got_low, low, slack, "minimum");
        check_near(got_high, high, slack, "maximum");
    }
    for (size_t head = 0; c->layout.rank == TREE_BOUND && head < c->group; head++)
        for (size_t t = begin; t < end; t++) {
            double dot = 0, size = 0;
            for (size_t d = 0; d < dimension; d++) {
                double term = (double)c->q[head * dimension + d] * (double)c->keys[t * dimension + d];
                dot += term, size += fabs(term);
            }
            assert_true(dot <= importance(c, c->layout.leaf, node, head) + size * 0x1p-40);
        }
}

static void check_inner(const struct tree_case *c, enum tree_level level, size_t node) {
    const size_t dimension = c->layout.dimension, children = tree_children(level),
                 below = (size_t)tree_tokens(level - 1);
    const uint16_t *box = box_of(c, level, node);
    for (size_t d = 0; d < dimension; d++) {
        float low = INFINITY, high = -INFINITY;
        for (size_t child = node * children; child < (node + 1) * children; child++) {
            if (child * below >= c->token_count) break;
            const uint16_t *inside = box_of(c, level - 1, child);
            low = fminf(low, half_to_float(inside[d]));
            high = fmaxf(high, half_to_float(inside[dimension + d]));
        }
        assert_true(half_to_float(box[d]) == low && half_to_float(box[dimension + d]) == high);
    }
}

static void boxes_hold_their_keys(void **state) {
    (void)state;
    for (uint64_t seed = test_seed(1), last = seed + 60; seed < last; seed++) {
        if (!test_takes_next()) continue;
        struct tree_case c;
        case_create(&c, seed, (enum key_shape)(seed % BROKEN), (size_t)8 << seed % 4,
                    seed % 3 == 0 ? TREE_MEAN_DEVIATION : TREE_BOUND);
        for (enum tree_level level = c.layout.leaf; level <= tree_top(c.layout.leaf); level++) {
            uint64_t tokens = tree_tokens(level);
            for (size_t node = 0; node * tokens < c.token_count; node++)
                if (level == c.layout.leaf)
                    check_leaf(&c, node);
                else if (level != TREE_RUN || (node + 1) * tokens <= c.token_count)
                    check_inner(&c, level, node);
        }
        case_destroy(&c);
    }
}

/* ---- searching ---- */

struct search_case {
    uint64_t begin, end; /* tokens */
    size_t k;
    enum tree_level start;
};

static void score_nodes(const struct tree_case *c, const struct score_kernels *kernels, enum tree_level level,
                        uint64_t begin, uint64_t end, float *scores) {
    size_t bytes = tree_score_scratch_bytes(&c->layout);
    struct guarded scratch = guarded_create_aligned(bytes);
    tree_score(kernels, &(struct tree_score_args){&c->layout, level, (const void *const *)c->blocks, begin,
                                                  end, c->query, c->group, scores, scratch.data});
    guarded_destroy(&scratch);
}

/* What search and selection rank by, written out in double, of every node of every level; leaves of 64 have no search
 * above them, so what is chosen of them rests on this alone.  A product of halves and floats is rounded once, and once
 * in each of its sums: dimension + 2 roundings of the sum of magnitudes. */
static void scores_are_importances(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    static const enum key_shape shapes[] = {NORMAL, STEPS, SPIKES, DRIFTING};
    size_t leaves_of_64 = 0;
    for (uint64_t seed = test_seed(20261122), end = seed + 48; seed < end; seed++) {
        if (!test_takes_next()) continue;
        struct tree_case c;
        case_create(&c, seed, shapes[seed / 4 % 4], (size_t)8 << seed % 4,
                    seed % 3 == 0 ? TREE_MEAN_DEVIATION : TREE_BOUND);
        const size_t dimension = c.layout.dimension;
        for (enum tree_level level = c.layout.leaf; level <= tree_top(c.layout.leaf); level++) {
            size_t nodes = c.token_count / (size_t)tree_tokens(level);
            float *scores = calloc(nodes + 1, sizeof *scores);
            const struct level *variant = &levels[seed % level_count];
            score_nodes(&c, &variant->kernels, level, 0, nodes, scores);
            leaves_of_64 += level == TREE_64 && c.layout.leaf == TREE_64 ? nodes : 0;
            for (size_t node = 0; node < nodes; node++) {
                double want = -INFINITY, size = 0;
                const uint16_t *box = box_of(&c, level, node);
                for (size_t head = 0; head < c.group; head++) {
                    double of_head = 0;
                    want = fmax(want, importance(&c, level, node, head));
                    for (size_t d = 0; d < 2 * dimension; d++)
                        of_head += fabs((double)c.q[head * dimension + d % dimension] *
                                        (double)half_to_float(box[d]));
                    size = fmax(size, of_head);
                }
                check_near(scores[node], want, ((double)dimension + 2) * size * 0x1p-24,
                           "%s, seed %llu: leaves of %zu, node %zu of %zu tokens", variant->name,
                           (unsigned long long)seed, (size_t)tree_tokens(c.layout.leaf), node,
                           (size_t)tree_tokens(level));
            }
            free(scores);
        }
        case_destroy(&c);
    }
    printf("%zu leaves of 64\n", leaves_of_64);
    assert_met(leaves_of_64 > 0);
}

struct ranked {
    float score;
    uint32_t index;
};
/* The order of top_k: NaN first, then by score, then by index. */
static int by_rank(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (isnan(x->score) != isnan(y->score)) return isnan(x->score) ? -1 : 1;
    if (!isnan(x->score) && x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->index < y->index ? -1 : 1;
}
static int by_index(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Every leaf, ranked; returns the k-th importance. */
static float brute_force(const struct tree_case *c, const struct score_kernels *kernels,
                         const struct search_case *s, uint32_t *indices) {
    uint64_t tokens = tree_tokens(c->layout.leaf), first = s->begin / tokens,
             count = (s->end - s->begin) / tokens;
    float *scores = calloc(count, sizeof *scores);
    struct ranked *ranked = calloc(count, sizeof *ranked);
    score_nodes(c, kernels, c->layout.leaf, first, first + count, scores);
    for (size_t i = 0; i < count; i++) ranked[i] = (struct ranked){scores[i], (uint32_t)(first + i)};
    qsort(ranked, count, sizeof *ranked, by_rank);
    for (size_t i = 0; i < s->k; i++) indices[i] = ranked[i].index;
    qsort(indices, s->k, sizeof *indices, by_index);
    float last = ranked[s->k - 1].score;
    free(scores), free(ranked);
    return last;
}

static struct tree_counts search(const struct tree_case *c, const struct score_kernels *kernels,
                                 const struct search_case *s, uint32_t *indices) {
    struct top_k_kernels top_k;
    top_k_kernels_init(&top_k, cpu_features());
    struct tree_counts counts = {0};
    uint64_t begin, end;
    tree_start_range(s->start, s->begin, s->end, &begin, &end);
    struct guarded scores = guarded_create((size_t)(end - begin) * sizeof(float) + 64);
    struct guarded out = guarded_create(s->k * sizeof *indices);
    struct guarded scratch =
        guarded_create_aligned(tree_search_scratch_bytes(&c->layout, &top_k, s->end - s->begin));
    memset(scratch.data, 0xff, scratch.bytes);
    score_nodes(c, kernels, s->start, begin, end, scores.data);
    tree_search(kernels, &top_k,
                &(struct tree_search_args){&c->layout, (const void *const *)c->blocks, s->begin, s->end, s->k,
                                           c->query, c->group, s->start, scores.data, out.data, &counts,
                                           scratch.data});
    memcpy(indices, out.data, s->k * sizeof *indices);
    guarded_destroy(&scores);
    guarded_destroy(&out);
    guarded_destroy(&scratch);
    return counts;
}

static bool search_case_init(struct tree_case *c, struct search_case *s) {
    uint64_t leaf = tree_tokens(c->layout.leaf), leaves = c->token_count / leaf;
    if (leaves < 6) return false;
    uint64_t first =
        random_below(&c->random, 2) ? random_below(&c->random, 3) : random_below(&c->random, leaves - 1);
    uint64_t last =
        random_below(&c->random, 2) ? leaves : first + 2 + random_below(&c->random, leaves - first - 1);
    if (last > leaves) last = leaves;
    if (last - first < 2 || tree_top(c->layout.leaf) == c->layout.leaf) return false; /* nothing to search */
    uint64_t k_max = random_below(&c->random, 3) == 0 ? last - first - 1 : (last - first) / 4 + 1;
    s->begin = first * leaf;
    s->end = last * leaf;
    s->k = 1 + random_below(&c->random, k_max < last - first - 1 ? k_max : last - first - 1);
    s->start =
        c->layout.leaf + 1 + (enum tree_level)random_below(&c->random, (uint64_t)(TREE_RUN - c->layout.leaf));
    return true;
}

static void check_search(struct tree_case *c, const struct level *level, const struct search_case *s,
                         uint64_t seed, struct tree_counts *sum) {
    uint32_t *expected = calloc(s->k, sizeof *expected), *found = calloc(s->k, sizeof *found);
    brute_force(c, &level->kernels, s, expected);
    struct tree_counts counts = search(c, &level->kernels, s, found);
    for (size_t i = 0; i < s->k; i++)
        if (found[i] != expected[i])
            fail_msg("%s, %s keys, seed %llu: leaf of %zu, start %zu, [%zu, %zu), number %zu of %zu is %u, "
                     "expected %u",
                     level->name, shape_names[c->shape], (unsigned long long)seed,
                     (size_t)tree_tokens(c->layout.leaf), (size_t)tree_tokens(s->start), (size_t)s->begin,
                     (size_t)s->end, i, s->k, found[i], expected[i]);
    tree_counts_add(sum, &counts);
    free(expected), free(found);
}

static void the_search_equals_brute_force(void **state) {
    (void)state;
    struct level levels[8];
    size_t level_count = levels_init(levels);
    uint64_t first = test_seed(20261121);
    for (enum key_shape shape = 0; shape < SHAPES; shape++) {
        struct tree_counts sum = {0};
        for (uint64_t seed = first; seed < first + 60; seed++) {
            if (!test_takes_next()) continue;
            struct tree_case c;
            case_create(&c, seed, shape, (size_t)8 << seed % 4,
                        seed % 3 == 0 ? TREE_MEAN_DEVIATION : TREE_BOUND);
            struct search_case s;
            for (size_t round = 0; round < 6; round++)
                if (search_case_init(&c, &s)) check_search(&c, &levels[seed % level_count], &s, seed, &sum);
            case_destroy(&c);
        }
        uint64_t evaluated = 0, whole = 0;
        for (size_t level = 0; level < TREE_LEVEL_COUNT; level++)
            evaluated += sum.evaluated[level], whole += sum.whole[level];
        printf("%-8s keys: %llu leaves, %llu evaluations, %llu nodes taken whole\n", shape_names[shape],
               (unsigned long long)sum.leaves, (unsigned long long)evaluated, (unsigned long long)whole);
        if (shape == FLAT) assert_met(whole > 0 && evaluated < sum.leaves);
    }
}

/* Boxes of random bytes, as of a damaged document: something is found, and the search ends. */
static void broken_boxes_end(void **state) {
    (void)state;
    test_skip_part();
    struct score_kernels kernels;
    score_kernels_init(&kernels, cpu_features());
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct tree_case c;
        struct search_case s;
        case_create(&c, seed, NORMAL, (size_t)8 << seed % 4, TREE_BOUND);
        for (size_t i = 0; i < c.chunk_count; i++)
            if (seed % 3 == 0 || i % 3 == 0) fill_bytes(&c.random, c.blocks[i], c.layout.bytes);
        if (search_case_init(&c, &s)) {
            uint32_t *indices = calloc(s.k, sizeof *indices);
            (void)search(&c, &kernels, &s, indices);
            for (size_t i = 0; i < s.k; i++) {
                uint64_t token = indices[i] * tree_tokens(c.layout.leaf);
                assert_true(token >= s.begin && token < s.end && (i == 0 || indices[i] > indices[i - 1]));
            }
            free(indices);
        }
        case_destroy(&c);
    }
}

/* above: nodes that any exact search opens, those within the range whose importance exceeds that of the k-th
 * leaf.  allowed: nodes that it may open, those not below. */
static void must_open(const struct tree_case *c, const struct score_kernels *kernels,
                      const struct search_case *s, float last, uint64_t *above, uint64_t *allowed) {
    *above = *allowed = 0;
    for (enum tree_level level = c->layout.leaf + 1; level <= s->start; level++) {
        uint64_t begin, end;
        tree_start_range(level, s->begin, s->end, &begin, &end);
        float *scores = calloc((size_t)(end - begin) + 1, sizeof *scores);
        score_nodes(c, kernels, level, begin, end, scores);
        for (size_t i = 0; i < end - begin; i++) {
            *above += scores[i] > last;
            *allowed += scores[i] >= last;
        }
        free(scores);
    }
}

static void little_more_is_opened_than_must_be(void **state) {
    (void)state;
    test_skip_part();
    struct score_kernels kernels;
    score_kernels_init(&kernels, cpu_features());
    uint64_t opened_sum = 0, allowed_sum = 0;
    static const enum key_shape shapes[] = {NORMAL, SPIKES, DRIFTING};
    for (uint64_t seed = 1; seed <= 90; seed++) {
        struct tree_case c;
        case_create(&c, seed, shapes[seed % 3], (size_t)8 << seed / 3 % 4, TREE_BOUND);
        struct search_case s;
        if (search_case_init(&c, &s)) {
            uint32_t *indices = calloc(s.k, sizeof *indices);
            float last = brute_force(&c, &kernels, &s, indices);
            struct tree_counts counts = search(&c, &kernels, &s, indices);
            uint64_t above, allowed, opened = 0, whole = 0, evaluated = 0, expected;
            must_open(&c, &kernels, &s, last, &above, &allowed);
            for (size_t level = 0; level < TREE_LEVEL_COUNT; level++)
                opened += counts.opened[level], whole += counts.whole[level],
                    evaluated += counts.evaluated[level];
            if (whole == 0) assert_true(opened >= above);
            expected = counts.nodes[s.start] + 2 * (uint64_t)TREE_LEVEL_COUNT + TREE_RUN_CHUNKS * 2 +
                       2 * (opened - whole) + 2 * counts.opened[TREE_RUN];
            assert_true(evaluated <= expected);
            opened_sum += opened, allowed_sum += allowed;
            free(indices);
        }
        case_destroy(&c);
    }
    printf("opened %llu nodes of %llu that lie no lower than the last leaf\n", (unsigned long long)opened_sum,
           (unsigned long long)allowed_sum);
    assert_true(opened_sum * 100 <= allowed_sum * 110);
}

/* A desert of 2,500 tokens with nine large keys: a run without any is one evaluation. */
static void a_desert_is_evaluated_once(void **state) {
    (void)state;
    test_skip_part();
    struct score_kernels kernels;
    score_kernels_init(&kernels, cpu_features());
    for (uint64_t seed = 1, found = 0; found < 10; seed++) {
        struct tree_case c;
        case_create(&c, seed, SPIKES, 8, seed % 2 ? TREE_BOUND : TREE_MEAN_DEVIATION);
        if (c.token_count >= 2048) {
            struct search_case s = {.end = c.token_count / 8 * 8, .k = 5, .start = TREE_RUN};
            uint32_t indices[5];
            struct tree_counts counts = search(&c, &kernels, &s, indices);
            uint64_t evaluated = 0;
            for (size_t level = 0; level < TREE_LEVEL_COUNT; level++) evaluated += counts.evaluated[level];
            assert_true(counts.opened[TREE_RUN] <= 10);
            assert_true(evaluated * 2 < counts.leaves);
            found++;
        }
        case_destroy(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_hold_their_keys),
        cmocka_unit_test(scores_are_importances),
        cmocka_unit_test(the_search_equals_brute_force),
        cmocka_unit_test(a_desert_is_evaluated_once),
        cmocka_unit_test(broken_boxes_end),
        cmocka_unit_test(little_more_is_opened_than_must_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

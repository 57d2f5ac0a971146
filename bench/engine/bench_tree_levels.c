/* bench_tree_levels RECORDING [DEPTH,...] [KEEP,...] [LEAF,...]: how many nodes an exact search of LeoAM's tree must
 * evaluate, by the level that it starts from, with nodes of up to 4,096 tokens: more levels than kernels/tree has.
 *
 * RECORDING: of `loam trace record`; contexts of other lengths are tiled of it (engine/recording.h).  For each recorded
 * layer and KV head and every STEP_STRIDEth of the last STEPS rows: leaves and nodes are boxes as in kernels/tree
 * (mean -+ deviation of a leaf's keys, the smallest box around its children above), importances are the largest over
 * the group's heads.  A node is opened where its importance is at least that of the k-th best leaf, which no exact
 * search can do without.  Evaluations: all nodes of the start level, and the children of what is opened.
 *
 * CSV on standard output: means per search, a line for each start level; and "best": for each layer the level of the
 * least mean among those of at most so many tokens, which is what kernels/tree would start from. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/recording.h"

enum {
    LEVELS = 7,
    STEPS = 144,
    STEP_STRIDE = 24,
    WINDOW = 80,
    VALUES_MAX = 8,
    DIMENSION_MAX = 256,
    GROUP_MAX = 64
};
static const size_t level_tokens[LEVELS] = {8, 16, 32, 64, 256, 1024, 4096};

struct boxes {
    float *low, *high; /* owned; [count][dimension] */
    size_t count;
};

struct lane {
    struct boxes levels[LEVELS]; /* from the leaf's on */
    size_t dimension, leaf;
};

static void *memory(size_t count, size_t bytes) {
    void *made = calloc(count > 0 ? count : 1, bytes);
    if (made != NULL) return made;
    fprintf(stderr, "bench_tree_levels: out of memory\n");
    exit(5);
}

/* keys: [tokens][dimension] */
static void build_leaves(struct lane *lane, const float *keys) {
    struct boxes *boxes = &lane->levels[lane->leaf];
    const size_t n = level_tokens[lane->leaf], d = lane->dimension;
    for (size_t leaf = 0; leaf < boxes->count; leaf++)
        for (size_t i = 0; i < d; i++) {
            double sum = 0, squares = 0;
            for (size_t t = 0; t < n; t++) {
                const double x = keys[(leaf * n + t) * d + i];
                sum += x;
                squares += x * x;
            }
            const double mean = sum / (double)n, variance = squares / (double)n - mean * mean;
            const double deviation = variance > 0 ? sqrt(variance) : 0;
            boxes->low[leaf * d + i] = (float)(mean - deviation);
            boxes->high[leaf * d + i] = (float)(mean + deviation);
        }
}

static void build_above(struct lane *lane, size_t level) {
    struct boxes *boxes = &lane->levels[level], *below = &lane->levels[level - 1];
    const size_t children = level_tokens[level] / level_tokens[level - 1], d = lane->dimension;
    for (size_t node = 0; node < boxes->count; node++)
        for (size_t i = 0; i < d; i++) {
            float low = INFINITY, high = -INFINITY;
            for (size_t c = node * children; c < (node + 1) * children; c++) {
                low = fminf(low, below->low[c * d + i]);
                high = fmaxf(high, below->high[c * d + i]);
            }
            boxes->low[node * d + i] = low;
            boxes->high[node * d + i] = high;
        }
}

static void score(const struct boxes *boxes, size_t d, const float *q, size_t group, float *scores) {
    for (size_t node = 0; node < boxes->count; node++) {
        float best = -INFINITY;
        for (size_t head = 0; head < group; head++) {
            const float *low = boxes->low + node * d, *high = boxes->high + node * d, *x = q + head * d;
            float sum = 0;
            for (size_t i = 0; i < d; i++) sum += x[i] > 0 ? x[i] * high[i] : x[i] * low[i];
            if (sum > best) best = sum;
        }
        scores[node] = best;
    }
}

static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* evaluated: [LEVELS], by the level of the start, added to. */
static void search(const struct lane *lane, const float *q, size_t group, size_t k, float *scores,
                   float *sorted, double *evaluated) {
    const size_t leaves = lane->levels[lane->leaf].count;
    score(&lane->levels[lane->leaf], lane->dimension, q, group, scores);
    memcpy(sorted, scores, leaves * sizeof *sorted);
    qsort(sorted, leaves, sizeof *sorted, descending);
    const float least = sorted[k - 1];
    double below = 0; /* children of opened nodes */
    evaluated[lane->leaf] += (double)leaves;
    for (size_t level = lane->leaf + 1; level < LEVELS; level++) {
        const struct boxes *boxes = &lane->levels[level];
        size_t opened = 0;
        score(boxes, lane->dimension, q, group, scores);
        for (size_t node = 0; node < boxes->count; node++) opened += scores[node] >= least;
        below += (double)(opened * (level_tokens[level] / level_tokens[level - 1]));
        evaluated[level] += (double)boxes->count + below;
    }
}

struct context {
    const struct recording *recording;
    struct replay replay;
    struct replay_shape shape;
    size_t depth;
};

static void keys_of_layer(const struct context *context, size_t layer, float *keys) {
    const size_t d = context->recording->shape.k_dimension, heads = context->shape.kv_head_count;
    float *k = memory(heads * d, sizeof *k),
          *v = memory(heads * context->recording->shape.v_dimension, sizeof *v);
    for (size_t t = 0; t < context->depth; t++) {
        replay_keys_values(&context->replay, &context->shape, layer, t, k, v);
        for (size_t head = 0; head < heads; head++)
            memcpy(keys + (head * context->depth + t) * d, k + head * d, d * sizeof *k);
    }
    free(k);
    free(v);
}

/* Mean evaluations per search of a layer, by start level. */
static void measure_layer(const struct context *context, const float *keys, size_t layer, size_t leaf,
                          size_t k, double evaluated[LEVELS]) {
    const size_t d = context->recording->shape.k_dimension, heads = context->shape.kv_head_count,
                 group = context->shape.head_count / heads, leaves = context->depth / level_tokens[leaf];
    struct lane lane = {.dimension = d, .leaf = leaf};
    float *q = memory(context->shape.head_count * d, sizeof *q), *scores = memory(leaves, sizeof *scores),
          *sorted = memory(leaves, sizeof *sorted);
    size_t searches = 0;
    for (size_t level = leaf; level < LEVELS; level++) {
        struct boxes *boxes = &lane.levels[level];
        boxes->count = context->depth / level_tokens[level];
        boxes->low = memory(boxes->count * d, sizeof(float));
        boxes->high = memory(boxes->count * d, sizeof(float));
    }
    memset(evaluated, 0, LEVELS * sizeof *evaluated);
    for (size_t head = 0; head < heads; head++) {
        build_leaves(&lane, keys + head * context->depth * d);
        for (size_t level = leaf + 1; level < LEVELS; level++) build_above(&lane, level);
        for (size_t step = 0; step < STEPS; step += STEP_STRIDE, searches++) {
            replay_queries(&context->replay, &context->shape, layer, context->depth + step, q);
            search(&lane, q + head * group * d, group, k, scores, sorted, evaluated);
        }
    }
    for (size_t level = leaf; level < LEVELS; level++) {
        evaluated[level] /= (double)searches;
        free(lane.levels[level].low);
        free(lane.levels[level].high);
    }
    free(q);
    free(scores);
    free(sorted);
}

static void measure_depth(struct context *context, const size_t *keeps, size_t keep_count,
                          const size_t *leaves, size_t leaf_count) {
    const size_t layers = context->shape.layer_count;
    float *keys =
        memory(context->shape.kv_head_count * context->depth, context->recording->shape.k_dimension * 4);
    double(*sums)[VALUES_MAX][2][LEVELS] = memory(VALUES_MAX, sizeof *sums); /* start, best */
    for (size_t layer = 0; layer < layers; layer++) {
        keys_of_layer(context, layer, keys);
        for (size_t l = 0; l < leaf_count; l++)
            for (size_t i = 0; i < keep_count; i++) {
                double evaluated[LEVELS], best = INFINITY;
                const size_t tokens = keeps[i] > WINDOW ? keeps[i] - WINDOW : 1;
                const size_t k = tokens / level_tokens[leaves[l]] > 0 ? tokens / level_tokens[leaves[l]] : 1;
                measure_layer(context, keys, layer, leaves[l], k, evaluated);
                for (size_t level = leaves[l]; level < LEVELS; level++) {
                    best = fmin(best, evaluated[level]);
                    sums[l][i][0][level] += evaluated[level] / (double)layers;
                    sums[l][i][1][level] += best / (double)layers;
                }
            }
    }
    for (size_t l = 0; l < leaf_count; l++)
        for (size_t i = 0; i < keep_count; i++)
            for (size_t level = leaves[l]; level < LEVELS; level++)
                printf("%zu,%zu,%zu,%zu,%zu,%.1f,%.1f\n", context->depth, level_tokens[leaves[l]], keeps[i],
                       context->depth / level_tokens[leaves[l]], level_tokens[level], sums[l][i][0][level],
                       sums[l][i][1][level]);
    fflush(stdout);
    free(keys);
    free(sums);
}

static size_t numbers(const char *text, size_t *values) {
    size_t count = 0;
    for (char *end; *text != '\0' && count < VALUES_MAX; text = *end == ',' ? end + 1 : end) {
        values[count++] = strtoull(text, &end, 10);
        if (end == text) exit(2);
    }
    return count;
}

int main(int argc, char **argv) {
    size_t depths[VALUES_MAX], keeps[VALUES_MAX], tokens[VALUES_MAX], leaves[VALUES_MAX];
    struct recording recording;
    struct error error;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_tree_levels RECORDING [DEPTH,...] [KEEP,...] [LEAF,...]\n");
        return 2;
    }
    const size_t depth_count = numbers(argc > 2 ? argv[2] : "8192,32768,131072,524288,1048576", depths),
                 keep_count = numbers(argc > 3 ? argv[3] : "512,2048", keeps),
                 leaf_count = numbers(argc > 4 ? argv[4] : "16,64", tokens);
    for (size_t i = 0; i < leaf_count; i++) {
        leaves[i] = 0;
        while (leaves[i] + 1 < LEVELS && level_tokens[leaves[i]] < tokens[i]) leaves[i]++;
    }
    if (recording_open(&recording, argv[1], &error) != STATUS_OK) {
        fprintf(stderr, "bench_tree_levels: %s\n", error.message);
        return 4;
    }
    const struct recording_shape *s = &recording.shape;
    printf("context,leaf,keep,leaves,start_tokens,evaluated,evaluated_best_of_levels_up_to\n");
    for (size_t i = 0; i < depth_count; i++) {
        struct context context = {.recording = &recording,
                                  .shape = {s->layer_count, s->head_count, s->kv_head_count},
                                  .depth = depths[i]};
        if (replay_create(&context.replay, &recording, depths[i], STEPS, 1, &error) != STATUS_OK) {
            fprintf(stderr, "bench_tree_levels: %s\n", error.message);
            return 2;
        }
        measure_depth(&context, keeps, keep_count, leaves, leaf_count);
        replay_destroy(&context.replay);
    }
    recording_close(&recording);
    return 0;
}

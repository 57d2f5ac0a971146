/* bench_tree_levels RECORDING [DEPTH,...] [KEEP,...] [LEAF,...]: how many nodes an exact search of LeoAM's tree must
 * evaluate, by the level that it starts from, with nodes of up to 4,096 tokens: more levels than kernels/tree has.
 *
 * RECORDING: of `loam-lab trace record`; contexts of other lengths are tiled of it (lab/replay/recording.h).  For each
 * recorded layer and KV head and every TREE_LANE_STRIDEth of the last TREE_LANE_STEPS rows; importances are the largest
 * over the group's heads.  A node is opened where its importance is at least that of the k-th best leaf, which no exact
 * search can do without.  Evaluations: all nodes of the start level, and the children of what is opened.
 *
 * CSV on standard output: means per search, a line for each start level; and "best": for each layer the level of the
 * least mean among those of at most so many tokens, which is what kernels/tree would start from. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tree_lanes.h"

enum { LEVELS = TREE_LANE_LEVELS, VALUES_MAX = 8 };

struct wanted {
    struct tree_values keeps, leaves; /* leaves: levels */
};

static void score(const struct tree_lane *lane, size_t level, const float *q, size_t group, float *scores,
                  float *one) {
    const struct tree_boxes *boxes = &lane->levels[level];
    tree_boxes_score(boxes, lane->dimension, q, scores);
    for (size_t head = 1; head < group; head++) {
        tree_boxes_score(boxes, lane->dimension, q + head * lane->dimension, one);
        for (size_t node = 0; node < boxes->count; node++) scores[node] = fmaxf(scores[node], one[node]);
    }
}

static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* evaluated: [LEVELS], by the level of the start, added to. */
static void search(const struct tree_lane *lane, const float *q, size_t group, size_t k, float *scores,
                   float *other, double *evaluated) {
    const size_t leaves = lane->levels[lane->leaf].count;
    score(lane, lane->leaf, q, group, scores, other);
    memcpy(other, scores, leaves * sizeof *other);
    qsort(other, leaves, sizeof *other, descending);
    const float least = other[k - 1];
    double below = 0; /* children of opened nodes */
    evaluated[lane->leaf] += (double)leaves;
    for (size_t level = lane->leaf + 1; level < LEVELS; level++) {
        const size_t count = lane->levels[level].count;
        size_t opened = 0;
        score(lane, level, q, group, scores, other);
        for (size_t node = 0; node < count; node++) opened += scores[node] >= least;
        below += (double)(opened * (tree_lane_tokens[level] / tree_lane_tokens[level - 1]));
        evaluated[level] += (double)count + below;
    }
}

/* Mean evaluations per search of a layer, by start level. */
static void measure_layer(const struct tree_context *context, const float *keys, size_t layer, size_t leaf,
                          size_t k, double evaluated[LEVELS]) {
    const size_t d = context->recording->shape.k_dimension, heads = context->shape.kv_head_count,
                 group = context->shape.head_count / heads, leaves = context->depth / tree_lane_tokens[leaf];
    struct tree_lane lane;
    float *q = tree_memory(context->shape.head_count * d, sizeof *q),
          *scores = tree_memory(leaves, sizeof *scores), *other = tree_memory(leaves, sizeof *other);
    size_t searches = 0;
    tree_lane_init(&lane, leaf, d, context->depth);
    memset(evaluated, 0, LEVELS * sizeof *evaluated);
    for (size_t head = 0; head < heads; head++) {
        tree_lane_build(&lane, keys + head * context->depth * d);
        for (size_t step = 0; step < TREE_LANE_STEPS; step += TREE_LANE_STRIDE, searches++) {
            replay_queries(&context->replay, &context->shape, layer, context->depth + step, q);
            search(&lane, q + head * group * d, group, k, scores, other, evaluated);
        }
    }
    for (size_t level = leaf; level < LEVELS; level++) evaluated[level] /= (double)searches;
    tree_lane_deinit(&lane);
    free(q);
    free(scores);
    free(other);
}

static void measure_depth(struct tree_context *context, void *user) {
    const struct wanted *wanted = user;
    const struct tree_values *leaves = &wanted->leaves, *keeps = &wanted->keeps;
    const size_t layers = context->shape.layer_count;
    float *keys = tree_memory(context->shape.kv_head_count * context->depth,
                              context->recording->shape.k_dimension * sizeof *keys);
    double(*sums)[VALUES_MAX][2][LEVELS] = tree_memory(VALUES_MAX, sizeof *sums); /* start, best */
    for (size_t layer = 0; layer < layers; layer++) {
        tree_keys_of_layer(context, layer, keys);
        for (size_t l = 0; l < leaves->count; l++)
            for (size_t i = 0; i < keeps->count; i++) {
                double evaluated[LEVELS], best = INFINITY;
                const size_t leaf = leaves->values[l],
                             k = tree_leaves_kept(keeps->values[i], tree_lane_tokens[leaf]);
                measure_layer(context, keys, layer, leaf, k, evaluated);
                for (size_t level = leaf; level < LEVELS; level++) {
                    best = fmin(best, evaluated[level]);
                    sums[l][i][0][level] += evaluated[level] / (double)layers;
                    sums[l][i][1][level] += best / (double)layers;
                }
            }
    }
    for (size_t l = 0; l < leaves->count; l++)
        for (size_t i = 0; i < keeps->count; i++)
            for (size_t level = leaves->values[l]; level < LEVELS; level++)
                printf("%zu,%zu,%zu,%zu,%zu,%.1f,%.1f\n", context->depth, tree_lane_tokens[leaves->values[l]],
                       keeps->values[i], context->depth / tree_lane_tokens[leaves->values[l]],
                       tree_lane_tokens[level], sums[l][i][0][level], sums[l][i][1][level]);
    fflush(stdout);
    free(keys);
    free(sums);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_tree_levels RECORDING [DEPTH,...] [KEEP,...] [LEAF,...]\n");
        return 2;
    }
    struct wanted wanted = {tree_numbers(argc > 3 ? argv[3] : "512,2048"),
                            tree_numbers(argc > 4 ? argv[4] : "16,64")};
    for (size_t i = 0; i < wanted.leaves.count; i++)
        wanted.leaves.values[i] = tree_level_of(wanted.leaves.values[i]);
    printf("context,leaf,keep,leaves,start_tokens,evaluated,evaluated_best_of_levels_up_to\n");
    return tree_lanes_run("bench_tree_levels", argv[1],
                          argc > 2 ? argv[2] : "8192,32768,131072,524288,1048576", measure_depth, &wanted);
}

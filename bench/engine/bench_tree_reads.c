/* bench_tree_reads RECORDING [DEPTH,...] [KEEP,...]: what a search from nodes in RAM would have to read of leaves of 64
 * tokens that lie on disk (decision 0038).
 *
 * RECORDING, layers, KV heads and steps: as bench_tree_levels.  A node is read where what it may hold reaches the k-th
 * best leaf, so that no exact search can do with less:
 *   max      the node's importance, the largest over the group's heads
 *   softmax  the sum over the heads of exp(its importance - log of the sum over all leaves).  That sum is not known
 *            before all leaves are read: a real search has to bound it, and reads more
 * Above 1: no node can have more than all of it.
 *
 * CSV on standard output, shares of all nodes and of the k best leaves, means over searches:
 *   read          nodes whose leaves a KV head must read
 *   read_any      nodes of which any KV head of the layer must
 *   time          of these reads, beside reading all leaves in the order of the file, on a disk of REQUEST us a request
 *                 and KIB us a KiB, where gaps of up to GAP KiB are read through
 *                 (decision 0030).  1,024 tokens are 4 KiB of a KV head, and the KV heads lie
 *                 side by side
 *   unknown       softmax: what the leaves of nodes that are not read may add to a head's sum, by their nodes, as a
 *                 share of it
 *   gap           between the k-th best leaf and the next one, as a share of it
 *   found_8, _4, _2   of the k best leaves, those in the best eighth, quarter and half of the nodes, if no more are
 *                 read */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tree_lanes.h"

enum { LEAF = 3, FIRST_ABOVE = LEAF + 1, ABOVE = TREE_LANE_LEVELS - FIRST_ABOVE, GROUPS = 2, PARTS = 3 };
enum { STEPS = TREE_LANE_STEPS / TREE_LANE_STRIDE };
enum { UNIT_TOKENS = 256, RUN_UNITS = 4, GAP = 8 }; /* a unit: 1 KiB; a run of a head: 4 KiB */
static const double REQUEST = 9.5, KIB = 0.95;
static const char *const group_names[GROUPS] = {"max", "softmax"};

struct sums {
    double read, read_any, time, unknown, gap, found[PARTS];
};

/* Scores of a level, for all heads of a group: [group][count]. */
static void score_heads(const struct tree_lane *lane, size_t level, const float *q, size_t group,
                        float *scores) {
    const struct tree_boxes *boxes = &lane->levels[level];
    const float scale = 1 / sqrtf((float)lane->dimension);
    for (size_t head = 0; head < group; head++) {
        float *of_head = scores + head * boxes->count;
        tree_boxes_score(boxes, lane->dimension, q + head * lane->dimension, of_head);
        for (size_t node = 0; node < boxes->count; node++) of_head[node] *= scale;
    }
}

static double log_sum(const float *scores, size_t count) {
    double greatest = -INFINITY, sum = 0;
    for (size_t i = 0; i < count; i++) greatest = fmax(greatest, (double)scores[i]);
    for (size_t i = 0; i < count; i++) sum += exp((double)scores[i] - greatest);
    return greatest + log(sum);
}

/* values: [count], of [group][count] scores. */
static void combine(bool softmax, const float *scores, size_t count, size_t group, const double *logs,
                    double *values) {
    for (size_t i = 0; i < count; i++) {
        double value = softmax ? 0 : -INFINITY;
        for (size_t head = 0; head < group; head++) {
            const double x = (double)scores[head * count + i];
            value = softmax ? value + fmin(exp(x - logs[head]), 1) : fmax(value, x);
        }
        values[i] = value;
    }
}

static int descending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static double nth_greatest(const double *values, size_t count, size_t n, double *sorted) {
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, descending);
    return sorted[n - 1];
}

struct work {
    float *scores;                   /* [group][leaves] */
    double *leaves, *nodes, *sorted; /* [leaves] */
    uint8_t *units; /* [GROUPS][ABOVE][STEPS][unit_count]: those that are read, in the order of the file */
    size_t unit_count, heads, head;
    double logs[64];
};

static size_t unit_of(const struct work *work, size_t head, size_t unit) {
    return (unit / RUN_UNITS * work->heads + head) * RUN_UNITS + unit % RUN_UNITS;
}

/* Of reading a layer's units, us. */
static double read_time(const uint8_t *units, size_t count) {
    double time = 0;
    for (size_t i = 0, end = 0; i < count; i++) {
        if (!units[i]) continue;
        time += end > 0 && i - end <= GAP ? KIB * (double)(i + 1 - end) : REQUEST + KIB;
        end = i + 1;
    }
    return time;
}

static void search(const struct tree_lane *lane, const float *q, size_t group, size_t k, struct work *work,
                   size_t step, struct sums sums[GROUPS][ABOVE]) {
    const size_t leaves = lane->levels[LEAF].count;
    for (size_t kind = 0; kind < GROUPS; kind++) {
        const bool softmax = kind == 1;
        score_heads(lane, LEAF, q, group, work->scores);
        for (size_t head = 0; head < group; head++)
            work->logs[head] = log_sum(work->scores + head * leaves, leaves);
        combine(softmax, work->scores, leaves, group, work->logs, work->leaves);
        const double least = nth_greatest(work->leaves, leaves, k, work->sorted), next = work->sorted[k];
        for (size_t level = FIRST_ABOVE; level < TREE_LANE_LEVELS; level++) {
            struct sums *sum = &sums[kind][level - FIRST_ABOVE];
            const size_t count = lane->levels[level].count, below = tree_lane_tokens[level] / 64;
            uint8_t *units =
                work->units + ((kind * ABOVE + level - FIRST_ABOVE) * STEPS + step) * work->unit_count;
            const size_t node_units = tree_lane_tokens[level] / UNIT_TOKENS;
            size_t read = 0;
            score_heads(lane, level, q, group, work->scores);
            combine(softmax, work->scores, count, group, work->logs, work->nodes);
            for (size_t node = 0; node < count; node++) {
                if (work->nodes[node] < least) {
                    for (size_t head = 0; head < group && softmax; head++)
                        sum->unknown += (double)below *
                                        exp((double)work->scores[head * count + node] - work->logs[head]) /
                                        (double)group;
                    continue;
                }
                for (size_t i = 0; i < node_units; i++)
                    units[unit_of(work, work->head, node * node_units + i)] = 1;
                read++;
            }
            sum->read += (double)read / (double)count;
            sum->gap += fabs(1 - next / least);
            for (size_t part = 0; part < PARTS; part++) {
                const size_t taken = count >> (3 - part) > 0 ? count >> (3 - part) : 1;
                const double bar = nth_greatest(work->nodes, count, taken, work->sorted);
                size_t found = 0;
                for (size_t leaf = 0; leaf < leaves; leaf++)
                    found += work->leaves[leaf] >= least && leaf / below < count &&
                             work->nodes[leaf / below] >= bar;
                sum->found[part] += (double)found / (double)k;
            }
        }
    }
}

/* What all KV heads of a layer read in a step; sums are divided by searches, of which a step has one a head. */
static void add_layer(const struct work *work, const uint8_t *units, size_t tokens, struct sums *sum) {
    const size_t node_units = tokens / UNIT_TOKENS, nodes = work->unit_count / work->heads / node_units;
    size_t read = 0;
    for (size_t node = 0; node < nodes; node++) {
        bool any = false;
        for (size_t head = 0; head < work->heads; head++)
            any = any || units[unit_of(work, head, node * node_units)];
        read += any;
    }
    sum->read_any += (double)(read * work->heads) / (double)nodes;
    sum->time += read_time(units, work->unit_count) * (double)work->heads / (KIB * (double)work->unit_count);
}

static void measure_layer(const struct tree_context *context, const float *keys, size_t layer, size_t k,
                          struct sums sums[GROUPS][ABOVE]) {
    const size_t d = context->recording->shape.k_dimension, heads = context->shape.kv_head_count,
                 group = context->shape.head_count / heads, leaves = context->depth / 64;
    struct tree_lane lane;
    struct work work = {.scores = tree_memory(leaves * group, sizeof(float)),
                        .leaves = tree_memory(leaves, sizeof(double)),
                        .nodes = tree_memory(leaves, sizeof(double)),
                        .sorted = tree_memory(leaves, sizeof(double)),
                        .unit_count = context->depth / UNIT_TOKENS * heads,
                        .heads = heads};
    work.units = tree_memory((size_t)GROUPS * ABOVE * STEPS, work.unit_count);
    float *q = tree_memory(context->shape.head_count * d, sizeof *q);
    tree_lane_init(&lane, LEAF, d, context->depth);
    for (size_t head = 0; head < heads; head++) {
        tree_lane_build(&lane, keys + head * context->depth * d);
        work.head = head;
        for (size_t step = 0; step < STEPS; step++) {
            replay_queries(&context->replay, &context->shape, layer, context->depth + step * TREE_LANE_STRIDE,
                           q);
            search(&lane, q + head * group * d, group, k, &work, step, sums);
        }
    }
    for (size_t i = 0; i < (size_t)GROUPS * ABOVE * STEPS; i++)
        add_layer(&work, work.units + i * work.unit_count, tree_lane_tokens[FIRST_ABOVE + i / STEPS % ABOVE],
                  &sums[i / STEPS / ABOVE][i / STEPS % ABOVE]);
    tree_lane_deinit(&lane);
    free(work.scores);
    free(work.leaves);
    free(work.nodes);
    free(work.sorted);
    free(work.units);
    free(q);
}

static void measure_depth(struct tree_context *context, void *user) {
    const struct tree_values *keeps = user;
    struct sums sums[8][GROUPS][ABOVE] = {0};
    float *keys = tree_memory(context->shape.kv_head_count * context->depth,
                              context->recording->shape.k_dimension * sizeof *keys);
    const double searches = (double)(context->shape.layer_count * context->shape.kv_head_count * STEPS);
    for (size_t layer = 0; layer < context->shape.layer_count; layer++) {
        tree_keys_of_layer(context, layer, keys);
        for (size_t i = 0; i < keeps->count; i++)
            measure_layer(context, keys, layer, tree_leaves_kept(keeps->values[i], 64), sums[i]);
    }
    for (size_t i = 0; i < keeps->count; i++)
        for (size_t j = 0; j < (size_t)GROUPS * ABOVE; j++) {
            const struct sums *sum = &sums[i][j / ABOVE][j % ABOVE];
            printf("%zu,%zu,%s,%zu,%.3f,%.3f,%.3f,%.3f,%.4f,%.3f,%.3f,%.3f\n", context->depth,
                   keeps->values[i], group_names[j / ABOVE], tree_lane_tokens[FIRST_ABOVE + j % ABOVE],
                   sum->read / searches, sum->read_any / searches, sum->time / searches,
                   sum->unknown / searches, sum->gap / searches, sum->found[0] / searches,
                   sum->found[1] / searches, sum->found[2] / searches);
        }
    fflush(stdout);
    free(keys);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_tree_reads RECORDING [DEPTH,...] [KEEP,...]\n");
        return 2;
    }
    struct tree_values keeps = tree_numbers(argc > 3 ? argv[3] : "512,2048");
    printf("context,keep,group,node_tokens,read,read_any,time,unknown,gap,found_8,found_4,found_2\n");
    return tree_lanes_run("bench_tree_reads", argv[1],
                          argc > 2 ? argv[2] : "8192,32768,131072,524288,1048576", measure_depth, &keeps);
}

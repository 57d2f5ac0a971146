#include "tree_lanes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const size_t tree_lane_tokens[TREE_LANE_LEVELS] = {8, 16, 32, 64, 256, 1024, 4096};

void *tree_memory(size_t count, size_t bytes) {
    void *made = calloc(count > 0 ? count : 1, bytes);
    if (made != NULL) return made;
    fprintf(stderr, "out of memory\n");
    exit(5);
}

size_t tree_level_of(size_t tokens) {
    size_t level = 0;
    while (level + 1 < TREE_LANE_LEVELS && tree_lane_tokens[level] < tokens) level++;
    return level;
}

static void build_leaves(struct tree_lane *lane, const float *keys) {
    struct tree_boxes *boxes = &lane->levels[lane->leaf];
    const size_t n = tree_lane_tokens[lane->leaf], d = lane->dimension;
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

static void build_above(struct tree_lane *lane, size_t level) {
    struct tree_boxes *boxes = &lane->levels[level], *below = &lane->levels[level - 1];
    const size_t children = tree_lane_tokens[level] / tree_lane_tokens[level - 1], d = lane->dimension;
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

void tree_lane_init(struct tree_lane *lane, size_t leaf, size_t dimension, size_t depth) {
    *lane = (struct tree_lane){.dimension = dimension, .leaf = leaf};
    for (size_t level = leaf; level < TREE_LANE_LEVELS; level++) {
        struct tree_boxes *boxes = &lane->levels[level];
        boxes->count = depth / tree_lane_tokens[level];
        boxes->low = tree_memory(boxes->count * dimension, sizeof(float));
        boxes->high = tree_memory(boxes->count * dimension, sizeof(float));
    }
}

void tree_lane_deinit(struct tree_lane *lane) {
    for (size_t level = lane->leaf; level < TREE_LANE_LEVELS; level++) {
        free(lane->levels[level].low);
        free(lane->levels[level].high);
    }
}

void tree_lane_build(struct tree_lane *lane, const float *keys) {
    build_leaves(lane, keys);
    for (size_t level = lane->leaf + 1; level < TREE_LANE_LEVELS; level++) build_above(lane, level);
}

void tree_boxes_score(const struct tree_boxes *boxes, size_t dimension, const float *q, float *scores) {
    for (size_t node = 0; node < boxes->count; node++) {
        const float *low = boxes->low + node * dimension, *high = boxes->high + node * dimension;
        float sum = 0;
        for (size_t i = 0; i < dimension; i++) sum += q[i] > 0 ? q[i] * high[i] : q[i] * low[i];
        scores[node] = sum;
    }
}

void tree_keys_of_layer(const struct tree_context *context, size_t layer, float *keys) {
    const size_t d = context->recording->shape.k_dimension, heads = context->shape.kv_head_count;
    float *k = tree_memory(heads * d, sizeof *k),
          *v = tree_memory(heads * context->recording->shape.v_dimension, sizeof *v);
    for (size_t t = 0; t < context->depth; t++) {
        replay_keys_values(&context->replay, &context->shape, layer, t, k, v);
        for (size_t head = 0; head < heads; head++)
            memcpy(keys + (head * context->depth + t) * d, k + head * d, d * sizeof *k);
    }
    free(k);
    free(v);
}

struct tree_values tree_numbers(const char *text) {
    struct tree_values found = {.count = 0};
    for (char *end; *text != '\0' && found.count < sizeof found.values / sizeof *found.values;
         text = *end == ',' ? end + 1 : end) {
        found.values[found.count++] = strtoull(text, &end, 10);
        if (end == text) exit(2);
    }
    return found;
}

int tree_lanes_run(const char *program, const char *path, const char *depths,
                   void (*measure)(struct tree_context *context, void *user), void *user) {
    const struct tree_values wanted = tree_numbers(depths);
    struct recording recording;
    struct error error;
    if (recording_open(&recording, path, &error) != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", program, error.message);
        return 4;
    }
    const struct recording_shape *s = &recording.shape;
    for (size_t i = 0; i < wanted.count; i++) {
        struct tree_context context = {.recording = &recording,
                                       .shape = {s->layer_count, s->head_count, s->kv_head_count},
                                       .depth = wanted.values[i]};
        if (replay_create(&context.replay, &recording, context.depth, TREE_LANE_STEPS, 1, &error) !=
            STATUS_OK) {
            fprintf(stderr, "%s: %s\n", program, error.message);
            return 2;
        }
        measure(&context, user);
        replay_destroy(&context.replay);
    }
    recording_close(&recording);
    return 0;
}

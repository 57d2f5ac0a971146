/* tree_lanes: boxes of LeoAM's tree over recorded keys, with more levels than kernels/tree has.  Leaves and nodes are
 * as there: mean -+ deviation of a leaf's keys, the smallest box around its children above. */
#pragma once

#include <stddef.h>

#include "lab/replay/recording.h"

enum { TREE_LANE_LEVELS = 7, TREE_LANE_STEPS = 144, TREE_LANE_STRIDE = 24, TREE_LANE_WINDOW = 80 };
extern const size_t tree_lane_tokens[TREE_LANE_LEVELS];

struct tree_boxes {
    float *low, *high; /* owned; [count][dimension] */
    size_t count;
};

struct tree_lane {                              /* of a KV head */
    struct tree_boxes levels[TREE_LANE_LEVELS]; /* from the leaf's on */
    size_t dimension, leaf;
};

struct tree_context {
    const struct recording *recording;
    struct replay replay;
    struct replay_shape shape;
    size_t depth;
};

void *tree_memory(size_t count, size_t bytes); /* zeroed; ends the program where there is none */
size_t tree_level_of(size_t tokens);
/* Leaves that a keep of so many tokens has beside its window. */
static inline size_t tree_leaves_kept(size_t keep, size_t leaf_tokens) {
    const size_t tokens = keep > TREE_LANE_WINDOW ? keep - TREE_LANE_WINDOW : 1;
    return tokens / leaf_tokens > 0 ? tokens / leaf_tokens : 1;
}
/* keys: [kv_head_count][depth][dimension] */
void tree_keys_of_layer(const struct tree_context *context, size_t layer, float *keys);
/* levels of a leaf of so many tokens, for depth tokens; not filled */
void tree_lane_init(struct tree_lane *lane, size_t leaf, size_t dimension, size_t depth);
void tree_lane_deinit(struct tree_lane *lane);
void tree_lane_build(struct tree_lane *lane, const float *keys); /* [depth][dimension] */
/* The importance of each box for one query head; scores: [count] */
void tree_boxes_score(const struct tree_boxes *boxes, size_t dimension, const float *q, float *scores);

/* Opens a recording, and calls `measure` for each depth of "8192,32768" with the context that is tiled to it.  Returns
 * the exit code. */
struct tree_values {
    size_t values[8], count;
};
struct tree_values tree_numbers(const char *text);
int tree_lanes_run(const char *program, const char *path, const char *depths,
                   void (*measure)(struct tree_context *context, void *user), void *user);

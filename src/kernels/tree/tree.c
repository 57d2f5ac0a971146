/* Layout and building.  The boxes above the leaves are compared as integers: the order of halves is that of their
 * bits, with those of negative ones inverted. */
#include "kernels/tree/tree.h"

#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "tensor/half.h"

void tree_layout_init(struct tree_layout *layout, size_t leaf_tokens, size_t dimension, enum tree_rank rank,
                      bool bounds) {
    ASSERT(leaf_tokens == 8 || leaf_tokens == 16 || leaf_tokens == 32 || leaf_tokens == KV_CHUNK_TOKENS);
    *layout = (struct tree_layout){
        .leaf = TREE_8, .rank = rank, .dimension = dimension, .node_bytes = 2 * dimension * sizeof(uint16_t)};
    while (tree_tokens(layout->leaf) < leaf_tokens) layout->leaf++;
    layout->offset[TREE_64] = 0;
    layout->bytes = layout->node_bytes;
    if (tree_top(layout->leaf) == TREE_RUN) {
        layout->offset[TREE_RUN] = layout->bytes;
        layout->bytes += layout->node_bytes;
    }
    for (enum tree_level level = TREE_64; level-- > layout->leaf;) {
        layout->offset[level] = layout->bytes;
        layout->bytes += KV_CHUNK_TOKENS / (size_t)tree_tokens(level) * layout->node_bytes;
    }
    layout->has_bounds = rank == TREE_BOUND || bounds;
    layout->bounds_offset = layout->offset[layout->leaf];
    if (layout->has_bounds && rank != TREE_BOUND) {
        layout->bounds_offset = layout->bytes;
        layout->bytes += KV_CHUNK_TOKENS / leaf_tokens * layout->node_bytes;
    }
    /* Without an extra line the nodes of a level would have the same offset in consecutive pages, and share few sets
     * of the caches: scores of single nodes of 256 bytes then took 114 ns each, not 72. */
    layout->bytes = align_up(layout->bytes, 64) + (layout->leaf == TREE_64 ? 0 : 64);
    abstract_layout_init(&layout->abstract, leaf_tokens, dimension, layout->has_bounds, rank == TREE_MEAN_DEVIATION);
    layout->abstract.offset[ABSTRACT_MEAN_DEVIATION] = layout->offset[layout->leaf];
    layout->abstract.offset[ABSTRACT_MIN_MAX] = layout->bounds_offset;
}

static uint16_t *box_of(const struct tree_layout *layout, enum tree_level level, void *block, size_t node) {
    return (uint16_t *)(void *)((uint8_t *)block + layout->offset[level] + node * layout->node_bytes);
}

/* An integer whose order is that of the halves; NaN is the greatest. */
static inline int16_t half_rank(uint16_t half) {
    uint16_t rank = half ^ ((half >> 15) != 0 ? 0x7fffu : 0);
    return (int16_t)((half & 0x7fffu) > 0x7c00u ? 0x7fffu : rank);
}

/* The smallest box around `count` boxes that lie one behind the other. */
static void box_around(uint16_t *box, const uint16_t *const *boxes, size_t count, size_t dimension) {
    uint16_t *low = box, *high = box + dimension;
    memcpy(box, boxes[0], 2 * dimension * sizeof *box);
    for (size_t i = 1; i < count; i++) {
        const uint16_t *next_low = boxes[i], *next_high = next_low + dimension;
        for (size_t d = 0; d < dimension; d++) {
            low[d] = half_rank(next_low[d]) < half_rank(low[d]) ? next_low[d] : low[d];
            high[d] = half_rank(next_high[d]) > half_rank(high[d]) ? next_high[d] : high[d];
        }
    }
}

/* Rows of mean and deviation become a box. */
static void box_of_spread(uint16_t *box, size_t dimension) {
    for (size_t d = 0; d < dimension; d++) {
        float mean = half_to_float(box[d]), deviation = half_to_float(box[dimension + d]);
        box[d] = float_to_half(mean - deviation);
        box[dimension + d] = float_to_half(mean + deviation);
    }
}

void tree_build(const struct abstract_kernels *abstract, const struct tree_build_args *args) {
    const struct tree_layout *layout = args->layout;
    size_t tokens = (size_t)tree_tokens(layout->leaf);
    ASSERT(args->token_begin < args->token_end && args->token_end <= KV_CHUNK_TOKENS);
    abstract->build(&(struct abstract_build_args){.layout = &layout->abstract,
                                                  .kv = args->kv,
                                                  .chunk = args->chunk,
                                                  .token_begin = args->token_begin,
                                                  .token_end = args->token_end,
                                                  .abstract = args->block});
    for (size_t leaf = args->token_begin / tokens;
         layout->rank == TREE_MEAN_DEVIATION && leaf * tokens < args->token_end; leaf++)
        box_of_spread(box_of(layout, layout->leaf, args->block, leaf), layout->dimension);
    for (enum tree_level level = layout->leaf; level < TREE_64; level++) {
        size_t child_tokens = (size_t)tree_tokens(level);
        for (size_t node = args->token_begin / (2 * child_tokens); 2 * node * child_tokens < args->token_end; node++) {
            const uint16_t *children[2] = {box_of(layout, level, args->block, 2 * node),
                                           box_of(layout, level, args->block, 2 * node + 1)};
            size_t count = (2 * node + 1) * child_tokens < args->token_end ? 2 : 1;
            box_around(box_of(layout, level + 1, args->block, node), children, count, layout->dimension);
        }
    }
}

void tree_build_run(const struct tree_layout *layout, void *const blocks[TREE_RUN_CHUNKS]) {
    ASSERT(tree_top(layout->leaf) == TREE_RUN);
    const uint16_t *chunks[TREE_RUN_CHUNKS];
    for (size_t i = 0; i < TREE_RUN_CHUNKS; i++) chunks[i] = box_of(layout, TREE_64, blocks[i], 0);
    box_around(box_of(layout, TREE_RUN, blocks[TREE_RUN_CHUNKS - 1], 0), chunks, TREE_RUN_CHUNKS, layout->dimension);
}

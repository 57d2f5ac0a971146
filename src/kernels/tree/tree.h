/* tree: boxes around the keys of nodes of 8 to 256 tokens, and the search for the k best leaves (LeoAM, 4.2 and 4.3).
 *
 * A node is 8, 16, 32 or 64 consecutive tokens of a chunk, or a run of TREE_RUN_CHUNKS chunks; its box is a pair of
 * rows, [low][high], dimension halves each.  The importance of a node is
 *   I(node) = max over the heads h of a group of  sum over d of max(q_hd low_d, q_hd high_d)
 * and what the leaves' boxes are decides what it means:
 *   TREE_BOUND          minimum and maximum of the keys, rounded outwards: I is at least max over heads of q . k for
 *                       every token of the node (published)
 *   TREE_MEAN_DEVIATION mean - deviation and mean + deviation: I of a leaf is q . mean + |q| . deviation (arXiv
 *                       2605.27740), which ranks better
 * The box of every other node is exactly the smallest around its children's, so in both cases
 *   1  I(parent) >= I(child), also as computed in floats: each product, each sum and the maximum over heads is
 *      monotone in the boxes, and all nodes go through the same operations in the same order (kernels/score).
 * Hence a node whose importance is below that of k leaves need not be opened, and the search is exact.
 *
 * The aggregate over a group is the maximum, of bounds as of products: max over h and t of q_h . k_t <= max over h of
 * the bound of h, and with lower bounds the same way round.  A sum over h is a bound of a sum in the same way.
 *
 * A chunk's block: [node of 64][run, in the block of its last chunk only][2 of 32][4 of 16][8 of 8], as fine as the
 * leaves are; coarse first, so that a coarse reader touches little.  Bytes at dimension 64 (of 16 KiB of f16
 * KV; at dimension 128 about twice that, of 32 KiB): leaf 8: 4160, 16: 2112, 32: 1088, 64: 256.  Above leaves of 64
 * there are no runs: such leaves are chosen for a small key index, which runs would double.
 *
 * With TREE_MEAN_DEVIATION minima and maxima of the leaves' keys can be kept beside the boxes, behind them in the block
 * (`bounds`): nothing is ranked by them; they bound what a leaf that was left out can hold.  At dimension 64 the
 * block then has, by leaf: 6208, 3136, 1600, 512 bytes.
 * Differs from [leoam]: inner nodes are stored, not computed from keys that lie in memory, so abstracts of KV on disk
 * split as well; runs are merged where they lie, once, not anew for every query.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/abstract/abstract.h"
#include "kernels/score/score.h"
#include "kernels/top_k/top_k.h"

enum tree_level { TREE_8, TREE_16, TREE_32, TREE_64, TREE_RUN, TREE_LEVEL_COUNT };
enum { TREE_RUN_CHUNKS = 4 };
enum tree_rank { TREE_BOUND, TREE_MEAN_DEVIATION };

static inline uint64_t tree_tokens(enum tree_level level) {
    return level == TREE_RUN ? TREE_RUN_CHUNKS * KV_CHUNK_TOKENS : (uint64_t)8 << level;
}
/* Children of a node of the level. */
static inline size_t tree_children(enum tree_level level) { return level == TREE_RUN ? TREE_RUN_CHUNKS : 2; }

/* The highest level there is. */
static inline enum tree_level tree_top(enum tree_level leaf) { return leaf == TREE_64 ? TREE_64 : TREE_RUN; }

struct tree_layout {
    enum tree_level leaf;
    enum tree_rank rank;
    enum score_aggregate aggregate;  /* SCORE_MAX as it is initialised; SCORE_SUM: importances are sums over a group */
    size_t dimension;                /* of a key; a multiple of 8 */
    size_t node_bytes;               /* of a box */
    size_t offset[TREE_LEVEL_COUNT]; /* bytes from the start of a block to the first box of the level */
    bool has_bounds;                 /* minima and maxima of the leaves' keys: */
    size_t bounds_offset;            /* from the start of a block, of leaf 0; TREE_BOUND: the leaves themselves */
    size_t bytes;                    /* of a block; a multiple of 64 */
    struct abstract_layout abstract; /* builds the leaves where they lie */
};
/* leaf_tokens: 8, 16, 32 or 64.  bounds: stored with TREE_MEAN_DEVIATION too. */
void tree_layout_init(struct tree_layout *layout, size_t leaf_tokens, size_t dimension, enum tree_rank rank,
                      bool bounds);

/* Rebuilds the nodes of one chunk that hold any of its tokens [token_begin, token_end), except runs.  A node takes
 * those of its tokens that are before token_end.  NaN: as in abstract.h. */
struct tree_build_args {
    const struct tree_layout *layout;
    const struct kv_layout *kv;
    const void *chunk; /* KV rows */
    size_t token_begin, token_end;
    void *block; /* aligned to 16 */
};
void tree_build(const struct abstract_kernels *abstract, const struct tree_build_args *args);
/* The run that ends with a chunk, from the blocks of its chunks, which are all full.  Only where there are runs. */
void tree_build_run(const struct tree_layout *layout, void *const blocks[TREE_RUN_CHUNKS]);

/* ---- searching ---- */

/* What a search did. */
struct tree_counts {
    uint64_t searches;
    uint64_t tokens, leaves;              /* that there were to choose from */
    uint64_t nodes[TREE_LEVEL_COUNT];     /* nodes of the levels up to the start */
    uint64_t evaluated[TREE_LEVEL_COUNT]; /* whose importance was computed */
    uint64_t opened[TREE_LEVEL_COUNT];    /* nodes whose children were evaluated, or which were taken whole */
    uint64_t whole[TREE_LEVEL_COUNT];     /* of these: taken whole, because of their lower bound */
    uint64_t lower;                       /* lower bounds computed */
};
void tree_counts_add(struct tree_counts *sum, const struct tree_counts *counts);

/* A query prepared for boxes: [2][group][2 * dimension] floats, for upper and for lower bounds.  The heads of a group
 * are q_stride floats apart. */
size_t tree_query_floats(const struct tree_layout *layout, size_t group);
void tree_query(const struct tree_layout *layout, const float *q, size_t q_stride, size_t group, float *prepared);

/* Nodes [node_begin, node_end) of a level of one KV head, counted from the start of the sequence. */
struct tree_score_args {
    const struct tree_layout *layout;
    enum tree_level level;
    const void *const *blocks; /* of the KV head's chunks */
    uint64_t node_begin, node_end;
    const float *query; /* prepared */
    size_t group;       /* 1..64 */
    float *scores;      /* [node_end - node_begin] */
    void *scratch;      /* tree_score_scratch_bytes(layout), aligned to 64 */
};
size_t tree_score_scratch_bytes(const struct tree_layout *layout);
void tree_score(const struct score_kernels *score, const struct tree_score_args *args);

/* The k leaves of [token_begin, token_end) with the largest importance; of equal ones those with the lower index. */
struct tree_search_args {
    const struct tree_layout *layout;
    const void *const *blocks;
    uint64_t token_begin, token_end; /* multiples of the leaf's tokens; at most 2^31 */
    size_t k;                        /* leaves: 0 < k < their number */
    const float *query;              /* prepared */
    size_t group;
    enum tree_level start; /* above the leaves */
    /* The importance of the nodes of the start level within the tokens, which tree_start_range gives. */
    const float *start_scores;
    uint32_t *indices;          /* out: [k], ascending: index of a leaf = its first token / its tokens */
    struct tree_counts *counts; /* added to */
    void *scratch;              /* tree_search_scratch_bytes, aligned to 64 */
};
/* The level's nodes within the tokens: [*begin, *end), perhaps none. */
void tree_start_range(enum tree_level level, uint64_t token_begin, uint64_t token_end, uint64_t *begin, uint64_t *end);
size_t tree_search_scratch_bytes(const struct tree_layout *layout, const struct top_k_kernels *top_k,
                                 uint64_t token_count);
void tree_search(const struct score_kernels *score, const struct top_k_kernels *top_k,
                 const struct tree_search_args *args);

/* tree: leaves of 8 to 64 tokens ranked by the importance of their boxes, found by a search from coarser nodes (LeoAM,
 * 4.2 and 4.3).  Which leaves are chosen is what ranking all of them would choose: of pages of 16 tokens and
 * rank=bound, what quest chooses.  kernels/tree has the boxes and the search, tree_density.h from which level it
 * starts.  With take=64 pages of 64 tokens are kept by their best leaf.  Differs from [leoam]: decision 0010,
 * 0034. */
#include "attention/select_method.h"

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    if (options->leaf != 8 && options->leaf != 16 && options->leaf != 32 && options->leaf != 64)
        return error_set(error, STATUS_USAGE, "select=tree: leaf=%zu, expected 8, 16, 32 or 64", options->leaf);
    if (options->take != 0 && options->take != options->leaf) /* all leaves are scored: no node above them is kept */
        return select_layout_abstracts(layout, shape, options, options->leaf,
                                       options->rank == TREE_BOUND ? ABSTRACT_MIN_MAX : ABSTRACT_MEAN_DEVIATION, error);
    layout->kind = KEY_INDEX_TREE;
    layout->unit_tokens = options->leaf;
    tree_layout_init(&layout->tree, options->leaf, shape->k_dimension, options->rank, options->mass_bound);
    layout->aggregate = select_aggregate(options, SCORE_MAX);
    layout->tree.aggregate = layout->aggregate == SCORE_SUM ? SCORE_SUM : SCORE_MAX;
    layout->has_bounds = layout->tree.has_bounds;
    layout->bounds_apart = layout->has_bounds && options->rank != TREE_BOUND;
    layout->bounds_offset = layout->tree.bounds_offset;
    layout->bytes = layout->tree.bytes;
    return STATUS_OK;
}

const struct select_method select_tree = {
    .name = "tree", .summary = "leaves of a tree of bounds (LeoAM)", .layout = layout, .scatter = 0.6};
